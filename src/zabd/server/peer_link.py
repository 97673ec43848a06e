"""Quorum links: one FIFO connection per leadership, which the learner dials and the leader accepts.

Invariants
    Q1  Frames leave a link in the order in which they were sent, or the link is dropped: nothing
        on it is ever skipped.
    Q2  Whatever a peer sends costs at most its own link.
    Q3  Nobody waits for a slow peer: its queue has a limit in bytes and in time, then it is dropped
        and catches up later from the log or a snapshot (P21).
    Q4  Who has not said that it is a learner has no claim to stay: it goes in time, or when another
        comes. So nobody keeps a learner out by holding connections open (P22).
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Protocol, cast

from zabd.model.errors import RemoteProtocolError
from zabd.model.ids import LinkId, MemberId
from zabd.server.config import ServerConfig
from zabd.server.logging import Trace
from zabd.server.loop import Handle, Listener, Loop
from zabd.server.names import Names
from zabd.zab.codec import Decoder, encode_buffers
from zabd.zab.messages import FollowerInfo, Message

PEER_OUTPUT_BYTES_MAX: Final = 64 * 2**20
"""Eight of the greatest batches: enough for a hiccup, and a leader's memory stays flat."""

LEADER_OUTPUT_BYTES_MAX: Final = 256 * 2**20
"""For a link to a leader: what this member's clients ask of it, while it stands still for less than
the sync limit. That is `throttle.OUTSTANDING_BYTES_MAX`, and a request of each connection that has
no other: some two hundred of a MiB. Dropping them would cut all clients for what is in memory all
the same, in the clients' lines."""

PEER_HIGH_WATER_BYTES: Final = 2**20
"""Above this a stream from the disk waits until the peer has taken some."""

HELLO_BYTES_MAX: Final = 1_024
"""What an accepted link may say before it has said who calls; that needs a tenth of this."""

HELLO_TIMEOUT_MS: Final = 5_000
STRANGERS_MAX: Final = 64
"""Accepted links that have not yet said who they are; a member needs one of them at a time."""

CLOSE_TIMEOUT_MS: Final = 2_000
"""How long a link that was hung up may take to deliver what was sent before."""


class LinkOwner(Protocol):
    """Who is told about links: the driver. Nothing here calls it from within its own call."""

    def dialled(self, link: LinkId, member: MemberId) -> None:
        """A dial has succeeded."""
        ...

    def dial_failed(self, member: MemberId) -> None:
        """A dial has not."""
        ...

    def link_received(self, link: "PeerLink", messages: list[Message]) -> None:
        """Whole messages came."""
        ...

    def link_lost(self, link: "PeerLink") -> None:
        """The connection is gone, by whatever cause; the last that is heard of it."""
        ...


