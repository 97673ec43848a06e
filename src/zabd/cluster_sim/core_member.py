"""One member at the core level: a bare `zab.Peer` and the real `Storage` on a simulated disk.

A `CoreMember` is a machine with its disk, which outlives crashes; a `CoreProcess` is one life on
it. The process performs a peer's effects one at a time, and a crash may fall between any two.

Invariants
    M1  A peer hears one event at a time, in the order in which they happened to its process, and
        never from within the performing of its own effects.
    M2  A process that is dead does nothing: what it had asked for comes back to nobody.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgpack

from zabd.cluster_sim.connections import End
from zabd.cluster_sim.disks import DiskImage, SimDisk
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.network import Host
from zabd.cluster_sim.schedule import US_PER_MS, Action, Appointment
from zabd.cluster_sim.zab_checks import Incarnation
from zabd.model.errors import DamagedError, RemoteProtocolError, StorageError
from zabd.model.ids import LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.storage.config import StorageConfig
from zabd.storage.epochs import EPOCHS, IDENTITY, decode_identity
from zabd.storage.recovery import Recovered
from zabd.storage.snapshot_files import SnapshotReader, SnapshotWriter
from zabd.zab import effects as fx
from zabd.zab import events as ev
from zabd.zab.config import RecoveredState
from zabd.zab.log import GENESIS, Batch, LogPosition
from zabd.zab.messages import Message, PeerState, Propose, Snap, SnapshotChunk
from zabd.zab.peer import Peer

if TYPE_CHECKING:
    from zabd.cluster_sim.core_level import CoreLevel

QUORUM_PORT: Final = 2888
STREAM_BYTES: Final = 16 << 10  # a few records at a time, so that much can happen in between
CHUNK_DIGEST_BYTES: Final = 8


class CoreMember:
    """A machine of the ensemble; `process` is its life, None while it is down."""

    def __init__(self, level: "CoreLevel", member: MemberId, host: Host) -> None:
        self.id = member
        self.host = host
        self.image = DiskImage()
        self.process: CoreProcess | None = None
        self.level = level
        rng = level.schedule.stream(f"member {member}")
        self.rate = 1.0 + rng.uniform(-1, 1) * level.shape.drift_ppm_max / 1e6
        self.boot_ms = rng.randrange(1_000_000)
        level.checker.watch_disk(member, self.image)
        self.image.on_name_durable = self._name_durable

    def now_ms(self) -> int:
        """This machine's monotonic clock."""
        return self.boot_ms + int(self.level.schedule.now_us * self.rate) // US_PER_MS

    def is_blank(self) -> bool:
        """Whether its disk belongs to no cluster for certain."""
        content = self.image.durable_content(IDENTITY)
        return content is None or decode_identity(content).cluster_id is None

    def start(self) -> None:
        """Begin a life, unless there is one."""
        if self.process is None:
            self.host.up = True
            self.level.trace.record(self.host.name, "starts")
            self.process = self.level.process_class(self)

    def crash(self, *, power: bool) -> None:
        """End the life that there is: the process alone, or the machine with its page cache."""
        process, self.process = self.process, None
        if process is not None:
            self.level.trace.record(self.host.name, "power cut" if power else "killed")
            process.die(power=power)
        if power:
            self.host.up = False
            self.image.lose_power(self.level.crash_rng)

    def _name_durable(self, name: str) -> None:
        if name == EPOCHS:
            self.level.checker.epochs_durable(self.id)


class _LinkEnd:
    """The receiver of one quorum connection at one process."""

    __slots__ = ("_link", "_process")

    def __init__(self, process: "CoreProcess", link: LinkId) -> None:
        self._process = process
        self._link = link

    def received(self, payload: object) -> None:
        self._process.enter(partial(self._process.message, self._link, payload))

    def finished(self) -> None:
        self._process.enter(partial(self._process.link_gone, self._link))

    def lost(self, _error: OSError) -> None:
        self._process.enter(partial(self._process.link_gone, self._link))

    def drained(self) -> None:
        """Links at the core level are not bounded: a run is."""


