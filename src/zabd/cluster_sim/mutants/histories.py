"""Mistakes about truncations, snapshots and what a leader sends: M10-M17 of the gallery."""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final

from zabd.cluster_sim.mutants.mutant import Mutant, Patch
from zabd.model.errors import StorageError
from zabd.storage import log_changes, recovery
from zabd.storage import storage as storage_module
from zabd.storage.disk import DiskOp, Rename, SyncDir
from zabd.storage.log_changes import Changed, Home, Note
from zabd.storage.procedures import Procedure, read_file, run
from zabd.storage.record import (
    SegmentHeader,
    SegmentScan,
    decode_segment_header,
    segment_file,
)
from zabd.storage.segment import Segment, create_segment
from zabd.storage.snapshot_files import Finished
from zabd.storage.snapshots import INCOMING, SnapshotInfo, snapshot_file
from zabd.storage.storage import Storage
from zabd.zab.alignment import Alignment
from zabd.zab.learners import Learner, Stage
from zabd.zab.log import TAIL_BATCHES_MAX, TAIL_BYTES_MAX, Batch, LogPosition, LogTail
from zabd.zab.messages import Diff, Propose


def _scan(home: Home, segment: int) -> Procedure[SegmentScan]:
    data = yield from read_file(home.log, segment_file(segment))
    header = decode_segment_header(data)
    assert header is not None, "a segment in use has a header"
    return SegmentScan(data, header)


def _diff_by_range() -> list[Patch]:
    align = Alignment.align

    def by_range(self: Alignment, learner: Learner) -> None:
        m, zxid = self._m, learner.position.zxid
        if not m.tail.base.zxid <= zxid <= m.tail.last.zxid:
            align(self, learner)
            return
        m.send(learner.link, Diff(learner.position))
        for batch in m.tail.after(zxid):
            m.send(learner.link, Propose(*batch))
        learner.position = m.tail.last
        learner.stage = Stage.CAUGHT_UP

    return [(Alignment, "align", by_range)]


def _tail_in_snapshot() -> list[Patch]:
    read = recovery._Replay.read

    def trusting(self: recovery._Replay, headers: list[SegmentHeader]) -> Generator[Any, Any, None]:
        yield from read(self, headers)
        while self.pending:
            batch = self.pending.popleft()
            self.delivered = batch.position
            self._sink.record(batch)

    return [(recovery._Replay, "read", trusting)]


def _trunc_too_far() -> list[Patch]:
    truncate = log_changes.truncate

    def too_far(home: Home, position: LogPosition, segment: int) -> Procedure[Changed]:
        scan = yield from _scan(home, segment)
        before = scan.end
        for item in scan:
            if isinstance(item, Batch) and scan.end.zxid < position.zxid:
                before = scan.end
        return (yield from truncate(home, before, segment))

    return [(storage_module, "truncate", too_far)]


def _trunc_keeps_offset() -> list[Patch]:
    cut = log_changes._cut

    def keeping(home: Home, note: Note) -> Procedure[Segment]:
        scan = yield from _scan(home, note.segment)
        for _ in scan:
            pass
        segment = yield from cut(home, note)
        segment.end_offset = max(segment.end_offset, scan.end_offset)
        return segment

    return [(log_changes, "_cut", keeping)]


def _trunc_skipped() -> list[Patch]:
    def skip(_self: Storage, _position: LogPosition, done: Callable[[bool], None]) -> None:
        done(True)

    return [(Storage, "truncate", skip)]


def _snap_in_memory() -> list[Patch]:
    def install(self: Storage, info: SnapshotInfo, done: Finished) -> None:
        def begin() -> None:
            self._log.replace(self._log.segments, info.position, info.position.zxid)
            self._release_log(lambda: done(None))

        self._enqueue(lambda: self._log.pause(begin))

    return [(Storage, "_install", install)]


def _window_with_a_hole() -> list[Patch]:
    trim = LogTail.trim

    # A shape sets these limits, as defaults (see `core_level.short_tails`).
    def one_more(
        self: LogTail,
        settled: int,
        bytes_max: int = TAIL_BYTES_MAX,
        batches_max: int = TAIL_BATCHES_MAX,
    ) -> None:
        before = len(self)
        trim(self, settled, bytes_max, batches_max)
        if len(self) < before and len(self) > 1 and self._ends[0] <= settled:
            del self._batches[0], self._ends[0]  # and the base stays where it was

    return [(LogTail, "trim", one_more)]


def _superseded_log_kept() -> list[Patch]:
    def begin_anew(home: Home, note: Note) -> Procedure[Segment]:
        file = snapshot_file(note.position.zxid)
        ops: list[DiskOp] = [Rename(file + INCOMING, file), SyncDir()]
        yield home.data, ops
        segment = Segment(note.segment, note.position, home.config.segment_bytes)
        yield home.log, create_segment(segment, home.owner)
        return segment

    def install(self: Storage, info: SnapshotInfo, done: Finished) -> None:
        def installed(result: Changed | StorageError) -> None:
            if isinstance(result, StorageError):
                self._fail(result)
                return
            self._verified = [info]
            segments = [*self._log.segments, result.segment]
            self._log.replace(segments, info.position, info.position.zxid)
            self._adopt(self._home)
            self._release_log(lambda: done(None))

        def begin() -> None:
            number = self._log.next_number
            run(log_changes.restart(self._home, info.position, number), installed)

        self._enqueue(lambda: self._log.pause(begin))

    return [(log_changes, "_begin_anew", begin_anew), (Storage, "_install", install)]


