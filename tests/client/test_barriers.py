"""Claims about barriers, on scripted servers in virtual time."""

import asyncio

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import LOSE_REPLY, ScriptedEnsemble

from zabd.client import connect
from zabd.client.recipes import Barrier, DoubleBarrier, LockLostError
from zabd.model.ops import Multi

PATH = "/barriers/one"


def test_a_barrier_holds_until_it_is_taken_down() -> None:
    """Also across the loss of the waiter's session."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            await Barrier(one, PATH).wait()
            await Barrier(one, PATH).create()
            await Barrier(two, PATH).create()
            with pytest.raises(TimeoutError):
                await Barrier(two, PATH).wait(timeout=1)
            waiting = asyncio.ensure_future(Barrier(two, PATH).wait())
            await asyncio.sleep(0.5)
            ensemble.expire(two.session_id)
            await asyncio.sleep(0.5)
            assert not waiting.done()
            assert await Barrier(one, PATH).remove()
            assert not await Barrier(one, PATH).remove()
            await waiting

    run(main)


def test_who_waits_at_a_barrier_waits_across_a_partition() -> None:
    """The time that single operations have is none of its own."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, operation_timeout=1) as zk:
            barrier = Barrier(zk, "/b")
            await barrier.create()
            waiting = asyncio.ensure_future(barrier.wait())
            await asyncio.sleep(1)
            loop.black_hole = True
            await asyncio.sleep(600)
            assert not waiting.done()
            loop.black_hole = False
            await asyncio.sleep(60)
            assert not waiting.done()
            await barrier.remove()
            await waiting

    run(main)


def test_a_double_barrier_is_entered_and_left_together() -> None:
    """Three times in a row, as in an iteration."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        log: list[tuple[str, int]] = []

        async def work(number: int) -> None:
            async with connect(ensemble.hosts) as zk:
                barrier = DoubleBarrier(zk, PATH, 3)
                for step in range(3):
                    await asyncio.sleep(number)
                    async with barrier:
                        log.append(("in", step))
                        await asyncio.sleep(number)
                    log.append(("out", step))

        await asyncio.gather(*(work(number) for number in range(3)))
        assert log == [(word, step) for step in range(3) for word in ("in",) * 3 + ("out",) * 3]
        assert not ensemble.leader.nodes[PATH].children

    run(main)


def test_a_lost_reply_and_a_cut_do_not_keep_anybody_out() -> None:
    """What was missed meanwhile is still there: it stays until all have left."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            first, second = DoubleBarrier(one, PATH, 2), DoubleBarrier(two, PATH, 2)
            ensemble.once(Multi, LOSE_REPLY)
            entering = asyncio.ensure_future(first.enter())
            await asyncio.sleep(0.5)
            for server in ensemble.servers:
                ensemble.shut(server)
            await asyncio.sleep(0.1)
            for server in ensemble.servers:
                ensemble.open(server)
            await second.enter()
            leaving = asyncio.ensure_future(second.leave())
            await entering
            await asyncio.sleep(0.5)
            assert not leaving.done()
            await first.leave()
            await leaving
            assert not ensemble.leader.nodes[PATH].children

    run(main)


def test_who_does_not_get_in_leaves_nothing() -> None:
    """Its znode would count for somebody else's round."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(TimeoutError):
                await DoubleBarrier(zk, PATH, 2).enter(timeout=1)
            await wait_until(lambda: not ensemble.leader.nodes[PATH].children)

    run(main)


def test_a_participant_that_dies_inside_does_not_keep_the_others() -> None:
    """And knows by itself that it was not waited for; what it left behind lets nobody in."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            first, second = DoubleBarrier(one, PATH, 2), DoubleBarrier(two, PATH, 2)
            await asyncio.gather(first.enter(), second.enter())
            ensemble.expire(one.session_id)
            ensemble.expire(two.session_id)
            await asyncio.sleep(0.5)
            for barrier in (first, second):
                with pytest.raises(LockLostError):
                    await barrier.leave()
            assert list(ensemble.leader.nodes[PATH].children) == ["ready"]
            entering = asyncio.ensure_future(first.enter())
            await asyncio.sleep(0.5)
            assert not entering.done()
            await second.enter()
            await entering
            await asyncio.gather(first.leave(), second.leave())
            assert not ensemble.leader.nodes[PATH].children

    run(main)
