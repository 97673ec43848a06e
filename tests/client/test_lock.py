"""Claims about the lock, on scripted servers in virtual time."""

import asyncio

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import LOSE_REPLY, LOSE_REQUEST, ScriptedEnsemble

from zabd.client import Client, connect
from zabd.client.recipes.contenders import contenders_among
from zabd.client.recipes.lock import Lock, LockLostError, LockTimeoutError
from zabd.model.errors import LocalProtocolError, SessionExpiredError
from zabd.model.ops import Create2, Delete, GetChildren, GetData

PATH = "/locks/one"


def lock_nodes(ensemble: ScriptedEnsemble) -> list[str]:
    """The children of the lock's znode, as the leader has them."""
    node = ensemble.leader.nodes.get(PATH)
    return list(node.children) if node else []


def test_one_holder_at_a_time_in_the_order_of_asking() -> None:
    """This is what a lock is."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        order: list[int] = []
        inside = 0

        async def work(number: int) -> None:
            nonlocal inside
            async with connect(ensemble.hosts) as zk, Lock(zk, PATH) as lock:
                inside += 1
                assert inside == 1
                assert lock.held
                order.append(lock.fencing_token)
                await asyncio.sleep(1)
                inside -= 1

        await asyncio.gather(*(work(n) for n in range(10)))
        assert order == sorted(set(order))
        assert len(order) == 10
        assert not lock_nodes(ensemble)

    run(main)


def test_many_waiters_are_served_in_order_at_the_same_price_each() -> None:
    """Twice as many ask for twice as much: nobody looks again because somebody else was served."""

    def requests_of(count: int) -> int:
        requests = 0

        async def main(loop: FastLoop) -> None:
            nonlocal requests
            ensemble = ScriptedEnsemble(loop)
            clients = [connect(ensemble.hosts) for _ in range(count)]
            for zk in clients:
                await zk.start()
            before = len(ensemble.requests)
            order: list[int] = []

            async def work(zk: Client) -> None:
                async with Lock(zk, PATH) as lock:
                    order.append(lock.fencing_token)

            await asyncio.gather(*(work(zk) for zk in clients))
            requests = len(ensemble.requests) - before
            assert order == sorted(set(order))
            assert len(order) == count
            for zk in clients:
                await zk.close()

        run(main)
        return requests

    few, more, most = requests_of(25), requests_of(50), requests_of(100)

    assert most - more == 2 * (more - few)


def test_one_release_wakes_one_waiter() -> None:
    """The load of a release must not grow with the number of those who wait."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        clients = [connect(ensemble.hosts) for _ in range(20)]
        for zk in clients:
            await zk.start()
        locks = [Lock(zk, PATH) for zk in clients]
        await locks[0].acquire()
        waiting = [asyncio.ensure_future(lock.acquire()) for lock in locks[1:]]
        await asyncio.sleep(0.5)
        before = len(ensemble.requests)
        await locks[0].release()
        await asyncio.sleep(0.5)
        assert [task.done() for task in waiting].count(True) == 1
        assert len(ensemble.requests) - before == 2  # the delete, and one look by the next holder
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for zk in clients:
            await zk.close()

    run(main)


@pytest.mark.parametrize("action", [LOSE_REPLY, LOSE_REQUEST])
def test_a_lost_create_is_found_by_its_owner_and_not_made_twice(action: str) -> None:
    """A second znode of ours would keep everybody out until our session ends."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as zk:
            await zk.ensure_path(PATH)
            for server in ensemble.servers[1:]:
                server.lagging = True  # the reconnect may land where the create is not known yet
            ensemble.once(Create2, action)
            async with Lock(zk, PATH) as lock:
                assert len(lock_nodes(ensemble)) == 1
                await lock.verify()
            assert not lock_nodes(ensemble)

    run(main)


def test_a_dying_znode_of_an_earlier_session_is_not_taken_for_ours() -> None:
    """Its owner is another session, and it will vanish under us."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as old, connect(ensemble.hosts) as zk:
            await zk.ensure_path(PATH)

            def leave_a_znode_of_another_session() -> None:
                [mine] = ensemble.seen(Create2)
                ensemble.commit(old.session_id, [mine])

            ensemble.on_fault = leave_a_znode_of_another_session
            lock = Lock(zk, PATH)
            ensemble.once(Create2, LOSE_REQUEST)
            taking = asyncio.ensure_future(lock.acquire())
            await asyncio.sleep(0.5)
            assert len(lock_nodes(ensemble)) == 2
            assert not taking.done()
            await old.close()
            assert await taking
            await lock.release()

    run(main)


