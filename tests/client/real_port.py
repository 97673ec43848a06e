"""The scripted servers on real ports, on a loop in a thread: for the blocking facade."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ssl import SSLContext
from typing import cast

from tests.client.fast_loop import FastLoop
from tests.client.scripted_server import Connection, ScriptedEnsemble


class _RealLoop(asyncio.SelectorEventLoop):
    """A loop that looks like `FastLoop` to the scripted servers, in real time."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: dict[tuple[str, int], Callable[[], asyncio.Protocol]] = {}

    def boot_time_ms(self) -> int:
        return round(self.time() * 1000)


class RealPort:
    """One scripted server behind a port; `call` runs something on its loop."""

    def __init__(self, loop: _RealLoop, ssl: SSLContext | None) -> None:
        self._loop = loop
        self._ssl = ssl
        self.ensemble = ScriptedEnsemble(cast("FastLoop", loop))
        self.hosts = ""

    async def open(self) -> None:
        [server] = self.ensemble.servers
        listener = await self._loop.create_server(
            lambda: Connection(self.ensemble, server), "127.0.0.1", 0, ssl=self._ssl
        )
        self._listener = listener
        host, port = listener.sockets[0].getsockname()
        self.hosts = f"{host}:{port}"

    def close(self) -> None:
        self._listener.close()

    def call(self, work: Callable[[], object]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (work(), done.set()))
        assert done.wait(5)


@contextmanager
def real_port(ssl: SSLContext | None = None) -> Iterator[RealPort]:
    """A scripted server in a thread, until the end of the block."""
    loop = _RealLoop()
    port = RealPort(loop, ssl)
    loop.run_until_complete(port.open())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        port.close()
        for server in port.ensemble.servers:
            for connection in list(server.connections):
                connection.transport.abort()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
