"""Ensembles of bare peers and real storages hold every invariant, whatever happens to them."""

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


def test_no_check_fails_and_every_kind_of_fault_happens() -> None:
    """The fixed seeds are silent (X5), and no fault that is on exists on paper only (X3)."""
    happened: Counter[str] = Counter()
    core = SEEDS["core"]
    seeds = [*range(core["first"], core["first"] + core["count"])]
    for seed in seeds:
        outcome = run_seed(seed)
        assert outcome.failure is None, f"{outcome.failure}; again: {replay_command(outcome)}"
        happened.update(outcome.faults)
    assert [kind for kind in FAULT_KINDS if not happened[kind]] == []


@pytest.mark.parametrize("found", SEEDS["core"]["found"], ids=lambda found: str(found["seed"]))
def test_what_was_found_once_is_not_found_again(found: dict[str, object]) -> None:
    """Each of these seeds failed before something was mended; seeds.toml says what."""
    seed = found["seed"]
    assert isinstance(seed, int)
    assert run_seed(seed).failure is None, found["what"]


def test_a_peaceful_ensemble_elects_once_and_commits() -> None:
    """Without faults nothing is lost, repeated or voted on twice."""
    shape = replace(CoreLevel(3).shape, kinds=())
    level = CoreLevel(3, shape)
    outcome = level.run()
    assert outcome.failure is None
    assert outcome.committed > 50
    assert outcome.faults == {}


def test_one_seed_gives_one_trace() -> None:
    """The same run twice, in one process and under two hash seeds (X1)."""
    run = "from zabd.cluster_sim.sweep import run_seed; print(run_seed(7).digest)"
    digests = {run_seed(7).digest, run_seed(7).digest}
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
    assert run_seed(8).digest not in digests
