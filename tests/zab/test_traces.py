"""The scenarios in `traces/`: what happened is what the transcript says, line by line.

A trace is reviewed as prose. `pytest tests/zab/test_traces.py --rewrite-traces` writes it anew.
"""

from pathlib import Path

import pytest
from tests.zab.scenario import Scenario

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))
RULE = "----\n"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path, pytestconfig: pytest.Config) -> None:
    """A scenario tells the same story each time, and it is the one that was reviewed."""
    scenario, _, expected = path.read_text(encoding="utf-8").partition(RULE)

    told = Scenario().play(scenario)

    if pytestconfig.getoption("--rewrite-traces"):
        path.write_text(scenario + RULE + told, encoding="utf-8")
    else:
        assert told == expected
