"""kazoo's recipes and ours on the same znodes: a fleet may move from one client to the other.

kazoo's half runs in threads, ours on the test's loop; what both did to one shared list says whether
they took part in the same recipe, on our members and on ZooKeeper's.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
from kazoo.client import KazooClient
from tests.ensemble.harness import BOTH, kazoo, serving_on

from zabd.cli.members import Ensemble
from zabd.client import Client, connect
from zabd.client.recipes import (
    Barrier,
    Counter,
    DoubleBarrier,
    Election,
    LockingQueue,
    Partitioner,
    Party,
    PriorityQueue,
    ReadWriteLock,
    Semaphore,
    Share,
    Term,
)

pytestmark = pytest.mark.ensemble

T = TypeVar("T")


@pytest.fixture(scope="module", params=BOTH)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ensemble]:
    """Three members of one kind or the other; each test keeps to znodes of its own."""
    with serving_on(request.param, tmp_path_factory.mktemp("shared")) as ensemble:
        yield ensemble


def both(
    shared: Ensemble,
    ours: Callable[[Client], Awaitable[None]],
    theirs: Callable[[KazooClient], None],
) -> None:
    """Run the two halves at the same time, each with a client of its own."""

    def their_half() -> None:
        with kazoo(shared.hosts) as client:
            theirs(client)

    async def main() -> None:
        async with connect(shared.hosts, timeout=10.0) as zk, asyncio.timeout(60):
            loop = asyncio.get_running_loop()
            await asyncio.gather(ours(zk), loop.run_in_executor(None, their_half))

    asyncio.run(main())


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Poll a condition that another client makes true."""
    while not await condition():  # noqa: ASYNC110 - it is about another client
        await asyncio.sleep(0.01)


