"""The checks find what they are there to find: each planted mistake, within 200 seeds."""

import pytest

from zabd.cluster_sim.mutants import MUTANTS
from zabd.cluster_sim.sweep import run_seed
from zabd.storage import Storage

SEEDS_MAX = 200

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_planted_mistake_is_found(name: str) -> None:
    """By the check that names it, and never by luck alone."""
    for seed in range(1, SEEDS_MAX + 1):
        outcome = run_seed(seed, MUTANTS[name].level, name)
        if outcome.failure is not None:
            assert outcome.failure.id in MUTANTS[name].found_by
            return
    pytest.fail(f"{name} was not found within {SEEDS_MAX} seeds")


def test_a_mistake_is_gone_when_its_context_ends() -> None:
    """None of them may stay in the code of production."""
    before = dict(Storage.__dict__)
    for mutant in MUTANTS.values():
        with mutant.planted():
            pass
    assert dict(Storage.__dict__) == before
