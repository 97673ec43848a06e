"""Which server to try next, and how long to wait before the next round.

The list is shuffled once per client, so that a fleet spreads over the ensemble, and then walked in
a ring. Names are resolved again at each attempt, because it is names that are kept here.
"""

from collections.abc import Sequence
from ipaddress import IPv6Address
from random import Random
from typing import NamedTuple

from zabd.model.paths import ROOT, check_path

DEFAULT_PORT = 2181
# After a whole round without a server the client waits: 20 to 40 ms at first, since an election
# takes about a tenth of a second, then twice as long each round, up to a second, since sessions
# last four seconds and more.
FIRST_PAUSE_MS = 40
PAUSE_MS_MAX = 1000


class Host(NamedTuple):
    """One server's address, as a name."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class ConnectString(NamedTuple):
    """A parsed connect string; `chroot` is ``/`` when none was given."""

    hosts: tuple[Host, ...]
    chroot: str


def parse_connect_string(text: str) -> ConnectString:
    """Parse ``h1:2181,h2,[::1]:2183/chroot``.

    Raises:
        ValueError: a host is empty, a port is not one, or the chroot is not a path.
    """
    addresses, slash, chroot = text.strip().partition("/")
    hosts = tuple(_parse_host(part.strip(), text) for part in addresses.split(",") if part.strip())
    if not hosts:
        raise ValueError(f"connect string {text!r} names no host; expected host:port,host:port")
    root = "/" + chroot.rstrip("/") if slash else ROOT
    check_path(root)
    return ConnectString(hosts, root)


class HostList:
    """A shuffled ring of servers with a pause after each fruitless round."""

    def __init__(self, hosts: Sequence[Host], rng: Random) -> None:
        if not hosts:
            raise ValueError("a client needs at least one host")
        self._rng = rng
        self._ring = list(hosts)
        rng.shuffle(self._ring)
        self._next = 0
        self._failures = 0

    def __len__(self) -> int:
        return len(self._ring)

    def next(self) -> Host:
        """Return the server to try now; the one after it is next."""
        host = self._ring[self._next]
        self._next = (self._next + 1) % len(self._ring)
        return host

    def prefer(self, host: Host) -> None:
        """Let this one be next."""
        self._next = self._ring.index(host)

    def other_than(self, host: Host | None) -> list[Host]:
        """The servers but this one, in the order in which they would be tried."""
        ring = self._ring[self._next :] + self._ring[: self._next]
        return [each for each in ring if each != host]

    def succeeded(self) -> None:
        """Note that a server served us for a while: the next search starts without a pause."""
        self._failures = 0

    def failed(self) -> int:
        """Note that a server did not serve us; return how many milliseconds to wait now."""
        self._failures += 1
        rounds, rest = divmod(self._failures, len(self._ring))
        if rest:
            return 0
        ceiling = min(PAUSE_MS_MAX, FIRST_PAUSE_MS * (1 << min(rounds - 1, 10)))
        # At least half of it, so that a round is never free; the rest is chance, so that clients
        # which lost the same server do not come back in step.
        half = ceiling // 2
        return half + self._rng.randrange(half + 1)


def _parse_host(part: str, text: str) -> Host:
    name, port = _split_port(part)
    right = _is_ipv6(name) if ":" in name or part.startswith("[") else bool(name)
    if not right or not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{part!r} in connect string {text!r} is not host or host:port")
    return Host(name, int(port))


def _is_ipv6(name: str) -> bool:
    try:
        IPv6Address(name)
    except ValueError:
        return False
    return True


def _split_port(part: str) -> tuple[str, str]:
    if part.startswith("["):
        name, end, rest = part[1:].partition("]")
        if not end or (rest and not rest.startswith(":")):
            return "", rest  # neither a host nor a port
        return name, rest[1:] if rest else str(DEFAULT_PORT)
    if part.count(":") > 1:  # a bare IPv6 address has no room for a port
        return part, str(DEFAULT_PORT)
    name, colon, port = part.partition(":")
    return name, port if colon else str(DEFAULT_PORT)
