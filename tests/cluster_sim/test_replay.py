"""A saved run is had again, or the place is named where it differs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.plan import Plan
from zabd.cluster_sim.replay import Saved, carry_out, first_difference

pytestmark = pytest.mark.sim

FAILING = Plan(3, "zab", "ack-before-fsync")


def test_a_saved_run_is_had_again(tmp_path: Path) -> None:
    """Seed, level and mistake make the run; the file holds its whole trace."""
    saved, outcome, _ = carry_out(FAILING)
    saved.write(tmp_path / "run.json")
    read = Saved.read(tmp_path / "run.json")
    assert read == saved
    assert outcome.failure is not None
    assert read.failure == ("D1", outcome.failure.detail)
    again, _, _ = carry_out(read.plan)
    assert first_difference(read, again) is None


def test_a_plan_keeps_what_was_changed_of_a_run(tmp_path: Path) -> None:
    """A shrunk run has a shape, clients and decisions of its own; JSON gives all of them back."""
    shape = replace(CoreLevel(7).shape, voters=2, kinds=("kill",))
    plan = Plan(7, "core", None, shape, clients=1, decisions=())
    saved, outcome, _ = carry_out(plan)
    saved.write(tmp_path / "run.json")
    assert Saved.read(tmp_path / "run.json").plan == plan
    assert outcome.faults == {}


def test_the_first_line_that_differs_is_named() -> None:
    """With both lines, and a few before them."""
    saved, _, _ = carry_out(FAILING)
    lines = (*saved.lines[:50], "something else", *saved.lines[51:])
    other = replace(saved, lines=lines, digest="0")
    difference = first_difference(other, saved)
    assert difference is not None
    assert difference.number == 51
    assert difference.expected == "something else"
    assert difference.came == saved.lines[50]
    assert difference.before == saved.lines[47:50]
    shorter = replace(saved, lines=saved.lines[:50], digest="0")
    difference = first_difference(shorter, saved)
    assert difference is not None
    assert difference.expected is None


def test_a_digest_that_is_not_that_of_the_lines_is_a_difference() -> None:
    """Somebody has changed the file."""
    saved, _, _ = carry_out(FAILING)
    difference = first_difference(replace(saved, digest="0"), saved)
    assert difference is not None
    assert difference.expected == "digest 0"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "something"}, "does not hold a run"),
        ({"version": 99}, "version 99"),
        ({"level": "moon"}, "not a level"),
        ({"mutant": "gremlins"}, "gremlins"),
    ],
)
def test_a_file_that_is_no_run_is_refused(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    """With a sentence."""
    file = tmp_path / "run.json"
    carry_out(FAILING)[0].write(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ValueError, match=said):
        Saved.read(file)
