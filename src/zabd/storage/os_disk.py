"""The machine's own file system behind the `Disk` protocol: the only module that touches files.

Each lane has a thread that makes the system calls, nearly all of which release the interpreter's
lock; one list of operations is one hand-off there and one back. Invariants K1 to K4 of
`storage.disk` hold, and

    K5  While an OsDisk is open, no other process has its directory (`flock`), and no other user
        can read it (0700, files 0600).
    K6  A Sync covers all that was written to its file before. Only where nothing but the write
        right in front of it is unsynced may the two be one call, which covers that write alone.
"""

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias, assert_never

from zabd.model import StorageError
from zabd.storage.config import Trace
from zabd.storage.disk import (
    Buffers,
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

_BUFFERS_MAX: Final = 1024  # IOV_MAX of Linux and macOS: more buffers need a second call
_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)
"""Linux: a write that ends when its bytes are durable, as if `fdatasync` came behind it."""

_CANNOT_DSYNC: Final = {errno.EOPNOTSUPP, errno.ENOSYS}
"""What kernels and file systems say that do not know it."""

_CANNOT_RESERVE: Final = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""What file systems say that know no reservation."""

_Job: TypeAlias = tuple[Sequence[DiskOp], Callable[[DiskOutcome], None]]


class OsDisk:
    """A directory of the machine's file system, held by this process alone while it is open.

    One thread per lane makes the system calls, so that the loop never waits for a disk; `post`
    brings each outcome back (`loop.call_soon_threadsafe` in service). The directory is made when
    it is missing, closed to other users, and locked: StorageError if any of that cannot be done.
    """

    def __init__(
        self,
        root: str,
        post: Callable[[Callable[[], None]], None],
        trace: Trace = lambda _event, _fields: None,
    ) -> None:
        self._post = post
        self._root_fd = _open_root(root, trace)
        failed: set[str] = set()
        unsynced: set[str] = set()
        self._queues: dict[Lane, SimpleQueue[_Job | None]] = {lane: SimpleQueue() for lane in Lane}
        self._threads = [
            threading.Thread(
                target=self._work,
                args=(self._queues[lane], _Files(os.dup(self._root_fd), failed, unsynced)),
                name=f"disk-{lane.value}",
                daemon=True,  # a stalled disk must not keep a dying process alive
            )
            for lane in Lane
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        ops: Sequence[DiskOp],
        done: Callable[[DiskOutcome], None],
        lane: Lane = Lane.LOG,
    ) -> None:
        """See `Disk.submit`; one hand-off to the lane's thread per list."""
        self._queues[lane].put((ops, done))

    def close(self) -> None:
        """Finish what was submitted, close every file and give up the lock; blocks meanwhile."""
        self.close_soon()
        self.wait_closed()

    def close_soon(self) -> None:
        """As `close`, but waits for nothing: a device may never answer.

        The threads do it when they get there. The lock is given up with the last of them, so nobody
        else has the directory while something may still be written to it (K5).
        """
        for queue in self._queues.values():
            queue.put(None)
        os.close(self._root_fd)

    def wait_closed(self) -> None:
        """Until the lock is given up, behind `close_soon`; for who opens the directory again."""
        for thread in self._threads:
            thread.join()

    def _work(self, queue: "SimpleQueue[_Job | None]", files: "_Files") -> None:
        while (job := queue.get()) is not None:
            ops, done = job
            outcome = files.perform(ops)
            try:
                self._post(partial(done, outcome))
            except RuntimeError:
                break  # the owner's loop is closed: nobody is left to be told
        files.close()


