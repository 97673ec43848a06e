"""What moves between disk and peers in many pieces: records, snapshots, and an incoming snapshot.

None of it passes through the core: the core names the beginning and hears of the end. Each job
keeps one piece under way, so its memory is bounded, and gives the disk back when its link goes.

Invariants
    T1  Every job that was asked for ends in exactly one event, also when its link goes first.
        Before that it says of each piece that it went on.
    T2  An incoming snapshot changes nothing here until it is whole, verified and durable (S18).
    T3  How deep calls nest does not depend on the pieces, also where the disk answers at once.
"""

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from zabd.model.errors import StorageError
from zabd.model.zxid import Zxid
from zabd.replica.events import SnapshotTaken
from zabd.replica.rebuild import TreeBuilder
from zabd.server.loop import Loop
from zabd.server.pace import Pace
from zabd.server.peer_link import PeerLink
from zabd.storage import SnapshotReader, SnapshotWriter, Storage
from zabd.zab.codec import encode
from zabd.zab.events import (
    Event,
    RecordsStreamed,
    SnapshotInstalled,
    SnapshotStreamed,
    StreamFailed,
    StreamProgressed,
)
from zabd.zab.log import Batch, LogPosition
from zabd.zab.messages import Commit, Propose, Snap, SnapshotChunk
from zabd.znode_tree.snapshot import SnapshotWalk
from zabd.znode_tree.tree import ZnodeTree

RECORDS_BYTES: Final = 2**20
"""Read from the log at once; the peer's queue holds as much before the next read."""

INCOMING_BYTES_MAX: Final = 4 * 2**20
"""Chunks that came and are not written; above this the leader is not read."""

CHUNK_OVERHEAD_BYTES: Final = 512
"""What a chunk that waits weighs besides its data: many small ones must not count as nothing."""

CHUNK_DIGEST_SIZE: Final = 16
SLICE_NODES: Final = 64
"""Znodes encoded before the clock is looked at again: a third of a millisecond."""

SLICE_BYTES: Final = 256 * 2**10
SLICE_S: Final = 0.002
"""Of each turn that writes a piece of a snapshot; a client waits no longer for it. How often there
is one says `pace`."""

Report = Callable[[Event | SnapshotTaken], None]


class Repeat:
    """One step after the other, each when the one before asks for it, at once or later (T3)."""

    __slots__ = ("_due", "_running", "_step")

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._due = self._running = False

    def __call__(self) -> None:
        """Take the next step, when the one in hand has returned."""
        self._due = True
        if self._running:
            return
        self._running = True
        try:
            while self._due:
                self._due = False
                self._step()
        finally:
            self._running = False


class RecordStream:
    """Records from the log on disk to a learner, as the frames that it missed."""

    def __init__(
        self,
        storage: Storage,
        link: PeerLink,
        after: LogPosition,
        upto: Zxid,
        report: Report,
        *,
        told: bool = False,
    ) -> None:
        self._storage = storage
        self._link = link
        self._at = after
        self._upto = upto
        self._told = told
        self._report = report
        self._over = False
        self._next = Repeat(self._read_on)

    def start(self) -> None:
        """Begin; the end is reported."""
        self._next()

    def abandon(self) -> None:
        """The link is gone."""
        self._end(StreamFailed(self._link.id))

    def _read_on(self) -> None:
        if self._over:
            return
        if self._at.zxid >= self._upto:
            self._end(RecordsStreamed(self._link.id, self._at))
        else:
            self._storage.read_records(self._at, RECORDS_BYTES, self._read)

    def _read(self, batches: list[Batch] | None) -> None:
        if self._over:
            return
        wanted = [batch for batch in batches or () if batch.last <= self._upto]
        if not wanted:  # the log no longer has what comes next
            self._end(StreamFailed(self._link.id))
            return
        for batch in wanted:
            self._link.send(encode(Propose(batch.first, batch.count, batch.record)))
        if self._told:
            self._link.send(encode(Commit(wanted[-1].last)))
        self._link.flush()
        self._at = wanted[-1].position
        self._link.when_writable(self._taken)

    def _taken(self) -> None:
        if not self._over:
            self._report(StreamProgressed(self._link.id))
            self._next()

    def _end(self, event: Event) -> None:
        if not self._over:
            self._over = True
            self._report(event)


