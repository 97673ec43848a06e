"""A queue whose items stay until they are consumed: when their taker dies, another one gets them.

``async with await queue.get() as item: await work(item.value, fence=item.fencing_token)``

Invariants
    I1  An item has one holder at a time: its claim is made in one transaction that checks that the
        item is there, and it is consumed in one that deletes both.
    I2  An item is handed out again when its holder's session ends, so it is worked on at least
        once: `fencing_token` rises each time, and makes a late worker harmless.

Znodes, as kazoo's: ``<path>/entries/entry-<priority>-<number>``, persistent;
``<path>/taken/<entry>``, ephemeral; the receipts of puts in ``<path>/receipts``. Cost: a put is 1
write; a get is 4 reads and 1 write; consuming or releasing is 1 write. Whoever waits reads twice
for each change.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from zabd.client.client import Client
from zabd.client.events import EventStream
from zabd.client.operations import Timeout
from zabd.client.recipes.bound import Bound, Resends
from zabd.client.recipes.claim import Claim, ClaimGoneError
from zabd.client.recipes.lock import LockLostError
from zabd.client.recipes.queue import DEFAULT_PRIORITY, Entries, limit_of
from zabd.model.acl import Acl
from zabd.model.errors import (
    ConnectionLossError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from zabd.model.ops import Check, Delete
from zabd.model.paths import check_path, join
from zabd.model.watch_events import WatchEvent


class Item:
    """One item that is held, until `consume` or `release`; as a context, consumed at a good end."""

    def __init__(self, client: Client, entry: str, claim: Claim, value: bytes) -> None:
        self.value = value
        self._client = client
        self._entry = entry
        self._claim = claim
        self._ended = False

    @property
    def held(self) -> bool:
        """Whether we hold it, as far as can be known here and now: see `verify`."""
        return self._claim.alive

    @property
    def fencing_token(self) -> int:
        """A number that rises with every holder of the item."""
        return self._claim.token

    async def verify(self) -> None:
        """Ask the leader whether we hold it at this moment.

        Raises:
            LockLostError: we do not.
        """
        try:
            await self._claim.verify()
        except ClaimGoneError as error:
            raise LockLostError(str(error)) from error

    async def wait_lost(self) -> None:
        """Wait until it is lost; consuming or releasing it does not count."""
        await self._claim.lost.wait()

    async def consume(self) -> None:
        """Take it out of the queue for good; a cancelled caller does not stop it.

        Raises:
            LockLostError: we do not hold it any more; nothing was done.
            SessionExpiredError: the session ended; with `maybe_applied`, perhaps behind it.
        """
        self._ended = True
        await asyncio.shield(self._client.spawn(self._consume()))

    async def release(self) -> None:
        """Give it back, for somebody else to get."""
        self._ended = True
        await self._claim.remove()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ended:
            return
        if kind is None:
            await self.consume()
        else:
            await self.release()

    async def _consume(self) -> None:
        claim = self._claim
        assert claim.stat is not None, "an item is handed out once its claim is made"
        bound = Bound(self._client, claim.session_id)
        resends = Resends(limit=None)
        while True:
            try:
                await bound.multi([Delete(claim.path, -1), Delete(self._entry, -1)])
            except ConnectionLossError as lost:
                await resends.pause(lost)
                try:
                    if await bound.is_still(claim.path, claim.stat):
                        continue
                except SessionExpiredError as error:
                    error.maybe_applied = True
                    raise
            except NoNodeError as error:
                claim.lost.set()
                raise LockLostError(f"{claim.path} was deleted by somebody else") from error
            claim.removed()
            return


class LockingQueue:
    """A queue on the znode `path`, which is created when missing."""

    def __init__(self, client: Client, path: str, *, acl: tuple[Acl, ...] | None = None) -> None:
        check_path(path)
        self.path = path
        self._client = client
        self._acl = acl
        self._taken = join(path, "taken")
        self._entries = Entries(client, join(path, "entries"), join(path, "receipts"), acl)

    async def put(self, value: bytes, *, priority: int = DEFAULT_PRIORITY) -> None:
        """Put a value in; `priority` is from 0 (first) to 999 (last).

        Raises:
            SessionExpiredError: the session ended; with `maybe_applied`, perhaps behind it.
            LocalProtocolError, ConnectionLossError: as of `Queue.put`; nothing was done.
        """
        await self.put_all([value], priority=priority)

    async def put_all(self, values: Sequence[bytes], *, priority: int = DEFAULT_PRIORITY) -> None:
        """Put values in, in their order, all or none of them."""
        await self._entries.put(values, priority)

    async def get(self, *, blocking: bool = True, timeout: float | None = None) -> Item | None:
        """Hold the first item that nobody holds; None only without `blocking`, if there is none.

        Raises:
            TimeoutError: there was none within `timeout` seconds.
            SessionExpiredError: the session ended while waiting.
        """
        stream: EventStream[WatchEvent] | None = EventStream() if blocking else None
        try:
            async with asyncio.timeout(timeout):
                while True:
                    for name in await self._free(stream):
                        if (item := await self._take(name, limit_of(stream))) is not None:
                            return item
                    if stream is None:
                        return None
                    await anext(stream)
        finally:
            if stream is not None:
                self._client.unwatch(self._entries.path, stream)
                self._client.unwatch(self._taken, stream)

    async def size(self) -> int:
        """How many items there are now, held ones included."""
        return len(await self._entries.names())

    async def _free(self, stream: EventStream[WatchEvent] | None) -> list[str]:
        names = await self._entries.names(stream)
        while True:
            try:
                limit = limit_of(stream)
                taken = await self._client.get_children(self._taken, watch=stream, timeout=limit)
            except NoNodeError:
                await self._entries.ensure(self._taken)
            else:
                held = set(taken)
                return [name for name in names if name not in held]

    async def _take(self, name: str, limit: Timeout) -> Item | None:
        entry = join(self._entries.path, name)
        claim = Claim(self._client, join(self._taken, name), b"", acl=self._acl)
        try:
            try:
                await claim.make(before=[Check(entry, -1)])
            except (NodeExistsError, NoNodeError):
                # Another has it, or had it.
                await claim.remove()
                return None
            data, _ = await self._client.get(entry, timeout=limit)
        except BaseException:
            claim.remove_soon()
            raise
        return Item(self._client, entry, claim, data or b"")
