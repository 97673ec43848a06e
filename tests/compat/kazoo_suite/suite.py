"""kazoo's own test suite against real servers: fetched, run, judged.

    python -m tests.compat.kazoo_suite.suite --server zabd|java [pytest arguments]

The suite comes from kazoo's source distribution on the package index and is run as it is. Its
harness starts three servers; on `java` these are Debian's ZooKeeper, on `zabd` a stand-in for the
`java` command starts ours on the same zoo.cfg. Results lie in ``build/compat``: one JSON file per
server, and our servers' logs. ``COMPAT_DAEMON`` names another `zabd` than the installed one.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from tests.compat import java_zookeeper
from tests.compat.kazoo_suite.judgement import TESTS, Verdict, judge, not_run, table
from tests.compat.tools import BUILD, MissingToolError, debian, python_with, run_quietly

KAZOO = "kazoo==2.11.0"
HERE = Path(__file__).parent
SERVERS = ("zabd", "java")
PORTS = 30  # the harness counts up from its offset, ten ports for each of three servers
PORT_MIN, PORT_MAX = 19_000, 32_000
SUITE_TIMEOUT_S = 3000.0  # seven minutes on an idle machine
ALONE_MAX = 10  # unexpected failures that are run once more; beyond that it is no matter of timing


def run(server: str, arguments: Sequence[str] = ()) -> list[Verdict]:
    """Run the suite on this kind of server; MissingToolError if something it needs is not here."""
    left_out = not_run(server)
    deselected = [f"--deselect={test}" for test in left_out]
    verdicts = _pytest(server, [*deselected, *(arguments or ["kazoo/tests"])])
    if not arguments:
        verdicts += [Verdict(test, "not run", 0.0, why) for test, why in left_out.items()]
    results = BUILD / f"kazoo-{server}.json"
    results.write_text(json.dumps([asdict(v) for v in verdicts], indent=1), encoding="utf-8")
    return verdicts


def run_alone(server: str, tests: Sequence[str]) -> dict[str, str]:
    """Run each test by itself: a failure that goes away leaves the question whose timing it was."""
    return {test: _pytest(server, [test], "-alone")[0].outcome for test in tests[:ALONE_MAX]}


def _pytest(server: str, arguments: Sequence[str], suffix: str = "") -> list[Verdict]:
    python, source = python_with(HERE / "requirements.txt"), _source()
    scratch = BUILD / f"kazoo-{server}{suffix}"
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "tmp").mkdir(parents=True)
    environment = _environment(scratch) | _of_server(server, scratch)
    command = [
        str(python), "-m", "pytest", "-p", "reporting", "-p", "no:cacheprovider",
        "-o", "log_cli=false", "-o", "addopts=", "-q", "--tb=short", "--disable-warnings",
        *arguments,
    ]  # fmt: skip
    code = _run_to_the_end(command, source, environment)
    if code not in {0, 1}:
        raise RuntimeError(f"pytest gave up on kazoo's suite with exit code {code}")
    report = scratch / "report.jsonl"
    return [Verdict(**json.loads(line)) for line in report.read_text("utf-8").splitlines()]


def _run_to_the_end(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
    """The exit code; no server outlives the suite, however that ends."""
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    ) as suite:
        try:
            return suite.wait(SUITE_TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(suite.pid, signal.SIGKILL)


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
    stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{HERE}/stand_in.py" "$@"\n')
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
    alone = run_alone(given.server, judgement.unexpected)
    click.echo(table(given.server, judgement, verdicts, alone))
    whole = bool(arguments) or len(verdicts) == TESTS
    if not whole:
        click.echo(f"the suite has {TESTS} tests, this run {len(verdicts)}", err=True)
    return 0 if whole and judgement.acceptable else 1


if __name__ == "__main__":
    sys.exit(main())
