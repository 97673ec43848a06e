"""Faults of the network: paths between machines, connections, and election messages."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.connections import HELD_STALL, Connection, Latency
from zabd.cluster_sim.fault_group import FaultGroup
from zabd.cluster_sim.network import Host
from zabd.cluster_sim.schedule import US_PER_MS

if TYPE_CHECKING:
    from zabd.cluster_sim.faults import Nemesis

_VOTES: Final = {"lost": "votes lost", "doubled": "votes doubled", "late": "votes reordered"}
_VOTES_HURT: Final = 0.5  # of all election messages, while such a fault lasts


class NetworkFaults(FaultGroup):
    """What happens between machines."""

    noted_later = frozenset(_VOTES.values())

    def __init__(self, nemesis: "Nemesis") -> None:
        super().__init__(nemesis)
        self._hurting: dict[str, int] = {}  # by field of DatagramFaults: how many faults last
        self.kinds = {
            "partition": self._partition,
            "one-way partition": self._one_way,
            "bridge": self._bridge,
            "flapping": self._flap,
            "isolate the leader": self._isolate_leader,
            "cut": lambda: self._connection(Connection.cut),
            "half-open": self._half_open,
            "stall": self._stall,
            "one-way stall": self._stall_one_way,
            "slow path": self._slow_path,
            **{kind: self._hurting_votes(field) for field, kind in _VOTES.items()},
        }

    def stop(self) -> None:
        """Every path is open, and nothing is lost any more."""
        network = self.level.network
        network.heal()
        network.datagram_faults = self.level.shape.datagrams._replace(lost=0.0)
        network.hurts_votes = False

    # --- paths -----------------------------------------------------------------------------------

    def _partition(self) -> bool:
        hosts = self.nemesis.hosts()
        at = self.rng.randrange(len(hosts)) if len(hosts) > 1 else 0
        groups = [hosts[:at], hosts[at:]]
        self.level.network.partition(groups)
        self.later(lambda: self._mend([(a, b) for a in groups[0] for b in groups[1]]))
        return at > 0

    def _isolate_leader(self) -> bool:
        leader = self.level.a_leader()
        if leader is None:
            return False
        others = [host for host in self.nemesis.hosts() if host is not leader.host]
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
        pair = self._pair()
        if pair is None:
            return False
        self.level.network.block(*pair)
        self.later(lambda: self._mend([pair]))
        return True

    def _bridge(self) -> bool:
        """Two halves that see each other only through one member."""
        hosts = self.nemesis.hosts()
        if len(hosts) < 3:  # noqa: PLR2004 - two halves and a bridge
            return False
        rest = hosts[1:]
        halves = [rest[: len(rest) // 2], rest[len(rest) // 2 :]]
        self.level.network.partition(halves)
        self.later(lambda: self._mend([(a, b) for a in halves[0] for b in halves[1]]))
        return True

    def _flap(self) -> bool:
        pair = self._pair()
        if pair is None:
            return False
        at_us, groups = 0, [[pair[0]], [pair[1]]]
        for _ in range(self.rng.randrange(2, 6)):
            self.level.schedule.after(at_us, lambda: self._unless_over(groups))
            at_us += self.nemesis.duration_us()
            self.level.schedule.after(at_us, lambda: self._mend([pair]))
            at_us += self.nemesis.duration_us()
        return True

    def _unless_over(self, groups: list[list[Host]]) -> None:
        if not self.nemesis.over:
            self.level.network.partition(groups)

    def _pair(self) -> tuple[Host, Host] | None:
        hosts = self.nemesis.hosts()
        return (hosts[0], hosts[1]) if len(hosts) > 1 else None

    def _mend(self, pairs: list[tuple[Host, Host]]) -> None:
        for a, b in pairs:
            self.level.network.unblock(a, b)
            self.level.network.unblock(b, a)

    def _slow_path(self) -> bool:
        pair = self._pair()
        if pair is None:
            return False
        network, (a, b) = self.level.network, pair
        spread_us = self.rng.choice((1, 3)) * self.level.shape.tick_ms * US_PER_MS
        network.set_latency(a, b, Latency(1_000, spread_us))
        self.later(lambda: network.set_latency(a, b, None))
        return True

    # --- connections -----------------------------------------------------------------------------

    def _connection(self, hurt: Callable[[Connection], object]) -> bool:
        connections = list(self.level.network.connections.values())
        target, user = self.nemesis.target, self.nemesis.user
        aimed = user if target is None else target.host
        if aimed is not None:
            connections = [each for each in connections if each.touches(aimed)]
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
            self.later(connection.resume)

        return self._connection(stall)

    def _stall_one_way(self) -> bool:
        def stall(connection: Connection) -> None:
            pipe = self.rng.choice((connection.forward, connection.backward))
            pipe.hold(HELD_STALL)
            self.later(lambda: pipe.release(HELD_STALL))

        return self._connection(stall)

    # --- election messages -----------------------------------------------------------------------

    def _hurting_votes(self, field: str) -> Callable[[], bool]:
        def hurt() -> bool:
            if len(self.level.members) == 1:
                return False
            network = self.level.network
            before = self.level.shape.datagrams
            network.datagram_faults = network.datagram_faults._replace(**{field: _VOTES_HURT})
            self._hurting[field] = self._hurting.get(field, 0) + 1
            network.hurts_votes = True
            network.on_datagram_hurt[field] = lambda: self.nemesis.note(_VOTES[field])

            def mend() -> None:
                self._hurting[field] -= 1
                if self._hurting[field] or self.nemesis.over:
                    return  # another one goes on, or all was mended
                now = network.datagram_faults
                network.on_datagram_hurt.pop(field, None)
                network.datagram_faults = now._replace(**{field: getattr(before, field)})
                network.hurts_votes = any(self._hurting.values())

            self.later(mend)
            return True

        return hurt
