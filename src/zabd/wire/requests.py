"""Requests: a client's frames to ops, and back.

The decoders take a frame without its length; the encoders give it with its length, ready for the
socket. A server that cannot decode a request answers it, so decoding raises the answer:
MarshallingError for a body that is not what its type calls for, UnimplementedError for an unknown
type. A frame without a whole header, or without a whole ConnectRequest, cannot be answered and
raises RemoteProtocolError. Bytes behind the record are ignored, as ZooKeeper does.

Client protocol, sections 2, 3, 4 and 20.
"""

import struct
from typing import Final, NamedTuple, TypeVar

from zabd.model.errors import (
    LocalProtocolError,
    MarshallingError,
    RemoteProtocolError,
    UnimplementedError,
)
from zabd.model.ops import Op
from zabd.model.session import ConnectRequest
from zabd.wire import jute
from zabd.wire.frames import HEADER_SIZE, frame
from zabd.wire.opcodes import REQUESTS

OpT = TypeVar("OpT", bound=Op)

PING_XID: Final = -2
AUTH_XID: Final = -4
SET_WATCHES_XID: Final = -8

_HEADER: Final = struct.Struct(">ii")  # xid, type
_read_header: Final = _HEADER.unpack_from
pack_header: Final = struct.Struct(">iii").pack
"""Length, xid and type, which go in front of a record; the length counts but itself."""

_CONNECT: Final = struct.Struct(">iqiq")  # protocolVersion, lastZxidSeen, timeOut, sessionId

_READERS: Final = {opcode: codec.read for opcode, codec in REQUESTS.items()}
_PATH_START: Final = HEADER_SIZE + jute.INT_SIZE
_read_int: Final = jute.INT.unpack_from
_make: Final = tuple.__new__


class Request(NamedTuple):
    """A decoded request; an answer repeats its xid."""

    xid: int
    opcode: int
    op: Op


def decode_header(frame: bytes) -> tuple[int, int]:
    """The xid and the type of a request, whatever its body is."""
    try:
        return _read_header(frame)
    except struct.error:
        raise _too_short(frame) from None


def _too_short(frame: bytes) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"a request of {len(frame)} bytes, where its header alone has {HEADER_SIZE}"
    )


def decode_op(opcode: int, frame: bytes, offset: int = HEADER_SIZE) -> Op:
    """The op of that type whose record starts at the offset."""
    read = _READERS.get(opcode)
    if read is None:
        raise UnimplementedError(f"there is no operation of type {opcode}")
    try:
        return read(frame, offset)[0]
    except struct.error as cut:
        raise MarshallingError(f"the record of type {opcode} is cut short: {cut}") from None


def decode_as(kind: type[OpT], frame: bytes) -> OpT:
    """The op of a frame that is known to be of this kind; raises as `decode_op` does."""
    op = decode_op(kind.opcode, frame)
    assert isinstance(op, kind), "one opcode, one op"
    return op


def decode_request(frame: bytes) -> Request:
    """The whole request."""
    try:
        xid, opcode = _read_header(frame)
    except struct.error:
        raise _too_short(frame) from None
    return _make(Request, (xid, opcode, decode_op(opcode, frame)))


def decode_path_watch(frame: bytes) -> tuple[str, bool]:
    """The path and the watch flag of an exists, getData, getChildren or getChildren2.

    The way of a server that answers reads without making an op of them.
    """
    left = len(frame)
    if left < _PATH_START:
        raise MarshallingError(f"a read of {left} bytes has no path")
    (size,) = _read_int(frame, HEADER_SIZE)
    end = _PATH_START + size
    if size < 0 or end >= left:
        raise jute.bad_string(size, left - _PATH_START - 1)  # the flag needs one
    raw = frame[_PATH_START:end]
    try:
        return raw.decode(), frame[end] != 0
    except UnicodeDecodeError:
        return jute.text_of(raw), frame[end] != 0


def encode_request(xid: int, op: Op) -> bytes:
    """The framed request; LocalProtocolError if the op has no form on the wire."""
    body = encode_record(op)
    return pack_header(HEADER_SIZE + len(body), xid, op.opcode) + body


def encode_record(op: Op) -> bytes:
    """What a request has behind its header, which is all that can fail.

    Raises:
        LocalProtocolError: the op has no form on the wire, or a number does not fit.
        TypeError, ValueError: a field is not what the op asks for.
    """
    codec = REQUESTS.get(op.opcode)
    if codec is None:
        raise LocalProtocolError(f"{type(op).__name__} is internal to an ensemble")
    try:
        return codec.write(op)
    except struct.error as misfit:
        raise LocalProtocolError(f"{op!r} does not fit its record: {misfit}") from None


def decode_connect(frame: bytes) -> ConnectRequest:
    """The first frame of a connection. Old clients leave the last field, readOnly, out."""
    try:
        version, zxid, timeout_ms, session_id = _CONNECT.unpack_from(frame)
        password, at = jute.read_nullable_buffer(frame, _CONNECT.size)
    except (struct.error, MarshallingError) as wrong:
        raise RemoteProtocolError(f"not a ConnectRequest: {wrong}") from None
    read_only = frame[at] != 0 if at < len(frame) else None
    return ConnectRequest(version, zxid, timeout_ms, session_id, password, read_only)


def encode_connect(request: ConnectRequest) -> bytes:
    """The framed ConnectRequest."""
    version, zxid, timeout_ms, session_id, password, read_only = request
    try:
        fixed = _CONNECT.pack(version, zxid, timeout_ms, session_id)
    except struct.error as misfit:
        raise LocalProtocolError(f"{request!r} does not fit its record: {misfit}") from None
    return frame(fixed + jute.buffer(password) + optional_bool(read_only))


def optional_bool(flag: bool | None) -> bytes:  # noqa: FBT001 - a field of a record
    """The field that ends both records of the handshake, or nothing."""
    return b"" if flag is None else b"\1" if flag else b"\0"
