"""A failing run becomes a small one that fails in the same way."""

from dataclasses import replace

import pytest

from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.decisions import Decision, Noted
from zabd.cluster_sim.plan import Plan
from zabd.cluster_sim.replay import carry_out
from zabd.cluster_sim.shrink import CannotShrinkError, Shrinker, Size

pytestmark = pytest.mark.sim


def runs(number: int) -> "Budget":
    """Time enough for so many candidates."""
    return Budget(number)


class Budget:
    """Out of time after so many questions: a clock that does not depend on the machine."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize(
    ("plan", "faults", "requests"),
    [
        (Plan(2, "zab", "ack-before-fsync"), 0, 1),
        (Plan(2, "zab", "epoch-not-persisted"), 0, 0),
        (Plan(9, "zab", "trunc-skipped"), 1, 3),
        (Plan(6, "core", "watch-after-reply"), 0, 3),
    ],
    ids=lambda value: value.mutant if isinstance(value, Plan) else "",
)
def test_a_run_becomes_small(plan: Plan, faults: int, requests: int) -> None:
    """The same invariant breaks, of less."""
    shrinker = Shrinker(plan, runs(120))
    check = shrinker.check
    shrinker.shrink()
    assert shrinker.size.faults <= faults
    assert shrinker.size.requests <= requests
    assert shrinker.size.events < shrinker.begun_with.events
    small, outcome, _ = carry_out(shrinker.plan)
    assert outcome.failure is not None
    assert outcome.failure.id == check
    assert len(small.lines) == shrinker.size.events


def test_a_run_that_no_list_repeats_is_shrunk_with_its_chance() -> None:
    """What is found fails when it is carried out again, as with lists."""
    shrinker = Shrinker(Plan(45, "zab", "vote-of-a-new-epoch"), runs(60))
    assert shrinker.plan.decisions is None
    shrinker.shrink()
    assert shrinker.size.events < shrinker.begun_with.events
    small, outcome, _ = carry_out(shrinker.plan)
    assert outcome.failure is not None
    assert outcome.failure.id == shrinker.check
    assert len(small.lines) == shrinker.size.events


def test_servers_and_programs_are_shrunk_too() -> None:
    """Also there, a candidate that is given up leaves nothing behind."""
    shrinker = Shrinker(Plan(5, "whole", "ephemeral-left"), runs(25))
    assert shrinker.check == "S2"
    shrinker.shrink()
    assert shrinker.size.faults < shrinker.begun_with.faults
    assert shrinker.plan.run().failure is not None


def test_what_is_told_gets_smaller_and_the_time_is_kept() -> None:
    """When the time is over, the smallest so far is the result."""
    told: list[Size] = []
    shrinker = Shrinker(Plan(9, "zab", "trunc-skipped"), runs(6), told.append)
    shrinker.shrink()
    assert shrinker.runs <= 6 + 2
    assert told == [] or told[-1] == shrinker.size


def test_a_run_without_failure_cannot_be_shrunk() -> None:
    """There is nothing to keep."""
    with pytest.raises(CannotShrinkError, match="every check holds"):
        Shrinker(Plan(17, "zab"), runs(1))


@pytest.mark.parametrize("seed", [13, 26])
def test_a_list_of_faults_is_the_run_that_drew_them(seed: int) -> None:
    """What chance gave, the list gives: the same faults of the same members at the same time."""
    plan = Plan(seed, "zab")
    noted = Noted()
    with plan.made() as level:
        noted.listen_to(level.nemesis)
        drawn = level.run()
    assert len(noted.decisions) > 2
    listed = replace(plan, decisions=tuple(noted.decisions)).run()
    assert listed.faults == drawn.faults
    assert drawn.digest == plan.run().digest


def test_a_decision_serves_where_the_world_has_changed() -> None:
    """One of five members was meant; there are two, and one of these is hit."""
    shape = replace(CoreLevel(5).shape, voters=2, observers=0, faults_ms=2_000)
    kill = Decision(1_000_000, "kill", (1, 4, 0.7))
    outcome = Plan(5, "zab", None, shape, decisions=(kill, kill._replace(draws=()))).run()
    assert outcome.failure is None
    assert outcome.faults["kill"] >= 1