def test_cancelling_leaves_no_znode_even_if_the_creates_reply_was_lost() -> None:
    """A caller who has gone must not hold a place in the queue."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.ensure_path(PATH)
            [server] = ensemble.servers
            ensemble.once(Create2, LOSE_REPLY)
            ensemble.on_fault = lambda: ensemble.shut(server)
            lock = Lock(zk, PATH)
            taking = asyncio.ensure_future(lock.acquire())
            await wait_until(lambda: lock_nodes(ensemble))
            taking.cancel()
            await asyncio.sleep(0.1)
            assert taking.cancelled()
            assert lock_nodes(ensemble)
            ensemble.open(server)
            await wait_until(lambda: not lock_nodes(ensemble), 2)
            assert await lock.acquire(timeout=5)  # whoever asks next here waits for the cleanup
            await lock.release()

    run(main)


def test_a_timeout_holds_while_suspended_and_leaves_no_znode() -> None:
    """The deadline is the caller's, not the network's."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        hosts = ensemble.hosts
        async with connect(hosts) as other, connect(hosts) as zk, Lock(other, PATH):
            start = loop.time()
            waiting = asyncio.ensure_future(Lock(zk, PATH).acquire(timeout=3))
            await asyncio.sleep(1)
            [server] = ensemble.servers
            ensemble.shut(server)
            with pytest.raises(LockTimeoutError):
                await waiting
            assert loop.time() - start == pytest.approx(3, abs=0.1)
            ensemble.open(server)
            await wait_until(lambda: len(lock_nodes(ensemble)) == 1)

    run(main)


def test_without_blocking_the_answer_is_no_and_no_znode_stays() -> None:
    """Asking costs the next holder nothing."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            first, second = Lock(one, PATH), Lock(two, PATH)
            assert await first.acquire(blocking=False)
            assert not await second.acquire(blocking=False)
            assert len(lock_nodes(ensemble)) == 1
            await first.release()
            assert await second.acquire(blocking=False)
            await second.release()

    run(main)


def test_a_waiter_whose_own_session_ends_stops_waiting() -> None:
    """Its place in the queue is gone, whatever its predecessor does."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        hosts = ensemble.hosts
        async with connect(hosts) as one, connect(hosts) as two, Lock(one, PATH):
            waiting = asyncio.ensure_future(Lock(two, PATH).acquire())
            await asyncio.sleep(1)
            ensemble.expire(two.session_id)
            with pytest.raises(SessionExpiredError):
                await waiting

    run(main)


def test_a_holder_learns_of_its_loss_without_any_network() -> None:
    """While the ensemble gives the lock to another, the holder must not think it has it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        zk = connect(ensemble.hosts, timeout=12.0)
        await zk.start()
        lock = Lock(zk, PATH)
        await lock.acquire()
        loop.black_hole = True
        await asyncio.sleep(11.3)
        assert lock.held
        await lock.wait_lost()
        assert not lock.held
        with pytest.raises(LockLostError):
            _ = lock.fencing_token
        await lock.release()
        await zk.close(timeout=0)

    run(main)


def test_a_stopped_holder_does_not_think_it_holds_the_lock_when_it_wakes() -> None:
    """The lease is compared at each use, before any timer had a chance to run."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            lock = Lock(zk, PATH)
            await lock.acquire()
            loop.sleep_machine(15)
            assert not lock.held
            await lock.release()

    run(main)


def test_verify_finds_that_somebody_deleted_our_znode() -> None:
    """The local state cannot know, the leader does."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = Lock(zk, PATH)
            await lock.acquire()
            await lock.verify()
            await zk.delete(lock.znode)
            with pytest.raises(LockLostError):
                await lock.verify()
            assert not lock.held
            await lock.release()

    run(main)


def test_a_lost_delete_is_repeated() -> None:
    """A release that was not heard of would block everybody for a session's life."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = Lock(zk, PATH)
            await lock.acquire()
            ensemble.once(Delete, LOSE_REQUEST)
            await lock.release()
            assert not lock_nodes(ensemble)
            assert len(ensemble.seen(Delete)) == 2

    run(main)


def test_a_middle_waiters_death_makes_its_successor_watch_the_next_lower_one() -> None:
    """A wake alone never means ownership."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with (
            connect(ensemble.hosts) as one,
            connect(ensemble.hosts) as two,
            connect(ensemble.hosts) as three,
        ):
            first = Lock(one, PATH)
            await first.acquire()
            second = asyncio.ensure_future(Lock(two, PATH).acquire())
            await asyncio.sleep(0.5)
            third_lock = Lock(three, PATH)
            third = asyncio.ensure_future(third_lock.acquire())
            await asyncio.sleep(0.5)
            second.cancel()
            await asyncio.sleep(0.5)
            assert not third.done()
            await first.release()
            assert await third
            await third_lock.release()

    run(main)


def test_a_reconnect_while_waiting_keeps_the_place_and_the_watch() -> None:
    """The znode lives with the session, and the watch is set again by the client."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            first, second = Lock(one, PATH), Lock(two, PATH)
            await first.acquire()
            waiting = asyncio.ensure_future(second.acquire())
            await asyncio.sleep(0.5)
            ensemble.cut()
            await asyncio.sleep(0.5)
            reads = len(ensemble.seen(GetData, GetChildren))
            await first.release()
            assert await waiting
            assert len(ensemble.seen(GetData, GetChildren)) == reads + 1
            await second.release()

    run(main)


