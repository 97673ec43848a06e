"""zabd beside Debian's ZooKeeper and etcd, on this machine, in one run, against its goals.

    python bench/compare.py [--minutes 12] [--starts 3] [--cell OP:CxW ...] [--out DIR]

Each system is started several times, in turn, with three members each, 1 KiB of data, durable as it
comes; a JVM is under load for 30 s before its first row. The time is shared out evenly: fewer
minutes are shorter intervals. Medians over the starts; CPU is summed over the members; the spread
is that of the CPU over zabd's starts. Ends with 0 when all was measured, whatever was met; with
`--strict` only when all goals are met.
"""

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from kit import options, prepare, publish, say, show
from systems import ETCD, PLAIN, ZABD, ZOOKEEPER, commands, hosts_of, load_of, started

from zabd.cli.figures import machine, write_json
from zabd.cli.load import Load, Measurement
from zabd.cli.plot import bars

JVM_WARMUP_S: Final = 30.0
WARMUP_S: Final = 0.5
START_S: Final = 4.0  # to start a system and to stop it, about
CELL_S: Final = 0.3  # to prepare a cell and to leave it, about
SECONDS_MIN: Final = 0.5
SIZE_BYTES: Final = 1024
P99_RATIO_MAX: Final = 0.5  # of ZooKeeper's


@dataclass(frozen=True)
class Goal:
    """What zabd is to reach in one cell."""

    cpu_us: float
    times_zookeeper: float


GOALS: Final = {
    ("get", "1x1"): Goal(80, 2),
    ("get", "8x16"): Goal(5, 4),
    ("get", "64x1"): Goal(14, 2),
    ("get", "64x128"): Goal(3.5, 4),
    ("set", "1x1"): Goal(400, 1.5),
    ("set", "8x16"): Goal(40, 3),
    ("set", "64x1"): Goal(70, 3),
    ("set", "64x128"): Goal(20, 3),
    ("mixed:0.9", "8x16"): Goal(14, 5),
    ("mixed:0.9", "64x128"): Goal(8, 4),
    # Creates are last: what they leave behind would make everything else dearer.
    ("create", "8x16"): Goal(50, 4),
    ("create", "64x128"): Goal(28, 4.5),
}
HEADER: Final = (
    "cell",
    "goal: CPU us, x op/s",
    "CPU us: ZooKeeper",
    "etcd",
    "zabd",
    "plain",
    "spread",
    "op/s: ZooKeeper",
    "etcd",
    "zabd",
    "plain",
    "x",
    "p99 ms: ZooKeeper",
    "etcd",
    "zabd",
    "plain",
    "ratio",
    "met",
)
SYSTEMS: Final = (ZOOKEEPER, ETCD, ZABD, PLAIN)
PLOTS: Final = (
    ("cpu_us_per_op", "CPU of three members for an operation", "us"),
    ("ops_per_s", "Operations per second", "op/s"),
    ("p99_ms", "99 of 100 are answered within", "ms"),
)
Cell = tuple[str, str]
Runs = dict[tuple[Cell, str], list[Measurement]]


class Budget:
    """Shares out what is left of the time among the intervals that are left."""

    def __init__(self, minutes: float, starts: int, systems: Sequence[str], cells: int) -> None:
        self._end = time.monotonic() + minutes * 60
        self._rounds_left, self._systems, self._cells = starts, systems, cells

    def next_round(self) -> float:
        """Seconds for each interval of the next round of starts."""
        left = (self._end - time.monotonic()) / self._rounds_left
        self._rounds_left -= 1
        left -= START_S * len(self._systems) + JVM_WARMUP_S * (ZOOKEEPER in self._systems)
        each = left / (len(self._systems) * self._cells) - WARMUP_S - CELL_S
        return max(each, SECONDS_MIN)


def one_start(
    name: str, command: list[str] | None, cells: Sequence[Cell], seconds: float, jvm_s: float
) -> Iterator[tuple[Cell, Measurement]]:
    """Every cell, on a fresh start."""
    with started(name, command) as ensemble:
        pids = [member.pid for member in ensemble.members]
        hosts = hosts_of(ensemble)
        if name == ZOOKEEPER:
            say(f"{name}: {jvm_s:g} s of load")
            warmer = Load(
                hosts, "mixed:0.5", connections=8, window=16, size_bytes=SIZE_BYTES, root="/warm"
            )
            warmer.measure(jvm_s)
            warmer.close()
        for op, cell in cells:
            connections, window = map(int, cell.split("x"))
            load = load_of(name)(
                hosts,
                op,
                connections=connections,
                window=window,
                size_bytes=SIZE_BYTES,
                root=f"/compare-{op.partition(':')[0]}-{cell}",
            )
            load.measure(WARMUP_S)
            measured = load.measure(seconds, pids)
            load.close()
            say(
                f"{name} {op} {cell}: {measured.ops_per_s:,.0f} op/s, "
                f"{measured.cpu_us_per_op or 0:.1f} us, p99 {measured.p99_ms:.2f} ms, "
                f"{measured.errors} errors"
            )
            yield (op, cell), measured


def median(runs: Runs, cell: Cell, name: str, field: str) -> float | None:
    """Over the starts; None where the system was not there or never answered."""
    found = [asdict(run)[field] for run in runs.get((cell, name), ())]
    known = [value for value in found if value is not None]
    return statistics.median(known) if known else None


