"""Putting a damaged directory right: what can be vouched for stays, the rest is set aside.

Recovery has found damage and the note that says so is durable (`distrust`). What is left then is a
start of the history that every digest and the chain vouch for: the log up to the first thing that
is not as it was written, or the newest whole snapshot, whichever reaches further. Everything else
is renamed, so that an operator still has it. The member then starts from a directory that is whole
and short, and the others have the rest.

Invariants
    W1  Nothing is deleted and nothing that was damaged is overwritten (S15).
    W2  What stays is a start of the history that was on the disk, checked to the last bit.
    W3  The epochs are kept, or replaced by the greatest that anything here knows of: less than was
        promised, perhaps, which is why the member may not vote, but never more.
    W4  Doing it again, from any of its crash points, ends in a directory that recovery accepts.

Alagappan et al., "Protocol-Aware Recovery for Consensus-Based Storage" (FAST 2018).
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from zabd.model import DamagedError, MemberId, Zxid
from zabd.storage import small_file
from zabd.storage.config import StorageConfig, Trace
from zabd.storage.disk import Disk, DiskOp, Read, Rename, Size, SyncDir
from zabd.storage.epochs import (
    EPOCHS,
    IDENTITY,
    Epochs,
    Identity,
    decode_epochs,
    decode_identity,
    encode_epochs,
    encode_identity,
)
from zabd.storage.log_changes import NOTE, Home, rewrite_segment
from zabd.storage.procedures import DiskError, Procedure, list_names, read_at, read_file
from zabd.storage.record import (
    SegmentHeader,
    SegmentScan,
    decode_segment_header,
    segment_file,
    segment_number,
)
from zabd.storage.segment import Segment, create_segment
from zabd.storage.snapshots import (
    DAMAGED,
    WINDOW_BYTES,
    SnapshotDecoder,
    SnapshotInfo,
    snapshot_file,
    snapshot_zxid,
    verify,
)
from zabd.zab.log import GENESIS, Batch, LogPosition

READ_BYTES: Final = 64 << 10
"""Where a whole segment cannot be read, it is tried in pieces of this size."""


def set_aside(disk: Disk, files: list[str]) -> Procedure[None]:
    """Rename those of the damaged files that are there out of the way, over nothing else (S15)."""
    names = yield from list_names(disk)
    ops: list[DiskOp] = []
    for file in filter(names.__contains__, files):
        target, count = file + DAMAGED, 1
        while target in names:
            count += 1
            target = f"{file}{DAMAGED}-{count}"
        ops.append(Rename(file, target))
    if ops:
        yield disk, [*ops, SyncDir()]


def salvage(
    data: Disk,
    log: Disk,
    config: StorageConfig,
    member: MemberId,
    trace: Trace,
    *,
    keep: bool,
) -> Procedure[None]:
    """Make a directory that recovery accepts, of what can be vouched for; of nothing if not `keep`.

    The note that the member is damaged is durable. Raises StorageError if the disk fails, or if
    what is there is another member's or of another format.
    """
    names = yield from list_names(data)
    if NOTE in names:  # the change that it asks for could not be carried out
        yield from set_aside(data, [NOTE])
    snapshots = [zxid for name in names if (zxid := snapshot_zxid(name))]
    found = yield from _walk(log, member, snapshots)
    identity = yield from _identity(data, names, member, found)
    epochs = yield from _epochs(data, names, found)
    home = Home(data, log, config, identity, epochs)
    end = (yield from _keep(home, names, found)) if keep else None
    if end is None:
        yield from _keep_nothing(home)
        end = GENESIS
    epochs = epochs._replace(mark=end)
    yield data, small_file.replace(EPOCHS, encode_epochs(epochs), (yield from list_names(data)))
    trace(
        "salvaged",
        {
            "level": "warning",
            "zxid": end.zxid,
            "accepted_epoch": epochs.accepted,
            "current_epoch": epochs.current,
        },
    )


# --- what the log can vouch for ------------------------------------------------------------------


class _Found(NamedTuple):
    """The part of the log that is as it was written, from its beginning on."""

    headers: list[SegmentHeader]  # of the segments in it
    last: list[Batch]  # of the last of them
    end: LogPosition
    points: dict[Zxid, LogPosition]  # where snapshots may stand, and the base
    epochs: Epochs  # the greatest that its marks name
    committed: Zxid


def _walk(log: Disk, member: MemberId, wanted: Iterable[Zxid]) -> Procedure[_Found]:
    """Read on until something is not as it was written."""
    names = yield from list_names(log)
    numbers = sorted(n for name in names if (n := segment_number(name)) is not None)
    walk = _Walk(member, wanted)
    for number in numbers:
        data = yield from _read_what_can_be(log, segment_file(number))
        header = decode_segment_header(data)
        if header is None or not walk.goes_on_with(header, number):
            break
        if not walk.take(header, data):
            break
    return walk.found()


class _Walk:
    """See `_walk`."""

    def __init__(self, member: MemberId, wanted: Iterable[Zxid]) -> None:
        self._member = member
        self._wanted = frozenset(wanted)
        self._headers: list[SegmentHeader] = []
        self._last: list[Batch] = []
        self._end = GENESIS
        self._points: dict[Zxid, LogPosition] = {}
        self._epochs = Epochs(0, 0)
        self._committed = Zxid(0)

    def goes_on_with(self, header: SegmentHeader, number: int) -> bool:
        """Whether this is the segment that comes next, and ours."""
        if header.number != number or header.owner.member != self._member:
            return False
        if not self._headers:
            self._pass(header.base)
            return True
        return number == self._headers[-1].number + 1 and header.base == self._end

    def take(self, header: SegmentHeader, data: bytes) -> bool:
        """Take what is whole of a segment; whether that is all of it, and another one follows."""
        self._headers.append(header)
        self._last = []
        scan = SegmentScan(data, header)
        try:
            for item in scan:
                if isinstance(item, Batch):
                    self._last.append(item)
                    self._pass(item.position)
                else:
                    self._committed = max(self._committed, item.committed)
                    self._note_epochs(item.accepted, item.current)
        except DamagedError:
            return False
        return scan.sealed

    def _pass(self, position: LogPosition) -> None:
        self._end = position
        self._note_epochs(position.zxid.epoch, 0)
        if position.zxid in self._wanted or not self._points:
            self._points[position.zxid] = position

    def _note_epochs(self, accepted: int, current: int) -> None:
        known = self._epochs
        self._epochs = Epochs(max(known.accepted, accepted), max(known.current, current))

    def found(self) -> _Found:
        """What there is."""
        return _Found(
            self._headers, self._last, self._end, self._points, self._epochs, self._committed
        )


def _read_what_can_be(disk: Disk, file: str) -> Procedure[bytes]:
    """The file's bytes, with zeros where the device has lost them (F14).

    Any other failure ends the start: what is whole would be taken for lost (Q1 of `procedures`).
    """
    try:
        return (yield from read_file(disk, file))
    except DamagedError:
        pass
    try:
        [size] = yield disk, [Size(file)]
    except DiskError as error:
        if not error.means_damage:
            raise
        return b""
    assert isinstance(size, int)
    pieces: list[bytes] = []
    for offset in range(0, size, READ_BYTES):
        length = min(READ_BYTES, size - offset)
        try:
            [piece] = yield disk, [Read(file, offset, length)]
        except DiskError as error:
            if not error.means_damage:
                raise
            piece = bytes(length)
        assert isinstance(piece, bytes)
        pieces.append(piece)
    return b"".join(pieces)


# --- who it is and what it promised --------------------------------------------------------------


def _identity(data: Disk, names: list[str], member: MemberId, found: _Found) -> Procedure[Identity]:
    """Who owns the directory; if that is lost, by the word of its log and its snapshots."""
    if IDENTITY in names:
        try:
            return decode_identity((yield from read_file(data, IDENTITY)))
        except DamagedError:
            yield from set_aside(data, [IDENTITY])
    clusters = [header.owner.cluster_id for header in found.headers]
    clusters += yield from _clusters_of_snapshots(data, names)
    known = tuple(dict.fromkeys(cluster for cluster in clusters if cluster is not None))
    # Of several, one was founded anew from another, and which one is the last nobody can say.
    identity = Identity(member, *known) if len(known) == 1 else Identity(member, None, known)
    yield data, small_file.replace(IDENTITY, encode_identity(identity), names)
    return identity


def _clusters_of_snapshots(data: Disk, names: list[str]) -> Procedure[list[bytes | None]]:
    clusters: list[bytes | None] = []
    for name in names:
        if snapshot_zxid(name) is not None:
            decoder = SnapshotDecoder(name)
            try:
                decoder.feed((yield from read_at(data, name, 0, WINDOW_BYTES)))
            except DamagedError:
                continue
            clusters.append(decoder.cluster_id)
    return clusters


def _epochs(data: Disk, names: list[str], found: _Found) -> Procedure[Epochs]:
    """What was promised, or the least that must have been (W3)."""
    known = found.epochs
    if EPOCHS in names:
        try:
            told = decode_epochs((yield from read_file(data, EPOCHS)))
        except DamagedError:
            yield from set_aside(data, [EPOCHS])
        else:
            known = Epochs(max(known.accepted, told.accepted), max(known.current, told.current))
    return Epochs(max(known.accepted, known.current), known.current)


# --- what stays ----------------------------------------------------------------------------------


def _keep(home: Home, names: list[str], found: _Found) -> Procedure[LogPosition | None]:
    """Keep the log and the snapshot below it, or the snapshot alone; where the history ends now."""
    newest_first = sorted((zxid for name in names if (zxid := snapshot_zxid(name))), reverse=True)
    whole: list[SnapshotInfo] = []
    for zxid in newest_first:
        info = yield from _whole(home.data, snapshot_file(zxid))
        if info is not None:
            whole.append(info)
            if _carries(found, info):
                break
    base = next((info for info in whole if _carries(found, info)), None)
    from_genesis = bool(found.headers) and found.headers[0].base == GENESIS
    newest = whole[0] if whole else None
    if (base or from_genesis) and (newest is None or newest.position.zxid <= found.end.zxid):
        yield from _keep_log(home, names, found, base)
        return found.end
    if newest is not None:
        yield from _keep_snapshot(home, names, newest)
        return newest.position
    return None


def _whole(data: Disk, file: str) -> Procedure[SnapshotInfo | None]:
    try:
        return (yield from verify(data, file))
    except DamagedError:
        return None


def _carries(found: _Found, info: SnapshotInfo) -> bool:
    """Whether the log goes on where the snapshot stands."""
    return found.points.get(info.position.zxid) == info.position


def _keep_log(
    home: Home, names: list[str], found: _Found, base: SnapshotInfo | None
) -> Procedure[None]:
    """The log up to its last whole record; its last file is written anew beside the old one."""
    yield from _set_aside_snapshots(home, names, base)
    last = found.headers[-1]
    yield from _set_aside_segments(home, last.number)
    segment = Segment(last.number, last.base, last.size_bytes)
    committed = min(found.committed, found.end.zxid)
    yield from rewrite_segment(home, segment, found.last, committed)


def _keep_snapshot(home: Home, names: list[str], info: SnapshotInfo) -> Procedure[None]:
    """A whole snapshot, and a log that begins behind it."""
    yield from _set_aside_snapshots(home, names, info)
    log_names = yield from list_names(home.log)
    numbers = [n for name in log_names if (n := segment_number(name)) is not None]
    yield from _set_aside_segments(home, 0)
    segment = Segment(max(numbers, default=0) + 1, info.position, home.config.segment_bytes)
    yield home.log, create_segment(segment, home.owner)


def _keep_nothing(home: Home) -> Procedure[None]:
    """Everything is to come from the others."""
    yield from _set_aside_snapshots(home, (yield from list_names(home.data)), None)
    yield from _set_aside_segments(home, 0)


def _set_aside_snapshots(
    home: Home, names: list[str], newest: SnapshotInfo | None
) -> Procedure[None]:
    """Every snapshot after `newest`: damaged, or of a history that the log does not go on with."""
    after = newest.position.zxid if newest is not None else Zxid(0)
    files = [name for name in names if (snapshot_zxid(name) or 0) > after]
    yield from set_aside(home.data, files)


def _set_aside_segments(home: Home, least: int) -> Procedure[None]:
    names = yield from list_names(home.log)
    files = [name for name in names if (segment_number(name) or -1) >= least]
    yield from set_aside(home.log, files)
