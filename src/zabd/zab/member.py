"""What a peer keeps whatever it is doing: promises, history, and questions to its disk.

The history in memory is the one on disk plus what is on its way there. A peer speaks of it in a
vote, FollowerInfo or AckEpoch only when nothing is on its way (`quiet`), so that what it reports is
what a restart would load.

Invariants
    I1  Batches are delivered in order and without a gap, only when committed and durable here.
    I2  `delivered` and the commit point never go back; no truncation reaches below them.
    I3  Promised epochs never decrease, and the current one is never above the accepted one.
"""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from zabd.model.errors import LocalProtocolError
from zabd.model.ids import Epoch, LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.zab.config import EnsembleConfig, RecoveredState
from zabd.zab.effects import (
    Append,
    Became,
    Deliver,
    Effect,
    InstallSnapshot,
    Notify,
    PersistEpochs,
    Phase,
    Send,
    Truncate,
)
from zabd.zab.log import GENESIS, Batch, LogPosition, LogTail, follows
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
    """An election has a result: this member; `early` learners have already dialled."""

    founding: bool
    early: tuple[tuple[LinkId, FollowerInfo], ...] = ()


Transition: TypeAlias = Look | Follow | Lead


class PendingAppend(NamedTuple):
    """A batch on its way to the disk."""

    append_id: int
    position: LogPosition
    since_ms: int


