"""Random faults against the recipes; what must hold is read from the servers' log.

One seed is one run, and every run of it is the same.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import (
    LOSE_REPLY,
    LOSE_REQUEST,
    PASS,
    Connection,
    ScriptedEnsemble,
)

from zabd.client import Client, connect
from zabd.client.identity import Identity
from zabd.client.recipes import Lock
from zabd.client.recipes.dedup import Attempt, Dedup, DedupError, Outcome
from zabd.model.errors import ZabdError
from zabd.model.ops import Create, CreateTtl, Delete, Multi, Op, Ping

KEYS = ["a", "b", "c"]
IDENTITY = Identity("host", 7)


class Weather:
    """Draws faults: lost requests and replies, lag, cuts, outages, expiries."""

    def __init__(self, loop: FastLoop, ensemble: ScriptedEnsemble, rng: Random) -> None:
        self.loop = loop
        self.ensemble = ensemble
        self.rng = rng
        self.stormy = True
        ensemble.faults.append(self.strike)

    def strike(self, connection: Connection, op: Op) -> str:
        """Decide about one request."""
        chance = 0.03 if isinstance(op, Multi | Create | Delete) else 0.01
        if not self.stormy or isinstance(op, Ping) or self.rng.random() > chance:
            return PASS
        return self.rng.choice([LOSE_REPLY, LOSE_REQUEST])

    async def blow(self, clients: list[Client]) -> None:
        """Make trouble until it is called off."""
        while self.stormy:
            await asyncio.sleep(self.rng.uniform(0.05, 2))
            server = self.rng.choice(self.ensemble.servers)
            match self.rng.randrange(8):
                case 0 | 1:
                    self.ensemble.cut(server)
                case 2 | 3:
                    server.lagging = not server.lagging
                case 4:
                    self.ensemble.shut(server)
                    self.loop.call_later(self.rng.uniform(0.1, 6), self.ensemble.open, server)
                case 5:
                    victim = self.rng.choice(clients).session_id
                    if victim in self.ensemble.sessions:
                        self.ensemble.expire(victim)
                case 6:
                    self.loop.sleep_machine(self.rng.choice([0.5, 3, 14]))
                case _:
                    pass

    def clear_up(self) -> None:
        """Faults stop; everybody must get on with it."""
        self.stormy = False
        for server in self.ensemble.servers:
            server.lagging = False
            self.ensemble.catch_up(server)
            self.ensemble.open(server)


async def storm(loop: FastLoop, seed: int) -> None:
    """Callers, cancellations and faults on a few keys and one lock; then the checks."""
    rng = Random(seed)
    ensemble = ScriptedEnsemble(loop, rng.choice([1, 3]))
    clients = [
        connect(ensemble.hosts, timeout=12.0, rng=Random(rng.random()), identity=IDENTITY)
        for _ in range(rng.randrange(1, 5))
    ]
    for zk in clients:
        await zk.start()
    weather = Weather(loop, ensemble, rng)
    wind = asyncio.ensure_future(weather.blow(clients))
    outcomes: list[tuple[str, Outcome[object]]] = []
    holders: Counter[str] = Counter()

    async def call(zk: Client, key: str) -> None:
        async def work(ctx: Attempt) -> object:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(rng.uniform(0, 1.5))
            if rng.random() < 0.1:
                raise OSError("the downstream broke")
            if journal and rng.random() < 0.1:
                await ctx.checkpoint("here")
            return ctx.fencing_token

        journal = rng.random() < 0.8
        dedup = Dedup(zk, journal=journal, retry_on_lost=rng.random() < 0.5)
        with suppress(DedupError, OSError):
            outcomes.append((key, await dedup.run(key, work, payload=key)))

    async def lock(zk: Client) -> None:
        with suppress(ZabdError):
            async with Lock(zk, "/lock") as lock:
                await asyncio.sleep(rng.uniform(0, 0.5))
                await lock.verify()
                holders[f"{lock.fencing_token}"] += 1

    calls = []
    for _ in range(rng.randrange(5, 25)):
        zk = rng.choice(clients)
        work = lock(zk) if rng.random() < 0.25 else call(zk, rng.choice(KEYS))
        calls.append(asyncio.ensure_future(work))
        await asyncio.sleep(rng.uniform(0, 1))
        if rng.random() < 0.15:
            rng.choice(calls).cancel()
    await asyncio.sleep(rng.uniform(0, 10))
    weather.clear_up()
    await wind
    await asyncio.wait(calls, timeout=300)
    assert all(task.done() for task in calls), "progress once the faults have stopped"
    for task in calls:
        assert task.cancelled() or task.exception() is None, repr(task.exception())
    check_log(ensemble, outcomes)
    await wait_until(lambda: not waiting(ensemble), 60)  # P8: no znode left behind
    for key in KEYS:
        last = await Dedup(clients[0], retry_on_lost=True).run(key, nothing, payload=key)
        assert last.replayed or key not in {name for name, _ in outcomes}
    await asyncio.gather(*(zk.close() for zk in clients))
    assert not [path for path, node in ensemble.leader.nodes.items() if node.owner]


async def nothing(_: Attempt) -> None:
    """A function without effects."""


def waiting(ensemble: ScriptedEnsemble) -> list[str]:
    """The lock znodes on the leader."""
    return [path for path in ensemble.leader.nodes if "lock-" in path or "__lock__" in path]


def check_log(ensemble: ScriptedEnsemble, outcomes: list[tuple[str, Outcome[object]]]) -> None:
    """P1 and P2 from the log: guarded by the lowest lock, and recorded once for each key."""
    recorded: dict[str, Outcome[object]] = {}
    results: Counter[str] = Counter()
    for _, _, session, ops in ensemble.log:
        for op in ops:
            if isinstance(op, Create | CreateTtl) and op.path.endswith("/result"):
                results[op.path] += 1
                assert session
    assert all(count == 1 for count in results.values()), results
    assert len(results) >= len({key for key, _ in outcomes}), "the log is read with open eyes"
    for key, outcome in outcomes:
        first = recorded.setdefault(key, outcome)
        assert outcome.value == first.value == outcome.record.value
        assert outcome.record.attempt_id == first.record.attempt_id


@pytest.mark.parametrize("seed", range(60))
def test_recipes_stay_right_in_any_weather(seed: int) -> None:
    """One recorded outcome for a key, the same one for every caller, and no znode left behind."""
    run(lambda loop: storm(loop, seed))
