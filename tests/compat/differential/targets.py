"""Targets: servers that scripts are played on, reached over TCP or without leaving the process."""

from __future__ import annotations

import socket
import struct
from itertools import cycle
from typing import Any, Final, Protocol

from tests.replica.harness import Client, Ensemble

SILENCE_SECONDS_MAX: Final = 10.0
"""A server that has not answered by then is taken for one that never will."""

EVENT: Final = b"\xff\xff\xff\xff"
_LENGTH: Final = struct.Struct(">i")


class Link(Protocol):
    """One connection to a server."""

    closed: bool
    frames: list[bytes]
    """What came since it was last taken, without the lengths."""

    def send(self, data: bytes) -> None:
        """Send, if the connection still stands."""

    def wait(self, frames: int) -> None:
        """Until that many frames that are no events have come, or the server hung up."""

    def hang_up(self) -> None:
        """Cut the connection."""


class Target(Protocol):
    """A server."""

    def dial(self) -> Link:
        """A new connection."""


class Frames:
    """Bytes to frames."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete now."""
        buffer = self._buffer + data
        frames, at = [], 0
        while len(buffer) >= at + 4:
            (size,) = _LENGTH.unpack_from(buffer, at)
            if len(buffer) < at + 4 + size:
                break
            frames.append(buffer[at + 4 : at + 4 + size])
            at += 4 + size
        self._buffer = buffer[at:]
        return frames


def _replies(frames: list[bytes]) -> int:
    return sum(not frame.startswith(EVENT) for frame in frames)


class TcpLink:
    """A connection on a socket."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, SILENCE_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._splitter = Frames()
        self.frames: list[bytes] = []
        self.closed = False

    def send(self, data: bytes) -> None:
        """See Link."""
        if self.closed:
            return
        try:
            self._socket.sendall(data)
        except OSError:
            self._read_rest()

    def wait(self, frames: int) -> None:
        """See Link."""
        while not self.closed and _replies(self.frames) < frames:
            try:
                data = self._socket.recv(1 << 18)
            except TimeoutError:
                return
            except OSError:
                data = b""
            self._take(data)

    def hang_up(self) -> None:
        """See Link."""
        self.closed = True
        self._socket.close()

    def _read_rest(self) -> None:
        """What the server said before it hung up is still to be had."""
        while not self.closed:
            try:
                self._take(self._socket.recv(1 << 18))
            except OSError:
                self._take(b"")

    def _take(self, data: bytes) -> None:
        if data:
            self.frames += self._splitter.feed(data)
        else:
            self.hang_up()


class TcpTarget:
    """A server on a port."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    def dial(self) -> TcpLink:
        """See Target."""
        return TcpLink(self._address)


class ReplicaLink(Client):
    """A connection to a replica in this process: everything has happened when `send` returns."""

    def __init__(self, ensemble: Ensemble, client: Client) -> None:
        super().__init__(ensemble, client.member, client.connection_id)
        self._splitter = Frames()
        self.frames: list[bytes] = []

    def send(self, data: bytes) -> None:  # type: ignore[override]  # a link deals in bytes
        """See Link."""
        if not self.closed:
            self.send_raw(data)
            self.ensemble.settle()

    def receive(self, data: bytes) -> None:
        """What the member wrote."""
        self.frames += self._splitter.feed(data)

    def wait(self, frames: int) -> None:
        """See Link."""
        self.ensemble.settle()

    def hang_up(self) -> None:
        """See Link."""
        if not self.closed:
            self.ensemble.hang_up(self)


class ReplicaTarget:
    """Replicas in this process, all in memory; a new connection is the next member's.

    One replica is a stand-alone server. Of several, everything has happened on all of them when a
    step is over, so that they can be compared with one.
    """

    link_type = ReplicaLink

    def __init__(self, super_digest: str | None = None, voters: int = 1) -> None:
        settings: dict[str, Any] = {"super_digest": super_digest, "enforce_quota": True}
        self._ensemble = Ensemble(voters, **settings)
        self._members = cycle(sorted(self._ensemble.members))

    def dial(self) -> ReplicaLink:
        """See Target."""
        member = next(self._members)
        client = self._ensemble.dial(member)
        link = self.link_type(self._ensemble, client)
        self._ensemble._clients[member, client.connection_id] = link
        return link
