"""A leader dies after a quorum has acknowledged, before anybody has heard its commit.

The acknowledgements reach the leader, it answers the client; then it is cut off and dies, so no
follower ever hears that the write is committed. It is there all the same: whoever is elected next
has it in its log, since the elected one has the longest log of a quorum.
"""

import asyncio

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import (
    Lesson,
    Stage,
    address,
    committed,
    durable,
    leader_and_followers,
    where,
)
from zabd.cluster_sim.scenario import Scenario


async def experiment(stage: Stage, scenario: Scenario) -> None:
    """Let the acknowledgements through, and hold back the commits."""
    leader, followers = await leader_and_followers(scenario)
    async with connect(address(leader)) as zk:
        await zk.create("/a", b"old")
        before = durable(leader)
        write = asyncio.create_task(zk.set("/a", b"new"))
        await scenario.until(lambda: all(durable(each) > before for each in followers))
        for follower in followers:
            scenario.block(leader, follower)  # no Commit leaves from here on
        await write
        stage.say("the client is told: done")
        for member in (leader, *followers):
            stage.say(where(member))
        zxid = durable(leader)
        assert committed(leader) == zxid
        assert all(committed(each) < zxid for each in followers)
        leader.power_off()
        stage.say(f"{leader.host.name} loses its power")
    new = await scenario.leader()
    async with connect(address(new)) as zk:
        data = (await zk.get("/a")).data
    stage.say(f"{where(new)}; /a is {data!r}")
    assert data == b"new"


def run(stage: Stage) -> None:
    """One run."""
    stage.simulate(lambda scenario: experiment(stage, scenario))


LESSON = Lesson(
    "crash-after-quorum",
    "The leader dies after a quorum has acknowledged",
    "The leader has answered the client and dies before it has told any follower that the write is "
    "committed. No living member knows that it is. Is it there afterwards?",
    run,
    "the first star of the write is on the old leader's lane, the next one in epoch 2",
)
