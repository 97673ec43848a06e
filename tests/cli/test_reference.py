import re
from pathlib import Path

from zabd.cli.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "zabctl.md"


def test_the_reference_says_what_the_help_says() -> None:
    """If not: python -m zabd.cli.reference > docs/reference/zabctl.md."""
    assert PAGE.read_text(encoding="utf-8").strip() == reference().strip()


def test_each_exit_status_has_a_line_of_its_own() -> None:
    """A table that is filled like prose cannot be read, and a raw docstring makes it that."""
    page = reference()
    assert "\\b" not in page
    assert page.count("Exit status:") == len(re.findall(r"\n  Exit status:.*\n    \d", page)) > 3
    assert "\n    127  COMMAND is not found\n" in page
