"""Claims about the queues, on scripted servers in virtual time."""

import asyncio
from contextlib import suppress

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import LOSE_REPLY, LOSE_REQUEST, PASS, ScriptedEnsemble

from zabd.client import connect
from zabd.client.recipes import Item, LockingQueue, LockLostError, PriorityQueue, Queue
from zabd.model.errors import ConnectionLossError, LocalProtocolError
from zabd.model.ops import Check, Delete, Multi, Op
from zabd.model.session import ConnectRequest

PATH = "/jobs"


def taking(op: Op) -> bool:
    """Whether it is a multi that deletes."""
    return isinstance(op, Multi) and isinstance(op.ops[0], Delete)


async def held(queue: LockingQueue) -> Item:
    """An item, which there is."""
    item = await queue.get()
    assert item is not None
    return item


def test_values_come_out_in_the_order_in_which_they_went_in() -> None:
    """Each to one taker."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            await Queue(one, PATH).put_all([b"%d" % number for number in range(10)])
            await Queue(two, PATH).put(b"10")
            got: list[bytes | None] = []

            async def take(queue: Queue) -> None:
                while (value := await queue.get(blocking=False)) is not None:
                    got.append(value)

            await asyncio.gather(take(Queue(one, PATH)), take(Queue(two, PATH)))
            assert sorted(int(value or b"") for value in got) == list(range(11))
            assert await Queue(one, PATH).size() == 0

    run(main)


def test_a_get_waits_for_a_value() -> None:
    """With a watch, and no longer than it was told to."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            with pytest.raises(TimeoutError):
                await Queue(one, PATH).get(timeout=1)
            waiting = asyncio.ensure_future(Queue(one, PATH).get())
            await asyncio.sleep(1)
            requests = len(ensemble.requests)
            await asyncio.sleep(1)
            assert len(ensemble.requests) == requests
            await Queue(two, PATH).put(b"x")
            assert await waiting == b"x"

    run(main)


def test_more_urgent_values_come_first() -> None:
    """And equals in the order of arrival."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            queue = PriorityQueue(zk, PATH)
            await queue.put(b"c")
            await queue.put(b"d")
            await queue.put(b"a", priority=5)
            assert await queue.get() == b"a"
            await queue.put(b"b", priority=7)
            assert [await queue.get() for _ in range(3)] == [b"b", b"c", b"d"]
            with pytest.raises(ValueError, match="priority=1000"):
                await queue.put(b"e", priority=1000)

    run(main)


@pytest.mark.parametrize("action", [LOSE_REPLY, LOSE_REQUEST])
def test_a_lost_reply_puts_once_and_takes_once(action: str) -> None:
    """No value doubled, none swallowed."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as zk:
            queue = Queue(zk, PATH)
            await queue.put(b"0")
            ensemble.once(Multi, action)
            await queue.put(b"1")
            await queue.put(b"2")
            ensemble.once(taking, action)
            assert [await queue.get() for _ in range(3)] == [b"0", b"1", b"2"]
            assert await queue.size() == 0

    run(main)


def test_a_cancelled_get_does_not_swallow_a_value() -> None:
    """What was taken out for somebody who has gone is the next one's."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            queue = Queue(zk, PATH)
            await queue.put_all([b"0", b"1"])
            ensemble.once(taking, LOSE_REPLY)
            getting = asyncio.ensure_future(queue.get())
            ensemble.on_fault = getting.cancel
            await asyncio.wait([getting])
            assert getting.cancelled()
            await asyncio.sleep(1)
            assert [await queue.get(), await queue.get()] == [b"0", b"1"]

    run(main)


@pytest.mark.parametrize("kind", [Queue, PriorityQueue])
@pytest.mark.parametrize("steps", range(12))
def test_the_next_get_goes_on_where_a_cancelled_one_was(kind: type[Queue], steps: int) -> None:
    """At whatever step that was: it neither hangs beside the value nor is out of order."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            for values in ([b"0"], [b"0", b"1", b"2"]):
                queue = kind(zk, PATH)
                await queue.put_all(values)
                got: list[bytes | None] = []
                with suppress(TimeoutError):
                    got.append(await queue.get(timeout=0.0005 + 0.001 * steps))
                while len(got) < len(values):
                    got.append(await queue.get(timeout=10))
                assert got == values
                assert await queue.get(blocking=False) is None

    run(main)


def test_who_does_not_block_is_not_held_up_by_who_waits() -> None:
    """There is nothing for it: what comes is for the one that waits."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            queue = Queue(zk, PATH)
            waiting = asyncio.ensure_future(queue.get())
            await asyncio.sleep(1)
            async with asyncio.timeout(1):
                assert await queue.get(blocking=False) is None
            await queue.put(b"x")
            assert await waiting == b"x"

    run(main)


@pytest.mark.parametrize("kind", [Queue, LockingQueue])
def test_a_get_without_a_deadline_has_none(kind: type[Queue | LockingQueue]) -> None:
    """That of single operations is not its own, however long the ensemble is out of reach."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, operation_timeout=1) as zk:
            queue = kind(zk, PATH)
            assert await queue.get(blocking=False) is None
            waiting = asyncio.ensure_future(queue.get())
            await asyncio.sleep(1)
            loop.black_hole = True
            await asyncio.sleep(600)
            loop.black_hole = False
            async with connect(ensemble.hosts) as other:
                await kind(other, PATH).put(b"x")
            assert await waiting is not None

    run(main)


