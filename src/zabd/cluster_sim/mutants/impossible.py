"""Mistakes of the gallery that nobody can plant here: the code has no place where they could be."""

from typing import Final

from zabd.cluster_sim.mutants.mutant import Impossible

IMPOSSIBLE: Final[tuple[Impossible, ...]] = ()
