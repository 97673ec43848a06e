"""Faults put into a member's directory, and what one member must do: the rows F1 to F35 by name.

"Refuses" means: a sentence that names the file and says what to do, and no byte changed on disk.
"""

import errno
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from tests.storage.crash_disk import CrashDisk, Inode
from tests.storage.members import SMALL, History, Member, last_of, zxids

from zabd.model import DamagedError, StorageError
from zabd.storage.disk import Create, DiskOp, Read, Sync, SyncDir, WriteAt
from zabd.storage.record import MARK_BYTES, SEGMENT_HEADER_BYTES
from zabd.zab.log import HEADER_SIZE

Damage = Callable[[dict[str, Inode]], None]

LARGE = replace(SMALL, segment_bytes=64 << 10)
BLOCK_BYTES = 4096
"""What a device loses at once."""


@pytest.fixture
def history() -> History:
    """The ensemble's records."""
    return History()


@pytest.fixture
def disk(history: History) -> CrashDisk:
    """The disk of a member that was killed: twelve records in several segments, no snapshot."""
    return killed(history)


def killed(history: History, records: int = 12, *, close: bool = False) -> CrashDisk:
    """The disk of a member after that many records."""
    member = Member().founded()
    for _ in range(records):
        member.append(history.next(), committed=history.base.zxid)
    if close:
        member.close()
    return member.disk.copy()


def with_snapshots(history: History, at: tuple[int, ...], records: int = 12) -> CrashDisk:
    """The disk of a member that wrote a snapshot after each of these records."""
    member = Member().founded()
    for index in range(records):
        member.append(history.next())
        if index in at:
            member.snapshot(history.batches)
    return member.disk.copy()


def segments(disk: CrashDisk) -> list[str]:
    """The log's files, oldest first."""
    return sorted(name for name in disk.files if name.startswith("log."))


def snapshots(disk: CrashDisk) -> list[str]:
    """The snapshots' files, oldest first."""
    return sorted(name for name in disk.files if name.startswith("snapshot."))


def damage(disk: CrashDisk, file: str, data: bytes) -> None:
    """Put these bytes in the place of the file's."""
    disk.files[file] = disk.durable_names[file] = Inode(data)


def flip(disk: CrashDisk, file: str, offset: int) -> None:
    """Flip one bit."""
    data = bytearray(disk.files[file].data)
    data[offset] ^= 1 << (offset % 8)
    damage(disk, file, bytes(data))


def refuses(disk: CrashDisk, match: str, kind: type[StorageError] = DamagedError) -> None:
    """A start on the disk refuses with such a sentence and changes nothing."""
    before = disk.content()
    with pytest.raises(kind, match=match):
        Member(disk).recover()
    assert disk.content() == before


def starts(disk: CrashDisk, history: list[int]) -> Member:
    """A start on the disk finds this history and can go on."""
    member = Member(disk)
    recovered = member.recover()
    assert zxids(recovered, member.tree) == history
    member.append(History(member.storage.durable).next())
    assert len(member.acked) == 1
    return member


def record_offsets(history: History) -> list[tuple[str, int, int]]:
    """Where each record of `killed` lies: file, offset, size."""
    member = Member().founded()
    found = []
    for batch in history.batches:
        member.append(batch)
        write = [op for op in member.disk.log if isinstance(op, WriteAt)][-1]
        found.append((write.file, write.offset + MARK_BYTES, len(batch.record)))
    return found


def test_f1_a_flipped_bit_in_any_byte_of_a_record_is_refused(
    history: History, disk: CrashDisk
) -> None:
    """Payload, header, digest, length or zxid: none may be lost silently."""
    for file, offset, size in record_offsets(history)[:-1]:
        for at in range(offset, offset + size, 7):
            damaged = disk.copy()
            flip(damaged, file, at)
            refuses(damaged, rf"{file} at offset \d+, after zxid .*: .*restore")


