"""Wall time, behind a seam: the only place where the server room asks the machine what time it is.

Wall time stamps znodes and log lines. Deadlines never use it: they count on the loop's own clock.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells wall time; it may step backwards, and nothing may rely on it not doing so."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def wall_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000


def utc_text(wall_ms: int) -> str:
    """`2026-11-30T17:12:31.123Z`, for log lines."""
    seconds, milliseconds = divmod(wall_ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z"


def java_date(wall_ms: int) -> str:
    """`Mon Nov 30 14:48:16 UTC 2026`, as the word `dump` shows times."""
    return time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(wall_ms // 1000))
