"""A number of leases that sessions hold at the same time, given out in the order of asking.

``async with Semaphore(zk, "/pools/gpu", max_leases=4) as lease: await work(lease.fencing_token)``

Invariants
    I1  A lease is created by whoever is first in the queue, in one transaction that checks its
        place there: a contender that lost its place cannot create one, however late it wakes.
    I2  Only the first in the queue watches the leases.

Znodes, as kazoo's: ``<path>/<id>`` for each lease, ephemeral; the queue beside it,
``<path>-__lock__/<id>__lock__<number>``; ``<path>`` holds the number of leases. Cost: a free lease
is 2 writes and 3 reads; waiting is as for `Lock`, and 1 read for each change of the leases while
first; releasing is 1 write. The first acquire of an object adds 1 read, of the number of leases.
"""

import asyncio
import logging
from types import TracebackType

from zabd.client.client import Client
from zabd.client.events import EventStream
from zabd.client.recipes.bound import Bound
from zabd.client.recipes.claim import Claim, ClaimGoneError
from zabd.client.recipes.lock import LockLostError, LockTimeoutError
from zabd.client.recipes.parents import ensure_path
from zabd.client.recipes.place import Place, PlaceGoneError
from zabd.client.recipes.transitions import PlaceLog
from zabd.model.acl import Acl
from zabd.model.errors import NodeExistsError, NoNodeError, SessionExpiredError
from zabd.model.ops import Check, Create, Delete, GetChildren
from zabd.model.paths import check_path, join, parent_of
from zabd.model.results import ChildrenResult
from zabd.model.watch_events import EventType, WatchEvent

log = logging.getLogger("zabd.client.semaphore")

_ID_BITS = 128


class Lease:
    """One lease that is held, until `release`."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    @property
    def held(self) -> bool:
        """Whether we hold it, as far as can be known here and now: see `verify`."""
        return self._claim.alive

    @property
    def znode(self) -> str:
        """The path of the lease's znode."""
        return self._claim.path

    @property
    def fencing_token(self) -> int:
        """A number that tells this lease from all others; later leases have higher ones.

        Several are valid at a time, so a resource compares it by slot, or per thing it guards.
        """
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
        """Wait until it is lost; releasing it does not count."""
        await self._claim.lost.wait()

    async def release(self) -> None:
        """Give it back; returns once the znode is gone, or the session with it.

        Raises:
            KeeperError: the server does not let us delete it, because of its ACL for example; it
                counts until the session ends, or until another call.
        """
        await self._claim.remove()


class Semaphore:
    """`max_leases` leases on the znode `path`, which is created when missing; reusable.

    All who share a path have to agree on `max_leases`.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        max_leases: int = 1,
        identifier: str = "",
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        check_path(path)
        if max_leases < 1:
            raise ValueError(f"max_leases={max_leases}: expected at least 1")
        self.path = path
        self.max_leases = max_leases
        self._client = client
        self._data = identifier.encode()
        self._acl = acl
        self._agreed = False
        self._entered: dict[asyncio.Task[object] | None, list[Lease]] = {}

    async def acquire(self, *, blocking: bool = True, timeout: float | None = None) -> Lease | None:
        """Take a lease; None only without `blocking`, when there is none to be had at once.

        Raises:
            LockTimeoutError: there was none within `timeout` seconds, connected or not.
            SessionExpiredError: the session ended while waiting.
            ValueError: the znode says another `max_leases`.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._agree(await Bound.now(self._client))
                return await self._acquire(blocking=blocking)
        except TimeoutError:
            raise LockTimeoutError(f"{self.path}: no lease within {timeout} s") from None

    async def lease_holders(self) -> list[str]:
        """The identifiers of those who hold a lease, in no order."""
        found = []
        try:
            names = await self._client.get_children(self.path)
        except NoNodeError:
            return []
        for name in names:
            try:
                data, _ = await self._client.get(join(self.path, name))
            except NoNodeError:
                continue
            found.append((data or b"").decode(errors="replace"))
        return found

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        assert lease is not None, "it blocks"
        self._entered.setdefault(asyncio.current_task(), []).append(lease)
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task = asyncio.current_task()
        leases = self._entered[task]
        lease = leases.pop()
        if not leases:
            del self._entered[task]
        await lease.release()

    async def _agree(self, bound: Bound) -> None:
        """Say how many leases there are, or hear it."""
        number = str(self.max_leases).encode()
        acl = self._client.default_acl if self._acl is None else self._acl
        while not self._agreed:
            found = await bound.get(self.path)
            if found is None:
                try:
                    await bound.insist(Create(self.path, number, acl))
                except NoNodeError:
                    await ensure_path(bound, parent_of(self.path))
                except NodeExistsError:
                    pass  # whoever it was, we ourselves perhaps: the next look tells the number
                else:
                    self._agreed = True
                continue
            # kazoo writes the number behind the creation, and lets anything else stand there.
            data = found.data
            if data and data.isdigit() and data != number:
                raise ValueError(
                    f"{self.path} says {int(data)} leases, this semaphore {self.max_leases}"
                )
            self._agreed = True

    async def _acquire(self, *, blocking: bool) -> Lease | None:
        name = f"{self._client.rng.getrandbits(_ID_BITS):032x}"
        queue = f"{self.path}-__lock__"
        place = Place(
            self._client,
            queue,
            f"{name}__lock__",
            self._data,
            PlaceLog(log, self.path),
            acl=self._acl,
        )
        claim = Claim(self._client, join(self.path, name), self._data, acl=self._acl)
        leased = False
        try:
            await place.take()
            if blocking:
                await place.wait_for_turn()
            elif (await place.look()).ahead is not None:
                return None
            leased = await self._lease(place, claim, blocking=blocking)
        finally:
            if leased:
                place.left("leased")
            else:
                # Whatever took us out: first the claim, that nobody makes any more, then the place.
                undone = self._client.spawn(_undo(place, claim))
        if leased:
            return Lease(claim)
        await asyncio.shield(undone)
        return None

    async def _lease(self, place: Place, claim: Claim, *, blocking: bool) -> bool:
        stream: EventStream[WatchEvent] = EventStream()
        try:
            while True:
                if await self._count(place, stream) < self.max_leases:
                    guard, leave = Check(place.path, -1), Delete(place.path, -1)
                    await self._make(place, claim, guard, leave)
                    place.acquired()
                    return True
                if not blocking:
                    return False
                if (await anext(stream)).type is EventType.NONE:
                    raise SessionExpiredError(f"{place.path}: the session ended while waiting")
        finally:
            self._client.unwatch(self.path, stream)

    async def _make(self, place: Place, claim: Claim, guard: Check, leave: Delete) -> None:
        try:
            await claim.make(bound=place.bound, before=[guard], after=[leave])
        except NoNodeError as error:
            raise PlaceGoneError(f"{place.path} or {self.path} was deleted by others") from error

    async def _count(self, place: Place, stream: EventStream[WatchEvent]) -> int:
        result = await place.bound.insist(GetChildren(self.path, True), watch=stream)
        assert isinstance(result, ChildrenResult)
        return len(result.children)


async def _undo(place: Place, claim: Claim) -> None:
    try:
        await claim.remove()
    finally:
        await place.leave("cancelled")
