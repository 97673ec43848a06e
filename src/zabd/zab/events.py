"""What moves a peer: everything that happens to it is one of these, even the passing of time.

A host feeds events in the order in which they happen. It never calls a peer from within the
performing of that peer's effects. After `Hangup(link)` the host closes the link, and may say
`Disconnected(link)` or not. When `Received(link, ...)` raises `RemoteProtocolError`, the host
closes the link and has to say `Disconnected(link)`.
"""

from typing import TypeAlias

from zabd.model.ids import LinkId, MemberId
from zabd.model.values import value
from zabd.zab.log import LogPosition
from zabd.zab.messages import Message, Notification

__all__ = [
    "Abdicate",
    "Confirm",
    "DialFailed",
    "Dialled",
    "Disconnected",
    "Elapsed",
    "Elected",
    "EpochsPersisted",
    "Event",
    "Notified",
    "Persisted",
    "Received",
    "RecordFound",
    "RecordsStreamed",
    "SnapshotInstalled",
    "SnapshotStreamed",
    "Start",
    "StreamFailed",
    "StreamProgressed",
    "Submit",
    "Truncated",
]


@value
class Start:
    """Recovery is over and the channels are open: begin. Comes first, and once."""


@value
class Elapsed:
    """The time may have reached `deadline_ms`. Harmless when it comes early."""


@value
class Notified:
    """A notification came over the election channel."""

    notification: Notification


@value
class Dialled:
    """The `Dial(member)` has succeeded: `link` is a new quorum connection to that member."""

    link: LinkId
    member: MemberId


@value
class DialFailed:
    """The `Dial(member)` has failed; every Dial ends in this or in Dialled, within a tick."""

    member: MemberId


@value
class Received:
    """A message came over a quorum link. A link that others dialled begins with FollowerInfo."""

    link: LinkId
    message: Message


@value
class Disconnected:
    """The link is gone, and nothing more will come over it."""

    link: LinkId


@value
class Submit:
    """Propose this payload of `count` transactions; only when `Peer.can_submit`."""

    count: int
    payload: bytes


@value
class Persisted:
    """The append of this id and all before it are durable."""

    append_id: int


@value
class EpochsPersisted:
    """The PersistEpochs of this id is durable, directory entry included."""

    request_id: int


@value
class Truncated:
    """The Truncate of this id is durably done; or nothing has changed, if not `done`."""

    request_id: int
    done: bool


@value
class RecordFound:
    """The answer to FindRecord: the greatest record end at or before its zxid, or None.

    The beginning of a log that starts from nothing counts as a record end: GENESIS. `exact` says
    that the zxid itself is a record end.
    """

    request_id: int
    position: LogPosition | None
    exact: bool


@value
class RecordsStreamed:
    """All Propose frames of a StreamRecords, up to `upto`, have been handed to the link."""

    link: LinkId
    upto: LogPosition


@value
class SnapshotStreamed:
    """Snap and all chunks of a StreamSnapshot have been handed to the link."""

    link: LinkId
    position: LogPosition


@value
class StreamProgressed:
    """A stream to this link, or an installation from it, goes on: a piece was taken.

    Said at most once in half a tick of each, and not of those that take less than that.
    """

    link: LinkId


@value
class StreamFailed:
    """A stream to this link, or an installation from it, has ended without success.

    For an installation: the old state is untouched, and chunks that still come go nowhere.
    """

    link: LinkId


@value
class SnapshotInstalled:
    """The snapshot that came over this link is durable and verified, and the tree stands at it.

    It may come after the link has gone, if the disk had already been told to switch over.
    """

    link: LinkId
    position: LogPosition


@value
class Confirm:
    """Leader: prove to me, by a round that begins now, that a quorum still follows."""

    token: int


@value
class Abdicate:
    """The host cannot go on leading or following (shutdown, a slow disk); look again."""

    reason: str


@value
class Elected:
    """In place of an election: this member is the leader. For searches and tests.

    Safety does not rest on elections, so a peer that is looking must survive any choice.
    """

    leader: MemberId


Event: TypeAlias = (
    Start
    | Elapsed
    | Notified
    | Dialled
    | DialFailed
    | Received
    | Disconnected
    | Submit
    | Persisted
    | EpochsPersisted
    | Truncated
    | RecordFound
    | RecordsStreamed
    | SnapshotStreamed
    | StreamProgressed
    | StreamFailed
    | SnapshotInstalled
    | Confirm
    | Abdicate
    | Elected
)
