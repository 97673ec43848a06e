"""Gives a session connections and the time: the asyncio half of `client.session`.

Loop calls used: call_soon, call_at, time, create_connection, create_future, create_task.

Invariants
    I1  The old socket is aborted before a new one is opened, and what still comes from it is
        ignored: no server may hear this session on two connections because of us.
    I2  Requests submitted in one turn of the loop leave in one write.
    I3  Effects are done in the order in which the session gave them, one after the other: what
        follows from one, such as a lease that a hook has found to be over, comes behind the rest.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ssl import SSLContext
from typing import cast

from zabd.client.clock import Clock
from zabd.client.effects import Effect, Hangup, Send, SessionState
from zabd.client.hosts import Host, HostList
from zabd.client.scout import Scout, tls
from zabd.client.session import Session

log = logging.getLogger("zabd.client")

# A connection that lasted this long was a good one: the search after it starts without a pause.
STEADY_S = 1.0


class SessionDriver:
    """Keeps one session connected to some server until the session ends."""

    def __init__(
        self,
        session: Session,
        hosts: HostList,
        clock: Clock,
        tell: Callable[[Effect], None],
        ssl: SSLContext | None = None,
    ) -> None:
        self.session = session
        self.host: Host | None = None
        self._hosts = hosts
        self._clock = clock
        self._tell = tell
        self._ssl = ssl
        self._scout: asyncio.Task[None] | None = None
        self.loop = asyncio.get_running_loop()
        self._wire: _Wire | None = None
        self._timer: asyncio.Handle | None = None  # not a TimerHandle: uvloop's, when due, is none
        self._timer_at = 0.0
        self._flush_scheduled = False
        self._due: deque[Effect] = deque()
        self._doing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for a server."""
        self._task = self.loop.create_task(self._keep_connected())
        self._arm()

    def stop(self) -> None:
        """Let go of the connection and of every timer; the session is left as it is."""
        self._drop_wire()
        self._end_scout()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()

    async def stopped(self) -> None:
        """Wait until nothing of the driver runs any more; `stop` has to come first."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def now_ms(self) -> int:
        """Boot time now."""
        return self._clock.now_ms()

    def schedule_flush(self) -> None:
        """Send what the session has to say at the end of this turn (I2)."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send at the end of the block what the session has to say by then."""
        self._flush_scheduled = True  # by us
        try:
            yield
        finally:
            self._flush()

    def perform(self, effects: Iterable[Effect]) -> None:
        """Do what the session's effects say, in order."""
        self._do(effects)
        self._arm()

    def _do(self, effects: Iterable[Effect]) -> None:
        self._due.extend(effects)
        if self._doing:
            return  # whoever is at it, below us, goes on with these (I3)
        self._doing = True
        try:
            while self._due:
                effect = self._due.popleft()
                match effect:
                    case Send(data):
                        if self._wire is not None and self._wire.transport is not None:
                            self._wire.transport.write(data)
                    case Hangup(reason):
                        log.info("leaving %s: %s", self.host, reason)
                        self._drop_wire()
                    case _:
                        self._tell(effect)
        finally:
            self._doing = False

    # The search for a server.

    async def _keep_connected(self) -> None:
        while not self.session.ended:
            assert self.session.state is not SessionState.CONNECTED, "I1"
            start = self.loop.time()
            took = await self._serve_once(self._hosts.next())
            # A server that takes us only to drop us again is no better than one that does not.
            if took and self.loop.time() - start >= STEADY_S:
                self._hosts.succeeded()
                continue
            pause_ms = self._hosts.failed()
            if pause_ms and not self.session.ended:
                await asyncio.sleep(pause_ms / 1000)

    async def _serve_once(self, host: Host) -> bool:
        """Stay with one server until its connection ends; return whether it took the session."""
        self.host = host
        limit = self.session.attempt_ms(self.now_ms()) / 1000
        wire = self._wire = _Wire(self)
        try:
            async with asyncio.timeout(limit):
                await self.loop.create_connection(
                    lambda: wire, host.name, host.port, **tls(self._ssl)
                )
        except (OSError, TimeoutError, UnicodeError) as error:  # the last: a name that is none
            log.info("no connection to %s: %s", host, str(error) or "timed out")
            if wire is self._wire:
                self._drop_wire()
                self.perform(self.session.closed(self.now_ms()))
            return False
        await wire.gone
        self._end_scout()
        return wire.took

    # What the wire tells.

    def made(self, wire: "_Wire") -> None:
        """The wire is connected."""
        if wire is not self._wire or self.session.ended:
            wire.abort()
            return
        last_zxid = self.session.last_zxid
        self.perform(self.session.opened(self.now_ms()))
        if self.session.last_zxid < last_zxid:
            log.warning(
                "servers have closed each handshake for a session timeout: they may be behind zxid"
                " %#x, which was seen before, so it is not asked for any more",
                last_zxid,
            )

    def received(self, wire: "_Wire", data: bytes) -> None:
        """Bytes came."""
        if wire is self._wire:
            self.perform(self.session.receive(data, self.now_ms()))
            state = self.session.state
            wire.took = wire.took or state in {SessionState.CONNECTED, SessionState.READ_ONLY}
            if state is SessionState.READ_ONLY and self._scout is None:
                self._scout = self.loop.create_task(self._look_for_a_writable_server())

    def lost(self, wire: "_Wire", error: Exception | None) -> None:
        """The wire is gone."""
        if wire is self._wire:
            self._wire = None
            reason = f"the connection broke: {error}" if error else "the server closed it"
            log.info("%s: %s", self.host, reason)
            self.perform(self.session.closed(self.now_ms(), reason))

    def _drop_wire(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort()

    # A server that has a quorum, while we are at one that has none.

    async def _look_for_a_writable_server(self) -> None:
        scout = Scout(self.loop, self._ssl)
        host = await scout.find(self._hosts.other_than(self.host))
        self._hosts.prefer(host)
        self.perform(self.session.leave(f"{host} has a quorum", self.now_ms()))

    def _end_scout(self) -> None:
        if self._scout is not None:
            self._scout.cancel()
            self._scout = None

    # Time and output.

    def _flush(self) -> None:
        self._flush_scheduled = False
        # What we say only puts the deadline off, and a timer may be early.
        self._do(self.session.flush(self.now_ms()))

    def _arm(self) -> None:
        """See to it that `elapsed` is called in time; a timer that is early is left to be early."""
        deadline_ms = self.session.deadline_ms
        if deadline_ms is None:
            if self._timer is not None and self.session.ended:
                self._timer.cancel()
                self._timer = None
            return
        when = self.loop.time() + max(0, deadline_ms - self.now_ms()) / 1000
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self.loop.call_at(when, self._elapsed)

    def _elapsed(self) -> None:
        late_s = self.loop.time() - self._timer_at
        self._timer = None
        if late_s * 3000 > self.session.timeout_ms:
            log.warning(
                "the event loop was held up for %.1f s; the session timeout is %d ms, so"
                " work that blocks belongs in a thread",
                late_s,
                self.session.timeout_ms,
            )
            self.session.lagged(late_s * 1000)
        self.perform(self.session.elapsed(self.now_ms()))


class _Wire(asyncio.Protocol):
    """One TCP connection of the driver's."""

    def __init__(self, driver: SessionDriver) -> None:
        self.transport: asyncio.Transport | None = None
        self.took = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._driver = driver

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._driver.made(self)

    def data_received(self, data: bytes) -> None:
        self._driver.received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._driver.lost(self, exc)

    def abort(self) -> None:
        """Close without sending what is buffered, at once."""
        if self.transport is not None:
            self.transport.abort()
        self._end()

    def _end(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
