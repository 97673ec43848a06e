"""An ensemble of real replicas joined by FIFO links, on disks that are always done at once.

It is for claims about the replica room alone; crashes, slow disks and lossy networks belong to the
simulator.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from zabd.model.errors import RemoteProtocolError
from zabd.model.ids import ConnectionId, LinkId, MemberId
from zabd.model.ops import Op
from zabd.model.session import PASSWORD_SIZE, ConnectRequest, ConnectResponse
from zabd.replica import Replica, ReplicaConfig
from zabd.replica import effects as out
from zabd.replica.events import Drained, SnapshotTaken
from zabd.wire.connection import ClientConnection, Event, Reply
from zabd.zab import effects as zab
from zabd.zab import events
from zabd.zab.config import EnsembleConfig, RecoveredState
from zabd.zab.log import GENESIS, Batch, LogPosition, chain_of, parse_header
from zabd.zab.messages import Commit, Propose
from zabd.znode_tree.tree import ZnodeTree

TICK_MS = 2000
SETTLE_STEPS_MAX = 100_000


class FixedClock:
    """Wall time that the test sets."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        """Milliseconds since 1970, by this clock."""
        return self.now_ms


@dataclass
class Client:
    """One client connection of one member, seen from the client."""

    ensemble: Ensemble
    member: MemberId
    connection_id: ConnectionId
    wire: ClientConnection = field(default_factory=ClientConnection)
    session: ConnectResponse | None = None
    heard: list[Reply | Event] = field(default_factory=list)
    closed: bool = False
    paused: bool = False

    def send(self, *ops: Op) -> list[int]:
        """Pipeline the ops in one chunk; their xids."""
        sent = [self.wire.send(op) for op in ops]
        self.send_raw(b"".join(frame for _, frame in sent))
        return [xid for xid, _ in sent]

    def send_raw(self, chunk: bytes) -> None:
        """Hand bytes to the member as they are."""
        self.ensemble.receive(self.member, self.connection_id, chunk)

    def call(self, op: Op) -> Reply:
        """Send one op, let everything settle, and give back its reply."""
        [xid] = self.send(op)
        self.ensemble.settle()
        return next(item for item in self.heard if isinstance(item, Reply) and item.xid == xid)

    @property
    def events(self) -> list[Event]:
        """The watch events that came so far."""
        return [item for item in self.heard if isinstance(item, Event)]

    def receive(self, data: bytes) -> None:
        """What the member wrote."""
        for item in self.wire.receive(data):
            if isinstance(item, ConnectResponse):
                self.session = item
            else:
                self.heard.append(item)


class Ensemble:
    """Members 1 to n; `settle` runs everything that can happen without time passing."""

    def __init__(
        self,
        voters: int = 3,
        observers: int = 0,
        *,
        replayed: tuple[int, int] = (0, 0),
        **settings: object,
    ) -> None:
        self._replayed = replayed
        self.now_ms = 0
        self.clock = FixedClock()
        self.members: dict[MemberId, Replica] = {}
        self.logs: dict[MemberId, list[Batch]] = {}
        self.stopped: dict[MemberId, str] = {}
        self.distrusted: set[MemberId] = set()
        self.snapshots: dict[MemberId, list[bytes]] = {}
        self.space_low = False
        self.traces: list[tuple[MemberId, str, dict[str, object]]] = []
        self._links: dict[tuple[MemberId, LinkId], tuple[MemberId, LinkId]] = {}
        self._clients: dict[tuple[MemberId, ConnectionId], Client] = {}
        self._todo: deque[Callable[[], None]] = deque()
        self._last_id = 0
        self._settings = settings
        everyone = range(1, voters + observers + 1)
        self._voters = tuple(everyone)[:voters]
        self._observers = tuple(everyone)[voters:]
        for member in everyone:
            self._make(member)
        for member in everyone:
            self._step(member, events.Start())
        self.run_until(lambda: all(replica.serving for replica in self.members.values()))

    def _make(self, member: MemberId) -> None:
        ensemble = EnsembleConfig(
            me=member, voters=self._voters, observers=self._observers, tick_ms=TICK_MS
        )
        config = ReplicaConfig(
            ensemble=ensemble,
            min_session_timeout_ms=2 * TICK_MS,
            max_session_timeout_ms=20 * TICK_MS,
            **self._settings,  # type: ignore[arg-type]
        )
        rng = random.Random(member)
        tree = ZnodeTree()

        def trace(name: str, fields: object) -> None:
            self.traces.append((member, name, dict(fields)))  # type: ignore[call-overload]

        self.members[member] = Replica(
            config, RecoveredState(), tree, rng, self.clock, trace, replayed=self._replayed
        )
        self.logs[member] = []

    @property
    def leader(self) -> MemberId:
        """The member that leads."""
        [leader] = [m for m, replica in self.members.items() if replica.leadership is not None]
        return leader

    @property
    def followers(self) -> list[MemberId]:
        """The others."""
        return [member for member in self.members if member != self.leader]

    def connect(
        self, member: MemberId, timeout_ms: int = 12_000, resume: ConnectResponse | None = None
    ) -> Client:
        """A client of that member, its session new or resumed, after everything has settled."""
        client = self.dial(member)
        request = ConnectRequest(0, 0, timeout_ms, 0, bytes(PASSWORD_SIZE), False)
        if resume is not None:
            request = request._replace(session_id=resume.session_id, password=resume.password)
        client.send_raw(client.wire.connect(request))
        self.settle()
        return client

    def dial(self, member: MemberId) -> Client:
        """A connection that has said nothing yet."""
        self._last_id += 1
        client = Client(self, member, self._last_id)
        self._clients[member, client.connection_id] = client
        self.members[member].accept(client.connection_id, "127.0.0.1:40000", self.now_ms)
        return client

    def hang_up(self, client: Client) -> None:
        """The client's connection breaks."""
        client.closed = True
        del self._clients[client.member, client.connection_id]
        self.members[client.member].closed(client.connection_id)

    def kill(self, member: MemberId) -> None:
        """The member is gone, and every connection with it."""
        del self.members[member]
        for (owner, link), (peer, peer_link) in list(self._links.items()):
            if owner == member:
                del self._links[owner, link]
                del self._links[peer, peer_link]
                self._step(peer, events.Disconnected(peer_link))
        for (owner, _), client in list(self._clients.items()):
            if owner == member:
                self.hang_up_dead(client)
        self.settle()

    def hang_up_dead(self, client: Client) -> None:
        """The client sees that its member is gone."""
        client.closed = True
        del self._clients[client.member, client.connection_id]

    def receive(self, member: MemberId, connection_id: ConnectionId, chunk: bytes) -> None:
        """Client bytes reach the member, and its turn ends."""
        self.members[member].receive(connection_id, chunk, self.now_ms)
        self._flush(member)

    def settle(self) -> None:
        """Run everything that is due now."""
        for _ in range(SETTLE_STEPS_MAX):
            if not self._todo:
                return
            self._todo.popleft()()
        raise AssertionError("the ensemble does not come to rest")

    def pass_time(self, duration_ms: int) -> None:
        """Let that much time go by, every member's deadlines kept."""
        end_ms = self.now_ms + duration_ms
        while True:
            self.settle()
            next_ms = min((r.deadline_ms for r in self.members.values()), default=end_ms)
            if next_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, next_ms)
            for member in list(self.members):
                if self.members[member].deadline_ms <= self.now_ms:
                    self._step(member, events.Elapsed())
        self.now_ms = end_ms

    def elapse(self, member: MemberId) -> None:
        """Tell one member that its deadline has come."""
        self._step(member, events.Elapsed())

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 60_000) -> None:
        """Let time go by until the condition holds."""
        end_ms = self.now_ms + limit_ms
        self.settle()
        while not condition():
            assert self.now_ms < end_ms, "it never came to that"
            self.pass_time(10)

    # What members ask of their host.

    def _step(self, member: MemberId, event: object) -> None:
        replica = self.members.get(member)
        if replica is not None:
            effects = replica.step(event, self.now_ms)  # type: ignore[arg-type]
            self._perform_all(member, effects)
            self._flush(member)

    def _flush(self, member: MemberId) -> None:
        self._perform_all(member, self.members[member].flush(self.now_ms))

    def _perform_all(self, member: MemberId, effects: list[out.Effect]) -> None:
        for effect in effects:
            self._perform(member, effect)

    def _later(self, member: MemberId, event: object) -> None:
        self._todo.append(partial(self._step, member, event))

    def _perform(self, member: MemberId, effect: out.Effect) -> None:
        match effect:
            case out.Write(connection_id, data):
                if (member, connection_id) in self._clients:
                    self._clients[member, connection_id].receive(data)
            case out.CloseConnection(connection_id):
                client = self._clients.pop((member, connection_id), None)
                if client is not None:
                    client.closed = True
            case out.PauseReading(connection_id):
                self._clients[member, connection_id].paused = True
            case out.ResumeReading(connection_id):
                self._clients[member, connection_id].paused = False
            case out.ReportDrained(connection_id):
                self._later(member, Drained(connection_id))
            case out.TakeSnapshot(_, walk):
                self.snapshots[member] = list(iter(partial(walk.next_slice, 100), None))
                self._later(member, SnapshotTaken(done=True))
            case zab.Send(link, message):
                end = self._links.get((member, link))
                if end is not None:
                    self._todo.append(partial(self._arrive, end, message))
            case zab.Notify(to, notification):
                self._later(to, events.Notified(notification))
            case zab.Dial(to):
                self._dial(member, to)
            case zab.Hangup(link):
                self._cut(member, link)
            case zab.Append(append_id, record, _):
                header = parse_header(record)
                self.logs[member].append(Batch(header.first, header.count, record))
                self._later(member, events.Persisted(append_id))
            case zab.PersistEpochs(request_id):
                self._later(member, events.EpochsPersisted(request_id))
            case zab.Truncate(request_id, position):
                self.logs[member] = [b for b in self.logs[member] if b.last <= position.zxid]
                self._later(member, events.Truncated(request_id, done=True))
            case zab.FindRecord(request_id, zxid):
                self._later(member, self._find(member, request_id, zxid))
            case zab.StreamRecords(link, after, upto, told):
                self._stream(member, link, after, upto, told=told)
            case zab.Stop(reason, distrust):
                self.stopped[member] = reason
                self.distrusted |= {member} if distrust else set()
            case _:
                raise AssertionError(f"this harness cannot do {effect}")

    def _find(self, member: MemberId, request_id: int, zxid: int) -> events.RecordFound:
        ends = [GENESIS] + [LogPosition(b.last, chain_of(b.record)) for b in self.logs[member]]
        found = max(end for end in ends if end.zxid <= zxid)
        return events.RecordFound(request_id, found, exact=found.zxid == zxid)

    def _stream(
        self, member: MemberId, link: LinkId, after: LogPosition, upto: int, *, told: bool
    ) -> None:
        last = after
        for batch in self.logs[member]:
            if after.zxid < batch.last <= upto:
                propose = Propose(batch.first, batch.count, batch.record)
                self._perform(member, zab.Send(link, propose))
                last = LogPosition(batch.last, chain_of(batch.record))
                if told:
                    self._perform(member, zab.Send(link, Commit(batch.last)))
        self._later(member, events.RecordsStreamed(link, last))

    def _dial(self, member: MemberId, to: MemberId) -> None:
        if to not in self.members:
            self._later(member, events.DialFailed(to))
            return
        self._last_id += 2
        mine, theirs = self._last_id, self._last_id + 1
        self._links[member, mine] = (to, theirs)
        self._links[to, theirs] = (member, mine)
        self._later(member, events.Dialled(mine, to))

    def _cut(self, member: MemberId, link: LinkId) -> None:
        end = self._links.pop((member, link), None)
        if end is not None:
            del self._links[end]
            self._later(end[0], events.Disconnected(end[1]))

    def _arrive(self, end: tuple[MemberId, LinkId], message: object) -> None:
        member, link = end
        if end not in self._links:
            return
        try:
            self._step(member, events.Received(link, message))  # type: ignore[arg-type]
        except RemoteProtocolError as error:
            raise AssertionError(f"member {member} refused {message}") from error
