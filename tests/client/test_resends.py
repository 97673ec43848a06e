"""Claims about locks whose requests break their connections, or whose parents are slow to make."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.client.dedup_world import returns
from tests.client.fast_loop import FastLoop, run
from tests.client.scripted_server import LOSE_REPLY, LOSE_REQUEST, PASS, Fault, ScriptedEnsemble

from zabd.client import Client, connect
from zabd.client.recipes import (
    Election,
    LeaderLatch,
    Lock,
    LockTimeoutError,
    ReadWriteLock,
    Semaphore,
    Term,
    TtlLease,
)
from zabd.client.recipes.bound import RESENDS_MAX
from zabd.client.recipes.dedup import Dedup
from zabd.model.errors import ConnectionLossError, ErrorCode, LocalProtocolError, NoAuthError
from zabd.model.ops import Create, Create2, GetChildren, GetEphemerals, Multi, Op

PATH = "/locks/one"
DEEP = "/some/where/deep"


def breaking(*kinds: type[Op]) -> Fault:
    """What a server does to a request above its jute.maxbuffer."""
    return lambda _, op: LOSE_REQUEST if isinstance(op, kinds) else PASS


def queue(ensemble: ScriptedEnsemble, path: str = PATH) -> list[str]:
    """The znodes below, as the leader has them."""
    node = ensemble.leader.nodes.get(path)
    return list(node.children) if node else []


def test_an_acquire_that_breaks_every_connection_ends() -> None:
    """It takes the connection of all the rest of the client along, each time."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = Lock(zk, PATH)
            ensemble.faults.append(breaking(Create2))
            with pytest.raises(ConnectionLossError, match="larger than its jute") as caught:
                async with asyncio.timeout(60):
                    await lock.acquire()
            assert not caught.value.maybe_applied  # it was looked for
            assert len(ensemble.seen(Create2)) == RESENDS_MAX + 1
            ensemble.faults.clear()
            assert await lock.acquire(timeout=1)
            await lock.release()
            assert not queue(ensemble)

    run(main)


def test_a_lease_or_a_downgrade_that_breaks_every_connection_ends() -> None:
    """What was held before is held still."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = ReadWriteLock(zk, PATH)
            await lock.write.acquire()
            ensemble.faults.append(breaking(Multi))
            with pytest.raises(ConnectionLossError):
                await Semaphore(zk, "/pool").acquire(timeout=60)
            assert len(ensemble.seen(Multi)) == RESENDS_MAX + 1
            with pytest.raises(ConnectionLossError):
                async with asyncio.timeout(60):
                    await lock.downgrade()
            ensemble.faults.clear()
            assert lock.write.held
            await lock.downgrade()
            await lock.read.release()
            assert not queue(ensemble)
            assert not queue(ensemble, "/pool")
            assert not queue(ensemble, "/pool-__lock__")

    run(main)


def test_a_latch_that_cannot_stand_at_all_says_so() -> None:
    """Trying for ever would break the client's connection for ever."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            ensemble.faults.append(breaking(Create2))
            latch = LeaderLatch(zk, PATH)
            await latch.start()
            with pytest.raises(ConnectionLossError):
                await latch.wait_leading(timeout=60)
            assert [leads async for leads in latch.changes] == []
            with pytest.raises(ConnectionLossError):
                await latch.close()

    run(main)


def test_a_latch_whose_request_the_client_refuses_says_so() -> None:
    """It is as large each time."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, request_bytes_max=2000) as zk:
            latch = LeaderLatch(zk, PATH, identifier="x" * 3000)
            await latch.start()
            with pytest.raises(LocalProtocolError, match="a request of"):
                await latch.wait_leading(timeout=60)
            with pytest.raises(LocalProtocolError, match="a request of"):
                await latch.close()

    run(main)


def test_a_znode_that_could_not_be_looked_for_is_looked_for_again_when_it_is_left() -> None:
    """It keeps everybody out, under a name that its maker never heard."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.ensure_path(PATH)
            ensemble.unimplemented.add(GetEphemerals.opcode)
            lock = Lock(zk, PATH)
            ensemble.once(Create2, LOSE_REPLY)

            def refuse_the_first(_: object, op: Op) -> str:
                if isinstance(op, GetChildren):
                    ensemble.faults.remove(refuse_the_first)
                    ensemble.refused[GetChildren] = ErrorCode.NO_AUTH
                    loop.call_soon(ensemble.refused.clear)
                return PASS

            ensemble.faults.append(refuse_the_first)
            with pytest.raises(NoAuthError):
                await lock.acquire()
            assert queue(ensemble)
            await lock.settled()
            assert not queue(ensemble)

    run(main)


async def lead_once(zk: Client) -> None:
    """Be elected, by a service that goes on."""
    led = asyncio.Event()

    async def lead(_: Term) -> None:
        led.set()
        await asyncio.sleep(1000)

    serving = asyncio.ensure_future(Election(zk, f"{DEEP}/election").serve(lead))
    leading = asyncio.ensure_future(led.wait())
    await asyncio.wait([serving, leading], return_when=asyncio.FIRST_COMPLETED)
    for each in (serving, leading):
        each.cancel()
    await asyncio.wait([serving])
    assert serving.cancelled()
    assert led.is_set()


@pytest.mark.parametrize(
    "take",
    [
        lambda zk: Lock(zk, f"{DEEP}/lock").acquire(),
        lambda zk: Semaphore(zk, f"{DEEP}/pool").acquire(),
        lead_once,
        lambda zk: Dedup(zk, f"{DEEP}/dedup", acquire_timeout=None).run("key", returns(1)),
        lambda zk: TtlLease(zk, f"{DEEP}/lease", 60.0).acquire(),
    ],
    ids=["lock", "semaphore", "election", "dedup", "timed lease"],
)
def test_who_has_to_make_the_parent_waits_as_long_as_it_may(
    take: Callable[[Client], Awaitable[object]],
) -> None:
    """The limit of the user's own operations is none of the recipe's."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        [server] = ensemble.servers
        begun = False

        def begin_outage(_: object, op: Op) -> str:
            nonlocal begun
            if begun or not isinstance(op, Create) or not DEEP.startswith(op.path):
                return PASS
            begun = True
            ensemble.shut(server)
            loop.call_later(15, ensemble.open, server)
            return LOSE_REQUEST

        async with connect(ensemble.hosts, operation_timeout=1.0, timeout=30.0) as zk:
            ensemble.faults.append(begin_outage)
            await take(zk)
            assert begun
            assert loop.time() > 15

    run(main)


def test_making_a_parent_is_repeated_as_any_other_request() -> None:
    """And bounded by the caller's deadline, and in number."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lost = 0

            def fault(_: object, op: Op) -> str:
                nonlocal lost
                if isinstance(op, Create) and lost < 8:
                    lost += 1
                    return LOSE_REQUEST
                return PASS

            ensemble.faults.append(fault)
            assert await Lock(zk, f"{DEEP}/lock").acquire()
            assert lost == 8
            ensemble.faults.append(breaking(Create))
            with pytest.raises(LockTimeoutError):
                await Lock(zk, "/other/lock").acquire(timeout=2)
            with pytest.raises(ConnectionLossError):
                await Lock(zk, "/other/lock").acquire()

    run(main)
