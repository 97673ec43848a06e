"""Damage swept over every place of a small log: a start refuses, or it finds everything (G9)."""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.crash_disk import CrashDisk, Inode
from tests.storage.members import History, Member, last_of, zxids

from zabd.model import DamagedError, StorageError, Zxid
from zabd.storage import StorageConfig
from zabd.storage.epochs import Epochs, Identity
from zabd.storage.record import (
    MARK_BYTES,
    SEGMENT_HEADER_BYTES,
    Mark,
    MarkKind,
    SegmentHeader,
    SegmentScan,
    decode_mark,
    decode_segment_header,
    encode_mark,
    encode_segment_header,
    segment_file,
    segment_number,
)
from zabd.storage.snapshots import snapshot_file, snapshot_zxid
from zabd.zab.log import GENESIS, Batch

EPOCHS = Epochs(1, 1)
OWNER = Identity(1, None)
CONFIG = StorageConfig(segment_bytes=2000, space_floor_bytes=0)


def stopped_member() -> tuple[CrashDisk, list[int]]:
    """The disk of a member that stopped in order, with three segments, and its history."""
    history, member = History(), Member(config=CONFIG).founded()
    for count in (1, 1, 3, 1, 2, 5, 1, 1, 4, 1, 1, 1, 2, 1):
        member.append(*(history.next(size_bytes=20 + 7 * count) for _ in range(count)))
    member.close()
    return member.disk.copy(), last_of(history.batches)


DISK, HISTORY = stopped_member()
FILES = sorted(name for name in DISK.files if name.startswith("log."))


def damaged_logs(step: int, start: int) -> Iterator[tuple[str, bytes]]:
    """Every byte flipped, every sector zeroed or stale, the file cut everywhere."""
    for file in FILES:
        data = bytes(DISK.files[file].data)
        for at in range(start, len(data), step):
            yield file, data[:at] + bytes([data[at] ^ (1 << (at % 8))]) + data[at + 1 :]
            yield file, data[:at]
            yield file, data[:at] + bytes(len(data) - at)
        for at in range(0, len(data), 64):
            yield file, data[:at] + bytes(64) + data[at + 64 :]
            yield file, data[:at] + data[256:320] + data[at + 64 :]


@pytest.mark.parametrize("start", range(4))
def test_no_damage_to_a_log_is_ever_a_silent_loss(start: int) -> None:
    """The control, ZooKeeper 3.8.0, loses records silently for 7 of 10 kinds of damage."""
    for file, data in damaged_logs(step=44, start=start * 11):
        disk = DISK.copy()
        disk.files[file] = disk.durable_names[file] = Inode(data)
        member = Member(disk, CONFIG)
        before = disk.content()
        result = member.try_recover()
        if isinstance(result, StorageError):
            assert isinstance(result, DamagedError)
            assert disk.content() == before
        else:
            assert result is not None
            assert zxids(result, member.tree) == HISTORY


def test_the_sweep_refuses_most_of_what_it_damages() -> None:
    """It can fail: it does damage records, and not only the space behind them."""
    refused = 0
    for file, data in damaged_logs(step=97, start=0):
        disk = DISK.copy()
        disk.files[file] = disk.durable_names[file] = Inode(data)
        refused += isinstance(Member(disk, CONFIG).try_recover(), DamagedError)

    assert refused > 100


def segment(sizes: list[list[int]], *, reserved: int = 200) -> tuple[bytes, list[Batch]]:
    """The bytes of a segment with these groups of records."""
    history = History()
    data = bytearray(encode_segment_header(SegmentHeader(7, OWNER, GENESIS, 0)))
    for group in sizes:
        durable = history.end.zxid
        records = b"".join(history.next(size_bytes=size).record for size in group)
        offset = len(data)
        data += encode_mark(MarkKind.GROUP, 7, offset, len(records), durable, durable, EPOCHS)
        data += records
    return bytes(data) + bytes(reserved), history.batches


def scan(data: bytes) -> SegmentScan:
    """A walk over the bytes of such a segment."""
    return SegmentScan(data, SegmentHeader(7, OWNER, GENESIS, 0))


GROUPS = st.lists(st.lists(st.integers(0, 90), min_size=1, max_size=4), min_size=1, max_size=5)


@given(GROUPS)
def test_a_scan_gives_back_what_was_written(sizes: list[list[int]]) -> None:
    """Records in order, nothing torn, and the end where the zeros begin."""
    data, batches = segment(sizes)
    walk = scan(data)

    items = list(walk)

    assert [item for item in items if isinstance(item, Batch)] == batches
    assert sum(isinstance(item, Mark) for item in items) == len(sizes)
    assert walk.end == batches[-1].position
    assert not walk.junk_follows
    walk.check_end()


