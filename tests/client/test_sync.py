"""Claims about the blocking facade, on a scripted server behind a real port."""

import asyncio
import inspect
import signal
import sys
import threading
import time

import pytest
from tests.client.real_port import real_port
from tests.client.scripted_server import LOSE_REPLY, SWALLOW

from zabd.client import Client, SyncClient, connect, recipes, sync
from zabd.client.recipes import (
    Dedup,
    LeadershipLostError,
    Lock,
    SyncCounter,
    SyncDedup,
    SyncElection,
    SyncLeaderLatch,
    SyncLock,
    SyncReadWriteLock,
    SyncSemaphore,
)
from zabd.client.recipes.dedup import (
    KeyState,
    MissingOutcomeError,
    NotExecuted,
    ReplayedFailureError,
    SessionLostError,
)
from zabd.client.recipes.sync import SyncAttempt
from zabd.client.recipes.sync.election import SyncTerm
from zabd.model.errors import (
    ConnectionLossError,
    LocalProtocolError,
    NoNodeError,
    OperationTimeoutError,
)
from zabd.model.ops import GetData, SetData
from zabd.model.watch_events import WatchEvent


@pytest.fixture(autouse=True, params=["uvloop", "asyncio"])
def loop_of_the_facade(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The facade is the same on either loop, so every claim here is made for both."""
    if request.param == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    else:
        pytest.importorskip("uvloop", reason="uvloop is not installed: asyncio's own loop only")


def test_the_loop_is_the_quickest_that_is_installed(request: pytest.FixtureRequest) -> None:
    """Without uvloop nothing is missing."""
    loop = sync.new_loop()
    loop.close()
    assert type(loop).__module__.split(".")[0] == request.node.callspec.params["loop_of_the_facade"]


def test_the_operations_have_the_same_names_and_answers() -> None:
    """Who knows one client knows the other."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        assert zk.connected
        assert zk.create("/a", b"1") == "/a"
        assert zk.create("/b/c-", sequential=True, make_parents=True) == "/b/c-0000000000"
        assert zk.get("/a").data == b"1"
        assert zk.set("/a", b"2", version=0).version == 1
        assert zk.exists("/nope") is None
        assert zk.get_children("/") == ["a", "b"]
        zk.sync("/")
        with zk.transaction() as tx:
            tx.check("/a", version=1).set("/a", b"3").delete("/b/c-0000000000")
        assert tx.results is not None
        assert len(tx.results) == 3
        with pytest.raises(NoNodeError, match="/nope"):
            zk.get("/nope")
        zk.delete("/b", recursive=True)
        assert zk.get_children("/") == ["a"]


def test_watchers_are_called_on_a_thread_of_their_own_and_may_use_the_client() -> None:
    """A watcher that blocks must not stop the heartbeats, nor wait for itself."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        zk.create("/a", b"1")
        seen: list[bytes | None] = []
        done = threading.Event()

        def watcher(event: WatchEvent) -> None:
            seen.append(zk.get(event.path).data)
            done.set()

        zk.get("/a", watch=watcher)
        zk.set("/a", b"2")
        assert done.wait(5)
        assert seen == [b"2"]


def test_heartbeats_go_on_while_the_caller_blocks() -> None:
    """The loop is on a thread of its own, whatever the caller's thread does."""
    with real_port() as port, SyncClient(port.hosts, timeout=1.0) as zk:
        session = zk.session_id
        time.sleep(2.5)  # noqa: TID251 - this is what the claim is about
        assert zk.connected
        assert zk.session_id == session


def test_a_lock_and_dedup_work_from_threads() -> None:
    """The recipes are the same ones."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        inside: list[int] = []

        def work() -> None:
            with SyncLock(zk, "/lock") as lock:
                inside.append(1)
                assert len(inside) == 1
                lock.verify()
                assert lock.held
                inside.pop()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        dedup = SyncDedup(zk)

        def charge(ctx: SyncAttempt) -> int:
            ctx.gate()
            return ctx.fencing_token

        first = dedup.run("k", charge, payload=b"x")
        again = dedup.run("k", charge, payload=b"x")
        assert (first.replayed, again.replayed) == (False, True)
        assert first.value == again.value
        assert dedup.status("k").state is KeyState.COMPLETED
        assert dedup.forget("k")

        @dedup.idempotent(key=lambda order: order["id"], payload=lambda order: order)
        def handler(order: dict[str, object], ctx: SyncAttempt) -> object:
            ctx.checkpoint("begun")
            return [order["id"], ctx.fence[0]]

        assert handler({"id": "n"}) == handler({"id": "n"}) == ["n", 0]
        assert dedup.sweep().after is None
        assert not dedup.resolve("n", NotExecuted)


def test_leaving_a_block_after_the_loss_raises() -> None:
    """A thread cannot be cancelled, so this is where it hears of it at the latest."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        with pytest.raises(SessionLostError), SyncDedup(zk).hold("k") as ctx:
            port.call(lambda: port.ensemble.expire(zk.session_id))
            assert ctx.lost.wait(5)
        with pytest.raises(MissingOutcomeError), SyncDedup(zk).hold("k"):
            pass
        with SyncDedup(zk).hold("j") as ctx:
            ctx.fail(ValueError("no"))
        with pytest.raises(ReplayedFailureError):
            SyncDedup(zk).run("j", lambda _: 1)


def test_the_facade_has_every_method_of_the_client() -> None:
    """A name that one of them lacks would be found in production."""
    pairs = [(getattr(recipes, name), getattr(recipes, f"Sync{name}", None)) for name in NAMES]
    for asynchronous, blocking in [(Client, SyncClient), *pairs]:
        assert blocking is not None, f"{asynchronous} has no blocking form"
        names = {name for name, _ in inspect.getmembers(asynchronous) if not name.startswith("_")}
        missing = names - {name for name, _ in inspect.getmembers(blocking)}
        assert missing <= ONLY_ASYNC.get(asynchronous, set()), blocking


# The recipes, all of which have a blocking form called Sync and their name.
NAMES = [
    name
    for name in recipes.__all__
    if not name.startswith("Sync")
    and not name.endswith("Error")
    and name not in {"Change", "ChangeKind", "ReadLock", "Term", "TreeChange", "Value", "WriteLock"}
]

# What has no meaning in a thread, or is there through `asyncio_client`.
ONLY_ASYNC: dict[type, set[str]] = {
    Client: {
        "call",
        "check_lease",
        "reply_class",
        "sending",
        "identity",
        "last_zxid",
        "lease_remaining",
        "now_ms",
        "on_transition",
        "require_own_process",
        "retry",
        "server",
        "spawn",
        "unwatch",
        "wall_ms",
    },
    Lock: {"suffix", "rule", "logger"},
    recipes.Election: {"serve", "stand", "stand_down", "term"},
    recipes.LeaderLatch: {"changes"},
    recipes.Party: {"watch"},
    Dedup: {"enter", "request"},
}


def test_locks_and_semaphores_work_from_threads() -> None:
    """A re-entrant lock belongs to a thread."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        asked = threading.Event()
        lock = SyncLock(zk, "/r", reentrant=True, on_revoke=asked.set)
        with lock, lock:
            assert lock.contenders() == [""]
            other = threading.Thread(target=lambda: (lock.acquire(), lock.release()))
            other.start()
            assert lock.revoke()
            assert asked.wait(5)
            assert lock.held
        other.join(5)
        lock.settled()
        with SyncReadWriteLock(zk, "/rw").read as half:
            half.verify()
        both = SyncReadWriteLock(zk, "/rw")
        with both.write:
            both.downgrade()
            assert both.read.held
        semaphore = SyncSemaphore(zk, "/s", max_leases=2, identifier="me")
        with semaphore as one, semaphore as two:
            assert one.fencing_token < two.fencing_token
            assert semaphore.acquire(blocking=False) is None
            assert semaphore.lease_holders() == ["me", "me"]
        assert zk.get_children("/s") == []


def test_elections_and_counters_work_from_threads() -> None:
    """The leader's function runs on the caller's thread."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        thread = threading.current_thread()
        election = SyncElection(zk, "/e", identifier="me")

        def lead(term: SyncTerm) -> str:
            assert term.leading
            assert threading.current_thread() is thread
            term.verify()
            return ",".join(election.contenders())

        assert election.run(lead) == "me"

        def lose(term: SyncTerm) -> None:
            zk.delete(f"/e/{zk.get_children('/e')[0]}")
            term.verify()

        with pytest.raises(LeadershipLostError):
            election.run(lose)
        with SyncLeaderLatch(zk, "/e") as latch:
            latch.wait_leading(timeout=5)
            assert latch.leading
        counter = SyncCounter(zk, "/c")
        assert counter.add(5).after == 5
        assert counter.subtract(2).after == 3
        assert counter.value() == 3


def test_queues_work_from_threads() -> None:
    """An item is a context manager here too."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        queue = recipes.SyncQueue(zk, "/q")
        taker = threading.Thread(target=lambda: got.append(queue.get(timeout=5)))
        got: list[bytes | None] = []
        taker.start()
        queue.put_all([b"1", b"2"])
        taker.join(5)
        assert (got, queue.size()) == ([b"1"], 1)
        urgent = recipes.SyncPriorityQueue(zk, "/u")
        urgent.put(b"b")
        urgent.put(b"a", priority=1)
        assert urgent.get() == b"a"
        locking = recipes.SyncLockingQueue(zk, "/l")
        locking.put(b"x")
        item = locking.get()
        assert item is not None
        with item:
            assert item.value == b"x"
            item.verify()
        assert locking.get(blocking=False) is None


def test_watches_and_parties_work_from_threads() -> None:
    """Callbacks may use the client; iterators block."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        watch = recipes.SyncDataWatch(zk, "/a")
        assert next(watch) is None
        zk.create("/a", b"1")
        value = next(watch)
        assert value is not None
        assert value.data == b"1"
        watch.close()
        assert list(watch) == []
        seen: list[list[str] | None] = []
        done = threading.Event()

        def note(names: list[str] | None) -> bool:
            seen.append(names)
            if len(seen) == 2:
                done.set()
            return len(seen) < 2

        recipes.SyncChildrenWatch(zk, "/a").start(note)
        with recipes.SyncPersistentNode(zk, "/a/b", b"x") as node:
            node.wait_present(timeout=5)
            assert done.wait(5)
            node.close_soon()
        assert seen in ([[], ["b"]], [["b"], []])
        changed = threading.Event()
        with (
            recipes.SyncParty(zk, "/p", identifier="me") as party,
            recipes.SyncTreeCache(zk, "/p", on_change=lambda _: changed.set()) as cache,
        ):
            assert party.members() == ["me"]
            assert len(cache.children("/p")) == 1
            assert changed.wait(5)


def test_barriers_leases_and_partitions_work_from_threads() -> None:
    """A share's thread is told to stop, and waited for."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        barrier = recipes.SyncBarrier(zk, "/b")
        barrier.create()
        with pytest.raises(TimeoutError):
            barrier.wait(timeout=0.1)
        assert barrier.remove()
        barrier.wait()
        with recipes.SyncDoubleBarrier(zk, "/d", 1):
            pass
        with recipes.SyncTtlLease(zk, "/t", 60, identifier="me") as lease:
            assert lease.held
            assert lease.holder() == "me"
        with recipes.SyncTtlLease(zk, "/t", 0.2) as lease:
            zk.set("/t", b"")
            lease.wait_lost()
        partitioner = recipes.SyncPartitioner(zk, "/s", ["x"], identifier="me", settle=0.05)
        log: list[str] = []

        def work(share: recipes.SyncShare) -> None:
            log.append(share.partition)
            threading.Thread(target=partitioner.stop).start()
            assert share.stop.wait(5)
            log.append("stopped")

        partitioner.run(work)
        assert log == ["x", "stopped"]
        assert zk.get_children("/s/locks/x") == []


def test_calls_before_start_and_after_close_are_errors() -> None:
    """Not a hang."""
    with real_port() as port:
        zk = SyncClient(port.hosts)
        with pytest.raises(LocalProtocolError):
            zk.get("/a")
        with zk:
            pass
        with pytest.raises(LocalProtocolError):
            zk.get("/a")


def test_a_client_that_could_not_start_may_be_closed() -> None:
    """As ``finally`` does, which must not hide why it could not."""
    zk = SyncClient("127.0.0.1:1", connect_timeout=0.1)
    with pytest.raises(OperationTimeoutError):
        zk.start()
    zk.close()


def test_an_interrupted_call_is_cancelled_on_the_loop() -> None:
    """Whoever presses Ctrl-C must not leave work behind that nobody waits for."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        cancelled = threading.Event()

        async def work() -> None:
            try:
                while True:
                    # One that comes before the other thread waits is seen with the next.
                    await asyncio.sleep(0.3)
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        with pytest.raises(KeyboardInterrupt):
            zk.run(work())
        assert cancelled.wait(5)
        with pytest.raises(ZeroDivisionError):
            zk.run(failing())
        assert zk.exists("/") is not None


async def failing() -> None:
    """Raise on the loop."""
    raise ZeroDivisionError


def test_many_threads_ask_at_once_and_each_gets_its_own_answer() -> None:
    """Whoever wakes the loop starts what others have asked for too."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        for number in range(8):
            zk.create(f"/{number}", str(number).encode())
        wrong: list[object] = []

        def ask(number: int) -> None:
            for _ in range(50):
                data = zk.get(f"/{number}").data
                if data != str(number).encode():
                    wrong.append((number, data))
            with pytest.raises(NoNodeError, match=f"/no-{number}"):
                zk.get(f"/no-{number}")

        threads = [threading.Thread(target=ask, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_read_whose_connection_breaks_is_answered_by_the_next_one() -> None:
    """In the middle of the steps that a call takes without a task."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        zk.create("/a", b"1")
        port.ensemble.once(GetData, LOSE_REPLY)
        assert zk.get("/a").data == b"1"
        port.ensemble.once(SetData, LOSE_REPLY)
        with pytest.raises(ConnectionLossError) as caught:
            zk.set("/a", b"2")
        assert caught.value.maybe_applied


def test_who_asks_behind_the_end_is_told_so() -> None:
    """A thread that comes too late must not wait for ever."""
    with real_port() as port:
        zk = SyncClient(port.hosts)
        zk.start()
        thread = zk._require_thread()
        zk.close()
        with pytest.raises(LocalProtocolError, match="closed"):
            thread.ask(zk.asyncio_client.get("/a"))


def test_an_interrupted_operation_is_taken_back() -> None:
    """It has no task, and is cancelled all the same."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        port.ensemble.once(GetData, SWALLOW)
        main = threading.main_thread().ident or 0
        interrupt = threading.Timer(0.5, signal.pthread_kill, [main, signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            zk.get("/a")
        interrupt.join()
        assert zk.exists("/") is not None


def test_the_asyncio_client_runs_on_either_loop() -> None:
    """Transports of uvloop are not asyncio's by inheritance."""

    async def main(hosts: str) -> bytes | None:
        async with connect(hosts) as zk:
            await zk.create("/a", b"1")
            return (await zk.get("/a")).data

    with real_port() as port:
        loop = sync.new_loop()
        assert loop.run_until_complete(main(port.hosts)) == b"1"
        loop.close()
