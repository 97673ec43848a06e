"""The budget of the dedup recipe (its section 14), counted at the server; pings are not."""

import asyncio
from functools import partial

import pytest
from tests.client.dedup_world import KEY, PARENT, cost, locks, nodes, returns
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import LOSE_REPLY, LOSE_REQUEST, ScriptedEnsemble

from zabd.client import Client, connect
from zabd.client.recipes import Lock
from zabd.client.recipes.dedup import Dedup
from zabd.model.ops import Create2, OpCode


def counted(before: str, *, old: bool = False, **options: object) -> tuple[int, int]:
    """Reads and writes of one call; `before` says what is there already."""

    async def main(loop: FastLoop) -> tuple[int, int]:
        ensemble = ScriptedEnsemble(loop)
        if old:
            ensemble.unimplemented |= {OpCode.MULTI_READ}
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, **options)
            await dedup.run("warm up", returns(1))
            if before == "parent":
                await zk.create(PARENT)
                await dedup.forget("warm up")
                await zk.create("/dedup/probe")
                await dedup.run("probe", returns(1))  # finds out what this server knows
            if before == "record":
                await dedup.run(KEY, returns(1))
            start = len(ensemble.requests)
            await dedup.run(KEY, returns(1))
            return cost(ensemble, start)

    return run(main)


def test_a_duplicate_costs_two_reads() -> None:
    """Pipelined, and no quorum write."""
    assert counted("record") == (2, 0)


def test_a_new_key_costs_two_reads_and_two_multis() -> None:
    """Everything is created at once, then the commit."""
    assert counted("nothing") == (2, 2)


@pytest.mark.parametrize(("old", "reads"), [(False, 3), (True, 3)])
def test_a_new_key_with_a_parent_costs_three_writes(reads: int, *, old: bool) -> None:
    """Create, begin, commit; one read of list and record, or the list alone when it shows none."""
    assert counted("parent", old=old) == (reads, 3)


def test_without_the_journal_it_costs_two_writes() -> None:
    """As above minus begin."""
    assert counted("parent", journal=False) == (3, 2)


async def fleet_of(ensemble: ScriptedEnsemble, count: int) -> list[Client]:
    """So many clients, started."""
    fleet = [connect(ensemble.hosts, timeout=40.0) for _ in range(count)]
    await asyncio.gather(*(zk.start() for zk in fleet))
    return fleet


def test_a_waiter_joins_with_one_write_and_four_reads() -> None:
    """The fast path, the list with the record, the watch."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        one, two = await fleet_of(ensemble, 2)
        holding = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=9)))
        await asyncio.sleep(1)
        start = len(ensemble.requests)
        waiting = asyncio.ensure_future(Dedup(two).run(KEY, returns(1)))
        await asyncio.sleep(1)
        assert cost(ensemble, start) == (4, 1)
        await asyncio.gather(holding, waiting)
        await asyncio.gather(one.close(), two.close())

    run(main)


def test_one_release_costs_the_same_whoever_waits() -> None:
    """P7: one write by the releaser; the woken one reads once, then begins."""

    async def release(loop: FastLoop, waiters: int) -> tuple[int, int]:
        ensemble = ScriptedEnsemble(loop)
        fleet = await fleet_of(ensemble, waiters + 1)
        dedups = [Dedup(zk, acquire_timeout=None) for zk in fleet]
        async with dedups[0].hold(KEY) as ctx:
            waiting = []
            for dedup in dedups[1:]:
                waiting.append(asyncio.ensure_future(dedup.run(KEY, returns(1, after=100))))
                await asyncio.sleep(0.1)
            start = len(ensemble.requests)
            await ctx.release()
        await asyncio.sleep(1)
        counted = cost(ensemble, start)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await asyncio.gather(*(zk.close() for zk in fleet))
        return counted

    assert run(partial(release, waiters=1)) == (1, 2)
    assert run(partial(release, waiters=30)) == (1, 2)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("action", [LOSE_REPLY, LOSE_REQUEST])
def test_a_lost_create_costs_a_sync_and_a_search(action: str, *, old: bool) -> None:
    """The session's ephemerals and one stat, or on old servers the list and each one's stat."""

    async def main(loop: FastLoop) -> tuple[int, int]:
        ensemble = ScriptedEnsemble(loop)
        if old:
            ensemble.unimplemented |= {OpCode.GET_EPHEMERALS}
        async with connect(ensemble.hosts) as zk:
            await zk.create(PARENT, make_parents=True)
            ensemble.once(Create2, action)
            start = len(ensemble.requests)
            await Dedup(zk).run(KEY, returns(1))
            return cost(ensemble, start)

    applied = action == LOSE_REPLY
    search = 1 + old + applied  # asked once whether it is known; the stat of what is found
    assert run(main) == (3 + 1 + search, 3 if applied else 4)


def test_two_hundred_waiters_for_a_lock_wake_one_by_one() -> None:
    """The plain lock: each release wakes one, and requests are linear in the waiters."""

    async def drain(loop: FastLoop, count: int) -> int:
        ensemble = ScriptedEnsemble(loop)
        fleet = await fleet_of(ensemble, count)
        lock_path = "/locks/one"
        first = Lock(fleet[0], lock_path)
        await first.acquire()
        order: list[int] = []

        async def take(number: int, zk: Client) -> None:
            async with Lock(zk, lock_path):
                order.append(number)
                await asyncio.sleep(0.05)

        waiting = []
        for number, zk in enumerate(fleet[1:]):
            waiting.append(asyncio.ensure_future(take(number, zk)))
            await asyncio.sleep(0.01)
        parent = ensemble.leader.nodes[lock_path]
        await wait_until(lambda: len(parent.children) == count)
        await asyncio.sleep(0.1)
        start = len(ensemble.requests)
        await first.release()
        await asyncio.gather(*waiting)
        assert order == sorted(order)
        reads, writes = cost(ensemble, start)
        await asyncio.gather(*(zk.close() for zk in fleet))
        return reads + writes

    assert run(partial(drain, count=21)) == 1 + 2 * 20
    assert run(partial(drain, count=201)) == 1 + 2 * 200


def test_nothing_is_left_of_any_of_it() -> None:
    """The last caller leaves the record alone."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        fleet = await fleet_of(ensemble, 3)
        await asyncio.gather(*(Dedup(zk).run(KEY, returns(1)) for zk in fleet))
        await wait_until(lambda: not locks(ensemble))
        assert nodes(ensemble) == ["result"]
        await asyncio.gather(*(zk.close() for zk in fleet))

    run(main)
