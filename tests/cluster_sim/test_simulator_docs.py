"""The reference names everything there is."""

from pathlib import Path

from zabd.cluster_sim.fault_kinds import FAULT_KINDS
from zabd.cluster_sim.invariants import INVARIANTS

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "simulator.md").read_text()


def test_every_check_and_fault_is_documented() -> None:
    """With the sentence that the code has for it."""
    for check, (name, rule) in INVARIANTS.items():
        assert f"| {check} | `{name}` | {rule} |" in TEXT
    for kind, what in FAULT_KINDS.items():
        assert f"| `{kind}` | {what} |" in TEXT
