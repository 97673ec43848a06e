"""Ports of the loopback address, given out so that no two programs on one machine get the same.

A member's port is free while the member is down, and looks so to everybody. So whoever gives it out
also holds the UDP port of the same number, which is nobody else's then, until this process ends,
however it ends.
"""

import contextlib
import random
import socket
from collections.abc import Iterable, Iterator, Sequence

from zabd.model.errors import ZabdError

LOOPBACK = "127.0.0.1"
PORT_MIN = 20_000
PORT_MAX = 32_000  # Linux hands out 32768 and up to outgoing connections, others 49152 and up
ATTEMPTS_MAX = 100  # a range of 12,000 ports with thousands of them leased is no test run's


class PortError(ZabdError):
    """There are not as many free ports as were asked for."""


class PortLeases:
    """The ports that their owner has given out."""

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def take(self, count: int) -> list[int]:
        """Free ports that nobody else who leases is given until `give_back`.

        Raises:
            PortError: there are not that many.
        """
        ports: list[int] = []
        for _ in range(ATTEMPTS_MAX):
            candidates = _unused(count - len(ports))
            ports += [port for port in candidates if self._hold(port)]
            if len(ports) == count:
                return ports
        self.give_back(ports)
        raise PortError(f"{count} ports cannot be had: other programs hold them")

    def give_back(self, ports: Iterable[int]) -> None:
        """Let others have them."""
        for port in ports:
            self._held.pop(port).close()

    def close(self) -> None:
        """Give back all of them."""
        self.give_back(list(self._held))

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


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody uses or leases now, for who takes them at once.

    Raises:
        PortError: there are not that many.
    """
    with contextlib.closing(PortLeases()) as leases:
        return leases.take(count)


def _unused(count: int) -> list[int]:
    candidates = random.SystemRandom().sample(range(PORT_MIN, PORT_MAX), count * 20)
    with contextlib.ExitStack() as held:
        found = list(_bindable(candidates, held, count))
    if len(found) < count:
        raise PortError(f"there are no {count} free ports from {PORT_MIN} to {PORT_MAX}")
    return found


def _bindable(candidates: Sequence[int], held: contextlib.ExitStack, count: int) -> Iterator[int]:
    # Each one is held until all are found, so that none is found twice.
    found = 0
    for port in candidates:
        if found == count:
            return
        probe = held.enter_context(socket.socket())
        with contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            found += 1
            yield port
