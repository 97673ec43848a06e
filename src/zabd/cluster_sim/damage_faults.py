"""Faults that a member finds on its disk when it comes back: damage, and a disk that is empty."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from zabd.cluster_sim.damage import DAMAGES
from zabd.cluster_sim.fault_group import FaultGroup

if TYPE_CHECKING:
    from zabd.cluster_sim.faults import Nemesis


class DamageFaults(FaultGroup):
    """What happens to disks behind everybody's back, never of one member too many."""

    noted_later = frozenset(DAMAGES)

    def __init__(self, nemesis: "Nemesis") -> None:
        super().__init__(nemesis)
        self.kinds = {kind: self._damaging(kind) for kind in DAMAGES}
        self.kinds["rot"] = self._rot
        self.kinds["lost disk"] = self._lose_disk

    def _damaging(self, kind: str) -> Callable[[], bool]:
        def damage() -> bool:
            victim = self.victim()
            if victim is None or not self.level.may_damage(victim):
                return False
            if self.level.damage_disk(victim, kind, self.rng):
                self.nemesis.note(kind)
            return True

        return damage

    def _rot(self) -> bool:
        victim = self.victim()
        return victim is not None and self.level.rot_disk(victim, self.rng)

    def _lose_disk(self) -> bool:
        victim = self.victim()
        return victim is not None and self.level.lose_disk(victim)
