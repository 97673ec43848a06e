"""The page on the client protocol names every section once, and only tests that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "protocol.md"
SECTIONS = 25


def rows() -> list[list[str]]:
    """The cells of the table of sections."""
    lines = PAGE.read_text("utf-8").splitlines()
    table = [line for line in lines if re.match(r"\| [0-9]+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_every_section_has_a_row() -> None:
    """In their order, none left out."""
    assert [int(row[0]) for row in rows()] == list(range(1, SECTIONS + 1))


def test_what_is_done_has_tests_that_exist() -> None:
    """A section without a test is one that comes later."""
    for number, _subject, done, tests in rows():
        modules = re.findall(r"`([^`]+)`", tests)
        assert modules or done == "later", number
        for module in modules:
            text = (ROOT / module).read_text("utf-8")
            assert re.search(r"^def test_|^    def test_", text, re.MULTILINE), module
