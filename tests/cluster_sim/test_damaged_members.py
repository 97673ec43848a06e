"""The faults of docs/reference/rules.md in an ensemble: one damaged member of three, row by row.

Whatever happens to one member's disk, the others go on acknowledging, nothing that was acknowledged
is lost (the checker of the core level watches every step), and the member is whole again in the
end: because what it had was enough, or because the others repaired it.
"""

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from zabd.cluster_sim.core_level import CoreLevel, short_tails
from zabd.cluster_sim.core_member import CoreMember
from zabd.cluster_sim.disk_image import DiskImage
from zabd.cluster_sim.disks import Hurt
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.shape import Shape
from zabd.model.ids import MemberId
from zabd.storage.config import OnDamage, StorageConfig
from zabd.storage.disk import Create, DiskOp, Read, Rename, Sync, SyncDir, WriteAt
from zabd.storage.epochs import (
    EPOCHS,
    IDENTITY,
    Epochs,
    Identity,
    decode_epochs,
    decode_identity,
    encode_epochs,
)
from zabd.storage.record import MarkKind, encode_mark, segment_number
from zabd.storage.snapshots import DAMAGED, snapshot_zxid
from zabd.zab import effects as fx
from zabd.zab.log import HEADER_SIZE, RECORD_MAGIC, frame_record, parse_header
from zabd.zab.messages import Standing

WHOLE, HURT = Standing.VOTER, Standing.DAMAGED


def shape(snapshot_every: int = 1_000) -> Shape:
    """Three members, small segments, nothing that goes wrong by itself."""
    quiet = replace(CoreLevel(1).shape, kinds=(), voters=3, observers=0, log_disk=False)
    return replace(
        quiet,
        tick_ms=50,
        submit_every_ms=8,
        payload_bytes_max=900,
        segment_bytes=8 << 10,
        snapshot_every=snapshot_every,
        tail_batches=8,
    )


class World(CoreLevel):
    """An ensemble at the core level, driven by a test."""

    def __init__(self, snapshot_every: int = 1_000, seed: int = 5) -> None:
        super().__init__(seed, shape(snapshot_every))
        for member in self.members.values():
            member.start()
        self.begin_work()

    def run_for(self, ms: int) -> None:
        """Let this much time pass, with a short memory in every peer."""
        with short_tails(self.shape.tail_batches):
            self._run_until(self.schedule.now_ms + ms)

    def run_until(self, condition: Callable[[], object], ms: int = 20_000) -> None:
        """Until the condition holds."""
        end_ms = self.schedule.now_ms + ms
        while not condition():
            assert self.schedule.now_ms < end_ms, self.trace.tail(30)
            self.run_for(1)

    def serves(self, *members: MemberId) -> bool:
        """Whether these members serve."""
        return self._all_serving([*members])

    def follower(self) -> CoreMember:
        """A member that does not lead."""
        leader = self.a_leader()
        return next(member for member in self.members.values() if member is not leader)

    def commits(self) -> int:
        """How much has been committed."""
        return len(self.checker.ledger)

    def standing(self, member: CoreMember) -> Standing:
        """What a member that has just started says it can vouch for."""
        self.run_until(lambda: member.process is not None and member.process.peer is not None)
        assert member.process is not None
        assert member.process.peer is not None
        return member.process.peer.standing

    def must_go_on(self) -> None:
        """More than a few batches are committed within a few elections' time."""
        committed = self.commits()
        self.run_until(lambda: self.commits() > committed + 5)

    def settle(self) -> None:
        """All members serve, and end in the same place."""
        self.run_until(lambda: self.serves(*self.voters))
        self.must_go_on()
        self.end_work()
        self._require_agreement([*self.voters])


def busy(snapshot_every: int = 1_000) -> tuple[World, CoreMember]:
    """An ensemble with a history, and a follower that has just been killed."""
    world = World(snapshot_every)
    world.run_until(lambda: world.serves(*world.voters) and world.commits() > 80)
    member = world.follower()
    member.crash(power=True)
    world.checker.disks_damaged(member.id)
    return world, member