class PeerLink(asyncio.Protocol):
    """One end of a quorum connection."""

    def __init__(self, channel: "QuorumChannel", link: LinkId, member: MemberId | None) -> None:
        self.id = link
        self.member = member  # who was dialled; None for an accepted link
        self.introduced = member is not None
        self.closed = False
        self._output_bytes_max = (
            PEER_OUTPUT_BYTES_MAX if member is None else LEADER_OUTPUT_BYTES_MAX
        )
        self._channel = channel
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._writable = True
        self._left_bytes = 0  # while not writable: untaken by now if nothing was since last asked
        self._when_writable: Callable[[], None] | None = None
        self._timer: Handle | None = None  # of the hello, then of a stalled peer, then of the close

    # What the transport says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; an accepted link has to say soon who it is."""
        transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport = transport
        transport.set_write_buffer_limits(high=PEER_HIGH_WATER_BYTES)
        tune(transport, self._channel.silence_ms)
        self._channel.opened(self)
        if not self.introduced:
            self._drop_after(HELLO_TIMEOUT_MS, "it did not say who it is")

    def data_received(self, data: bytes) -> None:
        """Hand on the messages that are whole now."""
        if self.closed:
            return
        try:
            messages = self._decoder.feed(data)
        except RemoteProtocolError as error:
            self.drop(str(error))
            return
        if not self.introduced and not self._is_introduced_by(messages):
            return
        if messages:
            self._channel.owner.link_received(self, messages)

    def pause_writing(self) -> None:
        """The peer takes less than it is sent; it may do so for a while."""
        self._writable = False
        self._look_again()

    def resume_writing(self) -> None:
        """The peer has taken what was waiting."""
        self._writable = True
        if not self.closed:  # the time that a close may take is running
            self._cancel_timer()
        callback, self._when_writable = self._when_writable, None
        if callback is not None:
            callback()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever wanted it."""
        self._cancel_timer()
        self.closed = True
        self._when_writable = None
        self._out.clear()
        self._channel.lost(self, exc)

    def _is_introduced_by(self, messages: list[Message]) -> bool:
        """Whether an accepted link has now said who calls; a stranger that says more is dropped."""
        if messages and isinstance(messages[0], FollowerInfo):
            self.introduced = True
            self._cancel_timer()
        elif messages or self._decoder.pending_bytes > HELLO_BYTES_MAX:
            self.drop("its first frame is no introduction")
        return self.introduced

    # What the owner asks for.

    def send(self, *buffers: bytes) -> None:
        """Queue one frame, in one piece or several; it leaves with the next `flush`."""
        if self.closed or self._transport is None:
            return
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        if self._out_bytes + self._transport.get_write_buffer_size() > self._output_bytes_max:
            self.drop(f"it has not taken the {self._output_bytes_max} bytes before this")

    def flush(self) -> None:
        """Everything queued, in one write; uvloop hands the pieces to the kernel uncopied."""
        out = self._out
        if not out or self._transport is None or self.closed or self._transport.is_closing():
            return  # if it is closing, the news of that is on its way
        if not self._writable:
            self._left_bytes += self._out_bytes
        self._transport.writelines(out)
        out.clear()
        self._out_bytes = 0

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call back once the peer has room for more; at once if it has. Never after the end."""
        if self._writable and not self.closed:
            callback()
        elif not self.closed:
            self._when_writable = callback

    def pause_reading(self) -> None:
        """Take no more from the peer for now; harmless when repeated."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take again what the peer sends; harmless when repeated."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def hang_up(self) -> None:
        """Deliver what was sent, if the peer takes it soon, and close."""
        if self.closed or self._transport is None:
            return
        self.flush()
        self.closed = True
        self._transport.close()
        self._cancel_timer()
        self._timer = self._channel.after(CLOSE_TIMEOUT_MS, self._transport.abort)

    def drop(self, reason: str) -> None:
        """Close at once; what was queued is lost with the link (Q1)."""
        if self.closed or self._transport is None:
            return
        peer = peer_name(self._transport)
        fields = {"level": "warning", "link": self.id, "peer": peer, "why": reason}
        self._channel.trace("link_dropped", fields)
        self.abort()

    def abort(self) -> None:
        """Close at once, for no fault of the peer."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _look_again(self) -> None:
        assert self._transport is not None, "a link that was written to is connected"
        self._left_bytes = self._transport.get_write_buffer_size()
        self._cancel_timer()
        self._timer = self._channel.after(self._channel.silence_ms, self._look_if_taken)

    def _look_if_taken(self) -> None:
        """Who keeps up with a busy leader never empties the queue: only who takes nothing goes."""
        assert self._transport is not None, "a link that was written to is connected"
        if self._transport.get_write_buffer_size() < self._left_bytes:
            self._look_again()
        else:
            self.drop("it took nothing for the whole sync limit")

    def _drop_after(self, delay_ms: int, reason: str) -> None:
        self._cancel_timer()
        self._timer = self._channel.after(delay_ms, self.drop, reason)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class QuorumChannel:
    """All quorum links of a member: it listens, dials, and finds a link by its number."""

    def __init__(self, loop: Loop, config: ServerConfig, owner: LinkOwner, trace: Trace) -> None:
        self.owner = owner
        self.trace = trace
        self.silence_ms = config.tick_ms * config.sync_limit
        self._dial_timeout_ms = max(config.tick_ms // 2, 1)
        self.names = Names(loop, patience_ms=config.tick_ms // 8)
        self._loop = loop
        self._config = config
        self._members = {member.id: member for member in config.members}
        self._listener: Listener | None = None
        self._links: dict[LinkId, PeerLink] = {}
        self._dials: dict[MemberId, asyncio.Task[None]] = {}
        self._next_link = 1
        self._encoded: tuple[Message, tuple[bytes, ...]] | None = None

    async def listen(self) -> None:
        """Accept learners; OSError if the port is taken."""
        me = self._config.me
        host = None if self._config.quorum_on_all_addresses else me.host
        self._listener = await self._loop.create_server(self._accepted, host, me.quorum_port)

    def close(self) -> None:
        """Stop listening, and drop every link so that peers notice at once."""
        if self._listener is not None:
            self._listener.close()
        for task in self._dials.values():
            task.cancel()
        self.names.close()
        for link in list(self._links.values()):
            link.abort()

    # What effects ask for.

    def dial(self, member: MemberId) -> None:
        """Connect to a member's quorum port; ends in `dialled` or `dial_failed` within a tick."""
        if member in self._dials:  # the answer to that one is the answer to this one
            return
        self._dials[member] = self._loop.create_task(self._dial(member))

    def send(self, link_id: LinkId, message: Message) -> None:
        """Queue a message; one that goes to several links is encoded once."""
        link = self._links.get(link_id)
        if link is None:
            return
        if self._encoded is None or self._encoded[0] is not message:
            self._encoded = (message, encode_buffers(message))
        link.send(*self._encoded[1])

    def hang_up(self, link_id: LinkId) -> None:
        """Close a link after what was sent on it."""
        if (link := self._links.get(link_id)) is not None:
            link.hang_up()

    def drop(self, link_id: LinkId, reason: str) -> None:
        """Close a link at once."""
        if (link := self._links.get(link_id)) is not None:
            link.drop(reason)

    def link(self, link_id: LinkId) -> PeerLink | None:
        """The link of this number, unless it is gone."""
        return self._links.get(link_id)

    def flush(self) -> None:
        """One write for each link that has something to say."""
        self._encoded = None
        for link in self._links.values():
            link.flush()

    # What links ask for.

    def after(self, delay_ms: int, callback: Callable[..., object], *args: object) -> Handle:
        """A timer."""
        return self._loop.call_at(self._loop.time() + delay_ms / 1000, callback, *args)

    def opened(self, link: PeerLink) -> None:
        """A connection is there; with one stranger too many the oldest of them goes (Q4)."""
        self._links[link.id] = link
        strangers = [o for o in self._links.values() if not o.introduced and not o.closed]
        if len(strangers) > STRANGERS_MAX:
            strangers[0].drop(f"{STRANGERS_MAX} others have not said who they are either")

    def lost(self, link: PeerLink, error: Exception | None) -> None:
        """A connection is gone."""
        del self._links[link.id]
        why = "closed" if error is None else str(error) or type(error).__name__
        self.trace("link_lost", {"link": link.id, "peer": link.member, "why": why})
        self.owner.link_lost(link)

    def _accepted(self) -> PeerLink:
        return PeerLink(self, self._take_number(), None)

    def _take_number(self) -> LinkId:
        self._next_link += 1
        return self._next_link - 1

    async def _dial(self, member_id: MemberId) -> None:
        member = self._members[member_id]
        link = PeerLink(self, self._take_number(), member_id)
        try:
            async with asyncio.timeout(self._dial_timeout_ms / 1000):
                await self.names.connect(lambda: link, member.host, member.quorum_port)
        except OSError as error:  # a timeout is one of them
            self.trace("dial_failed", {"peer": member_id, "why": str(error) or "timeout"})
            self.owner.dial_failed(member_id)
        else:
            if link.closed:
                self.owner.dial_failed(member_id)
            else:
                self.owner.dialled(link.id, member_id)
        finally:
            del self._dials[member_id]


def peer_name(transport: asyncio.BaseTransport) -> str:
    """The other end's address for a log line."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unknown"


def tune(transport: asyncio.BaseTransport, silence_ms: int) -> None:
    """Small frames leave at once, and a host that vanished is noticed by the kernel (P17).

    A simulated connection has no socket and needs none of this.
    """
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    seconds = max(silence_ms // 3000, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every system has these; where they are missing the core's own silence limits remain.
    for option, value in (
        ("TCP_KEEPIDLE", seconds),
        ("TCP_KEEPINTVL", seconds),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", silence_ms),
    ):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
