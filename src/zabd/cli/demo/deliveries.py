"""The queue in front of the workers: it delivers each request several times, as queues do.

Q1  A delivery that ended without an outcome is delivered again; none is dropped.
Q2  Copies of a request are delivered close to each other, so that they meet while the first one
    is being executed, and further apart, so that they find its record.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

BLOCK_KEYS = 20  # requests whose copies are shuffled among each other
WORK_MS_MIN = 5
WORK_MS_MAX = 40

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Delivery:
    """One copy of one request."""

    number: int
    key: str
    work_ms: int  # how long its work takes


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a delivery ended well."""

    delivery: Delivery
    worker: int
    replayed: bool
    receipt: int
    token: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Failure:
    """How a delivery ended for the time being."""

    delivery: Delivery
    worker: int
    error: str


class Deliveries:
    """Which copy is next, and what became of the others."""

    def __init__(self, keys: int, copies: int, rng: Random) -> None:
        self.total = keys * copies
        self.outcomes: list[Outcome] = []
        self.failures: list[Failure] = []
        self.limit = self.total  # no more than so many outcomes before the limit is raised
        self._under_way = 0
        self._waiting = deque(_in_blocks(keys, copies, rng))
        self._seen: dict[str, None] = {}
        self._changed = asyncio.Condition()

    async def take(self) -> Delivery | None:
        """The next copy, as soon as there is one; None when all have ended well."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._takeable or self._over)
            if self._over:
                return None
            self._under_way += 1
            delivery = self._waiting.popleft()
            self._seen[delivery.key] = None
            return delivery

    async def ended(self, outcome: Outcome | Failure) -> None:
        """Note how a copy ended; a failed one is delivered again (Q1)."""
        async with self._changed:
            self._under_way -= 1
            if isinstance(outcome, Outcome):
                self.outcomes.append(outcome)
            else:
                self.failures.append(outcome)
                self._waiting.append(outcome.delivery)
            self._changed.notify_all()

    async def raise_limit(self) -> None:
        """Let the rest go."""
        async with self._changed:
            self.limit = self.total
            self._changed.notify_all()

    async def reached(self, count: int) -> None:
        """Wait until so many copies have ended well."""
        await self.until(lambda: len(self.outcomes) >= count or None)

    async def until(self, find: Callable[[], T | None]) -> T:
        """Wait until `find`, asked after each change, finds something."""
        async with self._changed:
            while (found := find()) is None:
                await self._changed.wait()
            return found

    async def changed(self) -> None:
        """Something is to be seen that `until` may wait for."""
        async with self._changed:
            self._changed.notify_all()

    async def bring_forward(self, work_ms: int) -> Delivery:
        """Put all copies of a request that was never delivered in front; its first copy."""
        async with self._changed:
            fresh = next(d.key for d in self._waiting if d.key not in self._seen)
            chosen = [Delivery(d.number, d.key, work_ms) for d in self._waiting if d.key == fresh]
            rest = [delivery for delivery in self._waiting if delivery.key != fresh]
            self._waiting = deque(chosen + rest)
            return chosen[0]

    @property
    def _takeable(self) -> bool:
        return bool(self._waiting) and len(self.outcomes) + self._under_way < self.limit

    @property
    def _over(self) -> bool:
        return len(self.outcomes) == self.total


def _in_blocks(keys: int, copies: int, rng: Random) -> list[Delivery]:
    ordered: list[Delivery] = []
    work_ms = [rng.randint(WORK_MS_MIN, WORK_MS_MAX) for _ in range(keys)]
    for start in range(0, keys, BLOCK_KEYS):
        block = [
            (f"request-{key:04d}", work_ms[key])
            for key in range(start, min(start + BLOCK_KEYS, keys))
            for _ in range(copies)
        ]
        rng.shuffle(block)
        ordered += [
            Delivery(len(ordered) + at, key, duration) for at, (key, duration) in enumerate(block)
        ]
    return ordered
