"""A small world for peers: links, disks and time, all drawn from one seed, and checks at each step.

Links are FIFO; a cut delivers a prefix, then Disconnected, and perhaps late. Disks take their time;
a crash loses what was not yet durable, or keeps a prefix of it. A crash may fall between any two
effects of a step. The checks carry the names of the invariants they look for.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from zabd.model.errors import LocalProtocolError, RemoteProtocolError
from zabd.model.zxid import Zxid
from zabd.zab import effects as fx
from zabd.zab import events as ev
from zabd.zab import messages as msg
from zabd.zab.codec import Decoder, encode
from zabd.zab.config import EnsembleConfig, RecoveredState
from zabd.zab.log import GENESIS, Batch, LogPosition
from zabd.zab.messages import PeerState
from zabd.zab.peer import Peer

Work = Callable[[], ev.Event | None]
Narrate = Callable[[int, str, dict[str, object]], None]


@dataclass(slots=True)
class Shape:
    """What a run is like; a random run draws one."""

    voters: int = 3
    observers: int = 0
    blank: bool = False
    latency_ms: tuple[int, int] = (0, 3)
    disk_ms: tuple[int, int] = (0, 4)
    notification_loss: float = 0.0
    half_open: float = 0.0
    crash_in_step: float = 0.0
    tick_ms: int = 200
    new_cluster: bool = False
    counter_handover: int | None = None


def spell(batches: tuple[Batch, ...]) -> str:
    """The zxids of these batches, as a reader wants them."""
    first, last = batches[0].first, batches[-1].last
    return str(first) if first == last else f"{first} to {last}"


class End:
    """One end of a connection, as one member sees it."""

    __slots__ = ("closed", "due_ms", "far", "inbox", "link", "lossy", "member", "severed", "stream")

    def __init__(self, member: "MemberUnderTest", link: int) -> None:
        self.member = member
        self.link = link
        self.far: End | None = None
        self.inbox: deque[tuple[int, msg.Message]] = deque()  # on its way to this end
        self.due_ms = 0
        self.closed = False  # this end takes and gives nothing any more
        self.lossy = False  # something got lost on its way to this end
        self.severed = False  # nothing more gets on its way to this end
        self.stream: tuple[LogPosition, tuple[Batch, ...]] | None = None


@dataclass(slots=True)
class Store:
    """What is durable, with the ghost of the whole history behind it."""

    accepted: int = 0
    current: int = 0
    cluster_id: bytes | None = None
    history: list[Batch] = field(default_factory=list)
    base: int = 0  # how many batches of the history the log on disk no longer holds
    watermark: int = 0  # the commit point that the log names
    damaged: bool = False
    had: list[Batch] = field(default_factory=list)  # and acknowledged, before it was damaged

    @property
    def last(self) -> LogPosition:
        return self.history[-1].position if self.history else GENESIS

    def index_of(self, position: LogPosition) -> int | None:
        """How many batches lie before this position; None if it is not one of this history."""
        if position == GENESIS:
            return 0
        for index in range(len(self.history) - 1, -1, -1):
            if self.history[index].position == position:
                return index + 1
        return None

    def recovered(self) -> RecoveredState:
        settled = self.base
        while settled < len(self.history) and self.history[settled].last <= self.watermark:
            settled += 1
        delivered = self.history[settled - 1].position if settled else GENESIS
        tail = tuple(self.history[settled:])
        return RecoveredState(
            self.accepted, self.current, self.cluster_id, delivered, tail, damaged=self.damaged
        )


class MemberUnderTest:
    """A configured member: its store for ever, its peer while it is up."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.store = Store()
        self.peer: Peer | None = None
        self.incarnation = 0
        self.ends: dict[int, End] = {}
        self.next_link = 1
        # Disk work in order; the epoch file is written beside the log, at its own pace.
        self.log_lane: deque[Work] = deque()
        self.epoch_lane: deque[Work] = deque()
        self.delivered = 0  # how much of the ledger
        self.stalled = False
        self.confirmed: list[int] = []
        self.installing: fx.InstallSnapshot | None = None
        self.switching = False
        self.stopped: str | None = None

    @property
    def up(self) -> bool:
        return self.peer is not None

    @property
    def leads(self) -> bool:
        return self.peer is not None and self.peer.state is PeerState.LEADING and self.peer.serving


