"""Mistakes about recipes, on the client's side: M70 and M74-M76 of the gallery."""

from typing import Final

from zabd.cluster_sim.mutants.mutant import Mutant

RECIPES: Final[tuple[Mutant, ...]] = ()
