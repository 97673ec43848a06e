"""Two ways to catch up: what was missed (Diff), or everything (Snap).

A member that was away for a few writes gets those. One whose disk was replaced has no place in the
leader's history at all: it is sent a snapshot, and what has been written since.
"""

import asyncio

from zabd.client import connect
from zabd.cluster_sim.core_level import short_tails
from zabd.cluster_sim.lessons.stage import (
    Lesson,
    Stage,
    address,
    all_serve,
    leader_and_followers,
    told,
    where,
)
from zabd.cluster_sim.scenario import Scenario

BIG = 30_000  # bytes of a write: three fill a file of the log here, 64 KiB in place of 32 MiB
SHORT_TAIL = 8  # batches in memory, in place of 4,096, so that little has to be written here


async def experiment(stage: Stage, scenario: Scenario) -> None:
    """Let a member be away for some writes, then lose its disks."""
    leader, [first, second] = await leader_and_followers(scenario)
    async with connect(address(leader)) as zk:
        await zk.create("/a")
        first.kill()
        for number in range(20):
            await zk.set("/a", b"%d" % number)
        known = len(told(scenario, "diff"))
        first.start()
        await all_serve(scenario)
        await scenario.until(lambda: _same(first.peer, leader.peer))
        [diff] = told(scenario, "diff")[known:]
        stage.say(f"{first.host.name} was away for 20 writes: {diff}")
        stage.say(where(first))

        second.kill()
        scenario.level.members[second.id].lose_disks()
        stage.say(f"{second.host.name} is down, and gets new, empty disks")
        for number in range(8):  # old snapshots are purged, and the log before them
            leader.fault("snapshot")
            await zk.set("/a", b"%d" % number * BIG)
            await asyncio.sleep(0.5)
        second.start()
        await all_serve(scenario)
        await scenario.until(lambda: _same(second.peer, leader.peer))
        [snap] = told(scenario, "snap")
        stage.say(f"{second.host.name} is back: {snap}")
        stage.say(where(second))


def _same(one: object, other: object) -> bool:
    return getattr(one, "committed_zxid", 0) == getattr(other, "committed_zxid", 1)


def run(stage: Stage) -> None:
    """One run."""
    with short_tails(SHORT_TAIL):
        stage.simulate(lambda scenario: experiment(stage, scenario))


LESSON = Lesson(
    "diff-and-snap",
    "Catching up: DIFF and SNAP",
    "One follower was down for 20 writes, another one has lost its disk. What does the leader send "
    "to each?",
    run,
)
