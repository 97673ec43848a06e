"""Each recipe under faults: its guarantee, read from the servers' log, for a number of seeds.

``make sim-recipes SEEDS=2000`` runs more of them (`recipe_campaigns`).
"""

import asyncio
from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest
from tests.client.campaign import (
    SEEDS,
    Facts,
    History,
    Life,
    campaign,
    true_within,
    working_under,
)

from zabd.client import Client
from zabd.client.recipes import (
    Counter,
    DataWatch,
    DoubleBarrier,
    Election,
    LeaderLatch,
    Lock,
    LockingQueue,
    Partitioner,
    Party,
    PriorityQueue,
    Queue,
    ReadWriteLock,
    Semaphore,
    Share,
    Term,
    TreeCache,
    TtlLease,
)
from zabd.model.errors import NodeExistsError, NoNodeError, ZabdError

pytestmark = pytest.mark.sim

seeds = pytest.mark.parametrize("seed", range(SEEDS))

CAUGHT_UP_S = 60.0  # within which whoever follows has to be told the latest, faults or not


async def guarded_write(zk: Client, znode: str, value: str) -> None:
    """Append to the resource if, at that zxid, the znode exists."""
    data = value.encode()
    try:
        await zk.transaction().check(znode).set("/resource", data).commit()
    except NoNodeError:
        await zk.create("/resource", b"")
        await zk.transaction().check(znode).set("/resource", data).commit()


def tokens(history: History) -> list[int]:
    """The tokens with which the resource was written, in order."""
    return [int(value) for value in history.values("/resource") if value]


async def zxid_of_a_mark(zk: Client) -> int:
    """The zxid of a write: what the same client reads behind it is no older."""
    while True:
        try:
            return (await zk.set("/mark", b"")).mzxid
        except NoNodeError:
            with suppress(NodeExistsError):
                await zk.create("/mark")


@seeds
def test_lock(seed: int) -> None:
    """Writes that the lock guards come in the order of their tokens, and no znode is left."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        lock = Lock(zk, "/lock", reentrant=True)
        if not await lock.acquire(timeout=rng.choice([None, 2.0]), blocking=rng.random() < 0.8):
            return
        try:
            await lock.acquire()
            for _ in range(2):
                await guarded_write(zk, lock.znode, str(lock.fencing_token))
                await asyncio.sleep(rng.uniform(0, 0.5))
            await lock.release()
        finally:
            while lock._depth:
                await lock.release()

    def check(history: History, facts: Facts) -> None:
        assert tokens(history) == sorted(tokens(history))
        assert not history.below("/lock")

    campaign(seed, work, check)


@seeds
def test_election(seed: int) -> None:
    """What leaders do comes in the order of their tokens, and ends before they stand down."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        async def lead(term: Term) -> None:
            znode = election._lock.znode
            async with working_under(znode, zk, rng, facts):
                for _ in range(2):
                    await guarded_write(zk, znode, str(term.fencing_token))
                    await asyncio.sleep(rng.uniform(0, 0.5))

        election = Election(zk, "/election")
        await election.run(lead)

    def check(history: History, facts: Facts) -> None:
        assert tokens(history) == sorted(tokens(history))
        assert not history.below("/election")

    campaign(seed, work, check)


