"""Following and observing: one leader, one link to it, and the learner's side of each phase.

Everything here is bound to the link. When it goes, so does the leadership for us, at once; what
still comes from it later belongs to nobody.
"""

from typing import Final, TypeAlias

from zabd.model.ids import LinkId, MemberId
from zabd.zab.broadcast import LearnerBroadcast
from zabd.zab.discovery import LearnerDiscovery
from zabd.zab.effects import Dial, Hangup, Phase
from zabd.zab.events import (
    Abdicate,
    DialFailed,
    Dialled,
    Disconnected,
    Elapsed,
    EpochsPersisted,
    Event,
    Notified,
    Persisted,
    Received,
    SnapshotInstalled,
    StreamFailed,
    StreamProgressed,
    Truncated,
)
from zabd.zab.member import Follow, Member
from zabd.zab.messages import Carried, FollowerInfo, Message, Notification, PeerState
from zabd.zab.synchronisation import LearnerSynchronisation

DIAL_ATTEMPTS_MAX: Final = 5
DIAL_RETRY_MS: Final = 10
"""The first pause after a failed dial, doubled each time: 150 ms in all before we look again."""

LearnerPhase: TypeAlias = LearnerDiscovery | LearnerSynchronisation | LearnerBroadcast


class Following:
    """A peer that has chosen a leader; an observer's way of doing it is the same."""

    __slots__ = (
        "_dial_ms",
        "_dials",
        "_heard_ms",
        "_m",
        "_patience_ms",
        "_phase",
        "_state",
        "leader",
        "link",
    )

    def __init__(self, member: Member, cause: Follow) -> None:
        self._m = member
        self.leader: MemberId = cause.leader
        self.link: LinkId | None = None
        self._state = PeerState.OBSERVING if member.config.observer else PeerState.FOLLOWING
        self._phase: LearnerPhase | None = None
        self._heard_ms = member.now_ms
        """When the leader was heard; while its snapshot is installed, when that last went on."""
        self._patience_ms = member.config.init_timeout_ms
        self._dials = 0
        self._dial_ms: int | None = None

    def enter(self) -> None:
        """Dial the leader."""
        self._become(Phase.DISCOVERY)
        self._dial()

    def leave(self) -> None:
        """Close the link; anything on it no longer concerns us."""
        if self.link is not None:
            self._m.outbox.append(Hangup(self.link))

    @property
    def in_step(self) -> bool:
        """Whether this leadership has come to broadcast."""
        return isinstance(self._phase, LearnerBroadcast)

    @property
    def deadline_ms(self) -> int:
        """When time alone has something to do here."""
        due_ms = self._heard_ms + self._patience_ms
        if self._dial_ms is not None:
            due_ms = min(due_ms, self._dial_ms)
        stalled_at_ms = self._m.stalled_at_ms()
        return due_ms if stalled_at_ms is None else min(due_ms, stalled_at_ms)

    def _become(self, phase: Phase) -> None:
        m = self._m
        serving = isinstance(self._phase, LearnerBroadcast) and self._phase.serving
        match self._phase:
            case LearnerSynchronisation() | LearnerBroadcast():
                epoch = self._phase.epoch
            case _:
                epoch = m.current_epoch
        m.become(self._state, phase, epoch, self.leader, serving=serving)

    # --- events ---------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Received(link, message):
                self._received(link, message)
            case Persisted():
                self._persisted()
            case Disconnected(link):
                if link == self.link:
                    self.link = None
                    self._m.look(f"the link to leader {self.leader} is gone", self.leader)
            case Elapsed():
                self._elapsed()
            case Notified(notification):
                self._notified(notification)
            case EpochsPersisted():
                self._epochs_persisted()
            case Truncated(_, done):
                assert isinstance(self._phase, LearnerSynchronisation)
                self._phase.truncated(done=done)
            case SnapshotInstalled():
                assert isinstance(self._phase, LearnerSynchronisation)
                self._heard_ms = self._m.now_ms
                self._phase.installed()
            case StreamProgressed(link):
                if link == self.link:
                    self._heard_ms = self._m.now_ms
            case StreamFailed(link):
                if link == self.link:
                    self._m.look("the snapshot from the leader could not be installed")
            case Dialled(link, member):
                self._dialled(link, member)
            case DialFailed(member):
                self._dial_failed(member)
            case Abdicate(reason):
                self._m.look(reason)
            case _:
                pass  # questions to a leader, or answers to one that we are no more

    def _notified(self, notification: Notification) -> None:
        m = self._m
        if self._is_refused_by(notification):
            m.look(f"leader {self.leader} looks for another one itself")
        else:
            m.answer(notification, self.leader, self._state)

    def _is_refused_by(self, notification: Notification) -> bool:
        """Whether the leader says that it will not lead by the votes that made us choose it.

        It has heard of a better vote, or went to a later round, before it heard of them. A leader
        that is still looking keeps our link open; without this we would wait for all of the init
        limit, and the others perhaps for us.
        """
        if not (self._phase is None or isinstance(self._phase, LearnerDiscovery)):
            return False
        if notification.sender != self.leader or notification.state is not PeerState.LOOKING:
            return False
        round_ = self._m.round
        return notification.round > round_ or (
            notification.round == round_ and notification.leader != self.leader
        )

    def _received(self, link: LinkId, message: Message) -> None:
        if link != self.link:
            # A link is one connection of one peer: what arrives late on a dead one is not for us.
            if isinstance(message, FollowerInfo):
                self._m.outbox.append(Hangup(link))
            return
        if self._m.installing is None:
            self._heard_ms = self._m.now_ms
        if isinstance(message, Carried):
            return  # between hosts
        assert self._phase is not None
        self._phase.receive(message)
        self._go_on()

    def _persisted(self) -> None:
        match self._phase:
            case LearnerSynchronisation() as phase:
                phase.persisted()
            case LearnerBroadcast() as phase:
                phase.persisted()
                self._serve_if_in_step()
            case _:
                pass

    def _epochs_persisted(self) -> None:
        match self._phase:
            case LearnerDiscovery() as phase:
                phase.promise()
            case LearnerSynchronisation() as phase:
                phase.epochs_persisted()
            case _:
                raise AssertionError("nobody asked for epochs")
        self._go_on()

    def _go_on(self) -> None:
        """Enter the next phase if this one is over."""
        m = self._m
        assert self.link is not None
        match self._phase:
            case LearnerBroadcast():
                self._serve_if_in_step()
            case LearnerDiscovery() as phase if phase.promised is not None and not m.transition:
                self._phase = LearnerSynchronisation(m, self.link, phase.promised)
                self._become(Phase.SYNCHRONISATION)
            case LearnerSynchronisation() as phase if phase.serve_from is not None:
                self._phase = LearnerBroadcast(m, self.link, phase.epoch, phase.serve_from)
                self._patience_ms = m.config.sync_timeout_ms
                m.failures = 0
                m.commit(phase.serve_from)
                self._become(Phase.BROADCAST)
            case _:
                pass

    def _serve_if_in_step(self) -> None:
        # Asked after every message and every sync: who serves already has nothing to tell.
        if not self._m.became.serving:
            self._become(Phase.BROADCAST)

    # --- dialling and time ----------------------------------------------------------------------

    def _dial(self) -> None:
        self._dials += 1
        self._dial_ms = None
        self._m.outbox.append(Dial(self.leader))

    def _dialled(self, link: LinkId, member: MemberId) -> None:
        if member != self.leader or self.link is not None:
            self._m.outbox.append(Hangup(link))
            return
        self.link = link
        self._dial_ms = None
        self._heard_ms = self._m.now_ms
        self._phase = LearnerDiscovery(self._m, link)
        self._phase.introduce()

    def _dial_failed(self, member: MemberId) -> None:
        m = self._m
        if member != self.leader or self.link is not None:
            return
        if self._dials >= DIAL_ATTEMPTS_MAX:
            m.look(f"leader {self.leader} cannot be reached", self.leader)
        else:
            pause_ms = DIAL_RETRY_MS << (self._dials - 1)
            self._dial_ms = m.now_ms + m.rng.randint(pause_ms // 2, pause_ms)

    def _elapsed(self) -> None:
        m = self._m
        if self._dial_ms is not None and m.now_ms >= self._dial_ms:
            self._dial()
        if m.now_ms >= self._heard_ms + self._patience_ms:
            if m.installing is not None:
                m.look("the snapshot from the leader does not go on")
            m.look(f"leader {self.leader} is silent", self.leader)
        stalled_at_ms = m.stalled_at_ms()
        if stalled_at_ms is not None and m.now_ms >= stalled_at_ms:
            m.look("the disk does not answer")

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next, but for time."""
        return (self.leader, self.link, self._phase and self._phase.state_key())
