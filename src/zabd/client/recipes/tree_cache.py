"""A subtree kept in memory, up to date by one watch.

``async with TreeCache(zk, "/config") as cache: cache.data("/config/a"), cache.children("/config")``

Invariants
    I1  What is here was true at the ensemble, path by path, and catches up: each event leads to a
        read of its path, each reconnect, each new session and each backlog of events that was too
        long to be kept to a read of everything.
    I2  Changes are told in the order in which they become visible here.

Znodes: none of its own. Cost: 1 write-free request for the watch, 2 reads for each znode to begin
with and after each reconnect, then 1 read for each change and none for a deletion. A server before
3.6, which knows no recursive watches, gets two one-shot watches for each znode instead.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import NamedTuple, Self

from zabd.client.client import Client
from zabd.client.effects import SessionState
from zabd.client.events import EventStream, StateChange
from zabd.client.recipes.node_watch import Value
from zabd.model.errors import (
    KeeperError,
    LocalProtocolError,
    NoNodeError,
    UnimplementedError,
)
from zabd.model.paths import ROOT, check_path, join, name_of, parent_of
from zabd.model.watch_events import EventType, KeeperState, WatchEvent

log = logging.getLogger("zabd.client.recipes")

# So many znodes are read at the same time.
READS_MAX = 100
LOAD_AGAIN_S = 0.5


class ChangeKind(Enum):
    """What became of a path, as seen here."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


class TreeChange(NamedTuple):
    """One change; `value` is what is there now, None for what is not."""

    kind: ChangeKind
    path: str
    value: Value | None


_RELOAD = WatchEvent(EventType.NONE, KeeperState.SYNC_CONNECTED, "")


