"""`zabctl dedup` on a real ensemble: statuses, chains, frozen and killed owners."""

import hashlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ensemble.harness import serving, wait_until
from tests.ensemble.zabctl import PATIENCE_S, Script, state_of

from zabd.cli.members import Ensemble
from zabd.cli.output import ExitStatus

pytestmark = pytest.mark.ensemble


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Ensemble]:
    """An ensemble of one with short sessions, to be frozen."""
    settings = {"tickTime": "200", "maxSessionTimeout": "20000"}
    with serving(tmp_path, voters=1, settings=settings) as ensemble:
        yield ensemble


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


def test_a_token_may_be_one_of_an_epoch(script: Script, place: str) -> None:
    """After a restore from a backup tokens start from lower ones: a resource compares pairs."""
    tell = ("sh", "-c", "echo ${DEDUP_TOKEN_EPOCH-none}")
    base = ("dedup", "--base", place)

    assert script.output(*base, "plain", "--", *tell) == "none\n"
    assert script.output(*base, "--token-epoch", "3", "paired", "--", *tell) == "3\n"
    record = json.loads(script.output("get", f"{place}/paired/result"))
    assert record["token_epoch"] == 3
    script.run(*base, "--token-epoch", "-1", "k", "--", "true", status=ExitStatus.USAGE)


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


@pytest.mark.parametrize("recipe", [["dedup", "k"], ["lock", "/k"]])
def test_a_killed_zabctl_takes_its_command_along(alone: Ensemble, recipe: list[str]) -> None:
    """SIGKILL of zabctl itself: nobody keeps the session alive, so nobody may work under it."""
    script = Script(alone.hosts)
    work = "trap 'echo asked' TERM; sleep 60 & echo $$ $!; while :; do wait; done"
    command = (*recipe, "--session-timeout", "8", "--grace", "0.5", "--", "sh", "-c", work)
    with script.start(*command) as owner:
        assert owner.stdout is not None
        shell, child = (int(pid) for pid in owner.stdout.readline().split())
        owner.kill()
        for pid in (shell, child):
            wait_until(lambda pid=pid: state_of(pid) in {"", "Z"}, "the command's end", 5)


def test_a_killed_owner_frees_its_key_with_its_session(alone: Ensemble) -> None:
    """And the next owner is told that the work may have been done."""
    script = Script(alone.hosts)
    command = ("dedup", "--session-timeout", "2", "k", "--", "sh", "-c", "echo $$; exec sleep 60")
    with script.start(*command) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        owner.kill()
    told = script.output("dedup", "k", "--", "sh", "-c", "echo $DEDUP_PREVIOUS_TOKEN")

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


def test_a_paused_owner_goes_on_with_its_session(alone: Ensemble) -> None:
    """A server frozen for less than the session timeout: the command stops, then ends well."""
    script = Script(alone.hosts)
    work = ("sh", "-c", "echo $$; sleep 3; echo done")
    with script.start("dedup", "--session-timeout", "3", "k", "--", *work) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        alone.member(1).stop()
        wait_until(lambda: state_of(pid) == "T", "the command to be stopped", 3)
        alone.member(1).resume()
        wait_until(lambda: state_of(pid) != "T", "the command to go on", 5)
        assert owner.stdout.readline() == b"done\n"
        assert owner.wait(PATIENCE_S) == 0
    assert script.run("dedup", "k", "--", "false").stdout.endswith(b"done\n")


@pytest.mark.slow
def test_the_statuses_are_those_of_the_manual(script: Script, place: str, tmp_path: Path) -> None:
    """75 try again, 65 another payload, 76 in doubt, 69 no ensemble, 126 and 127 as a shell."""
    base = ("dedup", "--base", place)
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    script.run(*base, "--payload", str(tmp_path / "a"), "k", "--", "true")
    script.run(*base, "--payload", str(tmp_path / "b"), "k", "--", "true", status=65)
    script.run(*base, "d", "--", "sh", "-c", "kill -9 $$", status=128 + signal.SIGKILL)
    script.run(*base, "--on-in-doubt", "fail", "d", "--", "true", status=76)
    with script.start(*base, "busy", "--", "sh", "-c", "echo in; exec sleep 60") as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        script.run(*base, "--no-wait", "busy", "--", "true", status=75)
        script.run(*base, "--wait", "0.3", "busy", "--", "true", status=75)
        owner.terminate()
        assert owner.wait(PATIENCE_S) == 128 + signal.SIGTERM
    nobody = ("--server", "127.0.0.1:1", "--timeout", "0.3")
    script.run(*base, *nobody, "k", "--", "true", status=69)
    script.run(*base, "n", "--", str(tmp_path / "missing"), status=127)
    script.run(*base, "n", "--", str(tmp_path / "a"), status=126)
    script.run(*base, "n", "--", "true")  # neither has used the key


