"""From a directory to a member's state: what it promised, its tree, and the tail of its log.

Everything is read and checked before anything is changed; a refusal leaves every byte as it was.
Only records up to the durable committed mark go to the tree: the rest is a tail that the ensemble
has yet to decide about, so elections and truncation never have to take a change back.

Invariants
    V1  Recovery never drops a record that it cannot prove to be torn (D8, S6).
    V2  What it hands out is durable first: the directories are synced before they are believed, and
        after an unclean stop the last segment is rewritten, because the page cache may show names
        and bytes that the disk never got (S10).
    V3  A crash at any point of recovery leads to the same result the next time (S23).
    V4  What the log, the snapshots and the epochs file say about each other agrees: each point that
        one of them names is a point of the log, if the log reaches back that far (S7).
"""

from collections import deque
from dataclasses import replace
from typing import NamedTuple, Protocol

from zabd.model import DamagedError, Epoch, MemberId, Zxid
from zabd.storage import small_file
from zabd.storage.config import OnDamage, StorageConfig, Trace
from zabd.storage.disk import Disk, DiskOp, Size, SyncDir, Unlink
from zabd.storage.distrust import (
    Distrust,
    Extent,
    read_distrust,
    remove_distrust,
    write_distrust,
)
from zabd.storage.epochs import (
    EPOCHS,
    IDENTITY,
    Epochs,
    Identity,
    check_identity,
    decode_epochs,
    decode_identity,
    encode_epochs,
    encode_identity,
)
from zabd.storage.log_changes import NOTE, Home, carry_out, decode_note, rewrite_segment
from zabd.storage.procedures import DamagedFileError, Procedure, list_names, read_at, read_file
from zabd.storage.record import (
    SEGMENT_HEADER_BYTES,
    Mark,
    SegmentHeader,
    SegmentScan,
    decode_segment_header,
    segment_file,
    segment_number,
)
from zabd.storage.salvage import salvage, set_aside
from zabd.storage.segment import Segment
from zabd.storage.snapshots import (
    INCOMING,
    WINDOW_BYTES,
    SnapshotDecoder,
    SnapshotInfo,
    snapshot_file,
    snapshot_zxid,
)
from zabd.zab.log import GENESIS, RECORD_MAGIC, Batch, LogPosition


class RecoverySink(Protocol):
    """Takes a member's state as it is read: a snapshot, then the records after it.

    A snapshot may turn out to be damaged half way. Then `begin_snapshot` comes again for an older
    one, or the records come at once: only a snapshot that has ended counts, and without one the
    records begin at an empty tree. DamagedError from `snapshot_chunk` or `end_snapshot` says that
    the content is not a tree.
    """

    def begin_anew(self) -> None:
        """Forget everything: what was damaged has been set aside, and reading begins again."""

    def begin_snapshot(self, position: LogPosition) -> None:
        """Forget everything; a snapshot at `position` follows."""

    def snapshot_chunk(self, chunk: bytes) -> None:
        """The next piece of its content."""

    def end_snapshot(self) -> None:
        """That was all of it."""

    def record(self, batch: Batch) -> None:
        """A committed batch, in order."""


class Recovered(NamedTuple):
    """What a member starts from."""

    accepted_epoch: Epoch
    current_epoch: Epoch
    cluster_id: bytes | None
    delivered: LogPosition
    """Where the tree stands."""
    tail: tuple[Batch, ...]
    """Durable, but not known to be committed."""
    empty: bool
    """No record and no snapshot: the history is at its beginning."""
    damaged: str | None = None
    """Why the member cannot vouch for more than this, if it cannot; then it may not vote (S20)."""


class Restored(NamedTuple):
    """What storage goes on from, beside what it tells the member."""

    home: Home
    segments: list[Segment]
    end: LogPosition
    committed: Zxid
    snapshot: SnapshotInfo | None
    recovered: Recovered


