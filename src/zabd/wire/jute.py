"""Jute, ZooKeeper's encoding: big-endian integers, and strings, buffers and vectors with a count.

A reader takes the frame and the offset where its value starts, and gives the value and the offset
behind it. The writers give bytes.

Invariants
    I1  A size or count is compared with the bytes that are left before anything is made of it.
    I2  Readers raise MarshallingError, or struct.error where the frame ends within an integer.
        The front doors in `wire.requests` and `wire.replies` make one of the other.

Client protocol, section 1.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

from zabd.model.errors import MarshallingError

T = TypeVar("T")
Reader: TypeAlias = Callable[[bytes, int], tuple[T, int]]

INT: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")
NULL: Final = INT.pack(-1)
"""A null buffer, string or vector."""

INT_SIZE: Final = INT.size
LONG_SIZE: Final = LONG.size

_read_int: Final = INT.unpack_from
_read_long: Final = LONG.unpack_from
_pack_int: Final = INT.pack

_SIZES: Final = tuple(INT.pack(size).decode() for size in range(128))
"""The sizes that are ASCII themselves, hence the same as text and as bytes."""


def text_of(raw: bytes) -> str:
    """The text of a string's bytes; what is not UTF-8 becomes U+FFFD.

    Java writes a character beyond U+FFFF as two surrogates of three bytes each. They stay two
    surrogates here, so that `bytes_of` gives the same bytes back.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _lenient(raw)


def _lenient(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


def bytes_of(text: str) -> bytes:
    """The bytes of a text, lone surrogates included."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def read_int(frame: bytes, at: int) -> tuple[int, int]:
    """A signed 32-bit number."""
    return _read_int(frame, at)[0], at + INT_SIZE


def read_long(frame: bytes, at: int) -> tuple[int, int]:
    """A signed 64-bit number."""
    return _read_long(frame, at)[0], at + LONG_SIZE


def read_nullable_buffer(frame: bytes, at: int) -> tuple[bytes | None, int]:
    """Bytes, or None for null, which is not the same as empty."""
    (size,) = _read_int(frame, at)
    at += INT_SIZE
    if size < 0:
        if size == -1:
            return None, at
        raise MarshallingError(f"a buffer has the size {size}")
    end = at + size
    if end > len(frame):
        raise MarshallingError(f"a buffer of {size} bytes, where {len(frame) - at} are left")
    return frame[at:end], end


def read_buffer(frame: bytes, at: int) -> tuple[bytes, int]:
    """Bytes, with null read as empty."""
    raw, at = read_nullable_buffer(frame, at)
    return raw or b"", at


def read_string(frame: bytes, at: int) -> tuple[str, int]:
    """A string that may not be null, such as a path."""
    (size,) = _read_int(frame, at)
    at += INT_SIZE
    end = at + size
    if size < 0 or end > len(frame):
        raise bad_string(size, len(frame) - at)
    raw = frame[at:end]
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        return _lenient(raw), end


def bad_string(size: int, left: int) -> MarshallingError:
    """The error for a string of an impossible size, or for a null one that may not be null."""
    if size == -1:
        return MarshallingError("a string is null that may not be")
    return MarshallingError(f"a string of {size} bytes, where {left} are left")


def read_nullable_string(frame: bytes, at: int) -> tuple[str | None, int]:
    """A string, or None for null."""
    if _read_int(frame, at)[0] == -1:
        return None, at + INT_SIZE
    return read_string(frame, at)


def read_string_or_empty(frame: bytes, at: int) -> tuple[str, int]:
    """A string, with null read as empty."""
    text, at = read_nullable_string(frame, at)
    return text or "", at


def read_count(frame: bytes, at: int, item_size_min: int) -> tuple[int, int]:
    """The count of a vector, -1 for a null one; no more than what is left can hold."""
    (count,) = _read_int(frame, at)
    at += INT_SIZE
    if count < -1 or count * item_size_min > len(frame) - at:
        raise MarshallingError(f"a vector of {count} items, where {len(frame) - at} bytes are left")
    return count, at


def read_vector(frame: bytes, at: int, item: Reader[T], item_size_min: int) -> tuple[list[T], int]:
    """The items of a vector; a null one has none."""
    count, at = read_count(frame, at, item_size_min)
    items = []
    for _ in range(count):
        value, at = item(frame, at)
        items.append(value)
    return items, at


def read_strings(frame: bytes, at: int) -> tuple[tuple[str, ...], int]:
    """A vector of strings; a null one has none (the protocol's advice on setWatches)."""
    items, at = read_vector(frame, at, read_string, INT_SIZE)
    return tuple(items), at


def buffer(raw: bytes | None) -> bytes:
    """The bytes with their size, or null."""
    return NULL if raw is None else _pack_int(len(raw)) + raw


def string(text: str | None) -> bytes:
    """The text with its size in bytes, or null."""
    if text is None:
        return NULL
    raw = bytes_of(text)
    return _pack_int(len(raw)) + raw


def strings(texts: Iterable[str]) -> bytes:
    """A vector of strings; written flat, for lists of children are long."""
    texts = tuple(texts)
    return _pack_int(len(texts)) + (_short_ascii(texts) or _any_text(texts))


def _short_ascii(texts: Sequence[str]) -> bytes:
    """All of them as one text, half of the time that `_any_text` takes; empty if that cannot be."""
    sizes = _SIZES
    try:
        text = "".join([part for text in texts for part in (sizes[len(text)], text)])
    except IndexError:
        return b""
    return text.encode() if text.isascii() else b""


def _any_text(texts: Sequence[str]) -> bytes:
    try:
        raws = [text.encode() for text in texts]
    except UnicodeEncodeError:
        raws = [bytes_of(text) for text in texts]
    return b"".join([_pack_int(len(raw)) + raw for raw in raws])
