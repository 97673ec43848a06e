"""Each check trips on what it is there for, and accepts the legal thing that looks like it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from zabd.cluster_sim.disk_image import DiskImage
from zabd.cluster_sim.invariants import INVARIANTS, InvariantError
from zabd.cluster_sim.zab_checks import Incarnation, ZabChecker
from zabd.model.zxid import Zxid
from zabd.storage.disk import Create, Rename, Sync, SyncDir, Unlink, WriteAt
from zabd.storage.epochs import EPOCHS, Epochs, encode_epochs
from zabd.zab.config import RecoveredState
from zabd.zab.effects import Append, Became, Phase
from zabd.zab.log import GENESIS, Batch, LogPosition, frame_record
from zabd.zab.messages import (
    Ack,
    AckEpoch,
    AckNewLeader,
    FollowerInfo,
    LeaderInfo,
    NewLeader,
    PeerState,
    Standing,
)

LINK = 1


class World:
    """A checker, three members with disks, and short ways to say what they do."""

    def __init__(self) -> None:
        self.checker = ZabChecker((1, 2, 3))
        self.images = {member: DiskImage() for member in (1, 2, 3)}
        for member, image in self.images.items():
            self.checker.watch_disks(member, image, image)
            image.perform(Create("log"))
            image.perform(SyncDir())
        self.a, self.b, self.c = (self.restart(member) for member in (1, 2, 3))
        self._appended = 0

    def restart(self, member: int, state: RecoveredState | None = None) -> Incarnation:
        return self.checker.recovered(member, state or RecoveredState())

    def epochs(self, who: Incarnation, accepted: int, current: int) -> None:
        """Make the promises durable."""
        image = self.images[who.member]
        for op in (
            Create("epochs.tmp"),
            WriteAt("epochs.tmp", 0, encode_epochs(Epochs(accepted, current))),
            Sync("epochs.tmp"),
            Rename("epochs.tmp", EPOCHS),
            SyncDir(),
        ):
            image.perform(op)
        self.checker.epochs_durable(who.member)

    def lead(self, who: Incarnation, epoch: int) -> None:
        who.named = True
        news = Became(PeerState.LEADING, Phase.SYNCHRONISATION, epoch, who.member, False)
        self.checker.became(who, news)

    def append(self, who: Incarnation, batch: Batch, epoch: int = 1) -> None:
        self._appended += 1
        self.checker.appending(who, Append(self._appended, batch.record, Zxid(0)), epoch)

    def sync(self, who: Incarnation, batch: Batch) -> None:
        """Make a batch durable."""
        self.images[who.member].perform(WriteAt("log", 0, batch.record))
        self.images[who.member].perform(Sync("log"))

    def agree(self, batch: Batch, *members: Incarnation) -> None:
        """Append and make durable at these members, in this order."""
        for who in members:
            self.append(who, batch)
            self.sync(who, batch)


def batch(after: LogPosition, epoch: int = 1, payload: bytes = b"x", count: int = 1) -> Batch:
    """The next batch of a history."""
    counter = after.zxid.counter + 1 if after.zxid.epoch == epoch else 1
    first = Zxid.of(epoch, counter)
    return Batch(first, count, frame_record(first, count, payload, after.chain))


@contextmanager
def trips(check: str) -> Iterator[None]:
    """The block breaks this invariant and no other."""
    with pytest.raises(InvariantError) as raised:
        yield
    assert raised.value.id == check
    assert raised.value.name == INVARIANTS[check][0]


@pytest.fixture
def world() -> World:
    """Member 1 leads epoch 1 of an empty ensemble."""
    world = World()
    world.lead(world.a, 1)
    return world


def test_one_history_in_one_order_is_what_all_checks_accept(world: World) -> None:
    """Also when a member delivers later, and when an uncommitted batch is never delivered."""
    first = batch(GENESIS)
    second = batch(first.position)
    world.agree(first, world.a, world.b)
    world.agree(second, world.a, world.b)
    world.checker.delivered(world.a, [first, second])
    world.checker.delivered(world.b, [first])
    world.append(world.c, first)
    world.checker.delivered(world.c, [first])
    world.checker.delivered(world.b, [second])
    world.append(world.a, batch(second.position))
    assert [entry.last for entry in world.checker.ledger] == [first.last, second.last]


def test_integrity(world: World) -> None:
    """Z1: one zxid has one content, and nothing is delivered that nobody proposed."""
    first = batch(GENESIS)
    world.append(world.a, first)
    with trips("Z1"):
        world.append(world.b, batch(GENESIS, payload=b"another"))
    with trips("Z1"):
        world.checker.delivered(world.b, [batch(first.position)])
    again = world.restart(1)
    again.leads = 1
    with trips("Z1"):
        world.append(again, batch(GENESIS, payload=b"another"))


def test_total_order_and_prefixes(world: World) -> None:
    """Z2 and Z3: what others delivered at this place is what is delivered here; Z4: or loaded."""
    first = batch(GENESIS)
    second = batch(first.position)
    for each in (first, second):
        world.agree(each, world.a, world.b)
        world.checker.delivered(world.a, [each])
    with trips("Z2"):
        world.checker.delivered(world.b, [second])
    other = batch(GENESIS, epoch=2)
    with trips("Z3"):
        world.checker.delivered(world.b, [other])
    with trips("Z4"):
        world.restart(2, RecoveredState(delivered=batch(GENESIS, payload=b"another").position))


def test_the_order_of_one_leader_and_of_all(world: World) -> None:
    """Z5: no gap within an epoch; Z6: epochs do not go back."""
    first = batch(GENESIS, epoch=1)
    gap = Batch(Zxid.of(1, 3), 1, frame_record(Zxid.of(1, 3), 1, b"x", first.position.chain))
    world.agree(first, world.a, world.b)
    world.checker.delivered(world.a, [first])
    world.checker._proposed[gap.last] = gap.position.chain
    with trips("Z5"):
        world.checker.delivered(world.b, [first, gap])
    later = batch(first.position, epoch=2)
    older = batch(later.position, epoch=1)
    for each in (later, older):
        world.checker._proposed[each.last] = each.position.chain
    with trips("Z6"):
        world.checker.delivered(world.c, [first, later, older])


def test_a_later_leader_may_commit_or_drop_what_an_earlier_one_left(world: World) -> None:
    """Near misses of Z5, Z6, Z7: the leader of epoch 3 commits 1:1, and 1:2 disappears."""
    left = batch(GENESIS)
    world.agree(left, world.a, world.b, world.c)
    world.append(world.a, batch(left.position))
    world.lead(world.b, 3)
    world.checker.delivered(world.b, [left])
    first = batch(left.position, epoch=3)
    for who in (world.b, world.c):
        world.append(who, first, epoch=3)
        world.sync(who, first)
    world.checker.delivered(world.b, [first])
    assert [entry.last for entry in world.checker.ledger] == [left.last, first.last]


def test_primary_integrity(world: World) -> None:
    """Z7: once epoch 2 has broadcast, nothing of epoch 1 may be committed any more."""
    alone = batch(GENESIS)
    world.append(world.a, alone)
    world.lead(world.b, 2)
    world.append(world.b, batch(GENESIS, epoch=2), epoch=2)
    with trips("Z7"):
        world.checker.delivered(world.c, [alone])


def test_leadership(world: World) -> None:
    """Z8: one leader of an epoch, in one life; saying so twice in one life is no second leader."""
    world.lead(world.a, 1)
    with trips("Z8"):
        world.lead(world.b, 1)
    with trips("Z8"):
        world.lead(world.restart(1), 1)


def test_a_leader_has_what_was_committed_and_what_was_chosen(world: World) -> None:
    """Z9 and Z13; what later epochs committed is not the business of one established late."""
    first = batch(GENESIS)
    world.agree(first, world.a, world.b)
    world.checker.voted(world.a, 1, first.position)
    world.checker.voted(world.b, 1, first.position)
    with trips("Z13"):
        world.lead(world.c, 2)
    world.checker.delivered(world.a, [first])
    with trips("Z9"):
        world.lead(world.restart(3), 3)

    world.lead(world.b, 5)
    newer = batch(first.position, epoch=5)
    world.append(world.b, newer, epoch=5)
    world.sync(world.b, newer)
    world.append(world.a, newer, epoch=5)
    world.sync(world.a, newer)
    world.checker.delivered(world.b, [first, newer])
    late = world.restart(3, RecoveredState(delivered=first.position))
    world.lead(late, 4)  # a legal near miss


def test_nothing_committed_is_cut_off(world: World) -> None:
    """Z10; cutting what is not committed is what truncation is for."""
    first = batch(GENESIS)
    second = batch(first.position)
    world.agree(first, world.a, world.b)
    world.checker.delivered(world.a, [first])
    world.append(world.a, second)
    world.append(world.b, second)
    world.checker.truncating(world.b, first.position)
    with trips("Z10"):
        world.checker.truncating(world.b, GENESIS)
    with trips("Z11"):
        world.checker.truncated(world.b, first.position, second.position)
    with trips("A2"):
        world.checker.truncating(world.b, batch(GENESIS, payload=b"?").position)


def test_a_proposal_follows_the_last_one(world: World) -> None:
    """A2."""
    first = batch(GENESIS)
    second = batch(first.position)
    world.append(world.a, first)
    world.append(world.a, second)
    with trips("A2"):
        world.append(world.b, second)


def test_what_counts_as_committed_is(world: World) -> None:
    """A3: a restart may know less than was committed, never more."""
    first = batch(GENESIS)
    world.agree(first, world.a, world.b)
    with trips("A3"):
        world.restart(2, RecoveredState(delivered=first.position))
    world.checker.delivered(world.a, [first])
    world.restart(2, RecoveredState(delivered=first.position))
    world.restart(3)


def test_an_ack_speaks_of_what_is_durable(world: World) -> None:
    """D1, D2, D6 and A4, before and after the fsync."""
    first = batch(GENESIS)
    world.append(world.a, first)
    world.append(world.b, first)
    world.b.acked_new_leader.add(LINK)
    with trips("D1"):
        world.checker.sent(world.b, LINK, Ack(first.last))
    with trips("D2"):
        world.checker.counted_itself(world.a, first.position)
    with trips("D6"):
        world.checker.delivered(world.a, [first])
    world.sync(world.b, first)
    world.checker.sent(world.b, LINK, Ack(first.last))
    world.append(world.c, first)
    world.sync(world.c, first)
    with trips("A4"):
        world.checker.sent(world.c, LINK, Ack(first.last))


def test_a_record_without_its_past_is_not_durable(world: World) -> None:
    """D1: the second batch is on the disk, the first one is not."""
    first = batch(GENESIS)
    second = batch(first.position)
    for each in (first, second):
        world.append(world.a, each)
        world.append(world.b, each)
    world.b.acked_new_leader.add(LINK)
    world.sync(world.b, second)
    with trips("D1"):
        world.checker.sent(world.b, LINK, Ack(second.last))


def test_an_epoch_is_durable_before_it_is_promised(world: World) -> None:
    """D3, for the follower's promise and for the leader's offer."""
    world.checker.received(world.b, LINK, LeaderInfo(2))
    with trips("D3"):
        world.checker.sent(world.b, LINK, AckEpoch(0, GENESIS))
    with trips("D3"):
        world.checker.sent(world.a, LINK, LeaderInfo(2))
    world.epochs(world.b, 2, 0)
    world.checker.sent(world.b, LINK, AckEpoch(0, GENESIS))


def test_history_first_then_the_epoch_then_the_ack(world: World) -> None:
    """D4, at the ack and at the moment when the epoch becomes durable."""
    first = batch(GENESIS)
    world.append(world.a, first)
    world.append(world.b, first)
    named = NewLeader(2, b"id", first.position)
    world.checker.received(world.b, LINK, named)
    with trips("D4"):
        world.checker.sent(world.b, LINK, AckNewLeader(2, first.last))
    with trips("D4"):
        world.epochs(world.b, 2, 2)
    world.images[2].perform(Unlink(EPOCHS))
    world.sync(world.b, first)
    with trips("A4"):
        world.checker.sent(world.b, LINK, AckNewLeader(3, first.last))
    world.epochs(world.b, 2, 2)
    world.checker.sent(world.b, LINK, AckNewLeader(2, first.last))


def test_a_synchronised_history_is_the_leaders(world: World) -> None:
    """Z11."""
    first = batch(GENESIS)
    world.checker.received(world.b, LINK, NewLeader(2, b"id", first.position))
    with trips("Z11"):
        world.checker.sent(world.b, LINK, AckNewLeader(2, first.last))


def test_a_vote_speaks_of_what_a_restart_would_load(world: World) -> None:
    """D5."""
    first = batch(GENESIS)
    world.append(world.a, first)
    world.append(world.b, first)
    info = FollowerInfo(1, b"id", 2, False, 1, first.position, Standing.VOTER)
    with trips("D5"):
        world.checker.sent(world.b, LINK, info)
    world.sync(world.b, first)
    world.checker.sent(world.b, LINK, info)


def test_a_restart_loses_nothing_that_was_acknowledged(world: World) -> None:
    """D8 and D10; what was never acknowledged may be lost."""
    first = batch(GENESIS)
    second = batch(first.position)
    for each in (first, second):
        world.append(world.a, each)
        world.append(world.b, each)
    world.sync(world.b, first)
    world.epochs(world.b, 3, 0)
    world.b.acked_new_leader.add(LINK)
    world.checker.sent(world.b, LINK, Ack(first.last))
    world.restart(2, RecoveredState(accepted_epoch=3, tail=(first,)))
    with trips("D8"):
        world.restart(2, RecoveredState(accepted_epoch=3))
    world.checker._promised[2] = (3, 0)
    with trips("D10"):
        world.restart(2, RecoveredState(accepted_epoch=2, tail=(first,)))


def test_a_new_epoch_is_greater_than_every_promise(world: World) -> None:
    """Z16."""
    info = FollowerInfo(1, b"id", 2, False, 5, GENESIS, Standing.VOTER)
    world.checker.received(world.a, LINK, info)
    world.epochs(world.a, 4, 0)
    with trips("Z16"):
        world.checker.sent(world.a, LINK, LeaderInfo(4))


def test_a_confirmed_leader_has_what_was_committed_before_it_was_asked(world: World) -> None:
    """C6; what is committed after the question may be missing."""
    first = batch(GENESIS)
    world.checker.asked(world.b, 1)
    world.agree(first, world.a, world.c)
    world.checker.delivered(world.a, [first])
    world.checker.confirmed(world.b, 1)
    world.checker.asked(world.b, 2)
    with trips("C6"):
        world.checker.confirmed(world.b, 2)