@pytest.mark.parametrize("block_bytes", [64, 512])
def test_f2_a_zeroed_block_in_the_middle_is_refused(
    history: History, disk: CrashDisk, block_bytes: int
) -> None:
    """ZooKeeper 3.8 takes zeros for the end of a file and starts with a hole."""
    for file in segments(disk)[:-1]:
        for start in range(0, 500, block_bytes):
            damaged = disk.copy()
            data = bytearray(damaged.files[file].data)
            data[start : start + block_bytes] = bytes(block_bytes)
            damage(damaged, file, bytes(data))
            refuses(damaged, "log")


def test_f2_a_block_is_lost_unseen_only_if_no_write_began_behind_it() -> None:
    """ADR 5's bound: all groups that end in the block where the last one begins, or later.

    Only a later mark says what was durable, and the epochs file, at every orderly stop.
    """
    history, member = History(), Member(config=LARGE).founded()
    places: list[tuple[int, int]] = []
    seen = {"cost several groups": 0, "last write in two blocks": 0}
    for count in range(1, 80):
        start = member.storage._log.segments[-1].end_offset if count > 1 else SEGMENT_HEADER_BYTES
        member.append(history.next())
        places.append((start, member.storage._log.segments[-1].end_offset))
        if count < 2:
            continue
        [file] = segments(member.disk)
        begins, ends = start // BLOCK_BYTES, (places[-1][1] - 1) // BLOCK_BYTES
        for block in range(1, begins):
            refuses(without_block(member.disk, file, block), "log")
        for block in range(max(begins, 1), ends + 1):
            left = sum(end <= block * BLOCK_BYTES for _, end in places)
            starts(without_block(member.disk, file, block), last_of(history.batches[:left]))
            seen["cost several groups"] += count - left > 1
            seen["last write in two blocks"] += begins < ends
    assert all(seen.values())
    member.close()
    refuses(without_block(member.disk, file, ends), "the epochs file names zxid")


def without_block(disk: CrashDisk, file: str, block: int) -> CrashDisk:
    """The disk, with one block of a file lost."""
    damaged = disk.copy()
    data = bytearray(damaged.files[file].data)
    data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = bytes(BLOCK_BYTES)
    damage(damaged, file, bytes(data))
    return damaged


def test_f2_a_misdirected_write_is_refused(history: History, disk: CrashDisk) -> None:
    """Whole, undamaged records in a wrong place are still the wrong history."""
    found = record_offsets(history)
    (file, first, size), (same, second, _) = found[0], found[1]
    assert file == same
    data = bytearray(disk.files[file].data)
    data[second : second + size] = data[first : first + size]
    damage(disk, file, bytes(data))

    refuses(disk, "does not follow the one before")


def test_f3_a_torn_last_record_is_cut_wherever_it_was_torn(
    history: History, disk: CrashDisk
) -> None:
    """A record of which only the beginning reached the disk was never acknowledged."""
    file, offset, size = record_offsets(history)[-1]
    for kept in range(-MARK_BYTES, size):
        torn = disk.copy()
        data = bytearray(torn.files[file].data)
        data[offset + kept :] = bytes(len(data) - offset - kept)
        damage(torn, file, bytes(data))
        member = starts(torn, last_of(history.batches[:-1]))
        if kept not in {-MARK_BYTES, 0}:
            assert "torn_tail_cut" in member.events()


def test_f3_a_file_that_has_become_shorter_is_refused(history: History, disk: CrashDisk) -> None:
    """A segment has its full size before its first record: a torn write does not shorten it."""
    file, offset, size = record_offsets(history)[-1]
    for kept in range(-MARK_BYTES, size + 1, 5):
        cut = disk.copy()
        damage(cut, file, bytes(cut.files[file].data[: offset + kept]))
        refuses(cut, f"{file} at offset 0, .*size")


def test_f4_a_damaged_last_record_that_was_durable_is_refused(history: History) -> None:
    """A mark behind the record vouches for it: this is no torn write."""
    disk = killed(history, close=True)
    file, offset, size = record_offsets(history)[-1]
    for at in range(offset, offset + size):
        damaged = disk.copy()
        flip(damaged, file, at)
        refuses(damaged, "were durable")


