"""Each invariant can fail, and does not fail where nothing is wrong: a table of both, complete."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster_sim.bug_gallery import read_all

from zabd.cluster_sim.invariants import INVARIANTS
from zabd.cluster_sim.mutants import MUTANTS

HERE = Path(__file__).parent
NEAR_MISSES = tomllib.loads((HERE / "near_misses.toml").read_text("utf-8"))

OF_EVERY_MISTAKE = {
    "D12": "it stands behind D1, D6, Z9, Z10 and Z13, any of which sees the loss earlier",
    "X6": "it is what a mistake comes to that raises something instead of doing something wrong",
}
"""Invariants without a mutant of their own, and why."""


def test_each_invariant_is_the_first_to_fire_for_a_mutant() -> None:
    """By the records of the gallery, which another test holds to be true."""
    first = {record["check"] for record in read_all().values()}
    assert first | set(OF_EVERY_MISTAKE) == set(INVARIANTS)
    assert {check for mutant in MUTANTS.values() for check in mutant.found_by} <= set(INVARIANTS)


def test_each_invariant_has_a_legal_near_miss() -> None:
    """But for X6, which has none: what raises is wrong."""
    assert set(NEAR_MISSES) == set(INVARIANTS) - {"X6"}


@pytest.mark.parametrize("check", sorted(NEAR_MISSES))
def test_the_test_of_a_near_miss_is_there(check: str) -> None:
    """Under the name that the table gives."""
    file, _, name = NEAR_MISSES[check]["test"].partition("::")
    assert name in set(names_in(HERE / file))


def names_in(file: Path) -> Iterator[str]:
    """The names of a file's tests."""
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name
