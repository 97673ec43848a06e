"""Claims about timed leases and the partitioner, on scripted servers in virtual time."""

import asyncio
from contextlib import suppress

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import LOSE_REPLY, LOSE_REQUEST, PASS, ScriptedEnsemble

from zabd.client import connect
from zabd.client.recipes import (
    ChildrenWatch,
    LockLostError,
    LockTimeoutError,
    Partitioner,
    Share,
    TtlLease,
)
from zabd.model.errors import ConnectionLossError
from zabd.model.ops import SetData

PATH = "/leases/one"


def test_a_lease_outlives_its_session_and_runs_out() -> None:
    """Whoever has died keeps it for its time, and not longer."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as two:
            async with connect(ensemble.hosts) as one:
                first = TtlLease(one, PATH, 60, identifier="one")
                assert await first.acquire()
                assert 53 < first.remaining <= 54
            start = loop.time()
            second = TtlLease(two, PATH, 60)
            assert not await second.acquire(blocking=False)
            assert await second.holder() == "one"
            with pytest.raises(LockTimeoutError):
                await second.acquire(timeout=10)
            assert await second.acquire()
            assert 60 < loop.time() - start < 75
            await second.release()
            assert not second.held
            await asyncio.sleep(1)
            assert not [path for path in ensemble.leader.nodes if "__now__" in path]

    run(main)


def test_a_lease_is_renewed_in_its_block() -> None:
    """And free at once behind it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            async with TtlLease(one, PATH, 9) as lease:
                token = lease.fencing_token
                await asyncio.sleep(100)
                assert lease.held
                assert lease.fencing_token == token
                waiting = asyncio.ensure_future(TtlLease(two, PATH, 9).acquire())
                await asyncio.sleep(1)
            await asyncio.sleep(0.1)
            assert waiting.done()

    run(main)


def test_a_lease_that_ran_out_is_lost_if_another_took_it() -> None:
    """Renewing it then would take it from under the new holder."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            first, second = TtlLease(one, PATH, 5), TtlLease(two, PATH, 5)
            await first.acquire()
            token = first.fencing_token
            await asyncio.sleep(6)
            assert not first.held
            await first.renew()  # nobody else has taken it
            assert first.held
            await asyncio.sleep(6)
            await second.acquire(timeout=1)
            assert second.fencing_token > token
            with pytest.raises(LockLostError):
                await first.renew()
            await first.release()
            assert second.held
            assert await second.holder() == ""

    run(main)


@pytest.mark.parametrize("action", [LOSE_REPLY, LOSE_REQUEST])
def test_lost_replies_take_a_lease_once_and_give_it_back(action: str) -> None:
    """And whoever was cancelled in the middle does not keep it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as zk:
            lease = TtlLease(zk, PATH, 60)
            for _ in range(2):
                ensemble.once(SetData, action)
                assert await lease.acquire(blocking=False)
                ensemble.once(SetData, action)
                await lease.renew()
                ensemble.once(SetData, action)
                await lease.release()
                assert ensemble.leader.nodes[PATH].data == b""
            ensemble.once(SetData, action)
            taking = asyncio.ensure_future(lease.acquire())
            ensemble.on_fault = taking.cancel
            await asyncio.wait([taking])
            await asyncio.sleep(1)
            assert ensemble.leader.nodes[PATH].data == b""

    run(main)


def test_a_poll_that_was_in_vain_does_not_give_back_what_the_next_one_takes() -> None:
    """Two would hold the lease."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            await TtlLease(two, PATH, 60).acquire()
            polled = TtlLease(one, PATH, 60)
            assert not await polled.acquire(blocking=False)
            ensemble.commit(two.session_id, [SetData(PATH, b"", -1)])
            assert await polled.acquire(blocking=False)
            await asyncio.sleep(1)
            assert polled.held
            assert not await TtlLease(two, PATH, 60).acquire(blocking=False)

    run(main)


def test_what_clears_up_after_a_cancelled_taking_leaves_the_next_one_alone() -> None:
    """However late it comes: both travel at the same time."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            lease = TtlLease(one, PATH, 60)
            assert await lease.acquire()
            await lease.release()
            for turn in range(20):
                with suppress(LockTimeoutError):
                    await lease.acquire(timeout=0.0005 * turn)
                    await lease.release()
                assert await lease.acquire(timeout=1)
                await asyncio.sleep(0.1)
                assert lease.held
                assert not await TtlLease(two, PATH, 60).acquire(blocking=False)
                await lease.release()
                assert ensemble.leader.nodes[PATH].data == b""

    run(main)


