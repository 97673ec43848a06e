"""The client's clock: the one place where it learns what time it is.

A lease is measured on a clock that goes on while the machine sleeps: a laptop that was shut for an
hour has lost its session, whatever ``CLOCK_MONOTONIC`` says. The wall clock decides nothing.
"""

import time
from asyncio import AbstractEventLoop
from typing import Protocol, runtime_checkable


class Clock(Protocol):
    """Milliseconds since some fixed moment, never going back, counting suspend time."""

    def now_ms(self) -> int:
        """Return the time now, in milliseconds."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, for people: no decision rests on it."""
        ...


@runtime_checkable
class HasBootTime(Protocol):
    """A loop that brings its own time, such as the simulator's."""

    def boot_time_ms(self) -> int:
        """Return the loop's own boot time, in milliseconds."""
        ...


class BootClock:
    """Time since the machine started, suspend included where the system can tell."""

    def now_ms(self) -> int:
        """Return ``CLOCK_BOOTTIME`` in milliseconds, the monotonic clock where it is absent."""
        return _boot_time_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Return the machine's wall clock."""
        return time.time_ns() // 1_000_000  # noqa: TID251 - the seam itself


class LoopClock:
    """The boot time of a loop that lives in a time of its own."""

    def __init__(self, loop: HasBootTime) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        """Return the loop's boot time in milliseconds."""
        return self._loop.boot_time_ms()

    def wall_ms(self) -> int:
        """Return the loop's boot time: in a world of its own the two are the same."""
        return self._loop.boot_time_ms()


def clock_of(loop: AbstractEventLoop) -> Clock:
    """Return the clock that belongs to a loop: its own if it brings one, else the machine's."""
    if isinstance(loop, HasBootTime):
        return LoopClock(loop)
    return BootClock()


def _boot_time_ns() -> int:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns()
