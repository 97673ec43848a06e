"""The asyncio client: every operation of the protocol on a session that looks after itself.

``async with connect("h1:2181,h2:2181/chroot") as zk: await zk.create("/a", b"1")``

Requests may be pipelined: they are sent in the order in which the methods are called, and one turn
of the loop sends what it gathered in one write. Errors say which operation on which path of which
session, and `maybe_applied` says whether a write without an answer may have happened.

Invariants
    I1  A request belongs to one session; with `session_id` it fails rather than go to another.
    I2  State changes reach `on_transition` hooks before anything that follows from them.
    I3  Reads are repeated when their connection is lost, writes never (`client.retry`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random, SystemRandom
from ssl import SSLContext
from types import TracebackType
from typing import ClassVar, Self, TypeVar

from zabd.client.chroot import Chroot
from zabd.client.clock import Clock, clock_of
from zabd.client.driver import SessionDriver
from zabd.client.effects import (
    Became,
    Credentials,
    Effect,
    Failed,
    Fired,
    Replied,
    SessionState,
)
from zabd.client.events import (
    CallbackQueue,
    EventStream,
    Listener,
    StateChange,
    Watcher,
)
from zabd.client.forks import fork_count, require_same_process
from zabd.client.hosts import HostList, parse_connect_string
from zabd.client.identity import Identity, own_identity
from zabd.client.metrics import Meter
from zabd.client.operations import UNSET, Operations, Timeout
from zabd.client.retry import RetryPolicy
from zabd.client.session import Session
from zabd.model.acl import OPEN_ACL_UNSAFE, Acl
from zabd.model.errors import LocalProtocolError, OperationTimeoutError
from zabd.model.ids import SessionId, format_session
from zabd.model.metrics import PREFIX_COMPONENTS, MemoryMetrics, Metrics, OnSpan
from zabd.model.ops import Op
from zabd.model.results import Result
from zabd.wire.digest_md5 import ClientExchange
from zabd.wire.frames import REQUEST_BYTES_MAX

log = logging.getLogger("zabd.client")

T = TypeVar("T")

# Background work pauses a second at most before it notices that its session is over.
CLOSE_GRACE = 1.5
# By then an ensemble that is there has expired a session that we could not close: the longest
# timeout it grants is a minute, as a rule, and a new leader counts from the beginning.
BURIAL_LIMIT = 600.0


class Client(Operations):
    """A client of a ZooKeeper ensemble; made by `connect`, used as an async context manager.

    `timeout` is the session timeout in seconds to ask for, `connect_timeout` how long to wait for
    the first session (by default one session timeout), `operation_timeout` how long any operation
    may take, in whatever state the connection is; None waits as long as the session lives. `auth`
    are (scheme, credentials) pairs offered on every connection, `sasl` is a user with a password,
    proved by DIGEST-MD5 before anything else. `lease_margin` is how many seconds before its
    possible expiry the session is taken for lost (by default 5 %, at least 0.1).
    `request_bytes_max` is the size of the largest request, that of the servers' jute.maxbuffer.
    `read_only` takes a server without a quorum while there is no other (state READ_ONLY),
    `ssl_context` means TLS. `metrics` is where figures go and `on_span` the hook for tracing
    (`zabd.client.metrics`); `metric_prefix` says how many components of a path are a label. A child
    process that was forked needs a client of its own.
    """

    reply_class: ClassVar[type[asyncio.Future[Result]]] = asyncio.Future
    """What a request's reply completes."""

    def __init__(
        self,
        hosts: str,
        *,
        timeout: float = 12.0,
        connect_timeout: float | None = None,
        operation_timeout: float | None = 30.0,
        auth: Sequence[tuple[str, bytes]] = (),
        sasl: tuple[str, str] | None = None,
        default_acl: tuple[Acl, ...] = OPEN_ACL_UNSAFE,
        lease_margin: float | None = None,
        retry: RetryPolicy | None = None,
        read_only: bool = False,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        ssl_context: SSLContext | None = None,
        rng: Random | None = None,
        clock: Clock | None = None,
        identity: Identity | None = None,
        metrics: Metrics | None = None,
        metric_prefix: int = PREFIX_COMPONENTS,
        on_span: OnSpan | None = None,
    ) -> None:
        super().__init__()
        self._addresses = parse_connect_string(hosts)
        if request_bytes_max <= 0:
            raise ValueError(f"request_bytes_max={request_bytes_max!r}: expected bytes above 0")
        if timeout <= 0:
            raise ValueError(f"timeout={timeout!r}: expected seconds above 0")
        if sasl is not None and [type(each) for each in sasl] != [str, str]:
            raise TypeError("sasl: expected a user and a password, both str")
        self.timeout = timeout
        self.default_acl = default_acl
        self.rng = rng or SystemRandom()
        self.retry_policy = retry or RetryPolicy()
        self._connect_timeout = timeout if connect_timeout is None else connect_timeout
        self._operation_timeout = operation_timeout
        self._lease_margin_ms = None if lease_margin is None else int(lease_margin * 1000)
        self._chroot = Chroot(self._addresses.chroot)
        self._hosts = HostList(self._addresses.hosts, self.rng)
        self._read_only = read_only
        self._request_bytes_max = request_bytes_max
        self._ssl = ssl_context
        self._forks = fork_count()
        self._clock = clock
        self._identity = identity
        self.meter = Meter(
            MemoryMetrics() if metrics is None else metrics,
            on_span=on_span,
            prefix_components=metric_prefix,
        )
        self._auth = list(auth)
        self._sasl = None if sasl is None else partial(ClientExchange, *sasl, self.rng)
        self._driver: SessionDriver | None = None
        self._state = SessionState.SUSPENDED
        self._hooks: dict[Callable[[StateChange], None], None] = {}
        self._listeners: dict[Listener, None] = {}
        self._callbacks = CallbackQueue()
        self._background: dict[asyncio.Task[object], None] = {}
        self._burials: dict[SessionDriver, asyncio.TimerHandle] = {}
        self._closed = False
        self._at_rest = False

    # Life.

    async def start(self) -> None:
        """Open a session; returns once a server has granted it.

        Raises:
            OperationTimeoutError: no server did within `connect_timeout`.
            AuthFailedError: a server does not take what was given as `auth` or `sasl`.
            SessionExpiredError: the session ended before the `auth` was answered.
        """
        if self._driver is not None or self._closed:
            raise LocalProtocolError("a client is started once; make a new one")
        self._clock = self._clock or clock_of(asyncio.get_running_loop())
        self._begin_session(last_zxid=0, identities=())
        offers: list[asyncio.Future[Result]] = []
        limit = self._connect_timeout
        try:
            offers += [self._offer(scheme, auth) for scheme, auth in self._auth]
            await self.wait_connected(timeout=limit, read_only=self._read_only)
            # What is refused shows here, rather than in each request that then lacks it.
            await asyncio.gather(*(self._await(o, None, limit, self._session) for o in offers))
        except BaseException:
            for offer in offers:
                offer.cancel()
            await self.close(timeout=0)
            raise

    async def close(self, timeout: float = 2.0) -> None:
        """End the session, and with it its ephemerals; at most `timeout` seconds are spent on that.

        Without a server in that time the session is left for the ensemble to expire. A caller that
        is cancelled leaves it so at once; whoever calls again waits for what is left.
        """
        require_same_process(self._forks)
        self._closed = True
        driver = self._driver
        if driver is None or self._at_rest:
            return
        drivers = [driver, *self._burials]
        try:
            await self._end_session(driver, timeout)
        except BaseException:
            for task in self._others():
                task.cancel()
            raise
        finally:
            driver.perform(driver.session.abandon(driver.now_ms()))
            self._ended.cancel()
            for timer in self._burials.values():
                timer.cancel()
            for each in drivers:
                each.stop()
        for each in drivers:
            await each.stopped()
        await self._end_background()
        await self._callbacks.drained()
        self._at_rest = True

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # State.

    @property
    def state(self) -> SessionState:
        """The state now, by the local lease too: never CONNECTED when the lease has run out."""
        if self._driver is None or self.check_lease():
            return self._state
        return self._driver.session.state  # inside a hook, where its end is still to be told

    @property
    def connected(self) -> bool:
        """Whether a server has the session and answers."""
        return self.state is SessionState.CONNECTED

    @property
    def closed(self) -> bool:
        """Whether `close` was called: nothing can be asked any more."""
        return self._closed

    @property
    def session_id(self) -> SessionId:
        """The current session's id, 0 before the first and between two sessions."""
        return self._session.session_id

    @property
    def credentials(self) -> Credentials | None:
        """What takes the current session over, or ends it from outside; None between sessions."""
        return self._session.credentials

    @property
    def session_timeout(self) -> float:
        """The negotiated session timeout in seconds."""
        return self._session.timeout_ms / 1000

    @property
    def last_zxid(self) -> int:
        """The last zxid that a server has shown us."""
        return self._session.last_zxid

    @property
    def chroot(self) -> str:
        """The path on the servers that is this client's root."""
        return self._chroot.path

    @property
    def server(self) -> str:
        """The server that has the session, or is being tried."""
        return str(self._driver.host) if self._driver and self._driver.host else ""

    @property
    def metrics(self) -> Metrics:
        """Where this client's figures are: a `MemoryMetrics`, unless another one was given."""
        return self.meter.metrics

    @property
    def identity(self) -> Identity:
        """The host and process this client is in, as records name them."""
        if self._identity is None:
            self._identity = own_identity()
        return self._identity

    @property
    def lease_remaining(self) -> float:
        """Seconds until the session must be taken for lost unless a server answers; 0 if it is."""
        deadline_ms = self._session.lease_deadline_ms
        if self._session.ended or deadline_ms is None:
            return 0.0
        return max(0, deadline_ms - self.now_ms()) / 1000

    def now_ms(self) -> int:
        """Boot time in milliseconds, the clock of the lease."""
        assert self._clock is not None, "the client was started"
        return self._clock.now_ms()

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for people: no decision rests on it."""
        assert self._clock is not None, "the client was started"
        return self._clock.wall_ms()

    def check_lease(self) -> bool:
        """Compare the lease with the clock; return whether the session still holds.

        Before anything that relies on the session: after a long stall this knows at once what a
        timer would only say later.
        """
        if self._driver is None:
            return False
        self._driver.perform(self._session.check_lease(self.now_ms()))
        return not self._session.ended

    async def wait_connected(
        self, *, timeout: float | None = None, read_only: bool = False
    ) -> None:
        """Wait until a server has a session of ours; one without a quorum counts if `read_only`.

        Raises:
            OperationTimeoutError: that took longer than `timeout` seconds.
            AuthFailedError: SASL has failed, which is final.
            LocalProtocolError: the client is closed.
        """
        connected = asyncio.get_running_loop().create_future()
        good = {SessionState.CONNECTED, SessionState.READ_ONLY if read_only else None}

        def notice(change: StateChange) -> None:
            if connected.done():
                return
            if change.state in good:
                connected.set_result(None)
            elif change.state is SessionState.CLOSED:
                connected.set_exception(LocalProtocolError("the client was closed"))
            elif (error := self._session.auth_error) is not None:
                connected.set_exception(error)

        remove = self.on_transition(notice)
        try:
            async with asyncio.timeout(timeout):
                if self.state not in good:
                    self._require_open()
                    if self._session.auth_error is not None:
                        raise self._session.auth_error
                    await connected
        except TimeoutError:
            hosts = ",".join(str(host) for host in self._addresses.hosts)
            raise OperationTimeoutError(
                f"no server of {hosts} took the session within {timeout} s", operation="connect"
            ) from None
        finally:
            remove()

    def on_transition(self, hook: Callable[[StateChange], None]) -> Callable[[], None]:
        """Call `hook` at once on every state change, before anything that follows from it (I2).

        For recipes: the hook must not block, and must not raise. Returns what removes it again.
        """
        self._hooks[hook] = None
        return lambda: self._hooks.pop(hook, None) and None

    def add_listener(self, listener: Listener) -> None:
        """Tell `listener`, a function, a coroutine function or an `EventStream`, of each change.

        Listeners are called in order, one at a time, on a task of their own, and may use the
        client.
        """
        self._listeners[listener] = None

    def remove_listener(self, listener: Listener) -> None:
        """Stop telling `listener`."""
        self._listeners.pop(listener, None)

    # Identities, and what recipes and other tools build on.

    def unwatch(self, path: str, watcher: Watcher) -> None:
        """Forget a watcher here; the server may still send its event, which is then dropped."""
        self._session.watches.discard_everywhere(self._chroot.to_server(path), watcher)

    async def add_auth(self, scheme: str, credentials: str | bytes) -> None:
        """Authenticate this connection and all later ones.

        Raises:
            AuthFailedError: the server does not accept them; it then closes the connection.
        """
        auth = credentials.encode() if isinstance(credentials, str) else credentials
        await self._await(self._offer(scheme, auth), None, UNSET, self._session)

    async def call(
        self,
        op: Op,
        *,
        watch: Watcher | None = None,
        session_id: SessionId | None = None,
        timeout: Timeout = UNSET,
        raw: bool = False,
    ) -> Result:
        """Send one op and return its result; paths are the user's unless `raw`.

        With `session_id` the op fails with `SessionExpiredError` if that is not the session it
        would be sent on (I1).
        """
        driver = self._require_driver()
        session = driver.session
        sent = op if raw else self._chroot.op(op)
        if session_id is not None and session_id != session.session_id:
            raise session.failures.other_session(sent, session_id)
        future = self.reply_class(loop=driver.loop)
        session.submit(sent, future, driver.now_ms(), watcher=watch)
        if session.wants_flush:
            driver.schedule_flush()
        return await self._await(future, sent, timeout, session)

    async def retry(
        self,
        operation: Callable[[], Coroutine[object, object, T]],
        *,
        idempotent: bool,
        policy: RetryPolicy | None = None,
    ) -> T:
        """Await `operation()` until it answers, by the client's `RetryPolicy` or another one."""
        chosen = policy or self.retry_policy
        return await chosen.run(operation, self.rng, idempotent=idempotent)

    def spawn(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Run `work` on a task that the client holds on to, and ends when it is closed.

        Whoever spawns it looks at its outcome; the log only keeps an error from being forgotten.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._background[task] = None
        task.add_done_callback(self._forget_task)
        return task

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send what is asked for in this block at its end, not at that of the loop's turn."""
        if self._driver is None:
            yield
            return
        with self._driver.sending():
            yield

    def require_own_process(self) -> None:
        """Raise `ForkedClientError` in a child of the process that made this client."""
        require_same_process(self._forks)

    # Inside.

    def _offer(self, scheme: str, auth: bytes) -> asyncio.Future[Result]:
        """Add credentials to the session; the future has the server's answer."""
        driver = self._require_driver()
        future: asyncio.Future[Result] = driver.loop.create_future()
        driver.session.add_auth(scheme, auth, future, driver.now_ms())
        driver.schedule_flush()
        return future

    @property
    def _session(self) -> Session:
        return self._require_driver().session

    def _require_driver(self) -> SessionDriver:
        require_same_process(self._forks)
        if self._driver is None:
            raise LocalProtocolError("the client is not started; use `async with connect(...)`")
        return self._driver

    def _require_open(self) -> None:
        if self._closed:
            raise LocalProtocolError("the client is closed")

    async def _end_session(self, driver: SessionDriver, timeout: float) -> None:
        """Close the session at the ensemble, if a server takes that in time."""
        if driver.session.ended or timeout <= 0:
            return
        driver.perform(driver.session.close(self._ended, driver.now_ms()))
        if not driver.session.ended:
            await asyncio.wait([self._ended], timeout=timeout)

    async def _end_background(self) -> None:
        """Let background work see that the session is over; what does not is cancelled."""
        if tasks := self._others():
            try:
                await asyncio.wait(tasks, timeout=CLOSE_GRACE)
            finally:
                for task in tasks:
                    task.cancel()
            await asyncio.wait(tasks)

    def _others(self) -> list[asyncio.Task[object]]:
        """The background work that does not run this."""
        own = asyncio.current_task()
        return [task for task in self._background if task is not own]

    def _begin_session(self, *, last_zxid: int, identities: Sequence[tuple[str, bytes]]) -> None:
        assert self._clock is not None
        session = Session(
            int(self.timeout * 1000),
            last_zxid=last_zxid,
            identities=identities,
            chroot=self._chroot,
            lease_margin_ms=self._lease_margin_ms,
            read_only=self._read_only,
            request_bytes_max=self._request_bytes_max,
            meter=self.meter,
            sasl=self._sasl,
        )
        self._driver = SessionDriver(session, self._hosts, self._clock, self._on_effect, self._ssl)
        self._ended = self._driver.loop.create_future()
        self._ended.add_done_callback(_look_at)
        self._driver.start()

    def _on_effect(self, effect: Effect) -> None:
        match effect:
            case Replied(token, result):
                assert isinstance(token, asyncio.Future), "tokens are ours"
                if not token.done():
                    token.set_result(result)
            case Failed(None, error):
                log.error("%s", error)
            case Failed(token, error):
                assert isinstance(token, asyncio.Future), "tokens are ours"
                if not token.done():
                    token.set_exception(error)
            case Fired(watcher, event):
                assert callable(watcher)
                moved = event._replace(path=self._chroot.to_user(event.path))
                if isinstance(watcher, EventStream):
                    watcher(moved)
                else:
                    self._callbacks.put(watcher, moved)
            case Became(state, reason):
                self._transition(state, reason)
            case _:
                raise AssertionError(f"{effect!r} is the driver's")

    def _transition(self, state: SessionState, reason: str) -> None:
        session = self._session
        self._state = state
        if state in {SessionState.CONNECTED, SessionState.READ_ONLY}:
            self.fallbacks.connected(self.server)
        change = StateChange(state, session.session_id, reason)
        log.info("session %s is %s: %s", format_session(session.session_id), state, reason)
        if state is SessionState.LOST:
            self.meter.session_lost()
        if state is SessionState.CONNECTED and session.timeout_ms != int(self.timeout * 1000):
            log.info("asked for %s s, granted %d ms", self.timeout, session.timeout_ms)
        for hook in list(self._hooks):
            hook(change)
        for listener in self._listeners:
            if isinstance(listener, EventStream):
                listener(change)
            else:
                self._callbacks.put(listener, change)
        if state is SessionState.LOST and not self._closed:
            # What the old session still has to say (its failed requests) comes first.
            asyncio.get_running_loop().call_soon(self._succeed_session, session)

    def _succeed_session(self, old: Session) -> None:
        driver = self._require_driver()
        if self._closed or driver.session is not old:
            return
        driver.stop()
        if old.auth_error is not None:
            return  # the same answer would come again and again
        if old.credentials is not None and not old.refused:
            self._bury(old.credentials)
        self._begin_session(last_zxid=old.last_zxid, identities=old.identities)

    def _bury(self, credentials: Credentials) -> None:
        """Close a session that only we have given up, so that its ephemerals go now.

        Any server will do for that, however far behind it is.
        """
        assert self._clock is not None
        session = Session(
            credentials.timeout_ms,
            credentials=credentials,
            sasl=self._sasl,
        )
        hosts = HostList(self._addresses.hosts, self.rng)

        def notice(effect: Effect) -> None:
            if isinstance(effect, Became) and effect.state in _FINAL:
                if (timer := self._burials.pop(driver, None)) is not None:
                    timer.cancel()
                driver.loop.call_soon(driver.stop)

        def give_up() -> None:
            driver.perform(session.abandon(driver.now_ms()))

        driver = SessionDriver(session, hosts, self._clock, notice, self._ssl)
        self._burials[driver] = driver.loop.call_later(BURIAL_LIMIT, give_up)
        session.close(None, driver.now_ms())
        driver.start()

    def _forget_task(self, task: asyncio.Task[T]) -> None:
        self._background.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.debug("background work failed", exc_info=task.exception())

    async def _await(
        self, future: asyncio.Future[Result], op: Op | None, timeout: Timeout, session: Session
    ) -> Result:
        limit = self._operation_timeout if timeout is UNSET else timeout
        timer = None
        if limit is not None:
            # Not asyncio.timeout: on every request, its two looks at the running loop would cost
            # as much as all the rest.
            timer = future.get_loop().call_later(limit, self._time_out, future, op, limit, session)
        try:
            return await future
        except asyncio.CancelledError:
            session.withdraw(future)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _time_out(
        self, future: asyncio.Future[Result], op: Op | None, limit: float, session: Session
    ) -> None:
        if not future.done():
            sent = not session.withdraw(future)
            future.set_exception(session.failures.timed_out(op, limit, self._state, sent=sent))


def _look_at(ended: asyncio.Future[Result]) -> None:
    """The session may have ended before it was closed, which is as good."""
    if not ended.cancelled():
        ended.exception()


_FINAL = frozenset({SessionState.LOST, SessionState.CLOSED})

connect = Client
