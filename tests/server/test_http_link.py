"""Claims about the small HTTP server that shows a member's pages."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.server.helpers import Trail, run, until

from zabd.server import http_link
from zabd.server.http_link import HttpChannel, Page

GET = b"GET /metrics HTTP/1.1\r\nHost: zk\r\n\r\n"
GET_AND_CLOSE = b"GET /metrics HTTP/1.1\r\nHost: zk\r\nConnection: close\r\n\r\n"


class Site:
    """A channel with one page, and connections to it."""

    def __init__(self, body: bytes = b"zk_up 1\n") -> None:
        self.body = body
        self.held: list[Callable[[Page], None]] | None = None
        self.trail = Trail()
        loop = asyncio.get_running_loop()
        self.channel = HttpChannel(loop, {"/metrics": self._make}, self.trail)

    def _make(self, done: Callable[[Page], None]) -> None:
        if self.held is None:
            done(Page("text/plain", self.body))
        else:
            self.held.append(done)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.channel.port)  # noqa: TID251

    async def ask(self, *parts: bytes) -> bytes:
        """Send, and read to the end."""
        reader, writer = await self.connect()
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.001)
        answer = await reader.read()
        writer.close()
        return answer


@asynccontextmanager
async def site(body: bytes = b"zk_up 1\n") -> AsyncIterator[Site]:
    """Listening, and closed at the end."""
    it = Site(body)
    await it.channel.listen("127.0.0.1", 0)
    try:
        yield it
    finally:
        it.channel.close()
        await until(lambda: not it.channel._links)
        await asyncio.sleep(0.001)


def test_a_page_is_shown_however_the_request_arrives() -> None:
    """Whole, in pieces, with a query, or by its head alone."""

    async def scenario() -> None:
        async with site() as it:
            for parts in ([GET_AND_CLOSE], [GET_AND_CLOSE[:9], GET_AND_CLOSE[9:]]):
                head, _, body = (await it.ask(*parts)).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n")
                assert b"Content-Length: 8" in head
                assert body == b"zk_up 1\n"
            assert (await it.ask(GET_AND_CLOSE.replace(b"metrics ", b"metrics?a=b "))).startswith(
                b"HTTP/1.1 200"
            )
            head, _, body = (await it.ask(GET_AND_CLOSE.replace(b"GET", b"HEAD"))).partition(
                b"\r\n\r\n"
            )
            assert b"Content-Length: 8" in head
            assert body == b""
            assert (await it.ask(b"GET /metrics HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")

    run(scenario)


def test_a_connection_is_kept_and_what_is_pipelined_is_answered_in_order() -> None:
    """A scraper comes every few seconds; 404 in between costs it nothing."""

    async def scenario() -> None:
        async with site() as it:
            missing = GET.replace(b"metrics", b"nothing")
            answer = await it.ask(GET + missing + GET_AND_CLOSE)
            assert [part[:4] for part in answer.split(b"HTTP/1.1 ")[1:]] == [
                b"200 ",
                b"404 ",
                b"200 ",
            ]

    run(scenario)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /metrics HTTP/2.0\r\n\r\n", b"505"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\x16\x03\x01 hello tls\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"400"),
        (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nno header\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000, b"431"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9_000 + b"\r\n\r\n", b"431"),
    ],
)
def test_what_is_no_request_for_a_page_is_refused_and_ends(request_: bytes, status: bytes) -> None:
    """The answer says why, and arrives though more may be on its way (H4)."""

    async def scenario() -> None:
        async with site() as it:
            answer = await it.ask(request_)
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b"Connection: close" in answer
            if status == b"405":
                assert b"Allow: GET, HEAD" in answer

    run(scenario)


def test_a_slow_or_silent_peer_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: half a request is answered 408, nothing at all with nothing."""
    monkeypatch.setattr(http_link, "REQUEST_MS", 30)

    async def scenario() -> None:
        async with site() as it:
            assert (await it.ask(GET[:10])).startswith(b"HTTP/1.1 408")
            assert await it.ask(b"") == b""

    run(scenario)


def test_a_peer_that_does_not_take_its_page_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """H2: its memory is given back, whether it reads or the page is never ready."""
    monkeypatch.setattr(http_link, "ANSWER_MS", 50)

    async def scenario() -> None:
        async with site(body=bytes(64 * 2**20)) as it:
            _, writer = await it.connect()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(GET)
            await until(lambda: len(it.channel._links) == 1)
            await until(lambda: not it.channel._links)
            writer.transport.abort()

            it.held = []
            assert await it.ask(GET) == b""
            it.held.pop()(Page("text/plain", b"too late"))

    run(scenario)


def test_there_are_only_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more hears why, and those that are there stay."""
    monkeypatch.setattr(http_link, "CONNECTIONS_MAX", 1)

    async def scenario() -> None:
        async with site() as it:
            reader, writer = await it.connect()
            await until(lambda: len(it.channel._links) == 1)
            assert (await it.ask(b"")).startswith(b"HTTP/1.1 503")
            assert it.trail.of("page_refused")
            writer.write(GET_AND_CLOSE)
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()

    run(scenario)


def test_a_half_closed_connection_gets_its_page() -> None:
    """`printf ... | nc` has said all it had to say before the page is ready."""

    async def scenario() -> None:
        async with site() as it:
            it.held = []
            reader, writer = await it.connect()
            writer.write(GET)
            writer.write_eof()
            held = it.held
            await until(lambda: held)
            await asyncio.sleep(0.01)
            held.pop()(Page("text/plain", b"here"))
            assert (await reader.read()).endswith(b"\r\n\r\nhere")
            writer.close()

    run(scenario)
