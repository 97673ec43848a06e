"""Running a function under a key: its task, its deadline, and what its end means.

The function runs on a task of its own, behind the gate. When it has to stop it is cancelled and
given `abort_grace` to clean up, from when the gate lets it; the caller does not wait longer.

Dedup recipe, sections 5.6, 5.7 and 7.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from zabd.client.recipes.dedup.attempt import Attempt, Entered
from zabd.client.recipes.dedup.errors import ExecutionTimeoutError
from zabd.client.recipes.dedup.gate import drive
from zabd.client.recipes.dedup.hold import end_by, replayed
from zabd.client.recipes.dedup.options import Outcome
from zabd.client.recipes.dedup.records import Result
from zabd.client.recipes.dedup.request import Request

T = TypeVar("T")


async def execute(
    request: Request, entered: Entered, function: Callable[[Attempt], Awaitable[T]]
) -> Outcome[T]:
    """Replay the record, or run the function for the attempt."""
    if isinstance(entered, Result):
        return replayed(request, entered)
    attempt = entered
    attempt.start()
    with request.span("execute", attempt=attempt.attempt, fencing_token=attempt.fencing_token):
        value = await _run(request, attempt, function)
    await attempt.complete(value)
    assert attempt.record is not None
    return Outcome(value, False, attempt.attempt, attempt.fencing_token, attempt.record)


async def _run(
    request: Request, attempt: Attempt, function: Callable[[Attempt], Awaitable[T]]
) -> T:
    gate = attempt.driver_gate
    task = asyncio.get_running_loop().create_task(_call(function, attempt))
    try:
        await asyncio.wait(
            cast("set[asyncio.Future[Any]]", {task, gate.failed}),
            timeout=request.options.execution_timeout,
            return_when=asyncio.FIRST_COMPLETED,
        )
    except asyncio.CancelledError:
        await asyncio.shield(
            request.client.spawn(_stop(task, attempt, request, outcome="cancelled"))
        )
        raise
    if attempt.failure is not None:
        await _stop(task, attempt, request, outcome="lost")
        raise attempt.failure
    if not task.done():
        await _stop(task, attempt, request, outcome="timeout")
        raise request.error(
            ExecutionTimeoutError,
            f"the function did not end within {request.options.execution_timeout} s",
        )
    return await _value_of(task, attempt, request)


async def _call(function: Callable[[Attempt], Awaitable[T]], attempt: Attempt) -> T:
    async def work() -> T:
        return await function(attempt)

    return await drive(work(), attempt.driver_gate)


async def _value_of(task: "asyncio.Task[T]", attempt: Attempt, request: Request) -> T:
    try:
        return task.result()
    except BaseException as error:
        if attempt.failure is not None:
            attempt.forsake()
            raise attempt.failure from error
        await end_by(attempt, error, request)
        raise


async def _stop(
    task: "asyncio.Task[T]", attempt: Attempt, request: Request, *, outcome: str
) -> None:
    """Cancel the function, give it its grace, and give back only the lock, if it is still ours."""
    task.cancel()
    await attempt.driver_gate.wait_opened_or_failed()  # the lock cannot be given back before either
    await asyncio.wait({task}, timeout=request.options.abort_grace)
    if task.done() and not task.cancelled():
        task.exception()  # the caller hears of the reason for the stop, not of what it led to
    if attempt.failure is not None:
        attempt.forsake()
    else:
        await attempt.leave_in_doubt(outcome)