def recover(
    data: Disk,
    log: Disk,
    config: StorageConfig,
    sink: RecoverySink,
    member: MemberId,
    cluster_id: bytes | None,
    trace: Trace,
) -> Procedure[Restored]:
    """The state of the directory; StorageError or DamagedError if a member may not start on it."""
    yield from _settle_names(data, log)
    start = _Start(data, log, config, sink, member, cluster_id, trace)
    if config.on_damage is OnDamage.REFUSE:
        yield from start.require_trust()
        return (yield from start.restore())
    distrust = yield from start.salvage_if_distrusted()
    try:
        restored = yield from start.restore()
    except DamagedError as error:
        distrust = yield from start.distrust(Extent.PREFIX, str(error))
        restored = yield from start.restore_what_is_left()
    if distrust is not None and config.on_damage is OnDamage.GIVE_UP:
        yield data, remove_distrust()
        given_up = {"level": "warning", "zxid": restored.end.zxid, "lost": distrust.why}
        trace("given_up", given_up)
        distrust = None
    if distrust is not None:
        recovered = restored.recovered._replace(damaged=distrust.why)
        restored = restored._replace(recovered=recovered)
    return restored


def _settle_names(data: Disk, log: Disk) -> Procedure[None]:
    """Make what the directories show durable, before anything is built on it (V2).

    A process that was killed between a rename and the sync of its directory leaves a name in the
    page cache only: of epochs that would then be promised again, of a snapshot for which the log
    would then be deleted.
    """
    yield data, [SyncDir()]
    if log is not data:
        yield log, [SyncDir()]


class _Start:
    """One start of one member: what it reads, and what it does about damage."""

    def __init__(
        self,
        data: Disk,
        log: Disk,
        config: StorageConfig,
        sink: RecoverySink,
        member: MemberId,
        cluster_id: bytes | None,
        trace: Trace,
    ) -> None:
        self._data = data
        self._log = log
        self._config = config
        self._sink = sink
        self._member = member
        self._cluster_id = cluster_id
        self._trace = trace

    def restore(self) -> Procedure[Restored]:
        """Read and check everything, then settle the end of the log."""
        sink, trace = self._sink, self._trace
        home = yield from _open_home(
            self._data, self._log, self._config, self._member, self._cluster_id
        )
        home = yield from _finish_noted_change(home, trace)
        headers, hollow = yield from _read_headers(home)
        snapshot, aside = yield from _load_snapshot(home, sink, headers, trace)
        replay = _Replay(home, sink, snapshot.position if snapshot else GENESIS)
        yield from replay.read(headers)
        yield from set_aside(home.data, aside)
        yield from _clear_away(home, hollow)
        segments = yield from _settle_tail(home, replay, trace)
        if replay.blank:
            # Only now: while the segment before it may be sealed, it is not missing (V3).
            yield home.log, [*(Unlink(file) for file in replay.blank), SyncDir()]
        home = yield from write_mark(home, replay.end)
        recovered = Recovered(
            home.epochs.accepted,
            home.epochs.current,
            home.owner.cluster_id,
            replay.delivered,
            tuple(replay.pending),
            empty=replay.end == GENESIS,
        )
        return Restored(home, segments, replay.end, replay.committed, snapshot, recovered)

    # --- damage ---------------------------------------------------------------------------------

    def require_trust(self) -> Procedure[None]:
        """Nobody else could repair this member: it does not start on what it knows to be short."""
        names = yield from list_names(self._data)
        distrust = yield from read_distrust(self._data, names)
        if distrust is not None:
            raise DamagedError(
                f"this directory was found damaged before ({distrust.why}); restore it from a copy,"
                " or start once with --give-up-damaged to go on with what is left and lose the rest"
            )

    def salvage_if_distrusted(self) -> Procedure[Distrust | None]:
        """The note of an earlier incarnation; what it says not to believe is set aside."""
        names = yield from list_names(self._data)
        distrust = yield from read_distrust(self._data, names)
        gives_up = self._config.on_damage is OnDamage.GIVE_UP
        if distrust is not None and distrust.extent is Extent.NOTHING and not gives_up:
            yield from self._salvage(keep=False)
            return (yield from self.distrust(Extent.PREFIX, distrust.why))
        return distrust

    def distrust(self, extent: Extent, why: str) -> Procedure[Distrust]:
        """Make it known, durably, that there is less here than there was."""
        distrust = Distrust(extent, why)
        names = yield from list_names(self._data)
        yield self._data, write_distrust(distrust, names)
        self._trace("damaged", {"level": "error", "why": why})
        return distrust

    def restore_what_is_left(self) -> Procedure[Restored]:
        """Set aside what is damaged and start on the rest; on nothing, if that cannot be read."""
        yield from self._salvage(keep=True)
        try:
            self._sink.begin_anew()
            return (yield from self.restore())
        except DamagedError as error:
            self._trace("damaged", {"level": "error", "why": str(error)})
        yield from self._salvage(keep=False)
        self._sink.begin_anew()
        return (yield from self.restore())

    def _salvage(self, *, keep: bool) -> Procedure[None]:
        return salvage(self._data, self._log, self._config, self._member, self._trace, keep=keep)


