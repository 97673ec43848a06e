"""The how-to on simulating one's own code, followed word by word in a folder of its own."""

import re
from pathlib import Path
from textwrap import indent

import pytest
from tests.documents import commands_of, files_of
from tests.testing.runs import passed, run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "simulate-your-code.md"
TEXT = PAGE.read_text("utf-8")
FILES = files_of(PAGE)
TESTS = [words[1] for words in commands_of(PAGE) if words[0] == "pytest"]
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
[SHOWN] = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
[FIX] = [indent(block, 12 * " ") for block in PYTHON if block.startswith("before = ")]

pytestmark = pytest.mark.sim


def write(folder: Path, **changed: str) -> None:
    """Every file of the page."""
    for name, content in FILES.items():
        (folder / name).write_text(changed.get(name.removesuffix(".py"), content), "utf-8")


@pytest.mark.parametrize("test", ["test_leader.py", "test_lock_under_faults.py"])
def test_what_the_page_calls_right_passes(test: str, tmp_path: Path) -> None:
    """An experiment, and the lock of the recipes under faults."""
    write(tmp_path)
    assert passed(run(tmp_path, test)) == (1 if test == "test_leader.py" else 5)


def test_the_naive_lock_is_found_out_as_the_page_says(tmp_path: Path) -> None:
    """Most of the five seeds, and what one of them prints stands on the page as it is."""
    write(tmp_path)
    output = run(tmp_path, "test_naive_lock.py", expect=1)
    assert passed(output) < 3
    told = [line.removeprefix("E").strip() for line in output.splitlines()]
    expected = SHOWN.splitlines()
    begin = told.index(expected[1]) - 1
    assert told[begin : begin + len(expected)] == expected


def test_with_the_fix_of_the_page_it_passes(tmp_path: Path) -> None:
    """Two lines become three."""
    naive = FILES["naive_lock.py"]
    begin = naive.index("            await self._zk.exists(")
    end = naive.index("\n    async def __aexit__")
    write(tmp_path, naive_lock=naive[:begin] + FIX + naive[end:])
    assert passed(run(tmp_path, "test_naive_lock.py")) == 5


def test_the_picture_of_the_failure_is_drawn(tmp_path: Path) -> None:
    """With the option that the page names, also though the run fails."""
    test = FILES["test_naive_lock.py"]
    drawn = test.replace("deadline=60)", 'deadline=60, html="run.html")')
    assert drawn != test
    write(tmp_path, test_naive_lock=drawn)
    run(tmp_path, "test_naive_lock.py::test_everybody_gets_the_lock[4]", expect=1)
    assert 'id="record"' in (tmp_path / "run.html").read_text("utf-8")


def test_the_page_is_what_this_file_believes() -> None:
    """Its commands are those that run here, an experiment is short, and the example is the same."""
    assert set(TESTS) == {name for name in FILES if name.startswith("test_")}
    assert len(FILES["test_leader.py"].splitlines()) <= 15
    example = (ROOT / "examples" / "naive_lock.py").read_text("utf-8")
    assert example.partition("\n\n")[2] == FILES["naive_lock.py"]
