"""Leading: one leadership, its learners, and the leader's side of each phase.

A leader goes through discovery and synchronisation with a quorum, and is then *established*; each
learner goes through the same phases on its own link, early or late, in step with its `Stage`.
Nothing of one leadership is ever used in another: all of it lives in this object.

Invariants
    G1  Decisions rest on more than half of the voters, each counted once, over its present link,
        and only those that can vouch for their past (or found the ensemble together).
    G2  A leader whose live links no longer make a quorum steps down at once, and one that has not
        heard from a quorum for the sync limit does too.
"""

from typing import Final

from zabd.model.errors import LocalProtocolError, RemoteProtocolError
from zabd.model.ids import LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.zab.alignment import Alignment
from zabd.zab.broadcast import Confirmations, LeaderBroadcast
from zabd.zab.codec import CLUSTER_ID_SIZE
from zabd.zab.discovery import LeaderDiscovery
from zabd.zab.effects import Hangup, Phase
from zabd.zab.events import (
    Abdicate,
    Confirm,
    Dialled,
    Disconnected,
    Elapsed,
    EpochsPersisted,
    Event,
    Notified,
    Persisted,
    Received,
    RecordFound,
    RecordsStreamed,
    SnapshotStreamed,
    StreamFailed,
    Submit,
)
from zabd.zab.learners import Learner, Stage, check_follower_info
from zabd.zab.log import LogPosition
from zabd.zab.member import Lead, Member
from zabd.zab.messages import (
    Ack,
    AckEpoch,
    AckNewLeader,
    Aligned,
    Carried,
    FollowerInfo,
    Message,
    NewLeader,
    PeerState,
    Pong,
    TruncRefused,
    UpToDate,
)

GREETING_TICKS: Final = 1
"""How long a quorum may take to dial and introduce itself; no disk is involved."""


