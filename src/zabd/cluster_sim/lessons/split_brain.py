"""A leader is cut off from the others, and does not know it yet: for a while there are two leaders.

The old one serves reads until it notices that its quorum is gone, but it cannot commit: a write
needs acknowledgements, and the others have promised a newer epoch and will give it none.
"""

import asyncio

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import (
    Lesson,
    Stage,
    address,
    all_serve,
    leader_and_followers,
    where,
)
from zabd.cluster_sim.scenario import MemberControl, Scenario
from zabd.model.errors import ConnectionLossError
from zabd.zab.messages import PeerState


async def experiment(stage: Stage, scenario: Scenario) -> None:
    """Cut the leader off, and ask both sides."""
    old, others = await leader_and_followers(scenario)
    async with connect(address(old), timeout=4) as here, connect(address(old), timeout=4) as other:
        await here.create("/a", b"before")
        scenario.partition([old], others)
        stage.say(f"{old.host.name} is cut off from the other members, not from its two clients")
        write = asyncio.create_task(here.set("/a", b"by the old leader"))
        read = (await other.get("/a")).data
        stage.say(f"one of them reads at {old.host.name}: /a is {read!r}; the other one writes")
        await scenario.until(lambda: any(leads(each, epoch=2) for each in others))
        assert leads(old, epoch=1)
        both = [where(each) for each in scenario.members.values() if leads(each)]
        stage.say("; ".join(both))
        try:
            await write
        except ConnectionLossError:
            stage.say(f"the write at {old.host.name} ends with ConnectionLossError")
        assert old.peer is not None
        assert not old.peer.serving
        stage.say(where(old))
    new = await scenario.leader()
    stage.say(where(new))
    assert new is not old
    async with connect(address(new)) as there:
        await there.set("/a", b"by the new leader")
        stage.say("the new leader's client writes: done")
    scenario.heal()
    await all_serve(scenario)
    async with connect(address(old)) as here:
        await here.sync("/a")
        data = (await here.get("/a")).data
    stage.say(f"healed: {where(old)}; /a is {data!r}")
    assert data == b"by the new leader"


def leads(member: MemberControl, epoch: int | None = None) -> bool:
    """Whether it takes itself for the leader, of this epoch if one is given."""
    peer = member.peer
    if peer is None or peer.state is not PeerState.LEADING:
        return False
    return epoch in {None, peer.current_epoch}


def run(stage: Stage) -> None:
    """One run, in which the checks of the simulator look for two leaders of one epoch."""
    stage.simulate(lambda scenario: experiment(stage, scenario))


LESSON = Lesson(
    "split-brain",
    "A split-brain attempt",
    "The leader of three is cut off from the other two, and clients write on both sides. Which "
    "writes succeed, and can both of them?",
    run,
    "the dashed lines above the old leader's lane are the cut; its role changes when it notices",
)
