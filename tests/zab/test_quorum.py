"""Quorums: more than half of the voters, each counted once."""

from itertools import combinations

import pytest

from zabd.model.errors import ConfigError
from zabd.zab.config import EnsembleConfig
from zabd.zab.quorum import MajorityQuorum


@pytest.mark.parametrize(("voters", "size"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_a_quorum_is_more_than_half(voters: int, size: int) -> None:
    """M54: half of four is not enough, two halves would decide against each other."""
    assert MajorityQuorum(range(1, voters + 1)).size == size


def test_any_two_quorums_share_a_member() -> None:
    """That is all that a quorum is for."""
    quorum = MajorityQuorum(range(1, 6))
    enough = [set(c) for n in range(6) for c in combinations(range(1, 6), n) if quorum.contains(c)]

    assert all(a & b for a in enough for b in enough)


def test_only_voters_count() -> None:
    """M65: an observer makes no quorum."""
    quorum = MajorityQuorum([1, 2, 3])

    assert not quorum.contains([1, 4, 5])
    assert quorum.acked({1: 7, 4: 9, 5: 9}) == 0


def test_a_quorum_has_reached_what_its_slowest_needed_member_has() -> None:
    """Acks are cumulative: the middle one of three decides."""
    quorum = MajorityQuorum([1, 2, 3])

    assert quorum.acked({1: 9, 2: 5, 3: 7}) == 7
    assert quorum.acked({1: 9, 2: 5}) == 5
    assert quorum.acked({1: 9}) == 0


@pytest.mark.parametrize(
    ("me", "voters", "observers", "tick_ms"),
    [
        (1, (), (), 2000),
        (4, (1, 2, 3), (), 2000),
        (1, (1, 2, 2), (), 2000),
        (1, (1, 2), (2,), 2000),
        (1, (1,), (), 0),
    ],
)
def test_an_ensemble_that_cannot_work_is_refused(
    me: int, voters: tuple[int, ...], observers: tuple[int, ...], tick_ms: int
) -> None:
    """A wrong configuration is said at the start, not met later."""
    with pytest.raises(ConfigError):
        EnsembleConfig(me=me, voters=voters, observers=observers, tick_ms=tick_ms)
