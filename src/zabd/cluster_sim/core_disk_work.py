"""What a process at the core level does with its disk for its peer: effects in, answers out.

Appends, epochs, truncations, streams to learners, snapshots taken and snapshots installed, on the
real `Storage`. Every answer comes back as an event, never from within the step that asked for it.
"""

from collections import deque
from functools import partial
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgpack

from zabd.cluster_sim.connections import End
from zabd.cluster_sim.disks import SimDisk
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.schedule import Action
from zabd.cluster_sim.zab_checks import Incarnation
from zabd.model.errors import DamagedError, StorageError
from zabd.model.ids import LinkId
from zabd.storage.snapshot_files import SnapshotReader, SnapshotWriter
from zabd.storage.storage import Storage
from zabd.zab import effects as fx
from zabd.zab import events as ev
from zabd.zab.log import GENESIS, Batch, LogPosition, chain_of, last_zxid, parse_header
from zabd.zab.messages import Commit, Propose, Snap, SnapshotChunk
from zabd.zab.peer import Peer

if TYPE_CHECKING:
    from zabd.cluster_sim.core_level import CoreLevel

STREAM_BYTES: Final = 16 << 10  # a few records at a time, so that much can happen in between
CHUNK_DIGEST_BYTES: Final = 8


class ChainState:
    """The replicated state of a bare peer: where it stands. A snapshot is that and some padding."""

    def __init__(self) -> None:
        self.position = GENESIS
        self._label = GENESIS
        self._content = bytearray()

    def begin_anew(self) -> None:
        """Forget everything."""
        self.position = GENESIS
        self._content.clear()

    def begin_snapshot(self, position: LogPosition) -> None:
        """A snapshot follows; it counts once it has ended."""
        self._label = position
        self._content.clear()

    def snapshot_chunk(self, chunk: bytes) -> None:
        """Take a piece."""
        self._content += chunk

    def end_snapshot(self) -> None:
        """Check that the content is what its label says; DamagedError if not."""
        zxid, chain, _ = msgpack.unpackb(self._content)
        if LogPosition(zxid, chain) != self._label:
            raise DamagedError(f"the snapshot labelled {self._label} holds {zxid}, {chain!r}")
        self.position = self._label

    def record(self, batch: Batch) -> None:
        """Apply one batch."""
        assert batch.previous == self.position.chain, "Z2: batches are applied in order"
        self.position = batch.position

    def content(self, rng: Random) -> bytes:
        """A snapshot of it."""
        packed = msgpack.packb([int(self.position.zxid), self.position.chain, rng.randbytes(700)])
        assert isinstance(packed, bytes)
        return packed


