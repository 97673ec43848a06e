"""A pytest plugin for the process that runs kazoo's suite: one JSON line per finished test.

It is loaded with ``-p`` into a Python that has kazoo and pytest only, so it imports nothing of
ours. ``COMPAT_REPORT`` names the file.
"""

import json
import os
from pathlib import Path

import pytest

RANK = {"passed": 0, "skipped": 1, "failed": 2}


class Reporter:
    """Joins set-up, call and tear-down of a test to one verdict."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._phases: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called once for each phase of each test."""
        self._phases.append(report)
        if report.when == "teardown":
            self._finish()

    def _finish(self) -> None:
        worst = max(self._phases, key=lambda phase: RANK[phase.outcome])
        line = {
            "test": worst.nodeid,
            "outcome": worst.outcome,
            "seconds": round(sum(phase.duration for phase in self._phases), 3),
            "why": "" if worst.passed else worst.longreprtext[-4000:],
        }
        self._phases.clear()
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Register the reporter."""
    config.pluginmanager.register(Reporter(Path(os.environ["COMPAT_REPORT"])))
