"""Faults of clients: sessions that expire, storms of reconnects, and readers that do not read."""

from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.connections import HELD_SLOW, Connection, Pipe
from zabd.cluster_sim.fault_group import FaultGroup
from zabd.cluster_sim.network import Host
from zabd.cluster_sim.schedule import US_PER_MS

if TYPE_CHECKING:
    from zabd.cluster_sim.faults import Nemesis

SILENCE_TICKS_MAX: Final = 60
"""The longest session lasts 20 ticks, and starts anew with each new leader."""


class ClientFaults(FaultGroup):
    """What happens to those who use the ensemble; nothing where nobody does."""

    noted_later = frozenset({"session expiry", "slow reader"})

    def __init__(self, nemesis: "Nemesis") -> None:
        super().__init__(nemesis)
        self.kinds = {
            "session expiry": self._expire,
            "reconnect storm": self._reconnect_all,
            "slow reader": self._stop_reading,
        }

    def _expire(self) -> bool:
        sessions = {host.name: self.level.sessions_of(host) for host in self.nemesis.users()}
        hosts = [host for host in self.nemesis.users() if sessions[host.name]]
        if not hosts:
            return False
        host = self.rng.choice(hosts)
        self._silence(host, blocked=True)
        end_us = self.level.schedule.now_us + SILENCE_TICKS_MAX * self._tick_us

        def look() -> None:
            over = any(self.level.is_closed(session) for session in sessions[host.name])
            if over:
                self.nemesis.note("session expiry")
            if over or self.nemesis.over or self.level.schedule.now_us >= end_us:
                self._silence(host, blocked=False)
            else:
                self.level.schedule.after(self._tick_us, look)

        look()
        return True

    @property
    def _tick_us(self) -> int:
        return self.level.shape.tick_ms * US_PER_MS

    def _silence(self, host: Host, *, blocked: bool) -> None:
        network = self.level.network
        change = network.block if blocked else network.unblock
        for member in self.level.members.values():
            change(host, member.host)
            change(member.host, host)

    def _reconnect_all(self) -> bool:
        connections = self._connections()
        for connection in connections:
            connection.cut()
        return bool(connections)

    def _connections(self) -> list[Connection]:
        users = self.nemesis.users()
        connections = self.level.network.connections.values()
        return [each for each in connections if any(each.touches(user) for user in users)]

    def _stop_reading(self) -> bool:
        connections = self._connections()
        if not connections:
            return False
        connection = self.rng.choice(connections)
        users = self.nemesis.users()
        pipe = connection.forward if connection.forward.target in users else connection.backward
        pipe.hold(HELD_SLOW)
        self.later(lambda: self._read_on(pipe))
        return True

    def _read_on(self, pipe: Pipe) -> None:
        if pipe.holds & HELD_SLOW and pipe.in_flight_bytes:
            self.nemesis.note("slow reader")
        pipe.release(HELD_SLOW)