class Member:
    """The state that outlives elections, and the outbox of the step in hand."""

    __slots__ = (
        "accepted_epoch",
        "appends",
        "became",
        "cluster_id",
        "committed",
        "config",
        "current_epoch",
        "delivered",
        "durable",
        "failures",
        "installing",
        "next_id",
        "now_ms",
        "outbox",
        "quorum",
        "rng",
        "round",
        "saving",
        "tail",
        "trace",
        "transition",
        "truncating",
    )

    def __init__(
        self, config: EnsembleConfig, recovered: RecoveredState, rng: "Random", trace: Trace
    ) -> None:
        self.config = config
        self.quorum = MajorityQuorum(config.voters)
        self.rng = rng
        self.trace = trace
        self.accepted_epoch: Epoch = recovered.accepted_epoch
        self.current_epoch: Epoch = recovered.current_epoch
        self.cluster_id = recovered.cluster_id
        assert self.current_epoch <= self.accepted_epoch, "I3"
        self.tail = LogTail(recovered.delivered, recovered.tail)
        self.durable = self.tail.last
        self.committed = self.delivered = recovered.delivered.zxid
        self.appends: deque[PendingAppend] = deque()
        self.saving: PersistEpochs | None = None
        self.truncating: Truncate | None = None
        self.installing: InstallSnapshot | None = None
        self.next_id = 1
        self.round = 0
        self.failures = 0  # attempts in a row that never came to serve
        self.outbox: list[Effect] = []
        self.transition: Transition | None = None
        self.became = Became(PeerState.LOOKING, Phase.ELECTION, self.current_epoch, None, False)
        self.now_ms = 0

    # --- who we are -----------------------------------------------------------------------------

    @property
    def me(self) -> MemberId:
        """This member."""
        return self.config.me

    @property
    def standing(self) -> Standing:
        """What this member can vouch for."""
        if self.cluster_id is not None:
            return Standing.VOTER
        return Standing.FOUNDER if self.config.new_cluster else Standing.BLANK

    @property
    def history_empty(self) -> bool:
        """Whether this member has no transaction at all."""
        return self.tail.last == GENESIS

    @property
    def quiet(self) -> bool:
        """Whether the disk has answered everything, so that memory is what a restart would load."""
        return not (self.appends or self.saving or self.truncating or self.installing)

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
        became = Became(state, phase, epoch, leader, serving)
        if became != self.became:
            self.became = became
            self.outbox.append(became)
            self.trace(
                state.name.lower(),
                {"phase": phase.name.lower(), "epoch": epoch, "leader": leader, "serving": serving},
            )

    # --- the disk -------------------------------------------------------------------------------

    def new_id(self) -> int:
        """A number for a request to the host."""
        self.next_id += 1
        return self.next_id - 1

    def append(self, batch: Batch) -> None:
        """Take the next batch into the history and on its way to the disk."""
        self.tail.append(batch)
        append_id = self.new_id()
        self.appends.append(PendingAppend(append_id, batch.position, self.now_ms))
        watermark = Zxid(min(self.committed, self.durable.zxid))
        self.outbox.append(Append(append_id, batch.record, watermark))

    def persisted(self, append_id: int) -> None:
        """Appends up to this one are durable; deliver what only waited for that."""
        if not self.appends or not self.appends[0].append_id <= append_id < self.next_id:
            raise LocalProtocolError(
                f"append {append_id} is not one that is on its way to the disk"
            )
        while self.appends and self.appends[0].append_id <= append_id:
            self.durable = self.appends.popleft().position
        self.deliver()

    def save_epochs(self, accepted: Epoch, current: Epoch, cluster_id: bytes | None) -> None:
        """Ask for the promise to be made durable; it is ours only when it is."""
        assert self.saving is None, "one promise at a time"
        assert accepted >= self.accepted_epoch, "I3"
        assert self.current_epoch <= current <= accepted, "I3"
        self.saving = PersistEpochs(self.new_id(), accepted, current, cluster_id)
        self.outbox.append(self.saving)

    def epochs_saved(self, request_id: int) -> None:
        """The promise asked for is durable."""
        saved = self.saving
        if saved is None or saved.request_id != request_id:
            raise LocalProtocolError(f"no epochs were being persisted by request {request_id}")
        self.saving = None
        self.accepted_epoch = saved.accepted
        self.current_epoch = saved.current
        self.cluster_id = saved.cluster_id

    def truncate(self, position: LogPosition) -> None:
        """Ask for the history to end at `position`, which is one of its points."""
        assert position.zxid >= self.committed, "I2"
        self.truncating = Truncate(self.new_id(), position)
        self.outbox.append(self.truncating)

    def truncated(self, request_id: int, *, done: bool) -> None:
        """The truncation asked for has been done, or refused."""
        asked = self.truncating
        if asked is None or asked.request_id != request_id:
            raise LocalProtocolError(f"no truncation was asked for by request {request_id}")
        self.truncating = None
        if done:
            self.tail.truncate(asked.position.zxid)
            self.durable = self.tail.last

    def install(self, link: LinkId, position: LogPosition) -> None:
        """Ask for the snapshot that comes over the link to become our state."""
        self.installing = InstallSnapshot(link, position)
        self.outbox.append(self.installing)

    def installed(self, link: LinkId, position: LogPosition) -> None:
        """Our history is now the snapshot's, which holds only what is committed."""
        asked = self.installing
        if asked is None or (asked.link, asked.position) != (link, position):
            raise LocalProtocolError(f"no snapshot at {position.zxid!r} was asked for on {link}")
        assert position.zxid >= self.delivered, "I2"
        self.installing = None
        self.tail = LogTail(position)
        self.durable = position
        self.committed = Zxid(max(self.committed, position.zxid))
        self.delivered = position.zxid

    def install_failed(self, link: LinkId) -> None:
        """Nothing has changed, and nothing more comes of that link's snapshot."""
        if self.installing is not None and self.installing.link == link:
            self.installing = None

    def stalled_at_ms(self) -> int | None:
        """When the oldest append will have taken too long (S12)."""
        return self.appends[0].since_ms + self.config.sync_timeout_ms // 2 if self.appends else None

    # --- history --------------------------------------------------------------------------------

    def follows(self, first: Zxid) -> bool:
        """Whether a batch from `first` on is the next one of our history."""
        return follows(first, self.tail.last.zxid)

    def is_boundary(self, zxid: Zxid) -> bool:
        """Whether a batch of the tail ends there."""
        boundary = self.tail.boundary(zxid)
        return boundary is not None and boundary.zxid == zxid

    def commit(self, zxid: Zxid) -> None:
        """Move the commit point, and deliver what is durable up to it."""
        assert zxid >= self.committed, "I2"
        self.committed = zxid
        self.deliver()

    def deliver(self) -> None:
        """Hand over what is committed and durable, and was not handed over before."""
        upto = Zxid(min(self.committed, self.durable.zxid))
        if upto <= self.delivered:
            return
        batches = self.tail.between(self.delivered, upto)
        assert batches, "I1: something is committed, and it is here"
        assert follows(batches[0].first, self.delivered), "I1"
        assert all(follows(after.first, before.last) for before, after in pairwise(batches)), "I1"
        self.delivered = batches[-1].last
        self.tail.trim(self.delivered)
        self.outbox.append(Deliver(batches))

    # --- searches -------------------------------------------------------------------------------

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next, but for time and chance."""
        return (
            self.accepted_epoch,
            self.current_epoch,
            self.cluster_id,
            self.tail.base,
            self.tail.last,
            self.durable,
            self.committed,
            self.delivered,
            tuple(append.position for append in self.appends),
            self.saving and (self.saving.accepted, self.saving.current, self.saving.cluster_id),
            self.truncating and self.truncating.position,
            self.installing,
            self.round,
            self.became,
        )
