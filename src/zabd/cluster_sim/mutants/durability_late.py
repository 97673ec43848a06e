"""Mistakes about synchronisation and late writes: M18-M30 of the gallery."""

from typing import Final

from zabd.cluster_sim.mutants.mutant import Mutant

DURABILITY_LATE: Final[tuple[Mutant, ...]] = ()
