"""A log segment's bytes: its header, the leader's records, and the member's own marks beside them.

    segment  = header, then items, then zeros up to the reserved size
    item     = record (zab.log: framed by the leader, the same on every member)
             | mark   (local: what this member knew when it wrote here)

Each write to the log is one *group*: a mark, which names the group's length and what was durable
and committed before it, and the records. A SEAL mark says that the next segment exists, a CLEAN
mark that the member stopped in order.

Invariants
    R1  No field lies outside a digest; a length is believed only after its header's digest (S4).
        Zeros are never a valid header, record or mark.
    R2  Records chain: each names the one before, across segments, and zxids follow (S5).
    R3  A mark names its segment and its own offset, so a misplaced block does not look like one.
    R4  A group is written only after the one before it is durable: a valid mark behind bytes that
        are no item proves that they are damaged, not torn.
    R5  *Torn* is what a crash can leave: bad bytes in the last segment, no mark anywhere behind
        them, no record after the torn group. Everything else is *corrupt* (S6, S7).

Alagappan et al., "Protocol-Aware Recovery for Consensus-Based Storage" (FAST 2018).
"""

from collections.abc import Iterator
from enum import IntEnum
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from zabd.model import DamagedError, Epoch, StorageError, Zxid
from zabd.storage.epochs import Epochs, Identity
from zabd.storage.procedures import DamagedFileError
from zabd.zab.log import (
    HEADER_SIZE,
    RECORD_MAGIC,
    Batch,
    LogPosition,
    RecordError,
    RecordHeader,
    follows,
    parse_header,
    payload_digest,
)

FORMAT: Final = 1
DIGEST_BYTES: Final = 8
CLUSTER_ID_BYTES_MAX: Final = 32
_SEGMENT_MAGIC: Final = b"ZABDLOG\n"
_SEGMENT: Final = Struct(f">8sHQQQQ8sB{CLUSTER_ID_BYTES_MAX}s")
SEGMENT_HEADER_BYTES: Final = _SEGMENT.size + DIGEST_BYTES

_MARK_MAGIC: Final = b"ZMK1"
_MARK: Final = Struct(">4sBQQIQQII")
MARK_BYTES: Final = _MARK.size + DIGEST_BYTES


class SegmentHeader(NamedTuple):
    """Whose segment it is, which, how large its file, and where in the history it begins."""

    number: int
    owner: Identity
    base: LogPosition
    size_bytes: int


class MarkKind(IntEnum):
    """Why a mark was written."""

    GROUP = 0
    SEAL = 1
    CLEAN = 2


class Mark(NamedTuple):
    """What the member knew when it wrote at this place."""

    kind: MarkKind
    segment: int
    offset: int
    length: int  # of the records in its group
    durable: Zxid
    committed: Zxid  # never above `durable`
    accepted: Epoch
    current: Epoch


def segment_file(number: int) -> str:
    """The name of a segment's file."""
    return f"log.{number:08d}"


