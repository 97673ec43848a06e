"""Transports and servers of a `VirtualLoop`: asyncio's contract on a simulated connection.

Invariants
    T1  A protocol hears `connection_made` once, then data in order, `eof_received` at most once,
        then `connection_lost` once and nothing after it.
    T2  Every protocol method is called in a turn of the protocol's own process, so a paused
        process hears nothing and a killed one never again.
    T3  `pause_writing` and `resume_writing` alternate, by the high and low marks on what the
        kernel's window (connections.WINDOW_BYTES) does not take.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from zabd.cluster_sim.connections import End, Receiver
from zabd.cluster_sim.network import Listener, Stack

HIGH_WATER_BYTES: Final = 65_536  # asyncio's own defaults
LOW_WATER_BYTES: Final = HIGH_WATER_BYTES // 4


class SimSocket:
    """What `get_extra_info("socket")` gives: names, and options that are accepted and ignored."""

    def __init__(self, local: tuple[str, int], remote: tuple[str, int] | None = None) -> None:
        self._local = local
        self._remote = remote

    def getsockname(self) -> tuple[str, int]:
        """This side's address and port."""
        return self._local

    def getpeername(self) -> tuple[str, int]:
        """The other side's address and port. Raises OSError on a listening socket."""
        if self._remote is None:
            raise OSError(107, "a listening socket has no peer")
        return self._remote

    def setsockopt(self, *option: object) -> None:
        """Accepted and ignored."""


class SimTransport(asyncio.Transport):
    """One connection as a process sees it; the `Receiver` of its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, end: End) -> None:
        super().__init__(
            {
                "peername": end.remote,
                "sockname": end.local,
                "socket": SimSocket(end.local, end.remote),
            }
        )
        self._loop = loop
        self._end = end
        self._protocol: asyncio.BaseProtocol | None = None
        self._inbox: deque[bytes | OSError | None] = deque()  # None is the end of file
        self._reading_scheduled = False
        self._reading_paused = False
        self._writing_paused = False
        self._eof_written = False
        self._closing = False
        self._over = False
        self._high = HIGH_WATER_BYTES
        self._low = LOW_WATER_BYTES
        self._on_over: Callable[[SimTransport], object] | None = None

    def open(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        waiter: asyncio.Future[Any] | None = None,
        on_over: Callable[["SimTransport"], object] | None = None,
    ) -> None:
        """Make the protocol and introduce it to this transport, in a turn of its process."""
        self._on_over = on_over
        if waiter is not None and waiter.cancelled():
            self._over = True
            self._end.abort()
            return
        self._protocol = protocol_factory()
        self._protocol.connection_made(self)
        if waiter is not None and not waiter.done():
            waiter.set_result((self, self._protocol))
        self._schedule_reading()

    # --- what the network tells ----------------------------------------------------------------

    def received(self, payload: object) -> None:
        """Data arrived."""
        assert isinstance(payload, bytes), "transports carry bytes"
        self._inbox.append(payload)
        self._schedule_reading()

    def finished(self) -> None:
        """The other side sends nothing more."""
        self._inbox.append(None)
        self._schedule_reading()

    def lost(self, error: OSError) -> None:
        """The connection broke."""
        if self._reading_paused:
            self._inbox.clear()  # nobody will ask for it: a reset empties the kernel's buffer
        self._inbox.append(error)
        self._schedule_reading()

    def drained(self) -> None:
        """Something arrived at the other side."""
        if self._closing or self._over:
            if self._closing and not self._end.unsent_bytes:
                self._closing = False
                self._loop.call_soon(self._be_over, None)
        elif self._writing_paused and self._end.unsent_bytes <= self._low:
            self._loop.call_soon(self._resume_writing)

    # --- reading -----------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Hear no data until `resume_reading`; the other side's window fills."""
        if not self._reading_paused:
            self._reading_paused = True
            self._end.hold_reading()

    def resume_reading(self) -> None:
        """Hear data again."""
        if self._reading_paused:
            self._reading_paused = False
            self._end.resume_reading()
            self._schedule_reading()

    def is_reading(self) -> bool:
        """Whether data is passed on."""
        return not self._reading_paused and not self._over and not self._closing

    def _schedule_reading(self) -> None:
        if self._inbox and not self._reading_scheduled and self._protocol is not None:
            self._reading_scheduled = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._reading_scheduled = False
        while self._inbox and not self._over:
            item = self._inbox[0]
            if isinstance(item, OSError):
                self._be_over(item)
                return
            if self._reading_paused:
                return
            self._inbox.popleft()
            if self._closing:
                continue
            try:
                self._pass_on(item)
            except Exception as error:  # noqa: BLE001 - as asyncio: the connection pays for it
                self._loop.call_exception_handler(
                    {"message": "the protocol failed", "exception": error, "transport": self}
                )
                self._break_off(error)

    def _pass_on(self, data: bytes | None) -> None:
        protocol = self._protocol
        if data is None:
            assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not protocol.eof_received():
                self.close()
        elif isinstance(protocol, asyncio.BufferedProtocol):
            _fill(protocol, data)
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)

    # --- writing -----------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send `data` behind what was sent before; never blocks."""
        if self._eof_written:
            raise RuntimeError("cannot write after write_eof")
        if not data or self._closing or self._over:
            return
        stack: Stack = self._loop.stack  # type: ignore[attr-defined]
        if stack.before_send is not None:
            stack.before_send()  # a prepared crash may go off here
        piece = bytes(data)
        self._end.send(piece, len(piece))
        if self._end.unsent_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            assert self._protocol is not None, "a transport is written to once it is open"
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several pieces as one."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """End this direction after what was sent; go on receiving."""
        if not self._eof_written:
            self._eof_written = True
            self._end.finish()

    def can_write_eof(self) -> bool:
        """Always."""
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks at which `pause_writing` and `resume_writing` are called."""
        if high is None:
            high = 4 * low if low is not None else HIGH_WATER_BYTES
        self._high, self._low = high, high // 4 if low is None else low
        if not self._high >= self._low >= 0:
            raise ValueError(f"high ({self._high}) must be >= low ({self._low}) must be >= 0")

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """The low and the high mark."""
        return (self._low, self._high)

    def get_write_buffer_size(self) -> int:
        """How many bytes the kernel has not taken yet."""
        return self._end.unsent_bytes

    def _resume_writing(self) -> None:
        if self._writing_paused and not self._over and not self._closing:
            self._writing_paused = False
            assert self._protocol is not None, "a transport is written to once it is open"
            self._protocol.resume_writing()

    # --- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what there is, then end; `connection_lost(None)` follows."""
        if not self._closing and not self._over:
            self._end.close()
            if self._end.unsent_bytes:
                self._closing = True
            else:
                self._break_off(None, reset=False)

    def abort(self) -> None:
        """Break the connection; `connection_lost(None)` follows."""
        self._break_off(None)

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._closing or self._over

    def _break_off(self, error: Exception | None, *, reset: bool = True) -> None:
        if self._over:
            return
        if reset:
            self._end.abort()
        self._closing = False
        self._over = True
        self._loop.call_soon(self._say_lost, error)

    def _be_over(self, error: Exception | None) -> None:
        if not self._over:
            self._over = True
            self._say_lost(error)

    def _say_lost(self, error: Exception | None) -> None:
        self._inbox.clear()
        if self._protocol is not None:
            self._protocol.connection_lost(error)
        if self._on_over is not None:
            self._on_over(self)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who hears of this connection."""
        assert self._protocol is not None, "a transport has a protocol once it is open"
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol hear of it from now on."""
        self._protocol = protocol