def test_a_block_is_told_that_its_lease_is_lost() -> None:
    """At once if another has it, and by its own clock if nothing is heard any more."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            async with TtlLease(zk, PATH, 9) as lease:
                start = loop.time()
                ensemble.commit(zk.session_id, [SetData(PATH, b"", -1)])
                await lease.wait_lost()
                assert loop.time() - start < 4
                assert not lease.held
                with pytest.raises(LockLostError):
                    _ = lease.fencing_token
            async with TtlLease(zk, PATH, 9) as lease:
                await asyncio.sleep(20)
                left = lease.remaining
                loop.black_hole = True
                start = loop.time()
                await lease.wait_lost()
                told = loop.time()
            assert abs(told - start - left) < 0.1
            # There is no giving back what has run out: that is not waited for longer.
            assert loop.time() - told < 11

    run(main)


def test_a_renewal_in_doubt_is_not_taken_for_a_loss() -> None:
    """Its version is another one, its record is ours."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, operation_timeout=1) as zk:
            lease = TtlLease(zk, PATH, 60)
            await lease.acquire()
            token = lease.fencing_token
            # It is done, but the answer does not come within the time of an operation.
            ensemble.commit(zk.session_id, [SetData(PATH, ensemble.leader.nodes[PATH].data, -1)])
            await lease.renew()
            assert lease.held
            assert lease.fencing_token == token

    run(main)


def test_a_record_that_breaks_every_connection_is_given_up() -> None:
    """With no deadline too: the connections of all the rest of the client go with it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            ensemble.faults.append(lambda _, op: LOSE_REQUEST if isinstance(op, SetData) else PASS)
            async with asyncio.timeout(60):
                with pytest.raises(ConnectionLossError):
                    await TtlLease(zk, PATH, 60).acquire()
            ensemble.faults.clear()
            assert await TtlLease(zk, PATH, 60).acquire(blocking=False)

    run(main)


def test_partitions_are_split_evenly_and_worked_on_by_one() -> None:
    """However members come, go, and lose their sessions."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        partitions = [f"p{number}" for number in range(6)]
        workers: dict[str, str] = {}

        async def member(name: str) -> None:
            async def work(share: Share) -> None:
                assert share.partition not in workers
                await share.verify()
                workers[share.partition] = name
                try:
                    await asyncio.sleep(1000)
                finally:
                    del workers[share.partition]

            async with connect(ensemble.hosts) as zk:
                await Partitioner(zk, "/split", partitions, identifier=name).run(work)

        def shares() -> list[int]:
            names = sorted(set(workers.values()))
            return [list(workers.values()).count(name) for name in names]

        first = asyncio.ensure_future(member("a"))
        await wait_until(lambda: shares() == [6])
        others = [asyncio.ensure_future(member(name)) for name in "bc"]
        await wait_until(lambda: shares() == [2, 2, 2])
        first.cancel()
        await wait_until(lambda: shares() == [3, 3])
        ensemble.expire(next(iter(ensemble.sessions)))
        await asyncio.sleep(0.5)
        await wait_until(lambda: shares() == [3, 3])
        for task in others:
            task.cancel()
        await asyncio.wait([first, *others])
        assert not [path for path, node in ensemble.leader.nodes.items() if node.owner]

    run(main)


def test_a_share_that_verifies_moves_with_the_session_and_ends_nothing() -> None:
    """The loss of a session takes the partitions away for a while."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        begun: list[int] = []

        async def work(share: Share) -> None:
            begun.append(share.fencing_token)
            while True:
                await share.verify()

        async with connect(ensemble.hosts) as zk:
            running = asyncio.ensure_future(Partitioner(zk, "/split", ["p", "q"]).run(work))
            await wait_until(lambda: len(begun) == 2)
            ensemble.expire(zk.session_id)
            await wait_until(lambda: len(begun) >= 4)
            assert not running.done()
            running.cancel()
            await asyncio.wait([running])

    run(main)


def test_a_partitioner_that_hears_of_no_members_any_more_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would keep for ever what it has."""

    async def broken(_: ChildrenWatch) -> None:
        raise OSError("no more")

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            monkeypatch.setattr(ChildrenWatch, "__anext__", broken)
            with pytest.raises(OSError, match="no more"):
                async with asyncio.timeout(10):
                    await Partitioner(zk, "/split", ["p"]).run(asyncio.Future)

    run(main)


def test_a_failing_share_ends_the_partitioner() -> None:
    """An error must not be lost in the background."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)

        async def work(share: Share) -> None:
            raise OSError(share.partition)

        async with connect(ensemble.hosts) as zk:
            with pytest.raises(OSError, match="p"):
                await Partitioner(zk, "/split", ["p"]).run(work)
            assert not [path for path, node in ensemble.leader.nodes.items() if node.owner]

    run(main)


def test_a_partitioner_that_is_cancelled_twice_ends_its_work_and_leaves() -> None:
    """Otherwise others would wait for what nobody works on."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            locks: list[int] = []

            async def work(_: Share) -> None:
                try:
                    await asyncio.sleep(100)
                finally:
                    await asyncio.sleep(3)
                    locks.append(len(ensemble.leader.nodes["/split/locks/p"].children))

            running = asyncio.ensure_future(Partitioner(zk, "/split", ["p"]).run(work))
            await asyncio.sleep(3)
            for _ in range(2):
                running.cancel()
                await asyncio.sleep(1)
            assert running.cancelled()
            await wait_until(lambda: not [n for n in ensemble.leader.nodes.values() if n.owner])
            assert locks == [1]

    run(main)
