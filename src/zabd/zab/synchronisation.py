"""Synchronisation: every learner's history becomes the leader's, durably, then the epoch is theirs.

The leader compares a learner's position with its own history. A prefix gets the rest (Diff). One
that went another way is cut back to the last common batch (Trunc), then gets the rest. One whose
place is in neither memory nor log gets a snapshot (Snap), then the rest. What is not in memory goes
from disk to link without passing through here, and the learner says Aligned before more is sent, so
that no record is ever appended behind an unfinished truncation or installation.

Invariants
    S1  A learner acknowledges NewLeader only when first the leader's history, then the current
        epoch are durable; it acknowledges no proposal before.
    S2  A learner's history is a prefix of its leader's from the Diff or Aligned on.
    S3  Nothing committed is ever truncated, nor replaced by an older snapshot.
    S4  Live proposals go to a learner only when it has been sent all that came before.
    S5  What a learner is told to be committed meanwhile is that: its leader has delivered it. So
        it is delivered here and leaves the memory, however much was missed.

Junqueira, Reed and Serafini, "Zab" (DSN 2011), phase 2.
"""

from zabd.model.errors import RemoteProtocolError
from zabd.model.ids import Epoch, LinkId
from zabd.model.zxid import Zxid
from zabd.zab.log import Batch, LogPosition, RecordError, check_record
from zabd.zab.member import Member
from zabd.zab.messages import (
    Ack,
    AckNewLeader,
    Aligned,
    Commit,
    Diff,
    Message,
    NewLeader,
    Ping,
    Pong,
    Propose,
    Snap,
    Trunc,
    TruncRefused,
    UpToDate,
)


def take_proposal(member: Member, message: Propose) -> None:
    """Append a proposed batch, once it is known to be whole and the next one."""
    if not member.follows(message.first):
        raise RemoteProtocolError(
            f"a proposal from {message.first!r} on does not follow {member.tail.last.zxid!r}"
        )
    try:
        header = check_record(message.record)
    except RecordError as error:
        raise RemoteProtocolError(f"the proposal from {message.first!r} on: {error}") from error
    if (header.first, header.count) != (message.first, message.count):
        raise RemoteProtocolError(
            f"a proposal of {message.count} from {message.first!r} on holds another record"
        )
    if header.previous != member.tail.last.chain:
        raise RemoteProtocolError(
            f"the proposal from {message.first!r} on continues another history than ours"
        )
    member.append(Batch(message.first, message.count, message.record))


