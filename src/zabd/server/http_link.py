"""Pages over HTTP: a few of them, for programs that look at a member from outside.

Just enough of HTTP/1.1 for a scraper, on the member's own loop: GET and HEAD, no body, one request
at a time. Everything a peer may do is bounded, in bytes and in time, since a member must not care
who asks it for a page.

Invariants
    H1  Whoever has connected has sent a whole request within REQUEST_MS, or is sent away.
    H2  Whoever does not take its page within ANSWER_MS is cut; so is one whose page is not ready.
    H3  A page is made while its connection reads nothing: there is one page under way for each,
        and CONNECTIONS_MAX of them.
    H4  An answer before a close is delivered: what the peer still sends is taken and forgotten.

RFC 9110 and RFC 9112.
"""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias, cast

from zabd.server.logging import Trace
from zabd.server.loop import Handle, Listener, Loop

REQUEST_BYTES_MAX: Final = 8 * 2**10
"""A request line with its headers; a scraper sends 300 bytes."""

REQUEST_MS: Final = 10_000
"""For a whole request; between two of them the connection may be idle for IDLE_MS."""

IDLE_MS: Final = 300_000
"""A scraper that comes every few minutes keeps its connection."""

ANSWER_MS: Final = 10_000
"""As long as a scraper waits, unless it is told otherwise."""

LINGER_MS: Final = 1_000
"""How long a peer may take to notice the end of its connection."""

CONNECTIONS_MAX: Final = 32
"""A few scrapers and a few people; one more is told that there are too many."""

_TEXT: Final = "text/plain; charset=utf-8"
_METHODS: Final = frozenset({b"GET", b"HEAD"})
_VERSIONS: Final = frozenset({b"HTTP/1.0", b"HTTP/1.1"})


class Page(NamedTuple):
    """What is shown."""

    media_type: str
    body: bytes


MakePage: TypeAlias = Callable[[Callable[[Page], None]], None]
"""Makes a page, now or over some turns of the loop, and hands it to whoever asked."""


class _Refusal(NamedTuple):
    status: HTTPStatus
    why: str
    headers: str = ""


class _Request(NamedTuple):
    path: str
    head_only: bool
    keep_alive: bool