def test_f4_a_restart_vouches_for_what_it_found(history: History, disk: CrashDisk) -> None:
    """After an unclean stop the rewritten tail is durable as a whole, and says so."""
    Member(disk).recover()
    file, _, _ = record_offsets(history)[-1]
    data = bytes(disk.files[file].data)
    at = data.index(history.batches[-1].payload)
    flip(disk, file, at)

    refuses(disk, "were durable")


def test_f5_garbage_after_the_last_record_is_no_damage(history: History, disk: CrashDisk) -> None:
    """Reserved space may hold anything on some file systems."""
    file, offset, size = record_offsets(history)[-1]
    rng = Random(1)
    for _ in range(20):
        dirty = disk.copy()
        data = bytearray(dirty.files[file].data)
        junk = rng.randbytes(len(data) - offset - size)
        data[offset + size :] = junk
        damage(dirty, file, bytes(data))
        starts(dirty, last_of(history.batches))


def test_f6_a_missing_segment_is_refused(history: History, disk: CrashDisk) -> None:
    """Neither the first, nor one in the middle."""
    for file in segments(disk)[:-1]:
        damaged = disk.copy()
        del damaged.files[file]
        refuses(damaged, "missing|no usable snapshot")


def test_f6_a_cut_segment_is_refused(history: History, disk: CrashDisk) -> None:
    """ZooKeeper 3.8 goes on with the next file, and 16 of 40 records are gone."""
    file = segments(disk)[1]
    for size in range(SEGMENT_HEADER_BYTES, 500, 31):
        damaged = disk.copy()
        damage(damaged, file, bytes(damaged.files[file].data[:size]))
        refuses(damaged, file)


def test_f6_a_duplicated_or_swapped_segment_is_refused(history: History, disk: CrashDisk) -> None:
    """A segment knows its own number, whatever its name says."""
    first, second = segments(disk)[1:3]
    swapped = disk.copy()
    swapped.files[first], swapped.files[second] = swapped.files[second], swapped.files[first]
    refuses(swapped, "it is a copy of")

    duplicated = disk.copy()
    number = len(segments(disk)) + 1
    duplicated.files[f"log.{number:08d}"] = duplicated.files[first]
    refuses(duplicated, "it is a copy of")


def test_f7_a_missing_last_segment_is_refused(history: History, disk: CrashDisk) -> None:
    """The segment before it was sealed, which says that it existed."""
    del disk.files[segments(disk)[-1]]

    refuses(disk, "it is missing, though")


def test_f7_a_log_that_is_gone_is_refused(history: History) -> None:
    """The epochs file and the snapshots name points that the log had reached."""
    member = Member(killed(history))
    member.recover()
    member.persist_epochs(2, 1)
    bare = member.disk.copy()
    for file in segments(bare):
        del bare.files[file]

    refuses(bare, "the epochs file names zxid 1:12, which is no point of this log")


@pytest.mark.parametrize("size", [0, 10, SEGMENT_HEADER_BYTES, 700])
def test_f8_a_last_segment_without_records_is_no_damage(history: History, size: int) -> None:
    """ZOOKEEPER-2332: a crash while a segment is made leaves it empty, or with a header only."""
    member = Member().founded()
    while len(segments(member.disk)) < 2:
        before = member.disk.copy()
        member.append(history.next())
    made = bytes(member.disk.files["log.00000002"].data[:SEGMENT_HEADER_BYTES])
    damage(before, "log.00000002", made.ljust(700, b"\0")[:size])

    starts(before, last_of(history.batches[:-1]))


SNAPSHOT_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "bit flip": lambda data: data[:90] + bytes([data[90] ^ 1]) + data[91:],
    "cut": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "empty": lambda _data: b"",
    "zeros": lambda data: bytes(len(data)),
    "header flip": lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:],
}