class SimServer(asyncio.AbstractServer):
    """A listening port of a simulated process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        address: str,
        port: int,
    ) -> None:
        self._loop = loop
        self._protocol_factory = protocol_factory
        self._address = address
        self._port = port
        self._listener: Listener | None = None
        self._closed = False
        self._clients: dict[SimTransport, None] = {}
        self._waiters: list[asyncio.Future[None]] = []

    async def start_serving(self) -> None:
        """Begin to accept."""
        if self._listener is None and not self._closed:
            stack: Stack = self._loop.stack  # type: ignore[attr-defined]
            self._listener = stack.listen(self._address, self._port, self._accept)

    async def serve_forever(self) -> None:
        """Accept until cancelled; then close."""
        await self.start_serving()
        try:
            await self._loop.create_future()
        finally:
            self.close()

    def _accept(self, end: End) -> Receiver:
        transport = SimTransport(self._loop, end)
        self._clients[transport] = None
        self._loop.call_soon(transport.open, self._protocol_factory, None, self._forget)
        return transport

    def _forget(self, transport: SimTransport) -> None:
        self._clients.pop(transport, None)
        self._wake_if_done()

    def close(self) -> None:
        """Accept no more; connections stay."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._closed = True
        self._wake_if_done()

    def close_clients(self) -> None:
        """Close every connection that was accepted here."""
        for transport in list(self._clients):
            transport.close()

    def abort_clients(self) -> None:
        """Break every connection that was accepted here."""
        for transport in list(self._clients):
            transport.abort()

    async def wait_closed(self) -> None:
        """Wait until it is closed and every connection accepted here has ended (as Python 3.12)."""
        if not self._closed or self._clients:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _wake_if_done(self) -> None:
        if self._closed and not self._clients:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    def is_serving(self) -> bool:
        """Whether it accepts."""
        return self._listener is not None

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of its process."""
        return self._loop

    @property
    def sockets(self) -> tuple[SimSocket, ...]:
        """The listening socket, while there is one."""
        if self._listener is None:
            return ()
        address = self._address or "0.0.0.0"  # noqa: S104 - a name to show
        return (SimSocket((address, self._listener.port)),)


def _fill(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    while data:
        buffer = memoryview(protocol.get_buffer(len(data)))
        count = min(len(buffer), len(data))
        assert count, "get_buffer() gave an empty buffer"
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
