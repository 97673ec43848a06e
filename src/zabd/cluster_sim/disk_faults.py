"""Faults of disks that a process is at work on: slowness, errors, and power cuts that are aimed."""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.disk_image import NAMES_LOST, NOTHING_SURVIVES, TORN, Losses, Survival
from zabd.cluster_sim.disks import Hurt, SimDisk, spans_sectors
from zabd.cluster_sim.fault_group import FaultGroup
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.storage.disk import Create, DiskOp, Rename, Sync, SyncDir, Unlink, WriteAt

if TYPE_CHECKING:
    from zabd.cluster_sim.core_member import CoreMember
    from zabd.cluster_sim.faults import Nemesis

_LEFT_BYTES: Final = (0, 4_000, 100_000)  # on a disk that is called full


class DiskFaults(FaultGroup):
    """What happens to disks at work."""

    def __init__(self, nemesis: "Nemesis") -> None:
        super().__init__(nemesis)
        aimed: dict[str, Callable[[], bool]] = {
            "unsynced writes lost": self._power_cut_behind(
                "unsynced writes lost",
                lambda op: isinstance(op, WriteAt),
                NOTHING_SURVIVES,
                lambda losses: losses.writes,
            ),
            "torn write": self._power_cut_behind(
                "torn write", spans_sectors, TORN, lambda losses: losses.torn
            ),
            "lost rename": self._power_cut_behind(
                "lost rename",
                lambda op: isinstance(op, Rename),
                NAMES_LOST,
                lambda losses: losses.renames,
            ),
            "lost directory entry": self._power_cut_behind(
                "lost directory entry",
                lambda op: isinstance(op, Create | Unlink),
                NAMES_LOST,
                lambda losses: losses.entries,
            ),
        }
        failing: dict[str, Callable[[], bool]] = {
            "write error": self._failing("write error", WriteAt, errno.EIO),
            "sync error": self._failing("sync error", Sync, errno.EIO),
            "disk full at the sync": self._failing("disk full at the sync", Sync, errno.ENOSPC),
            "disk full": self._fill,
            "slow sync": self._slow_syncs,
        }
        self.kinds = {**aimed, **failing, "disk stall": self._stall}
        self.noted_later = frozenset(aimed | failing)

    def stop(self) -> None:
        """Disks work again, and have room; what is broken for a process stays so."""
        for member in self.level.members.values():
            for image in member.images:
                image.make_room()
            for disk in member.process.disks if member.process is not None else ():
                disk.traps.clear()
                disk.injector = None
                disk.sync_delay_us = 0
                disk.resume()

    def _disk(self) -> "tuple[CoreMember, SimDisk] | None":
        victim = self.victim()
        if victim is None or victim.process is None or not victim.process.disks:
            return None
        return victim, self.rng.choice(victim.process.disks)

    # --- power cuts behind a chosen operation ----------------------------------------------------

    def _power_cut_behind(
        self,
        kind: str,
        is_meant: Callable[[DiskOp], bool],
        survival: Survival,
        lost: Callable[[Losses], int],
    ) -> Callable[[], bool]:
        def prepare() -> bool:
            found = self._disk()
            if found is None:
                return False
            member, disk = found
            process, level = member.process, self.level

            def cut() -> None:
                if member.process is process:
                    losses = level.crash(member, power=True, survival=survival)
                    if lost(losses):
                        self.nemesis.note(kind)

            def trap(op: DiskOp, done: bool) -> bool:  # noqa: FBT001 - a trap's
                if not (done and is_meant(op)):
                    return False
                level.schedule.after(0, cut)
                return True

            disk.traps.append(trap)
            return True

        return prepare

    # --- errors ----------------------------------------------------------------------------------

    def _failing(self, kind: str, ops: type[DiskOp], number: int) -> Callable[[], bool]:
        def begin() -> bool:
            found = self._disk()
            if found is None or found[1].disturbed:
                return False
            hurt = Hurt(number, happened=lambda: self.nemesis.note(kind))
            left = self.rng.choice((1, 1 << 30))  # once, after which it lies, or for ever

            def fail(op: DiskOp) -> Hurt | None:
                nonlocal left
                if not isinstance(op, ops) or not left:
                    return None
                left -= 1
                return hurt

            found[1].injector = fail
            return True

        return begin

    def _fill(self) -> bool:
        found = self._disk()
        if found is None or found[1].image.crowded:
            return False
        image = found[1].image
        for disk in found[0].process.disks if found[0].process is not None else ():
            disk.has_failed = disk.has_failed or disk.image is image
        image.fill(self.rng.choice(_LEFT_BYTES), lambda: self.nemesis.note("disk full"))
        self.later(image.make_room)
        return True

    # --- slowness --------------------------------------------------------------------------------

    def _stall(self) -> bool:
        found = self._disk()
        if found is None:
            return False
        disk = found[1]
        disk.stall()
        self.later(disk.resume)
        return True

    def _slow_syncs(self) -> bool:
        found = self._disk()
        if found is None:
            return False
        disk, tick_us = found[1], self.level.shape.tick_ms * US_PER_MS
        disk.sync_delay_us = int(tick_us * self.rng.choice((0.3, 1, 3)))

        def trap(op: DiskOp, done: bool) -> bool:  # noqa: FBT001 - a trap's
            if done or not isinstance(op, Sync | SyncDir):
                return False
            if disk.sync_delay_us:
                self.nemesis.note("slow sync")
            return True

        def mend() -> None:
            disk.sync_delay_us = 0

        disk.traps.append(trap)
        self.later(mend)
        return True
