"""The textbook forms of Z2 to Z7: quadratic, over whole histories, and slow; see `ZabChecker`.

Each says what Junqueira, Reed and Serafini, "Zab" (DSN 2011), section III, says of all pairs of
transactions, and nothing of a ledger or an index.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import TypeAlias

from zabd.model.zxid import Zxid

History: TypeAlias = Sequence[Zxid]


@dataclass
class Observed:
    """What is known of a run: who delivered what, in which order, and who broadcast when."""

    delivered: dict[str, list[Zxid]] = field(default_factory=dict)
    broadcast: dict[int, list[Zxid]] = field(default_factory=dict)
    """What the primary of each epoch has broadcast, in its order."""
    begun_with: dict[int, list[Zxid]] = field(default_factory=dict)
    """What the primary of each epoch had delivered before its first broadcast."""


def broken(seen: Observed) -> set[str]:
    """The ids of the properties that do not hold."""
    checks = {
        "Z2": total_order(seen.delivered),
        "Z3": agreement(seen.delivered),
        "Z4": prefix_consistency(seen.delivered),
        "Z5": local_primary_order(seen.delivered, seen.broadcast),
        "Z6": global_primary_order(seen.delivered),
        "Z7": primary_integrity(seen.delivered, seen.begun_with),
    }
    return {check for check, holds in checks.items() if not holds}


def total_order(delivered: Mapping[str, History]) -> bool:
    """If i delivers a before b, every j that delivers b has delivered a before b."""
    for one, other in permutations(delivered.values(), 2):
        for a, b in combinations(one, 2):
            if b in other and a not in other[: other.index(b)]:
                return False
    return True


def agreement(delivered: Mapping[str, History]) -> bool:
    """If i delivers a and j delivers b, then i delivers b or j delivers a."""
    return all(
        b in one or a in other
        for one, other in combinations(delivered.values(), 2)
        for a in one
        for b in other
    )


def prefix_consistency(delivered: Mapping[str, History]) -> bool:
    """Of two histories the shorter is a prefix of the longer."""
    return all(
        list(one[: len(other)]) == list(other[: len(one)])
        for one, other in combinations(delivered.values(), 2)
    )


def local_primary_order(delivered: Mapping[str, History], broadcast: Mapping[int, History]) -> bool:
    """For all a, b that one primary broadcast in this order: who delivers b has delivered a."""
    return all(
        b not in history or a in history[: history.index(b)]
        for order in broadcast.values()
        for a, b in combinations(order, 2)
        for history in delivered.values()
    )


def global_primary_order(delivered: Mapping[str, History]) -> bool:
    """If one delivers a of an epoch and b of a later one, it delivers a first."""
    return all(
        a.epoch <= b.epoch for history in delivered.values() for a, b in combinations(history, 2)
    )


def primary_integrity(delivered: Mapping[str, History], begun_with: Mapping[int, History]) -> bool:
    """What anyone delivers of an earlier epoch, a primary has delivered before it broadcast."""
    return all(
        b in before or b.epoch >= epoch
        for epoch, before in begun_with.items()
        for history in delivered.values()
        for b in history
    )
