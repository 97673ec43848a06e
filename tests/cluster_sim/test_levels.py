"""Ensembles hold every invariant at every level, whatever happens to them."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.fault_kinds import FAULT_KINDS
from zabd.cluster_sim.replica_level import ReplicaLevel
from zabd.cluster_sim.sweep import replay_command, run_seed
from zabd.cluster_sim.whole_level import WholeLevel

SEEDS = tomllib.loads(Path(__file__).with_name("seeds.toml").read_text())

pytestmark = pytest.mark.sim


FOUND = [(level, each["seed"]) for level in SEEDS for each in SEEDS[level]["found"]]


@pytest.mark.parametrize("level", sorted(SEEDS))
def test_no_check_fails(level: str) -> None:
    """The correct implementation is silent, whatever happens to it (X5)."""
    first, count = SEEDS[level]["first"], SEEDS[level]["count"]
    for seed in range(first, first + count):
        outcome = run_seed(seed, level)
        assert outcome.failure is None, f"{outcome.failure}; again: {replay_command(outcome)}"


OF_CLIENTS = {"session expiry", "reconnect storm", "slow reader"}
NOT_OF_BARE_PEERS = OF_CLIENTS | {"clock step"}  # nobody there asks what time it is


@pytest.mark.parametrize(
    "run", [CoreLevel, ReplicaLevel, pytest.param(WholeLevel, marks=pytest.mark.slow)]
)
def test_every_kind_of_fault_really_happens_alone(run: type[CoreLevel]) -> None:
    """No kind of fault exists on paper only (X3): each one alone, within a few seeds."""
    never = [kind for kind in FAULT_KINDS if not any(happenings(run, kind, range(1, 12)))]
    assert never == [kind for kind in FAULT_KINDS if run is CoreLevel and kind in NOT_OF_BARE_PEERS]


def happenings(run: type[CoreLevel], kind: str, seeds: Iterable[int]) -> Iterator[int]:
    """How often this one kind happened in short runs of an ensemble of three, seed by seed."""
    for seed in seeds:
        drawn = run(seed).shape
        shape = replace(
            drawn,
            kinds=(kind,),
            voters=3,
            faults_ms=20 * drawn.tick_ms,
            fault_every_ms=2 * drawn.tick_ms,
            submit_every_ms=drawn.tick_ms / 4,
        )
        outcome = run(seed, shape).run()
        assert outcome.failure is None, f"seed {seed}, {kind}: {outcome.failure}"
        yield outcome.faults.get(kind, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("level", "seeds"), [("zab", 200), ("core", 200), ("whole", 100)])
def test_every_kind_of_fault_really_happens_among_others(level: str, seeds: int) -> None:
    """The same of the shapes that seeds draw: which kinds has a batch of seeds never seen?"""
    never = set(FAULT_KINDS) - (NOT_OF_BARE_PEERS if level == "zab" else set())
    for seed in range(1, seeds + 1):
        never -= run_seed(seed, level).faults.keys()
        if not never:
            return
    assert sorted(never) == []


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
