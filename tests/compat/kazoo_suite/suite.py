"""kazoo's own test suite against real servers: fetched, run, judged.

    python -m tests.compat.kazoo_suite.suite --server zabd|java [pytest arguments]

The suite comes from kazoo's source distribution on the package index and is run as it is. Its
harness starts three servers; on `java` these are Debian's ZooKeeper, on `zabd` a stand-in for the
`java` command starts ours on the same zoo.cfg. Results lie in ``build/compat``: one JSON file per
server, and the servers' logs.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from tests.compat import java_zookeeper
from tests.compat.tools import BUILD, MissingToolError, debian, python_with, run_quietly

KAZOO = "kazoo==2.11.0"
TESTS = 493  # in all; a run that collects fewer is no run
HERE = Path(__file__).parent
SERVERS = ("zabd", "java")
OUTCOMES = ("passed", "skipped", "failed", "not run")
PORTS = 30  # the harness counts up from its offset, ten ports for each of three servers
PORT_MIN, PORT_MAX = 19_000, 32_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one test ended."""

    test: str
    outcome: str
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """A run, measured against what is known."""

    counts: Mapping[str, int]  # of each outcome
    unexpected: tuple[str, ...]  # neither passed, nor on record as open
    closed: tuple[str, ...]  # passed, though on record as open: the record is out of date

    @property
    def acceptable(self) -> bool:
        """Whether nothing is unaccounted for."""
        return not self.unexpected and not self.closed


def run(server: str, arguments: Sequence[str] = (), *, quiet: bool = False) -> list[Verdict]:
    """Run the suite on this kind of server; MissingToolError if something it needs is not here."""
    python, source = python_with(HERE / "requirements.txt"), _source()
    scratch = BUILD / f"kazoo-{server}"
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "tmp").mkdir(parents=True)
    report = scratch / "report.jsonl"
    left_out = {} if server == "java" else _tables()["not_run"]
    command = [
        str(python), "-m", "pytest", "-p", "reporting", "-p", "no:cacheprovider",
        "-o", "log_cli=false", "-o", "addopts=", "-q", "--tb=short", "--disable-warnings",
        *(f"--deselect={test}" for test in left_out), *(arguments or ["kazoo/tests"]),
    ]  # fmt: skip
    environment = _environment(scratch) | _of_server(server, scratch)
    output = subprocess.DEVNULL if quiet else None
    done = subprocess.run(command, cwd=source, env=environment, check=False, stdout=output)
    if done.returncode not in {0, 1}:
        raise RuntimeError(f"pytest gave up on kazoo's suite with exit code {done.returncode}")
    verdicts = [Verdict(**json.loads(line)) for line in report.read_text("utf-8").splitlines()]
    if not arguments:
        verdicts += [Verdict(test, "not run", 0.0, why) for test, why in left_out.items()]
    results = BUILD / f"kazoo-{server}.json"
    results.write_text(json.dumps([asdict(v) for v in verdicts], indent=1), encoding="utf-8")
    return verdicts


def judge(server: str, verdicts: Iterable[Verdict]) -> Judgement:
    """Compare a run with `open.toml`."""
    verdicts = list(verdicts)
    excused = known(server)
    counts = Counter(verdict.outcome for verdict in verdicts)
    not_passed = {verdict.test for verdict in verdicts if verdict.outcome != "passed"}
    passed = {verdict.test for verdict in verdicts} - not_passed
    return Judgement(
        counts,
        unexpected=tuple(sorted(not_passed - excused.keys())),
        closed=tuple(sorted(passed & excused.keys())),
    )


def known(server: str) -> Mapping[str, str]:
    """The tests that need not pass on this kind of server, each with its reason."""
    tables = _tables()
    reference = tables["reference"]
    return reference if server == "java" else reference | tables["open"] | tables["not_run"]


def _tables() -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = tomllib.loads((HERE / "open.toml").read_text("utf-8"))
    return tables


def table(server: str, judgement: Judgement, verdicts: Iterable[Verdict]) -> str:
    """The result for people."""
    verdicts = list(verdicts)
    seconds = sum(verdict.seconds for verdict in verdicts)
    excused = known(server)
    figures = "".join(f"{judgement.counts[outcome]:9}" for outcome in OUTCOMES)
    lines = [
        "",
        f"{'server':8}{''.join(f'{outcome:>9}' for outcome in OUTCOMES)}{'seconds':>9}",
        f"{server:8}{figures}{seconds:9.0f}",
        *(f"  NOT EXPECTED {test}" for test in judgement.unexpected),
        *(f"  PASSES NOW, strike it from open.toml: {test}" for test in judgement.closed),
        *(
            f"  open: {verdict.test} ({excused[verdict.test]})"
            for verdict in verdicts
            if verdict.outcome != "passed" and verdict.test in excused
        ),
    ]
    return "\n".join(lines)


def _source() -> Path:
    """The unpacked source distribution."""
    name = KAZOO.replace("==", "-")
    source = BUILD / name
    if source.is_dir():
        return source
    archives = BUILD / "archives"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    run_quietly([*pip, "--no-deps", "--no-binary", "kazoo", "--dest", str(archives), KAZOO], KAZOO)
    with tarfile.open(archives / f"{name}.tar.gz") as archive:
        archive.extractall(BUILD, filter="data")
    return source


def _environment(scratch: Path) -> dict[str, str]:
    # On its own CI the suite sleeps more and looks at more variables; here it is always alike.
    ours = {name: value for name, value in os.environ.items() if name != "CI"}
    return {name: value for name, value in ours.items() if not name.startswith("ZOOKEEPER_")} | {
        "PYTHONPATH": str(HERE),
        "TMPDIR": str(scratch / "tmp"),
        "COMPAT_REPORT": str(scratch / "report.jsonl"),
        "ZOOKEEPER_VERSION": java_zookeeper.VERSION,
        "ZOOKEEPER_CLASSPATH": java_zookeeper.classpath(),
        "ZOOKEEPER_PORT_OFFSET": str(_free_block()),
    }


def _of_server(server: str, scratch: Path) -> dict[str, str]:
    if server == "java":
        debian(*java_zookeeper.PACKAGES)
        return {}
    folder, logs = scratch / "bin", scratch / "logs"
    folder.mkdir()
    logs.mkdir()
    stand_in = folder / "java"
    stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE}/stand_in.py" "$@"\n')
    stand_in.chmod(0o755)
    daemon = os.environ.get("COMPAT_DAEMON", f"{sysconfig.get_path('scripts')}/zabd")
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "COMPAT_DAEMON": daemon, "COMPAT_LOGS": str(logs)}


def _free_block() -> int:
    """The first of so many ports in a row that nobody listens on now."""
    for first in range(PORT_MIN, PORT_MAX, PORTS):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + PORTS):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise RuntimeError(f"no {PORTS} free ports in a row from {PORT_MIN} to {PORT_MAX}")


def main() -> int:
    """Run, write the results, say the verdict; 0 if nothing is unaccounted for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=SERVERS, default="zabd")
    given, arguments = parser.parse_known_args()
    try:
        verdicts = run(given.server, arguments)
    except MissingToolError as error:
        click.echo(f"COMPAT PART SKIPPED: kazoo's suite: {error}", err=True)
        return 0
    judgement = judge(given.server, verdicts)
    click.echo(table(given.server, judgement, verdicts))
    whole = bool(arguments) or len(verdicts) == TESTS
    if not whole:
        click.echo(f"the suite has {TESTS} tests, this run {len(verdicts)}", err=True)
    return 0 if whole and judgement.acceptable else 1


if __name__ == "__main__":
    sys.exit(main())
