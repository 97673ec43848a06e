"""Shrinking: of a run that fails, the smallest one found that fails in the same way.

First the faults of the run are written down as a list. Then parts are left out, and what still
breaks the same invariant goes on: faults and requests by delta debugging (Zeller and Hildebrandt,
2002), the shape by simpler values. A part that is left out moves the chance of everything after it,
so a candidate may have a few more tries under other seeds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from zabd.cluster_sim.connections import Latency
from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.decisions import Noted
from zabd.cluster_sim.disks import DiskSpeed
from zabd.cluster_sim.network import DatagramFaults
from zabd.cluster_sim.plan import Plan, clients_of
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.cluster_sim.shape import Shape
from zabd.cluster_sim.work import Work

T = TypeVar("T")

# How much later than the smallest one so far a candidate may fail: what is simpler may take longer.
_PATIENCE: Final = 1.3

_EVENTS_MORE: Final = 300
_LOOKS: Final = 16

# Other seeds that a candidate is tried with when its own does not fail.
_OTHER_SEEDS: Final = 3

# Values of a shape that say "nothing special"; each is tried alone.
_PLAIN: Final[tuple[tuple[str, Any], ...]] = (
    ("observers", 0),
    ("drift_ppm_max", 0),
    ("datagrams", DatagramFaults()),
    ("log_disk", False),
    ("tail_batches", 4_096),
    ("snapshot_every", 1_000),
    ("payload_bytes_max", 40),
    ("segment_bytes", 64 << 10),
    ("disk_speed", DiskSpeed((20, 0), (300, 0), (10, 0))),
    ("latency", Latency(500, 0)),
)
_FEW: Final = 3  # faults of a run that a reader understands at once
_FEWER: Final = (1, 2, 3, 4)  # voters, clients


class _TooLongError(Exception):
    """A candidate has not failed by the time that it was given."""


class OutOfTimeError(Exception):
    """The time for shrinking is over: the smallest run so far is the result."""


class CannotShrinkError(Exception):
    """The run does not fail, so there is nothing to keep."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a failing run is, in what a reader has to understand."""

    faults: int
    requests: int
    members: int
    clients: int
    events: int
    failed_us: int

    @property
    def decisions(self) -> int:
        """What was decided in it: its faults and its requests."""
        return self.faults + self.requests

    def __str__(self) -> str:
        clients = (_many(self.clients, "client"),) if self.clients else ()
        rest = (_many(self.faults, "fault"), _many(self.requests, "request"))
        return ", ".join(
            (_many(self.members, "member"), *clients, *rest, f"{self.events:,} events")
        )