class DiskWork:
    """The half of a process that works for its peer on the disk."""

    level: "CoreLevel"
    peer: Peer | None
    seen: Incarnation | None
    storage: Storage
    disks: list[SimDisk]
    state: Any  # of this kind of process: a RecoverySink
    rng: Random
    links: dict[LinkId, End]
    busy: bool

    def __init__(self) -> None:
        self.installations: dict[LinkId, Installation] = {}
        self._append_ends: dict[int, LogPosition] = {}
        self._since_snapshot = 0
        self._snapshotting = False

    @property
    def disturbed(self) -> bool:
        """Whether one of its disks is made to fail, or was."""
        return any(disk.disturbed for disk in self.disks)

    def enter(self, action: Action) -> None:
        """Something happens to this process."""
        raise NotImplementedError

    def step(self, event: ev.Event) -> None:
        """Let the peer take one event."""
        raise NotImplementedError

    def new_state(self) -> Any:  # noqa: ANN401 - of this kind of process
        """An empty state that a snapshot can be poured into."""
        return ChainState()

    # --- the disk --------------------------------------------------------------------------------

    def _append(self, effect: fx.Append) -> None:
        end = LogPosition(last_zxid(parse_header(effect.record)), chain_of(effect.record))
        self._append_ends[effect.append_id] = end
        self.storage.append(
            effect.record, effect.committed, lambda: self._persisted(effect.append_id)
        )

    def _persisted(self, append_id: int) -> None:
        end = self._append_ends.pop(append_id)
        if self.seen is not None and self.seen.leads is not None:
            self.level.checker.counted_itself(self.seen, end)
        self._answer(ev.Persisted(append_id))

    def _answer(self, event: ev.Event) -> None:
        """An answer of the storage, which may come from within a step."""
        if self.busy:
            self.enter(lambda: self.step(event))
        else:
            self.step(event)

    def _persist_epochs(self, effect: fx.PersistEpochs) -> None:
        done = ev.EpochsPersisted(effect.request_id)
        self.storage.persist_epochs(
            effect.accepted,
            effect.current,
            effect.cluster_id,
            lambda: self._answer(done),
            repaired=effect.repaired,
        )

    def _truncate(self, effect: fx.Truncate) -> None:
        assert self.seen is not None, "an effect has a peer"
        seen = self.seen
        self.level.checker.truncating(seen, effect.position)

        def truncated(done: bool) -> None:  # noqa: FBT001 - storage's answer
            if done:
                self.level.checker.truncated(seen, effect.position, self.storage.durable)
            else:
                self.level.checker.truncation_refused(seen)
            self._answer(ev.Truncated(effect.request_id, done))

        self.storage.truncate(effect.position, truncated)

    def _find_record(self, effect: fx.FindRecord) -> None:
        def found(position: LogPosition | None) -> None:
            exact = position is not None and position.zxid == effect.zxid
            self._answer(ev.RecordFound(effect.request_id, position, exact))

        self.storage.find_record(effect.zxid, found)

    def _stream_records(self, effect: fx.StreamRecords) -> None:
        link = effect.link

        def read_on(after: LogPosition) -> None:
            self.storage.read_records(after, STREAM_BYTES, partial(send, after))

        def send(after: LogPosition, batches: list[Batch] | None) -> None:
            end = self.links.get(link)
            if batches is None or end is None:
                self._answer(ev.StreamFailed(link))
                return
            for batch in batches:
                if batch.last > effect.upto:
                    break
                end.send(Propose(batch.first, batch.count, batch.record))
                after = batch.position
            if effect.told and batches:
                end.send(Commit(after.zxid))
            if after.zxid >= effect.upto:
                self._answer(ev.RecordsStreamed(link, after))
            elif batches:
                read_on(after)
            else:
                self._answer(ev.StreamFailed(link))

        read_on(effect.after)

    # --- snapshots -------------------------------------------------------------------------------

    def _stream_snapshot(self, effect: fx.StreamSnapshot) -> None:
        link, reader = effect.link, self.storage.snapshot_reader()
        end = self.links.get(link)
        if reader is None or end is None:
            self._answer(ev.StreamFailed(link))
            return
        end.send(Snap(reader.position))
        self._stream_chunks(link, reader, 0, None)

    def _stream_chunks(
        self, link: LinkId, reader: SnapshotReader, offset: int, held: bytes | None
    ) -> None:
        """Send `held` once it is known whether another piece follows it."""

        def have(piece: bytes | StorageError | None) -> None:
            end = self.links.get(link)
            if isinstance(piece, StorageError) or end is None:
                reader.close()
                self._answer(ev.StreamFailed(link))
                return
            if held is not None:
                end.send(SnapshotChunk(offset, held, piece is None, chunk_digest(held)))
            if piece is None:
                reader.close()
                self._answer(ev.SnapshotStreamed(link, reader.position))
            else:
                self._stream_chunks(link, reader, offset + len(held or b""), piece)

        reader.read(have)

    def _install(self, effect: fx.InstallSnapshot) -> None:
        assert self.seen is not None, "an effect has a peer"
        self.level.checker.installing(self.seen, effect.position)
        self.installations[effect.link] = Installation(self, effect)
        if effect.link not in self.links:
            self.enter(self.installations[effect.link].give_up)

    def installation_over(self, effect: fx.InstallSnapshot, state: ChainState | None) -> None:
        """An installation has ended: with a new state, or without."""
        self.installations.pop(effect.link, None)
        if state is None:
            self._answer(ev.StreamFailed(effect.link))
            return
        assert self.seen is not None, "an installation has a peer"
        self.level.checker.installed(self.seen, effect.position)
        self._take_state(state)
        self._answer(ev.SnapshotInstalled(effect.link, effect.position))

    def _take_state(self, state: Any) -> None:  # noqa: ANN401 - of this kind of process
        self.state = state

    def installation_complete(self, position: LogPosition) -> None:
        """The last piece of a leader's snapshot is here."""

    def take_snapshot(self) -> None:
        """Write a snapshot of the state as it stands, unless one is being written."""
        if self._snapshotting or self.peer is None or self.state.position == GENESIS:
            return
        self._snapshotting = True
        self._since_snapshot = 0
        writer: SnapshotWriter = self.storage.snapshot_writer(self.state.position)
        content = self.state.content(self.rng)

        def ended(error: StorageError | None) -> None:
            self._snapshotting = False
            if error is not None and not self.disturbed:
                raise InvariantError("X6", f"{self} cannot write a snapshot: {error}")

        def write_second_half() -> None:
            writer.write(content[300:], lambda: writer.finish(ended))

        writer.write(content[:300], write_second_half)


class Installation:
    """A snapshot on its way from a leader into the storage."""

    def __init__(self, process: DiskWork, effect: fx.InstallSnapshot) -> None:
        self._process = process
        self._effect = effect
        self._state = process.new_state()
        self._state.begin_snapshot(effect.position)
        self._writer = process.storage.snapshot_installer(effect.position)
        self._waiting: deque[SnapshotChunk] = deque()
        self._writing = False
        self._over = False  # nothing can stop it any more, or it has been stopped

    def take(self, chunk: SnapshotChunk) -> None:
        """The next chunk arrived."""
        if not self._over:
            self._waiting.append(chunk)
            self._write_on()

    def give_up(self) -> None:
        """The link is gone."""
        if not self._over:
            self._over = True
            self._writer.abort()
            self._process.installation_over(self._effect, None)

    def _write_on(self) -> None:
        if self._writing or not self._waiting or self._over:
            return
        chunk = self._waiting.popleft()
        assert chunk.digest == chunk_digest(chunk.data), "a chunk arrives as it was sent"
        self._state.snapshot_chunk(chunk.data)
        self._writing = True
        self._writer.write(chunk.data, partial(self._written, last=chunk.last))

    def _written(self, *, last: bool) -> None:
        self._writing = False
        if self._over:
            return
        if last:
            self._over = True
            self._process.installation_complete(self._effect.position)
            self._state.end_snapshot()
            self._writer.finish(self._finished)
        else:
            self._write_on()

    def _finished(self, error: StorageError | None) -> None:
        self._process.installation_over(self._effect, self._state if error is None else None)


def chunk_digest(data: bytes) -> bytes:
    """What vouches for a chunk on its way."""
    return blake2b(data, digest_size=CHUNK_DIGEST_BYTES).digest()
