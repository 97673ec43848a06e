"""What an operator does with a key: look, forget, settle. Nothing here is needed in normal work."""

import asyncio

from zabd.client.client import Client
from zabd.client.recipes.contenders import contenders_among
from zabd.client.recipes.dedup.contention import LOCK_PREFIX
from zabd.client.recipes.dedup.flights import flights_of
from zabd.client.recipes.dedup.ledger import RESULT, STARTED, Ledger
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
    if strict:
        await client.retry(lambda: client.multi([Check(parent_of(parent))]), idempotent=True)
    await client.sync(parent)
    try:
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
    flight = flights_of(request.client).of(request.parent)
    while await flight.join() is not None:
        continue
    try:
        return await _forget(request)
    finally:
        flight.end(None)


async def _forget(request: Request) -> bool:
    place, ledger = await _take(request)
    try:
        queue = await place.look()
        drops: list[MultiOp] = [
            Delete(join(place.parent, name)) for name in (RESULT, STARTED) if name in queue.children
        ]
        if drops:
            await ledger.guarded(drops)
    finally:
        await place.leave("forgotten")
    try:
        await request.client.delete(place.parent)
    except (NotEmptyError, NoNodeError):
        return bool(drops)
    return bool(drops)


async def _take(request: Request) -> tuple[Place, Ledger]:
    place = Place(request.client, request.parent, LOCK_PREFIX, b"", request.log, acl=request.acl)
    try:
        async with asyncio.timeout(request.options.acquire_timeout):
            await place.take()
            while (ahead := (await place.look()).ahead) is not None:
                await place.wait_for(ahead)
    except BaseException:
        place.leave_soon("error")
        raise
    place.acquired()
    return place, Ledger(place, request.acl)


async def _get(client: Client, path: str) -> GetDataResult | None:
    try:
        return await client.get(path)
    except NoNodeError:
        return None
