"""Ports that several test runs on one machine do not give out twice.

A member's port is free while the member is down, and looks so to everybody. So whoever gives it out
also holds the UDP port of the same number, which is nobody else's then, until this process ends,
however it ends.
"""

import socket

from zabd.cli.members import LOOPBACK, MemberError, free_ports

ATTEMPTS_MAX = 100  # a range of 12,000 ports with thousands of them leased is no test run's


class PortLeases:
    """The ports that this process has given out."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def take(self, count: int) -> list[int]:
        """Free ports that no other test run is given until `give_back`."""
        ports: list[int] = []
        for _ in range(ATTEMPTS_MAX):
            candidates = free_ports(count - len(ports))
            ports += [port for port in candidates if self._hold(port)]
            if len(ports) == count:
                return ports
        raise MemberError(f"{count} ports cannot be had: other test runs hold them")

    def give_back(self, ports: list[int]) -> None:
        """Let others have them."""
        for port in ports:
            self._held.pop(port).close()

    def _hold(self, port: int) -> bool:
        if port in self._held:
            return False
        holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            holder.bind((LOOPBACK, port))
        except OSError:
            holder.close()
            return False
        self._held[port] = holder
        return True
