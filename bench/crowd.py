"""Thousands of sessions held by one thread over raw sockets, for what needs many clients."""

import contextlib
import itertools
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, Self

from zabd.cli.load import LoadError
from zabd.model.ops import CloseSession, Op, Ping
from zabd.model.session import PASSWORD_SIZE, ConnectRequest
from zabd.wire.requests import PING_XID, encode_connect, encode_request

IN_FLIGHT: Final = 200  # handshakes, or requests of different sessions, at a time
SILENCE_S: Final = 120.0
NOTIFICATION_XID: Final = -1
REQUEST_XID: Final = 1
HEADER_SIZE: Final = 20
READ_BYTES: Final = 1 << 16
_HEAD: Final = struct.Struct(">iiqi")  # length, xid, zxid, error
_ACCEPTED: Final = struct.Struct(">iii")  # length, protocol version, session timeout

Frame = tuple[int, int]
"""The xid and the error code of what came."""


class Crowd:
    """So many sessions, evenly at these members. A context manager: leaving it ends them."""

    def __init__(
        self, hosts: Sequence[tuple[str, int]], count: int, *, timeout_ms: int = 30_000
    ) -> None:
        self._timeout_ms = timeout_ms
        self._hosts = itertools.cycle(hosts)
        self._selector = selectors.DefaultSelector()
        self.sockets: list[socket.socket] = []
        self._unread: dict[socket.socket, bytes] = {}
        began = time.perf_counter()
        while len(self.sockets) < count:
            self._open(min(IN_FLIGHT, count - len(self.sockets)))
        self.opened_s = time.perf_counter() - began

    def _open(self, count: int) -> None:
        greeting = ConnectRequest(0, 0, self._timeout_ms, 0, bytes(PASSWORD_SIZE), False)
        fresh = [socket.create_connection(next(self._hosts), SILENCE_S) for _ in range(count)]
        for one in fresh:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.sendall(encode_connect(greeting))
        for one in fresh:
            reply = one.recv(READ_BYTES)
            if len(reply) < _ACCEPTED.size or _ACCEPTED.unpack_from(reply)[2] <= 0:
                raise LoadError(f"session {len(self.sockets) + 1} was refused: {reply!r}")
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)
            self._unread[one] = b""
            self.sockets.append(one)

    def ask_all(self, op: Op) -> list[float]:
        """Every session asks this; the moments at which answers came. Raises on an error reply."""
        return self.ask_each(lambda _number: op)

    def ask_each(self, op: Callable[[int], Op], *, allowed: Sequence[int] = (0,)) -> list[float]:
        """As `ask_all`, of each session what `op` says for its number."""
        moments: list[float] = []
        numbered = iter(enumerate(self.sockets))
        while some := list(itertools.islice(numbered, IN_FLIGHT)):
            for number, one in some:
                one.send(encode_request(REQUEST_XID, op(number)))
            moments += self.wait(REQUEST_XID, len(some), allowed=allowed)
        return moments

    def send_all(self, op: Op) -> None:
        """Every session asks this at once; `wait` for the answers."""
        request = encode_request(REQUEST_XID, op)
        for one in self.sockets:
            one.send(request)

    def pipeline(self, number: int, ops: Sequence[Op]) -> None:
        """One session asks for many things, and has them all answered well."""
        one = self.sockets[number]
        one.setblocking(True)
        one.sendall(b"".join(encode_request(REQUEST_XID, op) for op in ops))
        one.setblocking(False)
        self.wait(REQUEST_XID, len(ops))

    def ping_all(self, over_s: float) -> None:
        """Every session says that it lives, evenly over so many seconds, and is answered."""
        request = encode_request(PING_XID, Ping())
        began = time.perf_counter()
        for number, one in enumerate(self.sockets):
            one.send(request)
            behind = began + over_s * number / len(self.sockets) - time.perf_counter()
            if behind > 0:
                time.sleep(behind)
        self.wait(PING_XID, len(self.sockets))

    def wait(self, xid: int, count: int, *, allowed: Sequence[int] = (0,)) -> list[float]:
        """Read until so many frames with this xid have come; when each of them came."""
        moments: list[float] = []
        while len(moments) < count:
            for got, error in self._read():
                if got == xid:
                    moments.append(time.perf_counter())
                    if xid == REQUEST_XID and error not in allowed:
                        raise LoadError(f"a reply is the error {error}")
        return moments

    def _read(self) -> list[Frame]:
        ready = self._selector.select(SILENCE_S)
        if not ready:
            raise LoadError(f"nothing came for {SILENCE_S:g} s")
        frames: list[Frame] = []
        for key, _ in ready:
            one = key.fileobj
            assert isinstance(one, socket.socket), "only sockets are registered"
            chunk = one.recv(READ_BYTES)
            if not chunk:
                raise LoadError("the member closed a connection")
            data, at = self._unread[one] + chunk, 0
            while len(data) - at >= HEADER_SIZE:
                length, xid, _, error = _HEAD.unpack_from(data, at)
                if at + 4 + length > len(data):
                    break
                frames.append((xid, error))
                at += 4 + length
            self._unread[one] = data[at:]
        return frames

    def hang_up(self) -> None:
        """Close the connections and say nothing: the sessions expire in their time."""
        self._selector.close()
        for one in self.sockets:
            one.close()
        self.sockets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.sockets:
            with contextlib.suppress(OSError):  # the member may be gone already
                one.send(encode_request(REQUEST_XID, CloseSession()))
        self.hang_up()