@seeds
def test_leader_latch(seed: int) -> None:
    """What a latch's holder does comes in the order of the tokens, over lost sessions too."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        async with LeaderLatch(zk, "/latch") as latch:
            await latch.wait_leading(timeout=6)
            for _ in range(2):
                await guarded_write(zk, latch._lock.znode, str(latch.fencing_token))
                await asyncio.sleep(rng.uniform(0, 0.5))

    def check(history: History, facts: Facts) -> None:
        assert tokens(history) == sorted(tokens(history))
        assert not history.below("/latch")

    campaign(seed, work, check)


@seeds
def test_semaphore(seed: int) -> None:
    """At no zxid are there more leases than there may be, and none is left."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        lease = await Semaphore(zk, "/semaphore", max_leases=2).acquire(
            timeout=rng.choice([None, 2.0]), blocking=rng.random() < 0.8
        )
        if lease is not None:
            try:
                await asyncio.sleep(rng.uniform(0, 1))
            finally:
                await lease.release()

    def check(history: History, facts: Facts) -> None:
        changes = []
        for life in history.lives("/semaphore"):
            changes += [(life.began, 1), (life.ended, -1)]
        held = 0
        for _, change in sorted(changes):
            held += change
            assert 0 <= held <= 2
        assert not history.below("/semaphore")
        assert not history.below("/semaphore-__lock__")

    campaign(seed, work, check)


@seeds
def test_read_write_lock(seed: int) -> None:
    """A writer's guarded writes are not seen half done by a reader that holds its lock throughout.

    The writer adds one to two znodes, one after the other; a reader under the lock sees them equal.
    """

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        lock = ReadWriteLock(zk, "/rw")
        for path in ("/left", "/right"):
            try:
                await zk.create(path, b"0")
            except NodeExistsError:
                continue
        if rng.random() < 0.5:
            async with lock.write:
                znode = lock.write.znode
                # A writer that died half-way is made up for: the left one is the truth.
                number = int((await zk.get("/left")).data or b"0") + 1
                for path in ("/left", "/right"):
                    data = str(number).encode()
                    await zk.transaction().check(znode).set(path, data).commit()
                    await asyncio.sleep(rng.uniform(0, 0.3))
                if rng.random() < 0.5:
                    await lock.downgrade()
                    await look(zk, lock, facts, number)
        else:
            async with lock.read:
                await look(zk, lock, facts, None)

    async def look(zk: Client, lock: ReadWriteLock, facts: Facts, number: int | None) -> None:
        """Two verified looks under one read lock must agree: nobody wrote in between."""
        await zk.sync("/")
        first = await zk.get("/left"), await zk.get("/right")
        await asyncio.sleep(0.2)
        await zk.sync("/")
        second = await zk.get("/left"), await zk.get("/right")
        await lock.read.verify()
        facts.certain.append((first == second, number in {None, int(second[0].data or b"")}))

    def check(history: History, facts: Facts) -> None:
        assert all(fact == (True, True) for fact in facts.certain), facts.certain
        assert not history.below("/rw")

    campaign(seed, work, check)


@seeds
def test_counter(seed: int) -> None:
    """The number is what was added, each addition once; those in doubt, once or not at all."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        counter = Counter(zk, "/counter")
        for _ in range(3):
            amount = 10 ** rng.randrange(4)
            facts.perhaps.append(amount)
            try:
                change = await counter.add(amount)
            except ZabdError as error:
                if not getattr(error, "maybe_applied", False):
                    facts.perhaps.remove(amount)
                raise
            assert change.after == change.before + amount
            facts.perhaps.remove(amount)
            facts.certain.append(amount)

    def check(history: History, facts: Facts) -> None:
        values = [int(value) for value in history.values("/counter") if value]
        steps = [after - before for before, after in pairwise(values)]
        for amount in facts.certain:
            steps.remove(amount)
        for step in steps:
            assert step in facts.perhaps, (step, facts.perhaps)
            facts.perhaps.remove(step)
        assert not history.below("/counter")

    campaign(seed, work, check, receipts="/counter")


@seeds
def test_queue(seed: int) -> None:
    """Each value goes in once and comes out once; in doubt, at most once."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        queue = Queue(zk, "/queue")
        if rng.random() < 0.6:
            value = f"{zk.session_id} {rng.random()}".encode()
            facts.perhaps.append(value)
            await queue.put(value)
            facts.certain.append(value)
        else:
            value = await queue.get(blocking=rng.random() < 0.3, timeout=2.0) or b""
            if value:
                facts.taken.append(value)

    def check(history: History, facts: Facts) -> None:
        lives = [life for life in history.lives("/queue") if "entry-" in life.path]
        put = [life.data for life in lives]
        assert len(put) == len(set(put))
        assert set(facts.certain) <= set(put) <= set(facts.perhaps)
        assert len(facts.taken) == len(set(facts.taken))
        gone = {life.data for life in lives if life.ended}
        assert set(facts.taken) <= gone
        assert not history.below("/queue-__receipts__")

    campaign(seed, work, check, receipts="/queue-__receipts__")


