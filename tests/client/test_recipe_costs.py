"""What each recipe costs, counted at the server, and that the table in the docs says so.

A second use is measured: the first one also makes the znodes that stay. Pings are not counted.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.client.fast_loop import FastLoop, run
from tests.client.scripted_server import ScriptedEnsemble

from zabd.client import Client, connect
from zabd.client.recipes import (
    Barrier,
    ChildrenWatch,
    Counter,
    DataWatch,
    DoubleBarrier,
    Election,
    LeaderLatch,
    Lock,
    LockingQueue,
    Partitioner,
    Party,
    PersistentNode,
    PriorityQueue,
    Queue,
    ReadWriteLock,
    Semaphore,
    Share,
    Term,
    TreeCache,
    TtlLease,
)
from zabd.model.ops import WRITE_OPCODES, Ping

TABLE = Path(__file__).parents[2] / "docs" / "reference" / "recipes.md"

Use = Callable[[Client, Callable[[], None]], Awaitable[None]]


async def lock(zk: Client, halfway: Callable[[], None]) -> None:
    """Taking and giving back."""
    async with Lock(zk, "/x"):
        halfway()


async def election(zk: Client, halfway: Callable[[], None]) -> None:
    """A term."""

    async def lead(_: Term) -> None:
        halfway()

    await Election(zk, "/x").run(lead)


async def latch(zk: Client, halfway: Callable[[], None]) -> None:
    """Standing until elected, and standing down."""
    async with LeaderLatch(zk, "/x") as standing:
        await standing.wait_leading()
        halfway()


async def semaphore(zk: Client, halfway: Callable[[], None]) -> None:
    """A lease; the number of leases is read by each new object."""
    async with Semaphore(zk, "/x", max_leases=2):
        halfway()


async def read_lock(zk: Client, halfway: Callable[[], None]) -> None:
    """A reader."""
    async with ReadWriteLock(zk, "/x").read:
        halfway()


async def write_lock(zk: Client, halfway: Callable[[], None]) -> None:
    """A writer."""
    async with ReadWriteLock(zk, "/x").write:
        halfway()


async def downgrade(zk: Client, halfway: Callable[[], None]) -> None:
    """The half behind taking the write lock: downgrading, then giving back."""
    both = ReadWriteLock(zk, "/x")
    async with both.write:
        halfway()
        await both.downgrade()


async def counter(zk: Client, halfway: Callable[[], None]) -> None:
    """A first addition of an object, and a later one."""
    counting = Counter(zk, "/x")
    await counting.add(1)
    halfway()
    await counting.add(1)


async def barrier(zk: Client, halfway: Callable[[], None]) -> None:
    """Putting it up, and taking it down."""
    await Barrier(zk, "/x").create()
    halfway()
    await Barrier(zk, "/x").remove()


async def double_barrier(zk: Client, halfway: Callable[[], None]) -> None:
    """Entering and leaving alone."""
    async with DoubleBarrier(zk, "/x", 1):
        halfway()


async def queue(zk: Client, halfway: Callable[[], None]) -> None:
    """Putting and getting."""
    await Queue(zk, "/x").put(b"1")
    halfway()
    await Queue(zk, "/x").get()


async def priority_queue(zk: Client, halfway: Callable[[], None]) -> None:
    """Putting and getting."""
    await PriorityQueue(zk, "/x").put(b"1")
    halfway()
    await PriorityQueue(zk, "/x").get()


async def locking_queue(zk: Client, halfway: Callable[[], None]) -> None:
    """Putting, then getting and consuming."""
    await LockingQueue(zk, "/x").put(b"1")
    halfway()
    item = await LockingQueue(zk, "/x").get()
    assert item is not None
    await item.consume()


async def party(zk: Client, halfway: Callable[[], None]) -> None:
    """Joining and leaving."""
    async with Party(zk, "/x"):
        halfway()


async def persistent_node(zk: Client, halfway: Callable[[], None]) -> None:
    """Making it stand, and removing it."""
    async with PersistentNode(zk, "/y") as node:
        await node.wait_present()
        halfway()


async def ttl_lease(zk: Client, halfway: Callable[[], None]) -> None:
    """Taking and giving back."""
    async with TtlLease(zk, "/x", 60):
        halfway()


async def data_watch(zk: Client, halfway: Callable[[], None]) -> None:
    """The first state, and a change that the watcher itself makes."""
    await zk.ensure_path("/x")
    halfway()
    watch = DataWatch(zk, "/x")
    await anext(watch)
    watch.close()


async def children_watch(zk: Client, halfway: Callable[[], None]) -> None:
    """The first state."""
    halfway()
    watch = ChildrenWatch(zk, "/")
    await anext(watch)
    watch.close()


async def tree_cache(zk: Client, halfway: Callable[[], None]) -> None:
    """Loading one znode: the request for the watch, and two reads."""
    await zk.ensure_path("/x")
    halfway()
    async with TreeCache(zk, "/x"):
        pass


async def partitioner(zk: Client, halfway: Callable[[], None]) -> None:
    """One member, one partition: joining and taking, then giving up and leaving."""
    working = asyncio.Event()

    async def work(_: Share) -> None:
        working.set()

    running = asyncio.ensure_future(Partitioner(zk, "/x", ["a"], identifier="me").run(work))
    await working.wait()
    halfway()
    running.cancel()
    await asyncio.wait([running])


USES: dict[str, Use] = {
    "Lock": lock,
    "Election": election,
    "LeaderLatch": latch,
    "Semaphore": semaphore,
    "ReadWriteLock.read": read_lock,
    "ReadWriteLock.write": write_lock,
    "ReadWriteLock.downgrade": downgrade,
    "Counter": counter,
    "Barrier": barrier,
    "DoubleBarrier": double_barrier,
    "Queue": queue,
    "PriorityQueue": priority_queue,
    "LockingQueue": locking_queue,
    "Party": party,
    "PersistentNode": persistent_node,
    "TtlLease": ttl_lease,
    "DataWatch": data_watch,
    "ChildrenWatch": children_watch,
    "TreeCache": tree_cache,
    "Partitioner": partitioner,
}


def measure(use: Use) -> tuple[str, str]:
    """Count the requests of a second use, before and behind `halfway`."""

    async def main(loop: FastLoop) -> tuple[str, str]:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=40.0) as zk:
            await use(zk, lambda: None)
            await asyncio.sleep(1)
            start = len(ensemble.requests)
            middle = start

            def halfway() -> None:
                nonlocal middle
                middle = len(ensemble.requests)

            await use(zk, halfway)
            await asyncio.sleep(1)
            return count(ensemble, start, middle), count(ensemble, middle, None)

    return run(main)


def count(ensemble: ScriptedEnsemble, start: int, end: int | None) -> str:
    """So many quorum writes, and so many requests that are none."""
    ops = [op for _, _, op in ensemble.requests[start:end] if not isinstance(op, Ping)]
    writes = sum(getattr(op, "opcode", None) in WRITE_OPCODES for op in ops)
    return f"{writes} + {len(ops) - writes}"


def documented() -> dict[str, tuple[str, str]]:
    """The two columns of costs in the docs' table."""
    rows = re.findall(
        r"^\| `([\w.]+)` \|.*\| (\d+ \+ \d+) \| (\d+ \+ \d+) \|$",
        TABLE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return {name: (take, give) for name, take, give in rows}


@pytest.mark.parametrize("name", USES)
def test_a_recipe_costs_what_the_table_says(name: str) -> None:
    """Who plans a load must be able to rely on it."""
    assert measure(USES[name]) == documented().get(name), "docs/reference/recipes.md"
