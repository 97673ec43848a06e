"""The how-to, followed word by word with a wheel in an environment of its own: what a user gets."""

import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.documents import commands_of, files_of
from tests.testing.runs import environment, passed
from tests.testing.test_how_to import PAGE

REPOSITORY = Path(__file__).parents[2]
INSTALL_S = 300.0
READY_S_MAX = 1.0
READY_RUNS = 10
READY = "def test_it_is_ready(zab_ensemble):\n    assert zab_ensemble.hosts\n"

pytestmark = [pytest.mark.ensemble, pytest.mark.slow, pytest.mark.timeout(900)]


class Project:
    """A folder with a virtual environment, and nothing of the repository in its way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        wheels = folder / "wheels"
        self._run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels, REPOSITORY)
        [self._wheel] = wheels.glob("zabd-*.whl")
        self._run(sys.executable, "-m", "venv", folder / "venv")
        for name, text in files_of(PAGE).items():
            (folder / name).write_text(text, encoding="utf-8")

    def do(self, words: list[str]) -> str:
        """A command of the page's; zabd is the wheel, for it may not be published yet."""
        wanted = [str(self._wheel) if word == "zabd" else word for word in words]
        return self._run(self.folder / "venv" / "bin" / wanted[0], *wanted[1:])

    def _run(self, *command: str | Path) -> str:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
        if done.returncode:
            pytest.fail(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout


def test_a_fresh_project_follows_the_page(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Every command as it stands; then how long a first test waits for three members."""
    project = Project(tmp_path)
    files = files_of(PAGE)
    for words in commands_of(PAGE):
        output = project.do(words)
        if words[0] == "pytest":
            assert passed(output) == sum(files[name].count("def test_") for name in words[1:])

    (tmp_path / "test_ready.py").write_text(READY, encoding="utf-8")
    took_s = [
        _setup_s(project.do(["pytest", "--durations=0", "test_ready.py"]))
        for _ in range(READY_RUNS)
    ]
    median = statistics.median(took_s)
    print(f"three members are ready in {median:.2f} s, median of {took_s}")  # noqa: T201 - told with -s
    record_property("ready_s", median)
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    assert median < READY_S_MAX * max(1.0, busy)


def _setup_s(output: str) -> float:
    found = re.search(r"([\d.]+)s setup +test_ready", output)
    assert found is not None, output
    return float(found[1])
