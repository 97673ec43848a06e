"""The relay alone, between two sockets of the test."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine

from zabd.testing.relay import LOOPBACK, Switchboard


def on_a_loop(claim: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    """A test that is a coroutine."""

    @functools.wraps(claim)
    def run() -> None:
        asyncio.run(claim())

    return run


class Echo(asyncio.Protocol):
    """The party behind the relay: says back what it hears, and counts who came."""

    came = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Echo.came += 1
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@contextlib.asynccontextmanager
async def relayed() -> AsyncIterator[tuple[Switchboard, int]]:
    """A relay before an echo, and the port to call."""
    Echo.came = 0
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, LOOPBACK, 0)
    switchboard = Switchboard()
    ports = await switchboard.open({"a>b": server.sockets[0].getsockname()[1]})
    try:
        yield switchboard, ports["a>b"]
    finally:
        switchboard.act("close", ["a>b"])
        server.close()


async def call(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The calling party."""
    return await asyncio.open_connection(LOOPBACK, port)


async def silent(reader: asyncio.StreamReader, seconds: float = 0.1) -> bool:
    """Whether nothing comes for a while."""
    try:
        async with asyncio.timeout(seconds):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


@on_a_loop
async def test_what_is_said_arrives() -> None:
    """Both ways, more than any buffer holds, with an end to it."""
    async with relayed() as (_, port):
        reader, writer = await call(port)
        said = bytes(range(256)) * 20_000
        writer.write(said)
        assert await reader.readexactly(len(said)) == said
        writer.close()


@on_a_loop
async def test_a_cut_holds_up_and_healing_lets_go() -> None:
    """Nothing is lost that TCP would have repeated (R1)."""
    async with relayed() as (switchboard, port):
        reader, writer = await call(port)
        writer.write(b"1")
        assert await reader.readexactly(1) == b"1"

        switchboard.act("cut", ["a>b"])
        writer.write(b"2")
        assert await silent(reader)
        switchboard.act("heal", ["a>b"])

        assert await reader.readexactly(1) == b"2"
        writer.close()


@on_a_loop
async def test_a_new_connection_reaches_nobody_while_cut() -> None:
    """It waits, as a SYN that nobody answers."""
    async with relayed() as (switchboard, port):
        switchboard.act("cut", ["a>b"])
        reader, writer = await call(port)
        writer.write(b"3")
        assert await silent(reader)
        assert Echo.came == 0

        switchboard.act("heal", ["a>b"])

        assert await reader.readexactly(1) == b"3"
        writer.close()


@on_a_loop
async def test_a_drop_ends_connections_and_takes_new_ones() -> None:
    """A reset, as of a router that forgot."""
    async with relayed() as (switchboard, port):
        reader, writer = await call(port)
        writer.write(b"4")
        await reader.readexactly(1)

        switchboard.act("drop", ["a>b"])
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

        reader, writer = await call(port)
        writer.write(b"5")
        assert await reader.readexactly(1) == b"5"
        writer.close()


@on_a_loop
async def test_who_calls_for_nobody_is_hung_up_on() -> None:
    """The party behind is down: a client must notice it, not wait."""
    switchboard = Switchboard()
    ports = await switchboard.open({"a>b": 1})  # nobody listens there
    reader, writer = await call(ports["a>b"])
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    switchboard.act("close", ["a>b"])
