"""The requests of one session: what waits, what is on its way, and the bytes to be sent.

Invariants
    I1  Requests leave in the order in which they were added, each at most once, and are answered in
        that order.
    I2  No more is on its way than a server reads; what goes beyond waits, and may be withdrawn.
    I3  A request is encoded as it is made: what cannot be fails for whoever asks for it, not for
        those whose answers come when its turn has.
"""

from collections import deque
from collections.abc import Hashable

from zabd.model.errors import RemoteProtocolError, TooManyRequestsError
from zabd.model.ops import CloseSession, Op
from zabd.wire.frames import HEADER_SIZE
from zabd.wire.requests import encode_record, pack_header

XID_MAX = 2**31 - 1
XID_SET_WATCHES = -8

# Sent and not answered yet. A ZooKeeper server stops reading at 1,000 requests in flight, so more
# would only sit in socket buffers; what goes beyond waits here and can still be withdrawn.
OUTSTANDING_MAX = 1000
# The same in bytes, for large values: eight of the largest requests that a server takes.
OUTSTANDING_BYTES_MAX = 8 * 1024 * 1024
# Waiting for a connection or for a place among the outstanding: at 100 bytes each about 10 MB.
# What they carry is held twice, as it was given and as it is sent.
QUEUED_MAX = 100_000


class Request:
    """One op, and who waits for its answer; making it raises as `encode_record` does (I3)."""

    __slots__ = ("op", "record", "sent_ms", "size", "token", "watcher", "xid")

    def __init__(self, op: Op, token: object, watcher: Hashable | None, xid: int = 0) -> None:
        self.op = op
        self.token = token
        self.watcher = watcher
        self.xid = xid
        self.sent_ms = 0
        self.record = encode_record(op)
        self.size = HEADER_SIZE + len(self.record)


class Requests:
    """The queue of a session, and its output."""

    def __init__(self) -> None:
        self.output: list[bytes] = []
        self.xid = 0  # the last one given
        self.waiting: deque[Request] = deque()
        self.outstanding: deque[Request] = deque()
        self._outstanding_bytes = 0

    def add(self, request: Request) -> None:
        """Let it wait for its turn.

        Raises:
            TooManyRequestsError: too many do already.
        """
        if len(self.waiting) >= QUEUED_MAX:
            raise TooManyRequestsError(
                f"{QUEUED_MAX} requests wait already; await some before sending more"
            )
        self.waiting.append(request)

    def add_last(self, request: Request) -> None:
        """As `add`, for the end of the session, however much waits before it."""
        self.waiting.append(request)

    def withdraw(self, token: object) -> bool:
        """Take back a request; return whether it had not been sent, so that it never will be.

        Of one that was sent the answer registers no watcher: nobody is left who would remove it.
        """
        for request in self.waiting:
            if request.token is token:
                self.waiting.remove(request)
                return True
        for request in self.outstanding:
            if request.token is token:
                request.watcher = None
        return False

    def pump(self, now_ms: int) -> None:
        """Send what waits, as far as there is room (I2)."""
        while (
            self.waiting
            and len(self.outstanding) < OUTSTANDING_MAX
            and self._outstanding_bytes < OUTSTANDING_BYTES_MAX
        ):
            request = self.waiting.popleft()
            self.xid = request.xid = self.xid % XID_MAX + 1  # `next_xid`, on every request
            self.send(request, now_ms)

    def next_xid(self) -> int:
        """The number of the next packet that has one of its own."""
        self.xid = self.xid % XID_MAX + 1
        return self.xid

    def send(self, request: Request, now_ms: int) -> None:
        """Send one that has its number, before all that waits."""
        request.sent_ms = now_ms
        self._outstanding_bytes += request.size
        header = pack_header(request.size, request.xid, request.op.opcode)
        self.output.append(header + request.record)
        request.record = b""  # a thousand of them may wait for their answers
        self.outstanding.append(request)

    def take_output(self) -> bytes:
        """What was sent since the last call, as one piece."""
        data = b"".join(self.output)
        self.output.clear()
        return data

    def answered(self, xid: int) -> Request:
        """The request that this number answers, which stays until it is `done`.

        Raises:
            RemoteProtocolError: it is not its turn.
        """
        if not self.outstanding or self.outstanding[0].xid != xid:
            expected = self.outstanding[0].xid if self.outstanding else "none"
            raise RemoteProtocolError(f"a reply to xid {xid}, expected {expected}")
        return self.outstanding[0]

    def done(self, request: Request) -> None:
        """The first of those on their way has its answer."""
        self.outstanding.popleft()
        self._outstanding_bytes -= request.size

    def close_was_sent(self) -> bool:
        """Whether the end of the session is on its way."""
        return any(isinstance(request.op, CloseSession) for request in self.outstanding)

    def forget_connection(self) -> list[Request]:
        """Return the requests whose reply is not coming; the watches go out again by themselves."""
        lost = [request for request in self.outstanding if request.xid != XID_SET_WATCHES]
        self.outstanding.clear()
        self._outstanding_bytes = 0
        self.output.clear()
        return lost

    def take_waiting(self) -> list[Request]:
        """Return what has not been sent, and never will be."""
        waiting = list(self.waiting)
        self.waiting.clear()
        return waiting
