"""Coverage tells what runs have been through, and looks at them without changing them."""

import pytest

from zabd.cluster_sim.coverage import Coverage, gathering
from zabd.cluster_sim.sweep import run_seed, run_seeds
from zabd.zab.peer import Peer

pytestmark = pytest.mark.sim

BATCH = (5, 13, 17, 29)  # of the first thirty seeds the quickest that reach everything together


def test_every_state_and_transition_is_reached_over_a_batch() -> None:
    """What no run ever reaches, no check ever judges (X3)."""
    coverage = Coverage()
    for outcome in run_seeds(BATCH, "zab", coverage=True):
        assert outcome.coverage is not None
        coverage.add(outcome.coverage)
    missing = coverage.missing()
    assert missing["states"] == []
    assert missing["transitions"] == []
    assert {"A2", "D1", "Z1", "Z9", "Z13", "Z15", "L1"}.isdisjoint(missing["checks"])


def test_what_was_not_reached_is_told() -> None:
    """By name, for each kind; nothing at all was, without a run."""
    coverage = Coverage()
    assert "Looking --Follow--> Following" in coverage.missing()["transitions"]
    coverage.add({"messages": {"Ack leading/broadcast": 3}})
    missing = coverage.missing()["messages"]
    assert "Ack" not in missing
    assert "TruncRefused" in missing


def test_a_run_that_is_looked_at_is_the_same_run() -> None:
    """And nothing stays behind in the code that is shipped."""
    step = Peer.step
    assert run_seed(17, "zab", coverage=True).digest == run_seed(17, "zab").digest
    assert Peer.step is step
    with gathering():
        assert Peer.step is not step
    assert Peer.step is step


def test_coverage_costs_nothing_where_it_is_not_asked_for() -> None:
    """An outcome without it has none."""
    assert run_seed(17, "zab").coverage is None
