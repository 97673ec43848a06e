"""Watches: who wants to hear of which path. Local to a member, never replicated.

A watcher is a connection, as far as this table is concerned any hashable value. One entry holds all
that a watcher wants of one path, so one change gives it one event whatever it registered.

Invariants
    W3  A standard watch gives at most one event and is gone with it; registering again while it is
        set changes nothing. Persistent ones stay, also when their znode is deleted.
    W7  After `remove_watcher` nothing of the watcher shows; a turn takes away at most
        `SWEPT_MAX` of its entries, and as many turns follow as that takes.
    W9  Nobody's watches, nor all together, outgrow the limits below. Where all are too many, it is
        the watcher with most that has to go, whoever asks: a few cannot take the watches from all.

Client protocol, section 13.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from enum import IntFlag
from typing import Final, TypeAlias

from zabd.model.errors import RemoteProtocolError
from zabd.model.paths import ROOT
from zabd.model.watch_events import EventType, WatcherType
from zabd.znode_tree.tree import Change

Watcher: TypeAlias = Hashable


class WatchKind(IntFlag):
    """What a watcher wants of a path; kinds are independent of each other."""

    DATA = 1
    """Set by getData and exists: the znode is created, deleted or set."""
    CHILD = 2
    """Set by getChildren: a child comes or goes, or the znode itself is deleted."""
    PERSISTENT = 4
    """All of the above, again and again."""
    RECURSIVE = 8
    """Created, deleted or set: the znode and everything below it, again and again."""


_STANDARD: Final = int(WatchKind.DATA | WatchKind.CHILD)
_RECURSIVE: Final = int(WatchKind.RECURSIVE)
_IN_DATA_TABLE: Final = int(WatchKind.DATA | WatchKind.PERSISTENT | WatchKind.RECURSIVE)

# What on the path itself hears of each type of change.
_LISTENING: Final = {
    EventType.CREATED: _IN_DATA_TABLE,
    EventType.DATA_CHANGED: _IN_DATA_TABLE,
    EventType.DELETED: _IN_DATA_TABLE | int(WatchKind.CHILD),
    EventType.CHILDREN_CHANGED: int(WatchKind.CHILD | WatchKind.PERSISTENT),
}

_OF_TYPE: Final = {
    WatcherType.CHILDREN: int(WatchKind.CHILD),
    WatcherType.DATA: int(WatchKind.DATA),
    WatcherType.ANY: _IN_DATA_TABLE | int(WatchKind.CHILD),
    WatcherType.PERSISTENT: int(WatchKind.PERSISTENT),
    WatcherType.PERSISTENT_RECURSIVE: _RECURSIVE,
}


WATCHES_PER_WATCHER_MAX: Final = 1 << 18
"""Paths that one watcher may watch: at 400 bytes each, 100 MB."""

CHARS_PER_WATCHER_MAX: Final = 1 << 25
"""And the lengths of all of them: a path need not exist, and may be as long as a request."""

WATCHES_MAX: Final = 1 << 22
CHARS_MAX: Final = 1 << 28
"""The same of all watchers together."""


SWEPT_MAX: Final = 10_000
"""Watches of connections that are gone, taken away in one turn: 2 ms."""


class WatchesFullError(RemoteProtocolError):
    """All watches together are too many; `largest`, who has most of them, makes room by going."""

    def __init__(self, largest: Watcher) -> None:
        super().__init__("there are more watches than all watchers together may have")
        self.largest = largest


class WatchTable:
    """All watches of one member's connections.

    Events come out in the order in which watchers first registered for the path, so one history of
    registrations gives one trace.
    """

    __slots__ = (
        "_by_path",
        "_by_watcher",
        "_chars",
        "_chars_of",
        "_count",
        "_leaving",
        "_recursive_lengths",
        "_sweeps",
    )

    def __init__(self) -> None:
        self._by_path: dict[str, dict[Watcher, int]] = {}
        self._by_watcher: dict[Watcher, dict[str, None]] = {}
        self._count = 0
        self._chars = 0
        self._chars_of: dict[Watcher, int] = {}
        # How many recursive watches there are on paths of each length: a deep path is then compared
        # with few of its ancestors, mostly with none.
        self._recursive_lengths: dict[int, int] = {}
        # Of watchers that are gone: what `_by_path` still has of them, and nobody may see.
        self._leaving: dict[Watcher, dict[str, None]] = {}
        self._sweeps = SWEPT_MAX  # left for this turn

    def __len__(self) -> int:
        """How many pairs of watcher and path there are."""
        return self._count

    @property
    def watcher_count(self) -> int:
        """How many watchers have a watch."""
        return len(self._by_watcher)

    @property
    def path_count(self) -> int:
        """How many paths are watched, with those of watchers that are still being removed."""
        return len(self._by_path)

    @property
    def watched(self) -> Mapping[str, object]:
        """The watched paths, as they are at any later time too; empty while nobody watches."""
        return self._by_path

    @property
    def watched_below(self) -> Mapping[int, object]:
        """Not empty while all below some path is watched, as it is at any later time too."""
        return self._recursive_lengths

    def add(self, kind: WatchKind | int, path: str, watcher: Watcher) -> None:
        """From now on `watcher` hears of `path` as `kind` says; `path` need not exist.

        RemoteProtocolError for one watch more than a watcher may have; WatchesFullError for one
        more than all may have together.
        """
        if self._leaving and watcher in self._leaving:
            self._forget(watcher, self._leaving.pop(watcher))  # what it had may not come back
        watchers = self._by_path.get(path, {})
        kinds = watchers.get(watcher, 0)
        if not kinds:
            self._require_room(watcher, len(path))
            self._by_watcher.setdefault(watcher, {})[path] = None
            self._by_path[path] = watchers
            self._count += 1
            self._chars += len(path)
            self._chars_of[watcher] = self._chars_of.get(watcher, 0) + len(path)
        if kind & ~kinds & _RECURSIVE:
            self._count_recursive(path, 1)
        watchers[watcher] = kinds | int(kind)

    def _require_room(self, watcher: Watcher, chars: int) -> None:
        count, chars_of = len(self._by_watcher.get(watcher, ())), self._chars_of
        mine = chars_of.get(watcher, 0)
        if count >= WATCHES_PER_WATCHER_MAX or mine + chars > CHARS_PER_WATCHER_MAX:
            raise RemoteProtocolError("there are more watches than one watcher may have")
        if self._count >= WATCHES_MAX:
            counts = {other: len(paths) for other, paths in self._by_watcher.items()}
            raise WatchesFullError(_largest(counts | {watcher: count + 1}))
        if self._chars + chars > CHARS_MAX:
            raise WatchesFullError(_largest(chars_of | {watcher: mine + chars}))

    def has(self, watcher_type: int, path: str, watcher: Watcher) -> bool:
        """Whether `watcher` has a watch of that WatcherType on exactly this path."""
        if watcher not in self._by_watcher:
            return False
        kinds = self._by_path.get(path, {}).get(watcher, 0)
        return bool(kinds & _OF_TYPE[WatcherType(watcher_type)])

    def remove(self, watcher_type: int, path: str, watcher: Watcher) -> bool:
        """Remove the watches of that WatcherType on exactly this path; False if there are none."""
        if not self.has(watcher_type, path, watcher):
            return False
        self._reduce(path, watcher, _OF_TYPE[WatcherType(watcher_type)])
        return True

    def remove_watcher(self, watcher: Watcher) -> None:
        """Remove everything of a connection that is gone.

        A thousand connections with a thousand watches each, which end together, would stop the
        member for half a second: what is too much for this turn is left to `sweep`.
        """
        paths = self._by_watcher.pop(watcher, None)
        if paths is not None:
            self._count -= len(paths)
            self._chars -= self._chars_of.pop(watcher)
            self._leaving[watcher] = paths
            self._sweep()

    @property
    def sweeping(self) -> bool:
        """Whether something of removed watchers is left, for the next turn's `sweep`."""
        return bool(self._leaving)

    def sweep(self) -> None:
        """A turn has ended: go on with what the next one may remove."""
        self._sweeps = SWEPT_MAX
        if self._leaving:
            self._sweep()

    def _sweep(self) -> None:
        while self._leaving and self._sweeps > 0:
            watcher, paths = self._leaving.popitem()
            self._sweeps -= self._forget(watcher, paths, self._sweeps)
            if paths:
                self._leaving[watcher] = paths

    def _forget(self, watcher: Watcher, paths: dict[str, None], at_most: int = -1) -> int:
        """Take at most so many of these entries out, all of them without a limit; how many."""
        by_path = self._by_path
        count = len(paths) if at_most < 0 else min(at_most, len(paths))
        for _ in range(count):
            path, _ = paths.popitem()
            watchers = by_path[path]
            if watchers.pop(watcher) & _RECURSIVE:
                self._count_recursive(path, -1)
            if not watchers:
                del by_path[path]
        return count

    def trigger(self, change: Change) -> list[tuple[Watcher, EventType, str]]:
        """Who has to be told of `change`, each once; standard watches that fire are removed.

        Whether a watcher may know (the change's ACL) is for the caller to decide; its standard
        watch is used up in either case.
        """
        kind, path = change.type, change.path
        told: dict[Watcher, None] = {}
        if path in self._by_path:
            self._fire(path, _LISTENING[kind], told)
        if self._recursive_lengths and kind != EventType.CHILDREN_CHANGED:
            for ancestor in self._watched_ancestors(path):
                self._fire(ancestor, _RECURSIVE, told)
        return [(watcher, kind, path) for watcher in told]

    def by_path(self) -> Iterator[tuple[str, list[Watcher]]]:
        """Every path with its watchers, as four-letter words show them: child watches left out."""
        known = self._by_watcher
        for path, watchers in self._by_path.items():
            shown = [w for w, kinds in watchers.items() if kinds & _IN_DATA_TABLE and w in known]
            if shown:
                yield path, shown

    def by_watcher(self) -> Iterator[tuple[Watcher, list[str]]]:
        """Every watcher with its paths, as four-letter words show them: child watches left out."""
        for watcher, paths in self._by_watcher.items():
            if shown := [p for p in paths if self._by_path[p][watcher] & _IN_DATA_TABLE]:
                yield watcher, shown

    def _fire(self, path: str, listening: int, told: dict[Watcher, None]) -> None:
        used_up = listening & _STANDARD
        leaving, watchers = self._leaving, self._by_path[path]
        done = []
        for watcher, kinds in watchers.items():
            if kinds & listening and not (leaving and watcher in leaving):
                told[watcher] = None
                if kinds & used_up:
                    done.append((watcher, kinds & ~used_up))
        if done:
            self._use_up(path, watchers, done)

    def _use_up(
        self, path: str, watchers: dict[Watcher, int], done: list[tuple[Watcher, int]]
    ) -> None:
        """Leave to these watchers of `path` what is left: `_reduce` without a call for each."""
        by_watcher, chars_of, chars = self._by_watcher, self._chars_of, len(path)
        gone = 0
        for watcher, left in done:
            if left:
                watchers[watcher] = left
                continue
            gone += 1
            del watchers[watcher]
            paths = by_watcher[watcher]
            del paths[path]
            if paths:
                chars_of[watcher] -= chars
            else:
                del by_watcher[watcher], chars_of[watcher]
        self._count -= gone
        self._chars -= gone * chars
        if not watchers:
            del self._by_path[path]

    def _reduce(self, path: str, watcher: Watcher, kinds: int) -> None:
        watchers = self._by_path[path]
        before = watchers[watcher]
        left = before & ~kinds
        if before & ~left & _RECURSIVE:
            self._count_recursive(path, -1)
        if left:
            watchers[watcher] = left
            return
        self._count -= 1
        self._chars -= len(path)
        self._chars_of[watcher] -= len(path)
        del watchers[watcher]
        if not watchers:
            del self._by_path[path]
        paths = self._by_watcher[watcher]
        del paths[path]
        if not paths:
            del self._by_watcher[watcher], self._chars_of[watcher]

    def _count_recursive(self, path: str, step: int) -> None:
        count = self._recursive_lengths.get(len(path), 0) + step
        if count:
            self._recursive_lengths[len(path)] = count
        else:
            del self._recursive_lengths[len(path)]

    def _watched_ancestors(self, path: str) -> Iterator[str]:
        lengths = self._recursive_lengths
        if len(ROOT) in lengths and path != ROOT and ROOT in self._by_path:
            yield ROOT
        cut = path.find("/", 1)
        while cut > 0:
            if cut in lengths and path[:cut] in self._by_path:
                yield path[:cut]
            cut = path.find("/", cut + 1)


def _largest(sizes: dict[Watcher, int]) -> Watcher:
    return max(sizes, key=sizes.__getitem__)
