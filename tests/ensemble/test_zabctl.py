"""`zabctl` on a real ensemble: what scripts and operators rely on."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ensemble.harness import kazoo, serving, wait_until
from tests.ensemble.zabctl import PATIENCE_S, Script, state_of

from zabd.cli.members import Ensemble
from zabd.cli.output import ExitStatus

pytestmark = pytest.mark.ensemble


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


def test_the_member_dies_under_a_command_that_only_reads(ensemble: Ensemble) -> None:
    """A read is asked again on another member; the user does not notice."""
    script = Script(ensemble.hosts)
    script.run("create", "/n", "x")
    ensemble.wait_leader().kill()

    assert script.output("get", "/n") == "x"
    with kazoo(ensemble.hosts) as client:
        client.retry(client.set, "/n", b"y")
    assert script.output("get", "--sync", "/n") == "y"
