"""Faults: what goes wrong in a run at the core level, when, and for how long.

Every kind in `shape.FAULT_KINDS` is one method here. Kinds and times are drawn from the stream
"faults" only, so the same seed breaks the same things. A fault that ends keeps its own end: healing
the network at the end of the faulty phase is not left to chance.
"""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.connections import Connection, Latency
from zabd.cluster_sim.disks import Hurt
from zabd.cluster_sim.network import Host
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.storage.disk import DiskOp, Sync
from zabd.zab import events as ev
from zabd.zab.messages import PeerState

if TYPE_CHECKING:
    from zabd.cluster_sim.core_level import CoreLevel
    from zabd.cluster_sim.core_member import CoreMember

FUSE_EFFECTS_MAX: Final = 40  # a busy step has about ten effects: within the next few steps
DISK_OPS_MAX: Final = 20


class Nemesis:
    """Breaks one run, a fault at a time, for as long as it is told to."""

    def __init__(self, level: "CoreLevel") -> None:
        self.level = level
        self.rng = level.schedule.stream("faults")
        self.happened: dict[str, int] = {}
        self._over = False
        self._kinds: dict[str, Callable[[], bool]] = {
            "kill": lambda: self._crash(power=False),
            "power cut": lambda: self._crash(power=True),
            "power cut of all": self._crash_all,
            "crash between effects": self._light_a_fuse,
            "crash at the disk": self._crash_at_the_disk,
            "pause": self._pause,
            "partition": self._partition,
            "one-way partition": self._one_way,
            "bridge": self._bridge,
            "isolate the leader": self._isolate_leader,
            "cut": lambda: self._connection(Connection.cut),
            "half-open": self._half_open,
            "stall": self._stall,
            "slow path": self._slow_path,
            "disk stall": self._disk_stall,
            "sync error": self._sync_error,
            "lost disk": self._lose_disk,
            "damaged disk": self._damage_disk,
            "rot": self._rot,
            "abdicate": self._abdicate,
            "named leader": self._name_a_leader,
            "snapshot": self._snapshot,
        }

    def begin(self) -> None:
        """Start breaking things, if the shape has any kind of fault."""
        if self.level.shape.kinds:
            self._next()

    def stop(self) -> None:
        """Break nothing more, and mend the network, the disks and the pauses."""
        self._over = True
        level = self.level
        level.schedule.close_window()
        level.network.heal()
        level.network.datagram_faults = level.network.datagram_faults._replace(lost=0.0)
        for member in level.members.values():
            if member.process is not None:
                member.process.fuse = None
                for disk in member.process.disks:
                    disk.injector = None
                    disk.resume()
                member.process.resume()

    def note(self, kind: str) -> None:
        """Count a fault that has really happened."""
        self.happened[kind] = self.happened.get(kind, 0) + 1

    def _next(self) -> None:
        wait_ms = self.rng.expovariate(1 / self.level.shape.fault_every_ms)
        self.level.schedule.after(int(wait_ms * US_PER_MS) + 1, self._break_something)

    def _break_something(self) -> None:
        if self._over:
            return
        kind = self.rng.choice(self.level.shape.kinds)
        if self._kinds[kind]():
            self.level.trace.record("fault", kind)
            if not kind.startswith("crash "):  # those are counted when they go off
                self.note(kind)
        self._next()

    def _duration_us(self) -> int:
        shape = self.level.shape
        ticks = self.rng.choice((0.2, 1, 2, shape.sync_limit, shape.init_limit * 2))
        return int(ticks * shape.tick_ms * self.rng.random() * US_PER_MS) + 1

    def _later(self, undo: Callable[[], object]) -> None:
        self.level.schedule.after(self._duration_us(), undo)

    # --- whom it hits ----------------------------------------------------------------------------

    def _victim(self) -> "CoreMember | None":
        """A member that is up: half of the time the leader, if there is one."""
        level = self.level
        up = [member for member in level.members.values() if member.process is not None]
        if not up:
            return None
        leader = level.a_leader()
        if leader is not None and self.rng.getrandbits(1):
            return leader
        return self.rng.choice(up)

    def _hosts(self) -> list[Host]:
        hosts = [member.host for member in self.level.members.values()]
        self.rng.shuffle(hosts)
        return hosts

    # --- processes -------------------------------------------------------------------------------

    def _crash(self, *, power: bool) -> bool:
        victim = self._victim()
        if victim is None:
            return False
        self.level.crash(victim, power=power)
        return True

    def _crash_all(self) -> bool:
        for member in self.level.members.values():
            self.level.crash(member, power=True)
        return True

    def _light_a_fuse(self) -> bool:
        victim = self._victim()
        if victim is None or victim.process is None or victim.process.fuse is not None:
            return False
        victim.process.fuse = (self.rng.randrange(FUSE_EFFECTS_MAX), bool(self.rng.getrandbits(1)))
        return True

    def _crash_at_the_disk(self) -> bool:
        victim = self._victim()
        if (
            victim is None
            or victim.process is None
            or victim.process.disturbed
            or not victim.process.disks
        ):
            return False
        left, power = self.rng.randrange(DISK_OPS_MAX), self.rng.getrandbits(1)
        process = victim.process
        level = self.level

        def crash() -> None:
            if victim.process is process:
                self.note("crash at the disk")
                level.crash(victim, power=bool(power))

        def count(_op: DiskOp) -> Hurt | None:
            nonlocal left
            left -= 1
            if left == 0:
                # Within the operation's time, so that chance decides whether it was done.
                level.schedule.after(0, crash)
            return None

        self.rng.choice(process.disks).injector = count
        return True

    def _pause(self) -> bool:
        victim = self._victim()
        if victim is None or victim.process is None or victim.process.paused:
            return False
        process = victim.process
        process.pause()
        self._later(process.resume)
        return True

    def _abdicate(self) -> bool:
        victim = self._victim()
        if victim is None or victim.process is None:
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
        victim = self._victim()
        if victim is None or victim.process is None:
            return False
        victim.process.enter(victim.process.take_snapshot)
        return True

    # --- the network -----------------------------------------------------------------------------

    def _partition(self) -> bool:
        hosts = self._hosts()
        at = self.rng.randrange(len(hosts)) if len(hosts) > 1 else 0
        groups = [hosts[:at], hosts[at:]]
        self.level.network.partition(groups)
        self._later(lambda: self._mend([(a, b) for a in groups[0] for b in groups[1]]))
        return at > 0

    def _isolate_leader(self) -> bool:
        leader = self.level.a_leader()
        if leader is None:
            return False
        others = [host for host in self._hosts() if host is not leader.host]
        self.level.network.partition([[leader.host], others])
        # Long enough, as a rule, for the others to elect, and for it to go on alone meanwhile.
        shape = self.level.shape
        ticks = shape.sync_limit + self.rng.randrange(shape.init_limit)
        self.level.schedule.after(
            ticks * shape.tick_ms * US_PER_MS,
            lambda: self._mend([(leader.host, other) for other in others]),
        )
        return True

    def _one_way(self) -> bool:
        hosts = self._hosts()
        if len(hosts) < 2:  # noqa: PLR2004 - two ends
            return False
        self.level.network.block(hosts[0], hosts[1])
        self._later(lambda: self._mend([(hosts[0], hosts[1])]))
        return True

    def _bridge(self) -> bool:
        """Two halves that see each other only through one member."""
        hosts = self._hosts()
        if len(hosts) < 3:  # noqa: PLR2004 - two halves and a bridge
            return False
        rest = hosts[1:]
        halves = [rest[: len(rest) // 2], rest[len(rest) // 2 :]]
        self.level.network.partition(halves)
        self._later(lambda: self._mend([(a, b) for a in halves[0] for b in halves[1]]))
        return True

    def _mend(self, pairs: list[tuple[Host, Host]]) -> None:
        for a, b in pairs:
            self.level.network.unblock(a, b)
            self.level.network.unblock(b, a)

    def _connection(self, hurt: Callable[[Connection], object]) -> bool:
        connections = list(self.level.network.connections.values())
        if not connections:
            return False
        hurt(self.rng.choice(connections))
        return True

    def _half_open(self) -> bool:
        dialler = bool(self.rng.getrandbits(1))
        return self._connection(lambda connection: connection.break_one_side(dialler=dialler))

    def _stall(self) -> bool:
        def stall(connection: Connection) -> None:
            connection.stall()
            self._later(connection.resume)

        return self._connection(stall)

    def _slow_path(self) -> bool:
        hosts = self._hosts()
        if len(hosts) < 2:  # noqa: PLR2004 - two ends
            return False
        network, (a, b) = self.level.network, hosts[:2]
        spread_us = self.rng.choice((1, 3)) * self.level.shape.tick_ms * US_PER_MS
        network.set_latency(a, b, Latency(1_000, spread_us))
        self._later(lambda: network.set_latency(a, b, None))
        return True

    # --- disks -----------------------------------------------------------------------------------

    def _disk_stall(self) -> bool:
        victim = self._victim()
        if victim is None or victim.process is None or not victim.process.disks:
            return False
        disk = self.rng.choice(victim.process.disks)
        disk.stall()
        self._later(disk.resume)
        return True

    def _sync_error(self) -> bool:
        victim = self._victim()
        if (
            victim is None
            or victim.process is None
            or victim.process.disturbed
            or not victim.process.disks
        ):
            return False
        disk = self.rng.choice(victim.process.disks)
        left = self.rng.choice((1, 1 << 30))  # once, after which it lies, or for ever

        def fail(op: DiskOp) -> Hurt | None:
            nonlocal left
            if not isinstance(op, Sync) or not left:
                return None
            left -= 1
            return Hurt(errno.EIO)

        disk.injector = fail
        return True

    def _lose_disk(self) -> bool:
        victim = self._victim()
        return victim is not None and self.level.lose_disk(victim)

    def _damage_disk(self) -> bool:
        victim = self._victim()
        return victim is not None and self.level.damage_disk(victim, self.rng)

    def _rot(self) -> bool:
        victim = self._victim()
        return victim is not None and self.level.rot_disk(victim, self.rng)
