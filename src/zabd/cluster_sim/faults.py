"""Faults: what goes wrong in a run, when, and for how long.

The kinds are in six groups, by what is hurt. Kinds, times and victims are drawn from the stream
"faults" only, so the same seed breaks the same things; each fault draws all of its chance when it
begins, so that it can be written down (`decisions`). A fault that ends keeps its own end: healing
at the end of the faulty phase is not left to chance.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from zabd.cluster_sim.client_faults import ClientFaults
from zabd.cluster_sim.damage_faults import DamageFaults
from zabd.cluster_sim.disk_faults import DiskFaults
from zabd.cluster_sim.fault_kinds import FAULT_KINDS
from zabd.cluster_sim.network import Host
from zabd.cluster_sim.network_faults import NetworkFaults
from zabd.cluster_sim.placed_faults import PlacedFaults
from zabd.cluster_sim.process_faults import ProcessFaults
from zabd.cluster_sim.schedule import US_PER_MS

if TYPE_CHECKING:
    from zabd.cluster_sim.core_level import CoreLevel
    from zabd.cluster_sim.core_member import CoreMember


class Nemesis:
    """Breaks one run, a fault at a time, for as long as it is told to.

    `happened` counts what has really happened: a torn write when a write was torn, and not when
    one was meant to be.
    """

    def __init__(self, level: "CoreLevel") -> None:
        self.level = level
        self.rng = level.schedule.stream("faults")
        self.happened: dict[str, int] = {}
        self.over = False
        self.target: CoreMember | None = None  # the member that an experiment has chosen
        self.user: Host | None = None  # or the machine of a client
        self._groups = (
            ProcessFaults(self),
            PlacedFaults(self),
            NetworkFaults(self),
            DiskFaults(self),
            DamageFaults(self),
            ClientFaults(self),
        )
        self._kinds: dict[str, Callable[[], bool]] = {}
        self._later: frozenset[str] = frozenset()
        for group in self._groups:
            self._kinds.update(group.kinds)
            self._later |= group.noted_later
        assert self._kinds.keys() == FAULT_KINDS.keys(), "each kind is in one group"

    def begin(self) -> None:
        """Start breaking things, if the shape has any kind of fault."""
        if self.level.shape.kinds:
            self._next()

    def stop(self) -> None:
        """Break nothing more, and mend what can be mended."""
        self.over = True
        self.level.schedule.close_window()
        for group in self._groups:
            group.stop()

    def inflict(self, kind: str) -> bool:
        """Let a fault of this kind begin; False if there is nothing that it could hurt now."""
        if not self._kinds[kind]():
            return False
        self.level.trace.record("fault", kind)
        if kind not in self._later:
            self.note(kind)
        return True

    def inflict_on(self, kind: str, victim: "CoreMember | Host") -> bool:
        """The same, with its victim chosen, as far as that is for anybody to choose."""
        if isinstance(victim, Host):
            self.user = victim
        else:
            self.target = victim
        try:
            return self.inflict(kind)
        finally:
            self.target = self.user = None

    def note(self, kind: str) -> None:
        """Count a fault that has really happened."""
        self.happened[kind] = self.happened.get(kind, 0) + 1

    def _next(self) -> None:
        wait_ms = self.rng.expovariate(1 / self.level.shape.fault_every_ms)
        self.level.schedule.after(int(wait_ms * US_PER_MS) + 1, self._break_something)

    def _break_something(self) -> None:
        if not self.over:
            self.inflict(self.rng.choice(self.level.shape.kinds))
            self._next()

    # --- how long, and whom ----------------------------------------------------------------------

    def duration_us(self) -> int:
        """How long a fault lasts: a fraction of a tick, or as long as members wait."""
        shape = self.level.shape
        ticks = self.rng.choice((0.2, 1, 2, shape.sync_limit, shape.init_limit * 2))
        return int(ticks * shape.tick_ms * self.rng.random() * US_PER_MS) + 1

    def later(self, undo: Callable[[], object]) -> None:
        """End a fault after a while."""
        self.level.schedule.after(self.duration_us(), undo)

    def victim(self) -> "CoreMember | None":
        """A member that is up: half of the time the leader, if there is one."""
        level = self.level
        if self.target is not None:
            return self.target if self.target.process is not None else None
        up = [member for member in level.members.values() if member.process is not None]
        if not up:
            return None
        leader = level.a_leader()
        if leader is not None and self.rng.getrandbits(1):
            return leader
        return self.rng.choice(up)

    def hosts(self) -> list[Host]:
        """The machines of all members, in any order; one that is meant comes first."""
        hosts = [member.host for member in self.level.members.values()]
        self.rng.shuffle(hosts)
        if self.target is not None:
            hosts.remove(self.target.host)
            hosts.insert(0, self.target.host)
        if self.user is not None:
            hosts.insert(0, self.user)
        return hosts

    def users(self) -> list[Host]:
        """The machines of clients that may be hit."""
        return self.level.users() if self.user is None else [self.user]
