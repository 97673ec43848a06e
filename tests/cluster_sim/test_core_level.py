"""Ensembles at the core level hold every invariant, whatever happens to them."""

import os
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.shape import FAULT_KINDS
from zabd.cluster_sim.sweep import replay_command, run_seed

SEEDS = tomllib.loads(Path(__file__).with_name("seeds.toml").read_text())

pytestmark = pytest.mark.sim


FOUND = [(level, each["seed"]) for level in SEEDS for each in SEEDS[level]["found"]]


@pytest.mark.parametrize("level", sorted(SEEDS))
def test_no_check_fails_and_every_kind_of_fault_happens(level: str) -> None:
    """The fixed seeds are silent (X5), and no fault that is on exists on paper only (X3)."""
    happened: Counter[str] = Counter()
    first, count = SEEDS[level]["first"], SEEDS[level]["count"]
    for seed in range(first, first + count):
        outcome = run_seed(seed, level)
        assert outcome.failure is None, f"{outcome.failure}; again: {replay_command(outcome)}"
        happened.update(outcome.faults)
    assert [kind for kind in FAULT_KINDS if not happened[kind]] == []


@pytest.mark.parametrize(("level", "seed"), FOUND)
def test_what_was_found_once_is_not_found_again(level: str, seed: int) -> None:
    """Each of these seeds failed before something was mended; seeds.toml says what."""
    assert run_seed(seed, level).failure is None


def test_a_peaceful_ensemble_elects_once_and_commits() -> None:
    """Without faults nothing is lost, repeated or voted on twice."""
    shape = replace(CoreLevel(3).shape, kinds=())
    level = CoreLevel(3, shape)
    outcome = level.run()
    assert outcome.failure is None
    assert outcome.committed > 50
    assert outcome.faults == {}


@pytest.mark.parametrize("level", sorted(SEEDS))
def test_one_seed_gives_one_trace(level: str) -> None:
    """The same run twice, in one process and under two hash seeds (X1)."""
    run = f"from zabd.cluster_sim.sweep import run_seed; print(run_seed(7, {level!r}).digest)"
    digests = {run_seed(7, level).digest}
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", run],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1
    assert run_seed(8, level).digest not in digests
