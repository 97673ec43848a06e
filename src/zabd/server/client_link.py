"""Client connections: bytes in, bytes out, and the limits that keep one client from the others.

Invariants
    K1  What is written to a connection leaves in order, at most one `write` per turn of the loop.
    K2  A client that does not read is not read either, so it cannot make its queue grow; what grows
        all the same, its watch events, is bounded in bytes and in time (P18, P20).
    K3  An answer before a close is delivered: the end that is being closed still takes and forgets
        what the client sends, since a kernel that has unread bytes would reset the connection.
    K4  Whoever ends a connection, the client may take what it is owed only as long as it takes some
        of it all the time: one that takes nothing for LINGER_MS is gone.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from zabd.model.ids import ConnectionId
from zabd.server.config import ServerConfig
from zabd.server.logging import Trace
from zabd.server.loop import Handle, Listener, Loop
from zabd.server.peer_link import peer_name

OUTPUT_BYTES_MAX: Final = 16 * 2**20
"""Sixteen of the largest replies, or 200,000 watch events, that a client left unread."""

OUTPUT_HIGH_WATER_BYTES: Final = 256 * 2**10
"""Above this the client is not read until it has taken what it asked for."""

ENDED_MAX: Final = 256
"""Connections that their clients have ended, closed in one turn: 4 ms. Ten thousand that end at
once would stop the member for 110 ms."""

LINGER_MS: Final = 1_000
"""How long a client may take to notice the end of its connection."""


class ClientOwner(Protocol):
    """Who is told: the driver."""

    def client_opened(self, connection: ConnectionId, address: str) -> bool:
        """A client connected from this address; False sends it away."""
        ...

    def client_received(self, connection: ConnectionId, data: bytes) -> None:
        """Bytes came."""
        ...

    def client_closed(self, connection: ConnectionId) -> None:
        """The connection is gone; not called for one that was sent away or finished."""
        ...


class ClientLink(asyncio.Protocol):
    """One client connection."""

    __slots__ = (
        "_channel",
        "_held",
        "_leaving",
        "_left_bytes",
        "_over",
        "_stuffed",
        "_timer",
        "_transport",
        "_when_writable",
        "address",
        "host",
        "id",
        "timeout_ms",
    )

    def __init__(self, channel: "ClientChannel", connection: ConnectionId) -> None:
        self.id = connection
        self.host = ""
        self.address = ""  # host:port, for people
        self.timeout_ms = channel.timeout_ms_max  # how long the client may leave output unread
        self._channel = channel
        self._transport: asyncio.Transport | None = None
        self._over = False  # the owner has nothing to do with it any more
        self._leaving = False  # it is being closed, once the client has taken what it is owed (K4)
        self._held = False  # not read, since the owner says so
        self._stuffed = False  # not read, since it does not read
        self._when_writable: Callable[[], None] | None = None
        self._left_bytes = (
            0  # stuffed or leaving: unread by now if nothing was read since last asked
        )
        self._timer: Handle | None = None

    # What the transport says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many already."""
        transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport = transport
        self.address = peer_name(transport)
        self.host = self.address.rpartition(":")[0]
        transport.set_write_buffer_limits(high=OUTPUT_HIGH_WATER_BYTES)
        if not self._channel.opened(self):
            self._over = True
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Hand on what came; nothing is taken apart here."""
        if not self._over:
            self._channel.owner.client_received(self.id, data)

    def eof_received(self) -> bool:
        """The client has said all it had to say; what it is owed in this turn still leaves.

        `echo stat | nc` half-closes behind the word, and both may come in one turn.
        """
        if self._over:
            return False
        self._channel.ended(self)
        return True

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        self._stuffed = True
        self._read_or_not()
        if not self._leaving:
            self._left_bytes = self.queued_bytes
            self._limit_time(self.timeout_ms)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._stuffed = False
        self._read_or_not()
        if not self._leaving:
            self._cancel_timer()
        callback, self._when_writable = self._when_writable, None
        if callback is not None:
            callback()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        """The end, whoever wanted it."""
        self._cancel_timer()
        was_over, self._over = self._over, True
        self._when_writable = None
        self._channel.lost(self)
        if not was_over:
            self._channel.owner.client_closed(self.id)

    # What the owner asks for.

    def write(self, data: bytes) -> None:
        """Send; the caller gathers what belongs to one turn (K1)."""
        transport = self._transport
        if self._over or transport is None or transport.is_closing():
            return  # the news that it is closing is on its way
        if self._stuffed:
            self._left_bytes += len(data)
        transport.write(data)
        # Asked only where the transport has said that a part of the limit is there already.
        if self._stuffed and transport.get_write_buffer_size() > OUTPUT_BYTES_MAX:
            self.drop(f"it left {OUTPUT_BYTES_MAX} bytes unread")

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call back once the client has taken what it was sent; at once if it has."""
        if not self._stuffed:
            callback()
        else:
            self._when_writable = callback

    def hold(self) -> None:
        """Read no more until `release`."""
        self._held = True
        self._read_or_not()

    def release(self) -> None:
        """Read again."""
        self._held = False
        self._read_or_not()

    def finish(self) -> None:
        """Close after what was written (K3); the owner hears no more of it."""
        transport = self._transport
        if self._over or transport is None:
            return
        self._over = True
        if transport.is_closing():
            return  # `close` has set a limit, and what was aborted needs none
        self._leave()
        if not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:
            transport.abort()  # the client is gone, and the loop has not told us yet
            return
        self._read_or_not()  # to forget it, and to see the client's own end

    def drop(self, reason: str) -> None:
        """Close at once; the owner hears of it through `client_closed`."""
        if self._transport is not None and not self._transport.is_closing():
            self._channel.trace("client_dropped", {"client": self.address, "why": reason})
            self._transport.abort()

    def close(self) -> None:
        """Close after what was written; the owner hears of it through `client_closed`."""
        transport = self._transport
        if self._over or transport is None or transport.is_closing():
            return
        self._leave()
        transport.close()

    def abort(self) -> None:
        """Close at once, for no fault of the client."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def queued_bytes(self) -> int:
        """What the client has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def reading(self) -> bool:
        """Whether the client is being read."""
        return not (self._held or self._stuffed)

    def _read_or_not(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._over or self.reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _leave(self) -> None:
        self._leaving = True
        self._left_bytes = self.queued_bytes + 1
        self._limit_time(LINGER_MS)

    def _limit_time(self, delay_ms: int) -> None:
        self._cancel_timer()
        self._timer = self._channel.after(delay_ms, self._too_late)

    def _too_late(self) -> None:
        assert self._transport is not None
        left, self._left_bytes = self._left_bytes, self.queued_bytes
        if 0 < self._left_bytes < left:  # it is slow, and still reading
            self._limit_time(LINGER_MS if self._leaving else self.timeout_ms)
        elif self._leaving:
            self._transport.abort()
        else:
            self.drop("it read nothing for as long as its session may be silent")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ClientChannel:
    """All client connections of a member: it listens, counts, and finds one by its number."""

    def __init__(self, loop: Loop, config: ServerConfig, owner: ClientOwner, trace: Trace) -> None:
        self.owner = owner
        self.trace = trace
        self.timeout_ms_max = config.session_timeout_ms_max
        self._loop = loop
        self._config = config
        self._listener: Listener | None = None
        self._links: dict[ConnectionId, ClientLink] = {}
        self._per_host: dict[str, int] = {}
        self._ending: deque[ClientLink] = deque()  # ended by their clients, to be closed
        self._ripe = 0  # so many of them owe nothing of this turn
        self._next = 1

    async def listen(self) -> None:
        """Accept clients; OSError if the port is taken."""
        self._listener = await self._loop.create_server(
            self._accepted,
            self._config.client_host,
            self._config.client_port,
            backlog=self._config.backlog,
        )

    @property
    def port(self) -> int:
        """The port that is listened on, also where the configuration left the choice open."""
        assert self._listener is not None
        return int(self._listener.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening and close every connection."""
        if self._listener is not None:
            self._listener.close()
        for link in list(self._links.values()):
            link.abort()

    def link(self, connection: ConnectionId) -> ClientLink | None:
        """The connection of this number, unless it is gone."""
        return self._links.get(connection)

    def links(self) -> list[ClientLink]:
        """Every connection, in the order in which they came."""
        return list(self._links.values())

    def __len__(self) -> int:
        return len(self._links)

    # What links ask for.

    def after(self, delay_ms: int, callback: Callable[[], None]) -> Handle:
        """A timer."""
        return self._loop.call_at(self._loop.time() + delay_ms / 1000, callback)

    def ended(self, link: ClientLink) -> None:
        """Close it, behind the turn that is already due."""
        if not self._ending:
            self._loop.call_soon(self._close_some)
        self._ending.append(link)

    def _close_some(self) -> None:
        for _ in range(min(self._ripe, ENDED_MAX)):
            self._ending.popleft().close()
        # Of what came since the last look, a turn that is behind this one may be to answer.
        self._ripe = len(self._ending)
        if self._ending:
            self._loop.call_soon(self._close_some)

    def opened(self, link: ClientLink) -> bool:
        """Take the connection, unless its address or the member has too many (P16)."""
        per_host, in_all = self._config.connections_per_address_max, self._config.connections_max
        here = self._per_host.get(link.host, 0)
        if (per_host and here >= per_host) or (in_all and len(self._links) >= in_all):
            why = f"there are {here} connections of its address, {len(self._links)} in all"
            self.trace("client_refused", {"level": "warning", "client": link.address, "why": why})
            return False
        self._links[link.id] = link
        self._per_host[link.host] = here + 1
        if self.owner.client_opened(link.id, link.address):
            return True
        self.lost(link)
        return False

    def lost(self, link: ClientLink) -> None:
        """The connection is gone."""
        if self._links.pop(link.id, None) is None:
            return
        self._per_host[link.host] -= 1
        if not self._per_host[link.host]:
            del self._per_host[link.host]

    def _accepted(self) -> ClientLink:
        self._next += 1
        return ClientLink(self, self._next - 1)
