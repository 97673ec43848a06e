"""How long a leader lets requests wait, so that they share a batch."""

import pytest
from tests.replica.harness import Ensemble

from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.ops import Create, CreateMode
from zabd.replica.gathering import CROWD_MIN, GATHER_MS_MAX, Gathering


def committed(count: int, waiting: int, took_ms: int) -> Gathering:
    """A leader whose batch of so many, proposed at 0, was committed, with so many behind it."""
    gathering = Gathering()
    gathering.proposed(0)
    gathering.answered(count, waiting, took_ms)
    return gathering


def test_an_idle_leader_waits_for_nothing() -> None:
    """A request of its own time is proposed in the turn in which it comes."""
    gathering = Gathering()

    assert not gathering.waits(1, None, 1_000)
    assert gathering.until_ms is None


def test_what_comes_behind_an_undecided_batch_waits_for_it_but_not_for_long() -> None:
    """W1: it leaves with the commit; disks that are slow get more to write at once."""
    gathering = Gathering()

    assert gathering.waits(1_000, 100, 100 + GATHER_MS_MAX - 1)
    assert gathering.until_ms == 100 + GATHER_MS_MAX
    assert not gathering.waits(1_000, 100, 100 + GATHER_MS_MAX)


def test_the_clients_that_were_just_answered_are_waited_for_as_long_as_that_took() -> None:
    """W2: else those that wait and those that were answered would take turns for ever."""
    gathering = committed(count=60, waiting=40, took_ms=3)

    assert gathering.waits(40, None, 3)
    assert gathering.until_ms == 6
    assert gathering.waits(74, None, 5)
    assert not gathering.waits(75, None, 5)
    assert gathering.until_ms is None
    assert not gathering.waits(40, None, 6)


def test_nobody_waits_longer_for_clients_after_a_slow_commit() -> None:
    """W1: a second of the disk does not become two."""
    gathering = committed(count=60, waiting=40, took_ms=1_000)

    assert gathering.waits(40, None, 1_000)
    assert gathering.until_ms == 1_000 + GATHER_MS_MAX


@pytest.mark.parametrize("waiting", [0, 1, CROWD_MIN - 2])
def test_a_few_clients_are_not_made_to_wait_for_each_other(waiting: int) -> None:
    """W2: with so few of them latency counts more."""
    gathering = committed(count=1, waiting=waiting, took_ms=3)

    assert not gathering.waits(1, None, 3)


def test_a_crowd_that_has_gone_is_forgotten_with_the_next_small_batch() -> None:
    """It is waited for once, and no more."""
    gathering = committed(count=60, waiting=40, took_ms=3)
    gathering.proposed(6)
    gathering.answered(1, 0, 8)

    assert not gathering.waits(1, None, 8)


def test_the_clients_of_a_batch_and_those_behind_it_share_the_next_one() -> None:
    """In a whole ensemble: two halves of the clients become one."""
    ensemble = Ensemble()
    leader = ensemble.leader
    replica = ensemble.members[leader]
    first, second = ensemble.connect(leader), ensemble.connect(leader)
    ensemble.pass_time(10)
    log = ensemble.logs[leader]
    before = len(log)

    first.send(*creates("first", 5))
    second.send(*creates("second", 5))
    ensemble.now_ms += 3  # what the disks take
    ensemble.settle()
    assert len(first.heard) == 5
    assert not second.heard
    assert replica.deadline_ms == ensemble.now_ms + 3

    first.send(*creates("again", 5))
    ensemble.settle()
    assert [batch.count for batch in log[before:]] == [5, 10]


def creates(name: str, count: int) -> list[Create]:
    """So many requests."""
    everybody, kind = OPEN_ACL_UNSAFE, CreateMode.PERSISTENT
    return [Create(f"/{name}{number}", b"", everybody, kind) for number in range(count)]
