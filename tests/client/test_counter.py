"""Claims about the counter, on scripted servers in virtual time."""

import asyncio
import gc
import struct
import weakref

import pytest
from tests.client.fast_loop import FastLoop, run
from tests.client.scripted_server import LOSE_REPLY, LOSE_REQUEST, ScriptedEnsemble

from zabd.client import connect
from zabd.client.recipes import Counter, Queue
from zabd.model.errors import OperationTimeoutError, SessionExpiredError
from zabd.model.ops import GetData, Multi

PATH = "/counters/one"


def test_what_many_add_is_the_sum() -> None:
    """Each addition counts once, whoever comes first."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)

        async def work() -> None:
            async with connect(ensemble.hosts) as zk:
                counter = Counter(zk, PATH)
                for _ in range(10):
                    change = await counter.add(2)
                    assert change.after == change.before + 2
                await counter.subtract(1)

        await asyncio.gather(*(work() for _ in range(5)))
        async with connect(ensemble.hosts) as zk:
            assert await Counter(zk, PATH).value() == 5 * 19
            assert await zk.get_children(PATH) == []  # receipts end with their sessions

    run(main)


def test_an_addition_waits_for_its_first_read_as_long_as_the_session_lives() -> None:
    """As it does for its write; the limit of the user's own operations is for looking."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        [server] = ensemble.servers
        async with connect(ensemble.hosts, timeout=30.0, operation_timeout=1.0) as zk:
            counter = Counter(zk, PATH)
            ensemble.shut(server)
            loop.call_later(15, ensemble.open, server)
            adding = asyncio.ensure_future(counter.add(1))
            with pytest.raises(OperationTimeoutError):
                await counter.value()
            assert (await adding).after == 1
            assert loop.time() > 15

    run(main)


@pytest.mark.parametrize("action", [LOSE_REPLY, LOSE_REQUEST])
def test_a_lost_reply_adds_once(action: str) -> None:
    """Although others have added since, and the value alone tells nothing."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            counter, other = Counter(one, PATH), Counter(two, PATH)
            await counter.add(1)
            await other.add(1)
            for server in ensemble.servers[1:]:
                server.lagging = True
            ensemble.once(Multi, action)
            adding = asyncio.ensure_future(counter.add(1))
            await other.add(1)
            await adding
            assert int(ensemble.leader.nodes[PATH].data or b"") == 4

    run(main)


def test_a_session_that_ends_before_the_answer_says_that_it_may_have_been_done() -> None:
    """To add again could be once too often; that is for the caller to decide."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            counter = Counter(zk, PATH)
            await counter.add(1)
            ensemble.once(Multi, LOSE_REPLY)
            ensemble.on_fault = lambda: ensemble.expire(zk.session_id)
            with pytest.raises(SessionExpiredError) as caught:
                await counter.add(1)
            assert caught.value.maybe_applied
            await counter.add(1)
            assert await counter.value() == 3

    run(main)


def test_a_cancelled_addition_is_done_once_or_not_at_all() -> None:
    """And does not spoil the next one."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            counter = Counter(zk, PATH)
            await counter.add(1)
            ensemble.once(Multi, LOSE_REPLY)
            adding = asyncio.ensure_future(counter.add(1))
            ensemble.on_fault = adding.cancel
            await asyncio.wait([adding])
            assert adding.cancelled()
            assert (await counter.add(1)).after == 3

    run(main)


def test_a_counter_does_not_outlive_its_client() -> None:
    """Nor keep the client, and all that it holds, alive."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await Counter(zk, PATH).add(1)
            await Queue(zk, "/queue").put(b"x")
            await Queue(zk, "/queue").get()
        gone = weakref.ref(zk)
        del zk
        loop.links.clear()
        await asyncio.sleep(60)
        gc.collect()
        assert gone() is None

    run(main)


def test_a_counter_alone_needs_no_reads() -> None:
    """It knows the number from its own last addition."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            counter = Counter(zk, PATH, default=10)
            await counter.add(1)
            reads = len(ensemble.seen(GetData))
            await asyncio.gather(*(counter.add(1) for _ in range(5)))
            assert len(ensemble.seen(GetData)) == reads
            assert await counter.value() == 16

    run(main)


def test_curators_four_bytes_are_kept() -> None:
    """A mixed fleet counts together."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.create("/c", struct.pack(">i", 41))
            await Counter(zk, "/c", curator=True).add(1)
            assert (await zk.get("/c")).data == struct.pack(">i", 42)

    run(main)
