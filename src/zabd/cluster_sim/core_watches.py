"""What one client watches, and what it must be told of it: W1 to W6, as the client sees them.

The book is kept by what the replies say; what happened is read from the checker, whose changes are
gone through once, in their order, as the client's view of the tree moves on.
"""

from collections.abc import Callable
from typing import Final

from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.replica_checks import ReplicaChecker
from zabd.model.ops import (
    AddWatch,
    Exists,
    GetChildren,
    GetData,
    Op,
    RemoveWatches,
    SetWatches2,
)
from zabd.model.paths import ROOT
from zabd.model.watch_events import AddWatchMode, EventType, WatcherType, WatchEvent
from zabd.model.zxid import Zxid
from zabd.wire.connection import Reply

DATA, EXIST, CHILD = "data", "exist", "child"
KINDS: Final[dict[str, tuple[EventType, ...]]] = {
    DATA: (EventType.DATA_CHANGED, EventType.DELETED),
    EXIST: (EventType.CREATED, EventType.DATA_CHANGED, EventType.DELETED),
    CHILD: (EventType.CHILDREN_CHANGED, EventType.DELETED),
}
_LISTENING: Final[dict[EventType, tuple[str, ...]]] = {
    event: tuple(kind for kind, types in KINDS.items() if event in types)
    for event in (
        EventType.CREATED,
        EventType.DELETED,
        EventType.DATA_CHANGED,
        EventType.CHILDREN_CHANGED,
    )
}
_Fail = Callable[[str, str], InvariantError]


