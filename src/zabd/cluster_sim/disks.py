"""A simulated disk: one process's way to a `DiskImage`, each primitive operation an appointment.

Invariants
    D1  Lists of one lane are done in order, one operation at a time; lanes do not wait for each
        other.
    D2  When the process is killed, chance decides whether the operation under way was done; those
        behind it were not, and nobody is told.
    D3  Who has been told that a file's write, sync or truncation failed, and writes, syncs or
        truncates it again, has a bug; what was submitted before is refused (K4 of storage.disk).
"""

import errno as errors
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final, NamedTuple, TypeAlias

from zabd.cluster_sim.disk_image import SECTOR_BYTES, DiskImage
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.schedule import Appointment, Schedule
from zabd.cluster_sim.trace import Trace
from zabd.storage.disk import (
    Create,
    DiskFault,
    DiskOp,
    DiskOutcome,
    DiskResult,
    FreeSpace,
    Lane,
    List,
    MakeDir,
    Rename,
    Sync,
    SyncDir,
    Truncate,
    Unlink,
    WriteAt,
)


class DiskSpeed(NamedTuple):
    """How long operations take: a least time and a spread for each kind, in microseconds."""

    write_us: tuple[int, int] = (20, 120)
    sync_us: tuple[int, int] = (250, 3_000)
    other_us: tuple[int, int] = (10, 60)

    def draw(self, op: DiskOp, rng: Random) -> int:
        """One operation's time; mostly near the least, sometimes far from it."""
        least, spread = self.other_us
        if isinstance(op, WriteAt):
            least, spread = self.write_us
        elif isinstance(op, _SYNCS):
            least, spread = self.sync_us
        chance = rng.random()
        return least + int(spread * chance * chance * chance)


_SYNCS: Final = (Sync, SyncDir)  # a union made anew at each question costs more than it

ORDINARY_SPEED: Final = DiskSpeed()


class Hurt(NamedTuple):
    """What an injected fault does to one operation."""

    errno: int = 0  # fail with this error; 0: it succeeds
    delay_us: int = 0  # but only after this much longer
    happened: Callable[[], object] | None = None  # told when it has failed


# Asked before each operation; None for an operation that nothing happens to.
Injector: TypeAlias = Callable[[DiskOp], Hurt | None]

# Asked when an operation begins (False) and when it is done (True); changes nothing. One that says
# True has gone off, and is not asked again.
Trap: TypeAlias = Callable[[DiskOp, bool], bool]


class _LaneQueue:
    """One lane's lists, and how far the first of them is."""

    __slots__ = ("appointment", "hurt", "lists", "results")

    def __init__(self) -> None:
        self.lists: deque[tuple[Sequence[DiskOp], Callable[[DiskOutcome], None]]] = deque()
        self.results: list[DiskResult] = []
        self.appointment: Appointment | None = None
        self.hurt: Hurt | None = None


