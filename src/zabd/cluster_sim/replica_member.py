"""One member at the core level with all its behaviour: a `Replica`, its storage, its clients.

The effects of the replica's peer that the replica consumes itself (deliveries, changes of state,
confirmations) are told to the checker by a peer that is watched.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from struct import Struct
from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.connections import End
from zabd.cluster_sim.core_member import CoreMember
from zabd.cluster_sim.core_process import CoreProcess
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.network import Host
from zabd.cluster_sim.replica_checks import ReplicaChecker
from zabd.cluster_sim.restored_trees import decode
from zabd.cluster_sim.session_checks import Heard
from zabd.model.errors import DamagedError, StorageError
from zabd.model.ids import ConnectionId, LinkId, MemberId, SessionId
from zabd.model.ops import OpCode
from zabd.replica import Replica, ReplicaConfig
from zabd.replica import effects as out
from zabd.replica.connection import ConnectionState
from zabd.replica.events import Drained, SnapshotTaken
from zabd.replica.rebuild import TreeBuilder
from zabd.storage.snapshots import snapshot_zxid
from zabd.wire import EVENT_XID
from zabd.zab import effects as fx
from zabd.zab import events as ev
from zabd.zab.config import EnsembleConfig, RecoveredState
from zabd.zab.log import GENESIS, Batch, LogPosition
from zabd.zab.peer import Peer
from zabd.znode_tree.tree import ZnodeTree

if TYPE_CHECKING:
    from zabd.cluster_sim.replica_level import ReplicaLevel

CLIENT_PORT = 2181
FASTEST = 2.0  # a clock that is made to drift runs at half to twice its speed
SLICE_NODES = 7  # a few znodes at a time, so that writes fall between the slices

# A client that reads nothing is dropped when this much waits for it.
UNSENT_BYTES_MAX = 1 << 20


class _WatchedPeer(Peer):
    """A peer that tells what it asks for in its own order, before its replica makes turns of it."""

    __slots__ = ("_watch",)

    def __init__(
        self,
        config: EnsembleConfig,
        recovered: RecoveredState,
        rng: Random,
        trace: Callable[[str, Mapping[str, object]], None],
        watch: Callable[[fx.Effect | ev.Confirm], None],
    ) -> None:
        super().__init__(config, recovered, rng, trace)
        self._watch = watch

    def step(self, event: ev.Event, now_ms: int) -> list[fx.Effect]:
        """As a peer's; what it asks for is told first."""
        if isinstance(event, ev.Confirm):
            self._watch(event)
        effects = super().step(event, now_ms)
        for effect in effects:
            self._watch(effect)
        return effects


class _WatchedBuilder(TreeBuilder):
    """A tree made again, while the checker looks on: on what, and of what."""

    def __init__(self, checker: ReplicaChecker, member: MemberId) -> None:
        super().__init__()
        self._checker = checker
        self._member = member
        self._stands = self._label = GENESIS

    def begin_anew(self) -> None:
        """As it was in the beginning."""
        super().begin_anew()
        self._stands = GENESIS

    def begin_snapshot(self, position: LogPosition) -> None:
        """The last one may have been damaged."""
        super().begin_snapshot(position)
        self._label = position

    def end_snapshot(self) -> None:
        """It is to be built upon."""
        super().end_snapshot()
        self._checker.uses_snapshot(self._member, self._label)
        self._stands = self._label

    def record(self, batch: Batch) -> None:
        """The log goes on."""
        self._checker.goes_on(self._member, self._stands, batch)
        super().record(batch)
        self._stands = batch.position


class _ClientEnd:
    """The receiver of a client's connection at its member."""

    __slots__ = ("_connection_id", "_process")

    def __init__(self, process: "ReplicaProcess", connection_id: ConnectionId) -> None:
        self._process = process
        self._connection_id = connection_id

    def received(self, payload: object) -> None:
        self._process.enter(partial(self._process.client_bytes, self._connection_id, payload))

    def finished(self) -> None:
        self._process.enter(partial(self._process.client_gone, self._connection_id))

    def lost(self, _error: OSError) -> None:
        self._process.enter(partial(self._process.client_gone, self._connection_id))

    def drained(self) -> None:
        """Nobody waits for room: who reads too little is dropped."""


_FRAME_AND_XID: Final = Struct(">ii")