class Room:
    """Who is inside, and the most that ever were at the same time."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.inside: list[str] = []
        self.most = 0
        self.entered: list[str] = []

    def enter(self, name: str) -> None:
        """Come in."""
        with self._guard:
            self.inside.append(name)
            self.entered.append(name)
            self.most = max(self.most, len(self.inside))

    def leave(self, name: str) -> None:
        """Go out."""
        with self._guard:
            self.inside.remove(name)


def test_writers_exclude_readers_of_the_other_kind(shared: Ensemble) -> None:
    """And each other; a downgraded writer is a reader for kazoo."""
    room = Room()
    written = [0, 0]

    def theirs(client: KazooClient) -> None:
        for number in range(16):
            if number % 2:
                with client.WriteLock("/kz/rw"):
                    written[0] += 1
                    time.sleep(0.002)
                    written[1] += 1
            else:
                with client.ReadLock("/kz/rw"):
                    assert written[0] == written[1]
            room.enter("kazoo")

    async def ours(zk: Client) -> None:
        lock = ReadWriteLock(zk, "/kz/rw")
        for _ in range(8):
            async with lock.write:
                written[0] += 1
                await asyncio.sleep(0.002)
                written[1] += 1
                await lock.downgrade()
                seen = list(written)
                await asyncio.sleep(0.005)
                assert seen == written
            async with lock.read:
                assert written[0] == written[1]
            room.enter("zabd")

    both(shared, ours, theirs)
    assert written == [16, 16]
    assert set(room.entered) == {"kazoo", "zabd"}


def test_leases_of_a_semaphore_are_counted_together(shared: Ensemble) -> None:
    """Two at a time, whoever they are."""
    room = Room()

    def theirs(client: KazooClient) -> None:
        for _ in range(8):
            with client.Semaphore("/kz/semaphore", max_leases=2):
                room.enter("kazoo")
                time.sleep(0.01)
                room.leave("kazoo")

    async def enter(zk: Client) -> None:
        async with Semaphore(zk, "/kz/semaphore", max_leases=2):
            room.enter("zabd")
            await asyncio.sleep(0.05)
            room.leave("zabd")

    async def ours(zk: Client) -> None:
        await asyncio.gather(*(enter(zk) for _ in range(12)))

    both(shared, ours, theirs)
    assert room.most == 2
    assert len(room.entered) == 20


def test_one_leads_of_both_kinds(shared: Ensemble) -> None:
    """And both see who stands."""
    room = Room()
    stands = threading.Event()

    def theirs(client: KazooClient) -> None:
        election = client.Election("/kz/election", "kazoo")

        def lead() -> None:
            room.enter("kazoo")
            assert stands.wait(30)
            deadline = time.monotonic() + 30
            while election.contenders() != ["kazoo", "zabd"]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            room.leave("kazoo")

        election.run(lead)

    async def ours(zk: Client) -> None:
        async def led() -> bool:
            return bool(room.inside)

        await until(led)

        async def lead(term: Term) -> None:
            await term.verify()
            room.enter("zabd")
            room.leave("zabd")

        stands.set()
        await Election(zk, "/kz/election", identifier="zabd").run(lead)

    both(shared, ours, theirs)
    assert room.entered == ["kazoo", "zabd"]
    assert room.most == 1


def test_a_counter_is_the_sum_of_both(shared: Ensemble) -> None:
    """Text as kazoo writes it; receipts below it are not in its way."""

    def theirs(client: KazooClient) -> None:
        counter = client.Counter("/kz/counter")
        for _ in range(20):
            counter += 2

    async def ours(zk: Client) -> None:
        counter = Counter(zk, "/kz/counter")
        for _ in range(20):
            await counter.add(3)

        async def complete() -> bool:
            return await counter.value() == 100

        await until(complete)

    both(shared, ours, theirs)


def test_what_one_puts_into_a_queue_the_other_gets(shared: Ensemble) -> None:
    """In the order of priorities, in both directions."""

    def theirs(client: KazooClient) -> None:
        queue = client.Queue("/kz/forth")
        for number in (5, 3, 4):
            queue.put(b"%d" % number, priority=number)
        back = client.Queue("/kz/back")
        got: list[bytes] = []
        deadline = time.monotonic() + 30
        while len(got) < 3:
            assert time.monotonic() < deadline
            value = back.get()
            if value is not None:
                got.append(value)
        assert got == [b"3", b"4", b"5"]

    async def ours(zk: Client) -> None:
        queue = PriorityQueue(zk, "/kz/forth")

        async def filled() -> bool:
            return await queue.size() == 3

        await until(filled)
        assert [await queue.get() for _ in range(3)] == [b"3", b"4", b"5"]
        await zk.ensure_path("/kz/back")
        async with zk.transaction() as tx:  # all three at once, so that their order is not a race
            for number in (5, 3, 4):
                tx.create(f"/kz/back/entry-{number:03d}-", b"%d" % number, sequential=True)

    both(shared, ours, theirs)


def test_an_item_of_a_locking_queue_has_one_holder(shared: Ensemble) -> None:
    """Each is consumed once, by one or the other."""
    room = Room()

    def theirs(client: KazooClient) -> None:
        queue = client.LockingQueue("/kz/locking")
        queue.put_all([b"k%d" % number for number in range(10)])
        while (value := queue.get(timeout=1)) is not None:
            time.sleep(0.002)
            assert queue.consume()
            room.enter(value.decode())

    async def ours(zk: Client) -> None:
        queue = LockingQueue(zk, "/kz/locking")
        await queue.put_all([b"z%d" % number for number in range(10)])
        while True:
            try:
                item = await queue.get(timeout=1)
            except TimeoutError:
                break
            assert item is not None
            async with item:
                await asyncio.sleep(0.002)
            room.enter(item.value.decode())

    both(shared, ours, theirs)
    assert sorted(room.entered) == sorted(
        f"{letter}{number}" for letter in "kz" for number in range(10)
    )


def test_barriers_hold_both(shared: Ensemble) -> None:
    """One puts it up, the other waits; and they meet at a double one."""

    def theirs(client: KazooClient) -> None:
        barrier = client.Barrier("/kz/barrier")
        barrier.create()
        meeting = client.DoubleBarrier("/kz/meeting", 2)
        meeting.enter()
        assert meeting.participating
        meeting.leave()
        barrier.remove()

    async def ours(zk: Client) -> None:
        await until(lambda: zk.exists("/kz/barrier"))
        async with DoubleBarrier(zk, "/kz/meeting", 2):
            pass
        await Barrier(zk, "/kz/barrier").wait(timeout=30)
        assert await zk.get_children("/kz/meeting") == []

    both(shared, ours, theirs)


@pytest.mark.parametrize("shallow", [False, True])
def test_parties_have_members_of_both_kinds(shared: Ensemble, shallow: bool) -> None:  # noqa: FBT001
    """Each sees the other's identifier."""
    path = f"/kz/party-{shallow}"
    seen = threading.Barrier(2)

    def theirs(client: KazooClient) -> None:
        party = (client.ShallowParty if shallow else client.Party)(path, "kazoo")
        party.join()
        deadline = time.monotonic() + 30
        while sorted(party) != ["kazoo", "zabd"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        seen.wait(30)
        party.leave()

    async def ours(zk: Client) -> None:
        async with Party(zk, path, identifier="zabd", shallow=shallow) as party:

            async def complete() -> bool:
                return await party.members() == ["kazoo", "zabd"]

            await until(complete)
            await asyncio.get_running_loop().run_in_executor(None, seen.wait, 30)

    both(shared, ours, theirs)


def test_partitions_are_split_between_both(shared: Ensemble) -> None:
    """By the same rule: every second one, in the order of the identifiers."""
    done = threading.Event()

    def theirs(client: KazooClient) -> None:
        partitioner = client.SetPartitioner(
            "/kz/split", ["a", "b", "c", "d"], identifier="1-kazoo", time_boundary=0.5
        )
        deadline = time.monotonic() + 40
        while not done.is_set():
            assert time.monotonic() < deadline
            if partitioner.release:
                partitioner.release_set()
            elif partitioner.acquired and list(partitioner) == ["a", "c"]:
                done.set()
            elif partitioner.allocating:
                partitioner.wait_for_acquire(1)
            else:
                time.sleep(0.05)
        time.sleep(1)
        partitioner.finish()

    async def ours(zk: Client) -> None:
        async def work(_: Share) -> None:
            return

        partitioner = Partitioner(
            zk, "/kz/split", ["a", "b", "c", "d"], identifier="2-zabd", settle=0.5
        )
        running = asyncio.ensure_future(partitioner.run(work))
        while not (done.is_set() and partitioner.owned == ["b", "d"]):
            assert not running.done()
            await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait([running])

    both(shared, ours, theirs)
