"""The schedule: one virtual clock for a whole run, and the order of everything that happens.

Everything that crosses a seam (a delivery, a disk completion, a timer, a fault, a turn of a
process) is an appointment here. Nothing else moves time, and nothing waits.

Invariants
    S1  Time never goes back: an appointment in the past is kept now.
    S2  Appointments of one instant are kept in the order in which they were made, so one seed
        gives one order under any hash seed and any Python.
    S3  Chance comes from named streams. Drawing more from one (a longer workload, say) leaves
        the others as they were, which keeps a shrunk run close to the run it came from.
"""

import heapq
import math
from collections.abc import Callable
from random import Random
from typing import Final, TypeAlias

Action: TypeAlias = Callable[[], object]

US_PER_MS: Final = 1_000
US_PER_S: Final = 1_000_000

# Cancelled appointments stay in the heap until it is mostly made of them. 512 keeps the sweep off
# small heaps, where it would cost more than it frees.
_SWEEP_MIN: Final = 512


class Appointment:
    """One thing that will happen at one instant, unless it is cancelled before."""

    __slots__ = ("_schedule", "action", "at_us", "lane", "latest_us")

    def __init__(self, schedule: "Schedule", at_us: int, action: Action) -> None:
        self._schedule = schedule
        self.at_us = at_us
        self.action: Action | None = action
        self.lane: object = None
        self.latest_us = at_us

    @property
    def pending(self) -> bool:
        """Whether it is still to come."""
        return self.action is not None

    def cancel(self) -> None:
        """Make sure that it does not happen. Harmless when it did, or was cancelled before."""
        if self.action is not None:
            self.action = None
            self._schedule.forget_one()


class Schedule:
    """The virtual clock of one run, in whole microseconds since its beginning.

    The caller may rely on S1 to S3. An action that raises stops the run: the exception leaves
    `step`, and the schedule can be looked at or stepped on.
    """

    __slots__ = ("_cancelled", "_heap", "_sequence", "kept", "now_us", "seed")

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.now_us = 0
        self.kept = 0
        self._heap: list[tuple[int, int, Appointment]] = []
        self._sequence = 0
        self._cancelled = 0

    def __len__(self) -> int:
        """How many appointments are still to come."""
        return len(self._heap) - self._cancelled

    @property
    def now_ms(self) -> int:
        """The time in whole milliseconds, rounded down."""
        return self.now_us // US_PER_MS

    def stream(self, name: str) -> Random:
        """A stream of chance of its own: the same for the same seed and name, for ever (S3)."""
        return Random(f"{self.seed}/{name}")

    def at(self, at_us: int, action: Action, lane: object = None) -> Appointment:
        """Keep `action` for the instant `at_us`, or for now if that has passed.

        `lane` names what may come in another order than anything on other lanes: a direction of a
        connection, a disk. Time alone decides here; other strategies look at it (`strategies`).
        """
        del lane
        at_us = max(at_us, self.now_us)
        appointment = Appointment(self, at_us, action)
        self._sequence += 1
        heapq.heappush(self._heap, (at_us, self._sequence, appointment))
        return appointment

    def after(self, delay_us: int, action: Action, lane: object = None) -> Appointment:
        """Keep `action` for `delay_us` microseconds from now."""
        return self.at(self.now_us + delay_us, action, lane)

    def open_window(self, tick_ms: int) -> None:
        """What happens on lanes may be late from now on, where the strategy makes use of that."""

    def close_window(self) -> None:
        """Nothing is late any more."""

    def step(self, latest_us: float = math.inf) -> bool:
        """Let the next thing happen. False when nothing is left to happen by `latest_us`."""
        heap = self._heap
        while heap:
            at_us, _, appointment = heap[0]
            action = appointment.action
            if action is None:
                heapq.heappop(heap)
                self._cancelled -= 1
                continue
            if at_us > latest_us:
                return False
            heapq.heappop(heap)
            appointment.action = None
            self.now_us = at_us
            self.kept += 1
            action()
            return True
        return False

    def run_until(self, at_us: int) -> None:
        """Let everything happen that is due up to and including `at_us`; the clock ends there."""
        while self.step(at_us):
            pass
        self.now_us = max(self.now_us, at_us)

    def next_us(self) -> int | None:
        """The instant of the next appointment, or None when nothing is left to happen."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def forget(self) -> None:
        """Let go of everything that was still to come."""
        self._heap.clear()
        self._cancelled = 0

    def forget_one(self) -> None:
        """Count one cancelled appointment; drop them all once they are most of the heap."""
        self._cancelled += 1
        if self._cancelled > _SWEEP_MIN and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
