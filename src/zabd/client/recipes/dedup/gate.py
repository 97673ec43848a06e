"""The gate between a function and the world: open while the key is ours, else closed.

Invariants
    I1  While the gate is closed no function that is driven takes a step; when it fails, the next
        step is a cancellation, after which the function may clean up behind itself.
    I2  The lease is compared with the clock before each step, so that after a stall no step is
        taken on the strength of a timer that has not run yet.
    I3  After a reconnect the gate opens only when the leader has confirmed the lock znode. A server
        without a quorum can confirm nothing: READ_ONLY is as SUSPENDED. What can never be confirmed
        fails: a gate that is closed opens, fails, or waits for another connection.

Dedup recipe, section 7.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any, TypeVar

from zabd.client.effects import SessionState
from zabd.client.events import StateChange
from zabd.client.recipes.dedup.errors import (
    DedupError,
    FencedError,
    LockRevokedError,
    SessionLostError,
)
from zabd.client.recipes.place import Place, PlaceGoneError
from zabd.model.errors import ClosingError, KeeperError, LocalProtocolError, SessionExpiredError

T = TypeVar("T")


class Gate:
    """Watches over one attempt; `make_error` adds key, path and session to an error."""

    def __init__(
        self,
        place: Place,
        make_error: Callable[[type[DedupError], str], DedupError],
        *,
        tell: Callable[[str], None],
        on_failure: Callable[[], None],
    ) -> None:
        self.failure: DedupError | None = None
        self.closed = not place.client.connected
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._place = place
        self._make_error = make_error
        self._tell = tell
        self._on_failure = on_failure
        self._waiters: list[asyncio.Future[None]] = []
        self._verifying: asyncio.Task[None] | None = None
        self._remove_hook = place.client.on_transition(self._on_transition)

    def check(self) -> None:
        """Raise if the key is not ours any more; the lease is compared here and now (I2)."""
        if self.failure is None and not self._place.alive:
            self.fail(self._make_error(SessionLostError, "the session is over"))
        if self.failure is not None:
            raise self.failure

    async def wait(self) -> None:
        """Wait while the gate is closed; raise if the key is not ours any more."""
        self.check()
        while self.closed:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
            self.check()

    async def wait_opened_or_failed(self) -> None:
        """Wait while the gate is closed, however that ends."""
        with suppress(DedupError):
            await self.wait()

    def fail(self, failure: DedupError) -> None:
        """End it: every step from here on is a cancellation."""
        if self.failure is None:
            self.failure = failure
            if not self.failed.done():
                self.failed.set_result(None)
            self._on_failure()
            self._wake()

    def dismiss(self) -> None:
        """Stop watching: the attempt has ended."""
        self._remove_hook()
        self._stop_verifying()
        if not self.failed.done():
            self.failed.cancel()

    def _on_transition(self, change: StateChange) -> None:
        # What was asked on another connection does not speak for this one.
        self._stop_verifying()
        if change.state in {SessionState.SUSPENDED, SessionState.READ_ONLY}:
            if not self.closed:
                self.closed = True
                self._tell("suspended")
        elif change.state is SessionState.CONNECTED and self._place.alive:
            self._verifying = self._place.client.spawn(self._verify_and_open())
        elif change.session_id == self._place.session_id:
            self.fail(self._make_error(SessionLostError, f"the session is over: {change.reason}"))

    async def _verify_and_open(self) -> None:
        try:
            await self._place.verify()
        except PlaceGoneError as error:
            self.fail(self._make_error(LockRevokedError, str(error)))
        except (SessionExpiredError, ClosingError) as error:
            self.fail(self._make_error(SessionLostError, str(error)))
        except (KeeperError, LocalProtocolError) as error:
            # Not what a server says for now: `Bound` asks again then. An ACL was changed, say.
            self.fail(self._make_error(FencedError, f"the lock cannot be confirmed: {error}"))
        else:
            if self._place.client.connected:
                self.closed = False
                self._tell("resumed")
                self._wake()

    def _stop_verifying(self) -> None:
        if self._verifying is not None:
            self._verifying.cancel()
            self._verifying = None

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


@coroutine
def drive(work: Coroutine[Any, Any, T], gate: Gate) -> Generator[Any, Any, T]:
    """Await `work`, taking each of its steps only while the gate lets it (I1)."""
    error: BaseException | None = None
    aborted = False
    try:
        while True:
            if not aborted:
                error = yield from _hold_back(gate, error)
                aborted = gate.failure is not None
            try:
                waits_for = work.send(None) if error is None else work.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                yield waits_for
                error = None
            except GeneratorExit:
                raise
            except BaseException as thrown:  # noqa: BLE001 - all of it belongs to the function
                error = thrown
    finally:
        work.close()  # nothing is left of it, unless the loop was: then it may not even have begun


def _hold_back(
    gate: Gate, error: BaseException | None
) -> Generator[Any, Any, BaseException | None]:
    """Wait until a step may be taken; return what to throw into the function, if anything."""
    while True:
        try:
            yield from gate.wait().__await__()
        except DedupError:
            return error if error is not None else asyncio.CancelledError()
        except asyncio.CancelledError as cancelled:
            # It is passed on when the gate opens or fails: until then the function takes no step,
            # not even to clean up.
            error = cancelled
        else:
            return error
