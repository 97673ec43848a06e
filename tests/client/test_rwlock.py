"""Claims about the read-write lock, on scripted servers in virtual time."""

import asyncio

import pytest
from tests.client.fast_loop import FastLoop, run
from tests.client.scripted_server import LOSE_REPLY, LOSE_REQUEST, ScriptedEnsemble

from zabd.client import connect
from zabd.client.recipes import LockLostError, ReadWriteLock
from zabd.model.errors import LocalProtocolError
from zabd.model.ops import Exists, Multi

PATH = "/locks/rw"


def nodes(ensemble: ScriptedEnsemble) -> list[str]:
    """The queue, as the leader has it."""
    node = ensemble.leader.nodes.get(PATH)
    return list(node.children) if node else []


def test_readers_share_and_a_writer_excludes_them() -> None:
    """In the order of asking: a reader behind a waiting writer waits for it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        hosts = ensemble.hosts
        async with connect(hosts) as a, connect(hosts) as b, connect(hosts) as c:
            one, two, three = (ReadWriteLock(zk, PATH) for zk in (a, b, c))
            await one.read.acquire()
            await two.read.acquire()
            writing = asyncio.ensure_future(three.write.acquire())
            await asyncio.sleep(0.2)
            await two.read.release()
            late = asyncio.ensure_future(two.read.acquire())
            await asyncio.sleep(0.2)
            assert not writing.done()
            assert not late.done()
            await one.read.release()
            assert await writing
            assert not late.done()
            await three.write.release()
            assert await late
            await two.read.release()
            assert not nodes(ensemble)

    run(main)


@pytest.mark.parametrize("action", [None, LOSE_REPLY, LOSE_REQUEST])
def test_a_downgrade_lets_no_writer_in_between(action: str | None) -> None:
    """The reader stands where the writer stood, whatever becomes of the reply."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        hosts = ensemble.hosts
        async with connect(hosts) as a, connect(hosts) as b, connect(hosts) as c:
            one, two, three = (ReadWriteLock(zk, PATH) for zk in (a, b, c))
            async with one.write:
                writing = asyncio.ensure_future(two.write.acquire())
                await asyncio.sleep(0.2)
                reading = asyncio.ensure_future(three.read.acquire())
                await asyncio.sleep(0.2)
                token = one.write.fencing_token
                if action is not None:
                    ensemble.once(Multi, action)
                await one.downgrade()
                await asyncio.sleep(0.5)
                assert one.read.held
                assert not one.write.held
                assert one.read.fencing_token > token
                await one.read.verify()
                assert not writing.done()
                assert not reading.done()  # behind the writer that waits
            assert await writing
            await two.write.release()
            assert await reading
            await three.read.release()
            assert not nodes(ensemble)

    run(main)


def test_a_cancelled_downgrade_ends_with_one_lock_or_the_other() -> None:
    """And leaving the block gives back whichever it is."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = ReadWriteLock(zk, PATH)

            async def work() -> None:
                async with lock.write:
                    await lock.downgrade()

            ensemble.once(Multi, LOSE_REPLY)
            task = asyncio.ensure_future(work())
            ensemble.on_fault = task.cancel
            await asyncio.wait([task])
            assert task.cancelled()
            assert not nodes(ensemble)
            assert await lock.write.acquire(timeout=1)
            await lock.write.release()

    run(main)


def test_a_reader_cannot_become_a_writer() -> None:
    """It would wait for itself, and two of them for each other."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = ReadWriteLock(zk, PATH)
            async with lock.read:
                with pytest.raises(LocalProtocolError):
                    await lock.write.acquire()
            with pytest.raises(LocalProtocolError):
                await lock.downgrade()

    run(main)


def test_a_lost_write_lock_is_not_downgraded() -> None:
    """Another writer may have it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = ReadWriteLock(zk, PATH)
            async with lock.write:
                await zk.delete(lock.write.znode)
                with pytest.raises(LockLostError):
                    await lock.downgrade()

    run(main)


def test_a_reader_of_this_process_does_not_get_in_the_way_of_a_downgrade() -> None:
    """It waits behind it, as it would anywhere else."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = ReadWriteLock(zk, PATH)
            await lock.write.acquire()
            downgrading = asyncio.ensure_future(lock.downgrade())
            await asyncio.sleep(0)
            reading = asyncio.ensure_future(lock.read.acquire())
            await asyncio.wait([downgrading], timeout=1)
            assert downgrading.done()
            assert lock.read.held
            await lock.read.release()
            await asyncio.wait([reading], timeout=1)
            assert reading.done()
            await lock.read.release()
            assert not nodes(ensemble)

    run(main)


def test_a_downgrade_does_not_wait_for_a_reader_of_this_process_that_waits_for_its_writer() -> None:
    """Each would wait for the other."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = ReadWriteLock(zk, PATH)
            await lock.read.acquire()
            reading = asyncio.ensure_future(lock.read.acquire())
            await asyncio.sleep(0)
            await lock.read.release()  # `reading` is the next, and has had no turn yet
            async with asyncio.timeout(1):
                assert not await lock.read.acquire(blocking=False)
            reading.cancel()
            await asyncio.wait([reading])
            await lock.read.settled()
            await lock.write.acquire()
            reading = asyncio.ensure_future(lock.read.acquire())
            await asyncio.sleep(0.1)
            with pytest.raises(LocalProtocolError):
                await lock.downgrade()
            await lock.write.release()
            assert await reading

    run(main)


def test_a_session_that_ends_with_the_last_reply_of_a_downgrade_leaves_no_lock() -> None:
    """And the object can be used again."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            lock = ReadWriteLock(zk, PATH)
            async with lock.write:
                reader = lock.write.znode.replace("__lock__", "__rlock__")
                ensemble.stall_after(Exists, reader, 20)
                with pytest.raises(LockLostError):
                    await lock.downgrade()
            for half in (lock.read, lock.write):
                await half.acquire(timeout=1)
                assert half.held
                await half.release()

    run(main)
