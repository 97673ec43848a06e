"""Each of the shipped alerts fires by the fault that it is for, and none of them without one.

Real members and real clients, scraped in real time; Prometheus' part is `tests.monitoring`, and
where promtool is installed it has to come to the same result.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.monitoring.tower import Tower

from zabd.client import Client, connect
from zabd.client.metrics import DEDUP_RELEASES, MemoryMetrics
from zabd.client.recipes.dedup import Attempt, Dedup
from zabd.testing import ZabEnsemble

PATIENCE_S = 60
MANY = 51
"""One more than the alert allows below one key."""
NUMBERS = itertools.count()
"""Keys are new ones each time: what is recorded needs no lock."""

pytestmark = [
    pytest.mark.ensemble,
    pytest.mark.zab(**{"metricsProvider.httpPort": 0}),
]


def run(claim: Callable[[], Awaitable[None]]) -> None:
    """On a loop, within bounds."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await claim()

    asyncio.run(bounded())


def hosts_of(ensemble: ZabEnsemble, *members: int) -> str:
    """Without the test's own root, since the alerts speak of /dedup."""
    return ensemble.hosts_of(*(members or ensemble.members)).partition("/")[0]


async def pass_on(hosts: str, clients: int, rounds: int, metrics: MemoryMetrics) -> None:
    """So many clients want each key at once, and get it one after the other."""

    async def work(_ctx: Attempt) -> None:
        await asyncio.sleep(0.01)

    async with AsyncExitStack() as stack:
        connected = [
            await stack.enter_async_context(connect(hosts, metrics=metrics)) for _ in range(clients)
        ]
        for _ in range(rounds):
            key = f"key-{next(NUMBERS)}"
            await asyncio.gather(*[Dedup(zk).run(key, work) for zk in connected])


def test_an_ensemble_at_work_is_quiet(zab_ensemble: ZabEnsemble, tmp_path: Path) -> None:
    """Contention, reads and writes, sessions that come and go: nobody is called."""

    async def claim() -> None:
        metrics = MemoryMetrics()
        tower = Tower(zab_ensemble, metrics)
        await tower.look()
        before = tower.total("zk_watch_notifications_total", prefix="/dedup")
        for _ in range(3):
            await pass_on(hosts_of(zab_ensemble), clients=5, rounds=2, metrics=metrics)
            await asyncio.sleep(0.5)
            await tower.look()
        assert tower.firing == {}
        released = metrics.value(DEDUP_RELEASES)
        assert released == 30  # so that the alert about events for each of them has judged
        events = tower.total("zk_watch_notifications_total", prefix="/dedup") - before
        assert 10 < events <= released
        tower.ask_promtool(tmp_path)

    run(claim)


def test_clients_that_vanish_are_noticed(zab_ensemble: ZabEnsemble, tmp_path: Path) -> None:
    """Eight sessions within seconds are more than one a minute over five minutes."""

    async def claim() -> None:
        tower = Tower(zab_ensemble)
        await tower.look()
        hosts = zab_ensemble.hosts_for("crowd")
        async with AsyncExitStack() as stack:
            for _ in range(8):
                await stack.enter_async_context(connect(hosts, timeout=1.0))
            await asyncio.to_thread(zab_ensemble.cut, "crowd")
            await tower.watch(until=lambda: "SessionsExpire" in tower.firing)
            assert tower.firing.keys() == {"SessionsExpire"}
            tower.ask_promtool(tmp_path)
            await asyncio.to_thread(zab_ensemble.heal)

    run(claim)


def test_somebody_who_watches_everything_is_noticed(
    zab_ensemble: ZabEnsemble, tmp_path: Path
) -> None:
    """A recursive watch on the recipe's base hears of every znode that comes and goes."""

    async def claim() -> None:
        metrics = MemoryMetrics()
        tower = Tower(zab_ensemble, metrics)
        hosts = hosts_of(zab_ensemble)
        async with connect(hosts) as spectator:
            await spectator.ensure_path("/dedup")
            await spectator.add_watch("/dedup", lambda _event: None, recursive=True)
            await pass_on(hosts, clients=3, rounds=1, metrics=metrics)
            await tower.look()
            await pass_on(hosts, clients=3, rounds=8, metrics=metrics)
            await asyncio.sleep(1)
            await tower.watch(until=lambda: "WatchesHerd" in tower.firing)
            assert tower.firing.keys() == {"WatchesHerd"}
            tower.ask_promtool(tmp_path)

    run(claim)


