"""Load: requests over raw sockets, at the least cost to the machine that runs the servers as well.

One thread, one selector, non-blocking sockets. Every request is encoded before the measurement; a
connection keeps `window` of them outstanding, and all slots that one read has freed are filled with
one write. Of each reply the length, the xid (which must be the next in order) and the error code
are looked at. It works against any server of the ZooKeeper protocol.

The CPU of the servers is what the kernel has booked for their process ids, in steps of 10 ms: a
measurement should take some seconds.
"""

import os
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import ZabdError
from zabd.model.ops import Create, CreateMode, Delete, GetChildren, GetData, Op, SetData
from zabd.model.results import ChildrenResult, Result
from zabd.model.session import PASSWORD_SIZE, ConnectRequest
from zabd.wire.replies import REPLY_HEADER_SIZE, decode_reply_header, decode_result
from zabd.wire.requests import encode_connect, encode_request

SESSION_TIMEOUT_MS: Final = 30_000
SILENCE_S: Final = 30.0
ZNODES: Final = 64
"""Znodes that are read and set: a working set as of locks and configuration."""

RING: Final = 1_000
"""Ready-made requests of one connection; a thousand, for shares of reads in thousandths."""

PIPELINED: Final = 200
READ_BYTES: Final = 1 << 18
_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">iiqi")  # length, xid, zxid, error


class LoadError(ZabdError):
    """A server does not answer, or not as it should."""


@dataclass(frozen=True)
class Measurement:
    """One interval."""

    ops_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    errors: int
    cpu_us_per_op: float | None  # of the servers together; None if their pids are not known
    memory_mib: float | None  # resident, of the largest server


