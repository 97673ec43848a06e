"""Campaigns: a recipe used by several processes on a simulated ensemble, while things go wrong.

One seed is one run of one recipe. Its workers use it for as long as there is trouble, and trouble
lasts until the seed's faults have really happened: in every seed connections are cut, work is
cancelled, a session expires and the leader changes, and more is drawn (`CERTAIN`, `MORE`). Then
calm, and every worker has to come to its end. What must hold is read from the servers' log
(`History`), not from what the workers say: first of all, that a session which goes on holds nothing
once its worker is idle, and that nothing is left when the sessions are over.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from random import Random
from typing import Any, NamedTuple

from zabd.client import Client, connect
from zabd.cluster_sim import Process, Scenario, simulate
from zabd.cluster_sim.replica_checks import ReplicaChecker, Version
from zabd.cluster_sim.scenario import MemberControl
from zabd.model.errors import ZabdError
from zabd.model.paths import parent_of

SESSION_S = 2.0
WORKERS = 3
SEEDS = int(os.environ.get("RECIPE_SEEDS", "3"))
SETTLED_S = 10.0  # of calm, after which a recipe has removed what its cancelled users left behind

LOST_REPLY = "lost reply"

CERTAIN = ("cut", "cancel", "cancel", LOST_REPLY, LOST_REPLY, "session expiry", "leader goes")
"""What every seed has, in any order."""

MORE = (
    "cut",
    LOST_REPLY,
    "cancel",
    "long pause",
    "cut of a member",
    "parted with a member",
    "leader goes",
    # Those of the simulator, of whom it may be.
    "kill",
    "power cut",
    "pause",
    "slow member",
    "abdicate",
    "crash at a turn",
    "lonely proposal",
    "isolate the leader",
    "one-way partition",
    "flapping",
    "half-open",
    "stall",
    "one-way stall",
    "slow path",
    "disk stall",
    "reconnect storm",
    "slow reader",
)
"""Of what a seed has some."""

MORE_MIN, MORE_MAX = 2, 6
PATIENCE_S = 15.0  # an election, or the expiry of a session, takes less
WRITES_BETWEEN = 5  # at most, before the one whose reply is lost


class Life(NamedTuple):
    """A znode from its creation to its deletion, as zxids; `ended` is 0 while it lives."""

    path: str
    began: int
    ended: int
    data: bytes | None


class Ears:
    """Hears of a transaction when it is done, before anybody can be told."""

    def __init__(self) -> None:
        self.listener: Callable[[int], None] | None = None  # called with the session

    def before(self, session_id: int, _txn: object, _zxid: int) -> None:
        """It is about to be applied, for the first time anywhere."""
        if self.listener is not None:
            self.listener(session_id)

    def after(self) -> None:
        """It is applied."""


class History:
    """What the servers' log says."""

    def __init__(self, checker: ReplicaChecker) -> None:
        self._checker = checker
        self.ears = Ears()
        checker.recipes = self.ears  # type: ignore[assignment]  # what it calls is there

    def paths(self) -> list[str]:
        """All znodes there are now, but for the service's own."""
        return sorted(p for p in self._checker.tree.nodes if not p.startswith("/zookeeper"))

    @property
    def leaderships(self) -> int:
        """How many there were so far."""
        return self._checker.leaderships

    def was_given_up(self, path: str, session_id: int) -> bool:
        """Whether an ephemeral is gone though its session is not."""
        tree = self._checker.tree
        return path not in tree.nodes and session_id in tree.sessions

    def is_over(self) -> bool:
        """Whether nobody has a session any more, and nothing is left of one."""
        return not self._checker.tree.sessions and not self.ephemerals()

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
    calm: bool = False  # whether there are no more faults
    alive: set[str] | None = None  # the workers that are left, once there are no more faults
    at_work: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # what each one does
    doomed: set[str] = field(default_factory=set)  # those whose next work is to be cancelled
    idle: set[str] = field(default_factory=set)  # the workers that have come to their end
    left: list[str] = field(default_factory=list)  # by workers that are idle, in sessions that live
    early: list[str] = field(default_factory=list)  # given up while somebody worked under them
    certain: list[object] = field(default_factory=list)  # certainly done
    perhaps: list[object] = field(default_factory=list)  # perhaps done
    taken: list[object] = field(default_factory=list)  # handed out
    consumed: list[object] = field(default_factory=list)  # certainly done with
    done: int = 0
    cancelled: int = 0