_mutant = partial(Mutant, level="zab")

_CUT_BACK: Final = {
    "voters": 3,
    "observers": 0,
    "kinds": ("isolate the leader", "kill"),
    "tick_ms": 200,
    "faults_ms": 10_000,
    "fault_every_ms": 400,
    "submit_every_ms": 50.0,
    "down_ms_max": 1_000,
}
"""Leaders that go on alone for a while, so that something has to be cut off afterwards."""

_FAR_BEHIND: Final = {
    **_CUT_BACK,
    "kinds": ("isolate the leader", "lost disk", "kill"),
    "snapshot_every": 5,
    "tail_batches": 8,
    "segment_bytes": 8 << 10,
}
"""Members that come back with nothing, and logs that do not reach back far."""

HISTORIES: Final = (
    _mutant(
        name="diff-by-range",
        bug="M10",
        what="a leader sends DIFF to a learner whose end lies in its range, and is not in its log",
        history="A alone logs 7:4, all crash; B and C commit 8:1; A comes back: 7:4 lies between "
        "7:1 and 8:1, so only 8:1 is sent, where 7:4 had to be cut off first",
        reference="ZOOKEEPER-1154",
        found_by=frozenset({"Z11"}),
        patches=_diff_by_range,
        shape=_CUT_BACK,
    ),
    _mutant(
        name="tail-in-snapshot",
        bug="M11",
        what="a restart applies what is only logged, so that a snapshot may hold it",
        history="A loads its log with 7:4, which is not committed, and takes a snapshot; B and C "
        "go on; A comes back, its log is cut to 7:3, and its snapshot still has 7:4",
        reference="ZOOKEEPER-2832, ZOOKEEPER-4837, ZOOKEEPER-1549",
        found_by=frozenset({"A3"}),
        patches=_tail_in_snapshot,
        shape=_CUT_BACK,
    ),
    _mutant(
        name="trunc-too-far",
        bug="M12",
        what="a truncation removes one entry too many",
        history="a follower has 1:3 and 1:4; TRUNC to 1:3 takes 1:3 with it, which is committed",
        reference="ZOOKEEPER-1156",
        found_by=frozenset({"Z10", "Z11"}),
        patches=_trunc_too_far,
        shape=_CUT_BACK,
    ),
    _mutant(
        name="trunc-keeps-offset",
        bug="M13",
        what="after a truncation the log goes on where it ended before, behind a hole",
        history="TRUNC to 1:2, then 2:1 is written behind a hole, synced and acknowledged; after a "
        "crash recovery does not get over the hole",
        reference="ZOOKEEPER-1489",
        found_by=frozenset({"D1", "D8", "D11"}),
        patches=_trunc_keeps_offset,
        shape=_CUT_BACK,
    ),
    _mutant(
        name="trunc-skipped",
        bug="M14",
        what="a follower says that it has cut its history back, and has not",
        history="the disk fails during a TRUNC; the follower goes on with an entry that nobody has",
        reference="ZOOKEEPER-3701",
        found_by=frozenset({"Z11"}),
        patches=_trunc_skipped,
        shape=_CUT_BACK,
    ),
    _mutant(
        name="snap-in-memory",
        bug="M15",
        what="a snapshot from the leader becomes the state in memory, and the disk stays as it was",
        history="B is far behind and takes a snapshot at 1:9 into memory; the leader crashes, the "
        "next one sends a DIFF from 1:9, B logs 2:1 and acknowledges it; B crashes: what it "
        "has is an old snapshot, and 2:1",
        reference="ZOOKEEPER-3642, ZOOKEEPER-2872",
        found_by=frozenset({"D4", "D5", "D11"}),
        patches=_snap_in_memory,
        shape=_FAR_BEHIND,
    ),
    _mutant(
        name="window-with-a-hole",
        bug="M16",
        what="the history that a leader keeps in memory lacks a batch in its midst",
        history="B takes 1:3 to 1:5 during its synchronisation and not into its window; B leads, "
        "C has 1:2 and is sent 1:6",
        reference="ZOOKEEPER-4925, a regression of the fix of ZOOKEEPER-4394",
        found_by=frozenset({"A2", "A5"}),
        patches=_window_with_a_hole,
        shape=_FAR_BEHIND,
    ),
    _mutant(
        name="superseded-log-kept",
        bug="M17",
        what="the log that a snapshot from the leader has superseded stays, and is read",
        history="B has 1:5, not committed, and is repaired by a snapshot of epoch 2; its old log "
        "stays; B leads 3 and sends 1:5 to C",
        reference="ZOOKEEPER-2846",
        found_by=frozenset({"Z11", "D4", "D11"}),
        patches=_superseded_log_kept,
        shape=_FAR_BEHIND,
    ),
)