# --- who owns the directory, and what was promised -----------------------------------------------


def _open_home(
    data: Disk, log: Disk, config: StorageConfig, member: MemberId, cluster_id: bytes | None
) -> Procedure[Home]:
    names = yield from list_names(data)
    in_use = _has_history(names) or _has_history((yield from list_names(log)))
    owner, epochs = Identity(member, None), Epochs(0, 0)
    if IDENTITY in names:
        owner = decode_identity((yield from read_file(data, IDENTITY)))
        check_identity(owner, member, cluster_id)
    if EPOCHS in names:
        epochs = decode_epochs((yield from read_file(data, EPOCHS)))
    elif in_use or IDENTITY in names:
        raise _missing(EPOCHS)
    if IDENTITY not in names:
        if in_use or epochs != Epochs(0, 0):
            raise _missing(IDENTITY)
        # A new directory, or one whose making was cut short: the identity comes last (E2).
        yield data, small_file.replace(EPOCHS, encode_epochs(epochs), names)
        yield data, small_file.replace(IDENTITY, encode_identity(owner), names)
    return Home(data, log, config, owner, epochs)


def _has_history(names: list[str]) -> bool:
    return any(
        segment_number(name) is not None or snapshot_zxid(name) is not None for name in names
    )


def _missing(file: str) -> DamagedError:
    return DamagedError(
        f"the file {file} is missing from a directory that is in use; nothing was changed: restore "
        "the directory from a copy, or move it away and let the others synchronise the member"
    )


def _finish_noted_change(home: Home, trace: Trace) -> Procedure[Home]:
    names = yield from list_names(home.data)
    if NOTE not in names:
        return home
    note = decode_note((yield from read_file(home.data, NOTE)))
    trace("unfinished_change", {"change": note.change, "zxid": note.position.zxid})
    changed = yield from carry_out(home, note)
    return replace(home, epochs=changed.epochs)


def write_mark(home: Home, end: LogPosition) -> Procedure[Home]:
    """Note in the epochs file how far the log reaches, so that it cannot lose its end unseen."""
    if home.epochs.mark == end:
        return home
    epochs = home.epochs._replace(mark=end)
    yield home.data, small_file.replace(EPOCHS, encode_epochs(epochs))
    return replace(home, epochs=epochs)


# --- snapshots -----------------------------------------------------------------------------------


def _load_snapshot(
    home: Home, sink: RecoverySink, headers: list[SegmentHeader], trace: Trace
) -> Procedure[tuple[SnapshotInfo | None, list[str]]]:
    """The newest usable snapshot, now in the sink, and the names of the damaged ones above it."""
    names = yield from list_names(home.data)
    newest_first = sorted((zxid for name in names if (zxid := snapshot_zxid(name))), reverse=True)
    base = headers[0].base.zxid if headers else Zxid(0)
    aside: list[str] = []
    for zxid in newest_first:
        if zxid < base:
            break  # the log no longer reaches back to it
        try:
            info = yield from _read_snapshot(home, sink, snapshot_file(zxid))
        except DamagedError as error:
            told = {"level": "warning", "file": snapshot_file(zxid), "what": str(error)}
            trace("snapshot_damaged", told)
            aside.append(snapshot_file(zxid))
        else:
            return info, aside
    if base > 0 or (aside and not headers):
        raise DamagedError(
            f"no usable snapshot is left and the log begins only after zxid {base!r}; nothing was "
            "changed: restore a snapshot at or after that zxid, or move the directory away and let "
            "the others synchronise the member"
        )
    return None, aside


def _read_snapshot(home: Home, sink: RecoverySink, file: str) -> Procedure[SnapshotInfo]:
    decoder = SnapshotDecoder(file)
    begun = False
    offset = 0
    while data := (yield from read_at(home.data, file, offset, WINDOW_BYTES)):
        contents = decoder.feed(data)
        if not begun and decoder.position is not None:
            sink.begin_snapshot(decoder.position)
            begun = True
        for content in contents:
            sink.snapshot_chunk(content)
        offset += len(data)
    info = decoder.finish()
    sink.end_snapshot()
    return info


