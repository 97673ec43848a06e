"""The acceptance tests of the dedup recipe (its section 16), on zabd and on Debian's ZooKeeper.

Those on ZooKeeper are slow, and skipped by name where it is not installed.
"""

import asyncio
import contextlib
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.compat import java_zookeeper
from tests.compat.tools import debian, needed
from tests.ensemble import dedup_worker
from tests.ensemble.harness import PATIENCE_S, wait_until

from zabd.cli.members import Ensemble
from zabd.cli.ports import LOOPBACK
from zabd.cli.words import ask
from zabd.client import Client, EventStream, SyncClient, connect
from zabd.client.metrics import CLIENT_METRICS, WATCH_NOTIFICATIONS, MemoryMetrics
from zabd.client.recipes import Dedup
from zabd.client.recipes.dedup import Attempt, KeyState
from zabd.model.errors import ZabdError
from zabd.model.stat import Stat
from zabd.model.watch_events import WatchEvent

pytestmark = [pytest.mark.ensemble, pytest.mark.timeout(240)]

TICK_S = 1.0
SETTINGS = {
    "tickTime": "1000",
    "initLimit": "20",
    "syncLimit": "10",
    "maxSessionTimeout": "40000",
    "maxClientCnxns": "0",
    "znode.container.checkIntervalMs": "1000",
    "4lw.commands.whitelist": "*",
}
# What a machine that does other things adds to a time that is measured from outside.
SLACK_S = 3.0
_keys = count(1)


@contextlib.contextmanager
def ensemble_of(server: str, folder: Path, voters: int, **settings: str) -> Iterator[Ensemble]:
    """Members of ours, or of Debian's ZooKeeper."""
    command = None
    if server == "zookeeper":
        needed(lambda: debian(*java_zookeeper.PACKAGES))
        command = [sys.executable, java_zookeeper.__file__]
    options = {**SETTINGS, **settings}
    with Ensemble(folder, voters=voters, settings=options, command=command) as ensemble:
        ensemble.start(timeout_s=120)
        yield ensemble


@pytest.fixture(scope="module", params=["zabd", pytest.param("zookeeper", marks=pytest.mark.slow)])
def members(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ensemble]:
    """Three members that this module's tests share."""
    server: str = request.param
    with ensemble_of(server, tmp_path_factory.mktemp(server), 3) as ensemble:
        yield ensemble


@pytest.fixture
def key() -> str:
    """A key of the test's own."""
    return f"req-{next(_keys)}"


@contextlib.asynccontextmanager
async def clients(hosts: str, number: int, session_s: float = 40.0) -> AsyncIterator[list[Client]]:
    """So many clients, each with a session of its own."""
    fleet = [connect(hosts, timeout=session_s, connect_timeout=60) for _ in range(number)]
    try:
        await asyncio.gather(*(zk.start() for zk in fleet))
        yield fleet
    finally:
        await asyncio.gather(*(zk.close() for zk in fleet))


# 16.1 and 16.5: a frozen owner, its logs and its metrics.


@pytest.mark.parametrize("timeout_s", [4.0, pytest.param(12.0, marks=pytest.mark.slow)])
def test_acceptance_a1_a5_a_frozen_owner_is_replaced_and_knows_it(
    members: Ensemble, key: str, tmp_path: Path, timeout_s: float
) -> None:
    """Three processes, SIGSTOP and SIGCONT; the logs have the four fields, the page its types."""
    effects = tmp_path / "effects"
    workers = [_worker(members.hosts, key, timeout_s, effects, tmp_path, n) for n in range(3)]
    observer = SyncClient(members.hosts, timeout=20, connect_timeout=60)
    observer.start()
    try:
        first = next(workers[0])
        wait_until(lambda: effects.exists() and effects.read_text(), "the owner's first step")
        others = []
        for expected in (2, 3):
            others.append(next(workers[expected - 1]))
            wait_until(lambda n=expected: len(_locks(observer, key)) == n, "the next contender")
        before = _locks(observer, key)

        first.send_signal(signal.SIGSTOP)
        frozen_at = time.monotonic()
        wait_until(lambda: _locks(observer, key) != before, "the expiry", timeout_s + 20)
        took = time.monotonic() - frozen_at
        assert _locks(observer, key)[:1] == before[1:2]
        assert took < timeout_s + TICK_S + 1 + SLACK_S
        log = tmp_path / "1.log"
        wait_until(lambda: '"event": "acquired"' in log.read_text(), "the second to own")
        written = effects.read_text().split()
        first.send_signal(signal.SIGCONT)

        assert first.wait(PATIENCE_S) == 75
        assert [other.wait(60) for other in others] == [1, 0]  # one ran, one replayed
    finally:
        for worker in workers:
            worker.close()
        observer.close()

    assert _events(tmp_path, 0) == ["created", "acquired", "session_expired"]
    assert _events(tmp_path, 1) == ["created", "watch_fired", "acquired", "released"]
    assert _events(tmp_path, 2)[-1] == "released"
    steps, token = effects.read_text().split(), _token(tmp_path, 0)
    assert steps.count(token) == written.count(token) > 0  # none after the stop
    assert _sample(tmp_path, 0, "zk_session_expired_total") == 1
    assert _sample(tmp_path, 1, "zk_session_expired_total") == 0
    kinds = _kinds(tmp_path, 1)
    assert {metric.name: str(metric.kind) for metric in CLIENT_METRICS}.items() <= kinds.items()