class SnapshotStream:
    """The newest verified snapshot to a learner, in chunks.

    Once it has been sent it stays, and with it the log behind it, until `release`: the learner
    needs that log when it has the snapshot, and would have to begin again without it.
    """

    def __init__(self, storage: Storage, link: PeerLink, report: Report) -> None:
        self._reader = storage.snapshot_reader()
        self._link = link
        self._report = report
        self._offset = 0
        self._over = False
        self._next = Repeat(self._read_on)

    def start(self) -> None:
        """Begin; the end is reported."""
        if self._reader is None:
            self._end(StreamFailed(self._link.id))
            return
        self._link.send(encode(Snap(self._reader.position)))
        self._next()

    def abandon(self) -> None:
        """The link is gone."""
        self._end(StreamFailed(self._link.id))

    def _read_on(self) -> None:
        if not self._over:
            assert self._reader is not None
            self._reader.read(self._read)

    def _read(self, piece: bytes | StorageError | None) -> None:
        if self._over:
            return
        assert self._reader is not None
        if isinstance(piece, StorageError):
            self._end(StreamFailed(self._link.id))
            return
        self._send(piece or b"", last=piece is None)
        if piece is None:
            self._end(SnapshotStreamed(self._link.id, self._reader.position))
        else:
            self._link.when_writable(self._taken)

    def _taken(self) -> None:
        if not self._over:
            self._report(StreamProgressed(self._link.id))
            self._next()

    def _send(self, data: bytes, *, last: bool) -> None:
        chunk = SnapshotChunk(self._offset, data, last, digest_of(data))
        self._offset += len(data)
        self._link.send(encode(chunk))
        self._link.flush()

    def _end(self, event: Event) -> None:
        if self._over:
            return
        self._over = True
        if type(event) is not SnapshotStreamed:
            self.release()
        self._report(event)

    def release(self) -> None:
        """The learner has what it needs, or its link is gone; harmless when repeated."""
        if self._reader is not None:
            self._reader.close()


class Installation:
    """The leader's snapshot from a link to the disk, and from there into a tree."""

    def __init__(
        self,
        storage: Storage,
        link: PeerLink,
        position: LogPosition,
        install_tree: Callable[[ZnodeTree], None],
        report: Report,
    ) -> None:
        self._storage = storage
        self._link = link
        self._position = position
        self._install_tree = install_tree
        self._report = report
        self._writer: SnapshotWriter = storage.snapshot_installer(position, self._went_on)
        self._chunks: deque[SnapshotChunk] = deque()
        self._waiting_bytes = 0
        self._offset = 0
        self._writing = False
        self._finishing = False
        self._over = False
        self._next = Repeat(self._write_on)

    def take(self, chunk: SnapshotChunk) -> None:
        """One chunk came; one that does not fit costs the link, and with it the installation."""
        if self._over or self._finishing:
            return
        if chunk.offset != self._offset or chunk.digest != digest_of(chunk.data):
            self._link.drop(f"a snapshot's chunk at {chunk.offset} is not what was sent")
            return
        if not chunk.data and not chunk.last:
            # Nothing is to be done for it, and there may be any number of them.
            self._link.drop(f"a snapshot's chunk at {chunk.offset} is empty and not the last one")
            return
        self._offset += len(chunk.data)
        self._waiting_bytes += len(chunk.data) + CHUNK_OVERHEAD_BYTES
        self._chunks.append(chunk)
        if self._waiting_bytes > INCOMING_BYTES_MAX:
            self._link.pause_reading()
        if not self._writing:
            self._next()

    def abandon(self) -> None:
        """The link is gone; what the disk has already been told to switch over to still counts."""
        if not self._finishing and not self._over:
            self._over = True
            self._writer.abort()
            self._report(StreamFailed(self._link.id))

    def _write_on(self) -> None:
        self._writing = False
        if self._over:
            return
        if self._writer.error is not None:
            self._finish()  # which says what it was
        elif self._chunks:
            chunk = self._chunks.popleft()
            self._waiting_bytes -= len(chunk.data) + CHUNK_OVERHEAD_BYTES
            if self._waiting_bytes <= INCOMING_BYTES_MAX // 2:
                self._link.resume_reading()
            self._writing = True
            self._writer.write(chunk.data, self._finish if chunk.last else self._written)

    def _written(self) -> None:
        self._went_on(self._next)

    def _went_on(self, then: Callable[[], None]) -> None:
        """A piece was written, read back or loaded: say so, and take the next one."""
        if not self._over:
            self._report(StreamProgressed(self._link.id))
        then()

    def _finish(self) -> None:
        if not self._over and not self._finishing:
            self._finishing = True
            self._writer.finish(self._finished)

    def _finished(self, error: StorageError | None) -> None:
        self._link.resume_reading()
        if error is not None:
            self._end(StreamFailed(self._link.id))
            return
        reader = self._storage.snapshot_reader()
        assert reader is not None, "a snapshot that was installed can be read"
        load_tree(reader, self._loaded, self._went_on)

    def _loaded(self, tree: ZnodeTree | StorageError) -> None:
        if isinstance(tree, StorageError):
            # The log already begins behind this snapshot, so there is no way back but a new start,
            # which reads and checks everything again.
            self._storage.on_failure(tree)
            return
        self._install_tree(tree)
        self._end(SnapshotInstalled(self._link.id, self._position))

    def _end(self, event: Event) -> None:
        if not self._over:
            self._over = True
            self._report(event)