# --- the log -------------------------------------------------------------------------------------


def _read_headers(home: Home) -> Procedure[tuple[list[SegmentHeader], list[str]]]:
    """The headers of all segments, and the last file if a crash left it without one (F8)."""
    names = yield from list_names(home.log)
    numbers = sorted(n for name in names if (n := segment_number(name)) is not None)
    headers: list[SegmentHeader] = []
    for number in numbers:
        file = segment_file(number)
        if headers and number != headers[-1].number + 1:
            missing = segment_file(headers[-1].number + 1)
            raise DamagedFileError(
                missing, 0, headers[-1].base.zxid, f"it is missing, though {file} exists"
            )
        header, size_bytes = yield from _read_header(home, file)
        if header is None or size_bytes < header.size_bytes:
            end = headers[-1].base.zxid if headers else Zxid(0)
            yield from _check_hollow(home, file, end, last=number == numbers[-1])
            return headers, [file]
        if header.number != number:
            original = segment_file(header.number)
            raise DamagedFileError(file, 0, header.base.zxid, f"it is a copy of {original}")
        check_identity(header.owner, *home.owner)
        headers.append(header)
    return headers, []


def _read_header(home: Home, file: str) -> Procedure[tuple[SegmentHeader | None, int]]:
    data = yield from read_at(home.log, file, 0, SEGMENT_HEADER_BYTES)
    [size_bytes] = yield home.log, [Size(file)]
    assert isinstance(size_bytes, int)
    return decode_segment_header(data), size_bytes


def _check_hollow(home: Home, file: str, end: Zxid, *, last: bool) -> Procedure[None]:
    """Only the making of the last segment may have been cut short: by then nothing was in it."""
    data = yield from read_file(home.log, file)
    if not last or RECORD_MAGIC in data:
        raise DamagedFileError(file, 0, end, "its header or its size is not as it was written")


