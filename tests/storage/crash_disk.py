"""A disk in memory that forgets like a real one: nothing un-synced is sure to survive a crash.

Every write since a file's last sync survives, vanishes or tears by itself; so does every creation,
renaming and removal since the directory's last sync. `halt_at` stops the world before a given
primitive operation; `crash` gives a disk in one of the states that could then be found.
"""

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from random import Random

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
    Read,
    Release,
    Rename,
    Size,
    Sync,
    SyncDir,
    Truncate,
    Unlink,
    WriteAt,
)

SECTOR_BYTES = 64  # small, so that a short record tears too
PLENTY_BYTES = 1 << 40


class Inode:
    """One file: what the process sees, what is durable, and what lies between."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytes(data)
        self.pending: list[tuple[int, bytes | None]] = []  # None: the size was set

    def write(self, offset: int, data: bytes) -> None:
        put(self.data, offset, data)
        self.pending.append((offset, data))

    def resize(self, size_bytes: int) -> None:
        resize(self.data, size_bytes)
        self.pending.append((size_bytes, None))

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.pending = []

    def after_crash(self, keep: Callable[[], str], rng: Random) -> "Inode":
        data = bytearray(self.durable)
        for offset, written in self.pending:
            fate = keep()
            if fate == "vanish":
                continue
            if written is None:
                resize(data, offset)
            elif fate == "survive":
                put(data, offset, written)
            else:
                for start, sector in sectors(offset, written):
                    if rng.random() < 0.5:
                        put(data, start, sector)
        return Inode(bytes(data))


class CrashDisk:
    def __init__(self, seed: int = 0) -> None:
        self.files: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        self.pending_names: list[tuple[str, str, Inode | None]] = []
        self.count = 0
        self.halt_at: int | None = None
        self.free_bytes = PLENTY_BYTES
        self.fault: Callable[[DiskOp], int] = lambda _op: 0
        """The errno that an operation fails with; 0 lets it be done."""
        self.log: list[DiskOp] = []
        self._rng = Random(seed)
        self._queues: dict[Lane, deque[_Job]] = {lane: deque() for lane in Lane}

    # --- the Disk protocol ---

    def submit(
        self,
        ops: Sequence[DiskOp],
        done: Callable[[DiskOutcome], None],
        lane: Lane = Lane.LOG,
    ) -> None:
        self._queues[lane].append(_Job(deque(ops), done))

    # --- driving it ---

    @property
    def halted(self) -> bool:
        return self.halt_at is not None and self.count >= self.halt_at

    def run(self) -> None:
        """Do everything that was submitted, and what that leads to, one operation at a time."""
        while not self.halted and any(self._queues.values()):
            self.step()

    def step(self, lane: Lane | None = None) -> bool:
        """Do one operation, of this lane or of either; False if there is none."""
        lanes = [each for each in Lane if self._queues[each] and lane in {None, each}]
        if lanes:
            self._step(self._queues[self._rng.choice(lanes)])
        return bool(lanes)

    def _step(self, queue: "deque[_Job]") -> None:
        job = queue[0]
        if job.ops:
            op = job.ops.popleft()
            self.count += 1
            self.log.append(op)
            number = self.fault(op)
            try:
                if number:
                    raise OSError(number, os.strerror(number))
                job.results.append(self._do(op))
            except OSError as error:
                queue.popleft()
                fault = DiskFault(op, error.errno or 0, str(error.strerror))
                job.done(DiskOutcome(job.results, fault))
                return
        if not job.ops and not self.halted:
            queue.popleft()
            job.done(DiskOutcome(job.results))

    # --- after a crash ---

    def crash(
        self,
        rng: Random,
        fates: Sequence[str] = ("survive", "vanish", "tear"),
        names_kept: int | None = None,
    ) -> "CrashDisk":
        """A disk as it may be found: each un-synced operation meets one of the fates.

        The bits of `names_kept`, if given, say which un-synced changes of names survive.
        """

        def keep() -> str:
            return rng.choice(fates)

        disk = CrashDisk(rng.randrange(1 << 30))
        names = dict(self.durable_names)
        for at, (source, target, inode) in enumerate(self.pending_names):
            lost = keep() == "vanish" if names_kept is None else not names_kept >> at & 1
            if lost:
                continue
            if source:
                names.pop(source, None)
            if target and inode is not None:
                names[target] = inode
        twins: dict[int, Inode] = {}
        for name in sorted(names):
            inode = names[name]
            twin = twins.setdefault(id(inode), inode.after_crash(keep, rng))
            disk.files[name] = disk.durable_names[name] = twin
        return disk

    def copy(self) -> "CrashDisk":
        """The same files, all of them durable."""
        disk = CrashDisk()
        for name, inode in self.files.items():
            disk.files[name] = disk.durable_names[name] = Inode(bytes(inode.data))
        return disk

    def killed(self) -> "CrashDisk":
        """The same machine for the next process: what was written is seen, synced or not."""
        disk = CrashDisk()
        disk.files, disk.durable_names = self.files, self.durable_names
        disk.pending_names = self.pending_names
        return disk

    def content(self) -> dict[str, bytes]:
        return {name: bytes(inode.data) for name, inode in sorted(self.files.items())}

    # --- the operations ---

    def _do(self, op: DiskOp) -> DiskResult:
        match op:
            case WriteAt(file, offset, data):
                joined = data if isinstance(data, bytes) else b"".join(data)
                self._inode(file).write(offset, joined)
            case Sync(file):
                self._inode(file).sync()
            case Create(file, size_bytes):
                self._create(file, size_bytes)
            case Truncate(file, size_bytes):
                self._inode(file).resize(size_bytes)
            case Rename(source, target):
                inode = self._inode(source)
                del self.files[source]
                self.files[target] = inode
                self.pending_names.append((source, target, inode))
            case Unlink(file):
                self._inode(file)
                del self.files[file]
                self.pending_names.append((file, "", None))
            case SyncDir():
                self.durable_names = dict(self.files)
                self.pending_names = []
            case Read(file, offset, size_bytes):
                return bytes(self._inode(file).data[offset : offset + size_bytes])
            case Size(file):
                return len(self._inode(file).data)
            case List():
                return sorted(self.files)
            case FreeSpace():
                return self.free_bytes
            case MakeDir() | Release():
                pass
        return None

    def _create(self, file: str, size_bytes: int) -> None:
        if file in self.files:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        inode = self.files[file] = Inode()
        self.pending_names.append(("", file, inode))
        if size_bytes:
            inode.resize(size_bytes)

    def _inode(self, file: str) -> Inode:
        if file not in self.files:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self.files[file]


class _Job:
    def __init__(self, ops: deque[DiskOp], done: Callable[[DiskOutcome], None]) -> None:
        self.ops = ops
        self.done = done
        self.results: list[DiskResult] = []


def put(data: bytearray, offset: int, written: bytes) -> None:
    """Write into the bytes of a file."""
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(written)] = written


def resize(data: bytearray, size_bytes: int) -> None:
    """Set the size of a file's bytes."""
    if len(data) > size_bytes:
        del data[size_bytes:]
    else:
        data.extend(bytes(size_bytes - len(data)))


def sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """The pieces of a write that a crash keeps or loses as a whole."""
    start = offset
    while start < offset + len(data):
        end = min((start // SECTOR_BYTES + 1) * SECTOR_BYTES, offset + len(data))
        yield start, data[start - offset : end - offset]
        start = end