@seeds
def test_priority_queue(seed: int) -> None:
    """As the queue, and nobody is handed a value while a more urgent one stands all the time."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        queue = PriorityQueue(zk, "/queue")
        if rng.random() < 0.6:
            value = f"{zk.session_id} {rng.random()}".encode()
            facts.perhaps.append(value)
            await queue.put(value, priority=rng.choice([0, 100, 999]))
            facts.certain.append(value)
            return
        since = await zxid_of_a_mark(zk)
        value = await queue.get(blocking=rng.random() < 0.3, timeout=2.0) or b""
        if value:
            facts.taken.append((value, since))

    def check(history: History, facts: Facts) -> None:
        lives = [life for life in history.lives("/queue") if "entry-" in life.path]
        of_value = {life.data: life for life in lives}
        assert len(lives) == len(of_value)
        assert set(facts.certain) <= of_value.keys() <= set(facts.perhaps)
        assert len(facts.taken) == len(set(facts.taken))
        for value, since in facts.taken:
            taken = of_value[value]
            assert taken.ended
            more_urgent = [life for life in lives if priority_of(life) < priority_of(taken)]
            assert not [
                life
                for life in more_urgent
                if life.began <= since and not 0 < life.ended <= taken.ended
            ]
        assert not history.below("/queue-__receipts__")

    campaign(seed, work, check, receipts="/queue-__receipts__")


def priority_of(life: Life) -> str:
    """That of an entry of a queue."""
    return life.path.split("-")[1]


@seeds
def test_locking_queue(seed: int) -> None:
    """An item goes only when its holder consumes it, and has one holder at a time."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        queue = LockingQueue(zk, "/queue")
        if rng.random() < 0.5:
            value = f"{zk.session_id} {rng.random()}".encode()
            facts.perhaps.append(value)
            await queue.put(value)
            facts.certain.append(value)
            return
        item = await queue.get(blocking=rng.random() < 0.3, timeout=2.0)
        if item is not None:
            async with item:
                await asyncio.sleep(rng.uniform(0, 1))
                if rng.random() < 0.2:
                    await item.release()
                    return
                facts.taken.append(item.value)
            facts.consumed.append(item.value)

    def check(history: History, facts: Facts) -> None:
        lives = list(history.lives("/queue/entries"))
        put = [life.data for life in lives]
        assert len(put) == len(set(put))
        assert set(facts.certain) <= set(put) <= set(facts.perhaps)
        gone = {life.data for life in lives if life.ended}
        assert set(facts.consumed) <= gone <= set(facts.taken)
        assert len(facts.consumed) == len(set(facts.consumed))
        assert not history.below("/queue/taken")
        assert not history.below("/queue/receipts")

    campaign(seed, work, check, receipts="/queue/receipts")


