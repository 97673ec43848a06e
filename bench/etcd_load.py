"""The load of `zabctl bench` for etcd: the same cells over gRPC, by hand and as cheap as it can be.

Just enough HTTP/2 (RFC 9113) and gRPC: header blocks that are made once and name nothing of the
dynamic table, one stream for each request, flow control, SETTINGS and PING. A reply is good when it
carried data and its trailers are those of a request that is known to have worked.
A get is a linearizable Range, which asks a quorum's leader; `get-local` is a serializable one,
which like ZooKeeper's may be stale, and is what the comparison uses. A create puts a new key.
"""

import itertools
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from zabd.cli.load import LoadError, Measurement, cpu_seconds, resident_mib

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
KEYS: Final = 64
RING: Final = 1_000
SILENCE_S: Final = 30.0
REFUSED_S: Final = 0.1
READ_BYTES: Final = 1 << 18
WINDOW_MAX: Final = (1 << 31) - 1
WINDOW_FIRST: Final = (1 << 16) - 1
FRAME_HEAD: Final = 9
GREETING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes((low | 128,)) + _varint(rest) if rest else bytes((low,))


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _text(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def _head(method: bytes) -> bytes:
    # :method POST and :scheme http are entries 3 and 6 of the static table; the rest is literal.
    path = b"\x04" + _text(b"/etcdserverpb.KV/" + method)
    rest = b"\x01" + _text(b"localhost") + b"\x0f\x10" + _text(b"application/grpc")
    return b"\x83\x86" + path + rest + b"\x00" + _text(b"te") + _text(b"trailers")


def _range(key: bytes, *, local: bool) -> tuple[bytes, bytes]:
    return _head(b"Range"), _field(1, key) + (b"\x38\x01" if local else b"")


def _put(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    return _head(b"Put"), _field(1, key) + _field(2, value)


class _Connection:
    def __init__(self, host: tuple[str, int]) -> None:
        self.socket = socket.create_connection(host, SILENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # No dynamic table, so that equal trailers are equal bytes; no pushes; all room there is.
        settings = struct.pack(">HIHIHI", 1, 0, 2, 0, 4, WINDOW_MAX)
        room = struct.pack(">I", WINDOW_MAX - WINDOW_FIRST)
        self.socket.sendall(
            GREETING + _frame(SETTINGS, 0, 0, settings) + _frame(WINDOW_UPDATE, 0, 0, room)
        )
        self._unread = b""
        self._credit = WINDOW_FIRST
        self._stream = 1
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._began: dict[int, float] = {}
        self._with_data: set[int] = set()
        self.ops: Iterator[tuple[bytes, bytes]] = iter(())
        self.latencies_s: list[float] = []
        self.errors = 0
        self.good: frozenset[bytes] = frozenset()
        self.last_trailers = b""
        self.kept: list[bytes] | None = None

    @property
    def outstanding(self) -> int:
        return len(self._began)

    def ask(self, count: int) -> None:
        self._waiting.extend(itertools.islice(self.ops, count))
        self._send()

    def _send(self, *control: bytes) -> None:
        parts, now = list(control), time.perf_counter()
        while self._waiting and len(self._waiting[0][1]) + 5 <= self._credit:
            head, message = self._waiting.popleft()
            body = b"\0" + struct.pack(">I", len(message)) + message
            self._credit -= len(body)
            parts.append(_frame(HEADERS, END_HEADERS, self._stream, head))
            parts.append(_frame(DATA, END_STREAM, self._stream, body))
            self._began[self._stream] = now
            self._stream += 2
        if parts:
            self.socket.setblocking(True)
            self.socket.sendall(b"".join(parts))
            self.socket.setblocking(False)

    def replies_came(self) -> None:
        chunk = self.socket.recv(READ_BYTES)
        if not chunk:
            raise LoadError("etcd closed the connection")
        data, at, answered, control = self._unread + chunk, 0, 0, []
        while len(data) - at >= FRAME_HEAD:
            size = int.from_bytes(data[at : at + 3], "big")
            kind, flags, stream = struct.unpack_from(">BBI", data, at + 3)
            end = at + FRAME_HEAD + size
            if end > len(data):
                break
            payload, at = data[at + FRAME_HEAD : end], end
            if kind == DATA:
                self._with_data.add(stream)
                if self.kept is not None:  # a message may come in several frames
                    self.kept.append(payload)
            elif kind == HEADERS and flags & END_STREAM:
                answered += self._answered(stream, payload)
            elif kind == RST_STREAM:
                # Behind trailers it says nothing new; else the request was refused with it.
                answered += self._answered(stream, b"") if stream in self._began else 0
            else:
                control += self._control(kind, flags, stream, payload)
        self._unread = data[at:]
        self._waiting.extend(itertools.islice(self.ops, answered))
        self._send(*control)

    def _answered(self, stream: int, trailers: bytes) -> int:
        self.last_trailers = trailers
        self.errors += stream not in self._with_data or trailers not in self.good
        self._with_data.discard(stream)
        self.latencies_s.append(time.perf_counter() - self._began.pop(stream))
        return 1

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> list[bytes]:
        if kind == WINDOW_UPDATE and stream == 0:
            self._credit += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & ACK:
            return [_frame(SETTINGS, ACK, 0)]
        elif kind == PING and not flags & ACK:
            return [_frame(PING, ACK, 0, payload)]
        elif kind == GOAWAY:
            raise LoadError(f"etcd sent HTTP/2 frame {kind}: {payload!r}")
        return []


def _taken(host: tuple[str, int], op: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """The first answer with data: behind a load that was too much, etcd refuses for a while."""
    end = time.monotonic() + SILENCE_S
    while True:
        data, trailers = _once(host, op)
        if data:
            return data, trailers
        if time.monotonic() > end:
            raise LoadError(f"etcd has refused for {SILENCE_S:g} s: {trailers!r}")
        time.sleep(REFUSED_S)


def _once(host: tuple[str, int], op: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    connection = _Connection(host)
    connection.ops = iter([op])
    connection.kept = kept = []
    connection.ask(1)
    with selectors.DefaultSelector() as selector:
        selector.register(connection.socket, selectors.EVENT_READ)
        while not connection.latencies_s:
            if not selector.select(SILENCE_S):
                raise LoadError(f"etcd has not answered for {SILENCE_S:g} s")
            connection.replies_came()
    connection.socket.close()
    return b"".join(kept), connection.last_trailers


class EtcdLoad:
    """As `zabd.cli.load.Load`."""

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
        self._root, self._value = root.encode(), bytes(size_bytes)
        good = self._prepare(hosts[0])
        self._connections = [_Connection(hosts[i % len(hosts)]) for i in range(connections)]
        self._selector = selectors.DefaultSelector()
        for number, connection in enumerate(self._connections):
            connection.good = good
            connection.ops = self._ops(op, number)
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.ask(window)

    def _prepare(self, host: tuple[str, int]) -> frozenset[bytes]:
        good = set()
        for number in range(KEYS):
            good.add(_taken(host, _put(self._key(number), self._value))[1])
        data, trailers = _taken(host, _range(self._key(0), local=False))
        if self._value not in data or self._key(0) not in data:
            raise LoadError("etcd does not give back what was put")
        return frozenset({*good, trailers})

    def _key(self, number: int) -> bytes:
        return b"%b/%04d" % (self._root, number)

    def _ops(self, op: str, number: int) -> Iterator[tuple[bytes, bytes]]:
        kind, _, share = op.partition(":")
        reads = round(1000 * float(share or 0.9))
        ranges = [_range(self._key(k), local=kind != "get-linearizable") for k in range(KEYS)]
        puts = [_put(self._key(k), self._value) for k in range(KEYS)]
        for index in itertools.count():
            key = (number * 7 + index) % KEYS
            due = (index % RING + 1) * reads // RING > index % RING * reads // RING
            if kind.startswith("get") or (kind == "mixed" and due):
                yield ranges[key]
            elif kind in {"set", "mixed"}:
                yield puts[key]
            else:
                yield _put(b"%b/made-%d/%010d" % (self._root, number, index), self._value)

    def measure(self, seconds: float, pids: Sequence[int] = ()) -> Measurement:
        """Run for so long."""
        for connection in self._connections:
            connection.latencies_s.clear()
            connection.errors = 0
        cpu_s, began = cpu_seconds(pids), time.perf_counter()
        end = began + seconds
        while (now := time.perf_counter()) < end:
            ready = self._selector.select(SILENCE_S)
            if not ready:
                raise LoadError(f"etcd has not answered for {SILENCE_S:g} s")
            for key, _ in ready:
                key.data.replies_came()
        cpu_s = cpu_seconds(pids) - cpu_s
        took = sorted(latency for c in self._connections for latency in c.latencies_s)
        at = [took[int(len(took) * share)] * 1000 if took else 0.0 for share in (0.5, 0.99, 0.999)]
        return Measurement(
            ops_per_s=len(took) / (now - began),
            p50_ms=at[0],
            p99_ms=at[1],
            p999_ms=at[2],
            errors=sum(connection.errors for connection in self._connections),
            cpu_us_per_op=cpu_s * 1e6 / len(took) if pids and took else None,
            memory_mib=max(map(resident_mib, pids)) if pids else None,
        )

    def close(self) -> None:
        """Hang up."""
        self._selector.close()
        for connection in self._connections:
            connection.socket.close()
