"""A znode's data, or its children's names, now and after every change.

``async for value in DataWatch(zk, "/config"): ...`` yields a `Value`, or None while there is no
such znode; ``ChildrenWatch(zk, "/workers")`` yields names, or None. The first comes at once.

Invariants
    I1  The last state is never missed: the watch is set by the read whose answer is told, and set
        again after each event, each reconnect and each new session.
    I2  States in between may be skipped, as always with watches; the same state is not told twice.

Znodes: none of its own. Cost: 1 read at first and 1 for each change, 2 while there is no znode.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from inspect import isawaitable
from typing import Generic, NamedTuple, Self, TypeVar

from zabd.client.client import Client
from zabd.client.events import EventStream
from zabd.model.errors import KeeperError, LocalProtocolError, NoNodeError, TooManyRequestsError
from zabd.model.paths import check_path
from zabd.model.stat import Stat
from zabd.model.watch_events import WatchEvent

log = logging.getLogger("zabd.client.recipes")

V = TypeVar("V")

# After a read that failed, so that a broken ensemble is not hammered.
READ_AGAIN_S = 0.5


class Value(NamedTuple):
    """What a znode holds."""

    data: bytes
    stat: Stat


class NodeWatch(ABC, Generic[V]):
    """An async iterator of what `path` is; ends when it or the client is closed."""

    def __init__(self, client: Client, path: str) -> None:
        check_path(path)
        self.path = path
        self._client = client
        self._stream: EventStream[WatchEvent] = EventStream()
        self._state: object = self  # nothing that was told equals it
        self._begun = False

    def close(self) -> None:
        """End the iteration, and forget the watch."""
        self._stream.close()
        self._client.unwatch(self.path, self._stream)

    def start(self, callback: Callable[[V | None], object]) -> asyncio.Task[None]:
        """Call `callback` with each state, in the background, until it returns False.

        A coroutine function is awaited. What it raises ends the watch, and is the task's outcome.
        """
        return self._client.spawn(self._call(callback))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> V | None:
        while True:
            if self._begun:
                await anext(self._stream)
            self._begun = True
            state, value = await self._look()
            if state != self._state:
                self._state = state
                return value

    async def _look(self) -> tuple[object, V | None]:
        """Read with a watch until it is answered; StopAsyncIteration when the client is closed."""
        while True:
            if self._client.closed:
                raise StopAsyncIteration
            try:
                return await self._read()
            except (KeeperError, TooManyRequestsError) as error:
                log.info("reading %s again: %s", self.path, error)
            except LocalProtocolError:
                if not self._client.closed:
                    raise
                continue
            await asyncio.sleep(READ_AGAIN_S)

    @abstractmethod
    async def _read(self) -> tuple[object, V | None]:
        """Read with the watch; return what tells this state from others, and the value."""

    async def _missing(self) -> bool:
        """Whether there is still no znode, with a watch for its creation."""
        return await self._client.exists(self.path, watch=self._stream) is None

    async def _call(self, callback: Callable[[V | None], object]) -> None:
        try:
            async for value in self:
                outcome = callback(value)
                if isawaitable(outcome):
                    outcome = await outcome
                if outcome is False:
                    return
        finally:
            self.close()


class DataWatch(NodeWatch[Value]):
    """Yields a `Value`, or None while there is no such znode."""

    async def _read(self) -> tuple[object, Value | None]:
        while True:
            try:
                data, stat = await self._client.get(self.path, watch=self._stream)
            except NoNodeError:
                if await self._missing():
                    return None, None
            else:
                return (stat.czxid, stat.mzxid), Value(data or b"", stat)


class ChildrenWatch(NodeWatch[list[str]]):
    """Yields the children's names, sorted, or None while there is no such znode."""

    async def _read(self) -> tuple[object, list[str] | None]:
        while True:
            try:
                names = await self._client.get_children(self.path, watch=self._stream)
            except NoNodeError:
                if await self._missing():
                    return None, None
            else:
                return names, names
