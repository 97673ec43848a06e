"""The front door of one member: events and client bytes in, effects out.

Whoever drives a replica (the server on sockets, the simulator without any) calls `receive` for
client bytes and `step` for everything else, then `flush` once per turn of its loop, and performs
the effects in order. One flush makes one proposal batch, one frame per follower and one write per
client connection, however much came in.

Invariants
    M1  The tree is changed by delivered batches alone, in zxid order; a digest that differs from
        that of a quorum at the same zxid stops the member, the leader too.
    M2  What a member knows as leader exists only while its peer is the established leader.
    M3  Frames carried for the replica count only on the link the peer stands by.

Source: the walks of a write, a read and a watch in docs/internals/walks.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from zabd.model.errors import RemoteProtocolError
from zabd.model.zxid import Zxid
from zabd.replica import messages
from zabd.replica.clients import Clients
from zabd.replica.config import (
    DIGEST_INTERVAL_TXNS,
    SMALL_TREE_BYTES,
    Clock,
    ReplicaConfig,
)
from zabd.replica.digests import DIGESTS_KEPT, DigestTally
from zabd.replica.effects import Effect, TakeSnapshot
from zabd.replica.events import Drained, Event, SnapshotTaken, SnapshotWanted, SpaceLow
from zabd.replica.leadership import Leadership
from zabd.replica.messages import (
    FORWARD_BYTES_MAX,
    INTENT_BYTES,
    Answers,
    Differs,
    DigestAt,
    Forward,
    Intent,
    Touches,
)
from zabd.zab import effects as zab_effects
from zabd.zab import events as zab_events
from zabd.zab.effects import Phase
from zabd.zab.log import LogPosition, chain_of
from zabd.zab.messages import Ack, Carried, PeerState, Standing
from zabd.zab.peer import Peer
from zabd.znode_tree.tree import RUN_MAX
from zabd.znode_tree.txns import CLOSE_SESSION, FOUND, unpack_batch

if TYPE_CHECKING:
    import random

    from zabd.model.acl import Identity
    from zabd.model.ids import ConnectionId, LinkId, MemberId
    from zabd.zab.config import RecoveredState
    from zabd.zab.log import Batch
    from zabd.zab.messages import Message
    from zabd.znode_tree.tree import ZnodeTree
    from zabd.znode_tree.txns import Entry

READ_ONLY_AFTER_TICKS = 2
"""How long a member looks for a leader before it serves read-only clients."""

Trace: TypeAlias = Callable[[str, Mapping[str, object]], None]

LATE_LOG_TREES = 2
"""A snapshot under way is late once the log behind it is so many times as large as the tree. At
20,000 small sets a second it is not; a start reads such a log in the time of two trees."""


class Replica:
    """One member's behaviour; see the module's invariants.

    `recovered` and `tree` are what the disk gave back: the tree stands at `recovered.delivered`.
    `rng` is the only source of chance, `clock` the only source of wall time, `trace` is told of
    every transition. `replayed` is how many txns and bytes of log there were behind the snapshot:
    they count towards the next one, or a member that is often started would have to read ever more.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        recovered: RecoveredState,
        tree: ZnodeTree,
        rng: random.Random,
        clock: Clock,
        trace: Trace,
        *,
        replayed: tuple[int, int] = (0, 0),
    ) -> None:
        self.config = config
        self.me: MemberId = config.ensemble.me
        self.tree = tree
        self.peer = Peer(config.ensemble, recovered, rng, trace)
        self.clients = Clients(config, tree, rng, trace)
        self.leadership: Leadership | None = None
        self._rng = rng
        self._clock = clock
        self._trace = trace
        self._effects: list[Effect] = []
        self._tick_ms = config.ensemble.tick_ms
        self._half_tick_ms = max(1, self._tick_ms // 2)
        self._looking_since_ms: int | None = None
        self._next_tick_ms = 0
        self._turn_ms = 0  # the last one's time
        self._digests: dict[int, int] = {}
        self._digest_order: deque[int] = deque()
        self._tally: DigestTally | None = None  # while it leads
        self._doubt: str | None = None  # why it does not go on when its leadership is over
        self._txns_since_snapshot, self._bytes_since_snapshot = replayed
        self._taking_snapshot = False
        self._space_low = False
        self.digest_mismatch: tuple[int, int, int] | None = None

    # ---- driving ---------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int:
        """When `step(Elapsed())` is wanted at the latest."""
        deadline_ms = self.peer.deadline_ms
        due_ms = self._next_tick_ms if deadline_ms is None else min(deadline_ms, self._next_tick_ms)
        if self.leadership is not None:
            until_ms = self.leadership.gathering.until_ms
            if until_ms is not None:
                due_ms = min(due_ms, until_ms)
            if self.leadership.expires_more:
                due_ms = min(due_ms, self._turn_ms)
        return min(due_ms, self._turn_ms) if self.clients.watches.sweeping else due_ms

    @property
    def serving(self) -> bool:
        """Whether clients are served: the peer is in service and the tree knows the secret."""
        return self.clients.serving

    @property
    def snapshot_is_late(self) -> bool:
        """Whether there is so much log behind the snapshot under way that it has to hurry."""
        worth_bytes = max(self.tree.data_bytes, SMALL_TREE_BYTES)
        return self._taking_snapshot and self._bytes_since_snapshot > LATE_LOG_TREES * worth_bytes

    def accept(self, connection_id: ConnectionId, address: str, now_ms: int) -> None:
        """A client connected from `address` (host:port)."""
        self.clients.accept(connection_id, address, now_ms)

    def receive(self, connection_id: ConnectionId, chunk: bytes, now_ms: int) -> None:
        """Bytes of a client; what can be answered at once is, and goes out with `flush`."""
        self.clients.receive(connection_id, chunk, now_ms)

    def closed(self, connection_id: ConnectionId) -> None:
        """A client's connection is gone."""
        self.clients.closed(connection_id)

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Everything else that happens; returns what to do at once."""
        if type(event) is zab_events.Received:
            self._received(event, now_ms)
        elif type(event) is zab_events.Persisted:
            self._absorb(self.peer.step(event, now_ms), now_ms)
        else:
            self._step_rarely(event, now_ms)
        return self._take_effects()

    def _received(self, event: zab_events.Received, now_ms: int) -> None:
        message = event.message
        if type(message) is Carried:
            self._carried(event.link, message.payload, now_ms)
        else:
            self._from_peer(event.link, event, now_ms)

    def _step_rarely(self, event: Event, now_ms: int) -> None:
        """What does not belong to the steady state of an ensemble."""
        match event:
            case zab_events.Elapsed():
                self._elapsed(now_ms)
            case zab_events.Disconnected(link):
                self._link_lost(link)
                self._absorb(self.peer.step(event, now_ms), now_ms)
            case SnapshotTaken(done):
                self._taking_snapshot = False
                self._trace("snapshot taken" if done else "snapshot given up", {})
            case SnapshotWanted():
                # One that a leader has sent is newer than what was handed over, and is enough.
                if self.peer.delivered.zxid == self.tree.zxid:
                    self._begin_snapshot(self.peer.delivered)
            case Drained(connection_id):
                self.clients.drained(connection_id, now_ms)
            case SpaceLow(low):
                self._space_low = low
                if self.leadership is not None:
                    self.leadership.space_low = low
            case _:
                self._absorb(self.peer.step(event, now_ms), now_ms)

    def can_wait(self, message: Message) -> bool:
        """Whether nothing comes of a peer's message, so that it may wait for the next event.

        That is an acknowledgement of what the others have committed already: of 3.2 turns for each
        batch that a leader of three members takes, up to half a one would be for nothing else.
        """
        return type(message) is Ack and message.zxid <= self.peer.committed_zxid

    def flush(self, now_ms: int) -> list[Effect]:
        """End a turn: propose or forward what was gathered, and write to the clients."""
        clients, leadership = self.clients, self.leadership
        self._turn_ms = now_ms
        if leadership is not None:
            self._lead(leadership, clients.take_intents(), now_ms)
        while clients.intents:  # an answer given here may let requests through that waited for it
            intents = clients.take_intents()
            if leadership is not None:
                self._lead(leadership, intents, now_ms)
            else:
                self._forward(intents)
        effects = self._take_effects()
        return effects + clients.take_effects() if effects else clients.take_effects()

    def digests(self) -> list[tuple[int, int]]:
        """Zxids and the digests that the tree had at them: what was compared lately, then now."""
        compared = [(zxid, self._digests[zxid]) for zxid in self._digest_order]
        return [*compared, (self.tree.zxid, self.tree.digest)]

    def install_tree(self, tree: ZnodeTree) -> None:
        """Take the tree of a snapshot that the leader sent, before `SnapshotInstalled` is told."""
        assert not self.clients.serving, "a tree is replaced only while synchronising"
        self.tree = tree
        self.clients.tree = tree
        self._digests.clear()
        self._digest_order.clear()

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # ---- the peer --------------------------------------------------------------------------

    def _from_peer(self, link: LinkId, event: zab_events.Event, now_ms: int) -> None:
        try:
            self._absorb(self.peer.step(event, now_ms), now_ms)
        except RemoteProtocolError as error:
            self._drop_link(link, error, now_ms)

    def _drop_link(self, link: LinkId, error: RemoteProtocolError, now_ms: int) -> None:
        """The other side broke the protocol: it costs that link and nothing else."""
        self._trace("link dropped", {"link": link, "reason": str(error)})
        self._effects.append(zab_effects.Hangup(link))
        self._link_lost(link)
        self._absorb(self.peer.step(zab_events.Disconnected(link), now_ms), now_ms)

    def _link_lost(self, link: LinkId) -> None:
        member = self.peer.learner_links.get(link)
        if self.leadership is not None and member is not None:
            self.leadership.forget_origin(member)

    def _absorb(self, effects: list[zab_effects.Effect], now_ms: int) -> None:
        for effect in effects:
            if type(effect) is zab_effects.Send or type(effect) is zab_effects.Append:
                self._effects.append(effect)  # nearly all
            elif isinstance(effect, zab_effects.Deliver):
                for batch in effect.batches:
                    self._deliver(batch, now_ms)
            elif isinstance(effect, zab_effects.Became):
                self._became(effect, now_ms)
            elif isinstance(effect, zab_effects.Confirmed):
                if self.leadership is not None:
                    self.leadership.confirmed(effect.token)
            else:
                self._effects.append(effect)

    def _became(self, became: zab_effects.Became, now_ms: int) -> None:
        leads = became.state is PeerState.LEADING and became.phase is Phase.BROADCAST
        if leads and self.leadership is None:
            wall_ms = self._clock.wall_ms()
            self.leadership = Leadership(
                self.config, self.tree, self._rng, wall_ms, now_ms, self._trace
            )
            self.leadership.space_low = self._space_low
            self._tally = DigestTally(self.peer.quorum)
        elif not leads:
            self.leadership = self._tally = None  # M2
            if self._doubt is not None:
                self._effects.append(zab_effects.Stop(self._doubt))
        self._update_serving()

    def _update_serving(self) -> None:
        serving = self.peer.serving and bool(self.tree.secret)
        if self.clients.serving != serving:
            self._trace("serves" if serving else "serves_no_more", {})
        if self.clients.serving != serving or self.clients.read_only:
            self.clients.cut_all()
        self.clients.serving = serving
        self.clients.read_only = False

    def _consider_reading_only(self, now_ms: int) -> None:
        """Without a quorum for a while: serve what is known here, to those who asked for that."""
        clients = self.clients
        if self.peer.state is not PeerState.LOOKING or self.config.ensemble.observer:
            self._looking_since_ms = None
        elif self._looking_since_ms is None:
            self._looking_since_ms = now_ms
        elif now_ms - self._looking_since_ms >= READ_ONLY_AFTER_TICKS * self._tick_ms:
            damaged = self.peer.standing is Standing.DAMAGED
            clients.read_only = self.config.read_only_enabled and not damaged

    # ---- the log ---------------------------------------------------------------------------

    def _deliver(self, batch: Batch, now_ms: int) -> None:
        time_ms, entries = unpack_batch(batch.payload_view)
        self.clients.now_ms = now_ms
        self._apply(int(batch.first), time_ms, entries)
        self.clients.release_syncs()
        self._note_batch(batch)

    def _apply(self, zxid: int, time_ms: int, entries: Sequence[Entry]) -> None:
        """Runs of what is common go through `apply_run`, what stands between them one by one."""
        clients, me = self.clients, self.me
        answer, apply_run = clients.changed, self.tree.apply_run
        watched, watched_below = clients.watches.watched, clients.watches.watched_below
        at, count = 0, len(entries)
        while at < count:
            began = at
            at = apply_run(zxid, time_ms, entries, at, me, answer, watched, watched_below)
            zxid += at - began
            if at < count and at - began < RUN_MAX:
                self._apply_one(zxid, time_ms, entries[at])
                zxid += 1
                at += 1

    def _apply_one(self, zxid: int, time_ms: int, entry: Entry) -> None:
        clients = self.clients
        origin, request_id, session_id, txn = entry
        applied = self.tree.apply(zxid, time_ms, session_id, txn)
        if applied.changes and clients.watches.watched:
            clients.fire(applied.changes, zxid)
        if origin == self.me:
            clients.applied(request_id, zxid, applied)
        if txn[0] == CLOSE_SESSION:
            # Ours without anybody who waits: as the leader we have said that its time was over.
            if origin == self.me and request_id == messages.NOBODY_WAITS:
                clients.stats.sessions_expired += 1
            clients.session_closed(session_id)
        elif txn[0] == FOUND:
            self._update_serving()

    def _note_batch(self, batch: Batch) -> None:
        last = batch.last
        self._txns_since_snapshot += batch.count
        self._bytes_since_snapshot += len(batch.record)
        if self._snapshot_due():
            self._begin_snapshot(LogPosition(last, chain_of(batch.record)))
        if self.leadership is not None:
            self.leadership.delivered(last)
            self.leadership.gathering.answered(
                batch.count, self.leadership.gathered, self.clients.now_ms
            )
        # Every member cuts batches at the same places, so all of them settle their digests here;
        # settling it after every batch instead would cost more than applying the txns.
        if last // DIGEST_INTERVAL_TXNS != (batch.first - 1) // DIGEST_INTERVAL_TXNS:
            self._note_digest(last)

    def _begin_snapshot(self, position: LogPosition) -> None:
        if self._taking_snapshot:
            return
        self._taking_snapshot = True
        self._txns_since_snapshot = self._bytes_since_snapshot = 0
        self._effects.append(TakeSnapshot(position, self.tree.begin_snapshot()))

    def _note_digest(self, zxid: Zxid) -> None:
        self._digests[zxid] = self.tree.digest
        self._digest_order.append(zxid)
        if len(self._digest_order) > DIGESTS_KEPT:
            del self._digests[self._digest_order.popleft()]
        link = self.peer.leader_link
        if self._tally is not None:
            self._take_digest(self._tally, self.me, zxid, self.tree.digest)
        elif link is not None and self.peer.accepts(link):
            self._carry(link, DigestAt(zxid, self.tree.digest))

    def _snapshot_due(self) -> bool:
        config = self.config
        logged_bytes = self._bytes_since_snapshot
        if (
            self._txns_since_snapshot < config.snapshot_every_txns
            and logged_bytes < config.snapshot_every_bytes
        ):
            return False
        # Half of what the tree holds is read again in half the time that the tree takes; writing a
        # snapshot any sooner is dearer than that log is.
        return logged_bytes * 2 >= self.tree.data_bytes - SMALL_TREE_BYTES

    def _take_digest(self, tally: DigestTally, member: MemberId, zxid: int, digest: int) -> None:
        """A member's word, or our own: does anybody's tree differ now from what a quorum has?"""
        tally.tell(zxid, member, digest)
        links = self.peer.learner_links
        right, mine = tally.right(zxid), self._digests.get(zxid)
        decided = right is not None
        if right is None and mine is not None and tally.is_open(zxid, [self.me, *links.values()]):
            # Whose tree is wrong cannot be known, ours may be: everyone goes back to his own disk.
            # We do so last, when those that differ have left us without a quorum.
            self._doubt = _doubt(zxid)
            right = mine
        if right is None:
            return
        differing = tally.others(zxid, right)
        for link, other in links.items():
            if other in differing:
                self._carry(link, Differs(zxid, right, decided))
        if self.me in differing:
            self._differs(zxid, right, decided=decided)

    def _differs(self, zxid: int, digest: int, *, decided: bool) -> None:
        """At this zxid the tree should have had that digest: did it?"""
        mine = self._digests.get(zxid)
        if mine is None or mine == digest:
            return
        self.digest_mismatch = (zxid, mine, digest)
        reason = _doubt(zxid)
        if decided:
            reason = (
                f"the tree differs from that of most members at {Zxid(zxid)!r}: digest "
                f"{mine:016x} here, {digest:016x} there; this member stops rather than serve wrong "
                "data: start it again, and the others rebuild it"
            )
        self._effects.append(zab_effects.Stop(reason, distrust=decided))

    # ---- leading ---------------------------------------------------------------------------

    def _lead(self, leadership: Leadership, intents: list[Intent], now_ms: int) -> None:
        if intents:
            leadership.gather(intents)
        gathering, peer = leadership.gathering, self.peer
        gathering.until_ms = None
        while (
            leadership.wants_batch
            and peer.can_submit
            and not gathering.waits(leadership.gathered, peer.undecided_since_ms, now_ms)
        ):
            batch = leadership.next_batch(peer.next_zxid, now_ms)
            if batch is None:
                break
            gathering.proposed(now_ms)
            self._absorb(self.peer.step(zab_events.Submit(*batch), now_ms), now_ms)
        token = leadership.ask_confirmation()
        if token is not None:
            self._absorb(self.peer.step(zab_events.Confirm(token), now_ms), now_ms)
        if leadership.has_answers:
            self._hand_out(leadership, now_ms)

    def _hand_out(self, leadership: Leadership, now_ms: int) -> None:
        answers = leadership.take_answers()
        for answer in answers.pop(self.me, ()):
            self.clients.answered(answer, now_ms)
        if answers:
            links = {member: link for link, member in self.peer.learner_links.items()}
            for member, theirs in answers.items():
                # A member whose link broke has cut its clients; nobody waits there any more.
                if member in links:
                    carried = Carried(messages.encode(Answers(tuple(theirs))))
                    self._effects.append(zab_effects.Send(links[member], carried))

    # ---- following -------------------------------------------------------------------------

    def _forward(self, intents: list[Intent]) -> None:
        link = self.peer.leader_link
        if link is None:
            return  # the clients were cut with the leader's link: nobody waits for these
        part: list[Intent] = []
        size_bytes = 0
        shown: set[tuple[Identity, ...]] = set()  # each set of identities travels once in a part
        for intent in intents:
            part.append(intent)
            _, _, _, _, frame, identities = intent
            size_bytes += len(frame) + INTENT_BYTES
            if identities not in shown:
                shown.add(identities)
                size_bytes += messages.size_of(identities)
            if size_bytes >= FORWARD_BYTES_MAX:
                self._carry(link, Forward(tuple(part)))
                part, size_bytes, shown = [], 0, set()
        if part:
            self._carry(link, Forward(tuple(part)))

    def _carry(self, link: LinkId, message: messages.Message) -> None:
        self._effects.append(zab_effects.Send(link, Carried(messages.encode(message))))

    def _carried(self, link: LinkId, payload: bytes, now_ms: int) -> None:
        if not self.peer.accepts(link):
            return  # M3
        try:
            if self.leadership is not None:
                self._from_learner(self.leadership, link, payload, now_ms)
            else:
                self._from_leader(payload, now_ms)
        except RemoteProtocolError as error:
            self._drop_link(link, error, now_ms)

    def _from_learner(
        self, leadership: Leadership, link: LinkId, payload: bytes, now_ms: int
    ) -> None:
        member = self.peer.learner_links.get(link)
        if member is None:
            return  # it is not in service yet, so no client of it can be waiting
        message = messages.decode(payload, member)
        match message:
            case Forward(intents):
                leadership.gather(intents)
            case Touches(ages_ms):
                for session_id, age_ms in ages_ms:
                    leadership.tracker.touch(session_id, now_ms - age_ms)
            case DigestAt(zxid, digest):
                if zxid > self.peer.committed_zxid:
                    raise RemoteProtocolError(
                        f"member {member} has a digest at {Zxid(zxid)!r}, which is not committed"
                    )
                if self._tally is not None:
                    self._take_digest(self._tally, member, zxid, digest)
            case Answers() | Differs():
                raise RemoteProtocolError(
                    f"{type(message).__name__} is for learners, not from them"
                )

    def _from_leader(self, payload: bytes, now_ms: int) -> None:
        message = messages.decode(payload, self.peer.leader or 0)
        match message:
            case Answers(answers):
                for answer in answers:
                    self.clients.answered(answer, now_ms)
            case Differs(zxid, digest, decided):
                self._differs(zxid, digest, decided=decided)
            case Forward() | Touches() | DigestAt():
                raise RemoteProtocolError(f"{type(message).__name__} is for leaders, not from them")

    # ---- time ------------------------------------------------------------------------------

    def _elapsed(self, now_ms: int) -> None:
        if now_ms >= self._next_tick_ms:
            self._next_tick_ms = now_ms + self._half_tick_ms
            self._half_tick(now_ms)
        elif self.leadership is not None:
            self.leadership.expire_more()
        deadline_ms = self.peer.deadline_ms
        if deadline_ms is not None and now_ms >= deadline_ms:
            self._absorb(self.peer.step(zab_events.Elapsed(), now_ms), now_ms)

    def _half_tick(self, now_ms: int) -> None:
        self._consider_reading_only(now_ms)
        self.clients.stats.fold()
        self.clients.close_idle(now_ms)
        touches = self.clients.take_touches(now_ms)  # first: who was heard of has not expired
        self.clients.expire_local(now_ms)
        if self.leadership is not None:
            for session_id, age_ms in touches:
                self.leadership.tracker.touch(session_id, now_ms - age_ms)
            self.leadership.expire(now_ms)
        elif touches and self.peer.leader_link is not None and self.serving:
            self._carry(self.peer.leader_link, Touches(touches))


def _doubt(zxid: int) -> str:
    return (
        f"the members' trees differ at {Zxid(zxid)!r}, and no quorum agrees on one; this member "
        "stops rather than serve wrong data: start it again, and it rebuilds its tree from its disk"
    )
