"""Both ends of a client's connection, without I/O: bytes in, values out, and the other way round.

Invariants
    I1  Server: the first thing is a four-letter word or a ConnectRequest, and only one of them.
    I2  Client: replies come in the order of the requests, but for pings and auth packets, which
        ZooKeeper answers ahead of what is still in flight.

Client protocol, sections 2, 3, 20 and 21.
"""

import struct
from collections import deque
from typing import Final, NamedTuple, TypeAlias

from zabd.model.errors import LocalProtocolError, RemoteProtocolError
from zabd.model.ops import Op, OpCode
from zabd.model.results import Result
from zabd.model.session import ConnectRequest, ConnectResponse
from zabd.model.watch_events import WatchEvent
from zabd.wire.frames import (
    LENGTH_SIZE,
    REQUEST_BYTES_MAX,
    RESPONSE_BYTES_MAX,
    FrameError,
    FrameReader,
)
from zabd.wire.replies import (
    EVENT_XID,
    REPLY_HEADER_SIZE,
    decode_connect_response,
    decode_reply_header,
    decode_result,
    decode_watch_event,
)
from zabd.wire.requests import (
    AUTH_XID,
    PING_XID,
    SET_WATCHES_XID,
    decode_connect,
    encode_connect,
    encode_request,
)

FOUR_LETTER_WORDS: Final = frozenset(
    (
        b"conf cons crst dirs dump envi gtmk hash isro mntr ruok srst srvr stat stmk wchc wchp wchs"
    ).split()
)
"""The words that may stand in place of the first length (client protocol, section 21)."""

OUTSTANDING_MAX: Final = 100_000
"""How many requests of one client may wait for an answer: ten seconds' worth at full speed."""

XID_MAX: Final = 2**31 - 1

_LENGTH: Final = struct.Struct(">i")
_MASK_SIZE: Final = 8  # what follows `stmk`


class FourLetterWord(NamedTuple):
    """A word of an operator; the answer is a text, and then the connection is closed.

    `argument` is empty but for `stmk`, which comes with the eight bytes of a mask.
    """

    word: str
    argument: bytes = b""


ServerItem: TypeAlias = FourLetterWord | ConnectRequest | bytes


class ServerConnection:
    """The server's end: the handshake or a word first, then frames of requests, still encoded."""

    __slots__ = ("_frames", "_limit", "_opening", "_word_done", "connected")

    def __init__(self, limit: int = REQUEST_BYTES_MAX) -> None:
        self._limit = limit
        self._frames = FrameReader(limit)
        self._opening: bytearray | bytes = b""  # what came before it was clear what it is
        self._word_done = False
        self.connected = False
        """Whether the ConnectRequest has come."""

    @property
    def header(self) -> tuple[int, int] | None:
        """The (xid, opcode) of the over-long request that ended the connection, if one did."""
        return self._frames.header if self.connected else None

    @property
    def pending_bytes(self) -> int:
        """How many bytes of something unfinished are held."""
        return len(self._opening) + self._frames.pending_bytes

    def receive(self, chunk: bytes) -> list[ServerItem]:
        """What is complete now. Raises RemoteProtocolError where the connection has to be closed.

        If that is a FrameError, its `frames` are requests that came whole before.
        """
        if self.connected:
            return self._frames.feed(chunk)  # type: ignore[return-value]  # bytes are items
        if self._word_done:
            return []
        if not self._opening:
            self._opening = bytearray()
        self._opening += chunk
        if len(self._opening) < LENGTH_SIZE:
            return []
        first = bytes(self._opening[:LENGTH_SIZE])
        return self._word(first) if first in FOUR_LETTER_WORDS else self._handshake(first)

    def _word(self, word: bytes) -> list[ServerItem]:
        size = _MASK_SIZE if word == b"stmk" else 0
        argument = bytes(self._opening[LENGTH_SIZE : LENGTH_SIZE + size])
        if len(argument) < size:
            return []
        self._word_done = True
        self._opening = b""
        return [FourLetterWord(word.decode(), argument)]

    def _handshake(self, length: bytes) -> list[ServerItem]:
        (size,) = _LENGTH.unpack(length)
        if not 0 <= size <= self._limit:
            raise RemoteProtocolError(f"{length!r} is neither a word nor the length of a frame")
        if len(self._opening) < LENGTH_SIZE + size:
            return []
        start, self._opening = bytes(self._opening), b""
        request = decode_connect(start[LENGTH_SIZE : LENGTH_SIZE + size])
        self.connected = True
        try:
            return [request, *self._frames.feed(start[LENGTH_SIZE + size :])]
        except FrameError as error:
            # The session is not there yet, so nothing of this can have been promised to anybody.
            raise RemoteProtocolError(f"behind the handshake: {error}") from None


