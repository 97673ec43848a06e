"""The wall clock of a simulated machine."""

from zabd.cluster_sim.schedule import Schedule

WALL_MS = 1_700_000_000_000
"""Wall time at the beginning of every run: late in 2023."""


class WallClock:
    """What one machine holds for the time; what depends on it may be wrong, but never unsafe."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.step_ms = 0

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return WALL_MS + self.step_ms + self._schedule.now_ms
