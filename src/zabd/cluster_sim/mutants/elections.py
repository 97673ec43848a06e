"""Mistakes about election and leadership: M31-M33, M53, M54, M60-M62, M64, M65, M67, M77, M78."""

from typing import Final

from zabd.cluster_sim.mutants.mutant import Mutant

ELECTIONS: Final[tuple[Mutant, ...]] = ()
