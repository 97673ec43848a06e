"""Ensembles of real processes; a failed test keeps its folder, with each member's log in it."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.ensemble.harness import serving
from tests.ensemble.zabctl import Script

from zabd.cli.members import Ensemble

_places = count(1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three members that a module's tests share; each test keeps to znodes of its own."""
    with serving(tmp_path_factory.mktemp("shared")) as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    """Three members for a test that does things to them."""
    with serving(tmp_path) as members:
        yield members


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Add the members' logs to the report of a test that failed."""
    report = yield
    if report.failed and call.when == "call":
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Ensemble):
                report.sections.append(("members", value.logs()))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests have measured with `record_property`."""
    lines = [
        f"{report.nodeid}: " + ", ".join(f"{name} {value}" for name, value in figures)
        for reports in terminalreporter.stats.values()
        for report in reports
        if (figures := getattr(report, "user_properties", [])) and report.when == "call"
    ]
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture
def script(shared: Ensemble) -> Script:
    """Commands of `zabctl` for the shared ensemble."""
    return Script(shared.hosts)


@pytest.fixture
def place(script: Script) -> str:
    """A znode below which the test may do as it likes."""
    return script.output("create", f"/zabctl-{next(_places)}").strip()
