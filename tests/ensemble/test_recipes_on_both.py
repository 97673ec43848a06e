"""Each recipe on real members, ours and ZooKeeper's, and locks of other clients beside ours.

What is claimed in detail, in virtual time, is in `tests/client`; here the same uses meet processes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.states import WatchedEvent
from tests.client.test_recipe_costs import USES
from tests.ensemble.harness import BOTH, kazoo, serving_on
from tests.ensemble.test_kazoo_recipes import Room, both

from zabd.cli.members import Ensemble
from zabd.client import Client, connect
from zabd.client.recipes import (
    Dedup,
    Election,
    Lock,
    LockingQueue,
    ReadWriteLock,
    Semaphore,
    Term,
    TtlLease,
)
from zabd.client.recipes.dedup import Attempt

pytestmark = pytest.mark.ensemble

TURNS = 5


@pytest.fixture(scope="module", params=BOTH)
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ensemble]:
    """Three members of one kind or the other."""
    with serving_on(request.param, tmp_path_factory.mktemp("both")) as ensemble:
        yield ensemble


def leaks(name: str, ephemerals: Iterable[str]) -> list[str]:
    """All but receipts, which go with their session."""
    receipts = "/x/" if name == "Counter" else "receipts"
    return [path for path in ephemerals if receipts not in path]


@pytest.mark.parametrize("name", USES)
def test_a_recipe_is_used_and_leaves_nothing_behind(servers: Ensemble, name: str) -> None:
    """P8: in a session that lives on, twice."""

    async def main() -> None:
        async with connect(servers.hosts) as root:
            await root.ensure_path(f"/uses/{name}")
        async with connect(f"{servers.hosts}/uses/{name}") as zk, asyncio.timeout(30):
            for _ in range(2):
                await USES[name](zk, lambda: None)
            left = [name]
            while left:
                await zk.sync("/")
                left = leaks(name, await zk.get_ephemerals("/"))

    asyncio.run(main())


@asynccontextmanager
async def a_lock(zk: Client) -> AsyncIterator[None]:
    """Ours, with kazoo's names."""
    async with Lock(zk, "/both/lock"):
        yield


@asynccontextmanager
async def a_lock_like_curators(zk: Client) -> AsyncIterator[None]:
    """Ours, with Curator's names."""
    async with Lock(zk, "/both/curator", curator=True):
        yield


@asynccontextmanager
async def a_write_lock(zk: Client) -> AsyncIterator[None]:
    """That of a pair."""
    async with ReadWriteLock(zk, "/both/rw").write:
        yield


@asynccontextmanager
async def the_only_lease(zk: Client) -> AsyncIterator[None]:
    """That of a semaphore."""
    async with Semaphore(zk, "/both/semaphore", max_leases=1):
        yield


@asynccontextmanager
async def a_lease_for_a_time(zk: Client) -> AsyncIterator[None]:
    """One that does not go with the session."""
    async with TtlLease(zk, "/both/lease", 30):
        yield


@asynccontextmanager
async def the_only_item(zk: Client) -> AsyncIterator[None]:
    """One that is given back each time."""
    item = await LockingQueue(zk, "/both/items").get()
    assert item is not None
    yield
    await item.release()


@pytest.mark.parametrize(
    "inside",
    [a_lock, a_lock_like_curators, a_write_lock, the_only_lease, a_lease_for_a_time, the_only_item],
    ids=lambda function: function.__name__,
)
def test_one_is_inside_at_a_time(
    servers: Ensemble, inside: Callable[[Client], AbstractAsyncContextManager[None]]
) -> None:
    """Four sessions, each of which comes in some times."""
    room = Room()

    async def visit(zk: Client, name: str) -> None:
        for _ in range(TURNS):
            async with inside(zk):
                room.enter(name)
                await asyncio.sleep(0.002)
                room.leave(name)

    async def main() -> None:
        clients = [connect(servers.hosts) for _ in range(4)]
        await asyncio.gather(*(zk.start() for zk in clients))
        await LockingQueue(clients[0], "/both/items").put(b"the only one")
        async with asyncio.timeout(60):
            await asyncio.gather(*(visit(zk, str(n)) for n, zk in enumerate(clients)))
        await (await LockingQueue(clients[0], "/both/items").get()).consume()
        await asyncio.gather(*(zk.close() for zk in clients))

    asyncio.run(main())
    assert (room.most, len(room.entered)) == (1, 4 * TURNS)


