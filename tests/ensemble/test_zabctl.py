"""`zabctl` on a real ensemble: what scripts and operators rely on."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.ensemble.harness import kazoo, serving, wait_until

from zabd.cli.ctl import cli
from zabd.cli.members import Ensemble, clean_environment
from zabd.cli.output import ExitStatus

pytestmark = pytest.mark.ensemble

_places = count(1)
ZABCTL = [sys.executable, "-c", "from zabd.cli.ctl import main; main()"]
PATIENCE_S = 30.0


class Script:
    """What a shell script would do: run a command, look at its output and status."""

    def __init__(self, hosts: str) -> None:
        self.environment = {**clean_environment(), "ZABD_SERVER": hosts}

    def run(
        self, *arguments: str, data: bytes | None = None, status: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end; in this process, to save a start, unless it starts others."""
        in_process = arguments[0] not in {"lock", "dedup"}
        ended = self._here(arguments, data) if in_process else self._there(arguments, data)
        assert ended.returncode == status, ended.stdout + ended.stderr
        assert b"Traceback" not in ended.stderr
        return ended

    def _here(
        self, arguments: Sequence[str], data: bytes | None
    ) -> subprocess.CompletedProcess[bytes]:
        result = CliRunner(env=self.environment).invoke(cli, list(arguments), input=data)
        assert isinstance(result.exception, SystemExit | None), result.exception
        return subprocess.CompletedProcess(
            arguments, result.exit_code, result.stdout_bytes, result.stderr_bytes
        )

    def _there(
        self, arguments: Sequence[str], data: bytes | None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*ZABCTL, *arguments],
            input=data,
            capture_output=True,
            env=self.environment,
            timeout=PATIENCE_S,
            check=False,
        )

    def output(self, *arguments: str, data: bytes | None = None, status: int = 0) -> str:
        return self.run(*arguments, data=data, status=status).stdout.decode()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*ZABCTL, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )


@pytest.fixture
def script(shared: Ensemble) -> Script:
    """Commands for the shared ensemble."""
    return Script(shared.hosts)


@pytest.fixture
def place(script: Script) -> str:
    """A znode below which the test may do as it likes."""
    return script.output("create", f"/zabctl-{next(_places)}").strip()


