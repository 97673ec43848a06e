"""One file of the log, as a running member knows it: where it begins and ends, what lies where."""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from zabd.storage.disk import Create, Disk, DiskOp, Sync, SyncDir, WriteAt
from zabd.storage.epochs import Identity
from zabd.storage.procedures import DamagedFileError, Procedure, read_at
from zabd.storage.record import (
    MARK_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_mark,
    encode_segment_header,
    segment_file,
)
from zabd.zab.log import HEADER_SIZE, LogPosition, RecordError, parse_header, verify_record

INDEX_BYTES: Final = 256 << 10
"""A look-up reads at most about this much before it meets its record."""

WINDOW_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Segment:
    """One file of the log, as far as it is durable."""

    number: int
    base: LogPosition
    size_bytes: int
    end_offset: int = SEGMENT_HEADER_BYTES
    index: list[tuple[LogPosition, int]] = field(default_factory=list)
    """Now and then, a point of the history and the offset where what comes after it begins."""

    @property
    def file(self) -> str:
        """Its name in the log's directory."""
        return segment_file(self.number)

    def header(self, owner: Identity) -> bytes:
        """The bytes at its beginning."""
        return encode_segment_header(SegmentHeader(self.number, owner, self.base, self.size_bytes))

    def note(self, position: LogPosition, offset: int) -> None:
        """Remember that what comes after `position` begins at `offset`, if it is time for that."""
        if offset - (self.index[-1][1] if self.index else 0) >= INDEX_BYTES:
            self.index.append((position, offset))

    def start_before(self, zxid: int) -> tuple[LogPosition, int]:
        """A point not after `zxid`, as near as the index has one, and where to read on from it."""
        at = bisect_right(self.index, zxid, key=lambda entry: entry[0].zxid)
        return self.index[at - 1] if at else (self.base, SEGMENT_HEADER_BYTES)


def create_segment(segment: Segment, owner: Identity) -> list[DiskOp]:
    """The operations after which the empty segment and its name are durable (S2)."""
    return [
        Create(segment.file, segment.size_bytes),
        WriteAt(segment.file, 0, segment.header(owner)),
        Sync(segment.file),
        SyncDir(),
    ]


class Window:
    """A walk over the records of one segment, read a piece at a time, up to its durable end."""

    def __init__(self, disk: Disk, segment: Segment, offset: int) -> None:
        self._disk = disk
        self._file = segment.file
        self._number = segment.number
        self._end = segment.end_offset
        self.offset = offset
        self._origin = offset
        self._data = b""

    def next_record(self) -> Procedure[bytes | None]:
        """The next record, None at the end; DamagedError if anything else is there."""
        while self.offset < self._end:
            yield from self._need(MARK_BYTES + max(HEADER_SIZE, MARK_BYTES))
            at = self.offset - self._origin
            if not self._is_mark(at) and (self._begins(at) or not self._goes_on(at + MARK_BYTES)):
                return (yield from self._record())
            # Also a mark that has rotted is passed over, as recovery has done: what it vouched for
            # is here, and a later mark says so.
            self.offset += MARK_BYTES
        return None

    def _is_mark(self, at: int) -> bool:
        return decode_mark(self._data, at, self._number, self._origin) is not None

    def _goes_on(self, at: int) -> bool:
        """Whether a record or a mark begins there."""
        return self._begins(at) or self._is_mark(at)

    def _begins(self, at: int) -> bool:
        """Whether a record begins at that place of what is in memory."""
        try:
            parse_header(self._data, at)
        except RecordError:
            return False
        return True

    def _record(self) -> Procedure[bytes]:
        try:
            header = parse_header(self._data, self.offset - self._origin)
            yield from self._need(HEADER_SIZE + header.length)
            at = self.offset - self._origin
            record = self._data[at : at + HEADER_SIZE + header.length]
            verify_record(record)
        except RecordError as error:
            raise DamagedFileError(self._file, self.offset, None, str(error)) from error
        self.offset += len(record)
        return record

    def _need(self, size_bytes: int) -> Procedure[None]:
        """Have `size_bytes` from the offset on in memory, unless the segment ends before."""
        size_bytes = min(size_bytes, self._end - self.offset)
        if len(self._data) - (self.offset - self._origin) >= size_bytes:
            return
        wanted = min(max(size_bytes, WINDOW_BYTES), self._end - self.offset)
        self._data = yield from read_at(self._disk, self._file, self.offset, wanted)
        self._origin = self.offset