class TreeCache:
    """The subtree at `path`; ``async with``, or `start` and `close`.

    `on_change` is called at once with each `TreeChange`, those of the first load included; it must
    not block or raise. An `EventStream` will do.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        on_change: Callable[[TreeChange], object] | None = None,
    ) -> None:
        check_path(path)
        self.path = path
        self._on_change = on_change
        self._client = client
        self._values: dict[str, Value] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._events: EventStream[WatchEvent] = EventStream()
        self._task: asyncio.Task[None] | None = None
        self._loaded = asyncio.Event()
        self._one_shot = False
        self._session_id = 0
        self._forget_hook = client.on_transition(self._on_transition)

    # Looking.

    def get(self, path: str) -> Value | None:
        """Data and Stat of a path, None if there is no such znode."""
        return self._values.get(path)

    def data(self, path: str) -> bytes | None:
        """The data of a path, None if there is no such znode."""
        value = self._values.get(path)
        return None if value is None else value.data

    def children(self, path: str) -> list[str]:
        """The names of the znodes right below a path, sorted."""
        return sorted(self._children.get(path, ()))

    def paths(self) -> list[str]:
        """All paths, sorted."""
        return sorted(self._values)

    def __contains__(self, path: str) -> bool:
        return path in self._values

    def __len__(self) -> int:
        return len(self._values)

    # Life.

    async def start(self, *, timeout: float | None = None) -> None:
        """Load the subtree; returns when all of it is here.

        Raises:
            TimeoutError: that took longer than `timeout` seconds.
        """
        if self._task is None:
            self._task = self._client.spawn(self._run())
        async with asyncio.timeout(timeout):
            await self._loaded.wait()

    async def close(self) -> None:
        """Stop; what is here stays as it is."""
        self._forget_hook()
        self._forget_watches()
        self._events.close()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _on_transition(self, change: StateChange) -> None:
        # A persistent watch tells nothing of what happened while there was no connection.
        if change.state is SessionState.CONNECTED and self._task is not None:
            self._events(_RELOAD)

    async def _run(self) -> None:
        await self._insist(self.path, everything=True)
        while (event := await self._event()) is not None:
            if event.type is EventType.PERSISTENT_WATCH_REMOVED:
                self._session_id = 0  # this server knows no such watches
            if event.type in {EventType.NONE, EventType.PERSISTENT_WATCH_REMOVED}:
                await self._insist(self.path, everything=True)
            else:
                await self._insist(event.path, everything=self._one_shot)

    async def _event(self) -> WatchEvent | None:
        """The next event, None if this is closed."""
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            return None
        except LocalProtocolError as error:
            log.warning("reading all of %s again: %s", self.path, error)
            self._forget_watches()
            self._events = EventStream()
            self._session_id = 0  # the new stream has no watch yet
            return _RELOAD

    def _forget_watches(self) -> None:
        for path in {self.path: None, **self._values} if self._one_shot else [self.path]:
            self._client.unwatch(path, self._events)

    async def _insist(self, path: str, *, everything: bool) -> None:
        while not self._client.closed:
            try:
                if everything:
                    await self._load(path)
                else:
                    await self._refresh(path)
            except (KeeperError, LocalProtocolError) as error:
                log.info("reading %s again: %s", path, error)
                await asyncio.sleep(LOAD_AGAIN_S)
                path, everything = self.path, True
            else:
                self._loaded.set()
                return

    async def _load(self, path: str) -> None:
        """Read everything from `path` down, and drop what is not there any more."""
        await self._watch()
        found: dict[str, None] = {}
        level = [path]
        while level:
            below: list[str] = []
            for start in range(0, len(level), READS_MAX):
                part = level[start : start + READS_MAX]
                for each, names in zip(
                    part, await asyncio.gather(*map(self._read, part)), strict=True
                ):
                    if names is not None:
                        found[each] = None
                        below += [join(each, name) for name in names]
            level = below
        inside = path.rstrip("/") + "/"
        for known in sorted(self._values, reverse=True):
            if known not in found and (known == path or known.startswith(inside)):
                self._remove(known)

    async def _watch(self) -> None:
        """Set the watch that covers all of it, once for each session."""
        session_id = self._client.session_id
        if self._one_shot or (session_id and session_id == self._session_id):
            return
        try:
            await self._client.add_watch(self.path, self._events, recursive=True)
        except UnimplementedError:
            self._one_shot = True
        else:
            self._session_id = session_id

    async def _read(self, path: str) -> list[str] | None:
        """Read one znode and the names below it; None if it is not there."""
        watch = self._events if self._one_shot else None
        if watch is not None:
            self._client.unwatch(path, watch)
        try:
            value, names = await asyncio.gather(
                self._client.get(path, watch=watch), self._client.get_children(path, watch=watch)
            )
        except NoNodeError:
            if watch is not None and path == self.path:
                await self._client.exists(path, watch=watch)
            return None
        self._put(path, Value(value.data or b"", value.stat))
        return names

    async def _refresh(self, path: str) -> None:
        """Read one znode of which an event told."""
        try:
            data, stat = await self._client.get(path)
        except NoNodeError:
            self._remove(path)
        else:
            self._put(path, Value(data or b"", stat))

    def _put(self, path: str, value: Value) -> None:
        known = self._values.get(path)
        if known is not None and known.stat.mzxid == value.stat.mzxid:
            self._values[path] = value  # its Stat counts children
            return
        self._values[path] = value
        if path != ROOT:
            self._children.setdefault(parent_of(path), {})[name_of(path)] = None
        kind = ChangeKind.ADDED if known is None else ChangeKind.CHANGED
        self._tell(TreeChange(kind, path, value))

    def _remove(self, path: str) -> None:
        if self._values.pop(path, None) is None:
            return
        siblings = self._children.get(parent_of(path), {})
        siblings.pop(name_of(path), None)
        if not siblings:
            self._children.pop(parent_of(path), None)
        self._tell(TreeChange(ChangeKind.REMOVED, path, None))

    def _tell(self, change: TreeChange) -> None:
        if self._on_change is not None:
            self._on_change(change)