Work = Callable[[Client, Random, Facts], Awaitable[None]]
Check = Callable[[History, Facts], None]


@asynccontextmanager
async def working_under(znode: str, zk: Client, rng: Random, facts: Facts) -> AsyncIterator[None]:
    """Work that takes its time to end. Its znode stands until it has, or goes with its session."""
    session_id = zk.session_id
    try:
        yield
    finally:
        try:
            await asyncio.sleep(rng.uniform(0, 0.2))
        finally:
            if facts.history.was_given_up(znode, session_id):
                facts.early.append(znode)


async def worker(hosts: str, name: str, work: Work, facts: Facts, rounds: int) -> None:
    """Use the recipe for as long as there is trouble, and so many times at least.

    Now and then be cancelled in the middle: of a few messages, of a wait.
    """
    rng = Random(f"{facts.seed} {name}")
    async with connect(hosts, timeout=SESSION_S, connect_timeout=120) as zk:
        while rounds > 0 or not facts.calm:
            rounds -= 1
            task = facts.at_work[name] = asyncio.ensure_future(work(zk, rng, facts))
            if name in facts.doomed or rng.random() < 0.25:
                facts.doomed.discard(name)
                soon = rng.choice((0.003, 0.03, 0.3, 3))
                asyncio.get_running_loop().call_later(rng.uniform(0, soon), task.cancel)
            await asyncio.wait([task])
            facts.cancelled += task.cancelled()
            with suppress(asyncio.CancelledError, TimeoutError, ZabdError):
                task.result()
                facts.done += 1
            await asyncio.sleep(rng.uniform(0, 0.5))
        facts.idle.add(name)
        while facts.alive is None or not facts.alive <= facts.idle:  # noqa: ASYNC110 - of many loops
            await asyncio.sleep(0.5)
        await asyncio.sleep(SESSION_S / 2)  # what was on its way has come
        await true_within(SETTLED_S, lambda: not left_behind(zk, facts))
        facts.left += left_behind(zk, facts)


def left_behind(zk: Client, facts: Facts) -> list[str]:
    """What an idle worker's session holds."""
    return facts.history.owned_by(zk.session_id, facts.receipts)


