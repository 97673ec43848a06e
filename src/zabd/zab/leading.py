"""Leading: one leadership, its learners, and the leader's side of each phase.

A leader goes through discovery and synchronisation with a quorum, and is then *established*; each
learner goes through the same phases on its own link, early or late, in step with its `Stage`.
Nothing of one leadership is ever used in another: all of it lives in this object.

Invariants
    G1  Decisions rest on more than half of the voters, each counted once, over its present link,
        and only those that can vouch for their past (or found the ensemble together).
    G2  A leader whose live links no longer make a quorum steps down at once, and one that has not
        heard from a quorum for the sync limit does too.
    G3  A leader that is not established gives up when nothing has gone on for the init limit, and
        not for the length of the whole: a snapshot takes as long as its size.
"""

from typing import Final

from zabd.model.errors import LocalProtocolError, RemoteProtocolError
from zabd.model.ids import LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.zab.broadcast import Confirmations
from zabd.zab.discovery import LeaderDiscovery
from zabd.zab.effects import Hangup, Phase
from zabd.zab.establishment import Establishment, require_stage
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
    StreamProgressed,
    Submit,
)
from zabd.zab.learners import Learner, Learners, Stage, check_follower_info
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
    PeerState,
    Pong,
    TruncRefused,
)

GREETING_TICKS: Final = 1
"""How long a quorum may take to dial and introduce itself; no disk is involved."""


