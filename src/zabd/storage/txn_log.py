"""The log while a member runs: group commit at its end, look-ups and reads anywhere in it.

Invariants
    T1  `done` of an append is called after `fdatasync` of its bytes returned, in order (S1, D1).
    T2  One group is in flight; what is appended meanwhile gathers for the next one, so that a
        group costs one write and one sync however many batches it has.
    T3  A segment holds records only once its header and its name are durable and the segment
        before it is sealed (S2).
    T4  Readers see durable records only, each checked before it is handed out (M72).
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Final, TypeAlias

from zabd.model import LocalProtocolError, StorageError, Zxid
from zabd.storage.config import (
    GROUP_BYTES_MAX,
    SPACE_CHECK_MS,
    StorageConfig,
    StorageCounters,
    Trace,
)
from zabd.storage.disk import (
    Create,
    Disk,
    DiskOp,
    DiskOutcome,
    FreeSpace,
    Lane,
    Release,
    Sync,
    WriteAt,
)
from zabd.storage.epochs import Epochs, Identity
from zabd.storage.procedures import DiskError, Procedure, run
from zabd.storage.record import (
    MARK_BYTES,
    SEGMENT_HEADER_BYTES,
    MarkKind,
    encode_mark,
)
from zabd.storage.segment import Segment, Window, create_segment
from zabd.zab.log import (
    GENESIS,
    Batch,
    LogPosition,
    chain_of,
    follows,
    known_header,
    last_zxid,
    parse_header,
)

CURSORS_MAX: Final = 64  # more learners than any ensemble has

_TRAILER_BYTES: Final = 2 * MARK_BYTES  # kept free in every segment for SEAL and CLEAN

Done: TypeAlias = Callable[[], None]


class TxnLog:
    """The end of the log for writers, all of it for readers.

    `failed` is called with the first error of a write or sync; nothing is acknowledged after it.
    """

    def __init__(
        self,
        disk: Disk,
        config: StorageConfig,
        counters: StorageCounters,
        clock_ms: Callable[[], int],
        failed: Callable[[StorageError], None],
        trace: Trace,
    ) -> None:
        self._disk = disk
        self._config = config
        self._counters = counters
        self._clock_ms = clock_ms
        self._failed = failed
        self._trace = trace
        self.owner = Identity(0, None)
        self.epochs = Epochs(0, 0)
        self.segments: list[Segment] = []
        self.end = self.durable = GENESIS  # `end` runs ahead of `durable` by what is in flight
        self.committed = Zxid(0)
        self.space_low = False
        self.write_began_ms: int | None = None
        """When the write that is in flight began; None while there is none (S12)."""
        self.generation = 0  # grows when what was durable is cut off
        self._next_number = 1
        self._space_checked_ms = 0
        self._stopped = False
        self._paused = False
        self._deferred = False
        self.unwritten_bytes = 0
        """Of records that are gathered or being written; the host sees to it that they are few."""
        self._records: deque[bytes] = deque()  # gathered
        self._waiting: deque[tuple[LogPosition, Done]] = deque()  # of what is in flight, then these
        self._in_flight: list[tuple[LogPosition, Done]] = []
        self._in_flight_bytes = 0
        self._when_idle: list[Done] = []
        self._when_durable: list[tuple[Zxid, Done]] = []
        self._cursors: OrderedDict[LogPosition, tuple[int, int]] = OrderedDict()

    # --- appending ------------------------------------------------------------------------------

    def append(self, record: bytes, committed: int, done: Done) -> None:
        """Add a record behind the last one; `done` once it is durable (T1).

        It was framed here, or checked when it came. LocalProtocolError if it does not follow.
        """
        header = known_header(record)
        if header.previous != self.end.chain or not follows(header.first, self.end.zxid):
            raise LocalProtocolError(
                f"the record of {header.first!r} does not follow the log's end {self.end.zxid!r}"
            )
        self.end = LogPosition(last_zxid(header), chain_of(record))
        if committed > self.committed:
            self.committed = Zxid(committed)
        self._records.append(record)
        self.unwritten_bytes += len(record)
        self._waiting.append((self.end, done))
        if not self._deferred:
            self.flush()

    def defer(self, *, deferred: bool) -> None:
        """Whether writes begin only with `flush`; what is gathered when that ends is written."""
        self._deferred = deferred
        if not deferred:
            self.flush()

    def flush(self) -> None:
        """Begin to write what has gathered, unless a write is in flight."""
        if self._records and not self._in_flight and not self._paused:
            self._write_group()

    def when_durable(self, zxid: int, done: Done) -> None:
        """Call `done` once the log is durable up to `zxid`, at once if it is."""
        if zxid <= self.durable.zxid:
            done()
        else:
            self._when_durable.append((Zxid(zxid), done))

    def pause(self, done: Done) -> None:
        """Write what has gathered, then nothing until `resume`; `done` in between."""
        if self._in_flight or self._records:
            self.flush()
            self._when_idle.append(lambda: self.pause(done))
            return
        self._paused = True
        done()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._paused = False
        self.flush()

    def stop(self) -> None:
        """Write and acknowledge nothing from here on (S9)."""
        self._stopped = True

    def _write_group(self) -> None:
        if self._stopped:
            return
        records = self._take_group()
        ops: list[DiskOp] = []
        segment = self._segment_with_room(self._in_flight_bytes, ops)
        mark = self._mark(MarkKind.GROUP, segment, self._in_flight_bytes)
        ops.append(WriteAt(segment.file, segment.end_offset, [mark, *records]))
        ops.append(Sync(segment.file))
        self._submit(ops)

    def _take_group(self) -> list[bytes]:
        records, size_bytes = [self._records.popleft()], 0
        size_bytes = len(records[0])
        while self._records and size_bytes + len(self._records[0]) <= GROUP_BYTES_MAX:
            size_bytes += len(self._records[0])
            records.append(self._records.popleft())
        self._in_flight = [self._waiting.popleft() for _ in records]
        self._in_flight_bytes = size_bytes
        return records

    def _segment_with_room(self, size_bytes: int, ops: list[DiskOp]) -> Segment:
        """The last segment, or the operations that make a new one behind it (T3)."""
        needed = MARK_BYTES + size_bytes + _TRAILER_BYTES
        last = self.segments[-1] if self.segments else None
        if last is not None and last.end_offset + needed <= last.size_bytes:
            return last
        size = max(self._config.segment_bytes, SEGMENT_HEADER_BYTES + needed)
        segment = Segment(self._next_number, self.durable, size)
        ops += create_segment(segment, self.owner)
        if last is not None:
            seal = self._mark(MarkKind.SEAL, last, 0)
            ops += [WriteAt(last.file, last.end_offset, seal), Sync(last.file), Release(last.file)]
        self.segments.append(segment)
        self._next_number += 1
        self._counters.segments += 1
        return segment

    def _mark(self, kind: MarkKind, segment: Segment, length: int) -> bytes:
        return encode_mark(
            kind,
            segment.number,
            segment.end_offset,
            length,
            self.durable.zxid,
            self.committed,
            self.epochs,
        )

    def _submit(self, ops: list[DiskOp]) -> None:
        now_ms = self._clock_ms()
        # A new segment takes its space at once: at full speed three of them fit into a second.
        takes_space = any(type(op) is Create for op in ops)
        if takes_space or now_ms - self._space_checked_ms >= SPACE_CHECK_MS:
            self._space_checked_ms = now_ms
            ops.append(FreeSpace())
        self.write_began_ms = now_ms
        self._disk.submit(ops, self._written, Lane.LOG)

    def _written(self, outcome: DiskOutcome) -> None:
        if self._stopped:
            return
        if outcome.error is not None:
            self._stopped = True
            self._failed(DiskError(outcome.error))
            return
        self._note_space(outcome)
        group, self._in_flight = self._in_flight, []
        self.unwritten_bytes -= self._in_flight_bytes
        self._advance(group)
        if not self._deferred:
            self.flush()  # before the callbacks: the disk need not wait for them
        for _, done in group:
            done()
        self._call_waiters()

    def _advance(self, group: list[tuple[LogPosition, Done]]) -> None:
        segment = self.segments[-1]
        segment.note(self.durable, segment.end_offset)
        segment.end_offset += MARK_BYTES + self._in_flight_bytes
        self.durable = group[-1][0]
        self._count(len(group))
        self.write_began_ms = None

    def _count(self, records: int) -> None:
        counters = self._counters
        took_ms = self._clock_ms() - (self.write_began_ms or 0)
        counters.records += records
        counters.bytes_written += MARK_BYTES + self._in_flight_bytes
        counters.syncs += 1
        counters.sync_ms += took_ms
        counters.sync_ms_max = max(counters.sync_ms_max, took_ms)
        if took_ms >= self._config.slow_sync_ms:
            counters.slow_syncs += 1
            self._trace("slow_sync", {"file": self.segments[-1].file, "ms": took_ms})

    def _note_space(self, outcome: DiskOutcome) -> None:
        free = outcome.results[-1]
        if isinstance(free, int):  # only FreeSpace answers with a number here
            self.note_space(free)

    def note_space(self, free_bytes: int) -> None:
        """Compare the free space with the floor (S11)."""
        low = free_bytes < self._config.space_floor_bytes
        if low != self.space_low:
            self.space_low = low
            self._trace("space_low" if low else "space_enough", {"free_bytes": free_bytes})

    def _call_waiters(self) -> None:
        if self._when_durable:
            ready = [done for zxid, done in self._when_durable if zxid <= self.durable.zxid]
            self._when_durable = [
                waiter for waiter in self._when_durable if waiter[0] > self.durable.zxid
            ]
            for done in ready:
                done()
        if self._when_idle and not self._in_flight:
            waiting, self._when_idle = self._when_idle, []
            for done in waiting:
                done()

    # --- what recovery, truncation and restart put in its place ----------------------------------

    def replace(self, segments: list[Segment], end: LogPosition, committed: int) -> None:
        """Go on from another state of the disk; the log is paused or has not begun."""
        self.segments = segments
        self.end = self.durable = end
        self.committed = Zxid(committed)
        self.generation += 1
        self._cursors.clear()
        if segments:
            self._next_number = segments[-1].number + 1

    @property
    def settled(self) -> list[Segment]:
        """The segments, without the last one while a write is in flight.

        That write may be sealing the one before: until it is done, that is the last one in use.
        """
        return self.segments[:-1] if self._in_flight else self.segments

    def forget(self, segments: Collection[Segment]) -> None:
        """These segments, the oldest, are about to be deleted."""
        self.segments = [segment for segment in self.segments if segment not in segments]

    @property
    def next_number(self) -> int:
        """The number of the segment that comes next."""
        return self._next_number

    def close_ops(self) -> list[DiskOp]:
        """The operations that say that the member stopped in order; the log is paused."""
        if not self.segments:
            return []
        last = self.segments[-1]
        mark = self._mark(MarkKind.CLEAN, last, 0)
        if last.end_offset + MARK_BYTES + len(mark) > last.size_bytes:
            return [Release(last.file)]  # no room but for SEAL: the next start rewrites the tail
        return [WriteAt(last.file, last.end_offset, mark), Sync(last.file), Release(last.file)]

    # --- looking up and reading -----------------------------------------------------------------

    def find(self, zxid: int, done: Callable[[LogPosition | None], None]) -> None:
        """The greatest end of a record at or before `zxid`; None if that lies before the log."""
        if zxid >= self.durable.zxid:
            done(self.durable)
            return
        segment = self.segment_of(zxid)
        if segment is None:
            done(None)
            return
        generation = self.generation

        def found(result: LogPosition | StorageError) -> None:
            usable = self._usable(result, segment, generation)
            done(None if isinstance(result, StorageError) or not usable else result)

        run(self._find_in(segment, zxid), found, Lane.BULK)

    def read(
        self,
        after: LogPosition,
        bytes_max: int,
        done: Callable[[list[Batch] | None], None],
    ) -> None:
        """Durable batches after a point of this log, at least one unless it is the end.

        None if `after` is not a point of the log, or is not any more.
        """
        if after == self.durable:
            done([])
            return
        segment = self.segment_of(after.zxid)
        if segment is None or after.zxid > self.durable.zxid:
            done(None)
            return
        generation = self.generation

        def found(result: list[Batch] | StorageError | None) -> None:
            usable = self._usable(result, segment, generation)
            done(None if isinstance(result, StorageError) or not usable else result)

        run(self._read_in(segment, after, bytes_max), found, Lane.BULK)

    def _usable(self, result: object, segment: Segment, generation: int) -> bool:
        """Whether the log is still the one that was read; damage in it ends the member."""
        if generation != self.generation or segment not in self.segments:
            return False
        if isinstance(result, StorageError):
            self._stopped = True
            self._failed(result)
        return True

    def segment_of(self, zxid: int) -> Segment | None:
        """The segment with the records after `zxid`; at a seam that is the later one."""
        at = bisect_right(self.segments, zxid, key=lambda segment: segment.base.zxid)
        return self.segments[at - 1] if at else None

    def _find_in(self, segment: Segment, zxid: int) -> Procedure[LogPosition]:
        found, offset = segment.start_before(zxid)
        window = Window(self._disk, segment, offset)
        while (record := (yield from window.next_record())) is not None:
            header = parse_header(record)
            if last_zxid(header) > zxid:
                break
            found = LogPosition(last_zxid(header), chain_of(record))
        return found

    def _read_in(
        self, segment: Segment, after: LogPosition, bytes_max: int
    ) -> Procedure[list[Batch] | None]:
        window = Window(self._disk, segment, self._cursor(segment, after))
        batches: list[Batch] = []
        size_bytes = 0
        while (record := (yield from window.next_record())) is not None:
            batch = Batch.of(record)
            if batch.last <= after.zxid:
                continue
            if not batches and batch.previous != after.chain:
                return None
            batches.append(batch)
            size_bytes += len(record)
            if size_bytes >= bytes_max:
                break
        if batches:
            self._remember(batches[-1].position, segment, window.offset)
        return batches or None

    def _cursor(self, segment: Segment, after: LogPosition) -> int:
        number, offset = self._cursors.pop(after, (0, 0))
        return offset if number == segment.number else segment.start_before(after.zxid)[1]

    def _remember(self, position: LogPosition, segment: Segment, offset: int) -> None:
        self._cursors[position] = (segment.number, offset)
        if len(self._cursors) > CURSORS_MAX:
            self._cursors.popitem(last=False)