class Leading:
    """A peer that leads, or tries to."""

    __slots__ = (
        "_alignment",
        "_broadcast",
        "_by_member",
        "_confirmations",
        "_discovery",
        "_established",
        "_m",
        "_own_epoch_saved",
        "_ping_ms",
        "_progress_ms",
        "learners",
    )

    def __init__(self, member: Member, cause: Lead) -> None:
        self._m = member
        self.learners: dict[LinkId, Learner] = {}
        self._by_member: dict[MemberId, Learner] = {}
        self._discovery = LeaderDiscovery(member, founding=cause.founding)
        self._alignment = Alignment(member)
        self._confirmations = Confirmations(member)
        self._broadcast: LeaderBroadcast | None = None
        self._own_epoch_saved = False
        self._established = False
        self._progress_ms = member.now_ms
        self._ping_ms = member.now_ms + self._ping_every_ms()
        for link, info in cause.early:
            self._add(link, info)

    def enter(self) -> None:
        """Tell the host, and greet those who came early."""
        self._become()
        self._discovery.begin(self.learners)

    def leave(self) -> None:
        """Close every link, so that no learner has to wait to find out."""
        for link in self.learners:
            self._m.outbox.append(Hangup(link))

    # --- what the front door shows --------------------------------------------------------------

    @property
    def established(self) -> bool:
        """Whether a quorum has acknowledged this leader."""
        return self._established

    @property
    def can_submit(self) -> bool:
        """Whether a batch may be submitted now."""
        return self._established and self._broadcast is not None and self._broadcast.can_submit

    @property
    def next_zxid(self) -> Zxid:
        """The zxid that the next submitted transaction will get."""
        if self._broadcast is None:
            raise LocalProtocolError("only a leader that is established numbers transactions")
        return self._broadcast.next_zxid

    @property
    def in_step(self) -> dict[LinkId, MemberId]:
        """The learners that are in broadcast."""
        return {
            link: learner.member
            for link, learner in self.learners.items()
            if learner.stage is Stage.SERVING
        }

    @property
    def deadline_ms(self) -> int:
        """When time alone has something to do here."""
        times = [self._ping_ms]
        if not self._established:
            times.append(self._progress_ms + self._patience_ms())
        stalled_at_ms = self._m.stalled_at_ms()
        if stalled_at_ms is not None:
            times.append(stalled_at_ms)
        return min(times)

    def _ping_every_ms(self) -> int:
        return max(1, self._m.config.tick_ms // 2)

    def _patience_ms(self) -> int:
        config = self._m.config
        if self._discovery.epoch is None:
            return config.tick_ms * GREETING_TICKS
        return config.init_timeout_ms

    def _become(self) -> None:
        m = self._m
        phase = Phase.DISCOVERY
        if self._discovery.complete:
            phase = Phase.BROADCAST if self._established else Phase.SYNCHRONISATION
        epoch = self._discovery.epoch if self._discovery.complete else m.current_epoch
        assert epoch is not None
        m.become(PeerState.LEADING, phase, epoch, m.me, serving=self._established)

    # --- events ---------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Received(link, message):
                self._received(link, message)
            case Persisted():
                self._advance()
            case Submit(count, payload):
                self._submit(count, payload)
            case Confirm(token):
                self._confirm(token)
            case Elapsed():
                self._elapsed()
            case Disconnected(link):
                self._drop(link, "the link is gone")
            case Notified(notification):
                self._m.answer(notification, self._m.me, PeerState.LEADING)
            case EpochsPersisted():
                self._epochs_persisted()
            case RecordFound(request_id, position):
                self._found(request_id, position)
            case RecordsStreamed(link, upto):
                self._streamed(link, upto)
            case SnapshotStreamed(link):
                if link in self.learners:
                    self._progress_ms = self._m.now_ms
            case StreamFailed(link):
                self._refuse(link, "the stream to it failed")
            case Dialled(link):
                self._m.outbox.append(Hangup(link))
            case Abdicate(reason):
                self._m.look(reason)
            case _:
                pass  # answers to what we asked as a learner; they were booked already

    def _received(self, link: LinkId, message: Message) -> None:
        learner = self.learners.get(link)
        if learner is None:
            # A link is one connection of one peer: what arrives late on a dead one is not for us.
            if isinstance(message, FollowerInfo):
                self._greet(link, message)
            return
        learner.heard_ms = self._m.now_ms
        match message:
            case Ack(zxid):
                self._ack(learner, zxid)
            case Pong(round_):
                self._confirmations.pong(learner, round_)
                self._confirmations.settle([*self.learners.values()])
                self._invite_all()
            case AckEpoch():
                self._discovery.promise(learner, message)
                self._progress_ms = self._m.now_ms
                self._after_promise(learner)
            case AckNewLeader():
                self._ack_new_leader(learner, message)
            case Aligned(position):
                self._aligned(learner, position)
            case TruncRefused():
                self._require_stage(learner, Stage.ALIGNING, message)
                self._alignment.refused(learner, established=self._established)
            case Carried():
                pass  # between hosts
            case _:
                raise RemoteProtocolError(
                    f"member {learner.member} sent {type(message).__name__} to its leader"
                )

    def _require_stage(self, learner: Learner, stage: Stage, message: Message) -> None:
        if learner.stage is not stage:
            raise RemoteProtocolError(
                f"member {learner.member} sent {type(message).__name__} "
                f"while it was {learner.stage.name.lower()}, not {stage.name.lower()}"
            )

    # --- discovery ------------------------------------------------------------------------------

    def _greet(self, link: LinkId, info: FollowerInfo) -> None:
        check_follower_info(self._m, info)
        self._discovery.greet(self._add(link, info), self.learners)

    def _add(self, link: LinkId, info: FollowerInfo) -> Learner:
        before = self._by_member.get(info.member)
        if before is not None:
            self._refuse(before.link, "it has dialled anew")
        # Once we are established, a blank member was not part of the founding any more.
        counts = self._discovery.counts(info)
        if self._established and info.cluster_id is None:
            counts = False
        learner = Learner(link, info, self._m.now_ms, counts=counts)
        self.learners[link] = self._by_member[info.member] = learner
        self._progress_ms = self._m.now_ms
        return learner

    def _epochs_persisted(self) -> None:
        self._progress_ms = self._m.now_ms
        if self._discovery.complete:
            self._own_epoch_saved = True
            self._invite_all()
            self._establish_if_acked()
        else:
            self._discovery.own_promise_saved(self.learners)
            if self._discovery.complete:
                self._begin_synchronisation()

    def _after_promise(self, learner: Learner) -> None:
        if self._m.transition or not self._discovery.complete:
            return
        if self._broadcast is None:
            self._begin_synchronisation()
        else:
            self._alignment.align(learner)
            self._invite(learner)

    # --- synchronisation ------------------------------------------------------------------------

    def _begin_synchronisation(self) -> None:
        """A quorum has promised: the epoch is ours, and our history is the one."""
        m = self._m
        epoch = self._discovery.epoch
        assert epoch is not None
        assert m.quiet, "what we take as the initial history is durable"
        self._broadcast = LeaderBroadcast(m, epoch)
        self._become()
        # What the epoch stands for is our present history, which is durable: so is the epoch next.
        m.save_epochs(epoch, epoch, self._cluster_id())
        for learner in [*self.learners.values()]:
            if learner.stage is Stage.PROMISED:
                self._alignment.align(learner)

    def _cluster_id(self) -> bytes:
        m = self._m
        known = [learner.cluster_id for learner in self.learners.values() if learner.cluster_id]
        if m.cluster_id is not None:
            return m.cluster_id
        return known[0] if known else m.rng.randbytes(CLUSTER_ID_SIZE)

    def _found(self, request_id: int, position: LogPosition | None) -> None:
        for learner in [*self.learners.values()]:
            if learner.request_id == request_id:
                self._alignment.found(learner, position)
                self._invite(learner)

    def _aligned(self, learner: Learner, position: LogPosition) -> None:
        self._require_stage(learner, Stage.ALIGNING, Aligned(position))
        self._progress_ms = self._m.now_ms
        self._alignment.aligned(learner, position)
        self._invite(learner)

    def _streamed(self, link: LinkId, upto: LogPosition) -> None:
        learner = self.learners.get(link)
        if learner is not None and learner.stage is Stage.STREAMING:
            self._progress_ms = self._m.now_ms
            self._alignment.streamed(learner, upto)
            self._invite(learner)

    def _invite_all(self) -> None:
        for learner in self.learners.values():
            self._invite(learner)

    def _invite(self, learner: Learner) -> None:
        """Send NewLeader to a learner that has it all, once our own epoch is durable.

        One that cannot vouch for its past has to wait until we are established without it, and
        until a quorum has followed us since it came.
        """
        m = self._m
        if learner.stage is not Stage.CAUGHT_UP or not self._own_epoch_saved or m.transition:
            return
        if not learner.counts and learner.cluster_id is None:
            if not self._established:
                return
            self._confirmations.admit(learner.link, [*self.learners.values()])
            if not self._confirmations.is_admitted(learner.link):
                return
        epoch, cluster_id = self._discovery.epoch, m.cluster_id
        assert epoch is not None
        assert cluster_id is not None
        learner.stage = Stage.INVITED
        learner.position = m.tail.last
        m.send(learner.link, NewLeader(epoch, cluster_id, m.tail.last))

    def _ack_new_leader(self, learner: Learner, message: AckNewLeader) -> None:
        self._require_stage(learner, Stage.INVITED, message)
        m = self._m
        if (
            message.epoch != self._discovery.epoch
            or not learner.position.zxid <= message.zxid <= m.tail.last.zxid
            or (message.zxid > m.delivered and not m.is_boundary(message.zxid))
        ):
            raise RemoteProtocolError(
                f"member {learner.member} acknowledged leader {message.epoch} "
                f"at {message.zxid!r}, asked for {learner.position.zxid!r}"
            )
        broadcast = self._broadcast
        assert broadcast is not None
        self._progress_ms = m.now_ms
        m.trace("synced", {"member": learner.member, "zxid": message.zxid})
        learner.stage = Stage.SYNCED
        if not learner.observer:
            # From here on even one that was blank knows what it has promised, and to whom.
            learner.counts = True
            broadcast.count(learner.member, message.zxid)
        if self._established:
            self._let_serve(learner)
            self._advance()
        else:
            self._establish_if_acked()

    def _establish_if_acked(self) -> None:
        m = self._m
        if self._established or not self._own_epoch_saved or m.transition:
            return
        synced = [
            learner.member
            for learner in self.learners.values()
            if learner.counts and learner.stage >= Stage.SYNCED
        ]
        if not m.quorum.contains([*synced, m.me]):
            return
        assert m.quiet, "nothing is proposed before the leader is established"
        self._established = True
        m.failures = 0
        m.trace("established", {"epoch": self._discovery.epoch, "by": sorted([m.me, *synced])})
        m.commit(m.tail.last.zxid)  # the initial history, by the quorum that acknowledged it
        for learner in [*self.learners.values()]:
            if learner.stage is Stage.SYNCED:
                self._let_serve(learner)
            elif learner.stage is Stage.HELD:
                self._alignment.release(learner)
        self._ask()
        self._become()
        self._invite_all()
        self._announce()

    def _announce(self) -> None:
        """Tell those who are not with us; they may be looking, and would ask again only later."""
        config = self._m.config
        for member in (*config.voters, *config.observers):
            if member not in self._by_member:
                self._m.tell(member, self._m.me, PeerState.LEADING)

    def _let_serve(self, learner: Learner) -> None:
        learner.stage = Stage.SERVING
        self._m.send(learner.link, UpToDate(self._m.committed))

    # --- broadcast ------------------------------------------------------------------------------

    def _submit(self, count: int, payload: bytes) -> None:
        if not self.can_submit:
            raise LocalProtocolError("this leader takes no batch now; ask can_submit before")
        assert self._broadcast is not None
        self._broadcast.submit(count, payload, self.learners.values())

    def _ack(self, learner: Learner, zxid: Zxid) -> None:
        if learner.stage < Stage.SYNCED or learner.observer or self._broadcast is None:
            raise RemoteProtocolError(
                f"member {learner.member} acknowledged {zxid!r} "
                f"while it was {learner.stage.name.lower()}"
            )
        self._broadcast.ack(learner, zxid)
        self._advance()

    def _advance(self) -> None:
        if self._established and self._broadcast is not None:
            self._broadcast.advance(self.learners.values())

    def _confirm(self, token: int) -> None:
        if not self._established:
            raise LocalProtocolError("only a leader that is established can confirm that it leads")
        self._confirmations.confirm(token, [*self.learners.values()])

    # --- links and time -------------------------------------------------------------------------

    def _refuse(self, link: LinkId, reason: str) -> None:
        if link in self.learners:
            self._m.outbox.append(Hangup(link))
            self._drop(link, reason)

    def _drop(self, link: LinkId, reason: str) -> None:
        m = self._m
        learner = self.learners.pop(link, None)
        if learner is None:
            return
        if self._by_member.get(learner.member) is learner:
            del self._by_member[learner.member]
        m.trace("drops", {"member": learner.member, "reason": reason})
        self._discovery.forget(learner)
        self._confirmations.forget(link)
        if self._broadcast is not None:
            self._broadcast.forget(learner.member)
        if self._discovery.complete and not self._has_quorum():
            m.look(f"without member {learner.member} this leader has no quorum")  # G2

    def _has_quorum(self, heard_since_ms: int | None = None) -> bool:
        """Whether the links that could carry a decision make a quorum, and were heard from."""
        least = Stage.SYNCED if self._established else Stage.GREETED
        alive = [
            learner.member
            for learner in self.learners.values()
            if learner.counts
            and learner.stage >= least
            and (heard_since_ms is None or learner.heard_ms >= heard_since_ms)
        ]
        return self._m.quorum.contains([*alive, self._m.me])

    def _ask(self) -> None:
        self._ping_ms = self._m.now_ms + self._ping_every_ms()
        self._confirmations.ask(self.learners.values())
        self._confirmations.settle([*self.learners.values()])

    def _elapsed(self) -> None:
        m = self._m
        stalled_at_ms = m.stalled_at_ms()
        if stalled_at_ms is not None and m.now_ms >= stalled_at_ms:
            m.look("the disk does not answer")
        elif not self._established and m.now_ms >= self._progress_ms + self._patience_ms():
            m.look("no quorum has come in step")
        elif m.now_ms >= self._ping_ms:
            self._drop_silent()
            if self._established and not self._has_quorum(m.now_ms - m.config.sync_timeout_ms):
                m.look("a quorum is silent")
            if not m.transition:
                self._ask()
                self._invite_all()

    def _drop_silent(self) -> None:
        config = self._m.config
        for link, learner in [*self.learners.items()]:
            serving = learner.stage is Stage.SERVING
            patience_ms = config.sync_timeout_ms if serving else config.init_timeout_ms
            if self._m.now_ms - learner.heard_ms > patience_ms:
                self._refuse(link, "it is silent")

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next, but for time."""
        return (
            self._discovery.state_key(),
            self._own_epoch_saved,
            self._established,
            self._broadcast and self._broadcast.state_key(),
            self._confirmations.state_key(),
            tuple(learner.state_key() for learner in self.learners.values()),
        )