class ReplicaProcess(CoreProcess):
    """One life of a member with clients."""

    level: "ReplicaLevel"

    def __init__(self, member: CoreMember) -> None:
        self.replica: Replica | None = None
        self._clients: dict[ConnectionId, End] = {}
        self._turn_open = False
        self._applied = False
        self.ticked_us = -1
        self._expired: set[SessionId] = set()
        self._learnt: dict[LinkId, int] = {}
        super().__init__(member)
        self._performers.update(
            {
                out.Write: self._write,
                out.CloseConnection: self._close,
                out.PauseReading: lambda effect: self._reading(effect.connection_id, hold=True),
                out.ResumeReading: lambda effect: self._reading(effect.connection_id, hold=False),
                out.AnswerWord: self._close,
                out.ReportDrained: self._report_drained,
                out.TakeSnapshot: self._write_snapshot,
            }
        )
        self.stack.listen("", CLIENT_PORT, self._accept_client)

    # --- the replica -----------------------------------------------------------------------------

    def new_state(self) -> TreeBuilder:
        """A tree, from a snapshot and what follows it."""
        return _WatchedBuilder(self.level.checker, self.member.id)

    def _begin(self, state: RecoveredState) -> None:
        tree, shape = self.state.tree, self.level.shape
        config = ReplicaConfig(
            ensemble=self.level.ensemble_config(self.member.id),
            min_session_timeout_ms=2 * shape.tick_ms,
            max_session_timeout_ms=20 * shape.tick_ms,
            snapshot_every_txns=shape.snapshot_every,
        )
        self.replica = Replica(config, state, tree, self.rng, self.member.wall_clock, self.narrate)
        self.replica.peer = self.peer = _WatchedPeer(
            config.ensemble, state, self.rng, self.narrate, self._watch
        )
        self.level.checker.restored_to(self.seen, tree)

    def _watch(self, effect: fx.Effect | ev.Confirm) -> None:
        checker, seen = self.level.checker, self.seen
        assert seen is not None, "a peer that steps is watched"
        self.turn_at(effect)
        match effect:
            case fx.Deliver(batches):
                checker.delivered(seen, batches)
                self._applied = True
            case fx.Became():
                checker.became(seen, effect)
                self.level.note_became(self.member, effect)
            case ev.Confirm(token):
                checker.asked(seen, token)
            case fx.Confirmed(token):
                checker.confirmed(seen, token)
            case _:
                assert self.peer is not None, "it has just stepped"
                checker.asks(seen, effect, self.peer.epoch)

    def note_asked(self, _effect: object) -> None:
        """The checker was told when the peer asked for it, which is before the turn's end."""

    def _require_state(self) -> None:
        checker, replica = self.level.checker, self.replica
        assert isinstance(checker, ReplicaChecker), "replicas have the checker for them"
        assert replica is not None, "asked of a replica that has begun"
        assert self.seen is not None, "asked of a replica that has begun"
        checker.stands_at(self.seen, replica.tree)

    def step(self, event: ev.Event | SnapshotTaken | Drained) -> None:
        """Let the replica take one event; what it gathers goes out at the end of the turn."""
        replica = self.replica
        if replica is not None:
            self._turn_open = True
            self._perform(replica.step(event, self.member.now_ms()))

    def _end_turn(self) -> bool:
        replica = self.replica
        if replica is None or not self._turn_open:
            return False
        self._turn_open = False
        effects = replica.flush(self.member.now_ms())
        if self._applied:
            self._applied = False
            self._require_state()
        if effects and type(effects[0]) is out.Write:
            self._require_timely(effects)
        self._perform(effects)
        return True

    def _elapsed(self) -> None:
        replica = self.replica
        before = replica._next_tick_ms if replica is not None else 0  # noqa: SLF001 - see `Heard`
        super()._elapsed()
        if replica is not None and replica._next_tick_ms != before:  # noqa: SLF001 - as above
            self.ticked_us = self.level.schedule.now_us  # what was heard before has been told on
            self._require_expired()

    def _deadline_ms(self) -> int | None:
        return self.replica.deadline_ms if self.replica is not None else None

    # --- what a leader knows of the clients of others (S4) ---------------------------------------

    def _send(self, effect: fx.Send) -> None:
        end = self.links.get(effect.link)
        if end is not None:
            self.level.marks.setdefault(end.outgoing, deque()).append(self.ticked_us)
        super()._send(effect)

    def message(self, link: LinkId, payload: object) -> None:
        """Something came over a link; of a learner, it says what the learner has told before."""
        end = self.links.get(link)
        marks = self.level.marks.get(end.incoming) if end is not None else None
        learnt_us = marks.popleft() if marks else -1
        super().message(link, payload)
        self._learnt[link] = learnt_us

    def link_gone(self, link: LinkId) -> None:
        """A link has ended."""
        end = self.links.get(link)
        if end is not None:
            self.level.marks.pop(end.incoming, None)
        super().link_gone(link)

    def learnt_us(self, link: LinkId) -> int | None:
        """Up to when this member knows whom the member on that link has heard."""
        return self._learnt.get(link)

    @property
    def life(self) -> object:
        """This life of the member."""
        return self.seen

    @property
    def rate(self) -> float:
        """How fast its machine's clock runs at most, while it may be made to drift."""
        drifts = "clock drift" in self.level.shape.kinds
        return max(self.member.rate, FASTEST) if drifts else self.member.rate

    @property
    def led_ms(self) -> int:
        """For how long it has led."""
        leadership = self.replica.leadership if self.replica is not None else None
        return 0 if leadership is None else self.member.now_ms() - leadership.since_ms

    def _require_expired(self) -> None:
        leadership = self.replica.leadership if self.replica is not None else None
        if leadership is None:
            return
        sessions, now_us = self.level.checker.sessions, self.level.schedule.now_us
        expired = {
            intent.session_id
            for intent in leadership._gathered  # noqa: SLF001 - what it is about to do
            if not intent.request_id and intent.opcode == OpCode.CLOSE_SESSION
        }
        for session_id in sorted(expired - self._expired):  # the others have waited since earlier
            sessions.expiring(self, session_id, now_us)
        self._expired = expired

    def _require_timely(self, effects: Sequence[out.Effect]) -> None:
        assert self.seen is not None, "asked of a replica that has begun"
        now_us = self.level.schedule.now_us
        sessions = self.level.checker.sessions
        if sessions.is_fresh(self.seen.position, now_us):
            return  # as nearly always: nobody has to look into what is written
        drifts = "clock drift" in self.level.shape.kinds
        rate = min(self.member.rate, 1 / FASTEST) if drifts else self.member.rate
        if any(type(effect) is out.Write and _has_answer(effect.data) for effect in effects):
            sessions.require_timely(self.seen, self.seen.position, now_us, rate)

    def narrate(self, name: str, facts: Mapping[str, object]) -> None:
        """Put what the replica says of itself into the trace; some of it must not be."""
        super().narrate(name, facts)
        if name == "link dropped":
            self.level.checker.fail("A5", f"{self} drops a link: {facts['reason']}")

    # --- clients ---------------------------------------------------------------------------------

    def _accept_client(self, end: End) -> _ClientEnd:
        connection_id = end.connection.id
        self._clients[connection_id] = end
        address = f"{end.remote[0]}:{end.remote[1]}"
        self.enter(lambda: self._accepted(connection_id, address))
        return _ClientEnd(self, connection_id)

    def _accepted(self, connection_id: ConnectionId, address: str) -> None:
        if self.replica is None:
            self._drop(connection_id)
        else:
            self.replica.accept(connection_id, address, self.member.now_ms())

    def client_bytes(self, connection_id: ConnectionId, payload: object) -> None:
        """A client said something."""
        assert isinstance(payload, bytes), "clients speak bytes"
        replica = self.replica
        if replica is None:
            return
        self._turn_open = True
        connection = replica.clients.connections.get(connection_id)
        greets = connection is not None and connection.state is ConnectionState.GREETING
        replica.receive(connection_id, payload, self.member.now_ms())
        if connection is None or connection.state is ConnectionState.CLOSED:
            return
        sessions = self.level.checker.sessions
        if greets and connection.state is not ConnectionState.GREETING:
            seen_zxid = self.level.greetings.pop(connection_id, 0)
            sessions.admitted(self, seen_zxid, replica.tree.zxid)
        session_id = connection.session_id
        if session_id:
            heard = Heard(self.seen, replica.peer.leader_link, self.level.schedule.now_us)
            sessions.hears(self.member.id, session_id, heard)

    def client_gone(self, connection_id: ConnectionId) -> None:
        """A client's connection has ended."""
        self._drop(connection_id)
        if self.replica is not None:
            self._turn_open = True
            self.replica.closed(connection_id)
            self._require_no_ghosts()

    def _drop(self, connection_id: ConnectionId) -> None:
        end = self._clients.pop(connection_id, None)
        if end is not None:
            end.close()

    def _write(self, effect: out.Write) -> None:
        end = self._clients.get(effect.connection_id)
        if end is None:
            return
        end.send(effect.data, len(effect.data))
        if end.unsent_bytes > UNSENT_BYTES_MAX:
            end.abort()
            self.enter(partial(self.client_gone, effect.connection_id))

    def _report_drained(self, effect: out.ReportDrained) -> None:
        drained = Drained(effect.connection_id)
        self.level.schedule.after(1, lambda: self.enter(lambda: self.step(drained)))

    def _close(self, effect: out.CloseConnection | out.AnswerWord) -> None:
        self._drop(effect.connection_id)
        self._require_no_ghosts()

    def _require_no_ghosts(self) -> None:
        assert self.replica is not None, "asked of a replica that has begun"
        watchers = self.replica.clients.watches._by_watcher  # noqa: SLF001 - all there are
        closed = [w for w in watchers if getattr(w, "state", None) is ConnectionState.CLOSED]
        self.level.checker.sessions.require_no_ghosts(self, closed)

    def _reading(self, connection_id: ConnectionId, *, hold: bool) -> None:
        end = self._clients.get(connection_id)
        if end is not None and hold:
            end.hold_reading()
        elif end is not None:
            end.resume_reading()

    # --- snapshots -------------------------------------------------------------------------------

    def take_snapshot(self) -> None:
        """Let the next batch be the one after which a snapshot is due."""
        if self.replica is not None:
            hasten_snapshot(self.replica)

    def _take_state(self, state: TreeBuilder) -> None:
        assert self.replica is not None, "an installation has a replica"
        self.state = state
        self.replica.install_tree(state.tree)
        self._require_state()

    def installation_complete(self, position: LogPosition) -> None:
        """The last piece of a leader's snapshot is here; its file may get its name from now on."""
        self.level.checker.has_whole(self.member.id, position)

    def _write_snapshot(self, effect: out.TakeSnapshot) -> None:
        writer = self.storage.snapshot_writer(effect.position)

        def write_on() -> None:
            piece = effect.walk.next_slice(SLICE_NODES)
            if piece is None:
                self.level.checker.has_whole(self.member.id, effect.position)
                writer.finish(finished)
            else:
                writer.write(piece, lambda: self.enter(write_on))

        def finished(error: StorageError | None) -> None:
            if error is not None and not self.disturbed:
                raise InvariantError("X6", f"{self} cannot write a snapshot: {error}")
            self.enter(lambda: self.step(SnapshotTaken(done=error is None)))
            if error is None:
                self._restore_sometimes()

        write_on()

    def _restore_sometimes(self) -> None:
        """Make the tree again from this member's disks, as they are at this moment (R2)."""
        level, member = self.level, self.member
        if member.id in level.checker.damaged or not level.restores_now():
            return
        level.trace.record(member.host.name, "is restored beside it")
        builder = _WatchedBuilder(level.checker, member.id)
        assert level.checker.audit is not None, "a level sees to that"
        found = level.checker.audit.into(builder, member.id)
        if isinstance(found, StorageError) or found.damaged:
            level.checker.fail("D11", f"a copy of {self} does not start: {found}")
            return
        self._compare(self, builder.tree)
        if level.checker.unhurt(member.id):
            self._decode_snapshots()

    def _decode_snapshots(self) -> None:
        """Every snapshot there is, and the log from its label on, give the state (R2)."""
        image = self.member.image
        for file in sorted(image.names):
            if snapshot_zxid(file) is None:
                continue
            builder = TreeBuilder()
            try:
                decode(builder, file, image.content(file))
            except DamagedError as error:
                self.level.checker.fail("R2", f"{file} of {self}: {error}")
                continue
            self._compare(f"{file} of {self}", builder.tree)

    def _compare(self, who: object, tree: ZnodeTree) -> None:
        """Whatever it holds already may be replayed again: begin anywhere in that."""
        level = self.level
        start = level.restore_rng.randint(0, level.checker.batches_up_to(tree.zxid))
        level.checker.restored(who, tree, start)


def hasten_snapshot(replica: Replica) -> None:
    """Let a snapshot be due with the next batch that this replica delivers."""
    # A replica decides by itself, from what it has counted.
    replica._txns_since_snapshot = replica.config.snapshot_every_txns  # noqa: SLF001


def sessions_of(host: Host, members: Iterable[CoreMember]) -> list[SessionId]:
    """The sessions whose connections come from this machine."""
    return [
        connection.session_id
        for member in members
        if (replica := getattr(member.process, "replica", None)) is not None
        for connection in replica.clients.connections.values()
        if connection.state is ConnectionState.OPEN
        and connection.address.rpartition(":")[0] == host.address
    ]


def _has_answer(frames: bytes) -> bool:
    """Whether a member's bytes to a client hold more than events, which are news of any age."""
    at = 0
    while at < len(frames):
        length, xid = _FRAME_AND_XID.unpack_from(frames, at)
        if xid != EVENT_XID:
            return True
        at += 4 + length  # the length itself
    return False
