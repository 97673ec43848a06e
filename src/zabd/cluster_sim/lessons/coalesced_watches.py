"""A watch says that something has changed: not what to, and not how often.

It fires once. What changes between the event and the next read has no event of its own, so a client
that acts on events misses states; one that reads after each event ends with the last state. A znode
is a register, and no queue.
"""

import asyncio

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import Bell, Lesson, Stage, leader_and_followers, notifications
from zabd.cluster_sim.scenario import Scenario

WRITES = 10


async def experiment(stage: Stage, scenario: Scenario) -> None:
    """Write faster than the watcher looks."""
    await leader_and_followers(scenario)
    seen: list[int] = []

    async def watch() -> int:
        async with connect(scenario.hosts) as zk:
            while not seen or seen[-1] < WRITES:
                changed = Bell()
                result = await zk.get("/a", watch=changed.ring)
                seen.append(int(result.data or b"0"))
                if seen[-1] < WRITES:
                    await changed.wait()
                await asyncio.sleep(0.025)  # it has other things to do
            return notifications(zk)

    async with connect(scenario.hosts) as zk:
        await zk.create("/a", b"0")
        watcher = scenario.spawn("watcher", watch)
        await scenario.until(lambda: seen)
        for number in range(1, WRITES + 1):
            await zk.set("/a", b"%d" % number)
            await asyncio.sleep(0.01)
        events = await watcher.result()
    stage.say(f"{WRITES} writes, {events} events")
    stage.say(f"the watcher has read {' '.join(map(str, seen))}")
    assert events < WRITES
    assert seen == sorted(set(seen))
    assert seen[-1] == WRITES, "the last state is never missed"


def run(stage: Stage) -> None:
    """One run."""
    stage.simulate(lambda scenario: experiment(stage, scenario))


LESSON = Lesson(
    "coalesced-watches",
    "Two changes, one event",
    "A znode is written ten times, 10 ms apart. A watcher reads it after each event, and needs 25 "
    "ms before it looks again. How many events does it get, and which values does it see?",
    run,
    "diamonds on the watcher's lane, and the stars of the writes between them",
)
