"""Writing and reading snapshot files while a member runs, on the BULK lane, a piece at a time."""

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from zabd.model import DamagedError, LocalProtocolError, StorageError
from zabd.storage.disk import (
    Create,
    Disk,
    DiskOp,
    DiskOutcome,
    FreeSpace,
    Lane,
    Read,
    Release,
    Sync,
    Unlink,
    WriteAt,
)
from zabd.storage.procedures import DiskError, Pace, at_once, run, tell_damage
from zabd.storage.snapshots import (
    WINDOW_BYTES,
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotInfo,
    verify,
)
from zabd.zab.log import LogPosition

SYNC_BYTES: Final = 1 << 20
"""Written between two syncs: the log's next sync never has to wait for more than this. With eight
times as much it waited for up to 68 ms."""

Finished: TypeAlias = Callable[[StorageError | None], None]


class SnapshotWriter:
    """Takes the content of one snapshot in pieces; nothing of it counts until `finish` says so.

    Keep one `write` outstanding at a time. After an error (a full disk is one, F12) writing does
    nothing, and `finish` says what it was: the member goes on without this snapshot.
    """

    def __init__(
        self,
        disk: Disk,
        temporary: str,
        position: LogPosition,
        cluster_id: bytes | None,
        room_bytes: int,
        publish: Callable[[SnapshotInfo, Finished], None],
        ended: Callable[[StorageError | None], None],
        pace: Pace = at_once,
    ) -> None:
        self.position = position
        self.error: StorageError | None = None
        self._disk = disk
        self._temporary = temporary
        self._room_bytes = room_bytes
        self._publish = publish
        self._ended = ended
        self._pace = pace  # of reading it back
        self._encoder = SnapshotEncoder(position, cluster_id)
        self._offset = 0
        self._synced = 0
        self._open = True
        disk.submit([FreeSpace(), Create(temporary)], self._created, Lane.BULK)
        self._write([self._encoder.header], lambda: None)

    def write(self, chunk: bytes, done: Callable[[], None]) -> None:
        """Add the next piece; `done` when the next one may come."""
        self._require_open()
        self._write(list(self._encoder.blocks(chunk)), done)

    def finish(self, done: Finished) -> None:
        """That was all: make it durable, read it back, give it its name; `done(None)` if all held.

        Only then may anything that it replaces be deleted.
        """
        self._require_open()
        self._open = False

        def checked(result: SnapshotInfo | StorageError) -> None:
            if isinstance(result, StorageError):
                self._fail(result, done)
            else:
                self._publish(result, lambda error: self._end(error, done))

        def synced(outcome: DiskOutcome) -> None:
            self._note(outcome)
            if self.error is not None:
                self._fail(self.error, done)
            else:
                run(verify(self._disk, self._temporary), checked, Lane.BULK, self._pace)

        if self.error is not None:
            self._fail(self.error, done)
            return
        footer = WriteAt(self._temporary, self._offset, self._encoder.footer())
        # Released before it is read: the check is of the device, not of the page cache.
        ops: list[DiskOp] = [footer, Sync(self._temporary), Release(self._temporary)]
        self._disk.submit(ops, synced, Lane.BULK)

    def abort(self) -> None:
        """Forget what was written; harmless after the end."""
        if self._open:
            self._open = False
            self._fail(StorageError("the snapshot was given up"), lambda _error: None)

    def _write(self, buffers: list[bytes], done: Callable[[], None]) -> None:
        def written(outcome: DiskOutcome) -> None:
            self._note(outcome)
            done()

        if self.error is not None or not buffers:
            done()
            return
        ops: list[DiskOp] = [WriteAt(self._temporary, self._offset, buffers)]
        self._offset += sum(map(len, buffers))
        if self._offset - self._synced >= SYNC_BYTES:
            self._synced = self._offset
            ops.append(Sync(self._temporary))
        self._disk.submit(ops, written, Lane.BULK)

    def _created(self, outcome: DiskOutcome) -> None:
        free = outcome.results[0] if outcome.results else None
        if isinstance(free, int) and free < self._room_bytes and self.error is None:
            self.error = StorageError(
                f"{free} bytes are free and a snapshot needs {self._room_bytes} to be sure of its "
                "room and of the log's; make room, the next one is tried again"
            )
        self._note(outcome)

    def _note(self, outcome: DiskOutcome) -> None:
        if outcome.error is not None and self.error is None:
            self.error = DiskError(outcome.error)

    def _fail(self, error: StorageError, done: Finished) -> None:
        # If the file is not there, there is nothing to remove.
        self._disk.submit([Unlink(self._temporary)], lambda _: self._end(error, done), Lane.BULK)

    def _end(self, error: StorageError | None, done: Finished) -> None:
        self.error = error
        self._ended(error)
        done(error)

    def _require_open(self) -> None:
        if not self._open:
            raise LocalProtocolError("the snapshot was finished or aborted before")


class SnapshotReader:
    """Reads one verified snapshot, which is not deleted before `close`.

    `lost` hears of damage, and of nothing else that keeps this process from reading.
    """

    def __init__(
        self,
        disk: Disk,
        info: SnapshotInfo,
        closed: Callable[[], None],
        lost: Callable[[DamagedError], None],
    ) -> None:
        self.position = info.position
        self.size_bytes = info.content_bytes
        self._disk = disk
        self._file = info.file
        self._closed: Callable[[], None] | None = closed
        self._lost = lost
        self._decoder = SnapshotDecoder(info.file)
        self._offset = 0
        self._contents: deque[bytes] = deque()
        self._finished = False

    def read(self, done: Callable[[bytes | StorageError | None], None]) -> None:
        """The next piece of content, at most a block long; None after the last one.

        A StorageError says that the file cannot be read, and a DamagedError among them that it is
        not as it was written; ask for another reader then. Keep one `read` outstanding at a time.
        """

        def have(outcome: DiskOutcome) -> None:
            try:
                self._take(outcome)
            except DamagedError as error:
                self._lost(error)
                done(error)
            except StorageError as error:
                done(error)
            else:
                self.read(done)

        if self._contents:
            done(self._contents.popleft())
        elif self._finished:
            done(None)
        else:
            read = Read(self._file, self._offset, WINDOW_BYTES)
            self._disk.submit([read], have, Lane.BULK)

    def close(self) -> None:
        """Let go of the file; harmless when repeated."""
        if self._closed is not None:
            closed, self._closed = self._closed, None
            closed()

    def _take(self, outcome: DiskOutcome) -> None:
        if outcome.error is not None:
            error = DiskError(outcome.error)
            tell_damage(error, self._file, self._offset)
            raise error
        [data] = outcome.results
        assert isinstance(data, bytes)
        self._offset += len(data)
        self._contents.extend(self._decoder.feed(data))
        if len(data) < WINDOW_BYTES:
            self._decoder.finish()
            self._finished = True
