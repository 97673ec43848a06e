"""Queues: what one puts in, one takes out, in order, exactly once while both live.

``await Queue(zk, "/jobs").put(b"...")``, ``await Queue(zk, "/jobs").get()``. `Queue` hands out in
the order of arrival, `PriorityQueue` lowest priority number first. An item is gone once it is
handed out, also if the taker then dies: `LockingQueue` keeps it until it is consumed.

Invariants
    I1  A put whose reply is lost puts one item; a get whose reply is lost takes one. Both travel
        with a receipt (`client.recipes.receipt`).
    I2  An item whose taker was cancelled in the middle is kept here, and is the next one of `get`.
        One taking is under way at a time: the next `get` waits for what a cancelled one began.

Znodes, as kazoo's: ``<path>/entry-<priority>-<number>``, persistent; the receipts beside it, in
``<path>-__receipts__``. Cost: a put is 1 write; a get is 2 reads and 1 write, the list being read
once for many by a `Queue`; waiting is 1 read for each change of an empty queue.
"""

import asyncio
import re
from collections import deque
from collections.abc import Sequence

from zabd.client.client import Client
from zabd.client.events import EventStream
from zabd.client.operations import UNSET, Timeout
from zabd.client.recipes.bound import Bound
from zabd.client.recipes.parents import ensure_path
from zabd.client.recipes.receipt import Receipt
from zabd.model.acl import Acl
from zabd.model.errors import NoNodeError
from zabd.model.ops import Create, CreateMode, Delete
from zabd.model.paths import check_path, join
from zabd.model.watch_events import EventType, KeeperState, WatchEvent

DEFAULT_PRIORITY = 100
PRIORITY_MAX = 999

_KEPT = WatchEvent(EventType.NONE, KeeperState.SYNC_CONNECTED, "")
_ENTRY = re.compile(r"entry-(\d{3})-(-\d{10}|\d{10})$")


class Entries:
    """The entries under one znode: put in, listed in order. What both kinds of queues share."""

    def __init__(
        self, client: Client, path: str, receipts: str, acl: tuple[Acl, ...] | None
    ) -> None:
        check_path(path)
        self.path = path
        self.client = client
        self.acl = client.default_acl if acl is None else acl
        self._receipts = receipts

    @property
    def receipt(self) -> Receipt:
        """What makes a write of ours happen once."""
        return Receipt(self.client, self._receipts, self.acl)

    async def put(self, values: Sequence[bytes], priority: int) -> None:
        """Put all of them in, or none."""
        if not 0 <= priority <= PRIORITY_MAX:
            raise ValueError(f"priority={priority}: expected 0 (first) to {PRIORITY_MAX} (last)")
        prefix = join(self.path, f"entry-{priority:03d}-")
        ops = [
            Create(prefix, value, self.acl, CreateMode.PERSISTENT_SEQUENTIAL) for value in values
        ]
        while True:
            try:
                return await self.receipt.write(ops)
            except NoNodeError:
                await self.ensure(self.path)

    async def names(self, stream: EventStream[WatchEvent] | None = None) -> list[str]:
        """The entries, first come first; with a watch on them if there is a stream.

        Who watches waits as long as it takes, and has a limit of its own, or none.
        """
        limit = limit_of(stream)
        while True:
            try:
                names = await self.client.get_children(self.path, watch=stream, timeout=limit)
            except NoNodeError:
                await self.ensure(self.path)
            else:
                return in_order(names)

    async def ensure(self, path: str) -> None:
        """Create a parent that was found missing."""
        await ensure_path(await Bound.now(self.client), path, self.acl)


def limit_of(stream: EventStream[WatchEvent] | None) -> Timeout:
    """No limit for one request of somebody who watches and waits, the client's for others."""
    return UNSET if stream is None else None


