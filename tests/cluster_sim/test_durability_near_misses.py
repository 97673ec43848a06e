"""What looks like a broken promise of a disk, and is legal: each check of durability lets it pass.

Each claim ends with the step that would not have been legal, and its check fires there.
"""

import errno

import pytest
from tests.cluster_sim.test_zab_checks import LINK, World, batch, trips

from zabd.cluster_sim.disk_image import DiskImage
from zabd.cluster_sim.disks import Hurt, SimDisk
from zabd.cluster_sim.schedule import Schedule
from zabd.cluster_sim.trace import Trace
from zabd.model.zxid import Zxid
from zabd.storage.disk import Create, Lane, Rename, Sync, SyncDir, WriteAt
from zabd.storage.epochs import EPOCHS, Epochs, encode_epochs
from zabd.zab.config import RecoveredState
from zabd.zab.log import GENESIS
from zabd.zab.messages import (
    Ack,
    AckEpoch,
    AckNewLeader,
    Commit,
    LeaderInfo,
    NewLeader,
    Notification,
    PeerState,
    Standing,
)


@pytest.fixture
def world() -> World:
    """Member 1 leads epoch 1 of an empty ensemble."""
    world = World()
    world.lead(world.a, 1)
    return world


def vote(leader: int, zxid: Zxid, epoch: int, state: PeerState) -> Notification:
    """A notification of member 2."""
    return Notification(
        sender=2,
        cluster_id=b"id",
        round=1,
        leader=leader,
        zxid=zxid,
        epoch=epoch,
        state=state,
        standing=Standing.VOTER,
        history_empty=False,
    )


def test_d1_an_ack_may_leave_while_what_comes_after_it_is_only_buffered(world: World) -> None:
    """An ack speaks for what is before it, and for nothing else."""
    first = batch(GENESIS)
    second = batch(first.position)
    world.agree(first, world.a, world.b)
    world.append(world.a, second)
    world.append(world.b, second)
    world.b.acked_new_leader.add(LINK)
    world.checker.sent(world.b, LINK, Ack(first.last))
    with trips("D1"):
        world.checker.sent(world.b, LINK, Ack(second.last))


def test_d2_a_leader_may_commit_what_its_own_disk_lacks_if_a_quorum_has_it(world: World) -> None:
    """Its own share is not needed then."""
    first = batch(GENESIS)
    world.append(world.a, first)
    world.agree(first, world.b, world.c)
    world.checker.voted(world.b, 1, first.position)
    with trips("D2"):
        world.checker.sent(world.a, LINK, Commit(first.last))
    world.checker.voted(world.c, 1, first.position)
    world.checker.sent(world.a, LINK, Commit(first.last))


def test_d3_a_promise_may_be_less_than_what_is_durable(world: World) -> None:
    """One that has promised more, or the same before, still answers."""
    world.epochs(world.b, 3, 0)
    world.checker.received(world.b, LINK, LeaderInfo(3))
    world.checker.sent(world.b, LINK, AckEpoch(0, GENESIS))
    world.checker.sent(world.b, LINK, AckEpoch(0, GENESIS))
    world.checker.received(world.b, LINK, LeaderInfo(4))
    with trips("D3"):
        world.checker.sent(world.b, LINK, AckEpoch(0, GENESIS))


def test_d4_new_leader_may_be_acked_while_later_proposals_are_buffered(world: World) -> None:
    """Its epoch stands for the history that it named, not for what came after that."""
    first = batch(GENESIS)
    second = batch(first.position)
    world.agree(first, world.a, world.b)
    world.checker.received(world.b, LINK, NewLeader(2, b"id", first.position))
    for who in (world.a, world.b):
        world.append(who, second)
    with trips("D4"):
        world.checker.sent(world.b, LINK, AckNewLeader(2, first.last))
    world.epochs(world.b, 2, 2)
    world.checker.sent(world.b, LINK, AckNewLeader(2, first.last))


def test_d5_only_a_vote_for_oneself_speaks_of_ones_own_disk(world: World) -> None:
    """A vote for another, and the answer of one that follows, may be ahead of it."""
    first = batch(GENESIS)
    world.append(world.a, first)
    world.append(world.b, first)
    world.checker.voting(world.b, vote(1, Zxid.of(7, 7), 7, PeerState.LOOKING))
    world.checker.voting(world.b, vote(1, first.last, 0, PeerState.FOLLOWING))
    with trips("D5"):
        world.checker.voting(world.b, vote(2, first.last, 0, PeerState.LOOKING))
    world.sync(world.b, first)
    world.checker.voting(world.b, vote(2, first.last, 0, PeerState.LOOKING))
    with trips("D5"):
        world.checker.voting(world.b, vote(2, GENESIS.zxid, 0, PeerState.LOOKING))


