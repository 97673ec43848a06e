"""Reads grow with the members, and writes pay for each of them.

Counted: what members say to each other, and what they sync, for 50 reads and for 50 writes, one
after the other, in ensembles of 3, 5 and 7. A read costs nothing between members, so each member
adds its own speed. A write is proposed to, acknowledged by and committed at every follower: three
messages for each, and one sync on each disk.
"""

import asyncio
from functools import partial

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import (
    Lesson,
    Stage,
    address,
    committed,
    leader_and_followers,
    listening,
)
from zabd.cluster_sim.scenario import Scenario

REQUESTS = 50
KINDS = ("Propose", "Ack", "Commit")


async def experiment(stage: Stage, scenario: Scenario) -> tuple[float, float]:
    """Messages between members for each read, and for each write."""
    leader, followers = await leader_and_followers(scenario)
    async with connect(address(followers[0])) as zk:
        await zk.create("/a", b"x")
        await scenario.until(lambda: all(committed(f) == committed(leader) for f in followers))
        await asyncio.sleep(0.05)
        said = listening(scenario)
        for _ in range(REQUESTS):
            await zk.get("/a")
        reads = sum(said[kind] for kind in KINDS)
        syncs = _syncs(scenario)
        for _ in range(REQUESTS):
            await zk.set("/a", b"x")
        await scenario.until(lambda: all(committed(f) == committed(leader) for f in followers))
        await asyncio.sleep(0.05)  # until the last acknowledgements and syncs are there
        writes = sum(said[kind] for kind in KINDS) - reads
        synced = _syncs(scenario) - syncs
    members = len(scenario.members)
    stage.say(
        f"{members} members: {reads / REQUESTS:.0f} messages for a read, {writes / REQUESTS:.1f} "
        f"messages and {synced / REQUESTS:.1f} syncs for a write"
    )
    assert leader.leading
    return reads / REQUESTS, writes / REQUESTS


def _syncs(scenario: Scenario) -> int:
    return sum("/data Sync log" in line for line in scenario.level.trace.lines)


def run(stage: Stage) -> None:
    """Three sizes."""
    for members in (3, 5, 7):
        reads, writes = stage.simulate(partial(experiment, stage), members=members)
        assert reads == 0
        assert abs(writes - 3 * (members - 1)) < 1


LESSON = Lesson(
    "reads-scale",
    "Reads scale with members, writes pay for them",
    "An ensemble grows from three members to seven. What becomes of the number of reads that it "
    "can answer in a second, and of the number of writes?",
    run,
)
