"""What the scripts of this folder share: options, steps, figures, a probe for stalls.

Every script prints progress on standard error and a table (or `--json`) on standard output, writes
both below `--out`, and ends with status 0 when all was measured, 1 when a step failed, 2 for a
wrong command line. Members end with the script, however it ends (`zabd.cli.reaper`).
"""

import argparse
import compileall
import json
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import zabd
from zabd.cli.figures import machine, machine_line, markdown_table, write_json, write_section
from zabd.cli.members import Ensemble
from zabd.cli.output import print_table
from zabd.cli.ports import LOOPBACK

BENCHMARKS: Final = Path(__file__).parent.parent / "docs" / "benchmarks"
FIGURE_HEADER: Final = ("WHAT", "FIGURE", "UNIT", "DETAIL")
WHOLE_FROM: Final = 1000  # figures below have a digit behind the point
TENTHS_FROM: Final = 10  # and below this one two
START_TIMEOUT_S: Final = 120.0
PROBE_END_S: Final = 60.0


@dataclass(frozen=True)
class Figure:
    """One thing that was measured."""

    what: str
    value: float
    unit: str
    detail: str = ""

    def cells(self) -> tuple[str, str, str, str]:
        """A row."""
        digits = sum(abs(self.value) < limit for limit in (WHOLE_FROM, TENTHS_FROM))
        return self.what, f"{self.value:,.{digits}f}", self.unit, self.detail


Step = Callable[[argparse.Namespace], Iterator[Figure]]


def options(doc: str | None) -> argparse.ArgumentParser:
    """What every script takes."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--quick", action="store_true", help="small numbers: does it work at all?")
    parser.add_argument(
        "--out", type=Path, default=None, help="write JSON and the table there (docs/benchmarks)"
    )
    return parser


def run_steps(name: str, steps: dict[str, Step], parser: argparse.ArgumentParser) -> int:
    """Run those steps that are asked for, one after the other; the exit status."""
    parser.add_argument("--only", action="append", choices=steps, help="this step; may be repeated")
    given = parser.parse_args()
    prepare()
    known, found, failed = machine(), [], []
    for step in given.only or steps:
        say(f"{name}: {step}")
        began = time.monotonic()
        try:
            for figure in steps[step](given):
                found.append(figure)
                say(f"  {' '.join(figure.cells())}")
        except Exception:  # noqa: BLE001 - the other steps are to be measured all the same
            traceback.print_exc()
            failed.append(step)
        say(f"{name}: {step} took {time.monotonic() - began:.0f} s")
    rows = [figure.cells() for figure in found]
    content = {"machine": known, "failed": failed, "figures": [asdict(f) for f in found]}
    if given.out is not None:
        write_json(given.out, name, content)
        publish(given.out, name, FIGURE_HEADER, rows, known)
    show(content, FIGURE_HEADER, rows, as_json=given.json)
    return 1 if failed else 0


def publish(
    out: Path,
    name: str,
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    known: dict[str, object],
    after: str = "",
) -> None:
    """The table between the markers of this name."""
    write_section(out, name, f"{markdown_table(header, rows)}\n\n{machine_line(known)}{after}")


def show(
    content: object, header: Sequence[str], rows: Sequence[Sequence[object]], *, as_json: bool
) -> None:
    """On standard output."""
    if as_json:
        print(json.dumps(content))
    else:
        print_table(header, rows)


def prepare() -> None:
    """Let SIGTERM end the script as Ctrl-C does, and let it have all the sockets there are.

    An installation has its bytecode, so a start that has to compile zabd is none that counts.
    """
    compileall.compile_dir(Path(zabd.__file__).parent, quiet=1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def members(count: int = 1, **more: Any) -> Iterator[Ensemble]:  # noqa: ANN401 - Ensemble's own
    """An ensemble that serves, in a folder of its own."""
    with (
        TemporaryDirectory(prefix="zabd-bench-") as folder,
        Ensemble(Path(folder), voters=count, **more) as ensemble,
    ):
        ensemble.start(timeout_s=START_TIMEOUT_S)
        yield ensemble


def hosts(ensemble: Ensemble) -> list[tuple[str, int]]:
    """Where the running members are."""
    return [(LOOPBACK, member.client_port) for member in ensemble.running()]


class Probe:
    """Another process asks a member for one thing after the other, and remembers how long it took.

    It is a process of its own, so what the script does meanwhile does not delay it.
    """

    def __init__(self, host: tuple[str, int], op: str = "get") -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, str(Path(__file__).with_name("probe.py")), host[0], str(host[1]), op],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None, "a pipe was asked for"
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the probe of {host[0]}:{host[1]} did not begin")
        self.longest_ms = self.p50_ms = self.p99_ms = self.p999_ms = 0.0
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        out, _err = self._process.communicate(timeout=PROBE_END_S)
        seen = json.loads(out)
        self.count, self.longest_ms = seen["count"], seen["longest_ms"]
        self.p50_ms, self.p99_ms, self.p999_ms = seen["p50_ms"], seen["p99_ms"], seen["p999_ms"]

    def figures(self, what: str, detail: str = "") -> Iterator[Figure]:
        """The longest silence."""
        more = (
            f"of {self.count:,} requests; median {self.p50_ms:.2f} ms, p99 {self.p99_ms:.1f} ms, "
            f"p99.9 {self.p999_ms:.1f} ms"
        )
        yield Figure(what, self.longest_ms, "ms", f"{more}; {detail}" if detail else more)
