"""What a peer asks its host to do.

The effects of one step may be performed at once, in their order; what has to come first, a peer
waits for itself. The host may crash between any two of them. Disk requests (Append, PersistEpochs,
Truncate, InstallSnapshot's switch-over) take effect in the order in which they were asked for.
"""

from enum import IntEnum
from typing import TypeAlias

from zabd.model.ids import Epoch, LinkId, MemberId
from zabd.model.values import value
from zabd.model.zxid import Zxid
from zabd.zab.log import Batch, LogPosition
from zabd.zab.messages import Message, Notification, PeerState

__all__ = [
    "Append",
    "Became",
    "Confirmed",
    "Deliver",
    "Dial",
    "Effect",
    "FindRecord",
    "Hangup",
    "InstallSnapshot",
    "Notify",
    "PersistEpochs",
    "Phase",
    "Send",
    "Stop",
    "StreamRecords",
    "StreamSnapshot",
    "Truncate",
]


class Phase(IntEnum):
    """How far a peer has come with its leader, or as one; the paper's phases 0 to 3."""

    ELECTION = 0
    DISCOVERY = 1
    SYNCHRONISATION = 2
    BROADCAST = 3


@value
class Notify:
    """Send over the election channel; it may be lost."""

    member: MemberId
    notification: Notification


@value
class Dial:
    """Open a quorum connection; answer with Dialled or DialFailed."""

    member: MemberId


@value
class Hangup:
    """Close the link. What was sent before may still arrive."""

    link: LinkId


@value
class Send:
    """Send over the link, in order."""

    link: LinkId
    message: Message


@value
class Append:
    """Make the record durable behind all before it; answer with Persisted.

    `committed` is the commit point for the log's durable watermark, a durable record or before.
    """

    append_id: int
    record: bytes
    committed: Zxid


@value
class PersistEpochs:
    """Replace the epoch file atomically and durably; answer with EpochsPersisted.

    `repaired`: the durable history is an established leader's; with the epochs, and as durably as
    they, a damaged member is whole again.
    """

    request_id: int
    accepted: Epoch
    current: Epoch
    cluster_id: bytes | None
    repaired: bool = False


@value
class Truncate:
    """Durably drop every record after `position`; answer with Truncated."""

    request_id: int
    position: LogPosition


@value
class FindRecord:
    """Look the zxid up in the log on disk; answer with RecordFound."""

    request_id: int
    zxid: Zxid


@value
class StreamRecords:
    """Send the records after `after`, up to the record end `upto`, as Propose frames from disk.

    Answer with RecordsStreamed or StreamFailed. Frames sent meanwhile go in between. `told`: all of
    it is committed, and after each piece the learner is told so by a Commit of the piece's end.
    """

    link: LinkId
    after: LogPosition
    upto: Zxid
    told: bool = False


@value
class StreamSnapshot:
    """Send Snap, then the newest verified snapshot in chunks under flow control.

    Answer with SnapshotStreamed or StreamFailed. The log must reach back to the snapshot.
    """

    link: LinkId


@value
class InstallSnapshot:
    """Take the chunks that come over this link as the new state, all or nothing.

    Answer with SnapshotInstalled or StreamFailed, even when the link goes (or is hung up) first:
    a peer whose state may still change under it does not vote.
    """

    link: LinkId
    position: LogPosition


@value
class Deliver:
    """These batches are committed and durable here: apply them, in order."""

    batches: tuple[Batch, ...]


@value
class Became:
    """The peer has changed its state or phase. It serves clients only while `serving`."""

    state: PeerState
    phase: Phase
    epoch: Epoch
    leader: MemberId | None
    serving: bool


@value
class Confirmed:
    """A quorum followed this leader at a moment after the Confirm of this token."""

    token: int


@value
class Stop:
    """This incarnation cannot go on; the reason is a sentence for the operator.

    `distrust`: what is on the disk is not to be believed by the next one either.
    """

    reason: str
    distrust: bool = False


Effect: TypeAlias = (
    Notify
    | Dial
    | Hangup
    | Send
    | Append
    | PersistEpochs
    | Truncate
    | FindRecord
    | StreamRecords
    | StreamSnapshot
    | InstallSnapshot
    | Deliver
    | Became
    | Confirmed
    | Stop
)
