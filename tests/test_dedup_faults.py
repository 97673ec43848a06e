"""The page of the dedup recipe's faults names tests that exist, row by row, and misses none."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "dedup-faults.md"
ROWS = [*(f"F{number}" for number in range(1, 29)), *(f"A{number}" for number in range(1, 6))]
NAMED = re.compile(r"test_(?:row|acceptance)_((?:[fa]\d+_)+)")


def page() -> dict[str, list[str]]:
    """Each row's tests."""
    lines = re.findall(r"^\| ([FA]\d+) \|.*\| ([^|]+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {row: re.findall(r"`(\w+)`", tests) for row, tests in lines}


def defined() -> set[str]:
    """The names of all tests there are."""
    trees = [ast.parse(path.read_text("utf-8")) for path in (ROOT / "tests").rglob("test_*.py")]
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}


def rows_in(name: str) -> list[str]:
    """The rows that a test's name carries."""
    found = NAMED.match(name)
    codes = found.group(1).strip("_").split("_") if found else []
    return [f"{code[0].upper()}{int(code[1:])}" for code in codes]


def test_every_row_has_tests_that_exist() -> None:
    """And at least one of them carries the row's number in its name."""
    there = defined()
    assert list(page()) == ROWS
    for row, tests in page().items():
        assert set(tests) <= there, row
        assert any(row in rows_in(name) for name in tests), row


def test_every_test_of_a_row_is_on_the_page() -> None:
    """A test that is not there would not be missed."""
    listed = page()
    for name in defined():
        for row in rows_in(name):
            assert name in listed[row]