@seeds
def test_double_barrier(seed: int) -> None:
    """Nobody is let in before so many were there, and no participant is left."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        barrier = DoubleBarrier(zk, "/barrier", 2)
        await barrier.enter(timeout=4)
        try:
            await asyncio.sleep(rng.uniform(0, 0.5))
        finally:
            await barrier.leave(timeout=4)

    def check(history: History, facts: Facts) -> None:
        lives = history.lives("/barrier")
        for ready in (life for life in lives if life.path.endswith("/ready")):
            here = [
                life
                for life in lives
                if life.began < ready.began and (not life.ended or life.ended > ready.began)
            ]
            before = [life for life in lives if life.began < ready.began]
            assert len(here) >= 1
            assert len(before) >= 2
        assert history.below("/barrier") in ([], ["ready"])

    campaign(seed, work, check, needs_success=False)


@seeds
def test_party(seed: int) -> None:
    """Members are there while they are members, and leave nothing behind."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        async with Party(zk, "/party", identifier="me") as party:
            await asyncio.sleep(rng.uniform(0, 2))
            if party.joined:
                await zk.sync("/")
                if party.joined and "me" in await party.members():
                    facts.certain.append(True)

    def check(history: History, facts: Facts) -> None:
        assert facts.certain
        assert not history.below("/party")

    campaign(seed, work, check)


@seeds
def test_ttl_lease(seed: int) -> None:
    """Takings come in the order of their tokens, and writes under a lease too."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        lease = TtlLease(zk, "/lease", 3.0)
        if not await lease.acquire(timeout=rng.choice([5.0, 30.0])):
            return
        try:
            for _ in range(3):
                if lease.held:
                    facts.certain.append(lease.fencing_token)
                await asyncio.sleep(rng.uniform(0, 1))
                await lease.renew()
        finally:
            if rng.random() < 0.7:
                await lease.release()

    def check(history: History, facts: Facts) -> None:
        assert facts.certain == sorted(facts.certain)  # type: ignore[type-var]
        assert not [path for path in history.paths() if "__now__" in path]

    campaign(seed, work, check)


@seeds
def test_watches(seed: int) -> None:
    """A watch and a cache end up with what is there, whatever they missed on the way."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        for path in ("/tree", "/tree/a"):
            try:
                await zk.create(path)
            except NodeExistsError:
                continue
        watch, cache = DataWatch(zk, "/tree/a"), TreeCache(zk, "/tree")
        last: list[bytes | None] = [None]
        following = watch.start(lambda value: last.append(None if value is None else value.data))

        def caught_up() -> bool:
            data = facts.history.data("/tree/a")
            names = sorted(facts.history.below("/tree"))
            return (last[-1], cache.data("/tree/a")) == (data, data) and (
                sorted(cache.children("/tree")) == names
            )

        try:
            await cache.start()
            for number in range(4):
                await zk.set("/tree/a", f"{zk.session_id} {number} {rng.random()}".encode())
                await zk.create("/tree/n-", sequential=True)
                await asyncio.sleep(rng.uniform(0, 0.5))
            facts.certain.append(await true_within(CAUGHT_UP_S, caught_up))
        finally:
            watch.close()
            await cache.close()
            await asyncio.wait([following])

    def check(history: History, facts: Facts) -> None:
        assert all(facts.certain), facts.certain

    campaign(seed, work, check, needs_success=False, rounds=2)


@seeds
def test_partitioner(seed: int) -> None:
    """Each partition's guarded writes come in the order of its tokens, and end before it moves."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        async def on(share: Share) -> None:
            znode, value = share._term._lock.znode, f"{share.partition} {share.fencing_token}"
            async with working_under(znode, zk, rng, facts):
                while True:
                    await guarded_write(zk, znode, value)
                    await asyncio.sleep(rng.uniform(0.1, 0.5))

        async def on_share(share: Share) -> None:
            try:
                await on(share)
            except ZabdError:
                facts.perhaps.append(share.partition)

        splitting = Partitioner(zk, "/split", ["a", "b", "c"], settle=0.3)
        try:
            async with asyncio.timeout(rng.uniform(2, 6)):
                await splitting.run(on_share)
        except TimeoutError:
            facts.done += 1

    def check(history: History, facts: Facts) -> None:
        for partition in "abc":
            written = [
                int(value.split()[1])
                for value in history.values("/resource")
                if value and value.decode()[0] == partition
            ]
            assert written == sorted(written)
            assert not history.below(f"/split/locks/{partition}")
        assert not history.below("/split/party")

    campaign(seed, work, check, rounds=2)
