"""Campaigns: a recipe used by several processes on a simulated ensemble, while things go wrong.

One seed is one run of one recipe: workers that use it, are cancelled, cut off, stopped past their
session and killed; members, leaders among them, that are cut off, killed and stopped. Then calm,
and every worker has to come to its end. What must hold is read from the servers' log (`History`),
not from what the workers say: first of all, that a session which goes on holds nothing once its
worker is idle, and that nothing is left when the sessions are over.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

from zabd.client import Client, connect
from zabd.cluster_sim import Process, Scenario, simulate
from zabd.cluster_sim.replica_checks import ReplicaChecker, Version
from zabd.model.errors import ZabdError
from zabd.model.paths import parent_of

SESSION_S = 2.0
WORKERS = 3
SEEDS = int(os.environ.get("RECIPE_SEEDS", "3"))
SETTLED_S = 10.0  # of calm, after which a recipe has removed what its cancelled users left behind


class Life(NamedTuple):
    """A znode from its creation to its deletion, as zxids; `ended` is 0 while it lives."""

    path: str
    began: int
    ended: int
    data: bytes | None


class History:
    """What the servers' log says."""

    def __init__(self, checker: ReplicaChecker) -> None:
        self._checker = checker

    def paths(self) -> list[str]:
        """All znodes there are now, but for the service's own."""
        return sorted(p for p in self._checker.tree.nodes if not p.startswith("/zookeeper"))

    def below(self, parent: str) -> list[str]:
        """The names of the znodes right below, now."""
        prefix = parent.rstrip("/") + "/"
        return [p[len(prefix) :] for p in self.paths() if p.startswith(prefix) and p != parent]

    def ephemerals(self) -> list[str]:
        """The ephemerals there are now."""
        return [path for path, node in self._checker.tree.nodes.items() if node.owner > 0]

    def owned_by(self, session_id: int, receipts: str) -> list[str]:
        """The ephemerals that a session has now, but for those right below `receipts`."""
        return [
            path
            for path, node in self._checker.tree.nodes.items()
            if node.owner == session_id and parent_of(path) != receipts
        ]

    def data(self, path: str) -> bytes | None:
        """What a znode holds now."""
        node = self._checker.tree.get(path)
        return None if node is None else node.data

    def values(self, path: str) -> list[bytes | None]:
        """All that a znode ever held, in order."""
        return [version.data for version in self._checker._paths.get(path, []) if version.there]

    def at(self, path: str, zxid: int) -> Version:
        """What a path was at that zxid."""
        return self._checker.at(path, zxid)

    def versions(self, path: str) -> list[Version]:
        """All that a path ever was, in order; it began with no znode."""
        return self._checker._paths.get(path, [])

    def lives(self, under: str) -> list[Life]:
        """Every life of every znode below a path, in the order of their beginnings."""
        prefix = under.rstrip("/") + "/"
        paths = [path for path in self._checker._paths if path.startswith(prefix)]
        lives = [life for path in paths for life in self.lives_of(path)]
        return sorted(lives, key=lambda life: life.began)

    def lives_of(self, path: str) -> list[Life]:
        """Every life of one znode, in order."""
        lives = []
        began, data = 0, None
        for version in self.versions(path):
            if version.there and not began:
                began, data = version.zxid, version.data
            if not version.there and began:
                lives.append(Life(path, began, version.zxid, data))
                began = 0
        return [*lives, Life(path, began, 0, data)] if began else lives


@dataclass
class Facts:
    """What workers note for the checks, in shared memory that no fault reaches."""

    seed: int
    history: History
    receipts: str = ""  # below which a session has a receipt for as long as it lives
    alive: set[str] | None = None  # the workers that are left, once there are no more faults
    idle: set[str] = field(default_factory=set)  # the workers that have come to their end
    left: list[str] = field(default_factory=list)  # by workers that are idle, in sessions that live
    certain: list[object] = field(default_factory=list)  # certainly done
    perhaps: list[object] = field(default_factory=list)  # perhaps done
    taken: list[object] = field(default_factory=list)  # handed out
    consumed: list[object] = field(default_factory=list)  # certainly done with
    done: int = 0


Work = Callable[[Client, Random, Facts], Awaitable[None]]
Check = Callable[[History, Facts], None]


async def worker(hosts: str, name: str, work: Work, facts: Facts, rounds: int) -> None:
    """Use the recipe so many times; now and then be cancelled in the middle."""
    rng = Random(f"{facts.seed} {name}")
    async with connect(hosts, timeout=SESSION_S, connect_timeout=120) as zk:
        for _ in range(rounds):
            task = asyncio.ensure_future(work(zk, rng, facts))
            if rng.random() < 0.25:
                asyncio.get_running_loop().call_later(rng.uniform(0, 3), task.cancel)
            await asyncio.wait([task])
            with suppress(asyncio.CancelledError, TimeoutError, ZabdError):
                task.result()
                facts.done += 1
            await asyncio.sleep(rng.uniform(0, 0.5))
        facts.idle.add(name)
        while facts.alive is None or not facts.alive <= facts.idle:  # noqa: ASYNC110 - of many loops
            await asyncio.sleep(0.5)
        await asyncio.sleep(SETTLED_S)
        facts.left += facts.history.owned_by(zk.session_id, facts.receipts)


async def trouble(scenario: Scenario, workers: list[Process[None]], seconds: float) -> None:
    """Faults for a while, then none: everything is up, and nothing is cut."""
    rng, loop = scenario.rng, asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(rng.uniform(0.1, 1.5))
        member = rng.choice(list(scenario.members.values()))
        victim = rng.choice(workers)
        match rng.randrange(8):
            case 0 | 1 | 2:
                scenario.cut(victim)
            case 3:
                scenario.cut(member)
            case 4:
                victim.pause()
                loop.call_later(rng.choice([0.3, 1.0, 3.0]), victim.resume)
            case 5:
                member.kill()
                loop.call_later(rng.uniform(0.1, 2), member.start)
            case 6:
                member.pause()
                loop.call_later(rng.uniform(0.1, 2), member.resume)
            case _:
                scenario.partition([victim, member], [*(set(scenario.members.values()) - {member})])
                loop.call_later(rng.uniform(0.1, 2), scenario.heal)
    await asyncio.sleep(3)


def campaign(
    seed: int,
    work: Work,
    check: Check,
    *,
    rounds: int = 6,
    seconds: float = 15,
    needs_success: bool = True,
    receipts: str = "",
) -> Facts:
    """Run one seed, and the checks at its end."""

    async def experiment(scenario: Scenario) -> Facts:
        history = History(scenario.level.checker)
        facts = Facts(seed, history, receipts)
        await scenario.leader()
        names = [f"worker-{number}" for number in range(WORKERS)]
        workers = [
            scenario.spawn(name, partial(worker, scenario.hosts, name, work, facts, rounds))
            for name in names
        ]
        await trouble(scenario, workers, seconds)
        if scenario.rng.random() < 0.3:
            workers.pop().kill()
        facts.alive = set(names[: len(workers)])
        async with asyncio.timeout(300):
            for process in workers:
                await process.result()
        await asyncio.sleep(3 * SESSION_S)
        assert not facts.left, "a session holds what its worker has no use for"
        assert not history.ephemerals(), "sessions are over, and so must be what they held"
        assert facts.done or not needs_success, "a campaign in which nothing succeeds says nothing"
        check(history, facts)
        return facts

    return simulate(experiment, seed=seed)
