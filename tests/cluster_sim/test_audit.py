"""What an audit remembers of a log is what it would find there again."""

from zabd.cluster_sim.audit import _ResumedScan, _Walks
from zabd.model.errors import DamagedError
from zabd.model.zxid import Zxid
from zabd.storage.epochs import Epochs, Identity
from zabd.storage.record import (
    MarkKind,
    SegmentHeader,
    SegmentScan,
    encode_mark,
    encode_segment_header,
)
from zabd.zab.log import GENESIS, GENESIS_CHAIN, chain_of, frame_record

HEADER = SegmentHeader(1, Identity(1, b"cluster"), GENESIS, 1 << 12)


def segment(groups: int) -> bytes:
    """A segment of so many groups, of one record each, and zeros."""
    data, chain = encode_segment_header(HEADER), GENESIS_CHAIN
    for number in range(1, groups + 1):
        record = frame_record(Zxid.of(1, number), 1, b"payload %d" % number, chain)
        chain = chain_of(record)
        durable = Zxid.of(1, number - 1) if number > 1 else 0
        data += encode_mark(
            MarkKind.GROUP, 1, len(data), len(record), durable, durable, Epochs(1, 1)
        )
        data += record
    return data.ljust(HEADER.size_bytes, b"\0")


def found(scan: SegmentScan) -> tuple[object, ...]:
    """All that recovery asks of a walk."""
    items = list(scan)
    return items, scan.end, scan.end_offset, scan.last_mark, scan.sealed, scan.clean


def test_a_walk_that_goes_on_finds_what_a_new_one_finds() -> None:
    """In a log that has grown, in the same again, and in one that was cut."""
    walks = _Walks()
    for groups in (2, 5, 5, 3, 4):
        data = segment(groups)
        items, *rest = found(_ResumedScan(walks, data, HEADER))
        assert [items, *rest] == [*found(SegmentScan(data, HEADER))]
        assert len(walks[1].steps) == 2 * groups


def test_a_walk_does_not_go_on_over_bytes_that_have_changed() -> None:
    """One bit anywhere in what was decoded, and it is decoded anew."""
    walks = _Walks()
    whole = segment(3)
    list(_ResumedScan(walks, whole, HEADER))
    end = walks[1].size
    for offset in range(len(encode_segment_header(HEADER)), end, 7):
        damaged = bytearray(whole)
        damaged[offset] ^= 1
        list(_ResumedScan(walks, whole, HEADER))
        scan = _ResumedScan(walks, bytes(damaged), HEADER)
        fresh = SegmentScan(bytes(damaged), HEADER)
        assert outcome(scan) == outcome(fresh)


def outcome(scan: SegmentScan) -> object:
    """What it finds, or what it says of it."""
    try:
        return found(scan)
    except DamagedError as error:
        return str(error)