def test_d6_what_a_lost_disk_had_acknowledged_counts(world: World) -> None:
    """It was durable when it was acknowledged; nobody can know that it is gone."""
    first = batch(GENESIS)
    second = batch(first.position)
    world.agree(first, world.a, world.b)
    world.agree(second, world.a)
    fresh = DiskImage()
    world.checker.disks_lost(2, fresh, fresh)
    world.checker.delivered(world.a, [first])
    with trips("D6"):
        world.checker.delivered(world.a, [second])


def test_d7_a_snapshot_that_cannot_be_written_ends_nobody(world: World) -> None:
    """Nothing that was acknowledged rests on it; on the lane of the log it would."""
    first = batch(GENESIS)
    world.agree(first, world.a, world.b)
    world.b.acked_new_leader.add(LINK)
    schedule = Schedule(1)
    disk = SimDisk(
        schedule,
        DiskImage(),
        Trace(lambda: schedule.now_us),
        name="m2/disk",
        rng=schedule.stream("disk"),
        failed=lambda: world.checker.disk_failed(2),
    )
    disk.injector = lambda op: Hurt(errno.EIO) if isinstance(op, Sync) else None
    disk.submit([Create("snapshot.tmp"), Sync("snapshot.tmp")], lambda _: None, Lane.BULK)
    schedule.run_until(1_000_000)
    world.checker.sent(world.b, LINK, Ack(first.last))
    disk.submit([Create("log.1"), Sync("log.1")], lambda _: None, Lane.LOG)
    schedule.run_until(2_000_000)
    with trips("D7"):
        world.checker.sent(world.b, LINK, Ack(first.last))


def test_d8_a_torn_tail_that_was_never_acknowledged_may_be_cut(world: World) -> None:
    """Even though it was appended, and another member has it."""
    first = batch(GENESIS)
    second = batch(first.position)
    world.agree(first, world.a, world.b)
    world.append(world.a, second)
    world.append(world.b, second)
    world.b.acked_new_leader.add(LINK)
    world.checker.sent(world.b, LINK, Ack(first.last))
    world.restart(2, RecoveredState(tail=(first,)))
    with trips("D8"):
        world.restart(2)


def test_d9_a_file_may_get_its_bytes_before_its_name(world: World) -> None:
    """What counts is that bytes and name are durable before anything rests on them."""
    first = batch(GENESIS)
    world.append(world.a, first)
    world.append(world.b, first)
    world.b.acked_new_leader.add(LINK)
    image = world.images[2]
    for op in (Create("log.tmp"), WriteAt("log.tmp", 0, first.record), Sync("log.tmp")):
        image.perform(op)
    image.perform(Rename("log.tmp", "log.2"))
    with trips("D9"):
        world.checker.sent(world.b, LINK, Ack(first.last))
    world.sync(world.b, first)
    image.perform(SyncDir())
    world.checker.sent(world.b, LINK, Ack(first.last))


def test_d9_a_small_file_may_be_replaced_and_not_written(world: World) -> None:
    """Its temporary file may be written as often as one likes."""
    image = world.images[2]
    image.small_files = frozenset({EPOCHS})
    world.epochs(world.b, 1, 0)
    world.epochs(world.b, 2, 0)
    data = encode_epochs(Epochs(3, 0))
    with trips("D9"):
        image.perform(WriteAt(EPOCHS, 0, data))
    image.perform(Create("epochs.tmp"))
    image.perform(WriteAt("epochs.tmp", 0, data))
    with trips("D9"):
        image.perform(Rename("epochs.tmp", EPOCHS))


def test_d10_a_restart_may_have_promised_more_than_anybody_has_heard(world: World) -> None:
    """The promise was durable, and the crash came before the message."""
    world.epochs(world.b, 3, 0)
    world.checker.received(world.b, LINK, LeaderInfo(3))
    world.checker.sent(world.b, LINK, AckEpoch(0, GENESIS))
    again = world.restart(2, RecoveredState(accepted_epoch=4))
    with trips("D10"):
        world.restart(2, RecoveredState(accepted_epoch=2))
    with trips("D10"):
        world.epochs(again, 2, 0)


def test_d11_a_damaged_member_may_say_that_it_is(world: World) -> None:
    """And an intact one may not."""
    world.checker.disks_damaged(2)
    world.restart(2, RecoveredState(damaged=True))
    with trips("D11"):
        world.restart(3, RecoveredState(damaged=True))