def state_of(pid: int) -> str:
    """The process's state: R, S, T for stopped, Z; empty when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def test_a_znode_from_its_creation_to_its_end(script: Script, place: str) -> None:
    """create, ls, get, set, stat, delete; data by argument, from a pipe, and back byte for byte."""
    raw = bytes(range(256))

    assert script.output("create", f"{place}/n", "first") == f"{place}/n\n"
    assert script.output("get", "--sync", f"{place}/n") == "first"
    script.run("set", f"{place}/n", "--data", "-", data=raw)
    assert script.run("get", "--sync", f"{place}/n").stdout == raw
    assert script.output("create", "-s", "-p", f"{place}/a/b/c-") == f"{place}/a/b/c-0000000000\n"
    assert script.output("ls", place) == "a\nn\n"
    below = script.output("ls", "-r", "--sync", place).split()
    assert below == [f"{place}/{name}" for name in ("a", "a/b", "a/b/c-0000000000", "n")]
    stat = json.loads(script.output("stat", "--json", "--sync", f"{place}/n"))
    assert (stat["version"], stat["data_length"]) == (1, 256)
    script.run("delete", f"{place}/a", status=ExitStatus.REFUSED)
    script.run("delete", "-r", f"{place}/a")
    assert script.output("ls", "--sync", "--json", place) == '["n"]\n'


def test_a_version_guards_what_was_not_read(script: Script, place: str) -> None:
    """Compare-and-set for shell scripts; a refusal is one line and status 1."""
    script.run("set", place, "x", "--version", "0")

    refused = script.run("set", place, "y", "--version", "0", status=ExitStatus.REFUSED)

    assert len(refused.stderr.splitlines()) == 1
    assert script.output("get", "--sync", place) == "x"


def test_a_quota_from_its_beginning_to_its_end(script: Script, place: str) -> None:
    """It shows what is used and allowed; limits that are not named stay; nothing of it is left."""
    script.run("quota", place, status=ExitStatus.REFUSED)
    script.run("quota", "/", "--count", "1", status=ExitStatus.REFUSED)
    script.run("quota", place, "--count", "1", "--delete", status=ExitStatus.USAGE)
    script.run("create", f"{place}/n", "12345")

    script.run("quota", place, "--count", "10")
    script.run("quota", place, "--hard-bytes", "100")
    shown = json.loads(script.output("quota", place, "--json"))
    assert shown["limits"] == {"znodes": 10, "size_bytes_hard": 100}
    assert shown["usage"] == {"znodes": 2, "size_bytes": 5}
    assert script.output("quota", place).splitlines()[1].split() == ["znodes", "2", "10", "-"]

    script.run("quota", place, "--delete")
    script.run("quota", place, "--delete", status=ExitStatus.REFUSED)
    assert script.output("ls", "-r", "--sync", "/zookeeper/quota") == ""


def test_an_ephemeral_lives_as_long_as_its_command(script: Script, place: str) -> None:
    """`create -e` stays; a SIGTERM ends the session and with it the znode, at once."""
    with script.start("create", "-e", f"{place}/e") as command:
        assert command.stdout is not None
        assert command.stdout.readline().decode().strip() == f"{place}/e"
        assert script.output("ls", "--sync", place) == "e\n"
        command.terminate()
        assert command.wait(PATIENCE_S) == 0

    assert script.output("ls", "--sync", place) == ""


def test_a_watch_prints_changes_as_they_come(script: Script, place: str) -> None:
    """One line each; with --count it ends by itself."""
    changes = [
        ("create", f"{place}/w", "1"),
        ("set", f"{place}/w", "2"),
        ("create", f"{place}/w/child"),
        ("delete", f"{place}/w/child"),
        ("delete", f"{place}/w"),
    ]
    with script.start("watch", "--json", "--count", "5", f"{place}/w") as command:
        assert command.stderr is not None
        assert command.stdout is not None
        assert b"does not exist" in command.stderr.readline()
        events = []
        for arguments in changes:
            script.run(*arguments)
            events.append(json.loads(command.stdout.readline()))
        assert command.wait(PATIENCE_S) == 0

    kinds = [event["event"] for event in events]
    assert kinds == ["created", "changed", "children", "children", "deleted"]
    assert [event["data"] for event in events[:2]] == ["1", "2"]
    assert (events[2]["added"], events[3]["removed"]) == (["child"], ["child"])


def test_status_tells_members_that_serve_from_those_that_do_not(tmp_path: Path) -> None:
    """One dead and one frozen: the table still comes, and the status says that something is off."""
    with serving(tmp_path, voters=3) as ensemble:
        script = Script(ensemble.hosts)
        whole = json.loads(script.output("status", "--json"))
        leader = ensemble.wait_leader()
        one, other = [member for member in ensemble.members if member is not leader]
        one.kill()
        dead = json.loads(
            script.output("status", "--json", "--timeout", "1", status=ExitStatus.REFUSED)
        )
        leader.stop()
        frozen = script.output("status", "--timeout", "0.5", status=ExitStatus.REFUSED)
        leader.kill()
        other.kill()
        script.run("status", status=ExitStatus.NO_ENSEMBLE)

    assert [entry["state"] for entry in whole] == ["serving"] * 3
    assert sorted(entry["mode"] for entry in whole) == ["follower", "follower", "leader"]
    assert all(entry["znodes"] >= 1 for entry in whole)
    assert {entry["member"]: entry["state"] for entry in dead}[one.address] == "down"
    assert "silent" in frozen
    assert "down" in frozen


def test_a_lock_is_held_while_the_command_runs(script: Script, place: str) -> None:
    """The token rises from holder to holder; the command's status is passed on."""
    show = ("sh", "-c", "echo $ZABD_FENCING_TOKEN $ZABD_LOCK_PATH")

    first = script.output("lock", f"{place}/l", "--", *show).split()
    second = script.output("lock", f"{place}/l", "--", *show).split()
    script.run("lock", f"{place}/l", "--", "sh", "-c", "exit 7", status=7)

    assert int(first[0]) < int(second[0])
    assert first[1] == f"{place}/l"
    with script.start("lock", f"{place}/l", "--", "sh", "-c", "echo in; sleep 60") as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        script.run("lock", "--no-wait", f"{place}/l", "--", "true", status=ExitStatus.TRY_AGAIN)
        script.run("lock", "--wait", "0.3", f"{place}/l", "--", "true", status=75)
        holder.terminate()
        assert holder.wait(PATIENCE_S) == 128 + signal.SIGTERM
    script.run("lock", "--no-wait", f"{place}/l", "--", "true")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Ensemble]:
    """An ensemble of one with short sessions, to be frozen."""
    settings = {"tickTime": "200", "maxSessionTimeout": "20000"}
    with serving(tmp_path, voters=1, settings=settings) as ensemble:
        yield ensemble


def test_a_command_pauses_with_the_session_and_goes_on(alone: Ensemble) -> None:
    """A server frozen for less than the session timeout: stopped after two thirds, continued."""
    script = Script(alone.hosts)
    command = ("sh", "-c", "echo $$; sleep 3; echo done")
    with script.start("lock", "--session-timeout", "3", "/l", "--", *command) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        alone.member(1).stop()
        wait_until(lambda: state_of(pid) == "T", "the command to be stopped", 3)
        alone.member(1).resume()
        wait_until(lambda: state_of(pid) != "T", "the command to go on", 5)
        assert holder.stdout.readline() == b"done\n"
        assert holder.wait(PATIENCE_S) == 0


def test_a_command_ends_with_the_session(alone: Ensemble) -> None:
    """A server frozen for good: the command is ended before the session can expire elsewhere."""
    script = Script(alone.hosts)
    command = ("sh", "-c", "trap 'echo ended; exit 1' TERM; echo $$; while :; do sleep 0.1; done")
    with script.start("lock", "--session-timeout", "2", "/l", "--", *command) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        alone.member(1).stop()
        frozen = time.monotonic()
        assert holder.stdout.readline() == b"ended\n"
        ended_after = time.monotonic() - frozen
        status = holder.wait(PATIENCE_S)

    assert state_of(pid) == ""
    assert status == ExitStatus.TRY_AGAIN
    assert ended_after < 2.5


