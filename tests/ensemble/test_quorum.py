"""What a quorum is, seen from outside: which losses a real ensemble survives, and what it says."""

from pathlib import Path

import pytest
from tests.ensemble.harness import BackgroundWriter, kazoo, lay_out, serving, wait_until

from zabd.cli.members import Ensemble, Member
from zabd.cli.ports import LOOPBACK
from zabd.cli.words import NOT_SERVING, Reachability, ask

pytestmark = pytest.mark.ensemble


def test_five_members_go_on_without_two(tmp_path: Path) -> None:
    """Leader and a follower die; three of five are a quorum."""
    with serving(tmp_path, voters=5) as ensemble:
        leader = ensemble.wait_leader()
        follower = next(member for member in ensemble.members if member is not leader)
        survivors = [m for m in ensemble.members if m not in {leader, follower}]
        with BackgroundWriter(_hosts(survivors)) as writer:
            follower.kill()
            writer.wait_for_more(5)
            leader.kill()
            writer.wait_for_more(5)
            writer.stop()
            for member in survivors:
                assert writer.missing_from(member) == []


def test_one_of_three_acknowledges_nothing_and_says_so(ensemble: Ensemble) -> None:
    """Without a quorum nothing is acknowledged; with the second member the service returns."""
    first, second, third = ensemble.members
    with BackgroundWriter(ensemble.hosts) as writer:
        second.kill()
        third.kill()
        wait_until(
            lambda: first.status().reachability is Reachability.NOT_SERVING, "the loss to show"
        )
        acknowledged = len(writer.acknowledged)
        answers = [ask(LOOPBACK, first.client_port, word) for word in ("srvr", "stat", "mntr")]
        alive = ask(LOOPBACK, first.client_port, "ruok")

        assert all(NOT_SERVING in answer for answer in answers)
        assert alive == "imok"
        assert len(writer.acknowledged) == acknowledged

        second.start()
        ensemble.wait_serving([first, second])
        writer.wait_for_more(5)
        writer.stop()
        assert writer.missing_from(first) == []
        assert writer.missing_from(second) == []


def test_an_even_number_of_voters_is_warned_of(tmp_path: Path) -> None:
    """Four voters survive one failure, as three do; the warning names the number."""
    with serving(tmp_path, voters=4) as ensemble:
        for member in ensemble.members:
            warnings = [
                line
                for line in member.log.read_text(encoding="utf-8").splitlines()
                if "warn" in line.lower() and "even" in line.lower()
            ]
            assert len(warnings) == 1, member.log_tail()
            assert "1" in warnings[0]


def test_an_observer_serves_and_changes_no_quorum(tmp_path: Path) -> None:
    """It says what it is, takes writes and reads, and its death is no concern of the voters'."""
    with serving(tmp_path, voters=3, observers=1) as ensemble:
        observer = ensemble.member(4)

        stat = ask(LOOPBACK, observer.client_port, "stat")
        with kazoo(observer.address) as client:
            client.create("/through-the-observer", b"x")
            assert client.get("/through-the-observer")[0] == b"x"
        with BackgroundWriter(_hosts(ensemble.members[:3])) as writer:
            observer.kill()
            ensemble.member(1).kill()
            writer.wait_for_more(5)

        assert "Mode: observer\n" in stat


def test_a_new_ensemble_waits_for_all_its_voters(tmp_path: Path) -> None:
    """Two of three on the very first start might be two that lost their disks: nobody founds."""
    with lay_out(tmp_path) as ensemble:
        first, second, third = ensemble.members
        first.start()
        second.start()
        wait_until(
            lambda: all(
                m.status().reachability is Reachability.NOT_SERVING for m in (first, second)
            ),
            "both to answer",
        )
        wait_until(
            lambda: "wait" in first.log_tail().lower(), "the member to say what it waits for"
        )

        third.start()
        ensemble.wait_serving()


def _hosts(members: list[Member]) -> str:
    return ",".join(member.address for member in members)
