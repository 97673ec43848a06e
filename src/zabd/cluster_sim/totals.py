"""What many runs come to: one line of JSON for each run, and their sum.

A run's line holds what decides nothing about the next one, so lines of several sessions, machines
or pieces add up to the totals of all of them.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

from zabd.cluster_sim.core_level import Outcome

TAIL_LINES = 20
"""Of a failing run's trace, kept with it: its last steps explain most failures."""


def outcome_as_object(outcome: Outcome) -> dict[str, Any]:
    """What JSON can hold of a run: the same, whenever and wherever the seed is run."""
    failure = outcome.failure
    return {
        "seed": outcome.seed,
        "level": outcome.level,
        "digest": outcome.digest,
        "events": outcome.events,
        "virtual_ms": outcome.virtual_ms,
        "committed": outcome.committed,
        "elections": outcome.elections,
        "faults": outcome.faults,
        "failure": None if failure is None else {"check": failure.id, "detail": failure.detail},
    }


def outcome_as_entry(outcome: Outcome) -> dict[str, Any]:
    """What a journal keeps of a run: that, the CPU it took, and what explains a failure."""
    entry = {**outcome_as_object(outcome), "cpu_s": round(outcome.cpu_s, 4)}
    if outcome.failure is not None:
        entry |= {"tail": outcome.tail[-TAIL_LINES:], "shape": outcome.shape}
    return entry


class Totals:
    """The sum of many runs."""

    def __init__(self) -> None:
        self.seeds = 0
        self.failed = 0
        self.events = 0
        self.virtual_ms = 0
        self.committed = 0
        self.elections = 0
        self.cpu_s = 0.0
        self.faults: Counter[str] = Counter()
        self.checks: Counter[str] = Counter()

    def add(self, entry: Mapping[str, Any]) -> None:
        """One run more, as a journal has it."""
        self.seeds += 1
        self.events += entry["events"]
        self.virtual_ms += entry["virtual_ms"]
        self.committed += entry["committed"]
        self.elections += entry["elections"]
        self.cpu_s += entry["cpu_s"]
        self.faults.update(entry["faults"])
        if entry["failure"] is not None:
            self.failed += 1
            self.checks[entry["failure"]["check"]] += 1

    def __iadd__(self, other: "Totals") -> Self:
        for name in ("seeds", "failed", "events", "virtual_ms", "committed", "elections", "cpu_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults.update(other.faults)
        self.checks.update(other.checks)
        return self

    def as_object(self) -> dict[str, Any]:
        """What JSON can hold."""
        return {
            "seeds": self.seeds,
            "failed": self.failed,
            "events": self.events,
            "virtual_ms": self.virtual_ms,
            "committed": self.committed,
            "elections": self.elections,
            "cpu_s": round(self.cpu_s, 2),
            "faults": dict(sorted(self.faults.items())),
            "checks": dict(sorted(self.checks.items())),
        }