@pytest.mark.parametrize("kind", [Queue, LockingQueue])
def test_a_put_that_is_too_large_raises_and_leaves_the_next_one_alone(
    kind: type[Queue | LockingQueue],
) -> None:
    """It is not sent: a server would cut the connection of all the rest of the client."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            queue = kind(zk, PATH)
            with pytest.raises(LocalProtocolError):
                await queue.put(b"x" * 1_100_000)
            await queue.put(b"y")
            assert await queue.size() == 1
            assert len(ensemble.seen(ConnectRequest)) == 1

    run(main)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_put_that_breaks_every_connection_gives_up(cancelled: bool) -> None:  # noqa: FBT001
    """As one that is larger than its server takes: those behind it have their turn then."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)

        def fault(_: object, op: Op) -> str:
            return LOSE_REQUEST if isinstance(op, Multi) and b"big" in repr(op).encode() else PASS

        async with connect(ensemble.hosts) as zk:
            queue = Queue(zk, PATH)
            await queue.put(b"0")
            ensemble.faults.append(fault)
            putting = asyncio.ensure_future(queue.put(b"big"))
            await asyncio.sleep(1)
            if cancelled:
                putting.cancel()
            behind = asyncio.ensure_future(queue.put(b"1"))
            async with asyncio.timeout(60):
                await behind
                await asyncio.wait([putting])
            if not cancelled:
                error = putting.exception()
                assert isinstance(error, ConnectionLossError)
                assert not error.maybe_applied
            assert len(ensemble.seen(ConnectRequest)) < 20
            assert [await queue.get(), await queue.get()] == [b"0", b"1"]

    run(main)


def test_an_item_is_handed_out_again_when_its_holder_dies() -> None:
    """With a higher token, so that the dead one's late write can be refused."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            await LockingQueue(one, PATH).put_all([b"a", b"b"])
            first = await held(LockingQueue(one, PATH))
            assert first.value == b"a"
            other = await held(LockingQueue(two, PATH))
            assert other.value == b"b"
            await other.consume()
            waiting = asyncio.ensure_future(held(LockingQueue(two, PATH)))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            assert await LockingQueue(two, PATH).get(blocking=False) is None
            ensemble.expire(one.session_id)
            again = await waiting
            assert again.value == b"a"
            assert again.fencing_token > first.fencing_token
            await first.wait_lost()
            with pytest.raises(LockLostError):
                await first.verify()
            await again.consume()
            assert await LockingQueue(two, PATH).size() == 0
            assert not ensemble.leader.nodes[f"{PATH}/taken"].children

    run(main)


def test_a_block_consumes_at_a_good_end_and_gives_back_at_a_bad_one() -> None:
    """Work that failed is somebody else's."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            queue = LockingQueue(zk, PATH)
            await queue.put(b"a")
            with pytest.raises(OSError, match="disk"):
                async with await held(queue):
                    raise OSError("disk")
            async with await held(queue) as item:
                await item.verify()
                assert item.held
            assert await queue.get(blocking=False) is None

    run(main)


@pytest.mark.parametrize("action", [LOSE_REPLY, LOSE_REQUEST])
def test_a_lost_reply_holds_once_and_consumes_once(action: str) -> None:
    """Neither is left hanging."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as zk:
            queue = LockingQueue(zk, PATH)
            await queue.put_all([b"a", b"b"])
            ensemble.once(Multi, action)
            item = await held(queue)
            assert item.value == b"a"
            ensemble.once(Multi, action)
            await item.consume()
            assert await queue.size() == 1
            assert (await held(queue)).value == b"b"

    run(main)


def test_a_cancelled_get_of_an_item_leaves_it_free() -> None:
    """Held by nobody, it would wait for the end of the session."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            queue = LockingQueue(zk, PATH)
            await queue.put(b"a")
            ensemble.once(Multi, LOSE_REPLY)
            getting = asyncio.ensure_future(queue.get())
            ensemble.on_fault = getting.cancel
            await asyncio.wait([getting])
            assert getting.cancelled()
            await wait_until(lambda: not ensemble.leader.nodes[f"{PATH}/taken"].children)

    run(main)


def test_a_lost_reply_to_a_release_does_not_release_who_came_next() -> None:
    """Sent again, it would take the item from the next holder, and a third one would get it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            await LockingQueue(one, PATH).put(b"a")
            item = await held(LockingQueue(one, PATH))
            [_, make] = next(op.ops for op in ensemble.seen(Multi) if isinstance(op.ops[0], Check))
            ensemble.on_fault = lambda: ensemble.commit(two.session_id, [make])
            ensemble.once(Delete, LOSE_REPLY)
            await item.release()
            assert ensemble.leader.nodes[make.path].owner == two.session_id

    run(main)
