"""Mistakes about damaged storage: M55-M57, M63, M68 and M72 of the gallery."""

from typing import Final

from zabd.cluster_sim.mutants.mutant import Mutant

DISKS: Final[tuple[Mutant, ...]] = ()
