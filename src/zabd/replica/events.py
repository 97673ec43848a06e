"""What a host tells a replica, besides the events of its peer.

Client bytes have a door of their own (`Replica.receive`), since a read must not cost an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from zabd.model.values import value

if TYPE_CHECKING:
    from zabd.model.ids import ConnectionId
    from zabd.zab import events as zab


@value
class SnapshotTaken:
    """The snapshot that `TakeSnapshot` asked for is durable and verified, or was given up."""

    done: bool


@value
class Drained:
    """A client has taken what was written to it: the answer to `ReportDrained`."""

    connection_id: ConnectionId


@value
class SpaceLow:
    """The disk is below its floor (True) or has room again: refuse what makes the tree grow."""

    low: bool


@value
class SnapshotWanted:
    """The disk has lost the last snapshot: take one now, and do not wait for the next batches."""


Event: TypeAlias = "SnapshotTaken | SnapshotWanted | Drained | SpaceLow | zab.Event"