class LearnerSynchronisation:
    """The learner's side: from the promise to the acknowledgement of the new leader."""

    __slots__ = ("_acked", "_aligned", "_invited", "_link", "_m", "epoch", "serve_from")

    def __init__(self, member: Member, link: LinkId, epoch: Epoch) -> None:
        self._m = member
        self._link = link
        self.epoch = epoch
        self._aligned = False
        self._invited: NewLeader | None = None
        self._acked = False
        self.serve_from: Zxid | None = None
        """The commit point of UpToDate, when it has come: synchronisation is over."""

    def receive(self, message: Message) -> None:
        """Take one message of the leader, if this is its time."""
        match message:
            case Propose():
                self._propose(message)
            case Diff(position):
                self._diff(position)
            case Trunc(position):
                self._trunc(position)
            case Snap(position):
                self._snap(position)
            case Commit(zxid):
                self._commit(zxid)
            case NewLeader():
                self._new_leader(message)
            case UpToDate(zxid):
                self._up_to_date(zxid)
            case Ping(round_):
                self._m.send(self._link, Pong(round_))
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} came in synchronisation")

    # --- alignment ------------------------------------------------------------------------------

    def _require_unaligned(self, message: str) -> None:
        m = self._m
        if self._aligned or m.truncating or m.installing:
            raise RemoteProtocolError(f"{message} came, and alignment was over or under way")

    def _diff(self, position: LogPosition) -> None:
        self._require_unaligned("Diff")
        if position != self._m.tail.last:
            raise RemoteProtocolError(
                f"Diff from {position.zxid!r}, our history ends at {self._m.tail.last.zxid!r}"
            )
        self._aligned = True

    def _trunc(self, position: LogPosition) -> None:
        self._require_unaligned("Trunc")
        m = self._m
        if position.zxid < m.committed:  # S3
            raise RemoteProtocolError(
                f"Trunc to {position.zxid!r}, committed here is {m.committed!r}"
            )
        if not m.tail.contains(position):
            m.send(self._link, TruncRefused())
        elif position == m.tail.last:
            self._align()
        else:
            m.truncate(position)

    def truncated(self, *, done: bool) -> None:
        """The truncation is durable; or the disk could not, and history has to come anew."""
        if done:
            self._align()
        else:
            self._m.send(self._link, TruncRefused())

    def _snap(self, position: LogPosition) -> None:
        self._require_unaligned("Snap")
        m = self._m
        if position.zxid < m.committed:  # S3
            raise RemoteProtocolError(
                f"Snap at {position.zxid!r}, committed here is {m.committed!r}"
            )
        m.install(self._link, position)

    def installed(self) -> None:
        """The snapshot is our state now."""
        self._align()

    def _align(self) -> None:
        self._aligned = True
        self._m.send(self._link, Aligned(self._m.tail.last))

    # --- history, then epoch --------------------------------------------------------------------

    def _propose(self, message: Propose) -> None:
        if not self._aligned:
            raise RemoteProtocolError("a proposal came before our histories were aligned")
        epoch = message.first.epoch
        if epoch > self.epoch or (self._invited and epoch != self.epoch):
            raise RemoteProtocolError(f"a proposal of epoch {epoch} came in epoch {self.epoch}")
        take_proposal(self._m, message)

    def _commit(self, zxid: Zxid) -> None:
        """The leader has delivered what it sent up to there (S5); we may have known that."""
        m = self._m
        if not self._aligned or self._invited or zxid > m.tail.last.zxid:
            raise RemoteProtocolError(f"commit of {zxid!r} came out of its time")
        if zxid <= m.committed:
            return  # a new leader may know of less than we
        if not m.is_boundary(zxid):
            raise RemoteProtocolError(f"{zxid!r} of a commit is not the end of a batch")
        m.commit(zxid)

    def _new_leader(self, message: NewLeader) -> None:
        m = self._m
        if not self._aligned or self._invited:
            raise RemoteProtocolError("NewLeader came before alignment, or twice")
        if message.epoch != self.epoch or message.position != m.tail.last:
            raise RemoteProtocolError(
                f"NewLeader of epoch {message.epoch} at {message.position.zxid!r}, "
                f"here are {self.epoch} and {m.tail.last.zxid!r}"
            )
        if m.cluster_id not in (None, message.cluster_id):
            raise RemoteProtocolError("NewLeader of another cluster")
        self._invited = message
        self.persisted()

    def persisted(self) -> None:
        """More of the history is durable: is all of it (S1)?"""
        m = self._m
        invited = self._invited
        if self._acked:
            if not m.config.observer:
                m.send(self._link, Ack(m.durable.zxid))
            return
        if invited is None or m.persisting or m.durable.zxid < invited.position.zxid:
            return
        accepted = max(m.accepted_epoch, self.epoch)
        # Only an established leader invites a damaged member, and now it has all of that history.
        m.persist_epochs(accepted, self.epoch, invited.cluster_id, repaired=m.damaged)

    def epochs_persisted(self) -> None:
        """History and epoch are durable, so we may say so; later acknowledgements come after."""
        m = self._m
        assert self._invited is not None
        assert m.durable.zxid >= self._invited.position.zxid, "S1"
        assert m.current_epoch == self.epoch, "S1"
        self._acked = True
        m.send(self._link, AckNewLeader(self.epoch, m.durable.zxid))

    def _up_to_date(self, zxid: Zxid) -> None:
        m = self._m
        if not self._acked:
            raise RemoteProtocolError("UpToDate came before our acknowledgement of the leader")
        if zxid < m.committed or not m.is_boundary(zxid):
            raise RemoteProtocolError(
                f"UpToDate at {zxid!r}, our history goes from {m.committed!r} "
                f"to {m.tail.last.zxid!r}"
            )
        self.serve_from = zxid

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next."""
        return ("synchronisation", self.epoch, self._aligned, self._invited, self._acked)
