"""Strategies choose among runs; whatever they choose, the ensemble holds its invariants."""

from functools import partial
from itertools import pairwise

import pytest

from zabd.cluster_sim.fault_kinds import FAULT_KINDS
from zabd.cluster_sim.plan import Plan
from zabd.cluster_sim.strategies import STRATEGIES, PrioritySchedule
from zabd.cluster_sim.sweep import make_level, run_seed

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("level", ["zab", "core"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_check_fails_under_any_strategy(level: str, strategy: str) -> None:
    """They reorder only what may be reordered, and late is not lost (X5)."""
    for seed in range(13, 18):
        assert run_seed(seed, level, strategy=strategy).failure is None


def test_one_seed_and_strategy_give_one_trace() -> None:
    """And each strategy another one."""
    digests = {strategy: run_seed(17, "zab", strategy=strategy).digest for strategy in STRATEGIES}
    assert len(set(digests.values())) == len(STRATEGIES)
    assert run_seed(17, "zab", strategy="pct").digest == digests["pct"]
    assert Plan(17, "zab", strategy="pct").run().digest == digests["pct"]


def test_a_random_walk_has_every_kind_of_fault() -> None:
    """The swarm has a part of them."""
    assert make_level(3, "zab", strategy="random").shape.kinds == tuple(FAULT_KINDS)
    assert make_level(3, "zab", strategy="swarm").shape.kinds != tuple(FAULT_KINDS)


def test_a_lane_keeps_its_order_and_stays_within_its_window() -> None:
    """P1 and P2."""
    schedule = PrioritySchedule(3)
    schedule.open_window(tick_ms=100)
    window_us = schedule._window_us
    seen: list[tuple[str, int, int]] = []
    chance = schedule.stream("test")
    for number in range(300):
        lane, at_us = chance.choice("abc"), number * 50

        def note(lane: str = lane, at_us: int = at_us) -> None:
            seen.append((lane, at_us, schedule.now_us))

        schedule.at(at_us, note, lane)
    while schedule.step():
        pass
    for lane in "abc":
        times = [at_us for which, at_us, _ in seen if which == lane]
        assert times == sorted(times)
    assert all(at_us <= came_us <= at_us + window_us for _, at_us, came_us in seen)
    assert [at_us for _, at_us, _ in seen] != sorted(at_us for _, at_us, _ in seen)


def test_the_higher_priority_comes_first_until_it_falls_behind() -> None:
    """What PCT is: one order between two lanes, but for d - 1 changes."""
    turns = 0
    for seed in range(20):
        schedule = PrioritySchedule(seed)
        schedule.open_window(tick_ms=10_000)
        seen: list[str] = []
        for number in range(20):
            for lane in "ab":
                schedule.at(number, partial(seen.append, lane), lane)
        while schedule.step():
            pass
        turns = sum(one != other for one, other in pairwise(seen))
        assert turns <= 2 * (8 - 1) + 1
        assert len(seen) == 40
    assert turns


def test_nothing_is_late_once_the_faults_have_stopped() -> None:
    """P3; and nothing is forgotten."""
    schedule = PrioritySchedule(1)
    schedule.open_window(tick_ms=1_000)
    seen: list[int] = []
    for number in range(10):
        schedule.at(number, lambda number=number: seen.append(number), number)
    cancelled = schedule.at(3, lambda: seen.append(99), "z")
    assert schedule.next_us() is not None
    cancelled.cancel()
    assert len(schedule) == 10
    schedule.close_window()
    while schedule.step():
        pass
    assert seen == list(range(10))
