"""Peer messages as bytes: a 4-byte length, then a msgpack array of the type and the fields.

A frame is believed only as far as it has been checked: its length before anything is kept, the
number of fields and the type and range of each before a message is made of them.
"""

from collections.abc import Callable
from dataclasses import fields
from struct import Struct
from typing import Final, NamedTuple, cast

import msgpack

from zabd.model.errors import RemoteProtocolError
from zabd.model.zxid import Zxid
from zabd.zab import messages
from zabd.zab.log import CHAIN_SIZE, HEADER_SIZE, LogPosition
from zabd.zab.messages import Ack, Carried, Commit, Message, PeerState, Propose, Standing

FRAME_BYTES_MAX: Final = 24 << 20
"""A batch of 8 MiB and one more request, with room for a jute.maxbuffer above the default."""

CLUSTER_ID_SIZE: Final = 16
CHUNK_DIGEST_SIZE_MAX: Final = 64

_LENGTH: Final = Struct(">I")
_LENGTH_SIZE: Final = _LENGTH.size
_BIN32: Final = Struct(">BI")
_U64_MAX: Final = 2**64 - 1
_EPOCH_MAX: Final = 2**31 - 1
_MEMBER_MAX: Final = 2**31 - 1


class _Kind(NamedTuple):
    """How one field goes into msgpack, and how it is believed when it comes out."""

    pack: Callable[[object], object]
    unpack: Callable[[object], object]


def _same(value: object) -> object:
    return value


def _integer(maximum: int, minimum: int = 0) -> Callable[[object], int]:
    def check(value: object) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise ValueError(f"{value!r} is not a number from {minimum} to {maximum}")
        return value

    return check


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _bytes(minimum: int, maximum: int) -> Callable[[object], bytes]:
    def check(value: object) -> bytes:
        if type(value) is not bytes or not minimum <= len(value) <= maximum:
            raise ValueError(f"not {minimum} to {maximum} bytes")
        return value

    return check


