"""Frames: every message is a 4-byte length and that many bytes (client protocol, section 1).

Invariants
    I1  A reader never holds more than the bytes it was given, whatever a length promises (P1 of the
        protocol abuses that `zabd` withstands).
    I2  A whole frame costs one slice of the chunk it came in; only a frame cut by the end of a
        chunk is gathered first.
"""

import struct
from typing import Final, NoReturn

from zabd.model.errors import RemoteProtocolError

REQUEST_BYTES_MAX: Final = 1_048_575
"""The longest request: `jute.maxbuffer`, whose default every ZooKeeper has (section 19)."""

RESPONSE_BYTES_MAX: Final = 64 * 1_048_576
"""The longest response a client takes. ZooKeeper sets none; 400,000 names of 150 bytes fit."""

LENGTH_SIZE: Final = 4
HEADER_SIZE: Final = 8
"""The size of a request's header: xid and type."""

_LENGTH: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">ii")
_read_length: Final = _LENGTH.unpack_from
_KNOWN_SIZE: Final = LENGTH_SIZE + HEADER_SIZE


class FrameError(RemoteProtocolError):
    """A length that no frame may have. Nothing after it can be read, so the link is over.

    `frames` came whole before it. `header` is the (xid, opcode) of an over-long request, which can
    be answered with BadArguments before the link is closed; None if the length was negative.
    """

    def __init__(
        self, message: str, frames: list[bytes], header: tuple[int, int] | None = None
    ) -> None:
        super().__init__(message)
        self.frames = frames
        self.header = header


class FrameReader:
    """Cuts the bytes of one connection into frames.

    A negative length is refused at once, an over-long one when the eight bytes behind it are there.
    """

    __slots__ = ("_limit", "_needed", "_partial", "header")

    def __init__(self, limit: int = REQUEST_BYTES_MAX) -> None:
        self._limit = limit
        self._partial = bytearray()
        self._needed = LENGTH_SIZE  # how long the partial frame has to grow to tell us more
        self.header: tuple[int, int] | None = None

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an unfinished frame are held, its length included; 0 between frames."""
        return len(self._partial)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The frames that are complete now, without their lengths; raises FrameError.

        After a FrameError the reader is of no use, and feeding it again raises another.
        """
        end = len(chunk)
        if not self._partial and end >= LENGTH_SIZE:
            (size,) = _read_length(chunk)
            if size == end - LENGTH_SIZE and size <= self._limit:
                return [chunk[LENGTH_SIZE:]]  # one frame, as of a client that awaits each answer
        frames: list[bytes] = []
        at = 0
        if self._partial:
            missing = self._needed - len(self._partial)
            if len(chunk) < missing:
                self._partial += chunk
                return frames
            chunk, at = self._resume(chunk, missing, frames)
        end = len(chunk)
        while end - at >= LENGTH_SIZE:
            (size,) = _read_length(chunk, at)
            start = at + LENGTH_SIZE
            if not 0 <= size <= self._limit:
                if size > 0 and end - start < HEADER_SIZE:
                    break  # the header that says what to answer is still to come
                self._refuse(chunk, at, frames)
            stop = start + size
            if stop > end:
                break
            frames.append(chunk[start:stop])
            at = stop
        if at < end:
            self._keep(chunk[at:])
        return frames

    def _resume(self, chunk: bytes, missing: int, frames: list[bytes]) -> tuple[bytes, int]:
        """Use what was kept, now that what it lacks is here; gives what to go on with, where."""
        kept, self._partial = self._partial, bytearray()
        if len(kept) <= _KNOWN_SIZE:
            return bytes(kept) + chunk, 0  # not worth a path of its own
        kept += chunk[:missing]
        frames.append(bytes(memoryview(kept)[LENGTH_SIZE:]))
        return chunk, missing

    def _keep(self, rest: bytes) -> None:
        self._partial += rest
        self._needed = LENGTH_SIZE
        if len(rest) >= LENGTH_SIZE:
            (size,) = _LENGTH.unpack_from(rest)
            self._needed = LENGTH_SIZE + size if size <= self._limit else _KNOWN_SIZE

    def _refuse(self, chunk: bytes, at: int, frames: list[bytes]) -> NoReturn:
        # What made the reader give up is all that it keeps, and makes it give up again.
        self._partial = bytearray(chunk[at : at + _KNOWN_SIZE])
        self._needed = 0
        (size,) = _LENGTH.unpack_from(chunk, at)
        if size < 0:
            raise FrameError(f"a frame of {size} bytes", frames)
        xid, opcode = _HEADER.unpack_from(chunk, at + LENGTH_SIZE)
        self.header = (xid, opcode)
        raise FrameError(
            f"a frame of {size} bytes, where {self._limit} are allowed", frames, self.header
        )


def frame(body: bytes) -> bytes:
    """The body with its length in front."""
    return _LENGTH.pack(len(body)) + body
