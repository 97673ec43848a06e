"""A master that shares work out among healthy workers, and another one when it fails.

    python examples/master_failover.py HOSTS worker w1     # any number of each
    python examples/master_failover.py HOSTS master m1

A worker has a znode of its own with its health in it, which goes when it does. Whoever is elected
master keeps the workers in memory by a watch and writes the assignment whenever they change. Two
who both believe to be master do no harm: an assignment is replaced only by one with a higher token.
"""

import asyncio
import json
import sys
from collections.abc import Iterable
from typing import Any

from zabd.client import Client, EventStream, connect
from zabd.client.recipes import Election, PersistentNode, Term, TreeCache, TreeChange
from zabd.model import BadVersionError, NodeExistsError, NoNodeError

MASTER, WORKERS, ASSIGNMENT = "/app/master", "/app/workers", "/app/assignment"
SHARDS = tuple(f"shard-{number}" for number in range(8))


def worker(zk: Client, name: str) -> PersistentNode:
    """For `async with`; `await node.set(b"sick")` says that it wants no work for now."""
    return PersistentNode(zk, f"{WORKERS}/{name}", b"healthy")


def shared_out(names: Iterable[str]) -> dict[str, list[str]]:
    """Every shard has one worker, and no worker has two more than another."""
    workers = sorted(names)
    return {
        name: list(SHARDS[place :: len(workers)]) for place, name in enumerate(workers) if workers
    }


async def assign(zk: Client, token: int, shares: dict[str, list[str]]) -> None:
    """Write the assignment, unless a later master has.

    Raises:
        RuntimeError: one has, so we are master no longer.
    """
    raw = json.dumps({"token": token, "shares": shares}).encode()
    while True:
        try:
            data, stat = await zk.get(ASSIGNMENT)
            if json.loads(data or b"{}").get("token", 0) > token:
                raise RuntimeError("a later master has assigned the work")
            await zk.set(ASSIGNMENT, raw, version=stat.version)
        except NoNodeError:
            try:
                await zk.create(ASSIGNMENT, raw, make_parents=True)
            except NodeExistsError:
                continue
        except BadVersionError:
            continue
        return


async def assignment(zk: Client) -> dict[str, Any]:
    """What the last master wrote: its token, and the shards of each worker."""
    data, _ = await zk.get(ASSIGNMENT)
    result: dict[str, Any] = json.loads(data or b"{}")
    return result


async def lead(zk: Client, term: Term) -> None:
    """Be master until the term ends: share out anew whenever a worker comes, goes or falls sick."""
    await zk.ensure_path(WORKERS)
    changes = EventStream[TreeChange]()
    async with TreeCache(zk, WORKERS, on_change=changes) as cache:
        await assign(zk, term.fencing_token, shared_out(healthy(cache)))
        async for _change in changes:
            await assign(zk, term.fencing_token, shared_out(healthy(cache)))


def healthy(cache: TreeCache) -> list[str]:
    """The workers that want work."""
    return [
        name for name in cache.children(WORKERS) if cache.data(f"{WORKERS}/{name}") == b"healthy"
    ]


async def stand(zk: Client, name: str) -> None:
    """Be master whenever elected, until cancelled."""
    await Election(zk, MASTER, identifier=name).serve(lambda term: lead(zk, term))


async def main(hosts: str, role: str, name: str) -> None:
    """Be a worker or a candidate until interrupted."""
    async with connect(hosts) as zk:
        if role == "master":
            await stand(zk, name)
        async with worker(zk, name):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