@given(GROUPS, st.data())
def test_a_torn_last_group_is_never_taken_for_corruption(
    sizes: list[list[int]], choice: st.DataObject
) -> None:
    """R5: whatever subset of its sectors a write leaves, the groups before it are all there."""
    data, batches = segment(sizes)
    before, _ = segment(sizes[:-1], reserved=0)
    torn = bytearray(data)
    for at in range(len(before), len(data), 16):
        if choice.draw(st.booleans()):
            torn[at : at + 16] = bytes(len(torn[at : at + 16]))
    walk = scan(bytes(torn))

    found = [item for item in walk if isinstance(item, Batch)]

    walk.check_end()
    assert found == batches[: len(found)]
    assert len(found) >= sum(map(len, sizes[:-1]))


@given(GROUPS, st.data())
def test_a_flip_before_the_last_group_is_refused_or_loses_nothing(
    sizes: list[list[int]], choice: st.DataObject
) -> None:
    """R4: a later group proves that the one before it was durable."""
    data, batches = segment([*sizes, [10]])
    last, _ = segment(sizes, reserved=0)
    at = choice.draw(st.integers(SEGMENT_HEADER_BYTES, len(last) - 1))
    walk = scan(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])

    try:
        found = [item for item in walk if isinstance(item, Batch)]
        walk.check_end()
    except DamagedError:
        return
    assert found == batches


@given(st.binary(max_size=600))
def test_arbitrary_bytes_are_scanned_without_any_other_error(junk: bytes) -> None:
    """F5: nothing in the reserved space may break a start."""
    data, batches = segment([[5]], reserved=0)
    walk = scan(data + junk)

    assert [item for item in walk if isinstance(item, Batch)] == batches
    walk.check_end()


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_header_and_no_mark(junk: bytes) -> None:
    """R1: least of all zeros."""
    assert decode_segment_header(junk) is None
    assert decode_mark(junk, 0, 7) is None
    assert decode_segment_header(bytes(len(junk))) is None


@given(
    st.integers(1, 2**40),
    st.integers(0, 2**63),
    st.integers(0, 2**63),
    st.one_of(st.none(), st.binary(min_size=1, max_size=32)),
)
def test_headers_and_marks_round_trip(
    number: int, durable: int, committed: int, cluster_id: bytes | None
) -> None:
    """What is read is what was written, but for a commit that claims more than is durable."""
    header = SegmentHeader(number, Identity(3, cluster_id), GENESIS, 4096)
    mark = encode_mark(MarkKind.CLEAN, number, 5, 0, durable, committed, Epochs(9, 8))

    assert decode_segment_header(encode_segment_header(header)) == header
    assert decode_mark(b"12345" + mark, 5, number) == Mark(
        MarkKind.CLEAN, number, 5, 0, Zxid(durable), Zxid(min(durable, committed)), 9, 8
    )
    assert decode_mark(mark, 0, number) is None
    assert decode_mark(b"12345" + mark, 5, number + 1) is None
    assert len(mark) == MARK_BYTES


def test_names_are_taken_literally() -> None:
    """A copy that somebody put beside the files is not one of them."""
    assert segment_number(segment_file(12)) == 12
    assert snapshot_zxid(snapshot_file(0x300000001)) == 0x300000001
    for name in ("log.1", "log.00000001.tmp", "log.0000000x", "log", "snapshot", "epochs"):
        assert segment_number(name) is None
    for name in ("snapshot.1", "snapshot.0000000300000001.damaged", "snapshot.", "log.00000001"):
        assert snapshot_zxid(name) is None


def test_stale_blocks_of_the_same_log_are_found() -> None:
    """R3: a valid mark or record in a wrong place is not believed."""
    rng = Random(7)
    for _ in range(100):
        disk = DISK.copy()
        file = rng.choice(FILES)
        data = bytearray(disk.files[file].data)
        source, target = rng.randrange(len(data) - 300), rng.randrange(len(data) - 300)
        data[target : target + 300] = data[source : source + 300]
        disk.files[file] = disk.durable_names[file] = Inode(bytes(data))
        member = Member(disk, CONFIG)
        result = member.try_recover()
        if not isinstance(result, StorageError):
            assert result is not None
            assert zxids(result, member.tree) == HISTORY