class Queue:
    """A queue on the znode `path`, which is created when missing."""

    def __init__(self, client: Client, path: str, *, acl: tuple[Acl, ...] | None = None) -> None:
        self.path = path
        self._client = client
        self._entries = Entries(client, path, f"{path}-__receipts__", acl)
        self._turn = asyncio.Lock()
        self._known: deque[str] = deque()
        self._kept: deque[bytes] = deque()
        self._taking: asyncio.Task[None] | None = None
        self._waiting: EventStream[WatchEvent] | None = None

    async def put(self, value: bytes) -> None:
        """Put a value in.

        Raises:
            SessionExpiredError: the session ended; with `maybe_applied`, perhaps behind it.
            LocalProtocolError: it is larger than a request may be; nothing was done.
            ConnectionLossError: each connection broke that it was sent on, as they do when a server
                takes less than this client knows of; nothing was done.
        """
        await self.put_all([value])

    async def put_all(self, values: Sequence[bytes]) -> None:
        """Put values in, in their order, all or none of them."""
        await self._entries.put(values, DEFAULT_PRIORITY)

    async def get(self, *, blocking: bool = True, timeout: float | None = None) -> bytes | None:
        """Take the first value out; None only without `blocking`, when there is none.

        Raises:
            TimeoutError: there was none within `timeout` seconds.
            SessionExpiredError: the session ended; with `maybe_applied`, perhaps behind the taking
                of a value, which is then nobody's.
        """
        if self._waiting is not None and not blocking:
            return None  # another one waits here, and what comes now is for it
        async with asyncio.timeout(timeout):
            async with self._turn:
                return await self._get(blocking=blocking)

    async def size(self) -> int:
        """How many values there are now."""
        return len(await self._entries.names())

    async def _get(self, *, blocking: bool) -> bytes | None:
        stream: EventStream[WatchEvent] | None = EventStream() if blocking else None
        try:
            while True:
                if self._taking is not None:
                    await self._settle(self._taking)
                if self._kept:
                    return self._kept.popleft()
                if self._known:
                    await self._take(self._known[0], limit_of(stream))
                    continue
                self._known.extend(await self._entries.names(stream))
                if not self._known:
                    if stream is None:
                        return None
                    await self._event(stream)
        finally:
            if stream is not None:
                self._client.unwatch(self.path, stream)

    async def _event(self, stream: EventStream[WatchEvent]) -> None:
        self._waiting = stream
        try:
            await anext(stream)
        finally:
            self._waiting = None

    async def _keep(self, value: bytes | None) -> None:
        """Have back what `get` has returned, but its caller never saw (I2)."""
        if value is None:
            return
        self._kept.appendleft(value)
        if self._waiting is not None:
            self._waiting(_KEPT)

    async def _take(self, name: str, limit: Timeout) -> None:
        """Begin to take an entry out, into `_kept`: if we are cancelled then, it is not lost."""
        path = join(self.path, name)
        try:
            data, _ = await self._client.get(path, timeout=limit)
        except NoNodeError:
            self._known.clear()  # somebody else takes too
            return
        self._taking = self._client.spawn(self._delete(name, data or b""))

    async def _settle(self, taking: asyncio.Task[None]) -> None:
        """Wait for the taking that is under way, whoever began it."""
        try:
            await asyncio.shield(taking)
        finally:
            if taking.done():
                self._taking = None

    async def _delete(self, name: str, value: bytes) -> None:
        try:
            await self._entries.receipt.write([Delete(join(self.path, name), -1)])
        except NoNodeError:
            self._known.clear()
        except BaseException:
            self._known.clear()
            raise
        else:
            self._kept.append(value)
            if name in self._known:
                self._known.remove(name)


class PriorityQueue(Queue):
    """As `Queue`, lowest priority number first, and in order of arrival among equals."""

    async def put(self, value: bytes, *, priority: int = DEFAULT_PRIORITY) -> None:
        """Put a value in; `priority` is from 0 (first) to 999 (last)."""
        await self.put_all([value], priority=priority)

    async def put_all(self, values: Sequence[bytes], *, priority: int = DEFAULT_PRIORITY) -> None:
        """Put values in, in their order, all or none of them."""
        await self._entries.put(values, priority)

    async def _get(self, *, blocking: bool) -> bytes | None:
        self._known.clear()  # something more urgent may have come
        return await super()._get(blocking=blocking)


def in_order(names: Sequence[str]) -> list[str]:
    """Entries by priority and number; other znodes are ignored."""
    matches = ((_ENTRY.search(name), name) for name in names)
    found = sorted((match[1], int(match[2]), name) for match, name in matches if match)
    return [name for _, _, name in found]
