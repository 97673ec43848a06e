"""Each recipe under faults: its guarantee, read from the servers' log, for a number of seeds.

``make sim-recipes SEEDS=2000`` runs more of them.
"""

import asyncio
from itertools import pairwise
from random import Random

import pytest
from tests.client.campaign import SEEDS, Facts, History, campaign

from zabd.client import Client
from zabd.client.recipes import Counter, Election, Lock, ReadWriteLock, Semaphore, Term
from zabd.model.errors import NodeExistsError, NoNodeError, ZabdError

pytestmark = pytest.mark.sim

seeds = pytest.mark.parametrize("seed", range(SEEDS))


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
    """What leaders do comes in the order of their tokens."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        async def lead(term: Term) -> None:
            for _ in range(2):
                await guarded_write(zk, election._lock.znode, str(term.fencing_token))
                await asyncio.sleep(rng.uniform(0, 0.5))

        election = Election(zk, "/election")
        await election.run(lead)

    def check(history: History, facts: Facts) -> None:
        assert tokens(history) == sorted(tokens(history))
        assert not history.below("/election")

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

    campaign(seed, work, check)
