"""One client connection as its member sees it.

Invariants
    C1  Replies leave in the order their requests came in; only pings may overtake.
    C2  A read is answered only after every earlier write and sync of its connection; a write is
        handed on only after every earlier sync is answered, every earlier read that may have to
        wait for a turn (`work`), and every step of SASL. So operations take effect in issue order,
        reads and writes mixed.

Source: client protocol, section 3.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from zabd.model.acl import Identity

if TYPE_CHECKING:
    from zabd.model.ids import ConnectionId, SessionId
    from zabd.replica.messages import RequestId
    from zabd.replica.work import Work
    from zabd.wire.connection import ServerConnection
    from zabd.wire.digest_md5 import ServerExchange


class ConnectionState(IntEnum):
    """How far a connection has come."""

    GREETING = 0  # nothing but a ConnectRequest or a four-letter word is expected
    OPENING = 1  # its session is being created or validated; requests behind it wait
    OPEN = 2  # it speaks for a session
    CLOSED = 3  # whatever still refers to it must leave it alone


class Pending:
    """A request that is not answered yet, in its place in the connection's order."""

    __slots__ = ("frame", "opcode", "reply", "request_id", "since_ms", "xid")

    def __init__(self, xid: int, opcode: int, frame: bytes, since_ms: int) -> None:
        self.xid = xid
        self.opcode = opcode
        self.frame = frame
        self.since_ms = since_ms
        self.reply: bytes | None = None
        self.request_id: RequestId | None = None  # set once the leader was asked


NO_REQUESTS: Final[deque[Pending]] = deque(maxlen=0)
"""The line of every connection that has not had to wait yet: one of its own takes 760 bytes, a
fifth of what an idle session takes."""


class Connection:
    """State of one connection; the rules live in `pipeline` and `intake`."""

    __slots__ = (
        "accepted_ms",
        "address",
        "answers_with_read_only",
        "connection_id",
        "dirty",
        "early",
        "heard_ms",
        "held",
        "host",
        "identities",
        "last_opcode",
        "last_xid",
        "latency_max_ms",
        "latency_min_ms",
        "latency_total_ms",
        "local",
        "output",
        "output_bytes",
        "paused",
        "queue",
        "queued_bytes",
        "received",
        "sasl",
        "sent",
        "session_id",
        "skips_acl",
        "state",
        "stuffed",
        "syncs_pending",
        "timeout_ms",
        "wire",
        "work",
    )

    def __init__(
        self,
        connection_id: ConnectionId,
        address: str,
        wire: ServerConnection,
        work: Work,
        now_ms: int,
    ) -> None:
        self.connection_id = connection_id
        self.address = address
        self.wire = wire
        self.work = work  # shared by all connections of the member
        self.state = ConnectionState.GREETING
        self.session_id: SessionId = 0
        self.timeout_ms = 0
        self.local = False  # its session is known to this member alone
        self.answers_with_read_only = True
        self.host = address.rpartition(":")[0].strip("[]") or address
        self.identities: tuple[Identity, ...] = (Identity("ip", self.host),)
        self.skips_acl = False  # may read everything, as an operator has it (skipACL)
        self.sasl: ServerExchange | None = None  # where there are users who may prove themselves
        self.queue = NO_REQUESTS
        self.queued_bytes = 0
        self.syncs_pending = 0  # asked of the leader and not answered
        # Not asked of the leader yet, behind a sync or what else holds writes; and these, in line.
        self.held = 0
        self.early: list[bytes] = []
        self.output: list[bytes] = []
        self.output_bytes = 0
        # Has more to take than it should before its next reply, or that has to wait for a turn.
        self.stuffed = False
        self.dirty = False
        self.paused = False
        self.accepted_ms = self.heard_ms = now_ms
        self.received = 0
        self.sent = 0
        self.last_opcode = 0
        self.last_xid = 0
        self.latency_min_ms = 0
        self.latency_max_ms = 0
        self.latency_total_ms = 0