class Reply(NamedTuple):
    """The answer to one request; there is a result if and only if `error` is 0."""

    xid: int
    opcode: OpCode
    zxid: int
    error: int
    result: Result | None


class Event(NamedTuple):
    """A watch fired; zxid is the change's, or -1 where the server does not tell."""

    zxid: int
    event: WatchEvent


ClientItem: TypeAlias = ConnectResponse | Reply | Event


class ClientConnection:
    """The client's end: numbers the requests and finds out what each frame from the server is."""

    __slots__ = ("_auths", "_connected", "_frames", "_pending", "_pings", "_xid")

    def __init__(self, limit: int = RESPONSE_BYTES_MAX) -> None:
        self._frames = FrameReader(limit)
        self._connected = False
        self._pending: deque[tuple[int, OpCode]] = deque()
        self._pings = 0
        self._auths = 0
        self._xid = 0

    @property
    def outstanding(self) -> int:
        """How many requests wait for their reply."""
        return len(self._pending) + self._pings + self._auths

    def connect(self, request: ConnectRequest) -> bytes:
        """The handshake, which goes first; requests may follow at once."""
        return encode_connect(request)

    def send(self, op: Op) -> tuple[int, bytes]:
        """The xid that the reply will have, and the frame to send.

        Raises LocalProtocolError, and has sent nothing, if the op does not fit into a request or
        OUTSTANDING_MAX requests wait already.
        """
        if self.outstanding >= OUTSTANDING_MAX:
            raise LocalProtocolError(f"{OUTSTANDING_MAX} requests wait for an answer already")
        xid = self._xid_for(op.opcode)
        encoded = encode_request(xid, op)
        if len(encoded) - LENGTH_SIZE > REQUEST_BYTES_MAX:
            raise LocalProtocolError(
                f"a request of {len(encoded) - LENGTH_SIZE} bytes, "
                f"where servers take {REQUEST_BYTES_MAX}"
            )
        self._remember(xid, op.opcode)
        return xid, encoded

    def _xid_for(self, opcode: OpCode) -> int:
        match opcode:
            case OpCode.PING:
                return PING_XID
            case OpCode.AUTH:
                return AUTH_XID
            case OpCode.SET_WATCHES | OpCode.SET_WATCHES2:
                return SET_WATCHES_XID
            case _:
                return self._xid % XID_MAX + 1

    def _remember(self, xid: int, opcode: OpCode) -> None:
        if xid == PING_XID:
            self._pings += 1
        elif xid == AUTH_XID:
            self._auths += 1
        else:
            self._pending.append((xid, opcode))
            self._xid = max(xid, 0) or self._xid

    def receive(self, chunk: bytes) -> list[ClientItem]:
        """What the server said; RemoteProtocolError where the connection has to be given up."""
        items: list[ClientItem] = []
        for frame in self._frames.feed(chunk):
            if self._connected:
                items.append(self._item(frame))
            else:
                items.append(decode_connect_response(frame))
                self._connected = True
        return items

    def _item(self, frame: bytes) -> ClientItem:
        xid, zxid, error = decode_reply_header(frame)
        if xid == EVENT_XID:
            return Event(zxid, decode_watch_event(frame, REPLY_HEADER_SIZE))
        opcode = self._answered(xid)
        result = None if error else decode_result(opcode, frame, REPLY_HEADER_SIZE)
        return Reply(xid, opcode, zxid, error, result)

    def _answered(self, xid: int) -> OpCode:
        if xid == PING_XID and self._pings:
            self._pings -= 1
            return OpCode.PING
        if xid == AUTH_XID and self._auths:
            self._auths -= 1
            return OpCode.AUTH
        expected = self._pending[0][0] if self._pending else None
        if xid != expected:
            raise RemoteProtocolError(f"a reply to request {xid}, where {expected} is the next")
        return self._pending.popleft()[1]