def comes_back(world: World, member: CoreMember, expected: Standing) -> None:
    """The others go on without the member, it starts as expected, and all ends well."""
    world.must_go_on()
    member.start()
    assert world.standing(member) is expected
    world.must_go_on()
    world.settle()


def all_down(snapshot_every: int = 1_000) -> World:
    """An ensemble with a history, all of whose members have been killed."""
    world = World(snapshot_every)
    world.run_until(lambda: world.serves(*world.voters) and world.commits() > 80)
    world.end_work()
    world.run_for(1_000)  # all three have all of it
    for member in world.members.values():
        member.crash(power=True)
    return world


def start_all(world: World) -> None:
    """Start every member."""
    for member in world.members.values():
        member.start()


def hurt_record(member: CoreMember, number: int) -> None:
    """Flip a bit in the content of one record of the second segment, the same on all members."""
    file = logs(member.image)[1]
    flip(member.image, file, records(member.image, file)[number] + HEADER_SIZE)


def give_up(world: World, member: CoreMember) -> None:
    """Start it as an operator does who says that what is left is all there was."""
    repairing = world.storage_config

    def giving_up(number: MemberId) -> StorageConfig:
        config = repairing(number)
        return replace(config, on_damage=OnDamage.GIVE_UP) if number == member.id else config

    member.crash(power=False)
    world.checker.disks_lost(member.id, member.image, member.image)  # it vouches for less now
    world.storage_config = giving_up  # type: ignore[method-assign]
    member.start()
    world._idle = False
    world.begin_work()


# --- where things lie -----------------------------------------------------------------------------


def logs(image: DiskImage) -> list[str]:
    """The segments, in order."""
    return [name for name in sorted(image.names) if segment_number(name) is not None]


def snapshots(image: DiskImage) -> list[str]:
    """The snapshots, oldest first."""
    return [name for name in sorted(image.names) if snapshot_zxid(name) is not None]


def records(image: DiskImage, file: str) -> list[int]:
    """Where the records of a segment begin."""
    data, found, at = image.content(file), [], -1
    while (at := data.find(RECORD_MAGIC, at + 1)) >= 0:
        found.append(at)
    return found


def flip(image: DiskImage, file: str, at: int) -> None:
    """Flip one bit."""
    image.overwrite(file, at, bytes([image.content(file)[at] ^ 0x10]))


def put(image: DiskImage, file: str, data: bytes) -> None:
    """A durable file with this content, new or in the place of the old one."""
    for op in (Create("new"), WriteAt("new", 0, data), Sync("new"), Rename("new", file), SyncDir()):
        image.perform(op)


def end_of_log(image: DiskImage) -> tuple[str, int]:
    """The last segment with records, and the end of its last record."""
    file = next(name for name in reversed(logs(image)) if records(image, name))
    at = records(image, file)[-1]
    return file, at + HEADER_SIZE + parse_header(image.content(file), at).length


# --- F1 to F8: the log ----------------------------------------------------------------------------

FIELDS = {"magic": 1, "zxid": 11, "count": 15, "length": 19, "previous": 22, "payload digest": 30}
FIELDS |= {"header digest": HEADER_SIZE - 1, "payload": HEADER_SIZE}


@pytest.mark.parametrize("at", FIELDS.values(), ids=FIELDS)
def test_f1_a_flipped_bit_in_a_record_is_repaired(at: int) -> None:
    """In any of its fields; the records before it stay, and the leader sends what is missing."""
    world, member = busy()
    file = logs(member.image)[1]
    flip(member.image, file, records(member.image, file)[2] + at)

    comes_back(world, member, HURT)

    assert file + DAMAGED in member.image.names


