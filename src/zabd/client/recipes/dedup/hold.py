"""Holding a key in an ``async with`` block (dedup recipe, section 12)."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from zabd.client.recipes.dedup.attempt import Attempt, Entered
from zabd.client.recipes.dedup.errors import MissingOutcomeError, NotExecuted
from zabd.client.recipes.dedup.options import Outcome
from zabd.client.recipes.dedup.records import Result
from zabd.client.recipes.dedup.request import Request
from zabd.model.errors import LocalProtocolError


class Held:
    """What a block gets: the attempt, or in `replay` the outcome that was there already."""

    def __init__(self, attempt: Attempt | None, replay: Outcome[Any] | None) -> None:
        self.replay = replay
        self._attempt = attempt

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the attempt has
        if self._attempt is None:
            raise LocalProtocolError(f"{name}: the outcome is in `replay`; there is no attempt")
        return getattr(self._attempt, name)


class Hold:
    """The context manager that `Dedup.hold` returns; to be entered once."""

    def __init__(self, request: Request, enter: Callable[[], Awaitable[Entered]]) -> None:
        self._request = request
        self._enter = enter
        self._attempt: Attempt | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._cancelling = 0

    async def __aenter__(self) -> Held:
        entered = await self._enter()
        if isinstance(entered, Result):
            return Held(None, replayed(self._request, entered))
        self._attempt = entered
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        entered.start(on_lost=self._cancel_soon)
        return Held(entered, None)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if attempt.failure is not None and not attempt.record:
            attempt.forsake()
            self._raise_failure(attempt, error)
        else:
            await finish(attempt, error, self._request)

    def _raise_failure(self, attempt: Attempt, error: BaseException | None) -> None:
        assert attempt.failure is not None
        if self._cancelled:
            assert self._task is not None
            self._cancelled = False
            if self._task.uncancel() > self._cancelling and isinstance(
                error, asyncio.CancelledError
            ):
                return  # somebody else has cancelled us as well, and that goes first
        if error is attempt.failure:
            return
        if error is None or isinstance(error, asyncio.CancelledError):
            raise attempt.failure from None
        raise attempt.failure from error

    def _cancel_soon(self) -> None:
        # Later, since the loss may be found by the block's own task, in the middle of a step.
        asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._attempt is not None and not self._attempt.ended and self._task is not None:
            self._cancelled = True
            self._task.cancel()


def replayed(request: Request, record: Result) -> Outcome[Any]:
    """The outcome that was there already; raises if it is a failure."""
    request.log.record("replayed", attempt=record.attempt)
    value = request.value_of(record)
    return Outcome(value, True, record.attempt, record.fencing_token, record)


async def finish(attempt: Attempt, error: BaseException | None, request: Request) -> None:
    """End an attempt whose block was left, if the block has not said how it ends."""
    if attempt.failure is not None and attempt.record is None:
        attempt.forsake()
        raise attempt.failure
    if attempt.ended:
        return
    if error is not None:
        await end_by(attempt, error, request)
        return
    await attempt.leave_in_doubt()
    raise request.error(MissingOutcomeError)


async def end_by(attempt: Attempt, error: BaseException, request: Request) -> None:
    """End an attempt whose function raised: by what is known, nothing happened or it may have."""
    options = request.options
    if isinstance(error, NotExecuted):
        await attempt.release()
    elif isinstance(error, options.store_exceptions):
        unfit = await attempt.record_failure(error)
        if unfit is not None:
            error.add_note(str(unfit))  # the caller hears of its own error, and of what is missing
    elif not isinstance(error, Exception):
        await attempt.leave_in_doubt("cancelled")
    elif options.error_frees_the_key:
        await attempt.release()
    else:
        await attempt.leave_in_doubt()
