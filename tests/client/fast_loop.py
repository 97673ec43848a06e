"""An asyncio loop in a time of its own, with connections in memory: hours of timeouts in no time.

When nothing is ready the loop jumps to its next timer, so a test with 12 s sessions takes
milliseconds and every run is the same. Connections are FIFO, can be cut, and can be black holes.
"""

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LATENCY = 0.001


class _JumpingSelector(selectors.SelectSelector):
    """Does not wait for a timer: moves the time to it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("nothing is ready and no timer runs: this test waits for ever")
        if timeout > 0:
            self.now += timeout
        return super().select(0)


class FastLoop(asyncio.SelectorEventLoop):
    """The loop; `servers` maps (host, port) to protocol factories."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self.servers: dict[tuple[str, int], Callable[[], asyncio.Protocol]] = {}
        self.black_hole = False
        self.links: list[MemoryTransport] = []

    def time(self) -> float:
        return self._jumping.now

    def boot_time_ms(self) -> int:
        return round(self._jumping.now * 1000)

    def sleep_machine(self, seconds: float) -> None:
        """Let time pass without running anything, as SIGSTOP and a closed lid do."""
        self._jumping.now += seconds

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await asyncio.sleep(LATENCY)
        if self.black_hole:
            await self.create_future()
        server_factory = self.servers.get((host, port))
        if server_factory is None:
            raise ConnectionRefusedError(f"{host}:{port} refuses")
        near, far = MemoryTransport(self), MemoryTransport(self)
        near.peer, far.peer = far, near
        near.protocol, far.protocol = factory(), server_factory()
        self.links.append(near)
        far.protocol.connection_made(far)
        near.protocol.connection_made(near)
        return near, near.protocol


class MemoryTransport(asyncio.Transport):
    """One end of a connection in memory."""

    protocol: asyncio.Protocol
    peer: "MemoryTransport"

    def __init__(self, loop: FastLoop) -> None:
        super().__init__()
        self._loop = loop
        self._closed = False
        # The heap of timers does not keep the order of equal times, so the order is kept here.
        self._arriving: deque[bytes | None] = deque()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closed and not self._loop.black_hole:
            self._send(bytes(data))

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close behind what was written; the other end hears of it unless the net swallows it."""
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon(self.protocol.connection_lost, None)
        if not self._loop.black_hole:
            self._send(None)

    def abort(self) -> None:
        self.close()

    def _send(self, data: bytes | None) -> None:
        self.peer._arriving.append(data)
        self._loop.call_later(LATENCY, self.peer._arrive)

    def _arrive(self) -> None:
        data = self._arriving.popleft()
        if data is None:
            self.close()
        elif not self._closed:
            self.protocol.data_received(data)


def run(main: Callable[[FastLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function on a fresh loop, which it is given."""
    loop = FastLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        _cancel_rest(loop)
        loop.close()


def _cancel_rest(loop: FastLoop) -> None:
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))


async def wait_until(condition: Callable[[], object], limit: float = 60.0) -> None:
    """Let virtual time pass until something holds."""
    async with asyncio.timeout(limit):
        while not condition():  # noqa: ASYNC110 - it is about the ensemble's state
            await asyncio.sleep(0.05)
