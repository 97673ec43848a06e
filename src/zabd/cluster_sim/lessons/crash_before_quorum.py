"""A leader dies before a quorum has acknowledged: the client cannot know, and both ends happen.

Two runs. In the first the proposal has reached nobody but the leader: it is lost. In the second it
has reached the disks of the followers, whose acknowledgements are still under way: it survives,
though nobody was ever told that it succeeded.
"""

import asyncio
from functools import partial

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import (
    Lesson,
    Stage,
    address,
    durable,
    leader_and_followers,
    where,
)
from zabd.cluster_sim.scenario import Scenario
from zabd.model.errors import ConnectionLossError


async def experiment(stage: Stage, scenario: Scenario, *, reaches_followers: bool) -> bytes:
    """Stop one direction of the links, write, kill the leader: what does the new leader have?"""
    leader, followers = await leader_and_followers(scenario)
    async with connect(address(leader)) as zk:
        await zk.create("/a", b"old")
        for follower in followers:
            if reaches_followers:
                scenario.block(follower, leader)  # proposals arrive, acknowledgements do not
            else:
                scenario.block(leader, follower)
        before = durable(leader)
        write = asyncio.create_task(zk.set("/a", b"new"))
        await scenario.until(lambda: durable(leader) > before)
        if reaches_followers:
            await scenario.until(lambda: all(durable(each) > before for each in followers))
        for member in (leader, *followers):
            stage.say(where(member))
        leader.kill()
        stage.say(f"{leader.host.name} is killed")
        unknown = False
        try:
            await write
        except ConnectionLossError as error:
            stage.say(f"the client is told: {type(error).__name__}, {error.maybe_applied=}")
            unknown = error.maybe_applied
        assert unknown
    new = await scenario.leader()
    async with connect(address(new)) as zk:
        data = (await zk.get("/a")).data
    stage.say(f"{where(new)}; /a is {data!r}")
    return data or b""


def run(stage: Stage) -> None:
    """Both endings of the same answer."""
    stage.say("-- the proposal is on the leader's disk alone")
    lost = stage.simulate(partial(experiment, stage, reaches_followers=False))
    stage.say("-- the proposal is on every disk, no acknowledgement has arrived")
    kept = stage.simulate(partial(experiment, stage, reaches_followers=True))
    assert (lost, kept) == (b"old", b"new")


LESSON = Lesson(
    "crash-before-quorum",
    "The leader dies before a quorum has acknowledged",
    "The leader has a write on its disk and dies before it has heard a single acknowledgement. "
    "What is the client told, and is the write there afterwards?",
    run,
)