@pytest.mark.parametrize("size", [512, 4096])
@pytest.mark.parametrize("stale", [False, True])
def test_f2_a_lost_or_misdirected_block_is_repaired(size: int, stale: bool) -> None:  # noqa: FBT001
    """Zeros, or the bytes of another block."""
    world, member = busy()
    first, file = logs(member.image)[:2]
    content = member.image.content(first)[:size] if stale else bytes(size)
    member.image.overwrite(file, 1024, content)

    comes_back(world, member, HURT)


@pytest.mark.parametrize("part", [1, 20, 60, 200])
def test_f3_a_torn_last_record_is_cut_and_no_damage(part: int) -> None:
    """A write that was under way when the power went: nobody has been told of it."""
    world, member = busy()
    file, end = end_of_log(member.image)
    last = parse_header(member.image.content(file), records(member.image, file)[-1])
    first = type(last.first)(last.first + last.count)
    record = frame_record(first, 1, b"torn" * 60, b"not told")
    mark = encode_mark(
        MarkKind.GROUP, segment_number(file) or 0, end, len(record), 0, 0, Epochs(0, 0)
    )
    member.image.overwrite(file, end, mark + record[:part])

    comes_back(world, member, WHOLE)


def test_f4_a_damaged_last_record_that_was_durable_is_repaired() -> None:
    """Its restart has vouched for it; so it was acknowledged, and is not torn."""
    world, member = busy()
    member.start()
    world.standing(member)
    member.crash(power=True)
    world.checker.disks_damaged(member.id)
    file = next(name for name in reversed(logs(member.image)) if records(member.image, name))
    flip(member.image, file, records(member.image, file)[-1] + HEADER_SIZE)

    comes_back(world, member, HURT)


def test_f5_garbage_after_the_last_record_is_no_damage() -> None:
    """Reserved space holds whatever it held before."""
    world, member = busy()
    file, end = end_of_log(member.image)
    member.image.overwrite(file, end, b"\xa5junk" * 40)

    comes_back(world, member, WHOLE)


def missing(image: DiskImage) -> None:
    """It is gone."""
    image.remove(logs(image)[1])


def cut(image: DiskImage) -> None:
    """Its end is gone."""
    image.cut(logs(image)[1], 3_000)


def doubled(image: DiskImage) -> None:
    """It is there twice, the second time in the place of the next one."""
    put(image, logs(image)[2], image.content(logs(image)[1]))


def swapped(image: DiskImage) -> None:
    """It and the next one have changed places."""
    one, other = logs(image)[1:3]
    content = image.content(one)
    put(image, one, image.content(other))
    put(image, other, content)


@pytest.mark.parametrize("hurt", [missing, cut, doubled, swapped], ids=lambda hurt: hurt.__name__)
def test_f6_a_middle_segment_that_is_not_its_own_is_repaired(
    hurt: Callable[[DiskImage], None],
) -> None:
    """What is before it stays."""
    world, member = busy()
    hurt(member.image)

    comes_back(world, member, HURT)


def test_f7_a_last_segment_that_is_missing_is_repaired() -> None:
    """The one before it says that there is another."""
    world, member = busy()
    member.image.remove(logs(member.image)[-1])

    comes_back(world, member, HURT)


def test_f8_a_last_segment_without_anything_is_no_damage() -> None:
    """A crash while it was made."""
    world, member = busy()
    number = segment_number(logs(member.image)[-1]) or 0
    put(member.image, f"log.{number + 1:08d}", b"")

    comes_back(world, member, WHOLE)


# --- F9 to F11: snapshots -------------------------------------------------------------------------


def flipped(image: DiskImage, file: str) -> None:
    """One bit of its content."""
    flip(image, file, 90)


def shortened(image: DiskImage, file: str) -> None:
    """Its end is gone."""
    image.cut(file, 90)


def emptied(image: DiskImage, file: str) -> None:
    """All of it is gone."""
    image.cut(file, 0)


def misnamed(image: DiskImage, file: str) -> None:
    """It claims to stand elsewhere."""
    put(image, f"snapshot.{(snapshot_zxid(file) or 0) - 1:016x}", image.content(file))
    image.remove(file)