def segment_number(name: str) -> int | None:
    """The inverse of `segment_file`; None for any other name."""
    prefix, _, digits = name.partition(".")
    number = int(digits) if prefix == "log" and digits.isdecimal() else None
    return number if number is not None and segment_file(number) == name else None


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The first bytes of a segment."""
    cluster_id = header.owner.cluster_id or b""
    assert len(cluster_id) <= CLUSTER_ID_BYTES_MAX, "a cluster id fits its field"
    body = _SEGMENT.pack(
        _SEGMENT_MAGIC,
        FORMAT,
        header.owner.member,
        header.number,
        header.size_bytes,
        header.base.zxid,
        header.base.chain,
        len(cluster_id),
        cluster_id,
    )
    return body + _digest(body)


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """The header at the beginning of `data`, None if none is there in full.

    Raises StorageError for a segment of a later format.
    """
    body = data[: _SEGMENT.size]
    if not body.startswith(_SEGMENT_MAGIC) or len(data) < SEGMENT_HEADER_BYTES:
        return None
    if _digest(body) != data[_SEGMENT.size : SEGMENT_HEADER_BYTES]:
        return None
    _, version, member, number, size_bytes, zxid, chain, size, cluster_id = _SEGMENT.unpack(body)
    if version != FORMAT:
        raise StorageError(
            f"the log has format {version} and this zabd reads {FORMAT}; "
            "start the member with the version of zabd that wrote its directory"
        )
    owner = Identity(member, cluster_id[:size] if size else None)
    return SegmentHeader(number, owner, LogPosition(Zxid(zxid), chain), size_bytes)


def encode_mark(
    kind: MarkKind,
    segment: int,
    offset: int,
    length: int,
    durable: int,
    committed: int,
    epochs: Epochs,
) -> bytes:
    """The bytes of a mark that will stand at `offset` of `segment`."""
    body = _MARK.pack(
        _MARK_MAGIC,
        kind,
        segment,
        offset,
        length,
        durable,
        min(committed, durable),
        epochs.accepted,
        epochs.current,
    )
    return body + blake2b(body, digest_size=DIGEST_BYTES).digest()


def decode_mark(data: bytes, offset: int, segment: int, origin: int = 0) -> Mark | None:
    """The mark of this `segment` that stands at `offset` of `data`, or None (R3).

    `origin` is where in the segment `data` begins.
    """
    if not data.startswith(_MARK_MAGIC, offset):
        return None
    digested = offset + _MARK.size
    body = data[offset:digested]
    if len(body) < _MARK.size:
        return None
    if _digest(body) != data[digested : offset + MARK_BYTES]:
        return None
    _, kind, number, at, length, durable, committed, accepted, current = _MARK.unpack(body)
    if (number, at) != (segment, origin + offset):
        return None
    return Mark(
        MarkKind(kind), number, at, length, Zxid(durable), Zxid(committed), accepted, current
    )


class SegmentScan:
    """One walk over a segment's bytes: what is there, where it ends, and whether that may be.

    Iterate to the end; then `end` is the history's end, `end_offset` where its items end, and
    `check_end` tells torn from corrupt.
    """

    def __init__(self, data: bytes, header: SegmentHeader) -> None:
        self._data = data
        self.number = header.number
        self.file = segment_file(header.number)
        self.base = header.base
        self.end = header.base
        self.end_offset = SEGMENT_HEADER_BYTES
        self.last_mark: Mark | None = None  # if no record follows it
        self._group_end = SEGMENT_HEADER_BYTES

    def __iter__(self) -> Iterator[Mark | Batch]:
        while True:
            item = (
                self._mark()
                or self._record()
                or self._record_after_a_lost_mark()
                or self._mark_after_a_lost_mark()
            )
            if item is None:
                return
            yield item

    @property
    def sealed(self) -> bool:
        """Whether the segment says that another one follows."""
        return self.last_mark is not None and self.last_mark.kind is MarkKind.SEAL

    @property
    def clean(self) -> bool:
        """Whether the member stopped in order, with nothing written since."""
        return (
            self.last_mark is not None
            and self.last_mark.kind is MarkKind.CLEAN
            and not self.junk_follows
        )

    @property
    def junk_follows(self) -> bool:
        """Whether anything but zeros lies behind the last item."""
        rest = len(self._data) - self.end_offset
        return self._data.count(0, self.end_offset) != rest

    def check_end(self) -> None:
        """Raise DamagedError unless a crash can have left what lies behind the last item (R5)."""
        self._check_no_mark_proves_more()
        self._check_no_record_follows_the_torn_group()

    def _mark(self) -> Mark | None:
        mark = decode_mark(self._data, self.end_offset, self.number)
        if mark is None:
            return None
        if mark.durable > self.end.zxid:
            raise self._damaged(
                f"records up to {mark.durable!r} were durable and are missing"
            )  # R4
        self.last_mark = mark
        self.end_offset += MARK_BYTES
        self._group_end = self.end_offset + mark.length
        return mark

    def _record(self, skip: int = 0) -> Batch | None:
        start = self.end_offset + skip
        header = _whole_record_at(self._data, start)
        if header is None:
            return None
        first, count, length, previous, _ = header
        if previous != self.end.chain or not follows(first, self.end.zxid):
            if skip:
                return None
            # No crash puts an undamaged record in a wrong place (R2).
            raise self._damaged(f"the record of {first!r} does not follow the one before")
        self.end_offset = start + HEADER_SIZE + length
        batch = Batch(first, count, self._data[start : self.end_offset])
        self.end = batch.position
        self.last_mark = None
        return batch

    def _record_after_a_lost_mark(self) -> Batch | None:
        if self.end_offset < self._group_end:
            return None
        # Of a group whose first bytes did not reach the disk, what did is kept: it proves itself.
        # If that group was durable, a later mark says so and `_check_no_mark_proves_more` is not
        # fooled, because nothing is missing then but the mark.
        batch = self._record(skip=MARK_BYTES)
        if batch is not None:
            self._group_end = max(self._group_end, self.end_offset)
        return batch

    def _mark_after_a_lost_mark(self) -> Mark | None:
        """One that stood alone is lost; the next one knows all that it knew, and maybe more."""
        after = self.end_offset + MARK_BYTES
        if self.end_offset < self._group_end or not decode_mark(self._data, after, self.number):
            return None
        self.end_offset = after
        return self._mark()

    def _check_no_mark_proves_more(self) -> None:
        for offset in _hits(self._data, _MARK_MAGIC, self.end_offset):
            mark = decode_mark(self._data, offset, self.number)
            if mark is None:
                continue
            if mark.durable > self.end.zxid:
                raise self._damaged(f"records up to {mark.durable!r} were durable, but not found")
            # It was written when all before it was durable (R4).
            raise self._damaged(f"what stood before the mark at {offset} was durable")

    def _check_no_record_follows_the_torn_group(self) -> None:
        if self.end_offset >= self._group_end:
            return  # the torn group's own mark is lost: what follows may be its records
        for offset in _hits(self._data, RECORD_MAGIC, self._group_end):
            first = _first_zxid_at(self._data, offset)
            if first is not None and first > self.end.zxid:
                raise self._damaged(f"a record of {first!r} follows bytes that are not a record")

    def _damaged(self, what: str) -> DamagedError:
        return DamagedFileError(self.file, self.end_offset, self.end.zxid, what)


def _whole_record_at(data: bytes, offset: int) -> RecordHeader | None:
    """The header of the record at `offset`, if all of the record is there and undamaged."""
    if not data.startswith(RECORD_MAGIC, offset):
        return None
    try:
        header = parse_header(data, offset)
    except RecordError:
        return None
    start = offset + HEADER_SIZE
    payload = data[start : start + header.length]
    if len(payload) < header.length or payload_digest(payload) != header.payload_digest:
        return None
    return header


def _first_zxid_at(data: bytes, offset: int) -> Zxid | None:
    try:
        return parse_header(data, offset).first
    except RecordError:
        return None


def _hits(data: bytes, magic: bytes, start: int) -> Iterator[int]:
    offset = data.find(magic, start)
    while offset >= 0:
        yield offset
        offset = data.find(magic, offset + 1)


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=DIGEST_BYTES).digest()
