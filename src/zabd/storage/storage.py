"""The front door: everything a member keeps on its disks.

Jobs that change more than the log's end (epochs, truncation, an installed snapshot, retention) are
done one at a time, in the order in which they were asked for; those that rewrite the log wait until
what was appended before them is durable. Appends go on beside all others.

Invariants
    S1  Nothing is acknowledged that a power cut could take back (S1, S2, S19 of the storage rules).
    S2  After the first failure of a write or sync, `on_failure` is called once, and nothing that
        was asked for is called done any more (S9, D7).
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from zabd.model import DamagedError, Epoch, LocalProtocolError, MemberId, StorageError, Zxid
from zabd.storage import small_file
from zabd.storage.config import StorageConfig, StorageCounters, Trace
from zabd.storage.disk import Disk, DiskOp, DiskOutcome, FreeSpace, Lane, Rename, SyncDir, Unlink
from zabd.storage.distrust import Distrust, Extent, remove_distrust, write_distrust
from zabd.storage.epochs import (
    EPOCHS,
    IDENTITY,
    Epochs,
    Identity,
    encode_epochs,
    encode_identity,
)
from zabd.storage.log_changes import Changed, Home, restart, truncate
from zabd.storage.procedures import Pace, Procedure, at_once, list_names, run
from zabd.storage.record import CLUSTER_ID_BYTES_MAX
from zabd.storage.recovery import Recovered, RecoverySink, Restored, recover, write_mark
from zabd.storage.retention import delete, doomed_segments, doomed_snapshots
from zabd.storage.salvage import set_aside
from zabd.storage.snapshot_files import Finished, SnapshotReader, SnapshotWriter
from zabd.storage.snapshots import INCOMING, SnapshotInfo, snapshot_file, snapshot_zxid
from zabd.storage.txn_log import TxnLog
from zabd.zab.log import Batch, LogPosition

_Job: TypeAlias = Callable[[], None]


class Storage:
    """The log, the snapshots, the epochs and the identity of one member.

    Recover first; then everything else may be asked for. All callbacks come on the owner's loop;
    where no disk is needed for the answer, before the call returns. `data` and `log` may be the
    same disk.
    """

    def __init__(
        self,
        data: Disk,
        log: Disk,
        config: StorageConfig,
        clock_ms: Callable[[], int],
        trace: Trace = lambda _event, _fields: None,
    ) -> None:
        self.on_failure: Callable[[StorageError], None] = lambda _error: None
        """Called once, with the error after which this incarnation of the member is over (S9)."""
        self.on_snapshot_wanted: Callable[[], None] = lambda: None
        """Called when the last snapshot is lost: a start, or a learner, may have none to begin with
        until there is a new one, of the tree that is in memory."""
        self.counters = StorageCounters()
        self._data = data
        self._config = config
        self._trace = trace
        self._home = Home(data, log, config, Identity(0, None), Epochs(0, 0))
        self._promised = Epochs(0, 0)
        self._log = TxnLog(log, config, self.counters, clock_ms, self._fail, trace)
        self._verified: list[SnapshotInfo] = []  # oldest first
        self._pins: Counter[str] = Counter()
        self._writing = False
        self._installer: SnapshotWriter | None = None
        self._jobs: deque[_Job] = deque()
        self._busy = False
        self._failed = False
        self._closed = False
        self._damaged = False

    # --- the state of it ------------------------------------------------------------------------

    @property
    def space_low(self) -> bool:
        """Free space is below the floor: refuse what adds data, do what removes it (S11)."""
        return self._log.space_low

    @property
    def unwritten_bytes(self) -> int:
        """Of records that were appended and are not durable yet."""
        return self._log.unwritten_bytes

    @property
    def write_began_ms(self) -> int | None:
        """When the log's write in flight began, by the storage's clock; None if none is (S12)."""
        return self._log.write_began_ms

    @property
    def durable(self) -> LogPosition:
        """The end of what the log is sure to hold."""
        return self._log.durable

    @property
    def snapshot(self) -> LogPosition | None:
        """Where the newest verified snapshot stands."""
        return self._verified[-1].position if self._verified else None

    @property
    def sizes_bytes(self) -> tuple[int, int]:
        """About what the verified snapshots take, and what the log's segments have reserved."""
        snapshots = sum(info.content_bytes for info in self._verified)
        return snapshots, len(self._log.segments) * self._config.segment_bytes

    def check_space(self) -> None:
        """Look at the free space now; the log does by itself once a second while it is written."""
        self._home.log.submit([FreeSpace()], self._note_space, Lane.BULK)

    # --- start and stop -------------------------------------------------------------------------

    def recover(
        self,
        sink: RecoverySink,
        member_id: MemberId,
        cluster_id: bytes | None,
        done: Callable[[Recovered | StorageError], None],
    ) -> None:
        """Read and check everything; StorageError or DamagedError says why a member may not start.

        What happens about damage is the configuration's to say (`OnDamage`). An error is one
        sentence: what is wrong, where, and what to do. `cluster_id` is the one that the member is
        told to belong to, None if it is told nothing.
        """

        def restored(result: Restored | StorageError) -> None:
            if isinstance(result, StorageError):
                done(result)
                return
            self._go_on_from(result)
            self.check_space()
            done(result.recovered)

        run(
            recover(
                self._data, self._home.log, self._config, sink, member_id, cluster_id, self._trace
            ),
            restored,
        )

    def close(self, done: Callable[[], None]) -> None:
        """Finish everything, note that the stop was in order, and accept nothing more.

        The next start then trusts the end of the log as it is. The disks stay open. After a failure
        there is nothing to finish, and `done` comes at once.
        """

        def closed(result: Home | StorageError) -> None:
            if isinstance(result, StorageError):
                # The marks are a convenience: everything acknowledged is durable without them.
                self._trace("close_failed", {"what": str(result)})
            self._log.stop()
            done()

        def close() -> None:
            run(self._note_end(), closed)

        self._closed = True
        self._log.defer(deferred=False)
        if self._failed:
            done()
            return
        self._enqueue(lambda: self._log.pause(close))

    def _note_end(self) -> Procedure[Home]:
        home = yield from write_mark(self._home, self._log.durable)
        if ops := self._log.close_ops():
            yield home.log, ops
        return home

    # --- the log --------------------------------------------------------------------------------

    def append(self, record: bytes, committed: Zxid, done: Callable[[], None]) -> None:
        """Add a framed record; `done` once it is durable, in the order of the calls.

        `committed` is the greatest zxid that is known to be committed. What is appended while a
        write is in flight goes into the next one together.
        """
        self._require_open()
        if not self._failed:
            self._log.append(record, committed, done)

    def write_in_turns(self) -> None:
        """From now on what is appended waits for `flush`, for a host that works in turns.

        The disk's thread needs the interpreter to begin, and while a turn goes on the two only get
        into each other's way: half of their lock's system calls go, and all that a turn appends is
        one write.
        """
        self._log.defer(deferred=True)

    def flush(self) -> None:
        """The turn is over: write what it has appended, behind what is being written."""
        self._log.flush()

    def truncate(self, position: LogPosition, done: Callable[[bool], None]) -> None:
        """Cut the log off after `position`, durably; `done(False)` if it is no point of the log.

        A point before what is known to be committed is none that the log can be cut at.
        """

        def found(point: LogPosition | None) -> None:
            if self._failed:
                return
            segment = self._log.segment_of(position.zxid)
            if point != position or position.zxid < self._log.committed:
                self._release_log(lambda: done(False))
            elif point == self._log.durable or segment is None:
                self._release_log(lambda: done(True))
            else:
                cut = truncate(self._home, position, segment.number)
                run(cut, partial(self._cut, lambda: done(True)))

        self._require_open()
        self._enqueue(lambda: self._log.pause(lambda: self._log.find(position.zxid, found)))

    def find_record(self, zxid: int, done: Callable[[LogPosition | None], None]) -> None:
        """The last end of a durable record at or before `zxid`; None if the log begins later."""
        self._require_open()
        self._log.find(zxid, done)

    def read_records(
        self,
        after: LogPosition,
        bytes_max: int,
        done: Callable[[list[Batch] | None], None],
    ) -> None:
        """Durable batches after a point of the log, each checked, about `bytes_max` of them.

        At least one, [] at the end of the log, None if `after` is not (any longer) a point of it.
        """
        self._require_open()
        self._log.read(after, bytes_max, done)

    # --- the epochs -----------------------------------------------------------------------------

    def persist_epochs(
        self,
        accepted: Epoch,
        current: Epoch,
        cluster_id: bytes | None,
        done: Callable[[], None],
        *,
        repaired: bool = False,
    ) -> None:
        """Make the promises durable, and the ensemble that the directory belongs to, once known.

        `repaired`: the log holds an established leader's history, and with these epochs a damaged
        member is whole. Raises LocalProtocolError for epochs that go back, or for another ensemble.
        """
        self._require_open()
        self._check_promise(accepted, current, cluster_id)
        self._promised = Epochs(accepted, current)  # what later calls may not go back behind
        self._enqueue(
            lambda: self._persist_epochs(accepted, current, cluster_id, done, repaired=repaired)
        )

    def distrust(self, why: str, done: Callable[[], None]) -> None:
        """The tree is not the others': the next start, by a durable note, begins with nothing.

        Nothing else is done for this incarnation any more, which is over.
        """

        def noted(result: StorageError | None) -> None:
            if isinstance(result, StorageError):
                self._trace("distrust_failed", {"level": "error", "what": str(result)})
            done()

        def note() -> Procedure[None]:
            names = yield from list_names(self._data)
            yield self._data, write_distrust(Distrust(Extent.NOTHING, why), names)

        if self._failed or self._closed:
            done()
            return
        self._failed = True
        self._log.stop()
        self._jobs.clear()
        run(note(), noted)

    def _check_promise(self, accepted: Epoch, current: Epoch, cluster_id: bytes | None) -> None:
        promised = self._promised
        if accepted < promised.accepted or current < promised.current or current > accepted:
            raise LocalProtocolError(
                f"epochs only grow, the current one up to the accepted one: {accepted} and "
                f"{current} cannot follow {promised.accepted} and {promised.current}"
            )
        known = self._home.owner.cluster_id
        given_up = known == self._config.found_anew
        if known is not None and not given_up and cluster_id not in {None, known}:
            raise LocalProtocolError(f"the directory belongs to the ensemble {known.hex()}")
        if cluster_id is not None and len(cluster_id) > CLUSTER_ID_BYTES_MAX:
            raise LocalProtocolError(f"a cluster id has at most {CLUSTER_ID_BYTES_MAX} bytes")

    def _persist_epochs(
        self,
        accepted: Epoch,
        current: Epoch,
        cluster_id: bytes | None,
        done: Callable[[], None],
        *,
        repaired: bool,
    ) -> None:
        epochs = Epochs(accepted, current, self._log.durable)
        owner = self._home.owner
        ops: list[DiskOp] = []
        if cluster_id not in {None, owner.cluster_id}:
            owner = owner.joined(cluster_id)
            ops += small_file.replace(IDENTITY, encode_identity(owner))
        ops += small_file.replace(EPOCHS, encode_epochs(epochs))
        mends = repaired and self._damaged
        if mends:
            ops += remove_distrust()

        def persisted(result: StorageError | None) -> None:
            if isinstance(result, StorageError):
                self._fail(result)
                return
            if mends:
                self._damaged = False
                self._trace("repaired", {"zxid": self._log.durable.zxid, "epoch": current})
            self._adopt(replace(self._home, owner=owner, epochs=epochs))
            self._next_job(done)

        run(_do(self._data, ops), persisted)

    # --- snapshots ------------------------------------------------------------------------------

    def snapshot_writer(self, position: LogPosition, pace: Pace = at_once) -> SnapshotWriter:
        """A writer for the tree as it stands at `position`; LocalProtocolError if one is at work.

        The newest snapshots and the log that they need stay; older ones go once this one is
        verified, at the pace that is given.
        """
        self._require_open()
        if self._writing:
            raise LocalProtocolError("another snapshot is being written")
        self._writing = True
        temporary = snapshot_file(position.zxid) + small_file.TEMPORARY
        return self._writer(temporary, position, self._publish, self._written, pace)

    def snapshot_installer(self, position: LogPosition, pace: Pace = at_once) -> SnapshotWriter:
        """A writer for the snapshot that a leader sends: once finished, the log begins behind it.

        Until `finish` says so, and after any crash or error, the old state stays (S18). A transfer
        that has not come to its end is given up for the new one.
        """
        self._require_open()
        if self._installer is not None:
            self._installer.abort()
        temporary = snapshot_file(position.zxid) + INCOMING
        self._installer = self._writer(
            temporary, position, self._install, lambda _error: None, pace
        )
        return self._installer

    def snapshot_reader(self) -> SnapshotReader | None:
        """A reader of the newest verified snapshot; None if there is none."""
        self._require_open()
        if not self._verified:
            return None
        info = self._verified[-1]
        self._pins[info.file] += 1

        def closed() -> None:
            self._pins[info.file] -= 1

        return SnapshotReader(self._data, info, closed, partial(self._lose, info))

    def _writer(
        self,
        temporary: str,
        position: LogPosition,
        publish: Callable[[SnapshotInfo, Finished], None],
        ended: Callable[[StorageError | None], None],
        pace: Pace = at_once,
    ) -> SnapshotWriter:
        # As large as the last one and half as much again, and a segment for the log.
        size_bytes = self._verified[-1].content_bytes * 3 // 2 if self._verified else 0
        room_bytes = size_bytes + self._config.segment_bytes
        cluster_id = self._home.owner.cluster_id
        return SnapshotWriter(
            self._data, temporary, position, cluster_id, room_bytes, publish, ended, pace
        )

    def _written(self, error: StorageError | None) -> None:
        self._writing = False
        if error is None:
            self.counters.snapshots += 1
        else:
            self.counters.snapshot_failures += 1
            self._trace("snapshot_failed", {"what": str(error)})

    def _publish(self, info: SnapshotInfo, done: Finished) -> None:
        """Give a verified snapshot its name, once the log holds all that it contains (S7)."""

        def named(result: StorageError | None) -> None:
            if isinstance(result, StorageError):
                self._fail(result)
                return
            self._verified = [*(old for old in self._verified if old.file != info.file), info]
            self._verified.sort()
            self._next_job(lambda: done(None))
            self._enqueue(self._delete_old)

        temporary = info.file + small_file.TEMPORARY
        ops: list[DiskOp] = [Rename(temporary, info.file), SyncDir()]
        if any(old.file == info.file for old in self._verified):
            ops = [Unlink(temporary)]  # the same tree is there already, and may be being read
        job = partial(run, _do(self._data, ops), named, Lane.BULK)
        self._log.when_durable(info.position.zxid, lambda: self._enqueue(job))

    def _install(self, info: SnapshotInfo, done: Finished) -> None:
        def installed(result: Changed | StorageError) -> None:
            if isinstance(result, StorageError):
                self._fail(result)
                return
            # The log does not reach back to any older one: no start and no learner can use it.
            self._verified = [info]
            self._log.replace([result.segment], info.position, info.position.zxid)
            self._adopt(replace(self._home, epochs=result.epochs))
            self._release_log(lambda: done(None))

        def begin() -> None:
            run(restart(self._home, info.position, self._log.next_number), installed)

        self._enqueue(lambda: self._log.pause(begin))

    def _lose(self, info: SnapshotInfo, error: DamagedError) -> None:
        """A snapshot is not as it was written any more: out of the way with it (S15)."""

        def gone(result: StorageError | None) -> None:
            if isinstance(result, StorageError):
                self._fail(result)
                return
            if not self._verified and not self._closed:
                self._trace("no_snapshot_left", {"level": "error", "zxid": info.position.zxid})
                self.on_snapshot_wanted()
            self._next_job(lambda: None)

        if info in self._verified:
            told = {"level": "warning", "file": info.file, "what": str(error)}
            self._trace("snapshot_damaged", told)
            self._verified.remove(info)
            self._enqueue(partial(run, set_aside(self._data, [info.file]), gone, Lane.BULK))

    # --- retention ------------------------------------------------------------------------------

    def _delete_old(self) -> None:
        def deleted(result: StorageError | None) -> None:
            if isinstance(result, StorageError):
                self._fail(result)
                return
            self._next_job(lambda: None)

        run(self._retain(), deleted, Lane.BULK)

    def _retain(self) -> Procedure[None]:
        if len(self._verified) < self._config.snapshots_kept:
            return  # were these few damaged, the log would have to do
        names = yield from list_names(self._data)
        pinned = [file for file, count in self._pins.items() if count]
        doomed = doomed_snapshots(names, self._verified, pinned, self._config.snapshots_kept)
        self._verified = [info for info in self._verified if info.position.zxid not in doomed]
        yield from delete(self._data, [snapshot_file(zxid) for zxid in doomed])
        present = [zxid for name in names if (zxid := snapshot_zxid(name)) is not None]
        oldest = min((zxid for zxid in present if zxid not in doomed), default=Zxid(0))
        segments = doomed_segments(self._log.settled, oldest)
        self._log.forget(segments)
        yield from delete(self._home.log, [segment.file for segment in segments])

    # --- jobs and failure -----------------------------------------------------------------------

    def _enqueue(self, job: _Job) -> None:
        self._jobs.append(job)
        if not self._busy:
            self._next_job(lambda: None)

    def _next_job(self, done: Callable[[], None]) -> None:
        """The job at work is done: tell its owner, then begin the next one."""
        self._busy = False
        done()
        if self._jobs and not self._busy and not self._failed:
            self._busy = True
            self._jobs.popleft()()

    def _cut(self, done: Callable[[], None], result: Changed | StorageError) -> None:
        if isinstance(result, StorageError):
            self._fail(result)
            return
        before = [old for old in self._log.segments if old.number < result.segment.number]
        self._log.replace([*before, result.segment], result.epochs.mark, self._log.committed)
        self._adopt(replace(self._home, epochs=result.epochs))
        self._release_log(done)

    def _release_log(self, done: Callable[[], None]) -> None:
        """The job that had the log for itself is done."""
        self._log.resume()
        self._next_job(done)

    def _go_on_from(self, restored: Restored) -> None:
        self._adopt(restored.home)
        self._promised = restored.home.epochs
        self._damaged = restored.recovered.damaged is not None
        self._log.replace(restored.segments, restored.end, restored.committed)
        self._verified = [restored.snapshot] if restored.snapshot else []

    def _adopt(self, home: Home) -> None:
        self._home = home
        self._log.owner = home.owner
        self._log.epochs = home.epochs

    def _note_space(self, outcome: DiskOutcome) -> None:
        if outcome.error is None and isinstance(outcome.results[0], int):
            self._log.note_space(outcome.results[0])

    def _fail(self, error: StorageError) -> None:
        if self._failed:
            return
        self._failed = True
        self._log.stop()
        self._jobs.clear()
        self._trace("storage_failed", {"what": str(error)})
        self.on_failure(error)

    def _require_open(self) -> None:
        if self._closed:
            raise LocalProtocolError("the storage was closed")


def _do(disk: Disk, ops: list[DiskOp]) -> Procedure[None]:
    yield disk, ops