class _Replay:
    """One walk over the log, which hands committed records to the sink and keeps the others."""

    def __init__(self, home: Home, sink: RecoverySink, start: LogPosition) -> None:
        self._home = home
        self._sink = sink
        self._waypoints = deque(sorted({start, home.epochs.mark}))
        self._epochs = home.epochs
        self.delivered = start
        self.committed = start.zxid
        self.pending: deque[Batch] = deque()
        self.segments: list[Segment] = []
        self.scan: SegmentScan | None = None
        """The walk over the last segment, and its batches."""
        self.batches: list[Batch] = []
        self.blank: list[str] = []
        """The last file, if nothing but its header was written."""

    @property
    def end(self) -> LogPosition:
        """Where the log ends."""
        return self.scan.end if self.scan else GENESIS

    def read(self, headers: list[SegmentHeader]) -> Procedure[None]:
        """Walk over all segments; DamagedError if what is there is not a member's log."""
        if headers:
            self._pass(headers[0].base, begin=True)
        for at, header in enumerate(headers):
            data = yield from read_file(self._home.log, segment_file(header.number))
            scan = self._read_segment(header, data)
            following = headers[at + 1] if at + 1 < len(headers) else None
            if following is None or not scan.sealed:
                yield from self._check_last(scan, headers[at + 1 :])
                break
            if following.base != scan.end:
                what = f"{segment_file(following.number)} does not go on where it ends"
                raise DamagedFileError(scan.file, scan.end_offset, scan.end.zxid, what)
            if at + 2 == len(headers) and (yield from self._is_blank(following)):
                # Nothing was written behind the seal: the page cache may show what the disk never
                # got (S10). So the seal is taken back, and the next segment made anew.
                self.blank.append(segment_file(following.number))
                break
        if self._waypoints and self._waypoints[-1].zxid > self.end.zxid:
            self._miss(self._waypoints[-1])
        # A record of an epoch may lie here before the epoch is current, but not before the promise.
        self._check_epochs(self.end.zxid.epoch, 0)

    def _read_segment(self, header: SegmentHeader, data: bytes) -> SegmentScan:
        segment = Segment(header.number, header.base, len(data))
        scan = self.scan = SegmentScan(data, header)
        self.batches = []
        self.segments.append(segment)
        for item in scan:
            if isinstance(item, Batch):
                self._take(item, scan.end)
            else:
                segment.note(scan.end, item.offset)
                self._learn(item)
        segment.end_offset = scan.end_offset
        return scan

    def _check_last(self, scan: SegmentScan, later: list[SegmentHeader]) -> Procedure[None]:
        """The end of the log: torn is well, sealed or followed by records is not."""
        if scan.sealed:
            missing = segment_file(scan.number + 1)
            raise DamagedFileError(
                missing, 0, scan.end.zxid, f"it is missing, though {scan.file} names it"
            )
        for header in later:
            # A crash between the making of a segment and the sealing of the one before it.
            file = segment_file(header.number)
            if header.base.zxid > scan.end.zxid:
                what = f"{file}, which follows it, begins at {header.base.zxid!r}"
                raise DamagedFileError(scan.file, scan.end_offset, scan.end.zxid, what)
            if len(later) > 1 or not (yield from self._is_blank(header)):
                what = f"it is not complete, though {file} follows it"
                raise DamagedFileError(scan.file, scan.end_offset, scan.end.zxid, what)
            self.blank.append(file)
        scan.check_end()

    def _is_blank(self, header: SegmentHeader) -> Procedure[bool]:
        """Whether nothing but its header was ever written to a segment."""
        data = yield from read_file(self._home.log, segment_file(header.number))
        return data.count(0, SEGMENT_HEADER_BYTES) == len(data) - SEGMENT_HEADER_BYTES

    def _take(self, batch: Batch, end: LogPosition) -> None:
        self.batches.append(batch)
        if self._waypoints:
            self._pass(end)
        if end.zxid > self.delivered.zxid:
            self.pending.append(batch)

    def _learn(self, mark: Mark) -> None:
        self._check_epochs(mark.accepted, mark.current)
        self.committed = max(self.committed, mark.committed)
        while self.pending and self.pending[0].last <= self.committed:
            batch = self.pending.popleft()
            self.delivered = batch.position
            self._sink.record(batch)

    def _check_epochs(self, accepted: Epoch, current: Epoch) -> None:
        if accepted > self._epochs.accepted or current > self._epochs.current:
            raise DamagedError(
                f"the file {EPOCHS} names the epochs {self._epochs.accepted} and "
                f"{self._epochs.current}, the log knows of {accepted} and {current}: the file is "
                "older than the log; restore both from one copy, or move the directory away and "
                "let the others synchronise the member"
            )

    def _pass(self, position: LogPosition, *, begin: bool = False) -> None:
        """The walk has come to `position`: no waypoint may have been passed by (V4)."""
        while self._waypoints and self._waypoints[0].zxid <= position.zxid:
            waypoint = self._waypoints.popleft()
            if waypoint != position and not (begin and waypoint.zxid < position.zxid):
                self._miss(waypoint)

    def _miss(self, waypoint: LogPosition) -> None:
        where = self.scan.file if self.scan else "the log"
        offset = self.scan.end_offset if self.scan else 0
        source = "the epochs file" if waypoint == self._home.epochs.mark else "the snapshot"
        what = f"{source} names zxid {waypoint.zxid!r}, which is no point of this log"
        raise DamagedFileError(where, offset, self.end.zxid, what)


def _clear_away(home: Home, segments: list[str]) -> Procedure[None]:
    """Remove what crashes have left: temporary files, and the last segment if it is a shell."""
    for disk in (home.data, home.log):
        names = yield from list_names(disk)
        ops: list[DiskOp] = [
            Unlink(name)
            for name in names
            if name in segments or name.endswith((small_file.TEMPORARY, INCOMING))
        ]
        if ops:
            yield disk, [*ops, SyncDir()]


def _settle_tail(home: Home, replay: _Replay, trace: Trace) -> Procedure[list[Segment]]:
    """Make the end of the log durable for certain (V2), without what was torn (S8)."""
    scan, segments = replay.scan, replay.segments
    if scan is None or scan.clean:
        return segments
    if scan.junk_follows:
        torn = {"file": scan.file, "offset": scan.end_offset, "zxid": scan.end.zxid}
        trace("torn_tail_cut", torn)
    fresh = yield from rewrite_segment(home, segments[-1], replay.batches, replay.committed)
    return [*segments[:-1], fresh]
