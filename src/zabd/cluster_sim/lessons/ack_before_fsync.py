"""An acknowledgement before the fsync is a promise that a power cut breaks.

The same run twice: the disks of both followers hang for a moment, a client writes, all machines
lose their power, and only the followers come back. As the code is, the write is not acknowledged.
With the mistake `ack-before-fsync` planted it is, and then it is gone. The checks of the simulator
are off in the second run, to see what follows; with them on, `D1` names the first early Ack.
"""

import asyncio
from contextlib import nullcontext
from functools import partial

from zabd.client import connect
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.lessons.stage import Lesson, Stage, address, leader_and_followers
from zabd.cluster_sim.mutants import MUTANTS
from zabd.cluster_sim.scenario import Scenario
from zabd.model.errors import ConnectionLossError

MISTAKE = MUTANTS["ack-before-fsync"]


async def experiment(stage: Stage, scenario: Scenario, *, checks: bool) -> tuple[bool, bool]:
    """Whether the write was acknowledged, and whether it is there after the power cut."""
    if not checks:
        vars(scenario.level)["report"] = lambda _error: None  # go on, to see what follows
    leader, followers = await leader_and_followers(scenario)
    async with connect(address(leader)) as zk:
        await zk.create("/a", b"old")
        await asyncio.sleep(0.1)
        for follower in followers:
            follower.stall_disks()
        write = asyncio.create_task(zk.set("/a", b"new"))
        await asyncio.sleep(0.02)
        acknowledged = write.done()
        stage.say(f"after 20 ms the client {'is told: done' if acknowledged else 'still waits'}")
        for member in scenario.members.values():
            member.power_off()
        stage.say("all three machines lose their power; the two followers come back")
        try:
            await write
        except ConnectionLossError as error:
            stage.say(f"the client is told: {type(error).__name__}")
    for follower in followers:
        follower.start()
    new = await scenario.leader()
    async with connect(address(new)) as zk:
        data = (await zk.get("/a")).data
    stage.say(f"/a is {data!r}")
    return acknowledged, data == b"new"


def run(stage: Stage) -> None:
    """As it is, with the mistake, and with the mistake and the checks."""
    for planted in (False, True):
        stage.say(f"-- {'acknowledged before the fsync' if planted else 'as it is'}")
        with MISTAKE.planted() if planted else nullcontext():
            acknowledged, there = stage.simulate(partial(experiment, stage, checks=not planted))
        assert acknowledged == planted
        assert not there
    stage.say("-- the same mistake, with the checks on")
    found = ""
    try:
        with MISTAKE.planted():
            stage.simulate(partial(experiment, stage, checks=True))
    except InvariantError as error:
        stage.say(f"{error.id} {error.name}: {error.rule}")
        found = error.id
    assert found == "D1", "nobody has seen the mistake"


LESSON = Lesson(
    "ack-before-fsync",
    "Acknowledging before the fsync",
    "Followers acknowledge a write when they have it in memory; the disk follows some milliseconds "
    "later. A quorum has acknowledged. What has to happen for the write to be lost?",
    run,
    "dashed, pale cells of a log are not durable: there are such in followers that have sent Ack",
)
