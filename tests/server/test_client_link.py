"""Claims about client connections: the end that faces the world."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest
from tests.server.helpers import Trail, config_of, members, run, until

from zabd.model.ids import ConnectionId
from zabd.server import client_link
from zabd.server.client_link import ClientChannel

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Owner:
    """Answers every chunk by a function of it, in the next turn, as the driver does."""

    def __init__(self) -> None:
        self.channel: ClientChannel
        self.opened: list[str] = []
        self.received: list[bytes] = []
        self.closed: list[ConnectionId] = []
        self.respond: Callable[[ConnectionId, bytes], None] = lambda _connection, _data: None
        self.welcome = True

    def client_opened(self, connection: ConnectionId, address: str) -> bool:
        self.opened.append(address)
        return self.welcome

    def client_received(self, connection: ConnectionId, data: bytes) -> None:
        self.received.append(data)
        asyncio.get_running_loop().call_soon(self.respond, connection, data)

    def client_closed(self, connection: ConnectionId) -> None:
        self.closed.append(connection)

    def write(self, connection: ConnectionId, data: bytes, *, finish: bool = False) -> None:
        link = self.channel.link(connection)
        assert link is not None
        link.write(data)
        if finish:
            link.finish()


@asynccontextmanager
async def listening(**config: object) -> AsyncIterator[tuple[Owner, ClientChannel, Trail]]:
    """A client port with its owner."""
    owner, trail = Owner(), Trail()
    loop = asyncio.get_running_loop()
    channel = ClientChannel(loop, config_of(1, members(1), client_port=0, **config), owner, trail)
    owner.channel = channel
    await channel.listen()
    try:
        yield owner, channel, trail
    finally:
        channel.close()
        await until(lambda: not channel.links())


async def connect(channel: ClientChannel) -> Stream:
    """A client."""
    return await asyncio.open_connection("127.0.0.1", channel.port)  # noqa: TID251


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server ends the connection, in whatever way, saying nothing."""
    with suppress(ConnectionResetError):
        return await reader.read() == b""
    return True


def test_bytes_go_in_and_come_out() -> None:
    """The link takes nothing apart."""

    async def scenario() -> None:
        async with listening() as (owner, channel, _):
            owner.respond = lambda connection, data: owner.write(connection, data.upper())
            reader, writer = await connect(channel)
            writer.write(b"abc")

            assert await reader.readexactly(3) == b"ABC"
            assert len(channel) == 1
            writer.close()
            await until(lambda: owner.closed)
            assert owner.closed == [1]
            assert len(channel) == 0

    run(scenario)


@pytest.mark.parametrize("half_close", [False, True])
@pytest.mark.parametrize("size", [100, 3_000_000])
def test_a_whole_answer_reaches_whoever_asked_a_word(size: int, half_close: bool) -> None:  # noqa: FBT001
    """Some `nc` half-close behind the word, some do not; all get every byte and then the end."""

    async def scenario() -> None:
        async with listening() as (owner, channel, _):
            owner.respond = lambda c, _: owner.write(c, b"x" * size, finish=True)
            reader, writer = await connect(channel)
            writer.write(b"stat\n")
            if half_close:
                writer.write_eof()
            else:
                await writer.drain()
                writer.write(b"\n")  # may come when the answer is on its way

            assert len(await reader.read()) == size
            writer.close()
            await until(lambda: not channel.links())
            assert owner.closed == []

    run(scenario)


def test_a_client_that_keeps_its_end_open_is_closed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A finished connection may linger, but not for ever."""
    monkeypatch.setattr(client_link, "LINGER_MS", 30)

    async def scenario() -> None:
        async with listening() as (owner, channel, _):
            owner.respond = lambda c, _: owner.write(c, b"bye", finish=True)
            reader, writer = await connect(channel)
            writer.write(b"stat")
            assert await reader.read() == b"bye"

            await until(lambda: not channel.links())
            writer.close()

    run(scenario)


def test_a_client_that_ends_is_gone() -> None:
    """End of input is the end of the connection; what its last requests earned still leaves."""

    async def scenario() -> None:
        async with listening() as (owner, channel, _):
            owner.respond = owner.write
            reader, writer = await connect(channel)
            writer.write(b"last")
            writer.write_eof()

            assert await reader.read() == b"last"
            writer.close()
            await until(lambda: owner.closed)
            assert owner.closed == [1]

    run(scenario)


def test_clients_that_end_at_once_are_closed_over_many_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others are served between them, and what each had asked for last is answered."""
    monkeypatch.setattr(client_link, "ENDED_MAX", 3)

    async def scenario() -> None:
        async with listening() as (owner, channel, _):
            owner.respond = owner.write
            clients = [await connect(channel) for _ in range(20)]
            await until(lambda: len(channel) == 20)
            for _, writer in clients:
                writer.write(b"last")
                writer.write_eof()
            left = [20]
            while len(channel):
                await asyncio.sleep(0)
                left.append(len(channel))
            answers = [await reader.read() for reader, _ in clients]
            for _, writer in clients:
                writer.close()

            assert max(before - after for before, after in pairwise(left)) == 3
            assert answers == [b"last"] * 20
            assert sorted(owner.closed) == list(range(1, 21))

    run(scenario)


