"""A simulated disk keeps exactly what was synced, and chance decides about the rest."""

import errno
import random
from collections.abc import Sequence

import pytest
from tests.cluster_sim.worlds import World, later

from zabd.cluster_sim.damage import DAMAGES, damage
from zabd.cluster_sim.disk_image import (
    EVERYTHING_SURVIVES,
    NAMES_LOST,
    NOTHING_SURVIVES,
    TORN,
    DiskImage,
    Losses,
    Survival,
)
from zabd.cluster_sim.disks import Hurt, SimDisk
from zabd.cluster_sim.invariants import InvariantError
from zabd.storage.disk import (
    Create,
    DiskOp,
    DiskOutcome,
    FreeSpace,
    Lane,
    List,
    MakeDir,
    Read,
    Release,
    Rename,
    Size,
    Sync,
    SyncDir,
    Truncate,
    Unlink,
    WriteAt,
)
from zabd.storage.epochs import EPOCHS
from zabd.storage.record import segment_file
from zabd.storage.snapshots import snapshot_file

RNG = random.Random(3)


class Machine:
    """A process with a disk, in a world of its own."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.image = DiskImage()
        self.disk = self.boot()

    def boot(self) -> SimDisk:
        world = self.world
        rng = world.schedule.stream("disks")
        return SimDisk(world.schedule, self.image, world.trace, name="d", rng=rng)

    def submit(self, *ops: DiskOp, lane: Lane = Lane.LOG) -> list[DiskOutcome]:
        outcomes: list[DiskOutcome] = []
        self.disk.submit(ops, outcomes.append, lane)
        assert outcomes == [], "K3: never from within submit"
        return outcomes

    def do(self, *ops: DiskOp) -> DiskOutcome:
        outcomes = self.submit(*ops)
        later(self.world)
        [outcome] = outcomes
        return outcome


def after_power_cut(
    ops: Sequence[DiskOp], survival: Survival = NOTHING_SURVIVES, seed: int = 1
) -> DiskImage:
    """What is there after `ops` and a power cut."""
    image = DiskImage()
    for op in ops:
        image.perform(op)
    image.lose_power(random.Random(seed), survival)
    return image


def read(image: DiskImage, file: str) -> bytes:
    """All of a file."""
    found = image.perform(Read(file, 0, 1 << 30))
    assert isinstance(found, bytes)
    return found


def test_a_list_is_done_in_order_and_each_operation_takes_time() -> None:
    """One submission, one completion with one result for each operation (K1)."""
    machine = Machine()
    outcome = machine.do(
        Create("log", 10),
        WriteAt("log", 2, [b"ab", b"cd"]),
        Size("log"),
        Read("log", 1, 6),
        Read("log", 8, 100),
        MakeDir("sub"),
        Create("sub/x"),
        List(),
        List("sub"),
    )
    assert outcome.error is None
    assert outcome.results[2:5] == [10, b"\0abcd\0", b"\0\0"]
    assert outcome.results[7:] == [["log", "sub"], ["x"]]
    assert machine.world.trace.recorded == 9


def test_a_list_stops_at_its_first_failure() -> None:
    """The operations after the failed one are not done."""
    machine = Machine()
    outcome = machine.do(Create("a"), Create("a"), Create("b"))
    assert outcome.results == [None]
    assert outcome.error is not None
    assert outcome.error.errno == errno.EEXIST
    assert outcome.error.op == Create("a")
    assert machine.do(List()).results == [["a"]]


@pytest.mark.parametrize("op", [Unlink("x"), Read("x", 0, 1), Size("x"), Rename("x", "y")])
def test_a_missing_file_is_said_to_be_missing(op: DiskOp) -> None:
    """ENOENT, as the system call answers."""
    error = Machine().do(op).error
    assert error is not None
    assert error.errno == errno.ENOENT


def test_lanes_are_first_in_first_out_and_do_not_wait_for_each_other() -> None:
    """A snapshot never stands in the way of the log (K2)."""
    machine = Machine()
    machine.do(Create("log"), Create("snapshot"))
    order: list[str] = []
    for number in range(200):
        machine.disk.submit(
            [WriteAt("snapshot", number, b"s")], lambda _: order.append("bulk"), Lane.BULK
        )
    for number in range(3):
        machine.disk.submit(
            [WriteAt("log", number, b"x")], lambda _, n=number: order.append(f"log {n}")
        )
    later(machine.world)
    logged = [step for step in order if step != "bulk"]
    assert logged == ["log 0", "log 1", "log 2"]
    assert order.index("log 2") < 100


def test_a_power_cut_loses_what_was_not_synced() -> None:
    """Bytes need a Sync, names need a SyncDir, and neither stands in for the other (D1)."""
    synced = [Create("f"), WriteAt("f", 0, b"old"), Sync("f"), SyncDir()]
    assert read(after_power_cut([*synced, WriteAt("f", 0, b"new")]), "f") == b"old"
    assert read(after_power_cut([*synced, Truncate("f", 1)]), "f") == b"old"
    assert read(after_power_cut([*synced, WriteAt("f", 3, b"er"), Sync("f")]), "f") == b"older"
    assert not after_power_cut([Create("f"), WriteAt("f", 0, b"x"), Sync("f")]).names
    assert read(after_power_cut([Create("f"), WriteAt("f", 0, b"x"), SyncDir()]), "f") == b""
    assert list(after_power_cut([*synced, Rename("f", "g")]).names) == ["f"]
    assert list(after_power_cut([*synced, Rename("f", "g"), SyncDir()]).names) == ["g"]
    assert list(after_power_cut([*synced, Unlink("f")]).names) == ["f"]
    assert not after_power_cut([*synced, Unlink("f"), SyncDir()]).names


def test_a_power_cut_may_keep_what_was_not_synced() -> None:
    """The disk may have been faster than its fsync."""
    image = after_power_cut(
        [Create("f", 100), WriteAt("f", 0, b"new"), Rename("f", "g")], EVERYTHING_SURVIVES
    )
    assert list(image.names) == ["g"]
    assert read(image, "g").startswith(b"new")
    assert image.perform(Size("g")) == 100


def test_each_write_is_kept_lost_or_torn_on_its_own() -> None:
    """Any subset of writes survives, and a long write may be torn between sectors."""
    base = [Create("f"), WriteAt("f", 0, bytes(8_192)), Sync("f"), SyncDir()]
    writes = [WriteAt("f", n * 2_048, bytes([n + 1]) * 2_048) for n in range(4)]
    seen: set[tuple[int, ...]] = set()
    torn = 0
    for seed in range(200):
        content = read(after_power_cut([*base, *writes], Survival(0.4, 0.5), seed), "f")
        for start in range(0, 8_192, 512):
            assert len(set(content[start : start + 512])) == 1, "sectors are whole"
        parts = [content[n * 2_048 : n * 2_048 + 2_048] for n in range(4)]
        torn += any(len(set(part)) == 2 for part in parts)
        seen.add(tuple(part.count(n + 1) // 2_048 for n, part in enumerate(parts)))
    assert len(seen) == 16
    assert torn > 50


def test_a_killed_process_loses_nothing_it_had_written() -> None:
    """The page cache belongs to the machine (D2)."""
    machine = Machine()
    machine.do(Create("f"), WriteAt("f", 0, b"kept"))
    machine.disk.kill()
    outcomes = machine.submit(WriteAt("f", 0, b"dead"))
    machine.disk = machine.boot()
    assert machine.do(Read("f", 0, 9)).results == [b"kept"]
    assert outcomes == []


def test_of_the_operation_under_way_a_crash_decides() -> None:
    """It may have been done; those behind it were not; nobody is told."""
    contents: set[bytes] = set()
    for seed in range(20):
        machine = Machine(seed)
        machine.do(Create("f"))
        outcomes = machine.submit(WriteAt("f", 0, b"1"), WriteAt("f", 0, b"2"))
        machine.disk.kill()
        later(machine.world)
        assert outcomes == []
        contents.add(read(machine.image, "f"))
    assert contents == {b"", b"1"}


def test_a_failed_sync_is_final() -> None:
    """The pages look written and never become durable; using the file again is a bug (D3).

    What was on its way before anybody knew is refused.
    """
    machine = Machine()
    machine.do(Create("f"), SyncDir(), WriteAt("f", 0, b"gone"))
    machine.disk.injector = lambda op: Hurt(errno.EIO) if isinstance(op, Sync) else None
    failed, behind = machine.submit(Sync("f")), machine.submit(WriteAt("f", 4, b" too"))
    later(machine.world)
    for outcome in (*failed, *behind):
        assert outcome.error is not None
        assert outcome.error.errno == errno.EIO
    assert len(behind) == 1
    machine.disk.injector = None
    assert machine.do(Read("f", 0, 8)).results == [b"gone"]
    with pytest.raises(InvariantError, match="FsyncErrorIsFatal"):
        machine.submit(Sync("f"))
    machine.disk.kill()
    machine.disk = machine.boot()
    assert machine.do(Sync("f"), Read("f", 0, 4)).results == [None, b"gone"]
    assert machine.do(Release("f"), Read("f", 0, 4)).results == [None, b""]


def test_errors_and_delays_are_injected_per_operation() -> None:
    """A full disk, a slow one and a stalled one."""
    machine = Machine()
    machine.do(Create("f"))
    machine.disk.injector = lambda op: Hurt(delay_us=5_000_000)
    slow = machine.submit(WriteAt("f", 0, b"x"))
    later(machine.world, 4_900)
    assert slow == []
    later(machine.world, 200)
    assert len(slow) == 1
    machine.disk.injector = None
    machine.disk.stall()
    stalled = machine.submit(Size("f"))
    later(machine.world, 60_000)
    assert stalled == []
    machine.disk.resume()
    later(machine.world)
    assert stalled[0].results == [1]
    machine.image.capacity_bytes = 10
    assert machine.do(FreeSpace()).results == [9]
    full = machine.do(WriteAt("f", 5, b"123456")).error
    assert full is not None
    assert full.errno == errno.ENOSPC


def test_damage_is_on_the_device_and_in_the_cache() -> None:
    """A flipped bit, a zeroed sector, a misdirected write, a lost disk."""
    image = after_power_cut(
        [Create("f"), WriteAt("f", 0, b"\xff" * 2_000), Sync("f"), Create("g"), SyncDir()]
    )
    offset = image.flip_bit("f", RNG)
    content = read(image, "f")
    assert content.count(b"\xff") == 1_999
    assert (content[offset] ^ 0xFF).bit_count() == 1
    start = image.overwrite_sector("f", RNG)
    assert not any(read(image, "f")[start : start + 512])
    image.overwrite_sector("f", RNG, source="g")
    assert len(read(image, "f")) == 2_000
    image.wipe()
    assert image.perform(List()) == []


def test_a_copy_shares_nothing_with_its_original() -> None:
    """Looking at what a crash would leave must not change what is there."""
    image = DiskImage()
    for op in [Create("f"), WriteAt("f", 0, b"a"), Sync("f"), SyncDir(), WriteAt("f", 0, b"b")]:
        image.perform(op)
    twin = image.copy()
    twin.lose_power(RNG, NOTHING_SURVIVES)
    assert read(twin, "f") == b"a"
    assert read(image, "f") == b"b"
    image.lose_power(RNG, EVERYTHING_SURVIVES)
    assert read(image, "f") == b"b"


def test_the_durable_frontier_is_told_write_by_write() -> None:
    """A checker hears of exactly the bytes that a Sync made durable."""
    image = DiskImage()
    heard: list[tuple[str, int, bytes]] = []
    image.on_durable = lambda file, offset, data: heard.append((file, offset, data))
    image.perform(Create("f", 10))
    image.perform(WriteAt("f", 4, [b"a", b"b"]))
    assert heard == []
    image.perform(Sync("f"))
    image.perform(Sync("f"))
    assert heard == [("f", 4, b"ab")]


def test_a_power_cut_tells_what_it_took() -> None:
    """Which writes are lost or torn, which names; so a fault is counted when it has happened."""
    machine = Machine()
    machine.do(Create("f"), SyncDir(), WriteAt("f", 0, bytes(5_000)), Sync("f"))
    machine.do(WriteAt("f", 0, b"x" * 5_000), Rename("f", "g"), Create("h"))
    kept = machine.image.copy()
    assert kept.lose_power(random.Random(1), EVERYTHING_SURVIVES) == Losses()
    nothing = machine.image.copy()
    assert nothing.lose_power(random.Random(1), NOTHING_SURVIVES) == Losses(1, 0, 1, 1)
    torn = machine.image.copy()
    assert torn.lose_power(random.Random(1), TORN) == Losses(0, 1, 1, 1)
    assert set(torn.content("f")) == {0, ord("x")}
    renamed = machine.image.copy()
    assert renamed.lose_power(random.Random(1), NAMES_LOST) == Losses(0, 0, 1, 1)
    assert sorted(renamed.names) == ["f"]
    assert renamed.content("f") == b"x" * 5_000


def test_a_trap_goes_off_once_and_changes_nothing() -> None:
    """It sees each operation begin and end, until it has seen what it waits for."""
    machine = Machine()
    seen: list[tuple[DiskOp, bool]] = []

    def trap(op: DiskOp, done: bool) -> bool:  # noqa: FBT001 - a trap's
        seen.append((op, done))
        return done and isinstance(op, WriteAt)

    machine.disk.traps.append(trap)
    assert machine.do(Create("f"), WriteAt("f", 0, b"1"), Sync("f")).error is None
    assert [done for _, done in seen] == [False, True, False, True]
    assert not machine.disk.disturbed


def test_a_full_disk_says_so_and_gets_its_room_back() -> None:
    """Whoever finds no room is told; a process that was hit by it counts as disturbed."""
    machine = Machine()
    found: list[str] = []
    machine.do(Create("f"), WriteAt("f", 0, b"1"))
    machine.image.fill(3, lambda: found.append("full"))
    assert machine.do(FreeSpace(), WriteAt("f", 1, b"234")).results == [3, None]
    assert found == []
    error = machine.do(WriteAt("f", 4, b"5")).error
    assert error is not None
    assert error.errno == errno.ENOSPC
    assert found == ["full"]
    assert machine.disk.disturbed
    machine.image.make_room()
    machine.disk.kill()
    machine.disk = machine.boot()
    assert machine.do(WriteAt("f", 4, b"5")).error is None
    assert not machine.disk.disturbed


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_that_is_told_of_has_been_done(kind: str, seed: int) -> None:
    """Something on the device differs then, and nothing where nothing is told."""
    image = DiskImage()
    for name, content in (
        (segment_file(1), b"12" * 1_000),
        (segment_file(2), b"34" * 1_000),
        (EPOCHS, b"5" * 30),
        (snapshot_file(7), b"67" * 700),
    ):
        image.perform(Create(name))
        image.perform(WriteAt(name, 0, content))
        image.perform(Sync(name))
    image.perform(SyncDir())
    before = {name: image.content(name) for name in image.names}
    done = damage(image, image, kind, random.Random(seed))
    after = {name: image.content(name) for name in image.names}
    assert (before != after) == bool(done)
    assert kind == "misdirected write" or done
