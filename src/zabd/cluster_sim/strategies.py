"""Strategies: how chance chooses among all the runs that a seed could be.

`swarm`   the seed draws which kinds of faults are on at all (Groce et al., "Swarm Testing", ISSTA
          2012), and every delay by itself.
`random`  a plain random walk: every kind of fault is on.
`pct`     as `swarm`, but what happens next is decided by priorities (Burckhardt et al., "A
          Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010).

In `pct` each lane (a direction of a connection, a disk, a member's timers, the turns of a process)
has a priority of its own, drawn when it is first seen. Whatever happens on a lane may come late, by
up to a window that the seed draws: no message, disk or timer is promised to be in time. Of all that
could come next the highest priority does, so that one slow lane stays behind for a long time, where
independent delays would mix them. At d - 1 steps, chosen in advance, the lane whose turn it is
falls behind all others.

Invariants
    P1  A lane keeps its order, so links stay FIFO.
    P2  Nothing comes before its time, nor later than its window after it.
    P3  Once faults have stopped nothing is late any more: progress is owed.
"""

import heapq
import math
from dataclasses import replace
from typing import Final

from zabd.cluster_sim.fault_kinds import FAULT_KINDS
from zabd.cluster_sim.schedule import US_PER_MS, Action, Appointment, Schedule
from zabd.cluster_sim.shape import Shape

STRATEGIES: Final = ("swarm", "random", "pct")

_DEPTHS: Final = (2, 3, 5, 8)  # d of the paper: how many orders have to be right for a bug to show
_STEPS: Final = (200, 2_000, 10_000)  # k of the paper: within how many steps the changes lie
_WINDOW_TICKS: Final = (0.05, 0.3, 1.0)


def apply_strategy(strategy: str, shape: Shape) -> Shape:
    """What a strategy makes of the shape that a seed has drawn."""
    return replace(shape, kinds=tuple(FAULT_KINDS)) if strategy == "random" else shape


def make_schedule(strategy: str, seed: int) -> Schedule:
    """The schedule of a run."""
    return PrioritySchedule(seed) if strategy == "pct" else Schedule(seed)


class PrioritySchedule(Schedule):
    """A schedule by priorities. Until `open_window` it is one as any other."""

    __slots__ = ("_changes", "_late", "_lowest", "_priorities", "_rng", "_steps", "_window_us")

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._rng = self.stream("priorities")
        depth = self._rng.choice(_DEPTHS)
        steps = self._rng.choice(_STEPS)
        self._changes = sorted(self._rng.randrange(steps) for _ in range(depth - 1))
        self._priorities: dict[object, float] = {}
        self._lowest = 0.0
        self._window_us = 0
        self._steps = 0
        self._late: list[tuple[int, int, Appointment]] = []  # they could come now

    def open_window(self, tick_ms: int) -> None:
        """From now on what happens may be late."""
        self._window_us = int(tick_ms * US_PER_MS * self._rng.choice(_WINDOW_TICKS))

    def close_window(self) -> None:
        """From now on nothing is late any more (P3)."""
        self._window_us = 0
        for at_us, _, appointment in (*self._late, *self._heap):
            appointment.lane, appointment.latest_us = None, at_us

    def at(self, at_us: int, action: Action, lane: object = None) -> Appointment:
        """Keep `action` for `at_us`, or later if its lane has to wait."""
        appointment = super().at(at_us, action)
        if lane is not None and self._window_us:
            appointment.lane = lane
            appointment.latest_us = max(at_us + self._window_us, self.now_us)
            if lane not in self._priorities:
                self._priorities[lane] = 1.0 + self._rng.random()
        return appointment

    def next_us(self) -> int | None:
        """The instant of what comes next."""
        chosen = self._choose()
        return None if chosen is None else max(chosen[0], self.now_us)

    def step(self, latest_us: float = math.inf) -> bool:
        """Let the highest priority of all that could come next happen, if that is not too late."""
        chosen = self._choose()
        if chosen is None or max(chosen[0], self.now_us) > latest_us:
            return False
        self._late.remove(chosen)
        at_us, _, appointment = chosen
        action, appointment.action = appointment.action, None
        assert action is not None, "what is cancelled is not chosen"
        self.now_us = max(at_us, self.now_us)
        self.kept += 1
        if appointment.lane is not None:
            self._count(appointment.lane)
        action()
        return True

    def forget_one(self) -> None:
        """Count one cancelled appointment, if it still lies where it is counted."""
        late = len(self._late)
        self._late = [entry for entry in self._late if entry[2].action is not None]
        if len(self._late) == late:
            super().forget_one()

    def __len__(self) -> int:
        """How many appointments are still to come."""
        return super().__len__() + len(self._late)

    def _count(self, lane: object) -> None:
        self._steps += 1
        while self._changes and self._changes[0] < self._steps:
            del self._changes[0]
            self._lowest -= 1.0
            self._priorities[lane] = self._lowest

    def _choose(self) -> tuple[int, int, Appointment] | None:
        """Of all that could come before something has to, the highest priority (P2)."""
        late, heap = self._late, self._heap
        horizon_us = min((entry[2].latest_us for entry in late), default=None)
        while heap and (horizon_us is None or heap[0][0] <= horizon_us):
            entry = heapq.heappop(heap)
            if entry[2].action is None:
                self._cancelled -= 1
                continue
            late.append(entry)
            latest_us = entry[2].latest_us
            horizon_us = latest_us if horizon_us is None else min(horizon_us, latest_us)
        return min(late, key=self._rank, default=None)

    def _rank(self, entry: tuple[int, int, Appointment]) -> tuple[float, int, int]:
        """What comes first: by priority; of one lane, and of what has none, the earlier (P1)."""
        at_us, sequence, appointment = entry
        lane = appointment.lane
        return (-self._priorities[lane] if lane is not None else -3.0, at_us, sequence)