class Connection:
    """A session over one socket; blocking at first, for what has to be there before."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), SILENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._greet()
        except (OSError, LoadError):
            self.socket.close()
            raise
        self._requests: list[bytes] = []
        self._next = 0
        self._expected = 1
        self._sent: deque[tuple[float, int]] = deque()
        self._unread = b""
        self.latencies_s: list[tuple[float, int]] = []
        self.answered = 0
        self.errors = 0

    def _greet(self) -> None:
        greeting = ConnectRequest(0, 0, SESSION_TIMEOUT_MS, 0, bytes(PASSWORD_SIZE), False)
        self.socket.sendall(encode_connect(greeting))
        self._read_frame()

    def call(self, op: Op) -> Result | None:
        """One request and its result; None for an error."""
        self.socket.sendall(encode_request(1, op))
        frame = self._read_frame()
        if decode_reply_header(frame)[2]:
            return None
        return decode_result(op.opcode, frame, REPLY_HEADER_SIZE)

    def call_all(self, ops: Sequence[Op]) -> None:
        """Many requests, so many at a time that neither side has to wait long; no results."""
        for at in range(0, len(ops), PIPELINED):
            some = ops[at : at + PIPELINED]
            self.socket.sendall(b"".join(encode_request(1, op) for op in some))
            for _ in some:
                self._read_frame()

    def expect(self, count: int) -> None:
        """Read so many replies; raises `LoadError` if one of them is an error."""
        for _ in range(count):
            if error := decode_reply_header(self._read_frame())[2]:
                raise LoadError(f"a reply is the error {error}")

    def _read_frame(self) -> bytes:
        return self._read(_LENGTH.unpack(self._read(_LENGTH.size))[0])

    def _read(self, size_bytes: int) -> bytes:
        parts = []
        while size_bytes:
            part = self.socket.recv(size_bytes)
            if not part:
                raise LoadError("a server closed the connection")
            parts.append(part)
            size_bytes -= len(part)
        return b"".join(parts)

    def begin(self, ops: Sequence[Op], window: int) -> None:
        """Send the first requests of an endless round of `ops`."""
        self._requests = [encode_request(xid, op) for xid, op in enumerate(ops, 1)]
        self.socket.setblocking(False)
        self._send(window)

    def _send(self, count: int) -> None:
        ring, start = self._requests, self._next
        end = start + count
        parts = ring[start:end] + ring[: max(end - len(ring), 0)]
        self._next = end % len(ring)
        self._sent.append((time.perf_counter(), count))
        data = b"".join(parts)
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.socket.setblocking(True)
            self.socket.sendall(data[sent:])
            self.socket.setblocking(False)

    def replies_came(self) -> None:
        """Take what has come, and fill the freed slots."""
        try:
            chunk = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            raise LoadError("a server closed the connection")
        count = self._count(self._unread + chunk if self._unread else chunk)
        if count:
            self._note(count)
            self._send(count)

    def _count(self, data: bytes) -> int:
        at, end, count, expected = 0, len(data), 0, self._expected
        ring_size = len(self._requests)
        while end - at >= _HEAD.size:
            length, xid, _, error = _HEAD.unpack_from(data, at)
            if at + _LENGTH.size + length > end:
                break
            if xid != expected:
                raise LoadError(f"a reply to request {xid}, where {expected} is the next")
            expected = expected % ring_size + 1
            self.errors += error != 0
            count += 1
            at += _LENGTH.size + length
        self._expected, self._unread = expected, data[at:]
        return count

    def _note(self, count: int) -> None:
        now = time.perf_counter()
        self.answered += count
        sent = self._sent
        while count:
            began, waiting = sent[0]
            taken = min(waiting, count)
            self.latencies_s.append((now - began, taken))
            count -= taken
            if taken == waiting:
                sent.popleft()
            else:
                sent[0] = (began, waiting - taken)

    def finish(self) -> None:
        """Wait for what is outstanding, and close."""
        self.socket.setblocking(True)
        while self._sent and (chunk := self.socket.recv(READ_BYTES)):
            self._note(self._count(self._unread + chunk))
        self.socket.close()

    def forget(self) -> None:
        """Begin another interval."""
        self.latencies_s.clear()
        self.answered = self.errors = 0


class Load:
    """Connections to servers, busy from `__enter__` on, and the znodes that they work on."""

    def __init__(
        self,
        hosts: Sequence[tuple[str, int]],
        op: str,
        *,
        connections: int,
        window: int,
        size_bytes: int,
        root: str,
    ) -> None:
        self._root = root
        self._data = bytes(size_bytes)
        self._connections = [Connection(*hosts[i % len(hosts)]) for i in range(connections)]
        self._prepare()
        self._selector = selectors.DefaultSelector()
        for number, connection in enumerate(self._connections):
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.begin(list(self._ops(op, number)), window)

    def _prepare(self) -> None:
        first = self._connections[0]
        first.call(Create(self._root, b"", OPEN_ACL_UNSAFE, CreateMode.PERSISTENT))
        for number in range(ZNODES):
            path = f"{self._root}/{number:04d}"
            first.call(Create(path, self._data, OPEN_ACL_UNSAFE, CreateMode.PERSISTENT))
        for number in range(len(self._connections)):
            path = f"{self._root}/made-{number}"
            first.call(Create(path, b"", OPEN_ACL_UNSAFE, CreateMode.PERSISTENT))

    def _ops(self, op: str, number: int) -> Iterator[Op]:
        kind, _, share = op.partition(":")
        reads = round(1000 * float(share or 0.9))
        for index in range(RING):
            path = f"{self._root}/{(number * 7 + index) % ZNODES:04d}"
            if kind == "get" or (kind == "mixed" and _due(index, reads)):
                yield GetData(path, watch=False)
            elif kind in {"set", "mixed"}:
                yield SetData(path, self._data, -1)
            elif kind == "create":
                made = f"{self._root}/made-{number}/"
                yield Create(made, self._data, OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_SEQUENTIAL)
            else:
                raise LoadError(f"{op!r} is none of get, set, create and mixed:SHARE_OF_READS")

    def measure(self, seconds: float, pids: Sequence[int] = ()) -> Measurement:
        """Run for so long."""
        for connection in self._connections:
            connection.forget()
        cpu_s, began = cpu_seconds(pids), time.perf_counter()
        end = began + seconds
        while (now := time.perf_counter()) < end:
            ready = self._selector.select(SILENCE_S)
            if not ready:
                raise LoadError(f"no server has answered for {SILENCE_S:g} s")
            for key, _ in ready:
                key.data.replies_came()
        cpu_s = cpu_seconds(pids) - cpu_s
        answered = sum(connection.answered for connection in self._connections)
        weighted = sorted(pair for c in self._connections for pair in c.latencies_s)
        return Measurement(
            ops_per_s=answered / (now - began),
            p50_ms=_percentile(weighted, answered, 0.5),
            p99_ms=_percentile(weighted, answered, 0.99),
            p999_ms=_percentile(weighted, answered, 0.999),
            errors=sum(connection.errors for connection in self._connections),
            cpu_us_per_op=cpu_s * 1e6 / answered if pids and answered else None,
            memory_mib=max(map(resident_mib, pids)) if pids else None,
        )

    def close(self) -> None:
        """Take what was asked for, and hang up; the sessions end by themselves."""
        self._selector.close()
        for connection in self._connections:
            connection.finish()


def _due(index: int, per_mille: int) -> bool:
    # So many of a thousand, spread evenly.
    return (index + 1) * per_mille // 1000 > index * per_mille // 1000


def remove(host: tuple[str, int], root: str) -> None:
    """Remove the znodes of a load that is closed."""
    connection = Connection(*host)
    levels = [[root]]
    while levels[-1]:
        levels.append([child for path in levels[-1] for child in _children(connection, path)])
    for level in reversed(levels):
        connection.call_all([Delete(path, -1) for path in level])
    connection.socket.close()


def _children(connection: Connection, path: str) -> list[str]:
    found = connection.call(GetChildren(path, watch=False))
    names = found.children if isinstance(found, ChildrenResult) else ()
    return [f"{path}/{name}" for name in names]


def _percentile(weighted: Sequence[tuple[float, int]], total: int, share: float) -> float:
    left = total * share
    for latency_s, count in weighted:
        left -= count
        if left <= 0:
            return latency_s * 1000
    return 0.0


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of the processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
