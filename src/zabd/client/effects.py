"""What a session asks of its host and tells its users, in the order in which it happens."""

from collections.abc import Hashable
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from zabd.model.errors import KeeperError
from zabd.model.ids import SessionId
from zabd.model.results import Result
from zabd.model.watch_events import WatchEvent


class SessionState(StrEnum):
    """What listeners hear of."""

    SUSPENDED = "SUSPENDED"
    """No connection: the session may live on at the ensemble, or may not exist yet."""
    CONNECTED = "CONNECTED"
    """A server has the session and answers."""
    READ_ONLY = "READ_ONLY"
    """A server without a quorum answers, for a client that asked for this: reads alone succeed."""
    LOST = "LOST"
    """The session is over, by the ensemble's word or by the local lease. Final."""
    CLOSED = "CLOSED"
    """The client has ended the session. Final."""


class Send(NamedTuple):
    """Write these bytes to the current connection."""

    data: bytes


class Hangup(NamedTuple):
    """Close the current connection now and forget it; the session has done so already."""

    reason: str


class Became(NamedTuple):
    """The session's state changed."""

    state: SessionState
    reason: str


class Replied(NamedTuple):
    """A request has its result."""

    token: object
    result: Result


class Failed(NamedTuple):
    """A request has no result, and this is why; nobody waits for one whose token is None."""

    token: object
    error: KeeperError


class Fired(NamedTuple):
    """A watcher hears of an event."""

    watcher: Hashable
    event: WatchEvent


Effect: TypeAlias = Send | Hangup | Became | Replied | Failed | Fired


class Credentials(NamedTuple):
    """What it takes to resume a session at any server."""

    session_id: SessionId
    password: bytes
    timeout_ms: int
