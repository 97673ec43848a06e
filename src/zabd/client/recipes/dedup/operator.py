"""What an operator does with a key: look, and forget. Nothing here is needed in normal work."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from zabd.client.client import Client
from zabd.client.recipes.contenders import contenders_among
from zabd.client.recipes.dedup.errors import FencedError, LockRevokedError
from zabd.client.recipes.dedup.flights import Flight, flights_of
from zabd.client.recipes.dedup.ledger import RESULT, STARTED, Ledger
from zabd.client.recipes.dedup.naming import named
from zabd.client.recipes.dedup.ownership import LOCK_PREFIX
from zabd.client.recipes.dedup.parents import make_parent
from zabd.client.recipes.dedup.records import Result, Started
from zabd.client.recipes.dedup.request import Request
from zabd.client.recipes.dedup.status import LockNode, Status, derive_state
from zabd.client.recipes.place import Place
from zabd.model.errors import NoNodeError, NotEmptyError
from zabd.model.ops import Check, Delete, MultiOp
from zabd.model.paths import join, parent_of
from zabd.model.results import GetDataResult


async def read_status(client: Client, parent: str, *, strict: bool) -> Status:
    """Read the key's znodes behind a `sync`, or with `strict` behind a write of a quorum's."""
    try:
        if strict:
            base = parent_of(parent)
            await client.retry(lambda: client.multi([Check(base)]), idempotent=True)
        await client.sync(parent)
        names = await client.get_children(parent)
    except NoNodeError:
        return Status(derive_state((), None, None), (), None, None)
    queue = contenders_among(names)
    paths = [join(parent, name) for name in [*(c.name for c in queue), STARTED, RESULT]]
    *locks, started, result = await asyncio.gather(*(_get(client, path) for path in paths))
    nodes = tuple(
        LockNode(
            contender.name,
            contender.sequence,
            found.stat.ephemeral_owner,
            found.stat.czxid,
            (found.data or b"").decode(errors="replace"),
            found.stat.ctime,
        )
        for contender, found in zip(queue, locks, strict=True)
        if found is not None
    )
    journal = Started.decode(started.data) if started else None
    record = Result.decode(result.data) if result else None
    return Status(derive_state(nodes, journal, record), nodes, journal, record)


async def forget(request: Request) -> bool:
    """Delete the key's records under its lock, then its znode if nobody else is there."""
    deadline = _deadline_of(request)
    with _named(request):
        async with asyncio.timeout_at(deadline):
            await request.client.sync(request.parent)
            if await request.client.exists(request.parent) is None:
                return False
    async with owning(request, deadline) as ledger:
        queue = await ledger.place.look()
        paths = {RESULT: ledger.result_path, STARTED: ledger.started_path}
        drops: list[MultiOp] = [
            Delete(path) for name, path in paths.items() if name in queue.children
        ]
        if drops:
            await ledger.guarded(drops)
    with suppress(NotEmptyError, NoNodeError):
        await request.client.delete(request.parent)
    return bool(drops)


@asynccontextmanager
async def owning(request: Request, deadline: float | None = None) -> AsyncIterator[Ledger]:
    """Own a key for the time of a block, as everybody does: through the queue of its locks.

    It has to be ours by `deadline`, in the loop's time: by default that of a request made now.
    """
    flight = flights_of(request.client).of(request.parent)
    place = Place(
        request.client,
        request.parent,
        LOCK_PREFIX,
        b"",
        request.log,
        acl=request.acl,
        make_parent=make_parent(request.parent, request.acl),
    )
    in_front = False
    try:
        with _named(request, place):
            async with asyncio.timeout_at(deadline or _deadline_of(request)):
                while await flight.join() is not None:
                    continue
                in_front = True
                await place.take()
                await place.wait_for_turn()
            place.acquired()
            yield Ledger(place, request.acl, request.meter)
    except BaseException as error:
        if isinstance(error, FencedError | LockRevokedError):
            place.left("error")  # its name may be somebody else's by now
        if in_front:
            # Not waited for: who has run out of time, or was cancelled, has no more of it.
            request.client.spawn(_leave(request, place, flight))
        else:
            place.left("error")  # there is no znode
        raise
    await asyncio.shield(request.client.spawn(_leave(request, place, flight)))


def _deadline_of(request: Request) -> float | None:
    limit = request.options.acquire_timeout
    return None if limit is None else asyncio.get_running_loop().time() + limit


@contextmanager
def _named(request: Request, place: Place | None = None) -> Iterator[None]:
    """In this block errors get the recipe's names."""
    try:
        yield
    except BaseException as error:
        called = named(request, error, place.session_id if place else request.client.session_id)
        if called is error:
            raise
        raise called from error


async def _leave(request: Request, place: Place, flight: Flight) -> None:
    """Leave both queues; the local one whatever becomes of the caller, and of the other."""
    try:
        with request.meter.cleaning():
            await place.leave("completed")
    finally:
        flight.end(None)


async def _get(client: Client, path: str) -> GetDataResult | None:
    try:
        return await client.get(path)
    except NoNodeError:
        return None