class Leading:
    """A peer that leads, or tries to."""

    __slots__ = (
        "_cluster_id",
        "_confirmations",
        "_discovery",
        "_establishment",
        "_learners",
        "_m",
        "_ping_ms",
        "_progress_ms",
    )

    def __init__(self, member: Member, cause: Lead) -> None:
        self._m = member
        self._learners = Learners(member)
        self._discovery = LeaderDiscovery(member, founding=cause.founding)
        self._cluster_id = cause.cluster_id
        self._confirmations = Confirmations(member)
        self._establishment: Establishment | None = None  # from a quorum's promises on
        self._progress_ms = member.now_ms
        self._ping_ms = member.now_ms + self._ping_every_ms()
        for link, info in cause.early:
            self._add(link, info)

    def enter(self) -> None:
        """Tell the host, and greet those who came early."""
        self._become()
        self._discovery.begin(self._learners.links)

    def leave(self) -> None:
        """Close every link, so that no learner has to wait to find out."""
        for link in self._learners.links:
            self._m.outbox.append(Hangup(link))

    # --- what the front door shows --------------------------------------------------------------

    @property
    def established(self) -> bool:
        """Whether a quorum has acknowledged this leader."""
        return self._establishment is not None and self._establishment.established

    @property
    def can_submit(self) -> bool:
        """Whether a batch may be submitted now."""
        office = self._establishment
        return office is not None and office.established and office.broadcast.can_submit

    @property
    def next_zxid(self) -> Zxid:
        """The zxid that the next submitted transaction will get."""
        if self._establishment is None or not self._establishment.established:
            raise LocalProtocolError("only a leader that is established numbers transactions")
        return self._establishment.broadcast.next_zxid

    @property
    def in_step(self) -> dict[LinkId, MemberId]:
        """The learners that are in broadcast."""
        return self._learners.in_step()

    @property
    def behind(self) -> int:
        """How many learners have a link and are not in broadcast yet."""
        return len(self._learners.links) - len(self._learners.in_step())

    def is_in_step(self, link: LinkId) -> bool:
        """Whether the learner on this link is in broadcast."""
        learner = self._learners.links.get(link)
        return learner is not None and learner.stage is Stage.SERVING

    @property
    def deadline_ms(self) -> int:
        """When time alone has something to do here."""
        times = [self._ping_ms]
        if not self.established:
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
        phase, epoch = Phase.DISCOVERY, m.current_epoch
        if self._establishment is not None and self._discovery.epoch is not None:
            phase = Phase.BROADCAST if self.established else Phase.SYNCHRONISATION
            epoch = self._discovery.epoch
        m.become(PeerState.LEADING, phase, epoch, m.me, serving=self.established)

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
                if self._establishment is not None:
                    self._establishment.found(request_id, position)
            case RecordsStreamed(link, upto):
                self._streamed(link, upto)
            case SnapshotStreamed(link):
                self._snapshot_streamed(link)
            case StreamProgressed(link):
                self._stream_progressed(link)
            case StreamFailed(link):
                self._refuse(link, "the stream to it failed")
            case Dialled(link):
                self._m.outbox.append(Hangup(link))
            case Abdicate(reason):
                self._m.look(reason)
            case _:
                pass  # answers to what we asked as a learner; they were booked already

    def _received(self, link: LinkId, message: Message) -> None:
        learner = self._learners.links.get(link)
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
                self._pong(learner, round_)
            case AckEpoch():
                self._ack_epoch(learner, message)
            case AckNewLeader() | Aligned() | TruncRefused():
                self._synchronise(learner, message)
            case Carried():
                pass  # between hosts
            case _:
                raise RemoteProtocolError(
                    f"member {learner.member} sent {type(message).__name__} to its leader"
                )

    # --- discovery ------------------------------------------------------------------------------

    def _greet(self, link: LinkId, info: FollowerInfo) -> None:
        check_follower_info(self._m, info)
        self._discovery.greet(self._add(link, info), self._learners.links)

    def _add(self, link: LinkId, info: FollowerInfo) -> Learner:
        before = self._learners.of(info.member)
        if before is not None:
            self._refuse(before.link, "it has dialled anew")
        # Once we are established, a blank member was not part of the founding any more.
        counts = self._discovery.counts(info)
        if self.established and info.cluster_id is None:
            counts = False
        learner = Learner(link, info, self._m.now_ms, counts=counts)
        self._learners.add(learner)
        self._progress_ms = self._m.now_ms
        return learner

    def _epochs_persisted(self) -> None:
        self._progress_ms = self._m.now_ms
        if self._establishment is not None:
            self._establishment.own_epoch_saved()
            self._take_office()
        else:
            self._discovery.own_promise_saved(self._learners.links)
            self._synchronise_if_promised()

    def _ack_epoch(self, learner: Learner, message: AckEpoch) -> None:
        self._discovery.promise(learner, message)
        self._progress_ms = self._m.now_ms
        if self._establishment is None:
            self._synchronise_if_promised()
        elif not self._m.transition:
            self._establishment.join(learner)

    # --- synchronisation ------------------------------------------------------------------------

    def _synchronise_if_promised(self) -> None:
        """A quorum has promised: the epoch is ours, and our history is the one."""
        m = self._m
        epoch = self._discovery.epoch
        if m.transition or not self._discovery.complete or epoch is None:
            return
        self._establishment = Establishment(m, epoch, self._learners, self._confirmations)
        self._become()
        self._establishment.begin(self._cluster_id)

    def _synchronise(
        self, learner: Learner, message: AckNewLeader | Aligned | TruncRefused
    ) -> None:
        office = self._establishment
        if office is None:
            raise RemoteProtocolError(
                f"member {learner.member} sent {type(message).__name__} in discovery"
            )
        match message:
            case AckNewLeader():
                office.ack(learner, message)
                self._take_office()
                self._advance()
            case Aligned(position):
                require_stage(learner, Stage.ALIGNING, message)
                learner.installs = False
                office.aligned(learner, position)
            case TruncRefused():
                office.refused(learner)
        self._progress_ms = self._m.now_ms

    def _streamed(self, link: LinkId, upto: LogPosition) -> None:
        learner = self._learners.links.get(link)
        if learner is not None and self._establishment is not None:
            self._progress_ms = self._m.now_ms
            self._establishment.streamed(learner, upto)

    def _snapshot_streamed(self, link: LinkId) -> None:
        learner = self._learners.links.get(link)
        if learner is not None:
            self._progress_ms = self._m.now_ms
            learner.installs = True

    def _stream_progressed(self, link: LinkId) -> None:
        learner = self._learners.links.get(link)
        if learner is not None:
            # Its answers wait behind what it is being sent.
            learner.heard_ms = self._m.now_ms
            self._note_progress(learner)

    def _note_progress(self, learner: Learner) -> None:
        """What goes on for an observer brings no quorum nearer (G3)."""
        if learner.counts:
            self._progress_ms = self._m.now_ms

    def _take_office(self) -> None:
        """A quorum is in step, for the first time: serve, and say so to everyone."""
        m = self._m
        if not self.established or m.became.serving:
            return
        m.failures = 0
        self._discovery.over = True
        self._ask()
        self._become()
        for member in (*m.config.voters, *m.config.observers):
            if member not in self._learners:
                # It may be looking, and would ask again only later.
                m.tell(member, m.me, PeerState.LEADING)

    # --- broadcast ------------------------------------------------------------------------------

    def _submit(self, count: int, payload: bytes) -> None:
        if self._establishment is None or not self.can_submit:
            raise LocalProtocolError("this leader takes no batch now; ask can_submit before")
        self._establishment.broadcast.submit(count, payload, self._learners.links.values())

    def _ack(self, learner: Learner, zxid: Zxid) -> None:
        if self._establishment is None or learner.stage < Stage.SYNCED or learner.observer:
            raise RemoteProtocolError(
                f"member {learner.member} acknowledged {zxid!r} "
                f"while it was {learner.stage.name.lower()}"
            )
        self._establishment.broadcast.ack(learner, zxid)
        self._advance()

    def _advance(self) -> None:
        office = self._establishment
        if office is not None and office.established:
            office.broadcast.advance(self._learners.links.values())

    def _confirm(self, token: int) -> None:
        if not self.established:
            raise LocalProtocolError("only a leader that is established can confirm that it leads")
        self._confirmations.confirm(token, [*self._learners])

    def _pong(self, learner: Learner, round_: int) -> None:
        self._confirmations.pong(learner, round_)
        if learner.installs:
            # It writes and reads a whole snapshot now, and leaves by itself if that does not go on.
            self._note_progress(learner)
        self._settle()

    def _settle(self) -> None:
        self._confirmations.settle([*self._learners])
        if self._establishment is not None:
            self._establishment.invite_all()

    # --- links and time -------------------------------------------------------------------------

    def _refuse(self, link: LinkId, reason: str) -> None:
        if link in self._learners.links:
            self._m.outbox.append(Hangup(link))
            self._drop(link, reason)

    def _drop(self, link: LinkId, reason: str) -> None:
        m = self._m
        learner = self._learners.pop(link)
        if learner is None:
            return
        m.trace("drops", {"learner": learner.member, "reason": reason})
        self._discovery.forget(learner)
        self._confirmations.forget(link)
        if self._establishment is not None:
            self._establishment.broadcast.forget(learner.member)
            if not self._has_quorum():
                m.look(f"without member {learner.member} this leader has no quorum")  # G2

    def _has_quorum(self, heard_since_ms: int | None = None) -> bool:
        """Whether the links that could carry a decision make a quorum, and were heard from."""
        least = Stage.SYNCED if self.established else Stage.GREETED
        return self._learners.make_quorum(least, heard_since_ms)

    def _ask(self) -> None:
        self._ping_ms = self._m.now_ms + self._ping_every_ms()
        self._confirmations.ask(self._learners)
        self._settle()

    def _elapsed(self) -> None:
        m = self._m
        stalled_at_ms = m.stalled_at_ms()
        if stalled_at_ms is not None and m.now_ms >= stalled_at_ms:
            m.look("the disk does not answer")
        elif not self.established and m.now_ms >= self._progress_ms + self._patience_ms():
            m.look("no quorum has come in step")
        elif m.now_ms >= self._ping_ms:
            self._drop_silent()
            if self.established and not self._has_quorum(m.now_ms - m.config.sync_timeout_ms):
                m.look("a quorum is silent")
            if not m.transition:
                self._ask()

    def _drop_silent(self) -> None:
        config = self._m.config
        for learner in self._learners:
            serving = learner.stage is Stage.SERVING
            patience_ms = config.sync_timeout_ms if serving else config.init_timeout_ms
            if self._m.now_ms - learner.heard_ms > patience_ms:
                self._refuse(learner.link, "it is silent")

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next, but for time."""
        return (
            self._discovery.state_key(),
            self._establishment and self._establishment.state_key(),
            self._confirmations.state_key(),
            self._learners.state_key(),
        )
