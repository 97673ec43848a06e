"""A read is answered by one member, from its memory: it may be old. `sync` bounds how old.

A follower that hears nothing for a moment does not know that there is something to hear. Its client
reads the old value after another client was told that the new one is written. A `sync` first goes
to the leader and back, through the same queue as the commits, so what is read after it is at least
as new as the moment at which the leader took it.
"""

import asyncio

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import Lesson, Stage, address, leader_and_followers, where
from zabd.cluster_sim.scenario import Scenario


async def experiment(stage: Stage, scenario: Scenario) -> None:
    """Delay one follower, write elsewhere, and read there."""
    leader, [near, far] = await leader_and_followers(scenario)
    async with connect(address(near)) as writer, connect(address(far)) as reader:
        await writer.create("/a", b"old")
        await reader.sync("/a")
        scenario.block(leader, far)
        await writer.set("/a", b"new")
        stage.say(f"the writer, at {near.host.name}, is told: done")
        read = (await reader.get("/a")).data
        stage.say(f"the reader, at {far.host.name}, reads {read!r}")
        stage.say(where(far))
        assert read == b"old"

        sync = asyncio.create_task(reader.sync("/a"))
        again = asyncio.create_task(reader.get("/a"))
        await asyncio.sleep(0.1)
        assert not sync.done()
        stage.say("the reader asks for a sync, and reads: no answer while the follower is behind")
        scenario.unblock(leader, far)
        await sync
        data = (await again).data
        stage.say(f"the path is open again: sync is answered, and the read says {data!r}")
        assert data == b"new"


def run(stage: Stage) -> None:
    """One run."""
    stage.simulate(lambda scenario: experiment(stage, scenario))


LESSON = Lesson(
    "stale-read",
    "A stale read, and sync",
    "A write is acknowledged to one client. Another client, at another member, reads afterwards. "
    "Must it see the write?",
    run,
    "the reader's triangles carry the zxid of each reply; compare them with the writer's",
)
