"""Claims about the semaphore, on scripted servers in virtual time."""

import asyncio

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import LOSE_REPLY, LOSE_REQUEST, PASS, ScriptedEnsemble

from zabd.client import connect
from zabd.client.recipes import LockLostError, LockTimeoutError, Semaphore
from zabd.model.errors import SessionExpiredError
from zabd.model.ops import Exists, Multi, Op

PATH = "/pool"


def left(ensemble: ScriptedEnsemble) -> list[str]:
    """Leases and contenders, as the leader has them."""
    return [path for path in ensemble.leader.nodes if path.startswith(PATH) and path.count("/") > 1]


def test_no_more_leases_than_there_may_be() -> None:
    """Ten want one, three have one, in the order of asking."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        inside, most, order = 0, 0, []

        async def work(number: int) -> None:
            nonlocal inside, most
            async with (
                connect(ensemble.hosts) as zk,
                Semaphore(zk, PATH, max_leases=3, identifier=f"w{number}") as lease,
            ):
                inside += 1
                most = max(most, inside)
                assert lease.held
                await lease.verify()
                order.append(lease.fencing_token)
                await asyncio.sleep(1)
                inside -= 1

        await asyncio.gather(*(work(number) for number in range(10)))
        assert most == 3
        assert order == sorted(set(order))
        assert not left(ensemble)
        assert ensemble.leader.nodes[PATH].data == b"3"

    run(main)


@pytest.mark.parametrize("action", [LOSE_REPLY, LOSE_REQUEST])
def test_a_lost_reply_does_not_take_two_leases(action: str) -> None:
    """The second would be nobody's."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as zk:
            ensemble.once(Multi, action)
            async with Semaphore(zk, PATH, max_leases=2):
                assert len(left(ensemble)) == 1
            assert not left(ensemble)

    run(main)


def test_who_does_not_wait_leaves_nothing() -> None:
    """Without blocking, by a timeout, and by a cancellation with the reply lost."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            mine = await Semaphore(one, PATH).acquire()
            assert mine is not None
            other = Semaphore(two, PATH)
            assert await other.acquire(blocking=False) is None
            with pytest.raises(LockTimeoutError):
                await other.acquire(timeout=1)
            await wait_until(lambda: len(left(ensemble)) == 1)
            await mine.release()
            ensemble.once(Multi, LOSE_REPLY)
            taking = asyncio.ensure_future(other.acquire())
            ensemble.on_fault = taking.cancel
            await asyncio.wait([taking])
            assert taking.cancelled()
            await wait_until(lambda: not left(ensemble))
            assert await other.lease_holders() == []

    run(main)


def test_the_end_of_a_session_ends_leases_and_waits() -> None:
    """And the holder knows by itself."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            mine = await Semaphore(one, PATH).acquire()
            assert mine is not None
            waiting = asyncio.ensure_future(Semaphore(two, PATH).acquire())
            await asyncio.sleep(0.5)
            ensemble.expire(two.session_id)
            with pytest.raises(SessionExpiredError):
                await waiting
            ensemble.expire(one.session_id)
            await mine.wait_lost()
            assert not mine.held
            with pytest.raises(LockLostError):
                await mine.verify()
            await mine.release()

    run(main)


def test_all_have_to_agree_on_the_number() -> None:
    """Two numbers would be none."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            async with Semaphore(zk, PATH, max_leases=3):
                pass
            with pytest.raises(ValueError, match="says 3 leases"):
                await Semaphore(zk, PATH, max_leases=2).acquire()

    run(main)


def test_a_session_that_ends_with_the_last_reply_gives_no_lease() -> None:
    """And what was taken is told of as ended, not as taken."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            semaphore = Semaphore(zk, PATH)
            hooks = len(zk._hooks)
            stalled = False

            def stall(_: object, op: Op) -> str:
                nonlocal stalled
                if isinstance(op, Exists) and op.path.startswith(f"{PATH}/") and not stalled:
                    stalled = True
                    loop.call_soon(loop.sleep_machine, 20)
                return PASS

            ensemble.faults.append(stall)
            with pytest.raises(SessionExpiredError):
                await semaphore.acquire()
            assert stalled
            await wait_until(lambda: len(zk._hooks) == hooks)
            assert await semaphore.acquire(timeout=1) is not None

    run(main)