def test_one_leads_at_a_time(servers: Ensemble) -> None:
    """And every candidate does."""
    room = Room()

    async def stand(zk: Client, name: str) -> None:
        async def lead(_: Term) -> None:
            room.enter(name)
            await asyncio.sleep(0.002)
            room.leave(name)

        for _ in range(TURNS):
            await Election(zk, "/both/election").run(lead)

    async def main() -> None:
        async with connect(servers.hosts) as one, connect(servers.hosts) as two:
            await asyncio.gather(stand(one, "one"), stand(two, "two"))

    asyncio.run(main())
    assert (room.most, len(room.entered)) == (1, 2 * TURNS)


def test_a_key_is_worked_on_once(servers: Ensemble) -> None:
    """Where there are containers and times to live, and where there are none."""
    runs: list[int] = []

    async def work(attempt: Attempt) -> int:
        runs.append(attempt.fencing_token)
        await asyncio.sleep(0.05)
        return attempt.fencing_token

    async def main() -> None:
        async with connect(servers.hosts) as one, connect(servers.hosts) as two:
            outcomes = await asyncio.gather(
                *(Dedup(zk).run("once", work, payload="x") for zk in (one, two, one, two))
            )
        assert [outcome.value for outcome in outcomes] == runs * 4

    asyncio.run(main())


class CuratorMutex:
    """What Curator's `InterProcessMutex` does, by its documentation, with kazoo's connection.

    Its contenders are all children; they are ordered as text, by what follows the last ``lock-`` of
    a name, and by all of a name that has none.
    """

    def __init__(self, client: KazooClient, path: str, number: int) -> None:
        self._client = client
        self._path = path
        self._prefix = f"{path}/_c_{number:08x}-0000-4000-8000-000000000000-lock-"

    def __enter__(self) -> None:
        self._own = self._client.create(
            self._prefix, ephemeral=True, sequence=True, makepath=True
        ).rpartition("/")[2]
        while True:
            names = sorted(
                self._client.get_children(self._path), key=lambda name: name.rpartition("lock-")[2]
            )
            at = names.index(self._own)
            if at == 0:
                return
            gone = self._client.handler.event_object()

            def notice(_: WatchedEvent, gone: object = gone) -> None:
                gone.set()

            if self._client.exists(f"{self._path}/{names[at - 1]}", watch=notice):
                assert gone.wait(30)

    def __exit__(self, *_: object) -> None:
        self._client.delete(f"{self._path}/{self._own}")


@pytest.mark.parametrize("kind", ["kazoo", "curator"])
def test_locks_of_other_clients_and_ours_exclude_each_other(servers: Ensemble, kind: str) -> None:
    """Both ways: each of them waits for the other more than once."""
    room, path = Room(), f"/both/with-{kind}"

    async def ours(zk: Client) -> None:
        for _ in range(3 * TURNS):
            async with Lock(zk, path, curator=kind == "curator"):
                room.enter("ours")
                await asyncio.sleep(0.005)
                room.leave("ours")

    def theirs(client: KazooClient) -> None:
        for number in range(3 * TURNS):
            lock = client.Lock(path) if kind == "kazoo" else CuratorMutex(client, path, number)
            with lock:
                room.enter("theirs")
                client.handler.sleep_func(0.005)
                room.leave("theirs")

    both(servers, ours, theirs)
    assert (room.most, len(room.entered)) == (1, 6 * TURNS)
    assert "ours theirs ours" in " ".join(room.entered)


def test_kazoo_waits_for_curators_names_when_it_is_told(servers: Ensemble) -> None:
    """So that all three clients may queue on one path."""
    room, path = Room(), "/both/three"

    async def ours(zk: Client) -> None:
        for _ in range(2 * TURNS):
            async with Lock(zk, path, curator=True):
                room.enter("ours")
                await asyncio.sleep(0.005)
                room.leave("ours")

    def theirs(client: KazooClient) -> None:
        for _ in range(2 * TURNS):
            lock = client.Lock(path, extra_lock_patterns=["lock-"])
            with lock:
                room.enter("kazoo")
                client.handler.sleep_func(0.005)
                room.leave("kazoo")

    both(servers, ours, theirs)
    assert (room.most, len(room.entered)) == (1, 4 * TURNS)
    with kazoo(servers.hosts) as client:
        assert client.get_children(path) == []