@pytest.mark.parametrize("kind", SNAPSHOT_DAMAGES)
def test_f9_a_damaged_newest_snapshot_is_set_aside_and_an_older_one_used(
    history: History, kind: str
) -> None:
    """M58: an older snapshot and a longer replay give the same tree; the file is kept."""
    disk = with_snapshots(history, at=(3, 7))
    _, newest = snapshots(disk)
    data = SNAPSHOT_DAMAGES[kind](bytes(disk.files[newest].data))
    damage(disk, newest, data)

    member = starts(disk, last_of(history.batches))

    assert member.storage.snapshot == history.batches[3].position
    assert bytes(member.disk.files[f"{newest}.damaged"].data) == data
    assert newest not in member.disk.files
    assert "snapshot_damaged" in member.events()


def test_f9_every_flipped_byte_of_a_snapshot_is_found(history: History) -> None:
    """No byte of the file lies outside a digest."""
    disk = with_snapshots(history, at=(3,))
    [file] = snapshots(disk)
    for offset in range(len(disk.files[file].data)):
        damaged = disk.copy()
        flip(damaged, file, offset)
        starts(damaged, last_of(history.batches))
        assert f"{file}.damaged" in damaged.files


def test_f9_a_snapshot_under_a_wrong_name_is_set_aside(history: History) -> None:
    """The zxid in the name decides what is replayed, so it must be the file's own."""
    disk = with_snapshots(history, at=(3, 7))
    older, newest = snapshots(disk)
    damage(disk, newest, bytes(disk.files[older].data))

    member = starts(disk, last_of(history.batches))

    assert f"{newest}.damaged" in member.disk.files


def test_f9_what_was_set_aside_before_is_not_overwritten(history: History) -> None:
    """S15: a damaged file may be all that is left for a rescue by hand."""
    disk = with_snapshots(history, at=(3,))
    [file] = snapshots(disk)
    damage(disk, f"{file}.damaged", b"an earlier one")
    flip(disk, file, 90)

    member = starts(disk, last_of(history.batches))

    assert bytes(member.disk.files[f"{file}.damaged"].data) == b"an earlier one"
    assert f"{file}.damaged-2" in member.disk.files


def test_f9_a_tree_that_does_not_take_the_content_counts_as_damage(history: History) -> None:
    """The file may be whole and its content still be no tree."""
    disk = with_snapshots(history, at=(3, 7))
    member = Member(disk)
    end_snapshot = member.tree.end_snapshot

    def end_newest() -> None:
        if member.tree.loading_position == history.batches[7].position:
            raise DamagedError("the digest of the tree is another")
        end_snapshot()

    member.tree.end_snapshot = end_newest  # type: ignore[method-assign]

    assert zxids(member.recover(), member.tree) == last_of(history.batches)
    assert member.storage.snapshot == history.batches[3].position


def test_f10_without_a_usable_snapshot_a_complete_log_is_enough(history: History) -> None:
    """The log from zxid 1 on is the whole history."""
    disk = with_snapshots(history, at=(3, 7))
    for file in snapshots(disk):
        flip(disk, file, 90)

    starts(disk, last_of(history.batches))


def test_f11_without_a_usable_snapshot_an_incomplete_log_is_refused(history: History) -> None:
    """ZOOKEEPER-2325: an empty tree under the end of a log is a different history."""
    disk = with_snapshots(history, at=tuple(range(3, 24, 4)), records=24)
    assert segments(disk)[0] != "log.00000001"
    for file in snapshots(disk):
        flip(disk, file, 90)

    refuses(disk, "no usable snapshot is left and the log begins only after zxid 1:")


def test_f11_a_log_cut_off_before_the_oldest_snapshot_is_refused(history: History) -> None:
    """M66: what lies between a snapshot and the log's beginning is nowhere."""
    disk = with_snapshots(history, at=(3,), records=24)
    for file in segments(disk)[:3]:
        del disk.files[file]

    refuses(disk, "no usable snapshot")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("kind", [WriteAt, Sync, Create, SyncDir])