def test_the_chain_of_a_key_is_drawn(script: Script, place: str, tmp_path: Path) -> None:
    """Who holds, who waits and watches whom, sessions, ages and tokens; then what is recorded."""
    base = ("dedup", "--base", place)
    go = tmp_path / "go"
    until_told = ("sh", "-c", f"echo in; until [ -e {go} ]; do sleep 0.05; done")

    def chain() -> dict[str, list[dict[str, object]]]:
        told: dict[str, list[dict[str, object]]] = json.loads(
            script.output(*base, "k", "--status", "--json")
        )
        return told

    assert script.output(*base, "k", "--status") == "k: FREE\n"
    with script.start(*base, "k", "--", *until_told) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with script.start(*base, "k", "--", "true") as second:
            wait_until(lambda: len(chain()["contenders"]) == 2, "the second contender")
            drawn = script.output(*base, "k", "--status").splitlines()
            one, two = chain()["contenders"]
            go.touch()
            assert second.wait(PATIENCE_S) == 0
        assert first.wait(PATIENCE_S) == 0

    assert drawn[0] == "k: IN_PROGRESS"
    assert drawn[1].split() == ["CONTENDER", "SESSION", "AGE", "TOKEN", "WATCHES"]
    assert drawn[2].split()[:2] == ["holds", one["name"]]
    assert drawn[3].split()[:2] == ["waits", two["name"]]
    assert drawn[3].split()[-1] == one["name"]
    assert drawn[4].startswith("attempt 1 by ")
    assert one["watches"] is None
    assert two["watches"] == one["name"]
    assert int(str(one["fencing_token"])) < int(str(two["fencing_token"]))
    told = json.loads(script.output(*base, "k", "--status", "--json"))
    assert (told["state"], told["contenders"], told["started"]) == ("COMPLETED", [], None)
    assert told["result"]["value"] == {"status": 0, "stdout": "in\n"}


@pytest.mark.slow
def test_an_operator_settles_and_forgets(script: Script, place: str) -> None:
    """--resolve records what is known to have happened, --forget lets a key run again."""
    base = ("dedup", "--base", place)
    die = ("--", "sh", "-c", "kill -9 $$")
    for key in ("a", "b", "c"):
        script.run(*base, key, *die, status=128 + signal.SIGKILL)
    assert script.output(*base, "a", "--status").startswith("a: IN_DOUBT\nattempt 1 by ")

    script.run(*base, "a", "--resolve", "completed")
    script.run(*base, "b", "--resolve", "failed", "--value", '{"status": 9, "stdout": "lost"}')
    script.run(*base, "c", "--resolve", "not-executed")

    assert b"replayed" in script.run(*base, "a", "--", "false").stderr
    assert script.output(*base, "b", "--", "true", status=9) == "lost"
    assert script.output(*base, "c", "--", "sh", "-c", "echo $DEDUP_ATTEMPT") == "1\n"
    script.run(*base, "a", "--resolve", "completed", status=ExitStatus.REFUSED)

    script.run(*base, "a", "--forget")
    script.run(*base, "a", "--forget", status=ExitStatus.REFUSED)
    script.run(*base, "a", "--", "sh", "-c", "exit 3", status=3)


def test_a_sweep_says_what_it_did(script: Script, place: str) -> None:
    """A server with containers and TTLs leaves nothing to do; an empty plain key goes."""
    base = ("dedup", "--base", place)
    script.run(*base, "k", "--", "true")
    script.run("create", f"{place}/left")

    swept = json.loads(script.output("dedup", "--base", place, "--sweep", "--json"))

    assert swept == {"keys": 2, "records": 0, "parents": 1}
    assert script.output("ls", "--sync", place) == "k\n"
    script.run("dedup", "--base", place, "k", "--sweep", status=ExitStatus.USAGE)
    script.run(*base, "k", "--status", "--forget", status=ExitStatus.USAGE)
    script.run(*base, "--status", status=ExitStatus.USAGE)