class ChainState:
    """The replicated state of a bare peer: where it stands. A snapshot is that and some padding."""

    def __init__(self) -> None:
        self.position = GENESIS
        self._content = bytearray()

    def begin_snapshot(self, position: LogPosition) -> None:
        """Forget everything."""
        self.position = position
        self._content.clear()

    def snapshot_chunk(self, chunk: bytes) -> None:
        """Take a piece."""
        self._content += chunk

    def end_snapshot(self) -> None:
        """Check that the content is what its label says; DamagedError if not."""
        zxid, chain, _ = msgpack.unpackb(self._content)
        if (zxid, chain) != self.position:
            raise DamagedError(f"the snapshot labelled {self.position} holds {zxid}, {chain!r}")

    def record(self, batch: Batch) -> None:
        """Apply one batch."""
        assert batch.previous == self.position.chain, "Z2: batches are applied in order"
        self.position = batch.position

    def content(self, rng: Random) -> bytes:
        """A snapshot of it."""
        packed = msgpack.packb([int(self.position.zxid), self.position.chain, rng.randbytes(700)])
        assert isinstance(packed, bytes)
        return packed


class CoreProcess:
    """One life of one member."""

    def __init__(self, member: CoreMember) -> None:
        level, shape = member.level, member.level.shape
        self.member = member
        self.level = level
        self.alive = True
        self.paused = False
        self.peer: Peer | None = None
        self.seen: Incarnation | None = None
        self.fuse: tuple[int, bool] | None = None  # a crash before the n-th effect from now
        self.state = self._new_state()
        self.rng = level.schedule.stream(f"life {level.next_life()}")
        self._inbox: deque[Action] = deque()
        self._busy = False
        self._links: dict[LinkId, End] = {}
        self._installers: dict[LinkId, _Installation] = {}
        self._timer: Appointment | None = None
        self._since_snapshot = 0
        self._snapshotting = False
        self._append_ends: dict[int, LogPosition] = {}
        self._performers: dict[type, Callable[..., object]] = {
            fx.Send: self._send,
            fx.Append: self._append,
            fx.Deliver: self._deliver,
            fx.Notify: self._notify,
            fx.Dial: self._dial,
            fx.Hangup: self._hangup,
            fx.PersistEpochs: self._persist_epochs,
            fx.Truncate: self._truncate,
            fx.FindRecord: self._find_record,
            fx.StreamRecords: self._stream_records,
            fx.StreamSnapshot: self._stream_snapshot,
            fx.InstallSnapshot: self._install,
            fx.Became: self._became,
            fx.Confirmed: self._confirmed,
            fx.Stop: self._stop,
        }
        self.stack = level.network.open_stack(member.host)
        self.stack.listen("", QUORUM_PORT, self._accept)
        self.disk = SimDisk(
            level.schedule,
            member.image,
            level.trace,
            name=f"{member.host.name}/disk",
            rng=level.disk_rng,
            speed=shape.disk_speed,
            post=self.enter,
        )
        config = StorageConfig(segment_bytes=shape.segment_bytes, space_floor_bytes=0)
        self.storage = level.storage_class(self.disk, self.disk, config, member.now_ms)
        self.storage.on_failure = self._storage_failed
        self.enter(lambda: self.storage.recover(self.state, member.id, None, self._recovered))

    # --- one thing at a time ---------------------------------------------------------------------

    def enter(self, action: Action) -> None:
        """Something happens to this process: now, or as soon as it can take it (M1)."""
        if not self.alive:
            return
        self._inbox.append(action)
        if not self._busy and not self.paused:
            self._work()

    def _work(self) -> None:
        self._busy = True
        inbox = self._inbox
        try:
            while self.alive and not self.paused:
                if inbox:
                    self.level.events += 1
                    inbox.popleft()()
                elif not self._end_turn():
                    break
        except InvariantError:
            raise
        except Exception as error:
            raise InvariantError("X6", f"{self}: {error!r}") from error
        finally:
            self._busy = False
        if self.alive:
            self._set_timer()

    def _end_turn(self) -> bool:
        """Nothing is left to take: finish the turn; whether that did anything."""
        return False

    def _new_state(self) -> Any:  # noqa: ANN401 - a RecoverySink of this kind of process
        return ChainState()

    def pause(self) -> None:
        """Take nothing until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Take what has happened meanwhile, in its order."""
        if self.paused:
            self.paused = False
            if not self._busy:
                self._work()

    def die(self, *, power: bool) -> None:
        """End (M2)."""
        self.alive = False
        self._inbox.clear()
        self.disk.kill()
        if power:
            self.stack.power_off()
        else:
            self.stack.kill()
        if self._timer is not None:
            self._timer.cancel()

    def __str__(self) -> str:
        return f"member {self.member.id}" if self.seen is None else str(self.seen)

    # --- the peer --------------------------------------------------------------------------------

    def _recovered(self, found: Recovered | StorageError) -> None:
        if isinstance(found, StorageError) and self.disk.injector is not None:
            self._storage_failed(found)
            return
        if isinstance(found, StorageError):
            raise InvariantError("D11", f"{self} does not start: {found}")
        state = RecoveredState(
            found.accepted_epoch, found.current_epoch, found.cluster_id, found.delivered, found.tail
        )
        self.seen = self.level.checker.recovered(self.member.id, state)
        self._begin(state)
        self.step(ev.Start())

    def _begin(self, state: RecoveredState) -> None:
        assert self.state.position == state.delivered, "R3: the tree stands there"
        config = self.level.ensemble_config(self.member.id)
        self.peer = self.level.peer_class(config, state, self.rng, self.narrate)

    def narrate(self, name: str, facts: Mapping[str, object]) -> None:
        """Put what the peer says of itself into the trace."""
        told = " ".join(f"{key}={value}" for key, value in facts.items())
        self.level.trace.record(self.member.host.name, f"{name} {told}")

    def step(self, event: ev.Event) -> None:
        """Let the peer take one event, and perform what it asks for, one effect after another."""
        if self.peer is not None:
            self._perform(self.peer.step(event, self.member.now_ms()))

    def _perform(self, effects: Sequence[object]) -> None:
        for effect in effects:
            if self.fuse is not None and self._burn():
                return
            self._performers[type(effect)](effect)
            if not self.alive:
                return

    def submit(self, count: int, payload: bytes) -> None:
        """Propose something, if this is still a leader that may."""
        if self.peer is not None and self.peer.can_submit:
            self.step(ev.Submit(count, payload))

    def confirm(self, token: int) -> None:
        """Ask a leader to prove that it leads."""
        if self.peer is not None and self.seen is not None and self.peer.can_submit:
            self.level.checker.asked(self.seen, token)
            self.step(ev.Confirm(token))

    def name_leader(self, leader: MemberId) -> None:
        """Decide this peer's election, if it is still looking."""
        if self.peer is not None and self.peer.state is PeerState.LOOKING:
            self.step(ev.Elected(leader))

    def _burn(self) -> bool:
        assert self.fuse is not None, "asked only while it burns"
        left, power = self.fuse
        if left > 0:
            self.fuse = (left - 1, power)
            return False
        self.level.fault_happened("crash between effects")
        self.level.crash(self.member, power=power)
        return True

    def _deadline_ms(self) -> int | None:
        return self.peer.deadline_ms if self.peer is not None else None

    def _set_timer(self) -> None:
        deadline_ms = self._deadline_ms()
        timer = self._timer
        if deadline_ms is None:
            return
        wait_ms = max(0, deadline_ms - self.member.now_ms())
        at_us = self.level.schedule.now_us + int((wait_ms + 1) * US_PER_MS / self.member.rate)
        if timer is not None and timer.pending:
            if timer.at_us <= at_us:
                return  # it comes early, looks, and is set again
            timer.cancel()
        self._timer = self.level.schedule.at(at_us, self._tick)

    def _tick(self) -> None:
        if not self.alive:
            return
        due_ms = self._deadline_ms()
        if self.paused or (due_ms is not None and due_ms <= self.member.now_ms()):
            self.enter(self._elapsed)
        else:
            self._set_timer()

    def _elapsed(self) -> None:
        self.level.trace.record(self.member.host.name, "timer")
        self.step(ev.Elapsed())

    # --- links -----------------------------------------------------------------------------------

    def _accept(self, end: End) -> _LinkEnd:
        link = end.connection.id
        self._links[link] = end
        return _LinkEnd(self, link)

    def _dial(self, effect: fx.Dial) -> None:
        member, level = effect.member, self.level

        def connected(end: End) -> _LinkEnd:
            patience.cancel()
            link = end.connection.id
            self._links[link] = end
            self.enter(lambda: self.step(ev.Dialled(link, member)))
            return _LinkEnd(self, link)

        def failed(_error: OSError) -> None:
            patience.cancel()
            self.enter(lambda: self.step(ev.DialFailed(member)))

        def give_up() -> None:
            dial.cancel()
            self.enter(lambda: self.step(ev.DialFailed(member)))

        patience = level.schedule.after(level.shape.tick_ms * US_PER_MS, give_up)
        name = level.members[member].host.name
        dial = self.stack.dial(name, QUORUM_PORT, connected=connected, failed=failed)

    def message(self, link: LinkId, payload: object) -> None:
        """Something came over a link."""
        if link not in self._links or self.seen is None:
            return
        if isinstance(payload, SnapshotChunk):
            if (installation := self._installers.get(link)) is not None:
                installation.take(payload)
            return
        message: Message = payload  # type: ignore[assignment]  # links carry nothing else
        self.level.checker.received(self.seen, link, message)
        try:
            self.step(ev.Received(link, message))
        except RemoteProtocolError as error:
            raise InvariantError("A5", f"{self} refuses {message}: {error}") from error

    def link_gone(self, link: LinkId) -> None:
        """A link has ended."""
        end = self._links.pop(link, None)
        if end is None:
            return
        end.close()
        if (installation := self._installers.get(link)) is not None:
            installation.give_up()
        self.step(ev.Disconnected(link))

    def _hangup(self, effect: fx.Hangup) -> None:
        end = self._links.pop(effect.link, None)
        if end is not None:
            end.close()
        if (installation := self._installers.get(effect.link)) is not None:
            self.enter(installation.give_up)

    def _send(self, effect: fx.Send) -> None:
        end = self._links.get(effect.link)
        if end is not None and self.seen is not None:
            self.level.checker.sent(self.seen, effect.link, effect.message)
            end.send(effect.message)

    def _notify(self, effect: fx.Notify) -> None:
        level, target = self.level, self.level.members[effect.member]
        event = ev.Notified(effect.notification)

        def arrive() -> None:
            if (process := target.process) is not None:
                level.trace.record(target.host.name, f"vote {describe_vote(event)}")
                process.enter(lambda: process.step(event))

        level.network.datagram(self.member.host, target.host, arrive)

    # --- the disk --------------------------------------------------------------------------------

    def _append(self, effect: fx.Append) -> None:
        assert self.peer is not None, "an effect has a peer"
        assert self.seen is not None, "an effect has a peer"
        self.level.checker.appending(self.seen, effect, self.peer.epoch)
        self._append_ends[effect.append_id] = self.seen.history.last
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
        if self._busy:
            self.enter(lambda: self.step(event))
        else:
            self.step(event)

    def _persist_epochs(self, effect: fx.PersistEpochs) -> None:
        done = ev.EpochsPersisted(effect.request_id)
        self.storage.persist_epochs(
            effect.accepted, effect.current, effect.cluster_id, lambda: self._answer(done)
        )

    def _truncate(self, effect: fx.Truncate) -> None:
        assert self.seen is not None, "an effect has a peer"
        seen = self.seen
        self.level.checker.truncating(seen, effect.position)

        def truncated(done: bool) -> None:  # noqa: FBT001 - storage's answer
            if done:
                self.level.checker.truncated(seen, effect.position, self.storage.durable)
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
            end = self._links.get(link)
            if batches is None or end is None:
                self._answer(ev.StreamFailed(link))
                return
            for batch in batches:
                if batch.last > effect.upto:
                    break
                end.send(Propose(batch.first, batch.count, batch.record))
                after = batch.position
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
        end = self._links.get(link)
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
            end = self._links.get(link)
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
        self._installers[effect.link] = _Installation(self, effect)
        if effect.link not in self._links:
            self.enter(self._installers[effect.link].give_up)

    def installation_over(self, effect: fx.InstallSnapshot, state: ChainState | None) -> None:
        """An installation has ended: with a new state, or without."""
        self._installers.pop(effect.link, None)
        if state is None:
            self._answer(ev.StreamFailed(effect.link))
            return
        assert self.seen is not None, "an installation has a peer"
        self.level.checker.installed(self.seen, effect.position)
        self._take_state(state)
        self._answer(ev.SnapshotInstalled(effect.link, effect.position))

    def _take_state(self, state: Any) -> None:  # noqa: ANN401 - of this kind of process
        self.state = state

    def new_state(self) -> Any:  # noqa: ANN401 - of this kind of process
        """An empty state that a snapshot can be poured into."""
        return self._new_state()

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
            if error is not None and self.disk.injector is None:
                raise InvariantError("X6", f"{self} cannot write a snapshot: {error}")

        def write_second_half() -> None:
            writer.write(content[300:], lambda: writer.finish(ended))

        writer.write(content[:300], write_second_half)

    # --- what the peer tells ---------------------------------------------------------------------

    def _deliver(self, effect: fx.Deliver) -> None:
        assert self.seen is not None, "an effect has a peer"
        self.level.checker.delivered(self.seen, effect.batches)
        for batch in effect.batches:
            self.state.record(batch)
        self._since_snapshot += len(effect.batches)
        if self._since_snapshot >= self.level.shape.snapshot_every:
            self.enter(self.take_snapshot)

    def _became(self, effect: fx.Became) -> None:
        assert self.seen is not None, "an effect has a peer"
        self.level.checker.became(self.seen, effect)
        self.level.note_became(self.member, effect)

    def _confirmed(self, effect: fx.Confirmed) -> None:
        assert self.seen is not None, "an effect has a peer"
        self.level.checker.confirmed(self.seen, effect.token)

    def _stop(self, effect: fx.Stop) -> None:
        raise InvariantError("X6", f"{self} stops: {effect.reason}")

    def _storage_failed(self, error: StorageError) -> None:
        self.level.storage_failed(self.member, error)


class _Installation:
    """A snapshot on its way from a leader into the storage."""

    def __init__(self, process: CoreProcess, effect: fx.InstallSnapshot) -> None:
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
            self._state.end_snapshot()
            self._writer.finish(self._finished)
        else:
            self._write_on()

    def _finished(self, error: StorageError | None) -> None:
        self._process.installation_over(self._effect, self._state if error is None else None)


def chunk_digest(data: bytes) -> bytes:
    """What vouches for a chunk on its way."""
    return blake2b(data, digest_size=CHUNK_DIGEST_BYTES).digest()


def describe_vote(event: ev.Notified) -> str:
    """A notification as the trace names it."""
    told = event.notification
    return (
        f"from {told.sender} round {told.round} for {told.leader} at "
        f"{Zxid(told.zxid)!r} epoch {told.epoch} {told.state.name.lower()}"
    )