def test_f12_f13_f19_a_failure_on_the_log_path_ends_the_member(
    kind: type[DiskOp], number: int
) -> None:
    """S9: no acknowledgement after the failure, and the failed file is not touched again."""
    history, member = History(), Member().founded()
    for _ in range(4):
        member.append(history.next())
    acked = list(member.acked)

    member.disk.fault = lambda op: number if isinstance(op, kind) else 0
    for _ in range(4):  # one of them begins a new segment
        member.append(history.next())

    assert len(member.failures) == 1
    count = member.disk.count
    member.disk.fault = lambda _op: 0
    member.append(history.next())
    assert member.disk.count == count
    assert member.acked[: len(acked)] == acked
    again = Member(member.disk.crash(Random(1), ("vanish",)))
    found = zxids(again.recover(), again.tree)
    assert found[: len(member.acked)] == [int(zxid) for zxid in member.acked]


def test_f12_a_full_disk_fails_a_snapshot_and_not_the_member() -> None:
    """Serving goes on; the next snapshot is tried when there is room."""
    history, member = History(), Member().founded()
    member.append(history.next())
    full = lambda op: errno.ENOSPC if getattr(op, "file", "").startswith("snapshot") else 0  # noqa: E731
    member.disk.fault = full

    error = member.snapshot(history.batches)

    assert "No space left on device" in str(error)
    assert "snapshot_failed" in member.events()
    member.append(history.next())
    member.disk.fault = lambda _op: 0
    assert member.snapshot(history.batches) is None
    assert not member.failures


def test_f12_a_snapshot_does_not_begin_without_room_for_it_and_for_the_log() -> None:
    """S11: the last free bytes belong to the log."""
    history, member = History(), Member().founded()
    member.append(history.next())
    member.disk.free_bytes = SMALL.segment_bytes - 1

    assert "make room" in str(member.snapshot(history.batches))
    assert not any("snapshot" in name for name in member.disk.files)


def test_f13_a_failed_epoch_write_is_never_reported_as_done() -> None:
    """S19: the promise that depends on it is not given."""
    member = Member().founded()
    member.disk.fault = lambda op: errno.EIO if isinstance(op, Sync) else 0

    assert not member.persist_epochs(2, 2)
    assert len(member.failures) == 1
    recovered = Member(member.disk.crash(Random(1))).recover()
    assert recovered.accepted_epoch == 1


def test_f13_what_a_restart_shows_after_a_failed_sync_is_made_durable_first() -> None:
    """S10: the kernel calls lost pages clean; they can be read, and no later sync writes them."""
    history, member = History(), Member().founded()
    member.append(history.next())
    member.disk.fault = lambda op: errno.EIO if isinstance(op, Sync) else 0
    member.append(history.next())
    assert len(member.failures) == 1
    disk = member.disk
    for inode in disk.files.values():
        inode.pending = []  # clean, says the kernel: `data` has the record, `durable` never will
    disk.fault = lambda _op: 0
    again = Member(disk)
    reported = zxids(again.recover(), again.tree)
    assert reported == last_of(history.batches)

    third = Member(disk.crash(Random(1), ("vanish",)))

    assert zxids(third.recover(), third.tree) == reported


def test_f14_what_cannot_be_read_at_the_start_is_refused(history: History, disk: CrashDisk) -> None:
    """A block that the device does not give back is a damaged one."""
    for file in [*segments(disk), "epochs", "identity"]:
        broken = disk.copy()
        broken.fault = lambda op, file=file: (
            errno.EIO if isinstance(op, Read) and op.file == file else 0
        )
        refuses(broken, f"{file} at offset 0: it cannot be read: Input/output error; .*restore")


def test_f17_f18_a_torn_group_of_several_batches_is_cut_where_it_is_torn() -> None:
    """Of one write, any sectors may survive: records behind a lost one were never acknowledged."""
    history, member = History(), Member().founded()
    member.append(history.next())
    member.append(*(history.next() for _ in range(3)))  # the first goes alone, two share a write
    file = segments(member.disk)[-1]
    data = bytes(member.disk.files[file].data)
    torn = member.disk.copy()
    at = data.index(history.batches[2].record)
    damage(torn, file, data[:at] + bytes(HEADER_SIZE) + data[at + HEADER_SIZE :])

    starts(torn, last_of(history.batches[:2]))