class HttpLink(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_answering",
        "_buffer",
        "_channel",
        "_heard_all",
        "_over",
        "_timer",
        "_transport",
    )

    def __init__(self, channel: "HttpChannel") -> None:
        self._channel = channel
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answering = False
        self._heard_all = False
        self._over = False  # the last answer was given
        self._timer: Handle | None = None

    # What the transport says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request, unless there are too many connections."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport.set_write_buffer_limits(high=0)  # so that we hear when a page was taken
        if self._channel.opened(self):
            self._limit_time(REQUEST_MS, self._too_slow)
        else:
            self._refuse(
                _Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{CONNECTIONS_MAX} are connected already")
            )

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; behind the last answer nothing matters any more (H4)."""
        if self._over:
            return
        if not self._buffer and not self._answering:
            self._limit_time(REQUEST_MS, self._too_slow)
        self._buffer += data
        self._go_on()

    def eof_received(self) -> bool:
        """The peer has said all it had to say; an answer that is under way still leaves."""
        self._heard_all = True
        return self._answering and not self._over

    def pause_writing(self) -> None:
        """The answer is on its way; `_limit_time` was called with it."""

    def resume_writing(self) -> None:
        """The answer was taken."""
        if not self._over and not self._answering:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        """The end, whoever wanted it."""
        self._cancel_timer()
        self._over = True
        self._transport = None
        self._channel.lost(self)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # Requests.

    def _go_on(self) -> None:
        """Answer the next request, once it is whole."""
        while not self._answering and not self._over:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > REQUEST_BYTES_MAX:
                    self._refuse_size()
                return
            if end > REQUEST_BYTES_MAX:
                self._refuse_size()
                return
            head = bytes(self._buffer[:end])
            del self._buffer[: end + 4]
            self._begin(_parse(head))

    def _begin(self, request: _Request | _Refusal) -> None:
        if isinstance(request, _Refusal):
            self._refuse(request)
            return
        make = self._channel.pages.get(request.path)
        if make is None:
            known = ", ".join(self._channel.pages)
            self._refuse(_Refusal(HTTPStatus.NOT_FOUND, f"there is {known}"), request)
            return
        self._answering = True
        assert self._transport is not None
        self._transport.pause_reading()
        self._limit_time(ANSWER_MS, self.abort)
        make(lambda page: self._answer(page, request))

    def _answer(self, page: Page, request: _Request) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # nobody waits for it any more
        self._answering = False
        self._write(HTTPStatus.OK, page, request)
        if not self._over:
            transport.resume_reading()
            self._channel.soon(self._go_on)  # what was pipelined, but not from within the page

    def _await_request(self) -> None:
        self._limit_time(REQUEST_MS if self._buffer else IDLE_MS, self._too_slow)

    # Answers.

    def _refuse_size(self) -> None:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self._refuse(_Refusal(status, f"a request has {REQUEST_BYTES_MAX} bytes at most"))

    def _refuse(self, refusal: _Refusal, request: _Request | None = None) -> None:
        """Say why not; only behind a request that was understood is there another one."""
        body = f"{refusal.status} {refusal.status.phrase}: {refusal.why}\n".encode()
        self._write(refusal.status, Page(_TEXT, body), request, refusal.headers)

    def _write(
        self, status: HTTPStatus, page: Page, request: _Request | None, headers: str = ""
    ) -> None:
        transport = self._transport
        assert transport is not None
        keep_alive = request is not None and request.keep_alive and not self._heard_all
        head = (
            f"HTTP/1.1 {status} {status.phrase}\r\n"
            f"Content-Type: {page.media_type}\r\n"
            f"Content-Length: {len(page.body)}\r\n"
            f"Connection: {'keep-alive' if keep_alive else 'close'}\r\n"
            f"{headers}\r\n"
        ).encode("ascii")
        self._limit_time(ANSWER_MS, self.abort)
        head_only = request is not None and request.head_only
        transport.write(head if head_only else head + page.body)
        if not keep_alive:
            self._finish()
        elif not transport.get_write_buffer_size():
            self._await_request()

    def _finish(self) -> None:
        """Close behind the answer (H4)."""
        transport = self._transport
        assert transport is not None
        self._over = True
        self._buffer.clear()
        if not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
            transport.resume_reading()
        except OSError:
            transport.abort()  # the peer is gone, and the loop has not told us yet
            return
        self._limit_time(LINGER_MS, self.abort)

    def _too_slow(self) -> None:
        """H1; one that is only idle is sent away without a word, as it would not expect one."""
        if self._buffer:
            why = f"a request takes {REQUEST_MS // 1000} s at most"
            self._refuse(_Refusal(HTTPStatus.REQUEST_TIMEOUT, why))
        else:
            self.abort()

    def _limit_time(self, delay_ms: int, callback: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer = self._channel.after(delay_ms, callback)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _parse(head: bytes) -> _Request | _Refusal:
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/"):  # noqa: PLR2004
        return _Refusal(HTTPStatus.BAD_REQUEST, "that is no request line")
    method, target, version = words
    if version not in _VERSIONS:
        return _Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.0 or HTTP/1.1")
    if method not in _METHODS:
        status = HTTPStatus.METHOD_NOT_ALLOWED
        return _Refusal(status, "pages are only read", "Allow: GET, HEAD\r\n")
    headers = _headers(lines)
    if headers is None:
        return _Refusal(HTTPStatus.BAD_REQUEST, "a header is name: value")
    if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
        return _Refusal(HTTPStatus.BAD_REQUEST, "a request for a page has no body")
    wish = headers.get(b"connection", b"").lower()
    keep_alive = wish == b"keep-alive" if version == b"HTTP/1.0" else wish != b"close"
    path = target.partition(b"?")[0].decode("ascii", "replace")
    return _Request(path, method == b"HEAD", keep_alive)


def _headers(lines: list[bytes]) -> dict[bytes, bytes] | None:
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            return None
        headers[name.lower()] = value.strip()
    return headers


class HttpChannel:
    """The connections of one port."""

    def __init__(self, loop: Loop, pages: Mapping[str, MakePage], trace: Trace) -> None:
        self.pages = pages
        self._loop = loop
        self._trace = trace
        self._listener: Listener | None = None
        self._links: dict[HttpLink, None] = {}

    async def listen(self, host: str | None, port: int) -> None:
        """Accept connections; OSError if the port is taken. 0 is any port that is free."""
        self._listener = await self._loop.create_server(lambda: HttpLink(self), host, port)

    @property
    def port(self) -> int:
        """The port that is listened on, also where the configuration left the choice open."""
        assert self._listener is not None
        return int(self._listener.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening and close every connection."""
        if self._listener is not None:
            self._listener.close()
        for link in list(self._links):
            link.abort()

    # What links ask for.

    def after(self, delay_ms: int, callback: Callable[[], None]) -> Handle:
        """A timer."""
        return self._loop.call_at(self._loop.time() + delay_ms / 1000, callback)

    def soon(self, callback: Callable[[], None]) -> None:
        """In the next turn."""
        self._loop.call_soon(callback)

    def opened(self, link: HttpLink) -> bool:
        """Whether there is room for one more; it is known, and closed, in either case."""
        self._links[link] = None
        if len(self._links) <= CONNECTIONS_MAX:
            return True
        self._trace("page_refused", {"level": "warning", "connections": len(self._links) - 1})
        return False

    def lost(self, link: HttpLink) -> None:
        """The connection is gone."""
        self._links.pop(link, None)
