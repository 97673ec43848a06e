"""Claims: a client in which too much waits refuses what is new, and settles what was begun."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.client.dedup_world import returns
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import LOSE_REPLY, ScriptedEnsemble

from zabd.client import Client, SessionState, connect, requests
from zabd.client.events import StateChange
from zabd.client.recipes import Counter, Lock, Queue, Semaphore, TtlLease
from zabd.client.recipes.dedup import Dedup
from zabd.model.errors import TooManyRequestsError
from zabd.model.ops import Create2, Delete, Multi, Op, SetData

PATH = "/recipes/one"
FEW = 3


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand would do as well, and take longer."""
    monkeypatch.setattr(requests, "QUEUED_MAX", FEW)


def fill_when_away(ensemble: ScriptedEnsemble, zk: Client, kind: type[Op]) -> None:
    """Once lose the reply to `kind`; the client is full when it hears that, for two seconds."""

    def away() -> None:
        ensemble.on_fault = lambda: None
        for server in ensemble.servers:
            ensemble.shut(server)
            ensemble.loop.call_later(2.0, ensemble.open, server)

    def fill(change: StateChange) -> None:
        if change.state is SessionState.SUSPENDED:
            forget()
            for _ in range(FEW):
                zk.spawn(zk.exists("/", timeout=None))

    forget = zk.on_transition(fill)
    ensemble.on_fault = away
    ensemble.once(kind, LOSE_REPLY)


async def _count(zk: Client, other: Client) -> None:
    assert (await Counter(zk, PATH).add(1)).after == 2
    assert await Counter(other, PATH).value() == 2


async def _put(zk: Client, other: Client) -> None:
    await Queue(zk, PATH).put(b"once")
    assert await Queue(other, PATH).size() == 1


async def _lock(zk: Client, other: Client) -> None:
    lock = Lock(zk, PATH)
    await lock.acquire()
    assert len(await Lock(other, PATH).contenders()) == 1
    await lock.release()


async def _lease(zk: Client, other: Client) -> None:
    lease = await Semaphore(zk, PATH).acquire()
    assert lease is not None
    assert len(await Semaphore(other, PATH).lease_holders()) == 1
    await lease.release()


async def _outcome(zk: Client, other: Client) -> None:
    assert (await Dedup(zk, journal=False).run("key", returns("kept"))).value == "kept"
    assert (await Dedup(other, journal=False).run("key", returns("kept"))).replayed


@pytest.mark.parametrize(
    ("kind", "begin", "work"),
    [
        (Multi, lambda zk: Counter(zk, PATH).add(1), _count),
        (Multi, lambda zk: zk.ensure_path(PATH), _put),
        (Create2, lambda zk: zk.ensure_path(PATH), _lock),
        (Multi, lambda zk: zk.ensure_path(PATH), _lease),
        (Multi, lambda zk: zk.ensure_path("/dedup"), _outcome),
    ],
    ids=["counter", "queue", "lock", "semaphore", "dedup"],
)
def test_a_write_in_doubt_is_settled_though_the_client_is_full(
    kind: type[Op],
    begin: Callable[[Client], Awaitable[object]],
    work: Callable[[Client, Client], Awaitable[None]],
) -> None:
    """To say that nothing has changed would be a lie, and what was made would stay."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            await begin(zk)
            fill_when_away(ensemble, zk, kind)
            await work(zk, other)
            assert not ensemble.expired

    run(main)


def test_what_is_given_back_when_the_client_is_full_is_given_back_later() -> None:
    """Others would be kept out as long as the session lives."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        [server] = ensemble.servers
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            lock, lease = Lock(zk, PATH), await Semaphore(zk, "/pool").acquire()
            assert lease is not None
            await lock.acquire()
            ensemble.shut(server)
            await wait_until(lambda: not zk.connected)
            waiting = [asyncio.ensure_future(zk.exists("/")) for _ in range(FEW)]
            await asyncio.sleep(0)
            with pytest.raises(TooManyRequestsError, match="wait already"):
                await zk.exists("/")
            ending = asyncio.gather(lock.release(), lease.release())
            await asyncio.sleep(1)
            assert not ending.done()
            ensemble.open(server)
            await asyncio.gather(ending, *waiting)
            await Lock(other, PATH).acquire(timeout=1)
            assert await Semaphore(other, "/pool").acquire(timeout=1) is not None
            assert len(ensemble.seen(Delete)) == 2

    run(main)


def test_an_outcome_that_has_to_wait_keeps_its_value() -> None:
    """It is for its size alone that a record goes without."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        [server] = ensemble.servers
        async with connect(ensemble.hosts) as zk:
            async with Dedup(zk).hold("key") as attempt:
                ensemble.shut(server)
                await wait_until(lambda: not zk.connected)
                waiting = [asyncio.ensure_future(zk.exists("/")) for _ in range(FEW)]
                await asyncio.sleep(0)
                loop.call_later(2.0, ensemble.open, server)
                await attempt.complete("kept")
            await asyncio.gather(*waiting)
            replayed = await Dedup(zk).run("key", returns("kept"))
            assert (replayed.value, replayed.replayed) == ("kept", True)

    run(main)


def test_a_timed_lease_is_renewed_and_given_back_though_the_client_was_full() -> None:
    """Renewing ended as if the lease had been given back, and the block went on without it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        [server] = ensemble.servers
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            async with TtlLease(zk, PATH, 9.0) as lease:
                ensemble.shut(server)
                await wait_until(lambda: not zk.connected)
                waiting = [asyncio.ensure_future(zk.exists("/")) for _ in range(FEW)]
                await asyncio.sleep(3.5)
                ensemble.open(server)
                await asyncio.gather(*waiting)
                renewals = len(ensemble.seen(SetData))
                await asyncio.sleep(30)
                assert lease.held
                assert len(ensemble.seen(SetData)) > renewals
                ensemble.shut(server)
                await wait_until(lambda: not zk.connected)
                waiting = [asyncio.ensure_future(zk.exists("/")) for _ in range(FEW)]
                loop.call_later(1.0, ensemble.open, server)
            await asyncio.gather(*waiting)
            assert await TtlLease(other, PATH, 9.0).acquire(blocking=False)

    run(main)
