"""Bugs on purpose: each mutant puts one known mistake into the code of production, for one run.

None of them is in the product: a mutant replaces a method from outside while its context is open.
They show that the checks can fail, and how soon chance finds what they find.

The ids are those of the known mistakes in docs/reference/rules.md.
"""

from typing import Final

from zabd.cluster_sim.mutants.data import DATA
from zabd.cluster_sim.mutants.disks import DISKS
from zabd.cluster_sim.mutants.durability import DURABILITY
from zabd.cluster_sim.mutants.elections import ELECTIONS
from zabd.cluster_sim.mutants.mutant import Mutant
from zabd.cluster_sim.mutants.recipes import RECIPES
from zabd.cluster_sim.mutants.sessions import SESSIONS

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: Final[dict[str, Mutant]] = {
    mutant.name: mutant for mutant in (*DURABILITY, *ELECTIONS, *DATA, *DISKS, *SESSIONS, *RECIPES)
}
