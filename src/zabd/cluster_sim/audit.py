"""The audit: what the real recovery code would load from a member's disks, if it crashed now.

It works on a copy of the devices, at once and outside of virtual time, so a run is the same with
and without it. Its chance is a stream of its own.

A log only grows, mostly. What an earlier audit has decoded of a segment is not decoded again while
the same bytes stand there, every one compared; what recovery makes of it is made anew each time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from zabd.cluster_sim.core_process import recovered_state
from zabd.cluster_sim.disk_image import NOTHING_SURVIVES, DiskImage, Survival
from zabd.model.errors import StorageError
from zabd.model.ids import MemberId
from zabd.storage import recovery
from zabd.storage.config import StorageConfig
from zabd.storage.disk import DiskFault, DiskOp, DiskResult
from zabd.storage.procedures import DiskError, Procedure
from zabd.storage.record import Mark, SegmentHeader, SegmentScan
from zabd.storage.recovery import RecoverySink, recover
from zabd.zab.config import RecoveredState
from zabd.zab.log import Batch, LogPosition

if TYPE_CHECKING:
    from zabd.cluster_sim.core_level import CoreLevel

T = TypeVar("T")

_ONE_IN: Final = 32  # acknowledgements: the rest is judged by what syncs have told

_ITEMS_PER_ACK: Final = 40
"""An audit goes over the whole log: at an even rate they would cost more and more in a long run.
One that chance asks for is left out while they have gone over more than this for each
acknowledgement so far, which runs of seeds hardly ever do: they are too short."""


class _Nowhere:
    """Takes a recovered state and lets go of it: only where it stands is asked."""

    def begin_anew(self) -> None:
        """Nothing to forget."""

    def begin_snapshot(self, position: LogPosition) -> None:
        """A snapshot follows."""

    def snapshot_chunk(self, chunk: bytes) -> None:
        """A piece of it."""

    def end_snapshot(self) -> None:
        """All of it."""

    def record(self, batch: Batch) -> None:
        """A committed batch."""


class _CopiedDisk:
    """A device whose operations are done at once, by `carry_out`."""

    def __init__(self, image: DiskImage) -> None:
        self.image = image

    def submit(self, *_: object) -> None:
        """Not a disk of a process: nothing is ever waited for."""
        raise AssertionError("an audit performs its operations itself")


class _Step(NamedTuple):
    """An item of a segment, and where the walk over it stands behind that."""

    item: Mark | Batch
    end: LogPosition
    end_offset: int
    group_end: int
    last_mark: Mark | None


class _Walk:
    """What was decoded of one segment: of the first `size` bytes of `data`."""

    def __init__(self, header: SegmentHeader) -> None:
        self.header = header
        self.data = b""
        self.size = 0
        self.steps: list[_Step] = []


class _Walks(dict[int, _Walk]):
    """Those of one member, by the numbers of their segments."""

    gone_over = 0  # records and marks, by all audits so far


class _ResumedScan(SegmentScan):
    """A walk over a segment that begins with what was decoded of the same bytes before."""

    def __init__(self, walks: _Walks, data: bytes, header: SegmentHeader) -> None:
        super().__init__(data, header)
        walk = walks.get(header.number)
        if walk is None or walk.header != header or not data.startswith(walk.data[: walk.size]):
            walk = walks[header.number] = _Walk(header)
        self._walk = walk
        walks.gone_over += len(walk.steps)
        self._walks = walks

    def __iter__(self) -> Iterator[Mark | Batch]:
        steps = self._walk.steps
        for item, self.end, self.end_offset, self._group_end, self.last_mark in steps:
            yield item
        for item in super().__iter__():
            steps.append(_Step(item, self.end, self.end_offset, self._group_end, self.last_mark))
            self._walk.data, self._walk.size = self._data, self.end_offset
            self._walks.gone_over += 1
            yield item


@contextmanager
def _resuming(walks: _Walks) -> Iterator[None]:
    """Let recovery go over segments in this way."""
    before = vars(recovery)["SegmentScan"]
    vars(recovery)["SegmentScan"] = partial(_ResumedScan, walks)
    try:
        yield
    finally:
        vars(recovery)["SegmentScan"] = before


class Auditor:
    """The audits of one run."""

    def __init__(self, level: "CoreLevel") -> None:
        self._level = level
        self._rng = level.schedule.stream("audits")
        self._walks: dict[MemberId, _Walks] = {}
        self._asked = 0
        self.done = 0

    @property
    def due(self) -> bool:
        """Whether chance wants one at this acknowledgement."""
        self._asked += 1
        if self._rng.randrange(_ONE_IN):
            return False
        gone_over = sum(walks.gone_over for walks in self._walks.values())
        return gone_over <= _ITEMS_PER_ACK * self._asked

    def __call__(self, member: MemberId) -> RecoveredState | StorageError:
        """What a restart would load after a power cut now, which leaves only what is durable."""
        return self._load(member, NOTHING_SURVIVES)

    def after_some_crash(self, member: MemberId) -> RecoveredState | StorageError:
        """The same, after a power cut that keeps what chance keeps."""
        return self._load(member, Survival.draw(self._rng))

    def into(self, sink: RecoverySink, member: MemberId) -> RecoveredState | StorageError:
        """The same, after a power cut that leaves only what is durable; the tree is in `sink`."""
        return self._load(member, NOTHING_SURVIVES, sink)

    def _load(
        self, member: MemberId, survival: Survival, sink: RecoverySink | None = None
    ) -> RecoveredState | StorageError:
        self.done += 1
        images = self._level.members[member].images
        copies = [image.copy() for image in images]
        for copy in copies:
            copy.lose_power(self._rng, survival)
        config = self._level.storage_config(member)
        with _resuming(self._walks.setdefault(member, _Walks())):
            return load(copies, config, member, sink or _Nowhere())


def load(
    images: list[DiskImage], config: StorageConfig, member: MemberId, sink: RecoverySink
) -> RecoveredState | StorageError:
    """What recovery makes of these devices (the last one has the log), which it may change."""
    disks = [_CopiedDisk(image) for image in images]
    start = recover(disks[0], disks[-1], config, sink, member, None, lambda *_: None)
    try:
        return recovered_state(carry_out(start).recovered)
    except StorageError as error:
        return error


def carry_out(procedure: Procedure[T]) -> T:
    """Carry a procedure of the storage through at once. Raises StorageError."""
    try:
        disk, ops = next(procedure)
        while True:
            assert isinstance(disk, _CopiedDisk)
            results: list[DiskResult] = []
            fault = None
            for op in ops:
                fault = _perform(disk.image, op, results)
                if fault is not None:
                    break
            disk, ops = procedure.send(results) if fault is None else procedure.throw(fault)
    except StopIteration as stop:
        value: T = stop.value
        return value


def _perform(image: DiskImage, op: DiskOp, results: list[DiskResult]) -> DiskError | None:
    try:
        results.append(image.perform(op))
    except OSError as error:
        return DiskError(DiskFault(op, error.errno or 0, error.strerror or str(error)))
    return None