SNAPSHOT_DAMAGE = [flipped, shortened, emptied, misnamed]


@pytest.mark.parametrize("hurt", SNAPSHOT_DAMAGE, ids=lambda hurt: hurt.__name__)
def test_f9_a_damaged_newest_snapshot_costs_a_longer_replay(
    hurt: Callable[[DiskImage, str], None],
) -> None:
    """An older one is good enough, and the bad one is kept aside."""
    world, member = busy(snapshot_every=20)
    hurt(member.image, snapshots(member.image)[-1])

    comes_back(world, member, WHOLE)

    assert [name for name in member.image.names if DAMAGED in name]


def test_f10_a_log_from_the_beginning_needs_no_snapshot() -> None:
    """All snapshots are damaged, and nothing was deleted yet."""
    world, member = busy(snapshot_every=60)
    assert snapshots(member.image)
    for file in snapshots(member.image):
        flipped(member.image, file)

    comes_back(world, member, WHOLE)


def test_f11_without_a_snapshot_and_without_the_beginning_of_the_log_all_is_sent_anew() -> None:
    """Nothing is left to vouch for."""
    world, member = busy(snapshot_every=20)
    for file in snapshots(member.image):
        flipped(member.image, file)
    member.image.remove(logs(member.image)[0])

    comes_back(world, member, HURT)


# --- F14: what cannot be read ---------------------------------------------------------------------


def test_f14_what_the_device_cannot_read_is_repaired() -> None:
    """EIO in the middle of the log."""
    world, member = busy()
    bad = logs(member.image)[1]
    member.start()
    assert member.process is not None

    def unreadable(op: DiskOp) -> Hurt | None:
        over = isinstance(op, Read) and op.file == bad and op.offset <= 2_000
        return Hurt(errno.EIO) if over and op.offset + op.size_bytes > 2_000 else None

    member.process.disks[0].injector = unreadable
    assert world.standing(member) is HURT
    world.settle()


# --- F20 to F23: promises and identity ------------------------------------------------------------


def stale_epochs(image: DiskImage) -> None:
    """A file from before the first promise."""
    put(image, EPOCHS, encode_epochs(Epochs(0, 0)))


@pytest.mark.parametrize(
    "hurt",
    [
        lambda image: image.remove(EPOCHS),
        lambda image: image.cut(EPOCHS, 0),
        lambda image: flip(image, EPOCHS, 30),
        stale_epochs,
    ],
    ids=["missing", "empty", "flipped", "older than the log"],
)
def test_f20_a_member_without_its_promises_is_repaired(hurt: Callable[[DiskImage], None]) -> None:
    """Its history is whole, but it may have promised more than it knows of."""
    world, member = busy()
    hurt(member.image)

    comes_back(world, member, HURT)

    content = member.image.durable_content(EPOCHS)
    assert content is not None
    assert decode_epochs(content).current == world.a_leader().process.peer.epoch  # type: ignore[union-attr]


def test_f21_a_temporary_file_that_was_left_is_no_damage() -> None:
    """The rename was lost."""
    world, member = busy()
    put(member.image, EPOCHS + ".tmp", b"half of a fi")

    comes_back(world, member, WHOLE)


def test_f22_the_directory_of_another_member_is_refused() -> None:
    """That is no damage, and nobody repairs it: the operator has mixed up two directories."""
    world, member = busy()
    other = next(one for one in world.members.values() if one is not member)
    member.image.names.update(other.image.copy().names)

    member.start()
    with pytest.raises(InvariantError, match=f"belongs to member {other.id}"):
        world.run_for(1_000)


def test_f23_an_empty_directory_waits_until_it_is_synchronised() -> None:
    """It is blank, and counts for nothing until then."""
    world, member = busy()
    member.lose_disks()

    comes_back(world, member, Standing.BLANK)


# --- F29 to F35 -----------------------------------------------------------------------------------


