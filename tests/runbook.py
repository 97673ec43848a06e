"""Runs a page: each command of its console blocks as it stands, in one shell, in order.

    make runbook
    make tutorial

Lines behind a command are what it prints, with ``...`` for anything. Commands that need root, and
programs that this machine lacks, are named loudly and left out. The names zk1 to zk3 come from
/etc/hosts; where the system lets us, they come from a private view of it, and the processes have a
namespace of their own as well, so that `pgrep` finds nobody else's.
"""

import doctest
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.documents import files_of

from zabd.cli.reaper import Reaper

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "dedup-runbook.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
HOSTS = {"zk1": "127.0.0.1", "zk2": "127.0.0.2", "zk3": "127.0.0.3"}
PORTS = (2181, 2888, 3888)
ADDRESSES = {
    PAGE: [(host, port) for host in HOSTS.values() for port in PORTS],
    TUTORIAL: [("127.0.0.1", port + more) for port in PORTS for more in range(3)],
}
ZOOKEEPER_BIN = Path("/usr/share/zookeeper/bin")  # where Debian puts zkCli.sh
NOT_FOR_US = ("sudo ", "pip ")
INSIDE = "RUNBOOK_INSIDE"  # set in the view of its own
PATIENCE_S = 90.0
NETCAT = """#!{python}
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as link:
    link.sendall(sys.stdin.buffer.read())
    while chunk := link.recv(65536):
        sys.stdout.buffer.write(chunk)
"""


class Step(NamedTuple):
    """One command and what it is to print; nothing said is nothing expected."""

    command: str
    expected: str


def steps(page: Path) -> Iterator[Step]:
    """All commands of a page, in their order."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            yield Step(command, expected)


class Shell:
    """A bash that runs one command after the other and keeps its jobs and variables."""

    def __init__(self, folder: Path, path: str) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reaper = Reaper()
        self._reaper.watch(self._process.pid)
        self._output = b""
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def run(self, command: str) -> str:
        """What the command printed; TimeoutError if it does not come back."""
        assert self._process.stdin is not None
        mark = f"--- done {time.monotonic_ns()} ---"
        self._process.stdin.write(f"{command}\necho '{mark}'\n".encode())
        self._process.stdin.flush()
        deadline = time.monotonic() + PATIENCE_S
        while mark.encode() not in self._output:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{command}\nprinted so far:\n{self._output.decode()}")
            self._output += self._read()
        printed, _, self._output = self._output.partition(f"{mark}\n".encode())
        return printed.decode()

    def close(self) -> None:
        """End everything that was started, frozen or not."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reaper.close()

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        chunk = self._process.stdout.read()
        if not chunk:
            time.sleep(0.01)
        return chunk or b""


def main(page: Path) -> int:
    """Run a page; 0 if all that can be run here did as the page says."""
    if INSIDE not in os.environ and (namespaces := _namespaces()):
        return _run_inside(namespaces, page)
    if obstacle := _obstacle(page):
        print(f"runbook: NOT RUN: {obstacle}")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = _lay_out(folder, page)
        shell = Shell(folder, path)
        try:
            failures = [step for step in steps(page) if not _try(shell, step, path)]
        finally:
            shell.close()
        if failures:
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text('utf-8', 'replace')[-1500:]}")
    print(
        f"runbook: {len(failures)} of {page.name} failed"
        if failures
        else f"runbook: {page.name} passed"
    )
    return 1 if failures else 0


def _try(shell: Shell, step: Step, path: str) -> bool:
    print(f"$ {step.command}", flush=True)
    missing = [
        word
        for word in ("zkCli.sh", "nc", "pgrep")
        if word in step.command and shutil.which(word, path=path) is None
    ]
    if step.command.startswith(NOT_FOR_US) or missing:
        print(f"    NOT RUN: {' '.join(missing) or 'needs root or installs'}")
        return True
    printed = shell.run(step.command)
    checker = doctest.OutputChecker()
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    ok = checker.check_output(step.expected, printed, options)
    print("".join(f"    {line}\n" for line in printed.splitlines()), end="")
    if not ok:
        print(f"    FAILED: expected\n{step.expected}")
    return ok


def _lay_out(folder: Path, page: Path) -> str:
    """The page's files, the examples, and the programs' path."""
    for name, text in files_of(page).items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "examples").symlink_to(ROOT / "examples")
    tools = folder / "tools"
    tools.mkdir()
    path = [str(tools), str(Path(sys.executable).parent), os.environ["PATH"], str(ZOOKEEPER_BIN)]
    if shutil.which("nc") is None and page == PAGE:
        print("runbook: there is no nc on this machine; a stand-in of ten lines takes its place")
        (tools / "nc").write_text(NETCAT.format(python=sys.executable), encoding="utf-8")
        (tools / "nc").chmod(0o755)
    return os.pathsep.join(path)


def _obstacle(page: Path) -> str | None:
    if page == PAGE and not _names_resolve():
        lines = "".join(f"{address} {name}\n" for name, address in HOSTS.items())
        return f"zk1, zk2 and zk3 do not resolve; as root, add to /etc/hosts:\n{lines}"
    for host, port in ADDRESSES[page]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                return f"{host}:{port} cannot be listened on: {error.strerror}"
    return None


def _names_resolve() -> bool:
    try:
        return all(socket.gethostbyname(name) == address for name, address in HOSTS.items())
    except OSError:
        return False


def _namespaces() -> list[str] | None:
    """What gives us an /etc/hosts and process ids of our own; None where the system does not."""
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid():
        command.append("--map-root-user")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], check=False).returncode
    ):
        return None
    return command


def _run_inside(namespaces: list[str], page: Path) -> int:
    """Again, where the names are there and `pgrep` sees nobody else's processes."""
    print("runbook: zk1, zk2, zk3 and all processes are seen by this run only")
    with tempfile.NamedTemporaryFile("w", suffix="-hosts") as hosts:
        hosts.write("".join(f"{address} {name}\n" for name, address in HOSTS.items()))
        hosts.write(Path("/etc/hosts").read_text("utf-8"))
        hosts.flush()
        again = shlex.join([sys.executable, "-m", "tests.runbook", str(page)])
        script = f"mount --bind {shlex.quote(hosts.name)} /etc/hosts && {again}"
        done = subprocess.run(
            [*namespaces, "sh", "-c", script],
            env={**os.environ, INSIDE: "1"},
            cwd=ROOT,
            check=False,
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
