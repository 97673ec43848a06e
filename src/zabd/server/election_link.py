"""The election channel: notifications between members, each sent over its sender's own connection.

Loss, duplication and order do not matter here, so only the newest notification waits for a member
that cannot be reached, and nothing is sent to one that does not read.

Invariants
    N1  A frame is at most ELECTION_FRAME_BYTES_MAX, and only members are listened to.
    N2  A member that cannot be reached is dialled again with growing pauses, and at once when it is
        heard itself.
    N3  A connection on which no notification came has no claim to stay: it goes in time, or when
        another comes. So nobody keeps a member out by holding connections open (P22).
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final, Protocol, cast

from zabd.model.errors import RemoteProtocolError
from zabd.model.ids import MemberId
from zabd.server.config import ServerConfig
from zabd.server.logging import Trace
from zabd.server.loop import Handle, Listener, Loop
from zabd.server.names import Names
from zabd.server.peer_link import peer_name, tune
from zabd.server.zoo_cfg import Member
from zabd.zab.codec import Decoder, encode
from zabd.zab.messages import Notification

ELECTION_FRAME_BYTES_MAX: Final = 512
ELECTION_OUTPUT_BYTES_MAX: Final = 64 * 2**10
"""Some hundred notifications: a member that left these unread is not listening."""

HELLO_TIMEOUT_MS: Final = 5_000
"""How long a connection may be silent at first; a member says what it dialled for at once."""

PAUSE_MS_MIN: Final = 20
PAUSE_MS_MAX: Final = 1_000


class NotificationOwner(Protocol):
    """Who is told: the driver."""

    def notified(self, notification: Notification) -> None:
        """A member's notification came."""
        ...