def test_f29_a_tree_that_differs_stops_its_member_which_is_rebuilt() -> None:
    """S17: the next start does not believe what it finds."""
    world = World(snapshot_every=20)
    world.run_until(lambda: world.serves(*world.voters) and world.commits() > 80)
    member = world.follower()
    process = member.process
    assert process is not None
    world.checker.disks_damaged(member.id)

    process.enter(partial(process._stop, fx.Stop("the digests differ", distrust=True)))
    world.run_until(lambda: member.process is not process)
    world.must_go_on()

    member.start()
    assert world.standing(member) is HURT
    assert member.process is not None
    assert member.process.peer is not None
    assert member.process.peer.logged_zxid == 0
    world.settle()


def test_f30_f31_two_damaged_members_wait_with_the_third_and_lose_nothing() -> None:
    """The same damage on two of three: no leader can be elected, and all of them say so."""
    world = World()
    world.run_until(lambda: world.serves(*world.voters) and world.commits() > 80)
    for member in world.members.values():
        member.crash(power=True)
    for member in [*world.members.values()][:2]:
        world.checker.disks_damaged(member.id)
        file = logs(member.image)[member.id]
        flip(member.image, file, records(member.image, file)[1] + HEADER_SIZE)
    held = {
        m.id: {bytes(m.image.content(f)) for f in logs(m.image)} for m in world.members.values()
    }
    for member in world.members.values():
        member.start()

    world.run_for(3_000)

    peers = [m.process.peer for m in world.members.values() if m.process is not None]
    assert not any(peer is not None and peer.serving for peer in peers)
    assert all(peer is not None and peer.hopeless == (1, 2) for peer in peers)
    for member in [*world.members.values()][:2]:
        assert held[member.id] <= {member.image.content(name) for name in member.image.names}


def test_f30_what_the_whole_one_of_three_has_is_not_lost_when_an_operator_gives_one_up() -> None:
    """Two are damaged in different records; one of them goes on with what it has left.

    The whole one has the longer history and leads; it gives both what they lack. Without the word
    of an operator nothing happens: repair record by record is not there (ADR 9).
    """
    world = all_down()
    members = [*world.members.values()]
    whole = max(members, key=lambda member: end_of_log(member.image))
    for member in members:
        if member is not whole:
            world.checker.disks_damaged(member.id)
            hurt_record(member, 1 + member.id)
    start_all(world)
    world.run_for(3_000)
    assert not any(world.serves(member.id) for member in members)

    given_up = next(member for member in members if member is not whole)
    give_up(world, given_up)

    world.run_until(lambda: world.serves(whole.id))
    world.settle()


def test_f31_all_are_damaged_in_one_record_and_all_wait_for_an_operator() -> None:
    """The record is nowhere any more: nobody goes on by itself, and nothing more is destroyed."""
    world = all_down()
    members = [*world.members.values()]
    for member in members:
        world.checker.disks_damaged(member.id)
        hurt_record(member, 3)
    held = {m.id: {bytes(m.image.content(f)) for f in logs(m.image)} for m in members}
    start_all(world)

    world.run_for(5_000)

    for member in members:
        assert member.process is not None
        assert member.process.peer is not None
        assert not member.process.peer.serving
        assert member.process.peer.standing is HURT
        assert member.process.peer.hopeless == (1, 2, 3)
        assert held[member.id] <= {member.image.content(name) for name in member.image.names}


def test_f32_an_empty_and_a_stale_member_do_not_forget_what_the_third_one_has() -> None:
    """S21: the newest write is on the one that is down; until it is back there is no leader."""
    world = World()
    world.run_until(lambda: world.serves(*world.voters) and world.commits() > 40)
    stale = world.follower()
    stale.crash(power=True)
    world.must_go_on()
    newest, emptied = [m for m in world.members.values() if m is not stale]
    newest.crash(power=True)
    emptied.crash(power=True)
    emptied.lose_disks()
    committed = world.commits()

    stale.start()
    emptied.start()
    world.run_for(10_000)

    assert not world.serves(stale.id)
    assert not world.serves(emptied.id)
    assert world.a_leader() is None
    assert world.commits() == committed
    newest.start()
    world.settle()