class WatchBook:
    """The watches of one client's session. Its methods raise what `fail` makes."""

    def __init__(self, checker: ReplicaChecker, fail: _Fail) -> None:
        self._checker = checker
        self._fail = fail
        self._standard: dict[tuple[str, str], int] = {}  # (kind, path): armed at
        self._persistent: dict[str, int] = {}  # path: told up to
        self._recursive: dict[str, int] = {}
        self._failed: dict[str, None] = {}  # paths of reads that failed, and so armed nothing
        self._missed: list[WatchEvent] = []  # told while watches are set again
        self._event_zxid = 0
        self._next = 0  # in the checker's changes: the first that was not looked at

    def __bool__(self) -> bool:
        """Whether anything is watched."""
        return bool(self._standard or self._persistent or self._recursive)

    def clear(self) -> None:
        """The session is over."""
        self._standard.clear()
        self._persistent.clear()
        self._recursive.clear()
        self._failed.clear()
        self._missed.clear()
        self._event_zxid = 0

    def persistent_paths(self) -> list[tuple[WatcherType, str]]:
        """What can be removed."""
        found = [(WatcherType.PERSISTENT, path) for path in self._persistent]
        return [*found, *((WatcherType.PERSISTENT_RECURSIVE, path) for path in self._recursive)]

    # --- setting them ----------------------------------------------------------------------------

    def arm(self, op: Op, reply: Reply) -> None:
        """A read that asked for a watch, or a watch that was asked for, is answered."""
        if isinstance(op, GetData | GetChildren) and op.watch:
            key = (DATA if isinstance(op, GetData) else CHILD, op.path)
            if reply.error:
                self._failed[op.path] = None
            else:
                self._failed.pop(op.path, None)
                self._standard.setdefault(key, reply.zxid)
        elif isinstance(op, Exists) and op.watch:
            self._standard.setdefault((EXIST if reply.error else DATA, op.path), reply.zxid)
        elif isinstance(op, AddWatch) and not reply.error:
            recursive = op.mode == AddWatchMode.PERSISTENT_RECURSIVE
            (self._recursive if recursive else self._persistent).setdefault(op.path, reply.zxid)
        elif isinstance(op, RemoveWatches) and not reply.error:
            recursive = op.type == WatcherType.PERSISTENT_RECURSIVE
            (self._recursive if recursive else self._persistent).pop(op.path, None)

    def reconnected(self, seen_zxid: int) -> None:
        """Another connection: events are in order on each, from what replies have shown.

        No client moves its lastZxidSeen by an event, so another member may tell again of what this
        one has told already, and of what came before that: a legal near miss of W2.
        """
        self._failed.clear()
        self._event_zxid = seen_zxid

    def set_again(self, seen_zxid: int) -> SetWatches2:
        """What a client that comes back asks for, as one that has seen so much."""
        self._missed.clear()
        paths = {kind: tuple(p for k, p in self._standard if k == kind) for kind in KINDS}
        return SetWatches2(
            seen_zxid,
            paths[DATA],
            paths[EXIST],
            paths[CHILD],
            tuple(self._persistent),
            tuple(self._recursive),
        )

    def were_set_again(self, op: SetWatches2, zxid: int) -> None:
        """All that was missed has been told (W5), and nothing else (W4); the rest is armed."""
        since = op.relative_zxid
        for kind, path in self._standard:
            if self._must_be_told(kind, path, since, zxid):
                raise self._fail(
                    "W5",
                    f"the {kind} watch of {path} was set again at {Zxid(zxid)!r}, and not a word "
                    f"of what changed since {Zxid(since)!r}",
                )
        for event in self._missed:
            if not self._may_be_told(event, since, zxid):
                raise self._fail(
                    "W4", f"told of {event} once more, as it was since {Zxid(since)!r}"
                )
        self._missed.clear()
        for watches in (self._standard, self._persistent, self._recursive):
            for key in watches:
                watches[key] = zxid  # type: ignore[index]  # keys of its own

    def _must_be_told(self, kind: str, path: str, since: int, zxid: int) -> bool:
        there = path == ROOT or self._checker.at(path, zxid).there
        if kind == EXIST:
            return there  # one that was created and deleted meanwhile is invisible: legal
        if not there:
            return True
        if kind == CHILD:
            return self._checker.pzxid_at(path, zxid) > since
        return self._checker.at(path, zxid).mzxid > since

    def _may_be_told(self, event: WatchEvent, since: int, zxid: int) -> bool:
        there = event.path == ROOT or self._checker.at(event.path, zxid).there
        match event.type:
            case EventType.DELETED:
                return not there
            case EventType.CREATED:
                return there
            case EventType.CHILDREN_CHANGED:
                return there and self._checker.pzxid_at(event.path, zxid) > since
            case _:
                return there and self._checker.at(event.path, zxid).mzxid > since

    # --- what is told ----------------------------------------------------------------------------

    def shown(self, zxid: int) -> None:
        """A reply shows the tree at `zxid`: every watch on what changed before has spoken (W1)."""
        changes = self._checker.changes
        at = self._next
        if at >= len(changes) or changes[at].zxid > zxid:
            return
        standard = self._standard
        while at < len(changes) and (change := changes[at]).zxid <= zxid:
            at += 1
            for kind in _LISTENING[change.type]:
                if standard.get((kind, change.path), zxid) < change.zxid:
                    raise self._late(kind, change.path, zxid, change.zxid)
            if self._persistent and self._persistent.get(change.path, zxid) < change.zxid:
                raise self._late("persistent", change.path, zxid, change.zxid)
            if self._recursive and change.type is not EventType.CHILDREN_CHANGED:
                for path, told in self._recursive.items():
                    if told < change.zxid and _covers(path, change.path):
                        raise self._late("recursive", path, zxid, change.zxid)
        self._next = at

    def skip(self, zxid: int) -> None:
        """Look past what happened up to `zxid`, while nobody listened."""
        changes = self._checker.changes
        while self._next < len(changes) and changes[self._next].zxid <= zxid:
            self._next += 1

    def _late(self, kind: str, path: str, zxid: int, changed: int) -> InvariantError:
        return self._fail(
            "W1",
            f"answered at {Zxid(zxid)!r} before the {kind} event of {path} at {Zxid(changed)!r}",
        )

    def told(self, zxid: int, event: WatchEvent) -> None:
        """An event came."""
        path = event.path
        kinds = [kind for kind in _LISTENING[event.type] if (kind, path) in self._standard]
        lasting = self._lasting(event)
        if not kinds and not lasting:
            raise self._uncalled(event)
        if zxid > 0:
            if zxid < self._event_zxid:
                raise self._fail("W2", f"told of {event} at {Zxid(zxid)!r}, after a later one")
            if not self._checker.changed_at(path, event.type, zxid):
                raise self._fail("W4", f"told of {event} at {Zxid(zxid)!r}, where nothing happened")
            self._event_zxid = zxid
            for watches, watched in lasting:
                watches[watched] = zxid
        else:
            self._missed.append(event)
        for kind in kinds:
            del self._standard[kind, path]

    def _lasting(self, event: WatchEvent) -> list[tuple[dict[str, int], str]]:
        found = [(self._persistent, event.path)] if event.path in self._persistent else []
        if event.type is not EventType.CHILDREN_CHANGED:
            found += [(self._recursive, p) for p in self._recursive if _covers(p, event.path)]
        return found

    def _uncalled(self, event: WatchEvent) -> InvariantError:
        # A read that fails arms nothing, but for an `exists` of what is not there.
        if event.path in self._failed:
            return self._fail("W6", f"told of {event}, which a read that failed has armed")
        return self._fail("W3", f"told of {event}, which it does not watch")


def _covers(watched: str, path: str) -> bool:
    return watched in (ROOT, path) or path.startswith(f"{watched}/")