class ElectionChannel:
    """Sends to every other member, listens to every other member."""

    def __init__(
        self,
        loop: Loop,
        config: ServerConfig,
        owner: NotificationOwner,
        rng: random.Random,
        trace: Trace,
        names: Names | None = None,
    ) -> None:
        self.owner = owner
        self.trace = trace
        self.silence_ms = config.tick_ms * config.sync_limit
        self._loop = loop
        self._config = config
        self._listener: Listener | None = None
        self._names = Names(loop, patience_ms=config.tick_ms // 8) if names is None else names
        self._senders = {
            member.id: _Sender(loop, self._names, member, config.tick_ms, rng, self.silence_ms)
            for member in config.members
            if member.id != config.member_id
        }
        self._receivers: dict[int, _Receiver] = {}
        self._receivers_max = 16 + 8 * len(self._senders)
        self._next_receiver = 0

    async def listen(self) -> None:
        """Accept connections of members; OSError if the port is taken."""
        me = self._config.me
        host = None if self._config.quorum_on_all_addresses else me.host
        self._listener = await self._loop.create_server(self._accepted, host, me.election_port)

    def notify(self, member: MemberId, notification: Notification) -> None:
        """Send, or let it wait until the member can be reached or a newer one replaces it."""
        self._senders[member].send(encode(notification))

    def close(self) -> None:
        """Drop everything; nothing is sent any more."""
        if self._listener is not None:
            self._listener.close()
        for sender in self._senders.values():
            sender.stop()
        self._names.close()
        for receiver in list(self._receivers.values()):
            receiver.abort()

    # What receivers ask for.

    def heard(self, notification: Notification) -> bool:
        """Take a notification; False if it is from none of the other members (N1)."""
        sender = self._senders.get(notification.sender)
        if sender is None:
            return False
        sender.is_up()
        self.owner.notified(notification)
        return True

    def opened(self, receiver: "_Receiver") -> None:
        """Take one more, in the place of another if there are too many (N3).

        A member needs one and leaves a few; of those that were heard the oldest was left longest.
        """
        open_ones = [other for other in self._receivers.values() if not other.is_over]
        self._receivers[receiver.number] = receiver
        if len(open_ones) >= self._receivers_max:
            silent = (other for other in open_ones if not other.heard)
            next(silent, open_ones[0]).drop(f"there are {len(open_ones)} others")

    def after(self, delay_ms: int, callback: Callable[..., object], *args: object) -> Handle:
        """A timer."""
        return self._loop.call_at(self._loop.time() + delay_ms / 1000, callback, *args)

    def lost(self, receiver: "_Receiver") -> None:
        """A connection is gone."""
        self._receivers.pop(receiver.number, None)

    def _accepted(self) -> "_Receiver":
        self._next_receiver += 1
        return _Receiver(self, self._next_receiver)


class _Receiver(asyncio.Protocol):
    """The end that listens; it never writes."""

    def __init__(self, channel: ElectionChannel, number: int) -> None:
        self.number = number
        self._channel = channel
        self._decoder = Decoder(limit=ELECTION_FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._timer: Handle | None = None  # until it is heard
        self.heard = False

    @property
    def is_over(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport = transport
        tune(transport, self._channel.silence_ms)
        self._timer = self._channel.after(HELLO_TIMEOUT_MS, self.drop, "it notified of nothing")
        self._channel.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return
        try:
            for message in self._decoder.feed(data):
                if not isinstance(message, Notification) or not self._channel.heard(message):
                    raise RemoteProtocolError(f"no notification of a member: {message!r:.200}")
                self.heard = True
                self._cancel_timer()
        except RemoteProtocolError as error:
            self.drop(str(error))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        self._cancel_timer()
        self._channel.lost(self)

    def drop(self, why: str) -> None:
        if self._transport is not None and not self.is_over:
            peer = peer_name(self._transport)
            fields = {"level": "warning", "peer": peer, "why": why}
            self._channel.trace("election_link_dropped", fields)
            self._transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Sender(asyncio.Protocol):
    """The connection to one member: dialled when there is something to say, kept while it lasts."""

    def __init__(
        self,
        loop: Loop,
        names: Names,
        member: Member,
        tick_ms: int,
        rng: random.Random,
        silence_ms: int,
    ) -> None:
        self._loop = loop
        self._names = names
        self._member = member
        self._dial_timeout_ms = tick_ms
        self._rng = rng
        self._silence_ms = silence_ms
        self._transport: asyncio.Transport | None = None
        self._waiting: bytes | None = None  # the newest that could not be sent
        self._dial: asyncio.Task[None] | None = None
        self._retry: Handle | None = None
        self._pause_ms = PAUSE_MS_MIN
        self._stopped = False

    def send(self, frame: bytes) -> None:
        """Send now, or once connected if nothing newer has come by then."""
        transport = self._transport
        if transport is None:
            self._waiting = frame
            self._connect()
        elif transport.is_closing():
            self._waiting = frame  # dialled again when the end is told
        elif transport.get_write_buffer_size() < ELECTION_OUTPUT_BYTES_MAX:
            transport.write(frame)

    def is_up(self) -> None:
        """The member was heard: if it is waited for, wait no longer (N2)."""
        self._pause_ms = PAUSE_MS_MIN
        if self._retry is not None:
            self._retry.cancel()
            self._again()

    def stop(self) -> None:
        """Send nothing any more."""
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        if self._dial is not None:
            self._dial.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        tune(transport, self._silence_ms)
        self._transport = transport
        self._pause_ms = PAUSE_MS_MIN
        if self._waiting is not None:
            transport.write(self._waiting)
            self._waiting = None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        self._transport = None
        if self._waiting is not None:
            self._connect()

    def _connect(self) -> None:
        if self._dial is None and self._retry is None and not self._stopped:
            self._dial = self._loop.create_task(self._dialling())

    async def _dialling(self) -> None:
        member = self._member
        try:
            async with asyncio.timeout(self._dial_timeout_ms / 1000):
                await self._names.connect(lambda: self, member.host, member.election_port)
        except OSError:  # a timeout is one of them
            if not self._stopped:
                self._try_later()
        finally:
            self._dial = None

    def _try_later(self) -> None:
        pause_ms = self._rng.uniform(0.5, 1.0) * self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, PAUSE_MS_MAX)
        self._retry = self._loop.call_at(self._loop.time() + pause_ms / 1000, self._again)

    def _again(self) -> None:
        self._retry = None
        if self._waiting is not None:
            self._connect()
