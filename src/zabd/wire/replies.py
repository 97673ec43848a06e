"""Replies: results to a server's frames, and back.

The server's half gives framed bytes, ready for the socket, built with one pack for each run of
fixed fields. The client's half takes frames without their length and raises RemoteProtocolError
for whatever a server may not send.

Client protocol, sections 2, 3, 6 and 13.
"""

import struct
from typing import Final

from zabd.model.errors import LocalProtocolError, MarshallingError, RemoteProtocolError
from zabd.model.results import Result
from zabd.model.session import PASSWORD_SIZE, ConnectResponse
from zabd.model.stat import Stat
from zabd.model.watch_events import EventType, KeeperState, WatchEvent
from zabd.wire import jute
from zabd.wire.frames import frame
from zabd.wire.opcodes import RESULTS
from zabd.wire.records import STAT, STAT_SIZE
from zabd.wire.requests import optional_bool

EVENT_XID: Final = -1
NO_ZXID: Final = -1
"""The header's zxid of an event that setWatches made up."""

REPLY_HEADER_SIZE: Final = 16

_HEADER: Final = struct.Struct(">iqi")  # xid, zxid, err
_FRAME_HEADER: Final = struct.Struct(">iiqi")  # length, xid, zxid, err
_SIZED: Final = struct.Struct(">iiqii")  # the same, and the size of a string or buffer
_STAT_REPLY: Final = struct.Struct(">iiqi" + STAT.format[1:])
_EVENT: Final = struct.Struct(">iiqiiii")  # as _SIZED, with type and state before the size
_EVENT_FIXED: Final = struct.Struct(">ii")  # type, state
_CONNECT: Final = struct.Struct(">iiq")  # protocolVersion, timeOut, sessionId

_SIZED_SIZE: Final = REPLY_HEADER_SIZE + 4
_DATA_FIXED_SIZE: Final = _SIZED_SIZE + STAT_SIZE
_STAT_REPLY_SIZE: Final = REPLY_HEADER_SIZE + STAT_SIZE
_EVENT_SIZE: Final = REPLY_HEADER_SIZE + 12

_pack_reply: Final = _FRAME_HEADER.pack
_pack_sized: Final = _SIZED.pack
_pack_stat: Final = STAT.pack
_pack_stat_reply: Final = _STAT_REPLY.pack

# --- the server's half ---


def reply(xid: int, zxid: int, err: int = 0, body: bytes = b"") -> bytes:
    """Any reply; an error has no body."""
    return _pack_reply(REPLY_HEADER_SIZE + len(body), xid, zxid, err) + body


def encode_result(opcode: int, result: Result) -> bytes:
    """The body of the reply to a request of that type."""
    codec = RESULTS.get(opcode)
    if codec is None or type(result) is not codec.kind:
        raise LocalProtocolError(f"{result!r} is no answer to a request of type {opcode}")
    return codec.write(result)


def pack_stat(stat: Stat) -> bytes:
    """A Stat as it stands in replies."""
    return _pack_stat(*stat)


def get_data_reply(xid: int, zxid: int, data: bytes | None, packed_stat: bytes) -> bytes:
    """The reply to getData."""
    if data is None:
        return _pack_sized(_DATA_FIXED_SIZE, xid, zxid, 0, -1) + packed_stat
    size = len(data)
    head = _pack_sized(_DATA_FIXED_SIZE + size, xid, zxid, 0, size)
    return b"".join((head, data, packed_stat))


def exists_reply(xid: int, zxid: int, packed_stat: bytes) -> bytes:
    """The reply to exists."""
    return _pack_reply(_STAT_REPLY_SIZE, xid, zxid, 0) + packed_stat


def stat_reply(xid: int, zxid: int, stat: tuple[int, ...]) -> bytes:
    """The reply to setData or setACL, with the fields of a Stat."""
    return _pack_stat_reply(_STAT_REPLY_SIZE, xid, zxid, 0, *stat)


def path_reply(xid: int, zxid: int, path: str) -> bytes:
    """The reply to create or sync."""
    raw = jute.bytes_of(path)
    size = len(raw)
    return _pack_sized(_SIZED_SIZE + size, xid, zxid, 0, size) + raw


def path_stat_reply(xid: int, zxid: int, path: str, stat: tuple[int, ...]) -> bytes:
    """The reply to create2, createContainer and createTTL, with the fields of a Stat."""
    raw = jute.bytes_of(path)
    size = len(raw)
    head = _pack_sized(_DATA_FIXED_SIZE + size, xid, zxid, 0, size)
    return b"".join((head, raw, _pack_stat(*stat)))


def watch_event(event: WatchEvent, zxid: int) -> bytes:
    """An event; zxid is the transaction's, or NO_ZXID for one that setWatches made up."""
    kind, state, path = event
    raw = jute.bytes_of(path)
    size = len(raw)
    return _EVENT.pack(_EVENT_SIZE + size, EVENT_XID, zxid, 0, kind, state, size) + raw


def encode_connect_response(response: ConnectResponse) -> bytes:
    """The framed ConnectResponse; C clients rely on a password of 16 bytes, so it must be that."""
    version, timeout_ms, session_id, password, read_only = response
    if len(password) != PASSWORD_SIZE:
        raise LocalProtocolError(f"a password of {len(password)} bytes, not {PASSWORD_SIZE}")
    fixed = _CONNECT.pack(version, timeout_ms, session_id)
    return frame(fixed + jute.buffer(password) + optional_bool(read_only))


# --- the client's half ---


def decode_reply_header(frame: bytes) -> tuple[int, int, int]:
    """The xid, zxid and error code of any reply or event."""
    try:
        return _HEADER.unpack_from(frame)
    except struct.error:
        raise RemoteProtocolError(
            f"a reply of {len(frame)} bytes, where its header alone has {REPLY_HEADER_SIZE}"
        ) from None


def decode_result(opcode: int, frame: bytes, offset: int = REPLY_HEADER_SIZE) -> Result:
    """The result that answers a request of that type, if the reply's error code is 0."""
    codec = RESULTS.get(opcode)
    if codec is None:
        raise LocalProtocolError(f"there is no operation of type {opcode} to be answered")
    try:
        return codec.read(frame, offset)[0]
    except (struct.error, MarshallingError) as wrong:
        raise RemoteProtocolError(f"no answer to a request of type {opcode}: {wrong}") from None


def decode_watch_event(frame: bytes, offset: int = REPLY_HEADER_SIZE) -> WatchEvent:
    """The event of a frame whose xid is EVENT_XID."""
    try:
        kind, state = _EVENT_FIXED.unpack_from(frame, offset)
        path, _at = jute.read_string(frame, offset + _EVENT_FIXED.size)
        return WatchEvent(EventType(kind), KeeperState(state), path)
    except (struct.error, MarshallingError, ValueError) as wrong:
        raise RemoteProtocolError(f"not a watch event: {wrong}") from None


def decode_connect_response(frame: bytes) -> ConnectResponse:
    """The first frame that a server sends; the last field is as optional as the request's."""
    try:
        version, timeout_ms, session_id = _CONNECT.unpack_from(frame)
        password, at = jute.read_buffer(frame, _CONNECT.size)
    except (struct.error, MarshallingError) as wrong:
        raise RemoteProtocolError(f"not a ConnectResponse: {wrong}") from None
    read_only = frame[at] != 0 if at < len(frame) else None
    return ConnectResponse(version, timeout_ms, session_id, password, read_only)
