"""Test runs of somebody else's: a project in a folder of its own, and pytest in a process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 100
# What pytest-asyncio warns of unless it is told; a fresh project may say either.
QUIET = ["-p", "no:randomly", "-W", "ignore::pytest.PytestDeprecationWarning"]


def run(folder: Path, *arguments: str, expect: int = 0) -> str:
    """Run pytest as `python -m pytest` in this folder; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *QUIET, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode != expect:
        pytest.fail(f"pytest ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def environment() -> dict[str, str]:
    """That of a user: nothing of the run that we are in ourselves."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}


def passed(output: str) -> int:
    """How many tests passed, by the last line of a run."""
    found = re.search(r"(\d+) passed", output)
    return int(found[1]) if found else 0


def processes_naming(text: str) -> list[int]:
    """The processes whose command line or environment has this text in it."""
    return [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit() and _mentions(folder, text.encode())
    ]


def _mentions(folder: Path, text: bytes) -> bool:
    try:
        return text in (folder / "environ").read_bytes()
    except OSError:  # it ended meanwhile, or is not ours
        return False