EPOCH_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _data: b"",
    "bit flip": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    "cut": lambda data: data[:-2],
}


@pytest.mark.parametrize("kind", EPOCH_DAMAGES)
@pytest.mark.parametrize("file", ["epochs", "identity"])
def test_f20_a_damaged_epochs_or_identity_file_is_refused(
    history: History, disk: CrashDisk, kind: str, file: str
) -> None:
    """A promise that can no longer be read is not one that may be made again."""
    damage(disk, file, EPOCH_DAMAGES[kind](bytes(disk.files[file].data)))

    refuses(disk, f"the file {file} is not as it was written")


@pytest.mark.parametrize("file", ["epochs", "identity"])
def test_f20_a_missing_epochs_or_identity_file_is_refused(
    history: History, disk: CrashDisk, file: str
) -> None:
    """It is never invented from the log."""
    del disk.files[file]

    refuses(disk, f"the file {file} is missing")


def test_f20_a_missing_epochs_file_is_refused_even_without_a_log() -> None:
    """An epoch may have been promised before the first record."""
    disk = Member().founded().disk.copy()
    del disk.files["epochs"]

    refuses(disk, "the file epochs is missing")


def test_f20_an_epochs_file_older_than_the_log_is_refused(history: History) -> None:
    """The log's marks repeat the epochs that were in force."""
    member = Member().founded()
    old = bytes(member.disk.files["epochs"].data)
    member.persist_epochs(5, 5)
    member.append(history.next(epoch=5))
    disk = member.disk.copy()
    damage(disk, "epochs", old)

    refuses(disk, "older than the log")


def test_f21_left_over_temporary_files_are_removed(history: History, disk: CrashDisk) -> None:
    """ZOOKEEPER-4269, 2307: a crash between writing and renaming is an ordinary one."""
    for file in ("epochs.tmp", "identity.tmp", "intent.tmp", "log.00000002.tmp"):
        damage(disk, file, b"half a fi")
    damage(disk, "snapshot.0000000100000009.incoming", b"half a snapsh")

    member = starts(disk, last_of(history.batches))

    assert not any(name.endswith((".tmp", ".incoming")) for name in member.disk.files)
    assert member.persist_epochs(2, 2)


def test_f22_another_members_directory_is_refused(disk: CrashDisk) -> None:
    """Two members with one history each would count twice."""
    before = disk.content()
    with pytest.raises(StorageError, match="belongs to member 1 and this is member 2"):
        Member(disk).recover(member_id=2)
    assert disk.content() == before


def test_f22_another_ensembles_directory_is_refused(disk: CrashDisk) -> None:
    """The epochs and zxids of two ensembles have nothing to do with each other."""
    with pytest.raises(StorageError, match="belongs to the ensemble 000102"):
        Member(disk).recover(cluster_id=b"another")


def test_f22_a_log_of_another_member_is_refused(history: History) -> None:
    """With dataLogDir the log may be mixed up alone."""
    one = Member(CrashDisk(), log_disk=CrashDisk()).founded()
    one.append(history.next())
    two = Member(CrashDisk(), log_disk=CrashDisk())
    two.recover(member_id=2)

    with pytest.raises(StorageError, match="belongs to member 1 and this is member 2"):
        Member(two.disk.copy(), log_disk=one.log_disk.copy()).recover(member_id=2)


def test_f22_a_later_format_is_refused(disk: CrashDisk) -> None:
    """An older zabd must not guess what a newer one wrote."""
    data = bytes(disk.files["identity"].data).replace(b"zabd identity 1", b"zabd identity 2")
    body = data[: data.index(b"digest ")]
    from hashlib import blake2b  # noqa: PLC0415

    digest = blake2b(body, digest_size=16).hexdigest()
    damage(disk, "identity", body + f"digest {digest}\n".encode())

    refuses(disk, "start the member with the version of zabd that wrote", StorageError)


