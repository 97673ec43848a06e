"""When to try again, said out loud: nothing is repeated that may have happened already.

A request whose connection died before the reply has an unknown outcome. Repeating a read is always
safe. Repeating a write is safe only if doing it twice is the same as doing it once, which the
caller alone knows, or if the error says that it was never sent (`maybe_applied` is false).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from zabd.model.errors import ConnectionLossError, KeeperError, OperationTimeoutError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, and how long in between; the pauses double and half of each is chance."""

    attempts: int = 5
    first_pause: float = 0.05
    pause_max: float = 5.0
    retry_on: tuple[type[KeeperError], ...] = (ConnectionLossError, OperationTimeoutError)

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_pause < 0 or self.pause_max < self.first_pause:
            raise ValueError(f"{self!r}: expected attempts >= 1, 0 <= first_pause <= pause_max")

    async def run(self, call: Callable[[], Awaitable[T]], rng: Random, *, idempotent: bool) -> T:
        """Await `call()` until it answers or the attempts are used up; then its last error raises.

        With `idempotent=False` only what was certainly not applied is tried again.
        """
        for attempt in range(1, self.attempts + 1):
            try:
                return await call()
            except self.retry_on as error:
                if attempt == self.attempts or (error.maybe_applied and not idempotent):
                    raise
            await asyncio.sleep(self._pause(attempt, rng))
        raise AssertionError("the last attempt returns or raises")

    def _pause(self, attempt: int, rng: Random) -> float:
        pause = min(self.pause_max, self.first_pause * (1 << (attempt - 1)))
        return pause / 2 + rng.random() * pause / 2
