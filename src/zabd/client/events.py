"""Events on their way to the user: callbacks in order on a task of their own, and async iterators.

Invariants
    I1  Callbacks run one at a time in the order in which the client learned of things; one that
        awaits holds up the next, never the connection.
    I2  Nothing is dropped: a backlog grows and is warned about, since a listener that misses LOST
        is worse than one that hears of it late. Only a client that is being closed gives up, after
        `DRAIN_GRACE`, on a callback that does not return.
    I3  Whatever a callback raises is its own failure, and goes to the log.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from zabd.client.effects import SessionState
from zabd.model.errors import LocalProtocolError
from zabd.model.ids import SessionId
from zabd.model.watch_events import WatchEvent

log = logging.getLogger("zabd.client")

# One event is about 200 bytes: a backlog of this size holds 2 MB, and somebody should know.
BACKLOG_WARNING = 10_000
# What is still to be told when a client is closed has seconds to be heard: some callbacks tidy up.
DRAIN_GRACE = 5.0
# An iterator that nobody reads ends with an error at this length rather than with the process.
STREAM_LENGTH_MAX = 100_000

T = TypeVar("T")


class StateChange(NamedTuple):
    """The session's new state, the session it is about, and why."""

    state: SessionState
    session_id: SessionId
    reason: str


Watcher: TypeAlias = Callable[[WatchEvent], object]
Listener: TypeAlias = Callable[[StateChange], object]


class EventStream(Generic[T]):
    """An async iterator of events, usable wherever a watcher or listener is asked for.

    ``stream = EventStream[WatchEvent]()``, ``await zk.get(path, watch=stream)``,
    ``async for event in stream``. It is fed at once, not through the callbacks' task.
    """

    def __init__(self) -> None:
        self._events: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._overflowed = False

    def __call__(self, event: T) -> None:
        """Take an event."""
        if self._closed:
            return
        if len(self._events) >= STREAM_LENGTH_MAX:
            self._overflowed = self._closed = True
        else:
            self._events.append(event)
        self._wake()

    def close(self) -> None:
        """End the iteration behind the events that are already here."""
        self._closed = True
        self._wake()

    def __aiter__(self) -> "EventStream[T]":
        return self

    async def __anext__(self) -> T:
        while not self._events:
            if self._overflowed:
                raise LocalProtocolError(
                    f"nobody read this stream for {STREAM_LENGTH_MAX} events; events are missing"
                )
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._events.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class CallbackQueue:
    """Runs callbacks in order on one task (I1)."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[[object], object], object]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._called: Callable[[object], object] | None = None
        self._warn_at = BACKLOG_WARNING

    def put(self, callback: Callable[[T], object], event: T) -> None:
        """Call back with the event, after all that was put before."""
        self._calls.append((callback, event))  # type: ignore[arg-type]
        if len(self._calls) >= self._warn_at:
            log.warning("%d events wait for slow watchers or listeners", len(self._calls))
            self._warn_at *= 2
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def drained(self) -> None:
        """Wait until what was put so far has been called back, `DRAIN_GRACE` at most (I2)."""
        task = self._task
        if task is None or task is asyncio.current_task():
            return
        _, pending = await asyncio.wait([task], timeout=DRAIN_GRACE)
        if pending:
            log.error(
                "%r has not returned %s s after the end; %d events behind it are dropped",
                self._called,
                DRAIN_GRACE,
                len(self._calls),
            )
            self.cancel()
            await asyncio.wait([task], timeout=DRAIN_GRACE)

    def cancel(self) -> None:
        """Call nobody any more."""
        self._calls.clear()
        if self._task is not None and self._task is not _current_task():
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._calls:
                self._called, event = self._calls.popleft()
                await _call(self._called, event)
        finally:
            self._task = self._called = None
            self._warn_at = BACKLOG_WARNING


async def _call(callback: Callable[[object], object], event: object) -> None:
    try:
        outcome = callback(event)
        if isawaitable(outcome):
            await _as_coroutine(outcome)
    except (Exception, asyncio.CancelledError) as error:
        # One user's callback must not keep the others from hearing; the log is where it shows.
        # Work of the user's that was cancelled raises as we do if it is us who are cancelled.
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        log.exception("the callback %r failed on %r", callback, event)


async def _as_coroutine(outcome: Awaitable[object]) -> None:
    await outcome


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs any more
        return None