class SimDisk:
    """A `Disk` of one simulated process, on an image that outlives it.

    `post` brings a completion onto the process's own turn; without it, `done` is called from the
    schedule. `rng` is the stream that disk times are drawn from. `failed` hears of a fault on the
    log's lane just before the one who asked does: what comes after is said with that knowledge.
    """

    def __init__(
        self,
        schedule: Schedule,
        image: DiskImage,
        trace: Trace,
        *,
        name: str,
        rng: Random,
        speed: DiskSpeed = ORDINARY_SPEED,
        post: Callable[[Callable[[], None]], object] | None = None,
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        self.image = image
        self.name = name
        self.speed = speed
        self.injector: Injector | None = None
        self.traps: list[Trap] = []
        self.sync_delay_us = 0  # how much longer each sync takes
        self.has_failed = image.crowded  # an operation was made to fail, or may be
        self._schedule = schedule
        self._trace = trace
        self._rng = rng
        self._post = post
        self._failed = failed
        self._lanes = {Lane.LOG: _LaneQueue(), Lane.BULK: _LaneQueue()}
        self._dead = False
        self._stalled = False
        self._told: set[str] = set()  # files of which the process knows that they are broken
        image.reopen()

    def submit(
        self,
        ops: Sequence[DiskOp],
        done: Callable[[DiskOutcome], None],
        lane: Lane = Lane.LOG,
    ) -> None:
        """Do `ops` behind everything submitted to `lane` before (see `storage.disk.Disk`)."""
        if self._dead:
            return
        for op in ops if self._told else ():
            if isinstance(op, WriteAt | Sync | Truncate) and op.file in self._told:
                raise InvariantError("D7", f"{self.name}: {_describe(op)}, of a file that failed")
        queue = self._lanes[lane]
        queue.lists.append((ops, done))
        if len(queue.lists) == 1:
            self._begin_next(queue)

    @property
    def disturbed(self) -> bool:
        """Whether it is made to fail, or was."""
        return self.has_failed or self.injector is not None

    def stall(self) -> None:
        """Let no operation complete until `resume`."""
        self._stalled = True
        for queue in self._lanes.values():
            if queue.appointment is not None:
                queue.appointment.cancel()
                queue.appointment = None

    def resume(self) -> None:
        """Let operations complete again."""
        if self._stalled:
            self._stalled = False
            for queue in self._lanes.values():
                if queue.lists:
                    self._begin_next(queue)

    def kill(self) -> None:
        """The process is gone: its operation under way may have been done (D2)."""
        if self._dead:
            return
        self._dead = True
        for queue in self._lanes.values():
            if queue.appointment is not None:
                queue.appointment.cancel()
                if self._rng.getrandbits(1) and queue.hurt is None:
                    self._finish_quietly(queue)
            queue.lists.clear()

    def _finish_quietly(self, queue: _LaneQueue) -> None:
        op = queue.lists[0][0][len(queue.results)]
        try:
            self.image.perform(op)
        except OSError:
            return  # it would have failed, and nobody is left to be told

    def _begin_next(self, queue: _LaneQueue) -> None:
        ops, _ = queue.lists[0]
        if not ops:
            queue.appointment = self._schedule.after(0, lambda: self._finish_list(queue, None))
            return
        if self._stalled:
            return
        op = ops[len(queue.results)]
        self._spring(op, done=False)
        queue.hurt = self.injector(op) if self.injector is not None else None
        delay_us = self.speed.draw(op, self._rng) + (queue.hurt.delay_us if queue.hurt else 0)
        if self.sync_delay_us and isinstance(op, _SYNCS):
            delay_us += self.sync_delay_us
        queue.appointment = self._schedule.after(delay_us, lambda: self._complete(queue, op), queue)

    def _complete(self, queue: _LaneQueue, op: DiskOp) -> None:
        queue.appointment = None
        hurt = queue.hurt
        try:
            if hurt is not None and hurt.errno:
                if hurt.happened is not None:
                    hurt.happened()
                raise OSError(hurt.errno, errors.errorcode.get(hurt.errno, "injected"))
            result = self.image.perform(op)
        except OSError as error:
            if error.errno == errors.ENOSPC or (hurt is not None and hurt.errno):
                self.has_failed = True
                self._break(op)
            self._trace.record(self.name, f"{_describe(op)} fails: {error}")
            number = error.errno or errors.EIO
            self._finish_list(queue, DiskFault(op, number, error.strerror or str(error)))
            return
        if self._told and isinstance(op, Unlink | Create):
            self._told.discard(op.file)  # whatever gets the name now is another file
        self._trace.record(self.name, _describe(op))
        queue.results.append(result)
        self._spring(op, done=True)
        if len(queue.results) == len(queue.lists[0][0]):
            self._finish_list(queue, None)
        else:
            self._begin_next(queue)

    def _tell(self, done: Callable[[DiskOutcome], None], outcome: DiskOutcome) -> None:
        fault = outcome.error
        if fault is not None and isinstance(fault.op, WriteAt | Sync | Truncate):
            self._told.add(fault.op.file)
        done(outcome)

    def _tell_of_log(self, done: Callable[[DiskOutcome], None], outcome: DiskOutcome) -> None:
        self._failed()
        done(outcome)

    def _spring(self, op: DiskOp, *, done: bool) -> None:
        if self.traps:
            self.traps = [trap for trap in self.traps if not trap(op, done)]

    def _break(self, op: DiskOp) -> None:
        match op:
            case Sync(file):
                self.image.fail_sync(file)
            case WriteAt(file) | Truncate(file):
                self.image.fail_write(file)
            case _:
                pass

    def _finish_list(self, queue: _LaneQueue, fault: DiskFault | None) -> None:
        _, done = queue.lists.popleft()
        outcome = DiskOutcome(queue.results, fault)
        if fault is not None and queue is self._lanes[Lane.LOG]:
            done = partial(self._tell_of_log, done)
        queue.results = []
        queue.appointment = None
        if queue.lists:
            self._begin_next(queue)
        if self._post is not None:
            self._post(lambda: self._tell(done, outcome))
        else:
            self._tell(done, outcome)


def spans_sectors(op: DiskOp) -> bool:
    """Whether it is a write that may be torn."""
    if not isinstance(op, WriteAt):
        return False
    size = len(op.data) if isinstance(op.data, bytes) else sum(map(len, op.data))
    return op.offset % SECTOR_BYTES + size > SECTOR_BYTES


def _describe(op: DiskOp) -> str:
    match op:
        case WriteAt(file, offset, data):
            size = len(data) if isinstance(data, bytes) else sum(map(len, data))
            return f"write {file}@{offset}+{size}"
        case Rename(source, target):
            return f"rename {source} {target}"
        case SyncDir(path) | MakeDir(path) | List(path):
            return f"{type(op).__name__} {path or '.'}"
        case FreeSpace():
            return "free"
        case _:
            return f"{type(op).__name__} {op.file}"