def _worker(
    hosts: str, key: str, timeout_s: float, effects: Path, folder: Path, number: int
) -> Iterator[subprocess.Popen[bytes]]:
    """A generator that starts a worker when it is asked for it, and kills it in the end."""
    seconds = "600" if number == 0 else "1"
    arguments = [hosts, key, str(timeout_s), seconds, str(effects)]
    log, page = folder / f"{number}.log", folder / f"{number}.page"
    with log.open("wb") as stderr, page.open("wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, dedup_worker.__file__, *arguments], stdout=stdout, stderr=stderr
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _locks(observer: SyncClient, key: str) -> list[str]:
    try:
        observer.sync(f"/dedup/{key}")
        names = observer.get_children(f"/dedup/{key}")
    except ZabdError:
        return []
    return sorted(name for name in names if name.startswith("lock-"))


def _log(folder: Path, number: int) -> list[dict[str, object]]:
    """The transitions that a worker logged; each line parses and has the four fields."""
    text = (folder / f"{number}.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    told = [line for line in lines if line["logger"] == "zabd.dedup.lock"]
    for line in told:
        assert {"idempotency_key", "znode_path", "session_id", "event"} <= set(line)
    return told


def _events(folder: Path, number: int) -> list[object]:
    return [line["event"] for line in _log(folder, number)]


def _token(folder: Path, number: int) -> str:
    return str(_log(folder, number)[0]["fencing_token"])


def _sample(folder: Path, number: int, name: str) -> float:
    families = text_string_to_metric_families((folder / f"{number}.page").read_text())
    [value] = [s.value for family in families for s in family.samples if s.name == name]
    return value


def _kinds(folder: Path, number: int) -> dict[str, str]:
    families = text_string_to_metric_families((folder / f"{number}.page").read_text())
    return {f"{f.name}{'_total' if f.type == 'counter' else ''}": f.type for f in families}


# 16.2: fan-out.


def test_acceptance_a2_one_release_costs_the_same_with_3_and_with_30_waiters(
    members: Ensemble, key: str
) -> None:
    """By the server's own count, and exactly one client hears of it, once."""
    few = asyncio.run(_cost_of_a_release(members, f"{key}-few", 3))
    many = asyncio.run(_cost_of_a_release(members, f"{key}-many", 30))

    assert few == many <= 5


async def _cost_of_a_release(members: Ensemble, key: str, waiters: int) -> int:
    port = members.member(1).client_port

    def received() -> int:
        text = ask(LOOPBACK, port, "srvr")
        return int(text.partition("Received: ")[2].split()[0])

    async def hold(zk: Client, entered: asyncio.Event, leave: asyncio.Event) -> None:
        async with Dedup(zk, acquire_timeout=None).hold(key) as ctx:
            entered.set()
            await leave.wait()
            await ctx.release()

    one, two = members.member(1).address, members.member(2).address
    async with clients(one, waiters + 1) as fleet, clients(two, 1) as [observer]:
        entered = [asyncio.Event() for _ in fleet]
        leave = [asyncio.Event() for _ in fleet]
        async with asyncio.TaskGroup() as group:
            for number, zk in enumerate(fleet):
                group.create_task(hold(zk, entered[number], leave[number]))
                await _until_there_are(observer, key, number + 1)
            await asyncio.sleep(0.3)  # the last one's watch is set behind its znode
            before = received()
            leave[0].set()
            await entered[1].wait()
            await asyncio.sleep(0.5)
            after = received()
            heard = [_notifications(zk) for zk in fleet]
            assert [event.is_set() for event in entered].count(True) == 2
            for event in leave:
                event.set()
    assert heard == [0, 1, *(0 for _ in fleet[2:])]
    return after - before


async def _until_there_are(zk: Client, key: str, contenders: int) -> None:
    joined: EventStream[WatchEvent] = EventStream()
    watched = await zk.exists(f"/dedup/{key}", watch=joined)
    while watched is None or await _contenders(zk, key, joined) < contenders:
        await anext(joined)
        watched = await zk.exists(f"/dedup/{key}")


async def _contenders(zk: Client, key: str, joined: EventStream[WatchEvent]) -> int:
    names = await zk.get_children(f"/dedup/{key}", watch=joined)
    return sum(name.startswith("lock-") for name in names)  # an owner marks its start beside them


def _notifications(zk: Client) -> float:
    assert isinstance(zk.metrics, MemoryMetrics)
    return sum(zk.metrics.values(WATCH_NOTIFICATIONS).values())


# 16.3: what another session sees on another member.


def test_acceptance_a3_another_member_shows_the_fingerprint_after_a_sync(
    members: Ensemble, key: str
) -> None:
    """The data of the lock znode is the digest of the payload, and nothing else."""

    async def main() -> None:
        one, two = members.member(1).address, members.member(2).address
        async with (
            clients(one, 1) as [holder],
            clients(two, 1) as [observer],
            Dedup(holder).hold(key, payload=b"pay 7") as ctx,
        ):
            await observer.sync(ctx.znode_path)
            data, stat = await observer.get(ctx.znode_path)
            assert data == hashlib.sha256(b"pay 7").hexdigest().encode()
            assert (stat.version, stat.czxid) == (0, ctx.fencing_token)
            await ctx.complete()

    asyncio.run(main())


# 16.4: fifty at once.


def test_acceptance_a4_fifty_clients_and_one_key_are_one_execution(
    members: Ensemble, key: str
) -> None:
    """And afterwards fifty replays, without a write."""

    async def main() -> None:
        runs = 0

        async def charge(ctx: Attempt) -> int:
            nonlocal runs
            runs += 1
            await asyncio.sleep(0.2)
            return ctx.fencing_token

        async with clients(members.hosts, 50) as fleet:
            calls = (Dedup(zk).run(key, charge, payload=b"x") for zk in fleet)
            outcomes = await asyncio.gather(*calls)
            assert runs == 1
            assert len({outcome.value for outcome in outcomes}) == 1
            assert sum(outcome.replayed for outcome in outcomes) == 49

            before = await _settled(fleet[0], f"/dedup/{key}")
            calls = (Dedup(zk).run(key, charge, payload=b"x") for zk in fleet)
            assert all(outcome.replayed for outcome in await asyncio.gather(*calls))
            # A lock znode would have counted in cversion twice, coming and going.
            assert await _settled(fleet[0], f"/dedup/{key}") == before

    asyncio.run(main())


async def _settled(zk: Client, parent: str) -> Stat:
    """The stat of a key's znode once the last lock znode is gone: callers do not wait for that."""
    woken = asyncio.Event()
    while True:
        await zk.sync(parent)
        names, stat = await zk.get_children_with_stat(parent, watch=lambda _: woken.set())
        if names == ["result"]:
            return stat
        await woken.wait()
        woken.clear()


# Beside them: records and parents go by themselves, or are swept.


def test_the_ensemble_itself_ends_records_and_keys(members: Ensemble, key: str) -> None:
    """Where it has containers and TTL znodes, nothing is left some time later."""

    async def main() -> None:
        async with clients(members.hosts, 1) as [zk]:
            dedup = Dedup(zk, result_ttl=1.0)
            await dedup.run(key, _nothing)
            assert (await dedup.status(key)).state is KeyState.COMPLETED
            async with asyncio.timeout(200):
                await _gone(zk, f"/dedup/{key}")

    asyncio.run(main())


async def _gone(zk: Client, path: str) -> None:
    deleted: EventStream[WatchEvent] = EventStream()
    while await zk.exists(path, watch=deleted) is not None:
        await anext(deleted)


async def _nothing(_: Attempt) -> None:
    """A function without effects."""


@pytest.mark.slow
def test_row_f21_zookeeper_without_ttl_znodes_will_do(tmp_path: Path) -> None:
    """As it comes out of the box: records are plain, and a sweep removes them."""

    async def main(hosts: str) -> None:
        async with clients(hosts, 2) as [one, two]:
            dedup = Dedup(one, result_ttl=0.5)
            first = await dedup.run("k", _nothing)
            assert (await Dedup(two).run("k", _nothing)).replayed
            stat = await one.exists("/dedup/k/result")
            assert stat is not None
            assert stat.ephemeral_owner == 0
            await asyncio.sleep(1)
            again = await dedup.run("k", _nothing)  # too old to count, by the ensemble's stamps
            assert not again.replayed
            assert again.fencing_token > first.fencing_token
            await asyncio.sleep(1)
            swept = await dedup.sweep()
            assert (swept.keys, swept.records, swept.after) == (1, 1, None)

    with ensemble_of("zookeeper", tmp_path, 1, extendedTypesEnabled="false") as ensemble:
        asyncio.run(main(ensemble.hosts))
