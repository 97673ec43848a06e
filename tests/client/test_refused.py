"""Claims about recipes whose server refuses a request for now, or for good, in virtual time."""

import asyncio
import logging

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import ScriptedEnsemble

from zabd.client import SessionState, connect
from zabd.client.recipes import Lock, Semaphore
from zabd.model.errors import ErrorCode, NoAuthError
from zabd.model.ops import Create2, Delete, Multi, Sync

PATH = "/locks/one"


def set_quorum(ensemble: ScriptedEnsemble, *, there: bool) -> None:
    """Take the quorum away, or give it back; all connections are made anew."""
    for server in ensemble.servers:
        server.read_only = not there
    ensemble.cut()


def test_a_release_at_a_server_without_a_quorum_ends_when_there_is_one_again() -> None:
    """Returning before would leave a znode that keeps everybody out, with nobody to delete it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 2)
        async with (
            connect(ensemble.hosts, read_only=True) as zk,
            connect(ensemble.hosts) as other,
        ):
            lock = Lock(zk, PATH)
            semaphore = Semaphore(zk, "/pool")
            await lock.acquire()
            lease = await semaphore.acquire()
            assert lease is not None
            set_quorum(ensemble, there=False)
            await wait_until(lambda: zk.state is SessionState.READ_ONLY)
            leaving = [asyncio.ensure_future(end) for end in (lock.release(), lease.release())]
            await asyncio.sleep(3)
            assert not any(each.done() for each in leaving)
            set_quorum(ensemble, there=True)
            await asyncio.gather(*leaving)
            assert not ensemble.expired
            await Lock(other, PATH).acquire(timeout=1)
            assert await Semaphore(other, "/pool").acquire(timeout=1) is not None

    run(main)


@pytest.mark.parametrize("code", [ErrorCode.NOT_READ_ONLY, ErrorCode.THROTTLED_OP])
def test_what_is_refused_for_now_is_asked_for_again(code: ErrorCode) -> None:
    """It has not happened, so nothing is lost or doubled by asking again."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            for op in (Create2, Multi, Delete, Sync):
                ensemble.refused[op] = code
            lock = Lock(zk, PATH)
            leasing = asyncio.ensure_future(Semaphore(zk, "/pool").acquire())
            locking = asyncio.ensure_future(lock.acquire())
            await asyncio.sleep(2)
            assert not locking.done()
            assert not leasing.done()
            ensemble.refused.clear()
            assert await locking
            lease = await leasing
            assert lease is not None
            ensemble.refused[Delete] = code
            ending = asyncio.gather(lock.release(), lease.release())
            await asyncio.sleep(2)
            assert not ending.done()
            ensemble.refused.clear()
            await ending
            assert not ensemble.leader.nodes[PATH].children
            assert not ensemble.leader.nodes["/pool"].children

    run(main)


def test_a_refusal_for_good_is_raised_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A release that returns without a word says that the znode is gone."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = Lock(zk, PATH)
            await lock.acquire()
            lease = await Semaphore(zk, "/pool").acquire()
            assert lease is not None
            ensemble.refused[Delete] = ErrorCode.NO_AUTH
            with pytest.raises(NoAuthError):
                await lock.release()
            with pytest.raises(NoAuthError):
                await lease.release()
            assert [record.levelno for record in caplog.records].count(logging.ERROR) == 2
            ensemble.refused.clear()
            await lease.release()  # somebody has mended the ACL
            assert not ensemble.leader.nodes["/pool"].children

    run(main)
