"""A client never goes back in time, though it moves between members that are not equally far.

It tells each member that it connects to the last zxid it has seen. A member that is behind that
turns it away, and the client goes on to the next one.
"""

import asyncio

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import (
    Lesson,
    Stage,
    address,
    committed,
    leader_and_followers,
    where,
)
from zabd.cluster_sim.scenario import Scenario
from zabd.model.zxid import Zxid


async def experiment(stage: Stage, scenario: Scenario) -> None:
    """Move a client from a member that is up to date to one that is behind."""
    leader, [near, far, *_] = await leader_and_followers(scenario)
    seen: list[tuple[str, bytes | None]] = []

    async def read_all_the_time() -> None:
        async with connect(f"{address(near)},{address(far)}", timeout=4) as zk:
            while True:
                data = (await zk.get("/a")).data
                if not seen or seen[-1] != (zk.server, data):
                    seen.append((zk.server, data))
                    stage.say(
                        f"the reader, at {zk.server}, reads {data!r} ({Zxid(zk.last_zxid)!r})"
                    )
                await asyncio.sleep(0.01)

    async with connect(address(leader)) as writer:
        await writer.create("/a", b"old")
        reader = scenario.spawn("reader", read_all_the_time)
        scenario.partition([reader], [far])  # so that it begins with the other one
        await scenario.until(lambda: seen)
        scenario.heal()
        scenario.block(leader, far)
        await writer.set("/a", b"new")
        await scenario.until(lambda: seen[-1] == (address(near), b"new"))
        near.kill()
        stage.say(f"{near.host.name} is killed; {where(far)}")
        await asyncio.sleep(0.6)
        assert far.peer is not None
        assert far.peer.serving, "others may connect there"
        assert committed(far) < committed(leader)
        turned_away = _turned_away(scenario, reader.name)
        stage.say(f"connections to {far.host.name} that ended without a session: {turned_away}")
        assert turned_away
        scenario.unblock(leader, far)
        stage.say(f"the path from {leader.host.name} to {far.host.name} is open again")
        await scenario.until(lambda: seen[-1][0] == address(far))
    assert [data for _, data in seen] == [b"old", b"new", b"new"]


def _turned_away(scenario: Scenario, name: str) -> int:
    """How often a member has closed a connection of a client."""
    ends = [line for line in scenario.level.trace.lines if line.endswith((" finished", " reset"))]
    return sum(f"] {name} " in line for line in ends) - 1  # the one to the member that was killed


def run(stage: Stage) -> None:
    """One run."""
    stage.simulate(lambda scenario: experiment(stage, scenario), members=5)


LESSON = Lesson(
    "single-system-image",
    "Single system image",
    "A client has read the new value. Its member dies, and the other one that it knows has not "
    "heard of that value yet, and serves. What does the client read there?",
    run,
    "on the reader's lane: connections that end without a reply, then one that is answered",
)
