"""`zabctl shell` on one real member: each command, the pipe, one command, and a terminal."""

import asyncio
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from zabd.cli.connection import Connection
from zabd.cli.members import Ensemble, clean_environment
from zabd.cli.output import ExitStatus
from zabd.cli.shell.history import History
from zabd.cli.shell.printer import Printer
from zabd.cli.shell.shell import Shell
from zabd.cli.shell.znodes import batches

SHELL = [sys.executable, "-c", "from zabd.cli.ctl import main; main()", "shell"]
PATIENCE_S = 20.0

_names = count(1)
Run = Callable[..., tuple[str, str, ExitStatus]]


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One member; each test keeps to a znode of its own."""
    with Ensemble(tmp_path_factory.mktemp("member"), voters=1) as ensemble:
        ensemble.start()
        yield ensemble.hosts


@pytest.fixture
def run(member: str, capfd: pytest.CaptureFixture[str]) -> Run:
    """Does lines in one shell; what it printed, what it complained about, and the status."""

    def lines(*lines: str, as_json: bool = False) -> tuple[str, str, ExitStatus]:
        async def work() -> ExitStatus:
            connection = Connection(member, 10.0, 12.0, ())
            shell = Shell(connection, Printer(as_json=as_json), History())
            await shell.connect()
            try:
                for line in lines:
                    await shell.run_line(line)
            finally:
                await shell.close()
            return shell.status

        status = asyncio.run(work())
        return *capfd.readouterr(), status

    return lines


@pytest.fixture
def at() -> str:
    """A path of the test's own."""
    return f"/t{next(_names)}"


