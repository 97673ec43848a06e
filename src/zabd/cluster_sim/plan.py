"""What one run is, exactly: enough to have it again on another machine.

A seed alone says it all, as long as nothing is changed. A shrunk run needs more: its shape, how
many clients take part, which requests they make, and the list of its faults (`decisions`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

from zabd.cluster_sim.core_level import CoreLevel, Outcome
from zabd.cluster_sim.decisions import Decision, Listed
from zabd.cluster_sim.mutants import MUTANTS
from zabd.cluster_sim.shape import Shape
from zabd.cluster_sim.strategies import STRATEGIES
from zabd.cluster_sim.sweep import LEVELS, make_level
from zabd.cluster_sim.work import Work


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. What is None is drawn from the seed."""

    seed: int
    level: str = "core"
    mutant: str | None = None
    shape: Shape | None = None
    clients: int | None = None
    decisions: tuple[Decision, ...] | None = None
    requests: tuple[int, ...] | None = None  # the turns of work that take place (see `work`)
    strategy: str = STRATEGIES[0]

    @contextmanager
    def made(self) -> Iterator[CoreLevel]:
        """The run, ready to begin; the mistake it names is in the code while this is open."""
        with MUTANTS[self.mutant].planted() if self.mutant is not None else nullcontext():
            level = make_level(self.seed, self.level, self.mutant, self.shape, self.strategy)
            if self.clients is not None:
                del clients_of(level)[self.clients :]
            if self.requests is not None:
                Work(self.requests).take_over(level, clients_of(level))
            if self.decisions is not None:
                Listed(self.decisions).take_over(level.nemesis)
            try:
                yield level
            finally:
                level.forget()

    def run(self) -> Outcome:
        """Carry it through."""
        with self.made() as level:
            return level.run()

    def as_object(self) -> dict[str, Any]:
        """What JSON can hold."""
        told: dict[str, Any] = {"seed": self.seed, "level": self.level, "mutant": self.mutant}
        told["strategy"] = self.strategy
        told["shape"] = None if self.shape is None else _shape_as_object(self.shape)
        told["clients"] = self.clients
        told["requests"] = None if self.requests is None else list(self.requests)
        told["decisions"] = (
            None if self.decisions is None else [list(each) for each in self.decisions]
        )
        return told

    @classmethod
    def from_object(cls, told: Mapping[str, Any]) -> "Plan":
        """What `as_object` gave. Raises ValueError for a level or mutant that is not there."""
        if told["level"] not in LEVELS:
            raise ValueError(f"{told['level']!r} is not a level; there are {', '.join(LEVELS)}")
        if told["mutant"] is not None and told["mutant"] not in MUTANTS:
            raise ValueError(f"{told['mutant']!r} is not a mistake that can be planted here")
        strategy = told.get("strategy", STRATEGIES[0])  # of a version that had no other
        if strategy not in STRATEGIES:
            raise ValueError(f"{strategy!r} is not a strategy; there are {', '.join(STRATEGIES)}")
        plan = cls(told["seed"], told["level"], told["mutant"], clients=told["clients"])
        plan = replace(plan, strategy=strategy)
        if told["shape"] is not None:
            plan = replace(plan, shape=_shape_from(told["shape"], LEVELS[plan.level](plan.seed)))
        if told["requests"] is not None:
            plan = replace(plan, requests=tuple(told["requests"]))
        if told["decisions"] is not None:
            plan = replace(plan, decisions=tuple(Decision.of(each) for each in told["decisions"]))
        return plan


def clients_of(level: CoreLevel) -> list[Any]:
    """Those who use the ensemble in a run: clients or programs; nobody at the level of bare peers.

    The first of them is the one who always has to write.
    """
    found: list[Any] = vars(level).get("clients", vars(level).get("programs", []))
    return found


def _shape_as_object(shape: Shape) -> dict[str, Any]:
    return {field.name: getattr(shape, field.name) for field in fields(shape)}


def _shape_from(told: Mapping[str, Any], drawn: CoreLevel) -> Shape:
    """The shape that was written down; what it does not name is as the seed draws it."""
    values: dict[str, Any] = {}
    for field in fields(Shape):
        if field.name in told:
            values[field.name] = _like(getattr(drawn.shape, field.name), told[field.name])
    return replace(drawn.shape, **values)


def _like(drawn: Any, told: Any) -> Any:  # noqa: ANN401 - the values of a shape are of many types
    if isinstance(drawn, tuple) and hasattr(drawn, "_fields"):  # a NamedTuple: latency, disk speed
        return type(drawn)(*map(_like, drawn, told))
    return tuple(told) if isinstance(drawn, tuple) else told
