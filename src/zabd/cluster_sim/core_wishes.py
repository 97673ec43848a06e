"""What a client at the core level wants: operations of all kinds, and now and then a change.

Each kind of choice has a stream of its own, so that a new kind changes none of the others.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.session_checks import Issued
from zabd.model.acl import OPEN_ACL_UNSAFE, Acl, Perms
from zabd.model.ops import (
    AddWatch,
    Check,
    Create,
    CreateMode,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Op,
    RemoveWatches,
    SetAcl,
    SetData,
    Sync,
)
from zabd.model.watch_events import AddWatchMode

if TYPE_CHECKING:
    from zabd.cluster_sim.core_client import CoreClient

PATHS: Final = tuple(f"/{letter}" for letter in "abcdef")
SEQUENCE: Final = "/sequence"

# Everybody may do everything in all of them: they are there to be kept apart.
ACLS: Final = (
    OPEN_ACL_UNSAFE,
    OPEN_ACL_UNSAFE,
    (*OPEN_ACL_UNSAFE, Acl(Perms.READ, "ip", "10.0.0.1")),
    (*OPEN_ACL_UNSAFE, Acl(Perms.READ, "ip", "10.0.0.2"), Acl(Perms.ADMIN, "ip", "10.0.0.3")),
)

_MORE_EVERY: Final = 4  # turns, on average, in which one operation of the rarer kinds is added


class Wishes:
    """The wishes of one client."""

    def __init__(self, client: "CoreClient", rng: Random, more: Random) -> None:
        self._client = client
        self._rng = rng
        self._more = more
        self._count = 0
        self._made: list[str] = []

    def draw(self) -> list[Op]:
        """What to ask for in one turn, as one pipelined packet."""
        count = self._rng.choice((1, 1, 2, 5))
        rarer_at = -1 if self._more.randrange(_MORE_EVERY) else self._more.randrange(count)
        ops = []
        for place in range(count):
            if place == rarer_at:
                ops.append(self._rarer())
            ops.append(self._common())
        return ops

    def a_write(self) -> Op:
        """A write that nobody else makes."""
        return SetData(self._more.choice(PATHS), self._data(), -1)

    def an_ephemeral(self) -> Op:
        """A znode that must be gone when its session is."""
        path = self._more.choice(PATHS)
        return Create(path, self._data(), OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL)

    def to_be_current(self) -> list[Op]:
        """A sync, and a read that must not be older than what was complete then."""
        path = self._more.choice(PATHS)
        return [Sync(path), GetData(path)]

    def _data(self) -> bytes:
        """Data that no other write has, so that it can be told where this one took effect."""
        self._count += 1
        client = self._client
        data = f"{client.name} {self._count}".encode()
        client.level.checker.sessions.issued[data] = Issued(
            client.name, client.connections, self._count
        )
        return data

    def has_made(self, path: str) -> None:
        """A sequential znode is there, to be deleted again."""
        self._made.append(path)

    def _common(self) -> Op:
        rng = self._rng
        path = rng.choice(PATHS)
        match rng.randrange(14):
            case 0 | 1:
                return Create(path, self._data(), self._acl(), CreateMode.PERSISTENT)
            case 2:
                return Create(path, self._data(), self._acl(), CreateMode.EPHEMERAL)
            case 3:
                mode = rng.choice(
                    (CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)
                )
                return Create(f"{SEQUENCE}/n-", self._data(), self._acl(), mode)
            case 4 | 5:
                return SetData(path, self._data(), -1)
            case 6:
                version = rng.randrange(4)
                if self._count % 3 == 0:
                    return SetAcl(path, self._acl(), -1)
                return SetData(path, self._data(), version)
            case 7:
                return Delete(self._made.pop() if self._made and self._count % 2 else path, -1)
            case 8:
                return self._multi(path, rng.choice(PATHS))
            case 9 | 10:
                return GetData(path, bool(rng.getrandbits(1)))
            case 11:
                return Exists(path, bool(rng.getrandbits(1)))
            case 12:
                return GetChildren(rng.choice((SEQUENCE, "/")), bool(rng.getrandbits(1)))
            case _:
                return Sync(path)

    def _acl(self) -> tuple[Acl, ...]:
        return ACLS[self._count % len(ACLS)]

    def _multi(self, path: str, other: str) -> Op:
        """Half of them fail in the middle as a rule, and must leave nothing behind."""
        data = self._data()
        if self._count % 2:
            return Multi((Check(path, -1), SetData(path, data, -1), SetData(other, data, -1)))
        mode = CreateMode.PERSISTENT_SEQUENTIAL
        child = Create(f"{SEQUENCE}/n-", data, self._acl(), mode)
        return Multi((SetData(path, data, -1), child, Delete(other, -1)))

    def _rarer(self) -> Op:
        rng = self._more
        path = rng.choice(PATHS)
        match rng.randrange(6):
            case 0:
                return AddWatch(path, AddWatchMode.PERSISTENT)
            case 1:
                return AddWatch(rng.choice((path, SEQUENCE)), AddWatchMode.PERSISTENT_RECURSIVE)
            case 2:
                watched = self._client.book.persistent_paths()
                if not watched:
                    return AddWatch(path, AddWatchMode.PERSISTENT)
                kind, path = rng.choice(watched)
                return RemoveWatches(path, kind)
            case 3:  # below what may be an ephemeral: refused then
                mode = CreateMode.PERSISTENT
                return Create(f"{path}/below", self._data(), OPEN_ACL_UNSAFE, mode)
            case 4:
                return Delete(f"{path}/below", -1)
            case _:
                data = self._data()
                return Multi(
                    (
                        Create(f"{path}/below", data, OPEN_ACL_UNSAFE, CreateMode.PERSISTENT),
                        SetData(path, data, -1),
                        Delete(f"{path}/below", -1),
                    )
                )