def piped(
    member: str, text: bytes, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """What a script would do."""
    ended = subprocess.run(
        [*SHELL, *arguments],
        input=text,
        capture_output=True,
        env={**clean_environment(), "ZABD_SERVER": member, **environment},
        timeout=60,
        check=False,
    )
    assert b"Traceback" not in ended.stderr, ended.stderr
    return ended


def test_a_znode_is_made_read_changed_and_removed(run: Run, at: str) -> None:
    """In the shapes that ZooKeeper's command line prints."""
    out, err, status = run(
        f"create {at} 'two words'", f"get {at}", f"set {at} x", f"get {at}", f"delete {at}"
    )

    assert out.splitlines() == [f"Created {at}", "two words", "x"]
    assert (err, status) == ("", ExitStatus.OK)


def test_every_kind_of_znode_is_made(run: Run, at: str) -> None:
    """Sequential, ephemeral, container, with a TTL; the ACL comes last."""
    out, err, _ = run(
        f"create -c {at}",
        f"create -s -e {at}/e-",
        f"create -t 60000 {at}/ttl",
        f"create {at}/closed '' world:anyone:r",
        f"getEphemerals {at}",
        f"getAcl {at}/closed",
        f"stat {at}/ttl",
    )

    assert f"Created {at}/e-0000000000" in out
    assert f"[{at}/e-0000000000]" in out
    assert "'world,'anyone\n: r\n" in out
    assert err == ""


def test_children_are_listed(run: Run, at: str) -> None:
    """By name, with -R by path, with -s with the stat."""
    made = [f"create {at}", f"create {at}/b", f"create {at}/a", f"create {at}/a/x"]
    out, _, _ = run(*made, f"ls {at}", f"ls -R {at}", f"ls -s {at}", f"getAllChildrenNumber {at}")

    lines = out.splitlines()[4:]
    assert lines[:5] == ["[a, b]", at, f"{at}/a", f"{at}/a/x", f"{at}/b"]
    assert "numChildren = 2" in lines
    assert lines[-1] == "3"


def test_versions_are_compared(run: Run, at: str) -> None:
    """And a wrong one is one line, after which the shell goes on."""
    out, err, status = run(
        f"create {at} a",
        f"set -v 5 {at} b",
        f"set -s -v 0 {at} b",
        f"delete -v 0 {at}",
        f"get {at}",
    )

    assert len(err.splitlines()) == 2
    assert "dataVersion = 1" in out
    assert out.endswith("b\n")
    assert status is ExitStatus.REFUSED


def test_a_subtree_goes_in_batches(run: Run, at: str) -> None:
    """Children first, whatever the size of a batch; the root stays."""
    made = [f"create {at}", *(f"create {at}/{n}" for n in range(5)), f"create {at}/3/deep"]
    out, err, _ = run(*made, f"deleteall {at} -b 2", f"stat {at}", "deleteall /")

    assert out.count("Created") == 7
    assert len(err.splitlines()) == 2


def test_batches_are_small_enough_for_a_request() -> None:
    """By number and by bytes."""
    assert [len(batch) for batch in batches(["/a"] * 5, 2)] == [2, 2, 1]
    assert len(list(batches(["/" + "x" * 100_000] * 3, 1000))) == 3
    assert list(batches([], 2)) == []


def test_acls_are_set_on_a_subtree(run: Run, at: str) -> None:
    """With -R; -v is compared with the ACL's version."""
    out, err, _ = run(
        f"create {at}",
        f"create {at}/a",
        f"setAcl -R -s {at} world:anyone:cdra,ip:127.0.0.1:r",
        f"getAcl {at}/a",
        f"getAcl -s {at}",
        f"setAcl -v 7 {at} world:anyone:r",
        f"setAcl {at} nonsense",
    )

    assert out.count("'world,'anyone\n: cdra\n'ip,'127.0.0.1\n: r\n") == 2
    assert out.count("aclVersion = 1") == 2
    assert len(err.splitlines()) == 2


def test_watches_print_as_events_come(run: Run, at: str) -> None:
    """One-shot ones once, the others until they are removed; or not at all if switched off."""
    out, err, _ = run(
        f"create {at}",
        f"get -w {at}",
        f"ls -w {at}",
        f"set {at} 1",
        f"set {at} 2",
        f"create {at}/a",
        f"addWatch {at}",
        f"create {at}/b",
        f"removewatches {at}",
        f"set {at}/b 3",
        f"addWatch -m PERSISTENT {at}",
        f"set {at} 4",
        "printwatches off",
        f"set {at} 5",
        f"sync {at}",
    )

    events = [line for line in out.splitlines() if line.startswith("WATCHER")]
    assert err == ""
    assert events == [
        f"WATCHER: NodeDataChanged {at}",
        f"WATCHER: NodeChildrenChanged {at}",
        f"WATCHER: NodeCreated {at}/b",
        f"WATCHER: NodeDataChanged {at}",
    ]


def test_removing_what_is_not_watched_is_refused(run: Run, at: str) -> None:
    """But for -l, which forgets here whatever the member says."""
    _, err, _ = run(
        f"removewatches {at}",
        f"removewatches -l {at}",
        f"removewatches -c -d {at}",
        "addWatch -m X /",
    )

    assert len(err.splitlines()) == 3


def test_quotas_are_set_shown_and_ended(run: Run, at: str) -> None:
    """Limit by limit, or all of it."""
    out, err, _ = run(
        f"create {at}",
        f"setquota -n 5 -B 100 {at}",
        f"setquota -b 7 {at}",
        f"listquota {at}",
        f"delquota -n -b -B {at}",
        f"listquota {at}",
        f"delquota {at}",
        f"listquota {at}",
        f"setquota {at}",
    )

    quotas = [line for line in out.splitlines() if line.startswith("quota")]
    assert "count=5,bytes=7" in quotas[0]
    assert "byteHardLimit=100" in quotas[0]
    assert quotas[1] == f"quota of {at}: count=-1,bytes=-1"
    assert len(err.splitlines()) == 2


def test_who_one_is_and_where(run: Run) -> None:
    """Identities add up; the configuration is a znode."""
    out, err, _ = run("addauth digest ada:pw", "whoami", "config -s", "version", "sync /")

    assert "digest: ada" in out
    assert "ip: 127.0.0.1" in out
    assert re.search(r"^zabctl \d", out, re.MULTILINE)
    assert "Sync is OK" in out
    assert err == ""


def test_reconfiguring_says_what_it_needs(run: Run) -> None:
    """All members, or some to come and go."""
    _, err, status = run("reconfig", "reconfig -members x -add y", "reconfig -file /nowhere")

    assert len(err.splitlines()) == 3
    assert status is ExitStatus.USAGE


def test_what_was_typed_is_done_again(run: Run, at: str) -> None:
    """By its number."""
    out, err, _ = run(f"create {at} a", f"get {at}", "redo 1", "history", "redo 9", "redo 2")

    assert out.splitlines()[:3] == [f"Created {at}", "a", "a"]
    assert f"0 - create {at} a" in out
    assert len(err.splitlines()) == 2


def test_a_connection_is_closed_and_opened_again(run: Run, member: str) -> None:
    """In between each command that needs one says so."""
    out, err, status = run("close", "ls /", f"connect {member}", "ls /", "connect h:x")

    assert out.splitlines()[0] == f"Connected to {member}"
    assert len(err.splitlines()) == 2
    assert status is ExitStatus.REFUSED


def test_json_is_a_document_a_line(run: Run, at: str) -> None:
    """For every command that answers anything."""
    out, err, _ = run(
        f"create {at} x",
        f"get -w {at}",
        f"set {at} y",
        f"ls {at}",
        f"stat {at}",
        f"getAcl {at}",
        f"getAllChildrenNumber {at}",
        f"getEphemerals {at}",
        "whoami",
        "history",
        "version",
        "help ls",
        "printwatches",
        f"sync {at}",
        f"setquota -n 1 {at}",
        f"listquota {at}",
        "config",
        as_json=True,
    )

    documents = [json.loads(line) for line in out.splitlines()]
    assert err == ""
    assert documents[0]["path"] == at
    assert documents[1]["data"] == "x"
    assert {"event": "NodeDataChanged", "path": at} in documents
    assert len(documents) == 17


def test_help_knows_every_command(run: Run) -> None:
    """And a slip of the finger what was meant."""
    out, err, status = run("help", "help get", "help gett", "gett /")

    assert "create [-s] [-e] [-c] [-t ttl] path [data] [acl]" in out
    assert "did you mean get?" in err
    assert status is ExitStatus.USAGE


def test_a_pipe_is_done_to_its_end(member: str, at: str) -> None:
    """The first failure's status is the pipe's; what comes behind it is done all the same."""
    ended = piped(member, f"create {at} x\nget {at}/no\nget {at}\nquit\nget {at}\n".encode())

    assert ended.stdout == f"Created {at}\nx\n".encode()
    assert len(ended.stderr.splitlines()) == 1
    assert ended.returncode == ExitStatus.REFUSED


def test_bad_bytes_and_long_lines_in_a_pipe_cost_one_line_each(member: str, at: str) -> None:
    """CVE-2016-5017: lines up to 16 MiB, control characters and bytes that are no UTF-8."""
    long = b"x" * (16 * 1024 * 1024)
    text = b"\n".join([b"\xff\xfe", b"ls /\x00", long, b"set / " + b"y" * 2000, b"'", b"ls /"])

    ended = piped(member, text)

    assert len(ended.stderr.splitlines()) == 4
    assert all(len(line) < 1000 for line in ended.stderr.splitlines())
    assert b"zookeeper" in ended.stdout
    assert ended.returncode == ExitStatus.USAGE


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["ls", "-s", "/"], ExitStatus.OK),
        (["ls", "/nowhere"], ExitStatus.REFUSED),
        (["nonsense"], ExitStatus.USAGE),
        (["get"], ExitStatus.USAGE),
        (["set", "/", b"\xff"], ExitStatus.USAGE),
        (["--timeout", "0.3", "--server", "127.0.0.1:1", "ls", "/"], ExitStatus.NO_ENSEMBLE),
        (["--server", "127.0.0.1:1", "help"], ExitStatus.OK),
    ],
)
def test_one_command_has_its_own_status(
    member: str, arguments: list[str], status: ExitStatus
) -> None:
    """And a failure is one line."""
    ended = piped(member, b"", *arguments)

    assert ended.returncode == status
    assert len(ended.stderr.splitlines()) == (status is not ExitStatus.OK)


