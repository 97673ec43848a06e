"""Faults of processes and their machines: crashes, pauses, slowness, clocks, leadership."""

from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.fault_group import FaultGroup
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.storage.disk import DiskOp
from zabd.zab import events as ev
from zabd.zab.messages import PeerState

if TYPE_CHECKING:
    from zabd.cluster_sim.faults import Nemesis

FUSE_EFFECTS_MAX: Final = 40  # a busy step has about ten effects: within the next few steps
DISK_OPS_MAX: Final = 20

_HOUR_MS: Final = 3_600_000
STEPS_MS: Final = (1_000, _HOUR_MS, 10 * 365 * 24 * _HOUR_MS)
RATES: Final = (0.5, 0.9, 1.1, 2.0)


class ProcessFaults(FaultGroup):
    """What happens to processes."""

    noted_later = frozenset({"crash between effects", "crash at the disk", "snapshot"})

    def __init__(self, nemesis: "Nemesis") -> None:
        super().__init__(nemesis)
        self.kinds = {
            "kill": lambda: self._crash(power=False),
            "power cut": lambda: self._crash(power=True),
            "power cut of all": self._crash_all,
            "crash between effects": self._light_a_fuse,
            "crash at the disk": self._crash_at_the_disk,
            "pause": self._pause,
            "slow member": self._slow_down,
            "clock step": self._step_clock,
            "clock drift": self._bend_clock,
            "abdicate": self._abdicate,
            "named leader": self._name_a_leader,
            "snapshot": self._snapshot,
        }

    def stop(self) -> None:
        """Nobody is about to crash, stopped, slow, or in a time of its own."""
        for member in self.level.members.values():
            member.set_rate(member.own_rate)
            process = member.process
            if process is not None:
                process.fuse = None
                process.slow_down(0)  # what it takes now may be its end
                process.resume()

    def _crash(self, *, power: bool) -> bool:
        victim = self.victim()
        if victim is None:
            return False
        self.level.crash(victim, power=power)
        return True

    def _crash_all(self) -> bool:
        for member in self.level.members.values():
            self.level.crash(member, power=True)
        return True

    def _light_a_fuse(self) -> bool:
        victim = self.victim()
        if victim is None or victim.process is None or victim.process.fuse is not None:
            return False
        victim.process.fuse = (self.rng.randrange(FUSE_EFFECTS_MAX), bool(self.rng.getrandbits(1)))
        return True

    def _crash_at_the_disk(self) -> bool:
        victim = self.victim()
        if victim is None or victim.process is None or not victim.process.disks:
            return False
        left, power = self.rng.randrange(DISK_OPS_MAX), self.rng.getrandbits(1)
        process, level = victim.process, self.level

        def crash() -> None:
            if victim.process is process:
                self.nemesis.note("crash at the disk")
                level.crash(victim, power=bool(power))

        def count(_op: DiskOp, done: bool) -> bool:  # noqa: FBT001 - a trap's
            nonlocal left
            left -= not done
            if left < 0:
                # Within the operation's time, so that chance decides whether it was done.
                level.schedule.after(0, crash)
            return left < 0

        self.rng.choice(process.disks).traps.append(count)
        return True

    def _pause(self) -> bool:
        victim = self.victim()
        if victim is None or victim.process is None or victim.process.paused:
            return False
        process = victim.process
        process.pause()
        self.later(process.resume)
        return True

    def _slow_down(self) -> bool:
        victim = self.victim()
        if victim is None or victim.process is None:
            return False
        process, tick_us = victim.process, self.level.shape.tick_ms * US_PER_MS
        process.slow_down(int(tick_us * self.rng.choice((0.05, 0.3, 1))))
        self.later(lambda: process.slow_down(0))
        return True

    def _step_clock(self) -> bool:
        victim = self.victim()
        if victim is None or not self.level.tells_time:
            return False
        step_ms = self.rng.choice(STEPS_MS) * self.rng.choice((1, -1))
        victim.wall_clock.step_ms += step_ms

        def step_back() -> None:
            victim.wall_clock.step_ms -= step_ms

        self.later(step_back)
        return True

    def _bend_clock(self) -> bool:
        victim = self.victim()
        if victim is None or victim.rate != victim.own_rate:
            return False
        victim.set_rate(self.rng.choice(RATES))
        self.later(lambda: victim.set_rate(victim.own_rate))
        return True

    def _abdicate(self) -> bool:
        victim = self.victim()
        if victim is None or victim.process is None or victim is not self.level.a_leader():
            return False
        process = victim.process
        process.enter(lambda: process.step(ev.Abdicate("the nemesis says so")))
        return True

    def _name_a_leader(self) -> bool:
        """Safety does not rest on elections: whoever is looking follows whom chance names."""
        level = self.level
        named = self.rng.choice(level.voters)
        looking = [
            member.process
            for member in level.members.values()
            if member.process is not None
            and member.process.peer is not None
            and member.process.peer.state is PeerState.LOOKING
        ]
        for process in looking:
            process.enter(lambda process=process: process.name_leader(named))  # type: ignore[misc]
        return bool(looking)

    def _snapshot(self) -> bool:
        victim = self.victim()
        if victim is None or victim.process is None:
            return False
        victim.on_snapshot = lambda: self.nemesis.note("snapshot")
        victim.process.enter(victim.process.take_snapshot)
        return True