def test_a_key_is_executed_once_and_replayed_after_that(
    script: Script, place: str, tmp_path: Path
) -> None:
    """Output and status come back; the command does not run again."""
    base = ("dedup", "--base", place)
    marks = tmp_path / "marks"
    run = ("--", "sh", "-c", "echo run $DEDUP_KEY $DEDUP_ATTEMPT; echo x >> $0", str(marks))

    first = script.output(*base, "k", *run)
    again = script.run(*base, "k", *run)

    assert first == "run k 1\n"
    assert again.stdout.decode() == first
    assert b"replayed" in again.stderr
    assert marks.read_text() == "x\n"


def test_a_key_remembers_its_payload(script: Script, place: str, tmp_path: Path) -> None:
    """By digest; the same key with another payload is a mistake that must be loud."""
    base = ("dedup", "--base", place)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("a")
    theirs.write_text("b")
    digest = hashlib.sha256(b"a").hexdigest()

    script.run(*base, "--payload", str(ours), "k", "--", "true")

    script.run(*base, "--payload-hash", digest, "k", "--", "false")
    script.run(*base, "--payload", str(theirs), "k", "--", "true", status=ExitStatus.MISMATCH)


def test_a_failure_frees_the_key_and_a_kill_leaves_it_in_doubt(script: Script, place: str) -> None:
    """What happened is told apart from what may have happened."""
    base = ("dedup", "--base", place)
    previous = ("sh", "-c", "echo $DEDUP_ATTEMPT ${DEDUP_PREVIOUS_TOKEN:+after one in doubt}")

    script.run(*base, "k", "--", "sh", "-c", "exit 3", status=3)
    script.run(*base, "k", "--", "sh", "-c", "kill -9 $$", status=128 + signal.SIGKILL)
    script.run(*base, "--on-in-doubt", "fail", "k", "--", "true", status=ExitStatus.IN_DOUBT)

    assert script.output(*base, "k", "--", *previous) == "2 after one in doubt\n"
    script.run(*base, "--store-failure", "f", "--", "sh", "-c", "exit 4", status=4)
    script.run(*base, "f", "--", "true", status=4)


def test_two_hosts_do_not_run_one_key_at_once(script: Script, place: str, tmp_path: Path) -> None:
    """The second waits and replays, or is told to come back."""
    base = ("dedup", "--base", place)
    go = tmp_path / "go"
    until_told = ("sh", "-c", f"echo in; until [ -e {go} ]; do sleep 0.05; done")
    with script.start(*base, "k", "--", *until_told) as first:
        assert first.stdout is not None
        first.stdout.readline()
        script.run(*base, "--no-wait", "k", "--", "true", status=ExitStatus.TRY_AGAIN)
        with script.start(*base, "k", "--", "echo", "mine") as second:
            go.touch()
            assert second.communicate(timeout=PATIENCE_S)[0] == b"in\n"
        assert first.wait(PATIENCE_S) == 0


def test_a_killed_owner_frees_its_key_with_its_session(alone: Ensemble) -> None:
    """SIGKILL of zabctl itself: the next owner is told that the work may have been done."""
    script = Script(alone.hosts)
    command = ("dedup", "--session-timeout", "2", "k", "--", "sh", "-c", "echo $$; exec sleep 60")
    with script.start(*command) as owner:
        assert owner.stdout is not None
        orphan = int(owner.stdout.readline())
        owner.kill()
    try:
        told = script.output("dedup", "k", "--", "sh", "-c", "echo $DEDUP_PREVIOUS_TOKEN")
    finally:
        os.kill(orphan, signal.SIGKILL)

    assert int(told) > 0


def test_a_lost_owner_records_nothing(alone: Ensemble) -> None:
    """The command is ended before the session can expire elsewhere; the next attempt is told."""
    script = Script(alone.hosts)
    command = ("dedup", "--session-timeout", "2", "k", "--", "sh", "-c", "echo $$; sleep 60")
    with script.start(*command) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        alone.member(1).stop()
        wait_until(lambda: state_of(pid) == "", "the command to be ended", 5)
        alone.member(1).resume()
        assert owner.wait(PATIENCE_S) == ExitStatus.TRY_AGAIN

    again = ("sh", "-c", "echo $DEDUP_ATTEMPT ${DEDUP_PREVIOUS_TOKEN:+after one in doubt}")
    assert script.output("dedup", "k", "--", *again) == "2 after one in doubt\n"


def test_the_member_dies_under_a_command_that_only_reads(ensemble: Ensemble) -> None:
    """A read is asked again on another member; the user does not notice."""
    script = Script(ensemble.hosts)
    script.run("create", "/n", "x")
    ensemble.wait_leader().kill()

    assert script.output("get", "/n") == "x"
    with kazoo(ensemble.hosts) as client:
        client.retry(client.set, "/n", b"y")
    assert script.output("get", "--sync", "/n") == "y"