def test_without_an_input_there_is_nothing_to_do(member: str) -> None:
    """As where a service manager has closed it."""
    closed = [
        sys.executable,
        "-c",
        "import os, sys; os.close(0); os.execv(sys.argv[1], sys.argv[1:])",
    ]
    ended = subprocess.run(
        [*closed, *SHELL, "--server", member], capture_output=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, b"")


def test_the_longest_line_is_a_request_like_any_other(member: str, at: str) -> None:
    """Data of nearly a mebibyte is taken; the session lives meanwhile."""
    ended = piped(
        member, f"create {at} {'x' * 1_000_000}\nset {at} {'y' * 1_048_500}\nls /".encode()
    )

    assert ended.stdout.startswith(f"Created {at}\n[".encode())
    assert (ended.stderr, ended.returncode) == (b"", 0)


class Terminal:
    """A pseudo terminal with a shell at it."""

    def __init__(self, member: str, home: Path, **environment: str) -> None:
        self.said = ""
        self._pid, self._descriptor = pty.fork()
        if self._pid == 0:
            variables = {
                **clean_environment(),
                "ZABD_SERVER": member,
                "XDG_STATE_HOME": str(home),
                "TERM": "xterm",
                **environment,
            }
            os.execve(SHELL[0], SHELL, variables)  # noqa: S606 - the child becomes the shell

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def expect(self, text: str) -> str:
        """Wait for a text behind what was expected before; what was said before it."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.said:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.said!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                data = os.read(self._descriptor, 65536)
                if b"\x1b[6n" in data:  # it asks where the cursor is
                    os.write(self._descriptor, b"\x1b[1;1R")
                self.said += data.decode("utf-8", "replace")
        before, _, self.said = self.said.partition(text)
        return before

    def ended(self) -> int:
        status = os.waitpid(self._pid, 0)[1]
        os.close(self._descriptor)
        return os.waitstatus_to_exitcode(status)


def test_at_a_terminal_it_completes_colours_and_remembers(
    member: str, at: str, tmp_path: Path
) -> None:
    """Errors do not end it, and its status is 0; Ctrl-C only drops the line."""
    terminal = Terminal(member, tmp_path)
    terminal.expect("(CONNECTED)]")
    terminal.type(f"create {at}/no x\r")
    terminal.expect("does not exist")
    terminal.type("dropped\x03")
    terminal.type(f"create {at} hello\r")
    terminal.expect(f"\x1b[32mCreated {at}")
    terminal.type(f"get -w {at}\r")
    terminal.expect("hello")
    terminal.type("getAl\t")
    terminal.expect("lChildrenNumber")
    terminal.type(f" {at[:-1]}\t")
    terminal.type("\x03")
    terminal.type(f"set {at} x\r")
    terminal.expect(f"WATCHER: NodeDataChanged {at}")
    terminal.type("quit\r")

    assert terminal.ended() == 0
    assert f"create {at} hello" in (tmp_path / "zabd" / "shell_history").read_text("utf-8")


def test_without_the_extra_it_reads_plain_lines(member: str, at: str, tmp_path: Path) -> None:
    """And says in one sentence what would bring more."""
    missing = tmp_path / "prompt_toolkit.py"
    missing.write_text("raise ImportError('not installed')", "utf-8")
    terminal = Terminal(member, tmp_path, PYTHONPATH=str(tmp_path))
    terminal.expect("pip install zabd[shell]")
    terminal.expect("(CONNECTED)] ")
    terminal.type(f"create {at} hello\n")
    terminal.expect(f"Created {at}")
    terminal.type("close\n")
    terminal.expect("(CLOSED)] ")
    terminal.type("\x04")

    assert terminal.ended() == 0


@pytest.mark.ensemble
def test_watches_and_ephemerals_outlive_a_member(tmp_path: Path) -> None:
    """The session moves to another one; whoever sits there sees it move, and the event."""
    with Ensemble(tmp_path, voters=3) as ensemble:
        ensemble.start()
        terminal = Terminal(ensemble.hosts, tmp_path)
        terminal.expect("(CONNECTED)]")
        terminal.type("connect\r")
        terminal.expect("Connected to 127.0.0.1:")
        port = int(terminal.expect("\x1b[0m"))
        terminal.type("create -e /mine hello\r")
        terminal.expect("Created /mine")
        terminal.type("get -w /mine\r")
        terminal.expect("hello")
        next(member for member in ensemble.members if member.client_port == port).kill()
        terminal.expect("is SUSPENDED")
        terminal.expect("is CONNECTED")
        terminal.type("set /mine y\r")
        terminal.expect("WATCHER: NodeDataChanged /mine")
        terminal.type("quit\r")

        assert terminal.ended() == 0


def test_what_a_znode_holds_gives_a_terminal_no_orders(
    member: str, at: str, tmp_path: Path
) -> None:
    """And NO_COLOR is respected."""
    assert piped(member, b"", "create", at, "\x1b]0;owned\x07").returncode == 0
    terminal = Terminal(member, tmp_path, NO_COLOR="1")
    terminal.expect("(CONNECTED)]")
    terminal.type(f"get {at}\r")
    terminal.expect("\\x1b]0;owned\\x07")
    terminal.type("ls /\r")
    terminal.expect("[")
    terminal.type("\x04")

    assert terminal.ended() == 0