class SnapshotTaking:
    """The tree to the disk, a slice a turn, while writes go on, and read back from there."""

    def __init__(
        self,
        storage: Storage,
        loop: Loop,
        position: LogPosition,
        walk: SnapshotWalk,
        pace: Pace,
        report: Report,
    ) -> None:
        self._writer = storage.snapshot_writer(position, pace)
        self._pace = pace
        self._loop = loop
        self._walk = walk
        self._report = report

    def start(self) -> None:
        """Begin; the end is reported."""
        self._next()

    def _next(self) -> None:
        self._pace(self._write_slice)

    def _write_slice(self) -> None:
        if self._writer.error is not None:
            self._walk.abandon()
            self._writer.finish(self._finished)
            return
        pieces, is_last = self._slices()
        if is_last:
            self._writer.write(b"".join(pieces), lambda: self._writer.finish(self._finished))
        else:
            self._writer.write(b"".join(pieces), self._next)

    def _slices(self) -> tuple[list[bytes], bool]:
        """As much as the time of one turn and one write allow; whether that was the last."""
        pieces: list[bytes] = []
        until = self._loop.time() + SLICE_S
        size_bytes = 0
        while size_bytes < SLICE_BYTES:
            piece = self._walk.next_slice(SLICE_NODES)
            if piece is None:
                return pieces, True
            pieces.append(piece)
            size_bytes += len(piece)
            if self._loop.time() >= until:
                break
        return pieces, False

    def _finished(self, error: StorageError | None) -> None:
        self._report(SnapshotTaken(error is None))


def load_tree(
    reader: SnapshotReader,
    done: Callable[[ZnodeTree | StorageError], None],
    went_on: Callable[[Callable[[], None]], None],
) -> None:
    """The tree in a snapshot, a piece at a time; StorageError if it cannot be had.

    `went_on` is told of each piece, and calls for the next one.
    """
    builder = TreeBuilder()
    builder.begin_snapshot(reader.position)
    read_on = Repeat(lambda: reader.read(received))

    def take(piece: bytes | StorageError | None) -> None:
        if isinstance(piece, bytes):
            builder.snapshot_chunk(piece)
            went_on(read_on)
            return
        reader.close()
        if isinstance(piece, StorageError):
            done(piece)
        else:
            builder.end_snapshot()
            done(builder.tree)

    def received(piece: bytes | StorageError | None) -> None:
        try:
            take(piece)
        except StorageError as error:
            reader.close()
            done(error)

    read_on()


def digest_of(data: bytes) -> bytes:
    """Guards a chunk against a memory or a network that flips bits; the whole has its own."""
    return blake2b(data, digest_size=CHUNK_DIGEST_SIZE).digest()


Stream = RecordStream | SnapshotStream
