"""Messages of a queue that delivers each at least once: handled once, and what to tell the queue.

``consume = deduplicated(Dedup(zk), handle, key=...)`` is a coroutine function of a message. What it
returns says what a consumer of any broker then does: acknowledge, ask for another delivery, or put
the message aside. It knows no broker, and never acknowledges by itself.

The key has to be the producer's: an id that stays the same when the producer sends a message twice.
An offset or a delivery's number is another one each time.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeAlias, TypeVar

from zabd.client.recipes.dedup import (
    Attempt,
    Dedup,
    DuplicateError,
    InDoubtError,
    Outcome,
    PayloadMismatchError,
    RecordUnreadableError,
    ReplayedFailureError,
    ResultTooLargeError,
)
from zabd.client.recipes.dedup.request import Request
from zabd.client.recipes.dedup.run import execute

__all__ = ["Action", "Settlement", "deduplicated"]

log = logging.getLogger("zabd.messages")

# That it happened is recorded, though there is no value to show.
_DONE: Final = (DuplicateError, ResultTooLargeError)
_HOPELESS: Final = (
    InDoubtError,
    PayloadMismatchError,
    RecordUnreadableError,
    ReplayedFailureError,
)

M = TypeVar("M")
T = TypeVar("T")


class Action(StrEnum):
    """What to tell the queue."""

    ACK = "ack"
    """Its outcome is recorded, by this delivery or an earlier one: it need not come again."""

    RETRY = "retry"
    """Deliver it again, later: nothing is known to be wrong with the message itself."""

    REJECT = "reject"
    """Put it aside for people: each further delivery would end in the same way."""


@dataclass(frozen=True, slots=True)
class Settlement(Generic[T]):
    """What became of one delivery.

    `outcome` is there if the handler has returned, now or earlier; `error` says why not.
    """

    action: Action
    outcome: Outcome[T] | None = None
    error: Exception | None = None


Consume: TypeAlias = Callable[[M], Awaitable[Settlement[T]]]


def deduplicated(
    dedup: Dedup,
    handle: Callable[[M, Attempt], Awaitable[T]],
    *,
    key: Callable[[M], str],
    payload: Callable[[M], object] | None = None,
    **options: Any,  # noqa: ANN401 - see `dedup.Options`
) -> Consume[M, T]:
    """A consumer of messages that calls ``handle(message, ctx)`` once for each key.

    `key` and `payload` are functions of a message; one that has no usable key is rejected. The
    other options are those of `Dedup.run`. What it raises is the cancellation of its own task, and
    `ForkedClientError`.

    Acknowledged is what was recorded, a failure for good excepted, which is rejected. Rejected is
    also another payload under a known key, and an attempt in doubt that somebody has to resolve.
    All else is to be delivered again: another consumer works on the message, the handler has
    failed, the session or the connection was lost.
    """

    async def consume(message: M) -> Settlement[T]:
        try:
            name, body = key(message), None if payload is None else payload(message)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is so each time
            return _settled(Action.REJECT, error)
        try:
            request = dedup.request(name, body, options)
        except (TypeError, ValueError) as error:
            return _settled(Action.REJECT, error)
        return await _settle(dedup, request, lambda ctx: handle(message, ctx))

    return consume


async def _settle(
    dedup: Dedup, request: Request, function: Callable[[Attempt], Awaitable[T]]
) -> Settlement[T]:
    hopeless: tuple[type[BaseException], ...] = (*_HOPELESS, *request.options.store_exceptions)
    try:
        with request.span("run"):
            outcome = await execute(request, await dedup.enter(request), function)
    except _DONE as error:
        return _settled(Action.ACK, error)
    except hopeless as error:
        if not isinstance(error, Exception):
            raise
        return _settled(Action.REJECT, error)
    except Exception as error:  # noqa: BLE001 - the handler's own, or the ensemble's
        return _settled(Action.RETRY, error)
    return Settlement(Action.ACK, outcome)


def _settled(action: Action, error: Exception) -> Settlement[Any]:
    log.warning("%s: %s: %s", action, type(error).__name__, error)
    return Settlement(action, error=error)
