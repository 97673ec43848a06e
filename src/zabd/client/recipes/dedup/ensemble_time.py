"""What time it is at least for the ensemble, as far as its own stamps tell.

Each Stat carries stamps of the leader's. The ensemble's time now is no less than any of them plus
what has passed here since it was seen. So an old record can be found to be old without asking any
wall clock; what cannot be told yet counts as young, and is kept longer.
"""

from collections.abc import Callable


class EnsembleTime:
    """A lower bound, which rises with every stamp seen; `now_ms` is the client's boot time."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._ahead_ms: int | None = None

    def observe(self, stamp_ms: int) -> None:
        """Take note of a stamp that a server has just shown."""
        ahead = stamp_ms - self._now_ms()
        if self._ahead_ms is None or ahead > self._ahead_ms:
            self._ahead_ms = ahead

    def at_least_ms(self) -> int:
        """Milliseconds since 1970 that have passed for the ensemble; 0 before any stamp."""
        return 0 if self._ahead_ms is None else self._now_ms() + self._ahead_ms
