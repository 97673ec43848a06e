"""Which watchers wait for which path: the client's half of the watch protocol, without I/O.

Invariants
    I1  A watcher of a one-shot watch hears of at most one event per registration.
    I2  What is registered here is what the server holds for this connection, or will hold again
        once `rearm` was sent: a reconnect loses no watch.

ZooKeeper's watch rules: docs/internals, "Watch"; the table in the protocol notes, section 13.
"""

from collections.abc import Hashable, Iterator
from enum import Enum

from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    AddWatch,
    Exists,
    GetChildren,
    GetChildren2,
    GetData,
    Op,
    SetWatches,
    SetWatches2,
)
from zabd.model.watch_events import AddWatchMode, EventType, WatcherType, WatchEvent

# A server refuses frames above 1 MiB, old ones already at 1,048,575 bytes; ZooKeeper's own client
# cuts at 128 KiB, so every server is known to take packets of that size.
REARM_BYTES_MAX = 128 * 1024
# Length prefix of a string on the wire, the least a path costs besides its bytes.
_STRING_OVERHEAD = 4


class Table(Enum):
    """What a registration listens to."""

    DATA = "data"
    EXIST = "exist"
    CHILD = "child"
    PERSISTENT = "persistent"
    RECURSIVE = "recursive"


_ONE_SHOT_BY_EVENT = {
    EventType.CREATED: (Table.DATA, Table.EXIST),
    EventType.DATA_CHANGED: (Table.DATA, Table.EXIST),
    EventType.DELETED: (Table.DATA, Table.EXIST, Table.CHILD),
    EventType.CHILDREN_CHANGED: (Table.CHILD,),
}


_OF_TYPE = {
    WatcherType.CHILDREN: (Table.CHILD,),
    WatcherType.DATA: (Table.DATA, Table.EXIST),
    WatcherType.ANY: tuple(Table),
    WatcherType.PERSISTENT: (Table.PERSISTENT,),
    WatcherType.PERSISTENT_RECURSIVE: (Table.RECURSIVE,),
}
_REMOVED = {
    Table.DATA: EventType.DATA_WATCH_REMOVED,
    Table.EXIST: EventType.DATA_WATCH_REMOVED,
    Table.CHILD: EventType.CHILD_WATCH_REMOVED,
    Table.PERSISTENT: EventType.PERSISTENT_WATCH_REMOVED,
    Table.RECURSIVE: EventType.PERSISTENT_WATCH_REMOVED,
}


class WatchRegistry:
    """Watchers by table and path, in order of registration."""

    def __init__(self) -> None:
        self._tables: dict[Table, dict[str, dict[Hashable, None]]] = {t: {} for t in Table}

    def add(self, table: Table, path: str, watcher: Hashable) -> None:
        """Register a watcher; the same watcher twice on one path and table counts once."""
        self._tables[table].setdefault(path, {})[watcher] = None

    def discard(self, table: Table, path: str, watcher: Hashable) -> bool:
        """Forget a watcher; return whether nobody is left on that table and path."""
        watchers = self._tables[table].get(path)
        if watchers is None:
            return True
        watchers.pop(watcher, None)
        if not watchers:
            del self._tables[table][path]
        return not watchers

    def discard_everywhere(self, path: str, watcher: Hashable) -> None:
        """Forget a watcher of this path in whatever table it is."""
        for table in Table:
            self.discard(table, path, watcher)

    def take(self, event: WatchEvent) -> list[Hashable]:
        """Return whom an event concerns; one-shot registrations end with it (I1)."""
        concerned: dict[Hashable, None] = {}
        for table in _ONE_SHOT_BY_EVENT.get(EventType(event.type), ()):
            concerned.update(self._tables[table].pop(event.path, {}))
        concerned.update(self._tables[Table.PERSISTENT].get(event.path, {}))
        if event.type != EventType.CHILDREN_CHANGED:
            concerned.update(self._recursive_above(event.path))
        return list(concerned)

    def remove(self, kind: WatcherType, path: str) -> list[tuple[Hashable, EventType]]:
        """Forget the watchers of that kind on exactly this path; each with what it is told."""
        told: dict[tuple[Hashable, EventType], None] = {}
        for table in _OF_TYPE[kind]:
            for watcher in self._tables[table].pop(path, {}):
                told[watcher, _REMOVED[table]] = None
        return list(told)

    def drain(self) -> list[tuple[Hashable, str]]:
        """Forget everything; return each watcher with a path it waited on, once per pair."""
        waiting = {
            (watcher, path): None
            for table in self._tables.values()
            for path, watchers in table.items()
            for watcher in watchers
        }
        for table in self._tables.values():
            table.clear()
        return list(waiting)

    def drain_persistent(self) -> list[tuple[Hashable, str]]:
        """Forget the watches that stay; return each watcher with its path."""
        tables = [self._tables[table] for table in (Table.PERSISTENT, Table.RECURSIVE)]
        waiting = [
            (watcher, path)
            for table in tables
            for path, watchers in table.items()
            for watcher in watchers
        ]
        for table in tables:
            table.clear()
        return waiting

    def rearm(self, relative_zxid: int) -> list[SetWatches | SetWatches2]:
        """Return the ops that register everything again after a reconnect, each of bounded size.

        The server compares with `relative_zxid`, the last one this client has seen, and sends at
        once what was missed.
        """
        return [self._rearm_op(relative_zxid, part) for part in self._parts()]

    def __len__(self) -> int:
        return sum(len(table) for table in self._tables.values())

    def _recursive_above(self, path: str) -> dict[Hashable, None]:
        table = self._tables[Table.RECURSIVE]
        found: dict[Hashable, None] = {}
        while table:
            found.update(table.get(path, {}))
            if path == "/":
                break
            path = path.rpartition("/")[0] or "/"
        return found

    def _parts(self) -> Iterator[dict[Table, list[str]]]:
        part: dict[Table, list[str]] = {table: [] for table in Table}
        size = 0
        for table, paths in self._tables.items():
            for path in paths:
                cost = len(path.encode()) + _STRING_OVERHEAD
                if size and size + cost > REARM_BYTES_MAX:
                    yield part
                    part, size = {table: [] for table in Table}, 0
                part[table].append(path)
                size += cost
        if size:
            yield part

    def _rearm_op(
        self, relative_zxid: int, part: dict[Table, list[str]]
    ) -> SetWatches | SetWatches2:
        data, exist, child, persistent, recursive = (tuple(part[table]) for table in Table)
        if persistent or recursive:
            return SetWatches2(relative_zxid, data, exist, child, persistent, recursive)
        return SetWatches(relative_zxid, data, exist, child)


def table_of(op: Op, code: int) -> Table | None:
    """The table in which a server has put the watch of an op that was answered with this code."""
    match op:
        case Exists():
            if code == ErrorCode.NO_NODE:
                return Table.EXIST
            return Table.DATA if code == ErrorCode.OK else None
        case _ if code != ErrorCode.OK:
            return None
        case GetData():
            return Table.DATA
        case GetChildren() | GetChildren2():
            return Table.CHILD
        case AddWatch(_, mode):
            recursive = mode == AddWatchMode.PERSISTENT_RECURSIVE
            return Table.RECURSIVE if recursive else Table.PERSISTENT
        case _:
            return None
