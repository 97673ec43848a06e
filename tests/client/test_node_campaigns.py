"""What waits for znodes and follows them, under faults, and the dedup recipe; as `test_campaigns`.

What a follower was told has to be a way through the states that the servers' log has.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest
from tests.client.campaign import SEEDS, Facts, History, campaign, working_under
from tests.client.test_campaigns import zxid_of_a_mark

from zabd.client import Client
from zabd.client.recipes import Barrier, ChildrenWatch, DataWatch, Dedup, PersistentNode
from zabd.client.recipes.dedup import Attempt
from zabd.model.errors import NodeExistsError, NoNodeError
from zabd.model.ops import SetData

pytestmark = pytest.mark.sim

seeds = pytest.mark.parametrize("seed", range(SEEDS))

NEW_KEYS_S = 1.5

Told = dict[Client, list[object]]  # what each client's watch has told


async def make(zk: Client, path: str) -> None:
    """Let it be there."""
    with suppress(NodeExistsError):
        await zk.create(path)


async def remove(zk: Client, path: str) -> None:
    """Let it not be there."""
    with suppress(NoNodeError):
        await zk.delete(path)


def require_a_way_through(states: Sequence[object], told: Told) -> None:
    """Everybody was told of states that were, in their order, and of the last one in the end."""
    for zk, mine in told.items():
        at = 0
        for state in mine:
            assert state in states[at:], f"{state} was not, or was before {states[at]}"
            at = states.index(state, at)
        if zk.closed:  # and not killed before
            assert mine[-1] == states[-1]


@seeds
def test_barrier(seed: int) -> None:
    """Who is let go was let go by a moment without the barrier; who was not, saw it stand."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        barrier = Barrier(zk, "/closed")
        if rng.random() < 0.4:
            try:
                await barrier.create()
                await asyncio.sleep(rng.uniform(0, 3))
            finally:
                await barrier.remove()
            return
        since = await zxid_of_a_mark(zk)
        try:
            await barrier.wait(timeout=rng.choice([1.0, 10.0]))
        except TimeoutError:
            facts.perhaps.append((since, await zxid_of_a_mark(zk)))
        else:
            facts.certain.append((since, await zxid_of_a_mark(zk)))

    def check(history: History, facts: Facts) -> None:
        lives = history.lives_of("/closed")
        for since, until in facts.certain:
            assert not [x for x in lives if x.began < since and not 0 < x.ended < until]
        for since, until in facts.perhaps:
            assert [x for x in lives if x.began < until and not 0 < x.ended < since]

    campaign(seed, work, check)


@seeds
def test_persistent_node(seed: int) -> None:
    """A znode that is said to stand stands, at the zxid of a write behind which it is said so."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        path = rng.choice(["/services/a", "/services/b"])
        async with PersistentNode(zk, path, b"first") as node:
            await node.wait_present(timeout=8)
            for number in range(4):
                if node.present:
                    token, session_id = node.fencing_token, zk.session_id
                    mark = await zxid_of_a_mark(zk)
                    if zk.session_id == session_id:
                        facts.certain.append((path, token, mark))
                await node.set(str(number).encode())
                await asyncio.sleep(rng.uniform(0, 1))

    def check(history: History, facts: Facts) -> None:
        for path, token, mark in facts.certain:
            assert [x for x in history.lives_of(path) if x.began == token], (path, token)
            assert history.at(path, mark).there, (path, token, mark)
        assert not history.below("/services")

    campaign(seed, work, check, needs_success=False)


@seeds
def test_data_watch(seed: int) -> None:
    """The states that are told were there, in this order, and the last one is never missed."""
    told: Told = {}

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        if zk not in told:
            mine = told[zk] = []
            DataWatch(zk, "/value").start(
                lambda value: mine.append(value and (value.stat.mzxid, value.data))
            )
        for number in range(4):
            if rng.random() < 0.3:
                await remove(zk, "/value")
            await make(zk, "/value")
            with suppress(NoNodeError):
                await zk.set("/value", f"{zk.session_id} {number}".encode())
            await asyncio.sleep(rng.uniform(0, 0.5))

    def check(history: History, facts: Facts) -> None:
        versions = history.versions("/value")
        states = [(v.mzxid, v.data) if v.there else None for v in versions]
        require_a_way_through([None, *states], told)

    campaign(seed, work, check)


@seeds
def test_children_watch(seed: int) -> None:
    """The lists that are told were there, in this order, and the last one is never missed."""
    told: Told = {}

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        if zk not in told:
            mine = told[zk] = []
            ChildrenWatch(zk, "/set").start(mine.append)
        await make(zk, "/set")
        for _ in range(4):
            member = f"/set/{rng.choice('abcd')}"
            await (make if rng.random() < 0.5 else remove)(zk, member)
            await asyncio.sleep(rng.uniform(0, 0.5))

    def check(history: History, facts: Facts) -> None:
        changes = [(life.began, life.path, True) for life in history.lives("/set")]
        changes += [(x.ended, x.path, False) for x in history.lives("/set") if x.ended]
        names: set[str] = set()
        states: list[object] = [None, []]
        for _, path, came in sorted(changes):
            (names.add if came else names.discard)(path.rpartition("/")[2])
            states.append(sorted(names))
        require_a_way_through(states, told)

    campaign(seed, work, check)


# 1122: a function was cancelled while suspended, and its grace to clean up began at once.
@pytest.mark.parametrize("seed", [*range(SEEDS), 1122])
def test_dedup(seed: int) -> None:
    """One outcome is recorded for a key, everybody gets it, and guarded writes rise in tokens."""

    async def work(zk: Client, rng: Random, facts: Facts) -> None:
        # What is recorded is only told again, so from time to time there are new keys.
        age = asyncio.get_running_loop().time() // NEW_KEYS_S
        key = f"{age:.0f}{rng.choice('ab')}"
        facts.perhaps.append(key)
        await make(zk, f"/account-{key}")

        async def charge(attempt: Attempt) -> int:
            async with working_under(attempt._place.path, zk, rng, facts):
                for _ in range(2):
                    data = str(attempt.fencing_token).encode()
                    await attempt.multi([SetData(f"/account-{key}", data, -1)])
                    await asyncio.sleep(rng.uniform(0, 0.5))
            return attempt.fencing_token

        outcome = await Dedup(zk, journal=rng.random() < 0.8).run(key, charge, payload=key)
        facts.certain.append((key, outcome.value))

    def check(history: History, facts: Facts) -> None:
        for key in dict.fromkeys(facts.perhaps):
            written = [int(value) for value in history.values(f"/account-{key}") if value]
            assert written == sorted(written)
            told = {value for name, value in facts.certain if name == key}
            recorded = history.lives_of(f"/dedup/{key}/result")
            assert len(told) <= len(recorded) <= 1
            assert not told or told == {written[-1]}, "the outcome is the last attempt's"
            assert not [name for name in history.below(f"/dedup/{key}") if "lock-" in name]

    campaign(seed, work, check)
