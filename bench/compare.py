"""zabd beside Debian's ZooKeeper, on this machine, in one run.

    python bench/compare.py [--starts 3] [--op OP ...] [--cell CxW ...] [--out FILE]

Both are started several times, in turn, with three members each, and measured with the load of
`zabctl bench`; a JVM is warmed up before. Without Debian's packages (zookeeper,
openjdk-17-jre-headless, libslf4j-java, liblog4j1.2-java) zabd is measured alone. Prints a table of
medians over the starts, with what one operation costs in CPU, summed over the members.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.compat import java_zookeeper

from zabd.cli.load import Load, Measurement, remove
from zabd.cli.members import LOOPBACK, Ensemble
from zabd.cli.output import print_table

OPS: Final = ("get", "set", "create", "mixed:0.9")
CELLS: Final = ("1x1", "8x16", "64x1", "64x128")
JVM_WARMUP_S: Final = 30.0
START_TIMEOUT_S: Final = 60.0
SIZE_BYTES: Final = 1024
HEADER: Final = ("OP", "CELL", "SYSTEM", "OPS/S", "CPU US/OP", "P50 MS", "P99 MS", "MIB", "SPREAD")


def commands() -> dict[str, list[str] | None]:
    """The systems that can be started here, and how."""
    found: dict[str, list[str] | None] = {"zabd": None}
    if all((java_zookeeper.JARS / jar).exists() for jar in java_zookeeper.CLASSPATH_JARS):
        found["zookeeper"] = [sys.executable, str(Path(java_zookeeper.__file__).resolve())]
    return found


class Running:
    """Three members of one system."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.hosts = [(LOOPBACK, member.client_port) for member in ensemble.members]
        self.pids = [member.pid for member in ensemble.members]
        self._loads = 0

    def measure(self, op: str, cell: str, seconds: float, warmup_s: float) -> Measurement:
        """One cell."""
        connections, window = map(int, cell.split("x"))
        self._loads += 1
        root = f"/compare-{self._loads}"
        load = Load(
            self.hosts,
            op,
            connections=connections,
            window=window,
            size_bytes=SIZE_BYTES,
            root=root,
        )
        load.measure(warmup_s)
        measured = load.measure(seconds, self.pids)
        load.close()
        remove(self.hosts[0], root)
        return measured


def one_start(
    name: str, command: Sequence[str] | None, arguments: argparse.Namespace
) -> dict[tuple[str, str], Measurement]:
    """Every cell, on a fresh start."""
    with (
        tempfile.TemporaryDirectory(prefix="zabd-compare-") as folder,
        Ensemble(Path(folder), command=command) as ensemble,
    ):
        ensemble.start(timeout_s=START_TIMEOUT_S)
        running = Running(ensemble)
        if name != "zabd":
            running.measure("mixed:0.5", "8x16", arguments.jvm_warmup, 0)
        measured = {}
        for op in arguments.op or OPS:
            for cell in arguments.cell or CELLS:
                print(f"{name} {op} {cell}", file=sys.stderr)
                measured[op, cell] = running.measure(op, cell, arguments.seconds, 1.0)
        return measured


def median(runs: Sequence[Measurement], field: str) -> float:
    """Over the starts."""
    return statistics.median(asdict(run)[field] for run in runs)


def row(op: str, cell: str, name: str, runs: Sequence[Measurement]) -> tuple[Any, ...]:
    """A line of the table."""
    costs = [run.cpu_us_per_op or 0.0 for run in runs]
    return (
        op,
        cell,
        name,
        f"{median(runs, 'ops_per_s'):,.0f}",
        f"{statistics.median(costs):.1f}",
        f"{median(runs, 'p50_ms'):.2f}",
        f"{median(runs, 'p99_ms'):.2f}",
        f"{median(runs, 'memory_mib'):.0f}",
        f"{(max(costs) - min(costs)) / statistics.median(costs):.0%}",
    )


def main() -> None:
    """Start, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--jvm-warmup", type=float, default=JVM_WARMUP_S)
    parser.add_argument("--op", action="append")
    parser.add_argument("--cell", action="append")
    parser.add_argument("--out", type=Path, help="write every run there, as JSON")
    arguments = parser.parse_args()
    systems = commands()
    runs: dict[tuple[str, str, str], list[Measurement]] = {}
    for _ in range(arguments.starts):
        for name, command in systems.items():
            for (op, cell), measured in one_start(name, command, arguments).items():
                runs.setdefault((op, cell, name), []).append(measured)
    print_table(HEADER, [row(*key, runs[key]) for key in sorted(runs, key=_order)])
    if arguments.out is not None:
        rows = [
            {"op": op, "cell": cell, "system": name, "runs": [asdict(run) for run in found]}
            for (op, cell, name), found in runs.items()
        ]
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


def _order(key: tuple[str, str, str]) -> tuple[str, int, str]:
    op, cell, name = key
    return op, CELLS.index(cell) if cell in CELLS else len(CELLS), name


if __name__ == "__main__":
    main()