def judged(runs: Runs, cell: Cell) -> dict[str, Any]:
    """A cell with its ratios and what they are worth."""
    ours = ZABD if (cell, ZABD) in runs else PLAIN
    goal = GOALS.get(cell)
    values = {
        field: {name: median(runs, cell, name, field) for name in SYSTEMS}
        for field in ("cpu_us_per_op", "ops_per_s", "p50_ms", "p99_ms", "p999_ms", "memory_mib")
    }
    rates, p99s = values["ops_per_s"], values["p99_ms"]
    costs = [run.cpu_us_per_op or 0.0 for run in runs[cell, ours]]
    times = (rates[ours] or 0.0) / rates[ZOOKEEPER] if rates[ZOOKEEPER] else None
    ratio = (p99s[ours] or 0.0) / p99s[ZOOKEEPER] if p99s[ZOOKEEPER] else None
    met = {}
    if goal is not None:
        met["cpu"] = statistics.median(costs) <= goal.cpu_us
        if times is not None and ratio is not None:
            met["rate"] = times >= goal.times_zookeeper
            met["p99"] = ratio <= P99_RATIO_MAX
    return {
        "op": cell[0],
        "cell": cell[1],
        "goal": None if goal is None else asdict(goal),
        **values,
        "times_zookeeper": times,
        "p99_ratio": ratio,
        "cpu_spread": (max(costs) - min(costs)) / (statistics.median(costs) or 1.0),
        "errors": {n: sum(r.errors for r in runs.get((cell, n), ())) for n in SYSTEMS},
        "met": met,
    }


def row(cell: dict[str, Any]) -> tuple[str | None, ...]:
    """A line of the table."""

    def shown(field: str, digits: int) -> list[str | None]:
        return [
            None if (value := cell[field][name]) is None else f"{value:,.{digits}f}"
            for name in SYSTEMS
        ]

    goal, times, ratio = cell["goal"], cell["times_zookeeper"], cell["p99_ratio"]
    missed = [name for name, met in cell["met"].items() if not met]
    verdict = "all" if cell["met"] and not missed else f"not {', '.join(missed)}"
    return (
        f"{cell['op']} {cell['cell']}",
        None if goal is None else f"{goal['cpu_us']:g}, {goal['times_zookeeper']:g}x",
        *shown("cpu_us_per_op", 1),
        f"{cell['cpu_spread']:.0%}",
        *shown("ops_per_s", 0),
        None if times is None else f"{times:.1f}",
        *shown("p99_ms", 2),
        None if ratio is None else f"{ratio:.2f}",
        verdict if cell["met"] else None,
    )


def measure(given: argparse.Namespace, cells: Sequence[Cell]) -> Runs:
    """All starts of all systems, in turn."""
    wanted = (ZABD, *given.system) if given.system else SYSTEMS
    systems = {name: how for name, how in commands().items() if name in wanted}
    budget = Budget(given.minutes, given.starts, list(systems), len(cells))
    runs: Runs = {}
    for turn in range(given.starts):
        seconds = budget.next_round()
        say(f"start {turn + 1} of {given.starts}: intervals of {seconds:.1f} s")
        for name, command in systems.items():
            for cell, measured in one_start(name, command, cells, seconds, given.jvm_warmup):
                runs.setdefault((cell, name), []).append(measured)
    return runs


def write(out: Path, content: dict[str, Any], rows: Sequence[Sequence[object]]) -> None:
    """JSON, table, plots."""
    write_json(out, "compare", content)
    met = [value for cell in content["cells"] for value in cell["met"].values()]
    after = f"\n\n{sum(met)} of {len(met)} goals are met."
    for field, title, unit in PLOTS:
        groups = {f"{c['op']} {c['cell']}": c[field] for c in content["cells"]}
        (out / f"compare-{field}.svg").write_text(bars(title, unit, groups), encoding="utf-8")
        after += f"\n\n![{title}](compare-{field}.svg)"
    publish(out, "compare", HEADER, rows, content["machine"], after)


def main() -> int:
    """Start, measure, print."""
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=12.0, help="for everything")
    parser.add_argument("--starts", type=int, default=3, help="of each system")
    parser.add_argument("--jvm-warmup", type=float, default=JVM_WARMUP_S, help="seconds")
    parser.add_argument(
        "--cell", action="append", help="OP:CxW, such as set:8x16 or mixed:0.9:8x16"
    )
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="beside zabd")
    parser.add_argument("--strict", action="store_true", help="end with 1 when a goal is missed")
    given = parser.parse_args()
    if given.quick:
        given.minutes, given.starts, given.jvm_warmup = 0.0, 1, 1.0
    prepare()
    known = machine()
    chosen = [tuple(cell.rpartition(":")[::2]) for cell in given.cell or ()]
    cells: list[Cell] = [(op, cell) for op, cell in chosen] or list(GOALS)
    runs = measure(given, cells)
    judgements = [judged(runs, cell) for cell in cells]
    content = {
        "machine": known,
        "cells": judgements,
        "runs": [
            {"op": cell[0], "cell": cell[1], "system": name, "runs": [asdict(run) for run in found]}
            for (cell, name), found in runs.items()
        ],
    }
    rows = [row(cell) for cell in judgements]
    if given.out is not None:
        write(given.out, content, rows)
    show(content, HEADER, rows, as_json=given.json)
    errors = Counter[str]()
    for cell in judgements:
        errors.update(cell["errors"])
    for name, number in (+errors).items():
        say(f"{number} replies of {name} were errors: its figures there are not to be trusted")
    missed = not all(all(cell["met"].values()) for cell in judgements)
    return 1 if +errors or (given.strict and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
