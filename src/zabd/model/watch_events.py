"""What a watch says when it fires, and the numbers that go with setting and removing watches.

Client protocol, section 13.
"""

from enum import IntEnum
from typing import NamedTuple


class EventType(IntEnum):
    """What happened. Only 1 to 4 travel; the others are made inside clients."""

    NONE = -1
    """Nothing happened to a znode: the state of the connection changed."""
    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4
    DATA_WATCH_REMOVED = 5
    CHILD_WATCH_REMOVED = 6
    PERSISTENT_WATCH_REMOVED = 7


class KeeperState(IntEnum):
    """The connection's state as an event reports it. Servers only ever say SYNC_CONNECTED."""

    EXPIRED = -112
    DISCONNECTED = 0
    SYNC_CONNECTED = 3
    AUTH_FAILED = 4
    CONNECTED_READ_ONLY = 5
    SASL_AUTHENTICATED = 6
    CLOSED = 7


class WatchEvent(NamedTuple):
    """One event on one path (the full server path)."""

    type: EventType
    state: KeeperState
    path: str


class AddWatchMode(IntEnum):
    """What `addWatch` sets: both stay until removed, the second covers all below as well."""

    PERSISTENT = 0
    PERSISTENT_RECURSIVE = 1


class WatcherType(IntEnum):
    """Which watches `checkWatches` and `removeWatches` mean."""

    CHILDREN = 1
    DATA = 2
    ANY = 3
    PERSISTENT = 4
    PERSISTENT_RECURSIVE = 5
