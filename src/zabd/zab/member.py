"""What a peer keeps whatever it is doing: who it is, what it promised, and its history.

A peer speaks of these in a vote, FollowerInfo or AckEpoch only when nothing is on its way to the
disk (`quiet`), so that what it reports is what a restart would load.

Invariants
    I3  Promised epochs never decrease, and the current one is never above the accepted one.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from zabd.model.errors import LocalProtocolError
from zabd.model.ids import Epoch, LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.zab.config import EnsembleConfig, RecoveredState
from zabd.zab.effects import (
    Became,
    Notify,
    PersistEpochs,
    Phase,
    Send,
)
from zabd.zab.history import History
from zabd.zab.messages import FollowerInfo, Message, Notification, PeerState, Standing
from zabd.zab.quorum import MajorityQuorum

if TYPE_CHECKING:
    from random import Random  # only its type: chance is passed in

Trace: TypeAlias = Callable[[str, Mapping[str, object]], None]
"""Told what a peer decides, for logs and transcripts; it must not change anything."""


class Look(NamedTuple):
    """The way out of following, leading or a failed attempt: look for a leader."""

    reason: str
    lost: MemberId | None = None
    """The leader that is gone, from whom no vote is expected."""


class Follow(NamedTuple):
    """An election has a result: another member."""

    leader: MemberId


class Lead(NamedTuple):
    """An election has a result: this member; `early` learners have already dialled.

    `cluster_id` is what a voter has kept of a founding that was cut short, None if none has.
    """

    founding: bool
    early: tuple[tuple[LinkId, FollowerInfo], ...] = ()
    cluster_id: bytes | None = None


Transition: TypeAlias = Look | Follow | Lead


class Member(History):
    """The state that outlives elections, and the outbox of the step in hand."""

    __slots__ = (
        "accepted_epoch",
        "became",
        "cluster_id",
        "config",
        "current_epoch",
        "damaged",
        "failures",
        "persisting",
        "quorum",
        "rng",
        "round",
        "to_found_anew",
        "trace",
        "transition",
    )

    def __init__(
        self, config: EnsembleConfig, recovered: RecoveredState, rng: "Random", trace: Trace
    ) -> None:
        super().__init__(recovered.delivered, recovered.tail)
        self.config = config
        self.quorum = MajorityQuorum(config.voters)
        self.rng = rng
        self.trace = trace
        self.accepted_epoch: Epoch = recovered.accepted_epoch
        self.current_epoch: Epoch = recovered.current_epoch
        self.to_found_anew = recovered.founds_anew and not recovered.damaged
        # Its disk goes on to name the former cluster until the new one is founded.
        self.cluster_id = None if self.to_found_anew else recovered.cluster_id
        self.damaged = recovered.damaged
        assert self.current_epoch <= self.accepted_epoch, "I3"
        self.persisting: PersistEpochs | None = None
        self.round = 0
        self.failures = 0  # attempts in a row that never came to serve
        self.transition: Transition | None = None
        self.became = Became(PeerState.LOOKING, Phase.ELECTION, self.current_epoch, None, False)

    # --- who we are -----------------------------------------------------------------------------

    @property
    def me(self) -> MemberId:
        """This member."""
        return self.config.me

    @property
    def standing(self) -> Standing:
        """What this member can vouch for."""
        if self.damaged:
            return Standing.DAMAGED
        if self.cluster_id is not None:
            return Standing.VOTER
        told = self.config.new_cluster or self.to_found_anew
        return Standing.FOUNDER if told else Standing.BLANK

    @property
    def founds_anew(self) -> bool:
        """Whether it is to found a cluster with the history of a former one, and has not yet."""
        return self.to_found_anew and self.cluster_id is None

    @property
    def quiet(self) -> bool:
        """Whether the disk has answered everything, so that memory is what a restart would load."""
        return not (self.appends or self.persisting or self.truncating or self.installing)

    def notification(
        self, leader: MemberId | None, zxid: Zxid, epoch: Epoch, state: PeerState
    ) -> Notification:
        """A notification from this member."""
        return Notification(
            sender=self.me,
            cluster_id=self.cluster_id,
            round=self.round,
            leader=leader,
            zxid=zxid,
            epoch=epoch,
            state=state,
            standing=self.standing,
            history_empty=self.history_empty,
        )

    def answer(self, asked: Notification, leader: MemberId, state: PeerState) -> None:
        """Tell a member that looks whom we follow, or that we lead."""
        members = (*self.config.voters, *self.config.observers)
        if asked.state is PeerState.LOOKING and asked.sender in members:
            self.tell(asked.sender, leader, state)

    def tell(self, member: MemberId, leader: MemberId, state: PeerState) -> None:
        """Tell a member whom we follow, or that we lead."""
        if member != self.me:
            notification = self.notification(leader, self.tail.last.zxid, self.current_epoch, state)
            self.outbox.append(Notify(member, notification))

    # --- effects --------------------------------------------------------------------------------

    def send(self, link: LinkId, message: Message) -> None:
        """Send over a link."""
        self.outbox.append(Send(link, message))

    def look(self, reason: str, lost: MemberId | None = None) -> None:
        """Leave what we are doing at the end of this step; the first reason counts."""
        self.transition = self.transition or Look(reason, lost)

    def become(
        self,
        state: PeerState,
        phase: Phase,
        epoch: Epoch,
        leader: MemberId | None,
        *,
        serving: bool = False,
    ) -> None:
        """Tell the host, if that is news."""
        now = self.became
        # Asked after every message: to compare takes 0.1 us, an object to compare with 2.6 us.
        if (now.state, now.phase, now.epoch, now.leader, now.serving) == (
            state,
            phase,
            epoch,
            leader,
            serving,
        ):
            return
        self.became = Became(state, phase, epoch, leader, serving)
        self.outbox.append(self.became)
        self.trace(
            state.name.lower(),
            {"phase": phase.name.lower(), "epoch": epoch, "leader": leader, "serving": serving},
        )

    # --- the disk -------------------------------------------------------------------------------

    def persist_epochs(
        self,
        accepted: Epoch,
        current: Epoch,
        cluster_id: bytes | None,
        *,
        repaired: bool = False,
    ) -> None:
        """Ask for the promise to be made durable; it is ours only when it is."""
        assert self.persisting is None, "one promise at a time"
        assert accepted >= self.accepted_epoch, "I3"
        assert self.current_epoch <= current <= accepted, "I3"
        self.persisting = PersistEpochs(self.new_id(), accepted, current, cluster_id, repaired)
        self.outbox.append(self.persisting)

    def epochs_persisted(self, request_id: int) -> None:
        """The promise asked for is durable."""
        asked = self.persisting
        if asked is None or asked.request_id != request_id:
            raise LocalProtocolError(f"no epochs were being persisted by request {request_id}")
        self.persisting = None
        self.accepted_epoch = asked.accepted
        self.current_epoch = asked.current
        self.cluster_id = asked.cluster_id
        if asked.repaired:
            self.damaged = False

    def stalled_at_ms(self) -> int | None:
        """When the oldest append will have taken too long (S12)."""
        return self.appends[0].since_ms + self.config.sync_timeout_ms // 2 if self.appends else None

    # --- searches -------------------------------------------------------------------------------

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next, but for time and chance."""
        return (
            self.accepted_epoch,
            self.current_epoch,
            self.cluster_id,
            self.damaged,
            self.history_key(),
            self.persisting
            and (self.persisting.accepted, self.persisting.current, self.persisting.cluster_id),
            self.round,
            self.became,
        )
