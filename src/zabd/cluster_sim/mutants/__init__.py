"""Bugs on purpose: each mutant puts one known mistake into the code of production, for one run.

None of them is in the product: a mutant replaces a method from outside while its context is open.
They show that the checks can fail, and how soon chance finds what they find.

The ids are those of docs/reference/bug-gallery.md, which is generated from what is written here and
from the records in tests/cluster_sim/gallery, one file for each of `GROUPS`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from zabd.cluster_sim.mutants.data import DATA
from zabd.cluster_sim.mutants.disks import DISKS
from zabd.cluster_sim.mutants.durability import DURABILITY
from zabd.cluster_sim.mutants.durability_late import DURABILITY_LATE
from zabd.cluster_sim.mutants.elections import ELECTIONS
from zabd.cluster_sim.mutants.impossible import IMPOSSIBLE
from zabd.cluster_sim.mutants.mutant import Impossible, Mutant
from zabd.cluster_sim.mutants.recipes import RECIPES
from zabd.cluster_sim.mutants.sessions import SESSIONS
from zabd.cluster_sim.mutants.snapshots import SNAPSHOTS

__all__ = ["GROUPS", "IMPOSSIBLE", "MUTANTS", "Impossible", "Mutant"]

GROUPS: Final[Mapping[str, tuple[Mutant, ...]]] = MappingProxyType(
    {
        "durability": DURABILITY,
        "durability_late": DURABILITY_LATE,
        "elections": ELECTIONS,
        "data": DATA,
        "snapshots": SNAPSHOTS,
        "disks": DISKS,
        "sessions": SESSIONS,
        "recipes": RECIPES,
    }
)
"""The gallery in its order. A group is a module here and a file of records in the tests."""

MUTANTS: Final[dict[str, Mutant]] = {
    mutant.name: mutant for group in GROUPS.values() for mutant in group
}