def test_a_holder_that_is_stuck_is_noticed(zab_ensemble: ZabEnsemble, tmp_path: Path) -> None:
    """Those who want its key pile up behind it."""

    async def claim() -> None:
        begun = asyncio.Event()

        async def never(_ctx: Attempt) -> None:
            begun.set()
            await asyncio.Event().wait()

        tower = Tower(zab_ensemble)
        async with AsyncExitStack() as stack:
            connected = [
                await stack.enter_async_context(connect(hosts_of(zab_ensemble, 1 + number % 3)))
                for number in range(MANY)
            ]
            callers = [asyncio.create_task(Dedup(connected[0]).run("stuck", never))]
            await begun.wait()
            callers += [
                asyncio.create_task(Dedup(zk, acquire_timeout=None).run("stuck", never))
                for zk in connected[1:]
            ]
            await tower.watch(until=lambda: "TooManyContenders" in tower.firing)
            assert tower.firing.keys() == {"TooManyContenders"}
            [labels] = tower.firing["TooManyContenders"]
            assert labels == {("prefix", "/dedup/stuck")}
            tower.ask_promtool(tmp_path)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)

    run(claim)


def test_a_member_that_is_held_up_is_noticed(zab_ensemble: ZabEnsemble, tmp_path: Path) -> None:
    """Requests that wait for it take as long as it stood still, by the clients' figures."""

    async def claim() -> None:
        metrics = MemoryMetrics()
        tower = Tower(zab_ensemble, metrics)
        leader = zab_ensemble.wait_for_leader()
        async with connect(hosts_of(zab_ensemble, leader), metrics=metrics) as zk:
            await ask(zk)
            await tower.look()
            await asyncio.to_thread(zab_ensemble.pause, leader)
            asked = asyncio.create_task(ask(zk))
            await asyncio.sleep(0.6)
            await asyncio.to_thread(zab_ensemble.resume, leader)
            await asked
            await tower.watch(until=lambda: "SlowOperations" in tower.firing)
            assert tower.firing.keys() == {"SlowOperations"}
            ops = {dict(labels)["op"] for labels in tower.firing["SlowOperations"]}
            assert ops == {"create", "getChildren", "exists"}
            tower.ask_promtool(tmp_path)

    run(claim)


async def ask(zk: Client) -> None:
    """One of each of what the alert is about."""
    await asyncio.gather(
        zk.create("/op-", b"", sequential=True), zk.get_children("/"), zk.exists("/nothing")
    )


@pytest.mark.slow
def test_an_ensemble_without_a_quorum_is_noticed(zab_ensemble: ZabEnsemble, tmp_path: Path) -> None:
    """One member gone is nothing to wake anybody for; two are, after ten seconds."""

    async def claim() -> None:
        tower = Tower(zab_ensemble)
        leader = zab_ensemble.wait_for_leader()
        one, two = (member for member in zab_ensemble.members if member != leader)
        zab_ensemble.kill(one)
        for _ in range(4):
            await tower.look()
            await asyncio.sleep(1)
        assert tower.firing == {}
        zab_ensemble.kill(two)
        await tower.watch(until=lambda: "NoServingQuorum" in tower.firing)
        assert tower.firing.keys() == {"NoServingQuorum"}
        tower.ask_promtool(tmp_path)

    run(claim)


@pytest.mark.slow
def test_an_ensemble_that_is_gone_is_noticed(zab_ensemble: ZabEnsemble, tmp_path: Path) -> None:
    """Nobody is left to say that nobody serves."""

    async def claim() -> None:
        tower = Tower(zab_ensemble)
        await tower.look()
        for member in zab_ensemble.members:
            zab_ensemble.kill(member)
        await tower.watch(until=lambda: "NoServingQuorum" in tower.firing)
        assert tower.firing == {"NoServingQuorum": [frozenset({("job", "zabd")})]}
        tower.ask_promtool(tmp_path)

    run(claim)