class _Files:
    """What one lane's thread knows: the descriptors of the files that it writes."""

    def __init__(self, root_fd: int, failed: set[str], unsynced: set[str]) -> None:
        self._root_fd = root_fd  # its own, which shares the lock
        self._failed = failed  # of both lanes, K4
        self._unsynced = unsynced  # of both lanes, K6
        self._can_dsync = _DSYNC != 0
        self._open: dict[str, int] = {}

    def perform(self, ops: Sequence[DiskOp]) -> DiskOutcome:
        results: list[DiskResult] = []
        while len(results) < len(ops):
            op = ops[len(results)]
            try:
                if self._write_durably(ops, len(results)):
                    results += (None, None)
                else:
                    results.append(self._perform(op))
            except OSError as error:
                self._give_up_on(op)
                number = error.errno or errno.EIO
                return DiskOutcome(results, DiskFault(op, number, os.strerror(number)))
            except MemoryError:
                self._give_up_on(op)
                return DiskOutcome(results, DiskFault(op, errno.ENOMEM, "out of memory"))
        return DiskOutcome(results)

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        os.close(self._root_fd)

    def _write_durably(self, ops: Sequence[DiskOp], at: int) -> bool:
        """Do a write and the sync behind it in one call, where that is the same (K6).

        Each call gives the interpreter's lock up and waits to have it again: 80 us of CPU for a
        group of records, where two calls took 105 us.
        """
        op = ops[at]
        if not self._can_dsync or type(op) is not WriteAt or op.file in self._unsynced:
            return False
        buffers = [op.data] if isinstance(op.data, bytes) else op.data
        behind = ops[at + 1] if at + 1 < len(ops) else None
        synced = type(behind) is Sync and behind.file == op.file
        if not synced or len(buffers) > _BUFFERS_MAX:
            return False
        try:
            written = os.pwritev(self._writable(op.file), buffers, op.offset, _DSYNC)
        except OSError as error:
            if error.errno not in _CANNOT_DSYNC:
                raise
            self._can_dsync = False
            return False
        # A short write is done again, in two calls: the first goes on or says why it cannot.
        return written == sum(map(len, buffers))

    def _perform(self, op: DiskOp) -> DiskResult:
        match op:
            case WriteAt(file, offset, data):
                self._unsynced.add(file)
                _write_all(self._writable(file), offset, data)
            case Sync(file):
                _fdatasync(self._writable(file))
                self._unsynced.discard(file)
            case Read(file, offset, size_bytes):
                return self._read(file, offset, size_bytes)
            case Create(file, size_bytes):
                self._create(file, size_bytes)
            case Truncate(file, size_bytes):
                self._unsynced.add(file)
                os.ftruncate(self._writable(file), size_bytes)
            case Rename(source, target):
                self._rename(source, target)
            case Unlink(file):
                self._forget(file)
                os.unlink(file, dir_fd=self._root_fd)
                self._failed.discard(file)
                self._unsynced.discard(file)
            case SyncDir(path):
                _with_directory(self._root_fd, path, os.fsync)
            case MakeDir(path):
                self._make_dir(path)
            case Size(file):
                return os.stat(file, dir_fd=self._root_fd).st_size
            case List(path):
                return _with_directory(self._root_fd, path, _names)
            case FreeSpace():
                space = os.fstatvfs(self._root_fd)
                return space.f_bavail * space.f_frsize
            case Release(file):
                self._release(file)
            case _:
                assert_never(op)
        return None

    def _give_up_on(self, op: DiskOp) -> None:
        if isinstance(op, WriteAt | Sync | Truncate):
            self._failed.add(op.file)
            self._forget(op.file)

    def _writable(self, file: str) -> int:
        if file in self._failed:
            raise OSError(errno.EIO, "an earlier write or sync of this file failed")  # K4
        descriptor = self._open.get(file)
        if descriptor is None:
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._root_fd)
            self._open[file] = descriptor
        return descriptor

    def _read(self, file: str, offset: int, size_bytes: int) -> bytes:
        # A reader keeps no descriptor: the other lane may put a new file under this name.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._root_fd)
        try:
            return _read_all(descriptor, offset, size_bytes)
        finally:
            os.close(descriptor)

    def _create(self, file: str, size_bytes: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(file, flags, _FILE_MODE, dir_fd=self._root_fd)
        self._unsynced.add(file)
        self._open[file] = descriptor
        if size_bytes:
            _reserve(descriptor, size_bytes)

    def _rename(self, source: str, target: str) -> None:
        if source in self._failed:
            raise OSError(errno.EIO, "an earlier write or sync of this file failed")  # K4
        os.rename(source, target, src_dir_fd=self._root_fd, dst_dir_fd=self._root_fd)
        self._forget(source)
        self._forget(target)
        self._failed.discard(target)
        self._unsynced.discard(target)
        if source in self._unsynced:
            self._unsynced.remove(source)
            self._unsynced.add(target)

    def _make_dir(self, path: str) -> None:
        try:
            os.mkdir(path, _DIRECTORY_MODE, dir_fd=self._root_fd)
        except FileExistsError:
            return

    def _release(self, file: str) -> None:
        descriptor = self._open.get(file)
        if descriptor is None:
            return
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self._forget(file)

    def _forget(self, file: str) -> None:
        descriptor = self._open.pop(file, None)
        if descriptor is not None:
            os.close(descriptor)


def _open_root(root: str, trace: Trace) -> int:
    try:
        _make_root(Path(root).absolute())
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(
            f"{root} cannot be opened as a data directory: {os.strerror(error.errno or 0)}; "
            "name a directory that this user may create or owns"
        ) from error
    try:
        _close_to_others(root, descriptor, trace)
        _lock(root, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_root(root: Path) -> None:
    """Make the directory and those above it, and their names durable, each in its parent (S2)."""
    missing = [path for path in (root, *root.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(_DIRECTORY_MODE, exist_ok=True)
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


def _close_to_others(root: str, descriptor: int, trace: Trace) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise StorageError(
            f"{root} belongs to user {status.st_uid} and this process runs as {os.geteuid()}; "
            "start the member as the owner of its data, or give the directory to this user"
        )
    if not os.access(root, os.W_OK | os.X_OK):
        raise StorageError(
            f"{root} cannot be written; mount its file system read-write, or name another directory"
        )
    mode = status.st_mode & 0o777
    if mode & 0o077:
        os.fchmod(descriptor, _DIRECTORY_MODE)
        trace("data_directory_closed_to_others", {"directory": root, "mode": f"{mode:04o}"})


def _lock(root: str, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise StorageError(
            f"{root} is in use by another process; stop that one first, "
            "or give each member a directory of its own"
        ) from error


def _with_directory(root_fd: int, path: str, use: Callable[[int], DiskResult]) -> DiskResult:
    if not path:
        return use(root_fd)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=root_fd)
    try:
        return use(descriptor)
    finally:
        os.close(descriptor)


def _names(directory: int) -> list[str]:
    return sorted(os.listdir(directory))


def _write_all(descriptor: int, offset: int, data: Buffers) -> None:
    buffers = [data] if isinstance(data, bytes) else data
    for start in range(0, len(buffers), _BUFFERS_MAX):
        some = buffers[start : start + _BUFFERS_MAX]
        wanted = sum(map(len, some))
        written = os.pwritev(descriptor, some, offset)
        if written < wanted:
            _write_rest(descriptor, offset + written, b"".join(some)[written:])
        offset += wanted


def _write_rest(descriptor: int, offset: int, data: bytes) -> None:
    """Finish a short write: the next call either goes on or says why it cannot."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        offset += written
        view = view[written:]


def _read_all(descriptor: int, offset: int, size_bytes: int) -> bytes:
    data = os.pread(descriptor, size_bytes, offset)
    if len(data) == size_bytes or not data:
        return data
    parts = [data]
    while data and size_bytes > 0:
        size_bytes -= len(data)
        offset += len(data)
        data = os.pread(descriptor, size_bytes, offset)
        parts.append(data)
    return b"".join(parts)


def _fdatasync(descriptor: int) -> None:
    # Systems without fdatasync have fsync, which does all of it and more.
    getattr(os, "fdatasync", os.fsync)(descriptor)


def _reserve(descriptor: int, size_bytes: int) -> None:
    """Reserve space where the system can; elsewhere writing may fail for want of it later (S9)."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError as error:
            if error.errno not in _CANNOT_RESERVE:
                raise
        else:
            return
    os.ftruncate(descriptor, size_bytes)
