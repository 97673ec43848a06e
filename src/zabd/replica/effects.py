"""What a replica asks its host to do, besides the effects of its peer.

Effects may be performed in order, at once; the replica waits for what must come first. A crash
may fall between any two of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from zabd.model.values import value
from zabd.zab import effects as zab

if TYPE_CHECKING:
    from zabd.model.ids import ConnectionId
    from zabd.zab.log import LogPosition
    from zabd.znode_tree.snapshot import SnapshotWalk


class Write(NamedTuple):
    """Send these bytes to a client."""

    connection_id: ConnectionId
    data: bytes


@value
class CloseConnection:
    """End a client's connection once what was written to it is sent; it is forgotten here."""

    connection_id: ConnectionId


@value
class PauseReading:
    """Read nothing more from a client: too many of its requests are unanswered."""

    connection_id: ConnectionId


@value
class ResumeReading:
    """Read from that client again."""

    connection_id: ConnectionId


@value
class ReportDrained:
    """Say `Drained` once the client has taken what was written; its next replies wait for that."""

    connection_id: ConnectionId


@value
class AnswerWord:
    """A four-letter word came in place of a handshake: answer in text, then close."""

    connection_id: ConnectionId
    word: str
    argument: bytes


@value
class TakeSnapshot:
    """Write a snapshot of the tree as it stood at `position`, slice by slice from `walk`.

    Report the end with `SnapshotTaken`.
    """

    position: LogPosition
    walk: SnapshotWalk


Effect: TypeAlias = (
    Write
    | CloseConnection
    | PauseReading
    | ResumeReading
    | ReportDrained
    | AnswerWord
    | TakeSnapshot
    | zab.Notify
    | zab.Dial
    | zab.Hangup
    | zab.Send
    | zab.Append
    | zab.PersistEpochs
    | zab.Truncate
    | zab.FindRecord
    | zab.StreamRecords
    | zab.StreamSnapshot
    | zab.InstallSnapshot
    | zab.Stop
)