async def true_within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Wait until it holds, for so long at most; return whether it does. It may be an attempt."""
    end = asyncio.get_running_loop().time() + seconds
    while not (holds := condition()) and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.25)
    return holds


class Trouble:
    """What goes wrong in one seed."""

    def __init__(self, scenario: Scenario, workers: list[Process[None]], facts: Facts) -> None:
        self._scenario = scenario
        self._workers = workers
        self._facts = facts
        self._rng = scenario.rng
        self._own: dict[str, Callable[[], bool]] = {
            "cut": self._cut,
            "cancel": self._cancel,
            "long pause": self._pause_long,
            "cut of a member": self._cut_member,
            "parted with a member": self._part,
            "leader goes": self._leader_goes,
            "session expiry": self._expire,
        }

    async def happen(self) -> None:
        """Let everything happen, each thing really; then mend it all."""
        leaderships = self._facts.history.leaderships
        more = self._rng.choices(MORE, k=self._rng.randint(MORE_MIN, MORE_MAX))
        kinds = [*CERTAIN, *more]
        self._rng.shuffle(kinds)
        for kind in kinds:
            await asyncio.sleep(self._rng.uniform(0.1, 1.0))
            if kind == LOST_REPLY:
                await self._lose_a_reply()
            else:
                attempt = self._own.get(kind, partial(self._scenario.fault, kind))
                await true_within(PATIENCE_S, attempt)
        while not await true_within(PATIENCE_S, lambda: "session expiry" in self._scenario.faults):
            self._expire()  # some other fault has let it hear from somebody
        while not await true_within(1, lambda: bool(self._facts.cancelled)):
            self._cancel()
        self._mend()
        changed = await true_within(
            PATIENCE_S, lambda: self._facts.history.leaderships > leaderships
        )
        assert changed, "no leader changed in this seed"

    async def _lose_a_reply(self) -> None:
        """One of the next writes is done, and the connection breaks before that is heard of."""
        level, ears = self._scenario.level, self._facts.history.ears
        to_come = [self._rng.randrange(WRITES_BETWEEN)]

        def done(session_id: int) -> None:
            for worker in self._workers:
                if session_id in level.sessions_of(worker.host):
                    to_come[0] -= 1
                    if to_come[0] < 0:
                        ears.listener = None
                        level.schedule.after(0, partial(self._cut_off, worker))

        ears.listener = done
        lost = await true_within(PATIENCE_S, lambda: ears.listener is None)
        assert lost, "nobody writes"

    def _cut_off(self, worker: Process[None]) -> None:
        """Nothing that is under way arrives, either way."""
        for connection in list(self._scenario.level.network.connections.values()):
            if connection.touches(worker.host):
                connection.forward.cut(keep_bytes=0)
                connection.backward.cut(keep_bytes=0)

    def _mend(self) -> None:
        self._scenario.level.nemesis.stop()
        self._scenario.heal()
        for member in self._scenario.members.values():
            member.start()

    def _victim(self) -> Process[None]:
        return self._rng.choice(self._workers)

    def _member(self) -> MemberControl:
        return self._rng.choice(list(self._scenario.members.values()))

    def _cut(self) -> bool:
        victim = self._victim()
        connected = bool(self._scenario.level.sessions_of(victim.host))
        self._scenario.cut(victim)
        return connected

    def _cut_member(self) -> bool:
        self._scenario.cut(self._member())
        return True

    def _cancel(self) -> bool:
        victim = self._victim()
        task = self._facts.at_work.get(victim.name)
        if task is None or task.done():
            self._facts.doomed.add(victim.name)
        else:
            victim.loop.call_soon(task.cancel)
        return True

    def _pause_long(self) -> bool:
        """As long as, or longer than, a session lives."""
        victim = self._victim()
        victim.pause()
        self._later(self._rng.choice((0.3, 1.0, 3.0)), victim.resume)
        return True

    def _part(self) -> bool:
        """A worker and a member reach each other, and no other member."""
        victim, member = self._victim(), self._member()
        others = [other for other in self._scenario.members.values() if other is not member]
        self._scenario.partition([victim, member], others)
        self._later(self._rng.uniform(0.1, 2), partial(self._join, [victim, member], others))
        return True

    def _join(self, *groups: list[Any]) -> None:
        for one, other in product(*groups):
            self._scenario.unblock(one, other)
            self._scenario.unblock(other, one)

    def _leader_goes(self) -> bool:
        leaders = [one for one in self._scenario.members.values() if one.leading]
        how = self._rng.choice(("abdicate", "kill", "power cut"))
        return bool(leaders) and leaders[0].fault(how)

    def _expire(self) -> bool:
        return self._victim().fault("session expiry")

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        self._scenario.loop.call_later(seconds, undo)


def campaign(
    seed: int,
    work: Work,
    check: Check,
    *,
    rounds: int = 6,
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
        await Trouble(scenario, workers, facts).happen()
        if scenario.rng.random() < 0.3:
            workers.pop().kill()
        facts.alive = set(names[: len(workers)])
        facts.calm = True
        async with asyncio.timeout(300):
            for process in workers:
                await process.result()
        assert not facts.left, "a session holds what its worker has no use for"
        assert not facts.early, "somebody else may have come while one still worked"
        over = await true_within(3 * SESSION_S, history.is_over)
        assert over, "workers are gone, and so must be their sessions and what they held"
        assert facts.done or not needs_success, "a campaign in which nothing succeeds says nothing"
        check(history, facts)
        return facts

    return simulate(experiment, seed=seed)