def _optional(check: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: None if value is None else check(value)


_check_zxid = _integer(_U64_MAX)
_check_chain = _bytes(CHAIN_SIZE, CHAIN_SIZE)


def _zxid(value: object) -> Zxid:
    return Zxid(_check_zxid(value))


def _position(value: object) -> LogPosition:
    if type(value) is not tuple or len(value) != len(LogPosition._fields):
        raise ValueError("not a position of a log")
    return LogPosition(_zxid(value[0]), _check_chain(value[1]))


def _plain(value: object) -> int:
    return int(cast("int", value))  # an enum or a Zxid packs as the plain number it is


def _pair(value: object) -> tuple[int, bytes]:
    position = cast("LogPosition", value)
    return int(position.zxid), position.chain


_ZXID: Final = _Kind(_plain, _zxid)
_EPOCH: Final = _Kind(_same, _integer(_EPOCH_MAX))
_U64: Final = _Kind(_same, _integer(_U64_MAX))
_COUNT: Final = _Kind(_same, _integer(2**32 - 1, 1))
_MEMBER: Final = _Kind(_same, _integer(_MEMBER_MAX))
_FLAG: Final = _Kind(_same, _flag)
_CLUSTER_ID: Final = _Kind(_same, _bytes(CLUSTER_ID_SIZE, CLUSTER_ID_SIZE))
_POSITION: Final = _Kind(_pair, _position)
_BYTES: Final = _Kind(_same, _bytes(0, FRAME_BYTES_MAX))
_STATE: Final = _Kind(_plain, lambda value: PeerState(_integer(max(PeerState))(value)))
_STANDING: Final = _Kind(_plain, lambda value: Standing(_integer(max(Standing))(value)))

# The number of a type is on the wire: a new one goes to the end, and none is ever used again.
_TYPES: Final[tuple[tuple[type[Message], tuple[_Kind, ...]], ...]] = (
    (
        messages.Notification,
        (
            _MEMBER,
            _Kind(_same, _optional(_CLUSTER_ID.unpack)),
            _U64,
            _Kind(_same, _optional(_MEMBER.unpack)),
            _ZXID,
            _EPOCH,
            _STATE,
            _STANDING,
            _FLAG,
        ),
    ),
    (
        messages.FollowerInfo,
        (
            _U64,
            _Kind(_same, _optional(_CLUSTER_ID.unpack)),
            _MEMBER,
            _FLAG,
            _EPOCH,
            _POSITION,
            _STANDING,
        ),
    ),
    (messages.LeaderInfo, (_EPOCH,)),
    (messages.AckEpoch, (_EPOCH, _POSITION)),
    (messages.Diff, (_POSITION,)),
    (messages.Trunc, (_POSITION,)),
    (messages.Snap, (_POSITION,)),
    (messages.TruncRefused, ()),
    (messages.Aligned, (_POSITION,)),
    (
        messages.SnapshotChunk,
        (_U64, _BYTES, _FLAG, _Kind(_same, _bytes(0, CHUNK_DIGEST_SIZE_MAX))),
    ),
    (messages.Propose, (_ZXID, _COUNT, _Kind(_same, _bytes(HEADER_SIZE, FRAME_BYTES_MAX)))),
    (messages.NewLeader, (_EPOCH, _CLUSTER_ID, _POSITION)),
    (messages.AckNewLeader, (_EPOCH, _ZXID)),
    (messages.UpToDate, (_ZXID,)),
    (messages.Ack, (_ZXID,)),
    (messages.Commit, (_ZXID,)),
    (messages.Ping, (_U64,)),
    (messages.Pong, (_U64,)),
    (messages.Carried, (_BYTES,)),
)

_ENCODERS: Final = {
    kind: (
        number,
        tuple((field.name, pack.pack) for field, pack in zip(fields(kind), kinds, strict=True)),
    )
    for number, (kind, kinds) in enumerate(_TYPES)
}
_PROPOSE: Final = _ENCODERS[messages.Propose][0]
_CARRIED: Final = _ENCODERS[messages.Carried][0]
_check_number: Final = _integer(len(_TYPES) - 1)
_DECODERS: Final = tuple((kind, tuple(k.unpack for k in kinds)) for kind, kinds in _TYPES)


def encode(message: Message) -> bytes:
    """The frame of the message, its length included."""
    number, names = _ENCODERS[type(message)]
    body = msgpack.packb([number, *(pack(getattr(message, name)) for name, pack in names)])
    return _LENGTH.pack(len(body)) + body


def encode_buffers(message: Message) -> tuple[bytes, ...]:
    """`encode` in pieces, to be sent one behind the other.

    What is large in a message, a record or forwarded requests, is a piece of its own and not copied
    for its frame.
    """
    match message:
        case messages.Propose(first, count, record):
            fields = (_PROPOSE, int(first), count)
            return _head(fields, len(record)), record
        case messages.Carried(payload):
            return _head((_CARRIED,), len(payload)), payload
        case _:
            return (encode(message),)


def _head(fields: tuple[int, ...], size_bytes: int) -> bytes:
    """All of a frame but for the bytes that are its last field."""
    packed = msgpack.packb(fields)
    # An array of up to 15 values begins with 0x90 and their number: one more is to come.
    body = bytes((packed[0] + 1,)) + packed[1:] + _BIN32.pack(0xC6, size_bytes)
    return _LENGTH.pack(len(body) + size_bytes) + body


def decode(body: bytes | memoryview) -> Message:
    """The message in a frame without its length; RemoteProtocolError if there is none in it."""
    try:
        array = msgpack.unpackb(body, use_list=False, max_map_len=0)
        short = _SHORT.get(array[0])
        if short is not None and (message := short(array)) is not None:
            return message
        kind, checks = _DECODERS[_check_number(array[0])]
        if len(array) != len(checks) + 1:
            raise ValueError(f"{kind.__name__} has {len(checks)} fields, not {len(array) - 1}")
        # The number of values was compared a line above.
        values = [check(value) for check, value in zip(checks, array[1:], strict=True)]
    except (ValueError, TypeError, IndexError, KeyError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"a peer's frame holds no message: {error}") from error
    return cast("Callable[..., Message]", kind)(*values)


def _short_position(kind: type[Ack | Commit]) -> Callable[[tuple[object, ...]], Message | None]:
    def make(array: tuple[object, ...]) -> Message | None:
        if len(array) != _OF_ONE or type(array[1]) is not int or not 0 <= array[1] <= _U64_MAX:
            return None
        return kind(Zxid(array[1]))

    return make


def _short_propose(array: tuple[object, ...]) -> Message | None:
    if len(array) != _OF_THREE:
        return None
    _, first, count, record = array
    if type(first) is not int or type(count) is not int or type(record) is not bytes:
        return None
    if 0 <= first <= _U64_MAX and 1 <= count < 1 << 32 and len(record) >= HEADER_SIZE:
        return Propose(Zxid(first), count, record)
    return None


def _short_carried(array: tuple[object, ...]) -> Message | None:
    if len(array) != _OF_ONE or type(array[1]) is not bytes:
        return None
    return Carried(array[1])


_OF_ONE: Final = 2
_OF_THREE: Final = 4
"""How long an array is, its number included."""

_SHORT: Final = {
    _PROPOSE: _short_propose,
    _CARRIED: _short_carried,
    _ENCODERS[Ack][0]: _short_position(Ack),
    _ENCODERS[Commit][0]: _short_position(Commit),
}
"""What every batch is made of: the same checks in a third of the time. None is for the long way."""


class Decoder:
    """Frames out of the bytes of one link, however they were cut."""

    __slots__ = ("_limit", "_needed", "_parts", "pending_bytes")

    def __init__(self, limit: int = FRAME_BYTES_MAX) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._needed = _LENGTH_SIZE  # how much has to be here before there is anything to do
        self.pending_bytes = 0
        """What has come of the frame that is not yet whole."""

    def feed(self, chunk: bytes) -> list[Message]:
        """The messages that are whole now.

        Keeps only what was received. Raises RemoteProtocolError for a frame that is too long or
        holds no message; the link is then of no more use.
        """
        if not self.pending_bytes:
            return self._take(chunk)  # nearly always: frames of a batch of a few come in one piece
        # A large batch comes in many chunks: they are put together once, and read where they lie.
        self._parts.append(chunk)
        self.pending_bytes += len(chunk)
        if self.pending_bytes < self._needed:
            return []
        parts, self._parts = self._parts, []
        self.pending_bytes = 0
        return self._take(b"".join(parts))

    def _take(self, buffer: bytes) -> list[Message]:
        view, size, start = memoryview(buffer), len(buffer), 0
        decoded: list[Message] = []
        needed = _LENGTH_SIZE
        while size - start >= _LENGTH_SIZE:
            body = start + _LENGTH_SIZE
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > self._limit:
                raise RemoteProtocolError(
                    f"a peer announced a frame of {length} bytes, the limit is {self._limit}"
                )
            end = body + length
            if end > size:
                needed = end - start
                break
            decoded.append(decode(view[body:end]))
            start = end
        if start < size:
            self._needed = needed
            self._parts = [buffer[start:]]
            self.pending_bytes = size - start
        return decoded