def test_one_address_cannot_take_all_connections() -> None:
    """The one too many is closed at once, and a place that is given up can be taken."""

    async def scenario() -> None:
        async with listening(connections_per_address_max=2) as (owner, channel, trail):
            first = await connect(channel)
            second = await connect(channel)
            third = await connect(channel)
            assert await is_closed(third[0])
            first[1].close()
            await until(lambda: owner.closed)
            fourth = await connect(channel)
            await until(lambda: len(owner.opened) == 3)

            assert len(trail.of("client_refused")) == 1
            assert len(channel) == 2
            for _, writer in (second, third, fourth):
                writer.close()

    run(scenario)


def test_no_limit_is_zero() -> None:
    """As maxClientCnxns=0 says."""

    async def scenario() -> None:
        async with listening(connections_per_address_max=0) as (_, channel, _trail):
            streams = [await connect(channel) for _ in range(70)]
            await until(lambda: len(channel) == 70)
            for _, writer in streams:
                writer.close()

    run(scenario)


def test_all_addresses_together_are_bounded_too() -> None:
    """Descriptors are shared with the peers and the disk."""

    async def scenario() -> None:
        async with listening(connections_max=1) as (_, channel, _trail):
            first = await connect(channel)
            second = await connect(channel)

            assert await is_closed(second[0])
            first[1].close()
            second[1].close()

    run(scenario)


def test_a_member_that_does_not_serve_sends_clients_away() -> None:
    """The close is how a client learns to try another member."""

    async def scenario() -> None:
        async with listening() as (owner, channel, _):
            owner.welcome = False
            reader, writer = await connect(channel)

            assert await is_closed(reader)
            assert owner.closed == []
            writer.close()

    run(scenario)


def test_a_client_that_does_not_read_is_not_read() -> None:
    """Its requests wait in its own kernel; the queue here cannot grow by its own doing (P18)."""

    async def scenario() -> None:
        async with listening() as (owner, channel, _):
            owner.respond = lambda connection, _: owner.write(connection, bytes(2**20))
            reader, writer = await connect(channel)
            requests = in_vain = 0
            while in_vain < 10:  # the kernels' buffers take some replies first, and grow
                taken = len(owner.received)
                writer.write(b"get")
                requests += 1
                await asyncio.sleep(0.001)
                in_vain = 0 if len(owner.received) > taken else in_vain + 1

            [link] = channel.links()
            assert not link.reading
            assert link.queued_bytes < 2 * 2**20
            # The answer to the last request may itself have to be read before the link is.
            while len(b"".join(owner.received)) < 3 * requests or not link.reading:
                assert await reader.read(2**20)
            writer.close()

    run(scenario)


def test_events_that_nobody_reads_cost_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber of everything that reads nothing is dropped at the limit (P20)."""
    monkeypatch.setattr(client_link, "OUTPUT_BYTES_MAX", 2**20)

    async def scenario() -> None:
        async with listening() as (owner, channel, trail):
            _, writer = await connect(channel)
            await until(channel.links)
            [link] = channel.links()
            for _ in range(100):
                link.write(bytes(2**17))

            await until(lambda: owner.closed)
            assert "unread" in str(trail.of("client_dropped")[0]["why"])
            writer.close()

    run(scenario)


def test_output_that_waits_too_long_costs_the_connection() -> None:
    """Nothing is owed to a client that reads nothing for a whole session timeout (P20)."""

    async def scenario() -> None:
        async with listening(session_timeout_ms_max=50) as (owner, channel, trail):
            _, writer = await connect(channel)
            await until(channel.links)
            channel.links()[0].write(bytes(2**23))

            await until(lambda: owner.closed)
            assert "read nothing" in str(trail.of("client_dropped")[0]["why"])
            writer.close()

    run(scenario)


def test_a_reply_may_come_when_the_end_is_on_its_way() -> None:
    """A transport is closed a turn before its protocol hears of it; loops differ in what then."""

    async def scenario() -> None:
        async with listening() as (owner, channel, _):
            for finish in (False, True):
                _, writer = await connect(channel)
                await until(channel.links)
                [link] = channel.links()
                link.abort()
                link.write(b"too late")
                if finish:
                    link.finish()
                await until(lambda: not channel.links())
                writer.close()

            assert owner.closed

    run(scenario)


def test_a_client_may_be_gone_when_the_end_is_due() -> None:
    """The kernel knows of its reset before the loop does; that must not cost the member."""

    async def scenario() -> None:
        async with listening() as (owner, channel, _):
            client = socket.create_connection(("127.0.0.1", channel.port))
            await until(channel.links)
            [link] = channel.links()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            link.finish()

            await until(lambda: not channel.links())
            assert owner.closed == []

    run(scenario)


def test_the_owner_may_hold_a_client() -> None:
    """With too many requests outstanding, those who have some in flight wait."""

    async def scenario() -> None:
        async with listening() as (owner, channel, _):
            _, writer = await connect(channel)
            await until(channel.links)
            [link] = channel.links()
            link.hold()
            writer.write(b"x")
            await asyncio.sleep(0.02)
            assert owner.received == []
            link.release()
            await until(lambda: owner.received)
            writer.close()

    run(scenario)
