"""The client and its recipes on real members: locks, deduplication, failover, a frozen holder.

The claims in detail are in `tests/client`, in virtual time; here they meet real processes, and
with ``ZABD_TEST_DAEMON`` an ensemble of somebody else's.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from tests.ensemble.harness import kazoo, wait_until

from zabd.cli.members import Ensemble, Member
from zabd.cli.ports import LOOPBACK
from zabd.cli.words import ask
from zabd.client import Client, EventStream, SessionState, StateChange, connect
from zabd.client.metrics import WATCH_NOTIFICATIONS, MemoryMetrics
from zabd.client.recipes import Dedup, Lock
from zabd.client.recipes.dedup import Attempt, DedupError, KeyState

pytestmark = pytest.mark.ensemble


@asynccontextmanager
async def clients(hosts: str, count: int, session_s: float = 6.0) -> AsyncIterator[list[Client]]:
    """So many clients, each with a session of its own."""
    all_of_them = [connect(hosts, timeout=session_s) for _ in range(count)]
    try:
        await asyncio.gather(*(zk.start() for zk in all_of_them))
        yield all_of_them
    finally:
        await asyncio.gather(*(zk.close() for zk in all_of_them))


def test_kazoos_lock_and_ours_exclude_each_other(shared: Ensemble) -> None:
    """A fleet may move from one client to the other, host by host."""
    inside: list[str] = []
    entered: Counter[str] = Counter()

    def enter(name: str) -> None:
        inside.append(name)
        assert inside == [name]
        entered[name] += 1

    def theirs() -> None:
        with kazoo(shared.hosts) as client:
            for _ in range(10):
                with client.Lock("/locks/mixed", "kazoo"):
                    enter("kazoo")
                    time.sleep(0.002)
                    inside.clear()

    async def ours(zk: Client) -> None:
        for _ in range(10):
            async with Lock(zk, "/locks/mixed", identifier="zabd"):
                enter("zabd")
                await asyncio.sleep(0.002)
                inside.clear()

    async def main() -> None:
        async with clients(shared.hosts, 2) as both, asyncio.TaskGroup() as group:
            loop = asyncio.get_running_loop()
            for zk in both:
                group.create_task(ours(zk))
            await asyncio.gather(*(loop.run_in_executor(None, theirs) for _ in range(2)))

    asyncio.run(main())
    assert entered == {"kazoo": 20, "zabd": 20}


def test_one_release_costs_the_same_with_three_waiters_and_with_thirty(shared: Ensemble) -> None:
    """Section 16.2 of the recipe: the server's own count of packets is the judge."""

    def received() -> int:
        text = ask(LOOPBACK, shared.member(1).client_port, "srvr")
        return int(text.partition("Received: ")[2].split()[0])

    async def cost_of_a_release(count: int) -> int:
        host = shared.member(1).address
        async with clients(host, count + 1, session_s=40.0) as fleet:
            path = f"/locks/fan-out-{count}"
            locks = [Lock(zk, path) for zk in fleet]
            await locks[0].acquire()
            waiting = []
            for lock in locks[1:]:
                waiting.append(asyncio.create_task(lock.acquire()))
                await asyncio.sleep(0.05)
            before = received()
            await locks[0].release()
            await waiting[0]
            await asyncio.sleep(0.3)
            after = received()
            assert [task.done() for task in waiting].count(True) == 1
            for task in waiting[1:]:
                task.cancel()
            await asyncio.wait(waiting)
            return after - before

    few, many = asyncio.run(cost_of_a_release(3)), asyncio.run(cost_of_a_release(30))
    assert few == many <= 5


@pytest.mark.slow
def test_two_hundred_waiters_for_a_lock_are_woken_one_by_one(shared: Ensemble) -> None:
    """What the server receives is linear in the waiters, and each of them hears of one release."""

    def received() -> int:
        text = ask(LOOPBACK, shared.member(1).client_port, "srvr")
        return int(text.partition("Received: ")[2].split()[0])

    async def drain(count: int) -> float:
        async with clients(shared.member(1).address, count + 1, session_s=40.0) as fleet:
            path = f"/locks/two-hundred-{count}"
            first = Lock(fleet[0], path)
            await first.acquire()
            turns: list[int] = []

            async def take(number: int) -> None:
                async with Lock(fleet[number], path):
                    turns.append(number)

            waiting = []
            for number in range(1, count + 1):
                waiting.append(asyncio.create_task(take(number)))
                while len(await fleet[0].get_children(path)) <= number:  # noqa: ASYNC110 - the server's word
                    await asyncio.sleep(0.005)
            await asyncio.sleep(0.5)  # the last one's watch is set behind its znode
            before = received()
            await first.release()
            await asyncio.gather(*waiting)
            after = received()
            assert turns == list(range(1, count + 1))
            for zk in fleet[1:]:
                assert isinstance(zk.metrics, MemoryMetrics)
                assert sum(zk.metrics.values(WATCH_NOTIFICATIONS).values()) == 1
            return (after - before) / count

    few, many = asyncio.run(drain(40)), asyncio.run(drain(200))
    # A look and a delete for each waiter, and a ping now and then.
    assert 2.0 <= few < 3.0
    assert 2.0 <= many < 3.0


