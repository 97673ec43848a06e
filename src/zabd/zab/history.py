"""A member's history: appended, persisted, committed, delivered, in this order.

The history in memory is the one on disk plus what is on its way there; what was asked of the disk
is remembered here until it answers.

Invariants
    I1  Batches are delivered in order and without a gap, only when committed and durable here.
    I2  `delivered` and the commit point never go back; no truncation reaches below them.
"""

from collections import deque
from typing import NamedTuple

from zabd.model.errors import LocalProtocolError
from zabd.model.ids import LinkId
from zabd.model.zxid import Zxid
from zabd.zab.effects import Append, Deliver, Effect, InstallSnapshot, Truncate
from zabd.zab.log import GENESIS, Batch, LogPosition, LogTail, follows


class PendingAppend(NamedTuple):
    """A batch on its way to the disk."""

    append_id: int
    position: LogPosition
    since_ms: int


class History:
    """The history, what is under way to the disk, and the outbox of the step in hand."""

    __slots__ = (
        "appended_ms",
        "appends",
        "committed",
        "delivered",
        "durable",
        "installing",
        "next_id",
        "now_ms",
        "outbox",
        "tail",
        "truncating",
    )

    def __init__(self, delivered: LogPosition, tail: tuple[Batch, ...]) -> None:
        self.tail = LogTail(delivered, tail)
        self.durable = self.tail.last
        self.committed = self.delivered = delivered.zxid
        self.appends: deque[PendingAppend] = deque()
        self.truncating: Truncate | None = None
        self.installing: InstallSnapshot | None = None
        self.next_id = 1
        self.outbox: list[Effect] = []
        self.now_ms = 0
        self.appended_ms = 0

    @property
    def history_empty(self) -> bool:
        """Whether this member has no transaction at all."""
        return self.tail.last == GENESIS

    def follows(self, first: Zxid) -> bool:
        """Whether a batch from `first` on is the next one of our history."""
        return follows(first, self.tail.last.zxid)

    def is_boundary(self, zxid: Zxid) -> bool:
        """Whether a batch of the tail ends there."""
        return self.tail.ends_at(zxid)

    def commit(self, zxid: Zxid) -> None:
        """Move the commit point, and deliver what is durable up to it."""
        assert zxid >= self.committed, "I2"
        self.committed = zxid
        self.deliver()

    def deliver(self) -> None:
        """Hand over what is committed and durable, and was not handed over before."""
        committed, durable = self.committed, self.durable.zxid
        upto = min(durable, committed)
        if upto <= self.delivered:
            return
        batches = self.tail.between(self.delivered, upto)
        assert batches, "I1: something is committed, and it is here"
        delivered = self.delivered
        for batch in batches:
            assert follows(batch.first, delivered), "I1"
            delivered = batch.last
        self.delivered = delivered
        self.tail.trim(self.delivered)
        self.outbox.append(Deliver(batches))

    # --- the disk -------------------------------------------------------------------------------

    def new_id(self) -> int:
        """A number for a request to the host."""
        self.next_id += 1
        return self.next_id - 1

    def append(self, batch: Batch) -> None:
        """Take the next batch into the history and on its way to the disk."""
        self.tail.append(batch)
        append_id = self.new_id()
        self.appends.append(PendingAppend(append_id, self.tail.last, self.now_ms))
        self.appended_ms = self.now_ms
        committed, durable = self.committed, self.durable.zxid
        watermark = min(durable, committed)
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

    def history_key(self) -> tuple[object, ...]:
        """The part of `state_key` that lies here."""
        return (
            self.tail.base,
            self.tail.last,
            self.durable,
            self.committed,
            self.delivered,
            tuple(append.position for append in self.appends),
            self.truncating and self.truncating.position,
            self.installing,
        )
