"""Mistakes about snapshots, replay and the tree: M34-M37, M50-M52, M58, M66 and M71."""

from typing import Final

from zabd.cluster_sim.mutants.mutant import Mutant

DATA: Final[tuple[Mutant, ...]] = ()
