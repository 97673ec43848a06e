"""A controller that keeps its state in znodes has to read it all again after a failover.

Kafka's controller did: a new one listed the topics and read each partition's znode, one after the
other, before it could act, and set a watch on each, since what happens in between is not delivered
to anybody. The time grows with the number of partitions. A standby that follows the changes (a tree
cache here; in KRaft, a replica of the metadata log) has everything in memory already.
"""

import asyncio
from functools import partial

from zabd.client import Client, connect
from zabd.client.recipes import TreeCache
from zabd.cluster_sim.lessons.stage import Lesson, Stage, address, leader_and_followers, requests
from zabd.cluster_sim.scenario import Scenario


async def read_everything(zk: Client) -> int:
    """What a controller does that has just been elected; how many partitions there are."""
    names = await zk.get_children("/partitions")
    for name in names:
        await zk.get(f"/partitions/{name}", watch=lambda _: None)
    return len(names)


async def experiment(stage: Stage, scenario: Scenario, partitions: int) -> int:
    """Take over cold, and warm; the number of requests of the cold one."""
    _, [follower, _] = await leader_and_followers(scenario)
    async with connect(address(follower)) as cold, connect(address(follower)) as warm:
        await cold.create("/partitions")
        await asyncio.gather(*(cold.create(f"/partitions/{n:04}") for n in range(partitions)))
        async with TreeCache(warm, "/partitions") as cache:
            await scenario.until(lambda: len(cache.children("/partitions") or ()) == partitions)
            await asyncio.sleep(0.1)

            before, begun = requests(cold), scenario.loop.time()
            assert await read_everything(cold) == partitions
            took, asked = scenario.loop.time() - begun, requests(cold) - before

            idle = requests(warm)
            assert len(cache.children("/partitions") or ()) == partitions
            assert requests(warm) == idle
    stage.say(
        f"{partitions:>4} partitions: {asked:>4} requests and {took * 1000:4.0f} ms until a cold "
        f"controller can act; 0 and 0 for a warm one"
    )
    return asked


def run(stage: Stage) -> None:
    """Three sizes."""
    for partitions in (50, 100, 200):
        asked = stage.simulate(partial(experiment, stage, partitions=partitions))
        assert asked == partitions + 1


LESSON = Lesson(
    "controller",
    "A controller that must read everything again",
    "A controller keeps its state in 200 znodes, below one parent. It dies, and another one is "
    "elected. How many requests before the new one can decide anything? And with 200,000?",
    run,
)
