"""The how-to, followed word by word in a project outside of the repository."""

from pathlib import Path

import pytest
from tests.documents import commands_of, files_of
from tests.testing.runs import passed, run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-your-code.md"
TESTS = [words[1:] for words in commands_of(PAGE) if words[0] == "pytest"]

pytestmark = pytest.mark.ensemble


@pytest.mark.parametrize("arguments", TESTS, ids=" ".join)
def test_what_the_page_shows_passes(arguments: list[str], tmp_path: Path) -> None:
    """Each file as it stands, run by the command that stands below it."""
    files = files_of(PAGE)
    for name in arguments:
        (tmp_path / name).write_text(files[name], encoding="utf-8")

    output = run(tmp_path, *arguments)

    assert passed(output) == sum(files[name].count("def test_") for name in arguments)


def test_the_page_shows_what_this_file_believes() -> None:
    """An empty list above would pass in silence."""
    assert sorted(files_of(PAGE)) == ["test_faults.py", "test_fixtures.py", "test_orders.py"]
    assert len(TESTS) == 3


def test_ten_lines_are_ten() -> None:
    """The body of the test, and its head."""
    lines = files_of(PAGE)["test_orders.py"].partition("def ")[2].splitlines()

    assert len(lines) <= 10
