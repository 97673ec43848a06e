"""What looks like a violation and is none happens in ordinary runs, and no check says a word.

Each near miss is looked for in runs of the core level, from seed 1 on, by a spy that changes
nothing. `near_misses.toml` says which invariant each belongs to.
"""

from collections.abc import Callable

import pytest

from zabd.cluster_sim.core_client import CoreClient
from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.replica_checks import ReplicaChecker
from zabd.cluster_sim.replica_level import ReplicaLevel
from zabd.cluster_sim.zab_checks import Incarnation
from zabd.wire.connection import Reply
from zabd.zab.messages import PeerState

pytestmark = pytest.mark.sim

SEEDS_MAX = 40

NEAR_MISSES = {
    "a stale read",
    "a read beside what is not committed",
    "told of an end that there was",
    "a client dies without its answers",
    "a session outlives its client for a while",
    "who is down for good stays behind",
    "more than one attempt to lead",
    "a tree that is behind",
}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The near misses of the runs of a test, by name."""
    names: set[str] = set()

    def spy(owner: type, method: str, look: Callable[..., None]) -> None:
        original = getattr(owner, method)

        def watched(*args: object) -> object:
            look(*args)
            return original(*args)

        monkeypatch.setattr(owner, method, watched)

    def reading(client: CoreClient, _asked: object, reply: Reply) -> None:
        if reply.zxid < client._checker.last_zxid:
            names.add("a stale read")
        for member in client.level.members.values():
            peer = member.process.peer if member.process else None
            if peer is not None and peer.state is PeerState.LEADING and peer.can_submit:
                history = peer._m
                if history.tail.last.zxid > history.committed:
                    names.add("a read beside what is not committed")

    def told_over(client: CoreClient) -> None:
        if client.session_id in client._checker.closed:
            names.add("told of an end that there was")

    def killed(client: CoreClient) -> None:
        if client.waiting:
            names.add("a client dies without its answers")
        if client.session_id in client._checker.tree.sessions:
            names.add("a session outlives its client for a while")

    def agreeing(level: CoreLevel, core: list[int]) -> None:
        if len(core) < len(level.members):
            names.add("who is down for good stays behind")
        if level.checker.leaderships > 1:
            names.add("more than one attempt to lead")

    def standing(checker: ReplicaChecker, who: Incarnation, _tree: object) -> None:
        if who.position < len(checker.ledger):
            names.add("a tree that is behind")

    spy(CoreClient, "_read", reading)
    spy(CoreClient, "_require_closed", told_over)
    spy(CoreClient, "kill", killed)
    spy(ReplicaLevel, "_require_agreement", agreeing)
    spy(ReplicaChecker, "stands_at", standing)
    return names


def test_legal_near_misses_happen_and_are_accepted(seen: set[str]) -> None:
    """All of them, within a few seeds (X5)."""
    for seed in range(1, SEEDS_MAX):
        assert ReplicaLevel(seed).run().failure is None
        if seen == NEAR_MISSES:
            break
    assert seen == NEAR_MISSES
