"""Two-phase commit alone: when the coordinator dies at the wrong moment, everybody waits.

Phase one is the same in both: tell all, hear that all (or a quorum) have it on disk. What differs
is what comes when the one who asked is gone. The participants of two-phase commit have promised to
do as the coordinator says, and nobody else can say it: they may neither commit nor give up. Zab's
recovery is the answer: a quorum elects a new leader, whose history decides.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import (
    Lesson,
    Stage,
    address,
    durable,
    leader_and_followers,
)
from zabd.cluster_sim.scenario import Scenario
from zabd.model.errors import ConnectionLossError

PORT = 9000
PARTICIPANTS = ("p1", "p2")
PATIENCE_S = 60.0
LONG_MS = 1_000


class Line(asyncio.Protocol):
    """One word at a time over a connection."""

    def __init__(self, hear: Callable[["Line", str], None]) -> None:
        self._hear = hear

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """The other side says something."""
        self._hear(self, data.decode())

    def say(self, word: str) -> None:
        """Say something to the other side."""
        self._transport.write(word.encode())


async def participate(states: dict[str, str], name: str) -> None:
    """A participant: prepared means that it may not decide alone any more."""

    def hear(line: Line, word: str) -> None:
        states[name] = "prepared" if word == "prepare?" else "committed"
        line.say("yes")

    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Line(hear), name, PORT)
    await asyncio.sleep(2 * PATIENCE_S)


async def coordinate(scenario: Scenario, answers: list[str]) -> None:
    """Ask all, and tell all once every one of them has said yes."""
    loop = asyncio.get_running_loop()
    lines = []
    for name in PARTICIPANTS:
        _, line = await loop.create_connection(
            lambda: Line(lambda _, word: answers.append(word)), name, PORT
        )
        lines.append(line)
        line.say("prepare?")
    await scenario.until(lambda: len(answers) == len(PARTICIPANTS))
    await asyncio.sleep(0.01)  # it writes its decision down
    for line in lines:
        line.say("commit")


async def two_phases(stage: Stage, scenario: Scenario) -> None:
    """Kill the coordinator between the answers and its word."""
    states = dict.fromkeys(PARTICIPANTS, "new")
    answers: list[str] = []
    for name in PARTICIPANTS:
        scenario.spawn(name, partial(participate, states, name))
    await asyncio.sleep(0.01)
    coordinator = scenario.spawn("coordinator", partial(coordinate, scenario, answers))
    await scenario.until(lambda: len(answers) == len(PARTICIPANTS))
    coordinator.kill()
    stage.say(f"the coordinator has heard {len(answers)} times yes, and is killed")
    await asyncio.sleep(PATIENCE_S)
    stage.say(f"a minute later: {' '.join(f'{name} {state}' for name, state in states.items())}")
    assert set(states.values()) == {"prepared"}


async def zab(stage: Stage, scenario: Scenario) -> None:
    """Kill a leader at the same moment."""
    leader, followers = await leader_and_followers(scenario)
    async with connect(address(leader)) as zk:
        await zk.create("/a", b"old")
        before = durable(leader)
        write = asyncio.create_task(zk.set("/a", b"new"))
        await scenario.until(lambda: all(durable(each) > before for each in followers))
        leader.kill()
        begun = scenario.loop.time()
        stage.say("both followers have the proposal on disk; the leader is killed")
        new = await scenario.leader()
        took_ms = (scenario.loop.time() - begun) * 1000
        stage.say(f"{took_ms:.0f} ms later {new.host.name} leads")
        with suppress(ConnectionLossError):
            await write
    assert took_ms < LONG_MS
    async with connect(address(new)) as zk:
        data = (await zk.get("/a")).data
    stage.say(f"it has decided: /a is {data!r}")
    assert data == b"new"


def run(stage: Stage) -> None:
    """The same death in both."""
    stage.say("-- two-phase commit")
    stage.simulate(partial(two_phases, stage))
    stage.say("-- Zab")
    stage.simulate(partial(zab, stage))


LESSON = Lesson(
    "two-phase-commit",
    "Two-phase commit, without a recovery",
    "A coordinator asks two participants whether they can commit; both say yes; it dies. What may "
    "they do now? And why can the followers of a dead Zab leader do more?",
    run,
    "the first picture ends in silence, the second one in an election",
)
