"""The runbook and the tutorial, as `make runbook` and `make tutorial` run them."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.runbook import PAGE, TUTORIAL, steps

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.ensemble
@pytest.mark.parametrize("page", [PAGE, TUTORIAL], ids=lambda page: page.stem)
def test_the_commands_of_a_page_do_what_it_says(page: Path) -> None:
    """Loudly skipped where the names or the ports cannot be had."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runbook", str(page)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "runbook: NOT RUN" in done.stdout:
        pytest.skip(done.stdout)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"runbook: {page.name} passed" in done.stdout


@pytest.mark.parametrize("page", [PAGE, TUTORIAL], ids=lambda page: page.stem)
def test_a_page_says_what_to_expect(page: Path) -> None:
    """A page whose expectations were not found would always pass."""
    assert sum(bool(step.expected.strip()) for step in steps(page)) > 8