class World:
    """The ensemble, its network and disks, stepped by one schedule."""

    def __init__(
        self, seed: int, shape: Shape | None = None, narrate: Narrate | None = None
    ) -> None:
        self.shape = shape or Shape()
        self.random = random.Random(seed)
        self.narrate = narrate
        self.now_ms = 0
        self.steps = 0
        self._sequence = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        total = self.shape.voters + self.shape.observers
        self.members = {n: MemberUnderTest(self, n) for n in range(1, total + 1)}
        self.voters = tuple(range(1, self.shape.voters + 1))
        self.observers = tuple(range(self.shape.voters + 1, total + 1))
        self.parted: set[frozenset[int]] = set()
        self.muted: set[frozenset[int]] = set()
        # Ghosts, for the checks.
        self.ledger: list[Batch] = []
        self.epoch_leader: dict[int, tuple[int, int]] = {}
        self.proposed: dict[int, bytes] = {}
        self.first_proposal_in = 0  # the latest epoch that has broadcast anything
        self.fired: dict[str, int] = {}
        self.latest_established = 0
        self._token = 0
        self._asked_when: dict[int, int] = {}

    # --- time -----------------------------------------------------------------------------------

    def at(self, due_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._agenda, (due_ms, self._sequence, action))

    def run(self, ms: int) -> None:
        """Let this much time pass."""
        end_ms = self.now_ms + ms
        self.run_until(lambda: False, ms, must=False)
        self.now_ms = end_ms

    def run_until(
        self, condition: Callable[[], bool], ms: int = 20_000, *, must: bool = True
    ) -> None:
        """Until the condition holds; it has to within this much time."""
        end_ms = self.now_ms + ms
        while not condition():
            due_ms = self._next_ms()
            if due_ms is None or due_ms > end_ms:
                assert not must, f"nothing of the kind within {ms} ms: {self.describe()}"
                return
            self._one(due_ms)

    def _next_ms(self) -> int | None:
        times = [self._agenda[0][0]] if self._agenda else []
        times += [
            member.peer.deadline_ms
            for member in self.members.values()
            if member.peer is not None and member.peer.deadline_ms is not None
        ]
        return max(self.now_ms, min(times)) if times else None

    def _one(self, due_ms: int) -> None:
        self.now_ms = due_ms
        self.steps += 1
        if self._agenda and self._agenda[0][0] <= due_ms:
            heapq.heappop(self._agenda)[2]()
            return
        for member in self.members.values():
            deadline_ms = member.peer.deadline_ms if member.peer is not None else None
            if deadline_ms is not None and deadline_ms <= due_ms:
                self.step(member, ev.Elapsed())
                after_ms = member.peer.deadline_ms if member.peer is not None else None
                assert after_ms is None or after_ms > self.now_ms, (
                    f"member {member.number} wants to be woken for ever"
                )

    def describe(self) -> str:
        return ", ".join(
            f"{m.number}: "
            + (
                f"{m.peer.state.name}/{m.peer.phase.name} leader={m.peer.leader} "
                f"epoch={m.peer.epoch} logged={m.peer.logged_zxid} done={m.peer.delivered_zxid}"
                if m.peer is not None
                else "down"
            )
            for m in self.members.values()
        )

    # --- members --------------------------------------------------------------------------------

    def start(self, *numbers: int) -> None:
        for number in numbers or self.members:
            self._start(self.members[number])

    def _start(self, member: MemberUnderTest, *, founds_anew: bool = False) -> None:
        assert member.peer is None
        extra = (
            {}
            if self.shape.counter_handover is None
            else {"counter_handover": self.shape.counter_handover}
        )
        config = EnsembleConfig(
            me=member.number,
            voters=self.voters,
            observers=self.observers,
            tick_ms=self.shape.tick_ms,
            new_cluster=self.shape.new_cluster,
            **extra,
        )
        recovered = replace(member.store.recovered(), founds_anew=founds_anew)
        member.incarnation += 1
        member.log_lane.clear()
        member.epoch_lane.clear()
        member.installing = None
        member.switching = False
        index = member.store.index_of(recovered.delivered)
        assert index is not None
        member.delivered = index
        self._check_prefix(member, member.store.history[:index])

        def trace(name: str, facts: Mapping[str, object]) -> None:
            self.fired[name] = self.fired.get(name, 0) + 1
            if self.narrate is not None:
                self.narrate(member.number, name, dict(facts))

        rng = random.Random(self.random.random())
        member.peer = Peer(config, recovered, rng, trace)
        self.step(member, ev.Start())

    def crash(self, number: int, keep: int | None = None) -> None:
        """Stop at once. `keep` operations on their way to the disk still take effect."""
        member = self.members[number]
        if member.peer is None:
            return
        self._say(number, "crashes")
        member.peer = None
        for lane in (member.log_lane, member.epoch_lane):
            kept = self.random.randint(0, len(lane)) if keep is None else keep
            for work in [*lane][:kept]:
                work()
            lane.clear()
        for end in [*member.ends.values()]:
            late = self.random.random() < self.shape.half_open
            self._close(end, late_ms=self.random.randint(1, 5 * self.shape.tick_ms) if late else 0)

    def restart(self, number: int, *, founds_anew: bool = False) -> None:
        if self.members[number].peer is None:
            self._say(number, "restarts")
            self._start(self.members[number], founds_anew=founds_anew)

    def wipe(self, number: int) -> None:
        """Replace the disk of a member that is down."""
        assert self.members[number].peer is None
        self.members[number].store = Store()

    def damage(self, number: int, keep: int, *, forgets: bool = False) -> None:
        """Of the history of a member that is down only `keep` batches can be vouched for.

        If it `forgets`, of its promises only the least that the rest of its log proves.
        """
        member = self.members[number]
        assert member.peer is None
        store = member.store
        self._say(number, "damaged", f"{keep} of {len(store.history)} batches are left")
        store.had += store.history[keep:]
        del store.history[keep:]
        store.damaged = True
        store.watermark = min(store.watermark, store.last.zxid)
        store.base = min(store.base, keep)
        if forgets:
            store.accepted = store.current = store.last.zxid.epoch

    def purge(self, number: int) -> None:
        """Drop all log records that the member has delivered; a snapshot holds them."""
        store = self.members[number].store
        position = store.recovered().delivered
        index = store.index_of(position)
        assert index is not None
        store.base = index

    def _say(self, number: int, name: str, told: str = "") -> None:
        if self.narrate is not None:
            self.narrate(number, name, {"told": told})

    # --- a step ---------------------------------------------------------------------------------

    def step(self, member: MemberUnderTest, event: ev.Event) -> None:
        peer = member.peer
        assert peer is not None
        try:
            effects = peer.step(event, self.now_ms)
        except RemoteProtocolError as error:
            self._say(member.number, "refuses", str(error))
            self.fired["refuses"] = self.fired.get("refuses", 0) + 1
            assert isinstance(event, ev.Received), f"only a message can be misbehaviour: {event}"
            end = member.ends[event.link]
            self._close(end)
            self.step(member, ev.Disconnected(event.link))
            return
        deadly = self.random.random() < self.shape.crash_in_step
        for index, effect in enumerate(effects):
            if deadly and index and self.random.random() < 0.5:
                self.crash(member.number)
            if member.peer is not peer:
                return
            self._perform(member, effect)

    def submit(self, payload: bytes, count: int = 1) -> Zxid | None:
        """Give the leader a batch, if there is one that takes it."""
        for member in self.members.values():
            if member.leads and member.peer is not None and member.peer.can_submit:
                zxid = Zxid(member.peer.next_zxid + count - 1)
                self.step(member, ev.Submit(count, payload))
                return zxid
        return None

    def elect(self, leader: int, *numbers: int) -> None:
        """Whatever the votes are: those of these members that look take `leader`."""
        for number in numbers or self.members:
            member = self.members[number]
            if member.peer is not None and member.peer.state is PeerState.LOOKING:
                self.step(member, ev.Elected(leader))

    def confirm(self, number: int) -> int | None:
        """Ask a leader to prove that it leads; the token of the question."""
        member = self.members[number]
        if not member.leads:
            return None
        self._token += 1
        # B5: whoever is established by now must be unknown to none who confirm later.
        self._asked_when[self._token] = self.latest_established
        token = self._token
        self.step(member, ev.Confirm(token))
        return token

    def leader(self) -> MemberUnderTest | None:
        """The serving leader of the latest epoch."""
        leaders = [member for member in self.members.values() if member.leads]
        return max(leaders, key=lambda m: m.peer.epoch if m.peer else 0, default=None)

    # --- effects --------------------------------------------------------------------------------

    def _perform(self, member: MemberUnderTest, effect: fx.Effect) -> None:  # noqa: PLR0915
        peer = member.peer
        assert peer is not None
        store = member.store
        match effect:
            case fx.Notify(target, notification):
                self._notify(member, target, notification)
            case fx.Dial(target):
                self._dial(member, target)
            case fx.Hangup(link):
                if link in member.ends:
                    self._close(member.ends[link])
            case fx.Send(link, message):
                self._check_send(member, message)
                if link in member.ends:
                    self._send(member.ends[link], message)
            case fx.Append(append_id, record, committed):
                batch = Batch.of(record)
                self._check_append(member, batch)
                if peer.state is PeerState.LEADING:
                    self._say(member.number, "proposes", spell((batch,)))

                def append() -> ev.Event:
                    batch = Batch.of(record)
                    assert batch.previous == store.last.chain, "the log is one chain"
                    store.history.append(batch)
                    assert committed <= batch.last
                    store.watermark = max(store.watermark, committed)
                    return ev.Persisted(append_id)

                self._to_disk(member, append)
            case fx.PersistEpochs(request_id, accepted, current, cluster_id, repaired):

                def persist() -> ev.Event:
                    assert accepted >= store.accepted, "D10"
                    assert store.current <= current <= accepted, "D10"
                    store.accepted, store.current = accepted, current
                    store.cluster_id = cluster_id
                    if repaired:
                        store.damaged = False
                    return ev.EpochsPersisted(request_id)

                self._to_disk(member, persist, member.epoch_lane)
            case fx.Truncate(request_id, position):

                def truncate() -> ev.Event:
                    self._check_cut(member, position)
                    index = store.index_of(position)
                    assert index is not None
                    assert index >= store.base
                    del store.history[index:]
                    return ev.Truncated(request_id, done=True)

                self._to_disk(member, truncate)
            case fx.FindRecord(request_id, zxid):

                def find() -> ev.Event:
                    ends = [batch.position for batch in store.history[store.base :]]
                    ends.insert(
                        0, store.history[store.base - 1].position if store.base else GENESIS
                    )
                    found = max((end for end in ends if end.zxid <= zxid), default=None)
                    exact = found is not None and found.zxid == zxid
                    return ev.RecordFound(request_id, found, exact)

                self._to_disk(member, find)
            case fx.StreamRecords(link, after, upto, told):

                def stream() -> ev.Event | None:
                    end = member.ends.get(link)
                    start = store.index_of(after)
                    assert start is not None
                    if end is None or start < store.base:
                        return ev.StreamFailed(link)
                    last = after
                    for batch in store.history[start:]:
                        if batch.last <= upto:
                            self._send(end, msg.Propose(*batch))
                            last = batch.position
                            if told:
                                self._send(end, msg.Commit(batch.last))
                    return ev.RecordsStreamed(link, last)

                self._to_disk(member, stream)
            case fx.StreamSnapshot(link):

                def snapshot() -> ev.Event | None:
                    end = member.ends.get(link)
                    if end is None or end.far is None:
                        return ev.StreamFailed(link)
                    # The newest verified snapshot: what recovery would find delivered.
                    position = store.recovered().delivered
                    index = store.index_of(position)
                    assert index is not None
                    self._send(end, msg.Snap(position))
                    end.far.stream = (position, tuple(store.history[:index]))
                    self._send(end, msg.SnapshotChunk(0, b"", last=True, digest=b""))
                    return ev.SnapshotStreamed(link, position)

                self._to_disk(member, snapshot)
            case fx.InstallSnapshot():
                member.installing = effect
            case fx.Deliver(batches):
                self._say(member.number, "delivers", spell(batches))
                for batch in batches:
                    self._check_deliver(member, batch)
            case fx.Became(state, phase, epoch, leader, serving):
                if state is PeerState.LEADING and phase >= fx.Phase.SYNCHRONISATION:
                    self._check_leader(member, epoch)
                if state is PeerState.LEADING and serving:
                    self.latest_established = max(self.latest_established, epoch)
                assert serving <= (phase is fx.Phase.BROADCAST)
                assert (leader is None) == (state is PeerState.LOOKING)
            case fx.Confirmed(token):
                assert peer.epoch >= self._asked_when[token], "B5"
                member.confirmed.append(token)
                self._say(member.number, "confirms")
            case fx.Stop(reason):
                member.stopped = reason
                self.crash(member.number)

    def _to_disk(
        self, member: MemberUnderTest, work: Work, lane: deque[Work] | None = None
    ) -> None:
        lane = member.log_lane if lane is None else lane
        lane.append(work)
        if len(lane) == 1:
            self._schedule_disk(member, lane)

    def _schedule_disk(self, member: MemberUnderTest, lane: deque[Work]) -> None:
        incarnation = member.incarnation

        def finish() -> None:
            if member.peer is None or member.incarnation != incarnation or not lane:
                return
            if member.stalled:
                self.at(self.now_ms + 10, finish)
                return
            event = lane.popleft()()
            if lane:
                self._schedule_disk(member, lane)
            if event is not None:
                self.step(member, event)

        self.at(self.now_ms + self.random.randint(*self.shape.disk_ms), finish)

    def stall_disk(self, number: int, *, stalled: bool = True) -> None:
        self.members[number].stalled = stalled

    # --- network --------------------------------------------------------------------------------

    def part(self, *groups: tuple[int, ...]) -> None:
        """Cut the network into groups; members in none stay connected to all."""
        for group in groups:
            for other in groups:
                if group is not other:
                    self.parted |= {frozenset((a, b)) for a in group for b in other}
        for member in self.members.values():
            for end in [*member.ends.values()]:
                if end.far and frozenset((member.number, end.far.member.number)) in self.parted:
                    late = self.random.random() < self.shape.half_open
                    self._close(end, late_ms=5 * self.shape.tick_ms if late else 0, both=True)

    def mute(self, a: int, b: int) -> None:
        """Lose everything between these two from now on; nobody is told."""
        self.muted.add(frozenset((a, b)))

    def heal(self) -> None:
        self.parted.clear()
        self.muted.clear()

    def _connected(self, a: int, b: int) -> bool:
        return frozenset((a, b)) not in self.parted | self.muted

    def _latency(self) -> int:
        return self.random.randint(*self.shape.latency_ms)

    def _notify(self, member: MemberUnderTest, target: int, notification: msg.Notification) -> None:
        self._check_notification(member, notification)
        if self.random.random() < self.shape.notification_loss:
            return

        def arrive() -> None:
            to = self.members[target]
            if to.peer is not None and self._connected(member.number, target):
                self.step(to, ev.Notified(notification))

        self.at(self.now_ms + self._latency(), arrive)

    def _dial(self, member: MemberUnderTest, target: int) -> None:
        incarnation = member.incarnation

        def answer() -> None:
            if member.peer is None or member.incarnation != incarnation:
                return
            to = self.members[target]
            if to.peer is None or not self._connected(member.number, target):
                self.step(member, ev.DialFailed(target))
                return
            near, far = End(member, member.next_link), End(to, to.next_link)
            near.far, far.far = far, near
            member.next_link += 1
            to.next_link += 1
            member.ends[near.link] = near
            to.ends[far.link] = far
            self.step(member, ev.Dialled(near.link, target))

        self.at(self.now_ms + self._latency(), answer)

    def _send(self, end: End, message: msg.Message) -> None:
        far = end.far
        if end.closed or far is None or far.closed or far.severed:
            return
        if self.muted and frozenset((end.member.number, far.member.number)) in self.muted:
            far.lossy = True
        if far.lossy:
            return  # half-open: what comes after a loss cannot come either
        if self.random.random() < 0.05:
            # Now and then over the real wire.
            [message] = Decoder().feed(encode(message))
        far.due_ms = max(far.due_ms, self.now_ms + self._latency())
        far.inbox.append((far.due_ms, message))
        self.at(far.due_ms, lambda: self._arrive(far))

    def _arrive(self, end: End) -> None:
        member = end.member
        if end.closed or member.peer is None or member.ends.get(end.link) is not end:
            return
        if not end.inbox or end.inbox[0][0] > self.now_ms:
            return
        _, message = end.inbox.popleft()
        if isinstance(message, msg.SnapshotChunk):
            self._install(member, end)
        else:
            self.step(member, ev.Received(end.link, message))

    def _install(self, member: MemberUnderTest, end: End) -> None:
        if member.installing is None or member.installing.link != end.link or end.stream is None:
            return
        position, history = end.stream
        store = member.store
        link = end.link

        def install() -> ev.Event:
            self._check_cut(member, position)
            store.history = [*history]
            store.base = len(history)
            store.watermark = position.zxid
            member.installing = None
            member.switching = False
            member.delivered = len(history)
            self._check_prefix(member, history)
            return ev.SnapshotInstalled(link, position)

        member.switching = True
        self._to_disk(member, install)

    def cut(self, a: int, b: int) -> None:
        """Cut every link between two members; a prefix of what is on its way arrives."""
        for end in [*self.members[a].ends.values()]:
            if end.far is not None and end.far.member.number == b:
                self._close(end, both=True)

    def _close(self, end: End, *, late_ms: int = 0, both: bool = False) -> None:
        """This end is gone; the far end gets a prefix of what was sent, then hears of it."""
        far = end.far
        if end.closed:
            return
        if not both:
            self._shut(end)
        for one in (far, end) if both else (far,):
            if one is None or one.closed or one.severed:
                continue
            one.severed = True
            keep = self.random.randint(0, len(one.inbox))
            while len(one.inbox) > keep:
                one.inbox.pop()
            one.due_ms = max(one.due_ms, self.now_ms + self._latency() + late_ms)
            self.at(one.due_ms, lambda one=one: self._disconnect(one))  # type: ignore[misc]

    def _shut(self, end: End) -> None:
        end.closed = True
        end.member.ends.pop(end.link, None)
        end.inbox.clear()
        member = end.member
        installing = member.installing
        if member.peer is None or installing is None or installing.link != end.link:
            return
        # Either the chunks have not come, or the switch-over is with the disk already.
        if not member.switching:
            member.installing = None
            self._later(member, ev.StreamFailed(end.link))

    def _later(self, member: MemberUnderTest, event: ev.Event) -> None:
        incarnation = member.incarnation

        def tell() -> None:
            if member.peer is not None and member.incarnation == incarnation:
                self.step(member, event)

        self.at(self.now_ms, tell)

    def _disconnect(self, end: End) -> None:
        if end.closed:
            return
        if end.inbox:
            self.at(max(self.now_ms, end.inbox[-1][0]) + 1, lambda: self._disconnect(end))
            return
        self._shut(end)
        if end.far is not None and not end.far.closed:
            self._close(end.far)
        if end.member.peer is not None:
            self.step(end.member, ev.Disconnected(end.link))

    # --- checks ---------------------------------------------------------------------------------

    def _check_send(self, member: MemberUnderTest, message: msg.Message) -> None:
        store = member.store
        match message:
            case msg.Ack(zxid):
                assert store.last.zxid >= zxid, "D1"
                self._say(member.number, "acks", str(zxid))
                assert member.number in self.voters, "observers do not acknowledge"
            case msg.AckNewLeader(epoch, zxid):
                assert store.last.zxid >= zxid, "D4"
                assert store.current == epoch, "D4"
                assert store.cluster_id is not None
            case msg.AckEpoch(current, position):
                assert store.last == position, "D5"
                assert store.current == current, "D5"
            case msg.LeaderInfo(epoch):
                assert store.accepted == epoch, "D3"
            case msg.FollowerInfo():
                assert store.last == message.position, "D5"
                assert store.accepted == message.accepted_epoch, "D5"
            case msg.NewLeader(epoch):
                assert store.current == epoch
                assert store.cluster_id == message.cluster_id
            case _:
                pass

    def _check_notification(self, member: MemberUnderTest, n: msg.Notification) -> None:
        if n.state is PeerState.LOOKING and n.leader == member.number:
            assert n.zxid == member.store.last.zxid, "D5"
            assert n.epoch == member.store.current, "D5"

    def _check_append(self, member: MemberUnderTest, batch: Batch) -> None:
        known = self.proposed.setdefault(batch.first, batch.record)
        assert known == batch.record, "Z1: one zxid, one content"
        self.first_proposal_in = max(self.first_proposal_in, batch.first.epoch)

    def _check_prefix(
        self, member: MemberUnderTest, history: list[Batch] | tuple[Batch, ...]
    ) -> None:
        assert len(history) <= len(self.ledger), "Z10: what recovery applies was committed"
        assert list(history) == self.ledger[: len(history)], "Z4"

    def _check_deliver(self, member: MemberUnderTest, batch: Batch) -> None:
        assert self.proposed[batch.first] == batch.record, "Z1"
        if member.delivered < len(self.ledger):
            assert self.ledger[member.delivered] == batch, "Z2"
        else:
            self._check_new(batch)
            self.ledger.append(batch)
        member.delivered += 1
        index = member.store.index_of(batch.position)
        assert index == member.delivered, "what is delivered is durable here"

    def _check_new(self, batch: Batch) -> None:
        if self.ledger:
            before = self.ledger[-1]
            assert batch.previous == before.position.chain, "Z5"
        assert batch.first.epoch >= self.first_proposal_in or not self._newer_broadcast(batch), "Z7"
        holders = [n for n in self.voters if self._has(n, batch)]
        assert len(holders) > len(self.voters) // 2, f"D6: {batch.last} is only on {holders}"

    def _has(self, number: int, batch: Batch) -> bool:
        """Whether the member holds it, or held it when it acknowledged it."""
        store = self.members[number].store
        return batch in store.had or store.index_of(batch.position) is not None

    def _newer_broadcast(self, batch: Batch) -> bool:
        return any(Zxid(first).epoch > batch.first.epoch for first in self.proposed)

    def _check_leader(self, member: MemberUnderTest, epoch: int) -> None:
        who = (member.number, member.incarnation)
        assert self.epoch_leader.setdefault(epoch, who) == who, "Z8"
        assert member.store.history[: len(self.ledger)] == self.ledger, "Z9"

    def _check_cut(self, member: MemberUnderTest, position: LogPosition) -> None:
        """Z10: a truncation or installation leaves every ledger entry that was here."""
        history = member.store.history
        common = 0
        for ours, theirs in zip(history, self.ledger, strict=False):
            if ours != theirs:
                break
            common += 1
        kept = history[common - 1].last if common else 0
        assert position.zxid >= kept, "Z10"

    def check_agreement(self) -> None:
        """When all is quiet, everyone has everything."""
        up = [member for member in self.members.values() if member.peer is not None]
        for member in up:
            assert member.peer is not None
            assert member.peer.serving, self.describe()
            assert member.delivered == len(self.ledger), self.describe()
        for before, after in pairwise(self.ledger):
            assert before.last < after.first, "Z6"


def stable(world: World) -> bool:
    """Whether every member that is up serves, under one leader, with nothing in flight."""
    up = [member for member in world.members.values() if member.peer is not None]
    leader = world.leader()
    return leader is not None and all(
        member.peer is not None
        and member.peer.serving
        and member.peer.leader == leader.number
        and member.peer.logged_zxid == member.peer.delivered_zxid
        and leader.peer is not None
        and member.peer.delivered_zxid == leader.peer.delivered_zxid
        for member in up
    )


__all__ = ["LocalProtocolError", "MemberUnderTest", "Shape", "Store", "World", "stable"]