def test_tasks_that_share_a_lock_queue_locally() -> None:
    """One client needs one place in the queue, not one for each of its tasks."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = Lock(zk, PATH, identifier="me")
            inside = 0

            async def work() -> None:
                nonlocal inside
                async with lock:
                    inside += 1
                    assert inside == 1
                    assert await lock.contenders() == ["me"]
                    inside -= 1

            await asyncio.gather(*(work() for _ in range(5)))
            with pytest.raises(LocalProtocolError):
                await lock.release()

    run(main)


def test_contenders_are_ordered_by_number_whatever_their_names() -> None:
    """Other clients' names differ, and a text order would let two of them in."""
    names = [
        "result",
        "zz__lock__0000000002",
        "_c_aa-lock-0000000010",
        "lock-0000000001",
        "bb__lock__-2147483648",
        "lock-123",
        "bb__rlock__0000000000",
    ]
    assert [c.name for c in contenders_among(names)] == [
        "bb__lock__-2147483648",
        "lock-0000000001",
        "zz__lock__0000000002",
        "_c_aa-lock-0000000010",
    ]


def test_closing_the_client_ends_an_acquire_that_waits() -> None:
    """Nobody may wait for a lock that no session can get any more."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one:
            two: Client = connect(ensemble.hosts)
            await two.start()
            async with Lock(one, PATH):
                waiting = asyncio.ensure_future(Lock(two, PATH).acquire())
                await asyncio.sleep(0.5)
                await two.close()
                with pytest.raises(SessionExpiredError):
                    await waiting

    run(main)


def test_a_reentrant_lock_is_released_as_often_as_it_was_acquired() -> None:
    """By the task that holds it; another one waits."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = Lock(zk, PATH, reentrant=True)
            async with lock, lock:
                assert len(lock_nodes(ensemble)) == 1
                other = asyncio.ensure_future(lock.acquire())
                await asyncio.sleep(0.1)
                assert not other.done()
            assert await other
            await lock.release()
            assert not lock_nodes(ensemble)

    run(main)


def test_a_lost_reentrant_lock_is_not_acquired_again() -> None:
    """The inner block would work without it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            lock = Lock(zk, PATH, reentrant=True)
            await lock.acquire()
            ensemble.expire(zk.session_id)
            await lock.wait_lost()
            with pytest.raises(LockLostError):
                await lock.acquire()
            await lock.release()

    run(main)


def test_a_holder_hears_that_somebody_asks_for_the_lock() -> None:
    """By Curator's convention, so that its `Revoker` works too."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        hosts = ensemble.hosts
        async with connect(hosts) as one, connect(hosts) as two:
            asked = asyncio.Event()
            holder, waiter = Lock(one, PATH, on_revoke=asked.set), Lock(two, PATH)
            assert not await waiter.revoke()
            await holder.acquire()
            waiting = asyncio.ensure_future(waiter.acquire())
            await asyncio.sleep(0.1)
            assert not asked.is_set()
            assert await waiter.revoke()
            await asyncio.sleep(0.1)
            assert asked.is_set()
            assert holder.held  # it decides by itself
            await holder.release()
            assert await waiting
            await waiter.release()

    run(main)


def test_curators_protected_names_queue_with_ours() -> None:
    """A mixed fleet must not have two holders."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as curator, connect(ensemble.hosts) as zk:
            theirs = await curator.create(
                f"{PATH}/_c_6f-lock-", ephemeral=True, sequential=True, make_parents=True
            )
            lock = Lock(zk, PATH)
            assert not await lock.acquire(blocking=False)
            waiting = asyncio.ensure_future(lock.acquire())
            await asyncio.sleep(0.5)
            assert not waiting.done()
            await curator.delete(theirs)
            assert await waiting
            await lock.release()

    run(main)


def test_the_five_transitions_are_logged_in_order(caplog: pytest.LogCaptureFixture) -> None:
    """Operators read from them who held what, and when."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            first, second = Lock(one, PATH), Lock(two, PATH)
            await first.acquire()
            waiting = asyncio.ensure_future(second.acquire())
            await asyncio.sleep(0.5)
            await first.release()
            await waiting
            ensemble.expire(two.session_id)
            await second.wait_lost()
            await second.release()

    with caplog.at_level("INFO", "zabd.client.lock"):
        run(main)
    events: dict[int, list[str]] = {}
    for record in caplog.records:
        events.setdefault(getattr(record, "sequence", -1), []).append(getattr(record, "event", ""))
    assert events == {
        0: ["created", "acquired", "released"],
        1: ["created", "watch_fired", "acquired", "session_expired"],
    }
    assert all(getattr(r, "session_id", "").startswith("0x") for r in caplog.records)


def test_a_session_that_ends_with_the_last_reply_gives_no_lock() -> None:
    """LOST is told once: who began to listen behind it would hold a lost lock for ever."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            hooks = len(zk._hooks)
            ensemble.stall_after(GetChildren, PATH, 20)
            lock = Lock(zk, PATH)
            with pytest.raises(SessionExpiredError):
                await lock.acquire()
            assert not lock.held
            assert len(zk._hooks) == hooks
            assert await lock.acquire(timeout=1)  # with the next session
            assert lock.held
            await lock.release()

    run(main)