def test_f35_an_old_backup_of_the_log_is_refused(history: History) -> None:
    """The epochs file names a zxid that the restored log does not reach."""
    member = Member().founded()
    member.append(history.next())
    backup = {name: data for name, data in member.disk.content().items() if "log" in name}
    for _ in range(10):
        member.append(history.next())
    member.persist_epochs(2, 2)
    disk = member.disk.copy()
    for name in segments(disk):
        del disk.files[name]
    for name, data in backup.items():
        damage(disk, name, data)

    refuses(disk, "the epochs file names zxid 1:11, which is no point of this log")


def test_damage_that_a_running_member_reads_ends_it(history: History) -> None:
    """M72: a corrupt record is never sent on to a learner."""
    member = Member().founded()
    for _ in range(12):
        member.append(history.next())
    flip(member.disk, "log.00000001", SEGMENT_HEADER_BYTES + MARK_BYTES + 60)
    answers: list[object] = []

    member.storage.read_records(history.base, 100, answers.append)
    member.run()

    assert answers == [None]
    assert len(member.failures) == 1
    assert isinstance(member.failures[0], DamagedError)


def test_a_snapshot_that_cannot_be_read_any_more_is_set_aside(history: History) -> None:
    """The next reader gets an older one."""
    member = Member().founded()
    for _ in range(2):
        member.append(history.next())
        member.snapshot(history.batches)
    reader = member.storage.snapshot_reader()
    assert reader is not None
    file = snapshots(member.disk)[-1]
    flip(member.disk, file, 95)
    answers: list[object] = []

    reader.read(answers.append)
    member.run()

    assert isinstance(answers[0], DamagedError)
    assert f"{file}.damaged" in member.disk.files
    assert member.storage.snapshot == history.batches[0].position


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_f34_a_snapshot_that_may_not_be_read_now_stays(history: History, number: int) -> None:
    """For want of a descriptor a learner begins again, and the member keeps what it starts from."""
    member = Member().founded()
    member.append(history.next())
    member.snapshot(history.batches)
    reader = member.storage.snapshot_reader()
    assert reader is not None
    member.disk.fault = lambda op: number if isinstance(op, Read) else 0
    answers: list[object] = []

    reader.read(answers.append)
    member.run()

    assert isinstance(answers[0], StorageError)
    assert not isinstance(answers[0], DamagedError)
    member.disk.fault = lambda _op: 0
    reader.read(answers.append)
    member.run()
    assert isinstance(answers[1], bytes)
    assert member.storage.snapshot == history.end


def test_a_member_that_loses_its_base_asks_for_a_new_snapshot(history: History) -> None:
    """S14: until there is one, its directory is good for no start; the tree is in memory."""
    member = Member().founded()
    member.append(history.next())
    member.snapshot(history.batches)
    history.next()
    member.install(history.batches)
    wanted: list[bool] = []
    member.storage.on_snapshot_wanted = lambda: wanted.append(True)
    reader = member.storage.snapshot_reader()
    assert reader is not None
    member.disk.fault = lambda op: errno.EIO if isinstance(op, Read) else 0

    reader.read(lambda _answer: None)
    member.run()

    assert wanted == [True]
    assert "no_snapshot_left" in member.events()
    assert member.storage.snapshot_reader() is None, "the log does not reach back to the older one"
    member.disk.fault = lambda _op: 0
    member.append(history.next(), committed=history.end.zxid)
    assert member.snapshot(history.batches) is None
    starts(member.disk.copy(), last_of(history.batches))


def test_a_snapshot_that_reads_back_otherwise_never_gets_its_name(history: History) -> None:
    """ZOOKEEPER-3231: nothing older is deleted for the sake of a file that was never good."""
    member = Member().founded()
    member.append(history.next())
    do = member.disk._do

    def misread(op: DiskOp) -> object:
        result = do(op)
        if isinstance(op, Read) and op.file.startswith("snapshot") and isinstance(result, bytes):
            return result[:-1]
        return result

    member.disk._do = misread  # type: ignore[method-assign, assignment]

    assert isinstance(member.snapshot(history.batches), DamagedError)
    assert snapshots(member.disk) == []
    assert not member.failures
