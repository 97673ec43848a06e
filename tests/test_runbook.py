"""The runbook, as `make runbook` runs it."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.runbook import PAGE, steps

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.ensemble
def test_the_commands_of_the_runbook_do_what_it_says() -> None:
    """Loudly skipped where the names or the ports cannot be had."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runbook"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "runbook: NOT RUN" in done.stdout:
        pytest.skip(done.stdout)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "runbook: passed" in done.stdout


def test_the_runbook_says_what_to_expect() -> None:
    """A page whose expectations were not found would always pass."""
    expectations = [step.expected for step in steps(PAGE) if step.expected.strip()]

    assert len(expectations) > 10
    assert any("acquired lock-..." in expected for expected in expectations)
