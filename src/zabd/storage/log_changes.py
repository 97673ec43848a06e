"""Changes to the log that no single step can make: cut its end off, or begin anew elsewhere.

Both touch several files. What is intended is first noted in a small file; then it is done; then the
note goes. Recovery that finds a note does the rest of it, as often as a crash makes it begin again,
so at every crash point the old state or the new one is what a member starts from (D9, D11, M68).

Invariants
    N1  Nothing is changed before the note is durable, and the note goes only after everything is
        durable.
    N2  Doing a noted change again, from any of its crash points, ends in the same state.
    N3  The mark in the epochs file is lowered with the log, so that it never names what was cut.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from zabd.model import Zxid
from zabd.storage import small_file
from zabd.storage.config import StorageConfig
from zabd.storage.disk import Create, Disk, DiskOp, Rename, Sync, SyncDir, Unlink, WriteAt
from zabd.storage.epochs import (
    EPOCHS,
    Epochs,
    Identity,
    encode_epochs,
    parse_position,
    position_text,
)
from zabd.storage.procedures import DamagedFileError, Procedure, list_names, read_file
from zabd.storage.record import (
    MARK_BYTES,
    SEGMENT_HEADER_BYTES,
    MarkKind,
    SegmentScan,
    decode_segment_header,
    encode_mark,
    segment_file,
    segment_number,
)
from zabd.storage.segment import Segment, create_segment
from zabd.storage.snapshots import INCOMING, snapshot_file, snapshot_zxid
from zabd.zab.log import Batch, LogPosition

NOTE: Final = "intent"
_TRUNCATE: Final = "truncate"
_RESTART: Final = "restart"


@dataclass(frozen=True, slots=True)
class Home:
    """The disks of one member and what is known about their owner."""

    data: Disk
    log: Disk
    config: StorageConfig
    owner: Identity
    epochs: Epochs


class Note(NamedTuple):
    """A change that has been decided: where the log ends after it, and in which segment."""

    change: str
    position: LogPosition
    segment: int


class Changed(NamedTuple):
    """The log after a change: its last segment, and the epochs with their new mark."""

    segment: Segment
    epochs: Epochs


def decode_note(data: bytes) -> Note:
    """What the note says; DamagedError if it is not one of ours."""
    values = small_file.decode(NOTE, data)
    return Note(values["change"], parse_position(values["position"]), int(values["segment"]))


def truncate(home: Home, position: LogPosition, segment: int) -> Procedure[Changed]:
    """Cut off everything after `position`, a point of `segment`."""
    note = Note(_TRUNCATE, position, segment)
    yield home.data, _write_note(note)
    return (yield from carry_out(home, note))


def restart(home: Home, position: LogPosition, segment: int) -> Procedure[Changed]:
    """Make the incoming snapshot at `position` current and begin the log anew behind it."""
    note = Note(_RESTART, position, segment)
    # The incoming file has to have its name for certain before a note may count on it.
    yield home.data, [SyncDir(), *_write_note(note)]
    return (yield from carry_out(home, note))


def carry_out(home: Home, note: Note) -> Procedure[Changed]:
    """Do what the note says, from wherever it was left (N2), and remove the note."""
    epochs = home.epochs._replace(mark=note.position)
    home = replace(home, epochs=epochs)
    names = yield from list_names(home.data)
    yield home.data, small_file.replace(EPOCHS, encode_epochs(epochs), names)
    if note.change == _TRUNCATE:
        segment = yield from _cut(home, note)
    else:
        segment = yield from _begin_anew(home, note)
    yield home.data, [Unlink(NOTE), SyncDir()]
    return Changed(segment, epochs)


def rewrite_segment(
    home: Home, segment: Segment, batches: list[Batch], committed: int
) -> Procedure[Segment]:
    """Put a fresh, durable copy with just these records in the segment's place (S8, S10)."""
    end = batches[-1].last if batches else segment.base.zxid
    records = [batch.record for batch in batches]
    length = sum(map(len, records))
    after = SEGMENT_HEADER_BYTES + MARK_BYTES + length
    fresh = Segment(
        segment.number,
        segment.base,
        max(segment.size_bytes, home.config.segment_bytes, after + 3 * MARK_BYTES),
        after + MARK_BYTES,
    )
    offset = SEGMENT_HEADER_BYTES + MARK_BYTES
    for batch in batches:
        offset += len(batch.record)
        fresh.note(batch.position, offset)
    mark = partial(encode_mark, MarkKind.GROUP, fresh.number, epochs=home.epochs)
    base = fresh.base.zxid
    # Durable is all before the base; committed may be less: a tail can lie across segments.
    group = mark(
        offset=SEGMENT_HEADER_BYTES, length=length, durable=base, committed=min(base, committed)
    )
    # The last mark vouches for all of the copy, which gets its name only once it is durable.
    last = mark(offset=after, length=0, durable=end, committed=committed)
    temporary = fresh.file + small_file.TEMPORARY
    names = yield from list_names(home.log)
    ops: list[DiskOp] = [
        *(Unlink(name) for name in names if name == temporary),
        Create(temporary, fresh.size_bytes),
        WriteAt(temporary, 0, [fresh.header(home.owner), group, *records, last]),
        Sync(temporary),
        Rename(temporary, fresh.file),
        SyncDir(),
    ]
    yield home.log, ops
    return fresh


def _cut(home: Home, note: Note) -> Procedure[Segment]:
    file = segment_file(note.segment)
    data = yield from read_file(home.log, file)
    header = decode_segment_header(data)
    if header is None:
        raise DamagedFileError(file, 0, Zxid(0), "the segment to be cut has no header")
    batches, committed = _up_to(SegmentScan(data, header), note.position)
    segment = Segment(header.number, header.base, len(data))
    fresh = yield from rewrite_segment(home, segment, batches, committed)
    names = yield from list_names(home.log)
    later = [name for name in names if (segment_number(name) or 0) > note.segment]
    yield home.log, [*(Unlink(name) for name in later), SyncDir()]
    return fresh


def _up_to(scan: SegmentScan, position: LogPosition) -> tuple[list[Batch], int]:
    """The batches up to `position`, and what is known there to be committed."""
    batches: list[Batch] = []
    committed = 0
    items = iter(scan)
    while scan.end.zxid < position.zxid and (item := next(items, None)) is not None:
        if isinstance(item, Batch):
            batches.append(item)
        else:
            committed = max(committed, item.committed)
    if scan.end != position:
        what = f"no record ends at {position.zxid!r}, where the log was to be cut"
        raise DamagedFileError(scan.file, scan.end_offset, scan.end.zxid, what)
    return batches, committed


def _begin_anew(home: Home, note: Note) -> Procedure[Segment]:
    file = snapshot_file(note.position.zxid)
    names = yield from list_names(home.data)
    # A snapshot above the new end stands for a history that this log no longer continues.
    ops: list[DiskOp] = [
        Unlink(name) for name in names if (snapshot_zxid(name) or 0) > note.position.zxid
    ]
    if file + INCOMING in names:
        ops.append(Rename(file + INCOMING, file))
    yield home.data, [*ops, SyncDir()]
    segments = [name for name in (yield from list_names(home.log)) if segment_number(name)]
    yield home.log, [*(Unlink(name) for name in segments), SyncDir()]
    segment = Segment(note.segment, note.position, home.config.segment_bytes)
    yield home.log, create_segment(segment, home.owner)
    return segment


def _write_note(note: Note) -> list[DiskOp]:
    values = {
        "change": note.change,
        "position": position_text(note.position),
        "segment": str(note.segment),
    }
    return small_file.replace(NOTE, small_file.encode(NOTE, values))