def _many(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


class Shrinker:
    """Looks for the smallest run that breaks `check`; `plan` and `size` are the best so far.

    `out_of_time` is asked before each candidate; `tell` hears of each that is smaller.
    """

    def __init__(
        self,
        plan: Plan,
        out_of_time: Callable[[], bool],
        tell: Callable[[Size], object] = lambda _: None,
    ) -> None:
        self.runs = 0
        self._out_of_time = out_of_time
        self._tell = tell
        self.check, self.plan, self.size = self._write_down(plan)
        self.begun_with = self.size

    def shrink(self) -> None:
        """Make it as small as it gets, or as the time allows."""
        try:
            before = None
            while before != self.plan:
                before = self.plan
                self._leap()
                self._drop_faults()
                self._hurry()  # what fails sooner is tried faster
                self._drop_requests()
                self._simplify()
                self._hurry()
        except OutOfTimeError:
            return

    # --- one candidate ---------------------------------------------------------------------------

    def _write_down(self, plan: Plan) -> tuple[str, Plan, Size]:
        """The run as it is, with lists in the place of chance where that fails as well."""
        found = self._carry_out(plan, None)
        if found is None:
            raise CannotShrinkError("every check holds in this run")
        check, listed, size = found
        if plan.decisions is not None:
            return check, plan, size
        again = self._carry_out(listed, check)
        if again is not None:
            return again
        plan = replace(plan, shape=listed.shape)  # which can be made plainer; chance stays
        again = self._carry_out(plan, check)
        if again is None:
            raise CannotShrinkError(f"{check} is broken only by the run that the seed draws")
        return check, plan, again[-1]

    def _carry_out(
        self, plan: Plan, check: str | None, until_us: int | None = None
    ) -> tuple[str, Plan, Size] | None:
        """Run a plan: what it breaks, the plan as a list, and its size; None if it does not."""
        self.runs += 1
        noted, work = Noted(), Work(plan.requests)
        with replace(plan, requests=None).made() as level:
            if plan.decisions is None:
                noted.listen_to(level.nemesis)
            else:
                noted.decisions = list(plan.decisions)
            work.take_over(level, clients_of(level))
            if until_us is not None:
                _limit(level, until_us, int(self.size.events * _PATIENCE) + _EVENTS_MORE)
            try:
                outcome = level.run()
            except _TooLongError:
                level.end()  # which a run that ends by itself has done
                return None
            failure = outcome.failure
            if failure is None or (check is not None and failure.id != check):
                return None
            return failure.id, *self._measured(plan, level, noted, work)

    def _measured(
        self, plan: Plan, level: CoreLevel, noted: Noted, work: Work
    ) -> tuple[Plan, Size]:
        now_us = level.schedule.now_us
        # What would have come after the failure is no part of it.
        decisions = tuple(each for each in noted.decisions if each.at_us <= now_us)
        kept = range(work.turns) if plan.requests is None else plan.requests
        requests = tuple(number for number in kept if number < work.turns)
        size = Size(
            faults=len(decisions),
            requests=len(requests),
            members=len(level.members),
            clients=len(clients_of(level)),
            events=level.trace.recorded,
            failed_us=now_us,
        )
        listed = replace(
            plan,
            shape=level.shape,
            clients=size.clients or None,
            decisions=decisions,
            requests=None if self._is_about_progress() else requests,
        )
        return listed, size

    def _is_about_progress(self) -> bool:
        """Whether requests must stay, since a run without any makes no progress by itself."""
        return getattr(self, "check", "").startswith("L")

    def _fails(self, candidate: Plan, *, seeds: int = 0) -> bool:
        """Whether a candidate breaks the same invariant; if so it is the best so far."""
        until_us = int(self.size.failed_us * _PATIENCE) + 10 * US_PER_MS
        for number in range(seeds + 1):
            if self._out_of_time():
                raise OutOfTimeError
            trial = replace(candidate, seed=candidate.seed + number * 1_000_003)
            found = self._carry_out(trial, self.check, until_us)
            if found is not None:
                _, listed, self.size = found
                # Where chance has stayed, a list in its place was tried before, and did not fail.
                self.plan = trial if trial.decisions is None else listed
                self._tell(self.size)
                return True
        return False

    # --- what is tried ---------------------------------------------------------------------------

    def _leap(self) -> None:
        """Everything plain at once: a good part of all failures does not need more."""
        plain = {name: value for name, value in _PLAIN if getattr(self._shape, name) != value}
        if plain:
            self._fails(self._with_shape(**plain), seeds=2)
        faults = self.plan.decisions or ()
        if len(faults) > _FEW:
            for begin in reversed(range(0, len(faults) - _FEW + 1, _FEW)):
                few = faults[begin : begin + _FEW]
                if self._fails(replace(self.plan, decisions=few), seeds=1):
                    return

    def _drop_faults(self) -> None:
        if self.plan.decisions is None:
            return
        if self.plan.decisions and self._fails(replace(self.plan, decisions=()), seeds=2):
            return
        self._minimise(
            lambda: self.plan.decisions or (), lambda kept: replace(self.plan, decisions=kept)
        )
        for decision in self.plan.decisions or ():
            # The last few may each depend on luck: let it try again.
            rest = tuple(each for each in self.plan.decisions or () if each != decision)
            if len(rest) < len(self.plan.decisions or ()):
                self._fails(replace(self.plan, decisions=rest), seeds=_OTHER_SEEDS)

    def _drop_requests(self) -> None:
        self._minimise(
            lambda: self.plan.requests or (), lambda kept: replace(self.plan, requests=kept)
        )

    def _minimise(
        self, parts: Callable[[], Sequence[T]], candidate: Callable[[tuple[T, ...]], Plan]
    ) -> None:
        """Delta debugging: leave out halves, then quarters, and so on, as long as it fails."""
        pieces = 2
        while len(parts()) >= 1 and pieces <= 2 * len(parts()):
            size = max(1, len(parts()) // pieces)
            for begin in reversed(range(0, len(parts()), size)):
                now = parts()
                if begin >= len(now):
                    continue
                if self._fails(candidate((*now[:begin], *now[begin + size :]))):
                    pieces = max(2, pieces - 1)
            if size == 1:
                return
            pieces *= 2

    def _simplify(self) -> None:
        for candidate in self._simpler_clients():
            if self._fails(candidate, seeds=1):
                break
        for number in _FEWER:
            if number < self._shape.voters and self._fails(
                self._with_shape(voters=number), seeds=_OTHER_SEEDS
            ):
                break
        for name, value in _PLAIN:
            if getattr(self._shape, name) != value:
                self._fails(self._with_shape(**{name: value}))

    def _simpler_clients(self) -> Iterator[Plan]:
        now = self.plan.clients or 0
        return (replace(self.plan, clients=number) for number in _FEWER if number < now)

    def _hurry(self) -> None:
        """Let the faults come sooner."""
        for factor in (0.1, 0.3, 0.6):
            decisions = self.plan.decisions or ()
            if decisions and decisions[-1].at_us > self._shape.tick_ms * US_PER_MS:
                sooner = (each._replace(at_us=int(each.at_us * factor)) for each in decisions)
                if self._fails(replace(self.plan, decisions=tuple(sooner)), seeds=1):
                    return

    @property
    def _shape(self) -> Shape:
        assert self.plan.shape is not None, "a listed run has its shape"
        return self.plan.shape

    def _with_shape(self, **values: Any) -> Plan:  # noqa: ANN401 - of a shape
        return replace(self.plan, shape=replace(self._shape, **values))


def _limit(level: CoreLevel, until_us: int, events: int) -> None:
    """End a run that takes longer, or more events; asked a few times on the way."""

    def look() -> None:
        if level.schedule.now_us >= until_us or level.trace.recorded > events:
            raise _TooLongError

    for part in range(1, _LOOKS + 1):
        level.schedule.at(until_us * part // _LOOKS, look)