def found_anew(world: World, member: CoreMember) -> None:
    """Start it as an operator does who says that its directory is all there is."""
    plain = world.storage_config
    given_up = identity_of(member).cluster_id

    def founding(number: MemberId) -> StorageConfig:
        config = plain(number)
        return replace(config, found_anew=given_up) if number == member.id else config

    world.storage_config = founding  # type: ignore[method-assign]
    member.start()
    world._idle = False
    world.begin_work()


def identity_of(member: CoreMember) -> Identity:
    """Whose directory it is."""
    return decode_identity(bytes(member.image.content(IDENTITY)))


@pytest.mark.parametrize("snapshot_every", [20, 1_000])
def test_a_cluster_is_founded_anew_from_the_copy_that_is_left(snapshot_every: int) -> None:
    """S21: two of three directories are empty; all wait until an operator names the third one.

    Everything that was acknowledged is there, under a new id, and stays so over a power cut of all,
    though the log of the copy goes on to name the former cluster.
    """
    world = all_down(snapshot_every)
    copy, *others = world.members.values()
    former = identity_of(copy).cluster_id
    for member in others:
        member.lose_disks()
    start_all(world)
    world.run_for(3_000)
    assert not any(world.serves(member.id) for member in world.members.values())

    copy.crash(power=False)
    found_anew(world, copy)
    world.run_until(lambda: world.serves(*world.voters))
    world.must_go_on()

    ids = {identity_of(member).cluster_id for member in world.members.values()}
    assert len(ids) == 1
    assert former not in ids
    assert identity_of(copy).former == (former,)
    for member in world.members.values():
        member.crash(power=True)
    start_all(world)  # with the option left in place: it does nothing any more
    world.settle()
    assert {identity_of(member).cluster_id for member in world.members.values()} == ids


def test_nothing_is_founded_anew_beside_a_member_that_has_a_history() -> None:
    """It waits and follows nobody until it is started without the option; then all is as it was."""
    world = all_down()
    told, left, emptied = world.members.values()
    emptied.lose_disks()
    before = identity_of(told)
    left.start()
    emptied.start()
    found_anew(world, told)

    world.run_for(5_000)

    assert not any(world.serves(member.id) for member in world.members.values())
    assert identity_of(told) == before
    assert identity_of(emptied).cluster_id is None
    told.crash(power=False)
    world.storage_config = partial(CoreLevel.storage_config, world)  # type: ignore[method-assign]
    told.start()
    world.settle()


@pytest.mark.parametrize("wait_ms", [0, 3, 10, 30])
def test_f33_a_leader_that_dies_while_it_repairs_is_replaced_by_the_next(wait_ms: int) -> None:
    """The old state stays until the new one is whole, and somebody else begins again."""
    world, member = busy(snapshot_every=20)
    for file in snapshots(member.image):
        flipped(member.image, file)
    member.image.remove(logs(member.image)[0])
    world.must_go_on()
    member.start()
    assert world.standing(member) is HURT
    world.run_for(wait_ms)
    leader = world.a_leader()
    assert leader is not None

    leader.crash(power=False)
    world.run_for(500)
    leader.start()

    world.settle()


def test_f35_an_old_copy_of_the_log_beside_newer_promises_is_repaired() -> None:
    """Somebody has put back a backup over a live directory."""
    world = World()
    world.run_until(lambda: world.serves(*world.voters) and world.commits() > 30)
    member = world.follower()
    backup = {name: member.image.content(name) for name in logs(member.image)}
    member.crash(power=True)
    member.start()
    world.run_until(lambda: world.serves(*world.voters) and world.commits() > 90)
    member.crash(power=True)
    member.start()
    world.standing(member)
    member.crash(power=True)
    world.checker.disks_damaged(member.id)
    for name in logs(member.image):
        member.image.remove(name)
    for name, data in backup.items():
        put(member.image, name, data)

    comes_back(world, member, HURT)