@pytest.mark.timeout(180)
def test_row_f20_keys_have_one_outcome_though_leaders_die_in_the_middle(ensemble: Ensemble) -> None:
    """F20: a begin or commit that a leader change swallowed is settled, never repeated blindly."""

    async def main() -> None:
        executed: Counter[str] = Counter()
        values: dict[str, set[object]] = {}

        async def deliver(zk: Client, key: str) -> None:
            async def work(ctx: Attempt) -> int:
                executed[key] += 1
                await asyncio.sleep(0.01)
                return ctx.fencing_token

            while True:
                try:
                    outcome = await Dedup(zk).run(key, work, payload=key)
                except DedupError as error:
                    if not error.retry:
                        raise
                else:
                    values.setdefault(key, set()).add(outcome.value)
                    return

        async def kill_leaders() -> None:
            loop = asyncio.get_running_loop()
            for _ in range(2):
                await asyncio.sleep(0.7)
                leader = await loop.run_in_executor(None, ensemble.wait_leader)
                await loop.run_in_executor(None, leader.kill)
                await asyncio.sleep(0.7)
                leader.start()
                await loop.run_in_executor(None, ensemble.wait_serving)

        async with clients(ensemble.hosts, 6) as fleet, asyncio.TaskGroup() as group:
            group.create_task(kill_leaders())
            for number in range(120):
                for zk in fleet[number % 2 :: 2]:
                    group.create_task(deliver(zk, f"key-{number}"))
                await asyncio.sleep(0.02)
        assert len(values) == 120
        assert all(len(outcomes) == 1 for outcomes in values.values())
        # Nobody lost a session, so nobody had to run anything twice.
        assert set(executed.values()) == {1}

        async with connect(ensemble.hosts) as zk:
            for number in range(120):
                status = await Dedup(zk).status(f"key-{number}")
                assert status.state is KeyState.COMPLETED
                assert not status.contenders

    asyncio.run(main())


@asynccontextmanager
async def on_a_follower(ensemble: Ensemble) -> AsyncIterator[tuple[Client, Member]]:
    """A client whose session a follower has, and that follower."""
    leader = ensemble.wait_leader()
    while True:
        async with connect(ensemble.hosts, timeout=6.0) as zk:
            if zk.server != leader.address:
                yield zk, next(m for m in ensemble.members if m.address == zk.server)
                return


@pytest.mark.timeout(120)
def test_a_frozen_member_is_left_and_the_session_lives_on_elsewhere(ensemble: Ensemble) -> None:
    """After two thirds of the timeout, with the ephemerals that belong to it."""

    async def main() -> None:
        async with on_a_follower(ensemble) as (zk, frozen):
            await zk.create("/mine", ephemeral=True)
            session = zk.session_id
            moves: EventStream[StateChange] = EventStream()
            zk.on_transition(moves)
            frozen.stop()
            start = time.monotonic()
            try:
                assert (await anext(moves)).state is SessionState.SUSPENDED
                assert 2.0 < time.monotonic() - start < 4.5
                assert (await anext(moves)).state is SessionState.CONNECTED
            finally:
                frozen.resume()
            assert zk.session_id == session
            assert await zk.exists("/mine") is not None

    asyncio.run(main())


HOLDER = """
import sys, time
from zabd.client import SyncClient
from zabd.client.recipes import SyncDedup
from zabd.client.recipes.dedup import SessionLostError

def work(ctx):
    print("acquired", ctx.attempt.znode_path, flush=True)
    while True:
        ctx.gate()
        print("step", flush=True)
        time.sleep(0.05)

with SyncClient(sys.argv[1], timeout=4.0) as zk:
    try:
        SyncDedup(zk).run("req-42", work, payload=b"x")
    except SessionLostError:
        print("lost", flush=True)
"""


@contextmanager
def holder(hosts: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the key req-42 and works on it for ever."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, hosts], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.slow
def test_a_frozen_holder_is_replaced_and_does_nothing_when_it_wakes(shared: Ensemble) -> None:
    """Section 16.1 of the recipe, for a function on a thread, which asks the gate."""
    with holder(shared.hosts) as process, kazoo(shared.hosts) as client:
        output = process.stdout
        assert output is not None
        assert output.readline().startswith("acquired /dedup/req-42/lock-")
        os.kill(process.pid, signal.SIGSTOP)
        frozen = time.monotonic()

        async def second() -> int:
            async with connect(shared.hosts, timeout=4.0) as zk:

                async def work(ctx: Attempt) -> int:
                    assert ctx.previous is not None
                    assert ctx.previous.attempt == 1
                    return ctx.attempt

                return (await Dedup(zk).run("req-42", work, payload=b"x")).value

        assert asyncio.run(second()) == 2
        assert time.monotonic() - frozen < 4 + 2 + 1
        assert client.get_children("/dedup/req-42") == ["result"]

        os.kill(process.pid, signal.SIGCONT)
        woken = [line.strip() for line in output]
        # What was printed before the stop may still be in the pipe; the last word is the loss.
        assert woken[-1] == "lost"
        wait_until(lambda: process.poll() is not None, "the holder's end")
        assert time.monotonic() - frozen < 12
