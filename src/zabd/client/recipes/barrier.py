"""Barriers: one that somebody puts up and takes down, and one that a number of clients meet at.

``barrier = Barrier(zk, "/closed")``, ``await barrier.wait()``; ``async with DoubleBarrier(zk,
"/step-1", 3): ...`` begins when three are there, and ends when all have come to its end.

Znodes, as kazoo's. `Barrier`: `path`, persistent, there while it is closed; 1 write to put it up, 1
to take it down, 1 read to wait and 1 for each wake. `DoubleBarrier`: ``<path>/<id>``, ephemeral,
for each participant, and ``<path>/ready``, persistent, from the last entering to the last
leaving; entering is 1 write and 3 reads (for one of them 1 write more), leaving 1 write and 2
reads at least. Who waits to leave watches one znode.
"""

import asyncio
import logging
from contextlib import suppress
from types import TracebackType
from typing import Self

from zabd.client.client import Client
from zabd.client.events import EventStream
from zabd.client.recipes.bound import Bound
from zabd.client.recipes.claim import Claim
from zabd.client.recipes.lock import LockLostError
from zabd.client.recipes.parents import ensure_path
from zabd.model.acl import Acl
from zabd.model.errors import (
    ConnectionLossError,
    LocalProtocolError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from zabd.model.ops import Create, Exists, SetData
from zabd.model.paths import check_path, join
from zabd.model.results import StatResult
from zabd.model.stat import Stat
from zabd.model.watch_events import EventType, WatchEvent

log = logging.getLogger("zabd.client.recipes")

_ID_BITS = 128
_READY = "ready"


class Barrier:
    """A barrier on the znode `path`: closed while it exists, whoever made it."""

    def __init__(self, client: Client, path: str, *, acl: tuple[Acl, ...] | None = None) -> None:
        check_path(path)
        self.path = path
        self._client = client
        self._acl = acl

    async def create(self) -> None:
        """Put it up; that it stands already is success."""
        await self._client.ensure_path(self.path, acl=self._acl)

    async def remove(self) -> bool:
        """Take it down, which lets go all who wait; False if it did not stand.

        It is nobody's: after a lost reply it is taken down once more, whoever put it up since.
        """
        try:
            await self._client.retry(lambda: self._client.delete(self.path), idempotent=True)
        except NoNodeError:
            return False
        return True

    async def wait(self, *, timeout: float | None = None) -> None:
        """Wait until it does not stand; also across partitions and the loss of the session.

        Raises:
            TimeoutError: it stood for `timeout` seconds.
        """
        stream: EventStream[WatchEvent] = EventStream()
        try:
            async with asyncio.timeout(timeout):
                while await self._stands(stream):
                    await anext(stream)
        finally:
            self._client.unwatch(self.path, stream)

    async def _stands(self, stream: EventStream[WatchEvent]) -> bool:
        while True:
            try:
                stat = await self._client.exists(self.path, watch=stream, timeout=None)
            except (ConnectionLossError, SessionExpiredError) as error:
                log.info("looking at %s again: %s", self.path, error)
                await self._client.wait_connected()
            else:
                return stat is not None


class DoubleBarrier:
    """A barrier for `count` clients on the znode `path`; each object enters and leaves once a time.

    A participant whose session is lost counts as one that has left.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        count: int,
        *,
        identifier: str = "",
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        check_path(path)
        if count < 1:
            raise ValueError(f"count={count}: expected at least 1")
        self.path = path
        self.count = count
        self._ready = join(path, _READY)
        self._client = client
        self._data = identifier.encode()
        self._acl = client.default_acl if acl is None else acl
        self._claim: Claim | None = None

    async def enter(self, *, timeout: float | None = None) -> None:
        """Wait until `count` participants are there.

        Raises:
            TimeoutError: they were not within `timeout` seconds; no znode of ours is left.
            SessionExpiredError: the session ended while waiting.
        """
        if self._claim is not None:
            raise LocalProtocolError(f"{self.path}: entered already; leave first")
        name = f"{self._client.rng.getrandbits(_ID_BITS):032x}"
        claim = Claim(self._client, join(self.path, name), self._data, acl=self._acl)
        try:
            async with asyncio.timeout(timeout):
                await self._enter(claim)
        except BaseException:
            claim.remove_soon()
            raise
        self._claim = claim

    async def leave(self, *, timeout: float | None = None) -> None:
        """Wait until all participants want to leave, or are gone.

        Raises:
            TimeoutError: they did not within `timeout` seconds; we have left all the same.
            LockLostError: our session ended inside; the others have taken us for gone.
        """
        claim, self._claim = self._claim, None
        if claim is None:
            raise LocalProtocolError(f"{self.path}: not entered")
        try:
            async with asyncio.timeout(timeout):
                await self._leave(claim)
        except SessionExpiredError as error:
            raise LockLostError(f"{claim.path} ended with its session") from error
        finally:
            claim.remove_soon()

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave()

    async def _enter(self, claim: Claim) -> None:
        while True:
            try:
                await claim.make()
                break
            except NoNodeError:
                await ensure_path(Bound(self._client, claim.session_id), self.path, self._acl)
        bound = Bound(self._client, claim.session_id)
        stream: EventStream[WatchEvent] = EventStream()
        try:
            while not await self._all_are_there(bound, claim, stream):
                await self._event(stream)
        finally:
            self._client.unwatch(self._ready, stream)

    async def _all_are_there(
        self, bound: Bound, claim: Claim, stream: EventStream[WatchEvent]
    ) -> bool:
        ready = await self._stat(bound, self._ready, stream)
        names = await self._participants(bound)
        if ready is not None:
            if ready.mzxid > claim.token:
                return True
            # Put up before us: for others who are inside, or left behind by some who all died.
            stats = await asyncio.gather(*(bound.stat(join(self.path, name)) for name in names))
            if any(stat is not None and stat.czxid < ready.mzxid for stat in stats):
                return True
        if len(names) < self.count:
            return False
        await self._make_ready(bound)
        return True

    async def _leave(self, claim: Claim) -> None:
        """The lowest waits for the highest, everybody else for the lowest."""
        bound = Bound(self._client, claim.session_id)
        name = claim.path.rpartition("/")[2]
        # Whoever comes later is here for another round.
        party = await self._participants(bound)
        while others := _without(name, party, await self._participants(bound)):
            if name < others[0]:
                await self._gone(bound, others[-1])
            else:
                await claim.remove()
                await self._gone(bound, others[0])
        if claim.alive:
            # The last: nobody is on the way in any more who has not seen it.
            await bound.delete(self._ready)
            await claim.remove()

    async def _participants(self, bound: Bound) -> list[str]:
        return [name for name in await bound.children(self.path) if name != _READY]

    async def _make_ready(self, bound: Bound) -> None:
        try:
            await bound.insist(Create(self._ready, b"", self._acl))
        except NodeExistsError:
            # One that was left behind becomes ours, and its watches fire. If it has gone since,
            # others went on and left: kazoo's clients take it down when the first one leaves.
            with suppress(NoNodeError):
                await bound.insist(SetData(self._ready, b"", -1))

    async def _gone(self, bound: Bound, name: str) -> None:
        """Wait until a participant has gone."""
        stream: EventStream[WatchEvent] = EventStream()
        path = join(self.path, name)
        try:
            while await bound.get(path, watch=stream) is not None:
                await self._event(stream)
        finally:
            self._client.unwatch(path, stream)

    async def _stat(self, bound: Bound, path: str, stream: EventStream[WatchEvent]) -> Stat | None:
        try:
            result = await bound.insist(Exists(path, True), watch=stream)
        except NoNodeError:
            return None
        assert isinstance(result, StatResult)
        return result.stat

    async def _event(self, stream: EventStream[WatchEvent]) -> None:
        if (await anext(stream)).type is EventType.NONE:
            raise SessionExpiredError(f"{self.path}: the session ended while waiting")


def _without(name: str, party: list[str], present: list[str]) -> list[str]:
    """The others of a party who are still present, sorted."""
    return [each for each in present if each != name and each in party]
