"""What the groups of faults have in common."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

    from zabd.cluster_sim.core_level import CoreLevel
    from zabd.cluster_sim.core_member import CoreMember
    from zabd.cluster_sim.faults import Nemesis

NOTHING_LATER: Final[frozenset[str]] = frozenset()


class FaultGroup:
    """Some kinds of faults: `kinds` begins one of each; False means that nothing was done.

    Those of `noted_later` only prepare something, and note it themselves when it has happened.
    """

    kinds: dict[str, Callable[[], bool]]
    noted_later = NOTHING_LATER

    def __init__(self, nemesis: "Nemesis") -> None:
        self.nemesis = nemesis
        self.level: CoreLevel = nemesis.level

    @property
    def rng(self) -> "Random":
        """The chance of the fault that begins now."""
        return self.nemesis.rng

    def victim(self) -> "CoreMember | None":
        """Whom it hits."""
        return self.nemesis.victim()

    def later(self, undo: Callable[[], object]) -> None:
        """When it ends."""
        self.nemesis.later(undo)

    def stop(self) -> None:
        """Mend all that is mended by no end of its own."""
