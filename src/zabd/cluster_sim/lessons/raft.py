"""Zab beside Raft: what becomes of a write that the old leader left unfinished.

One follower has it on disk, nobody knows it to be committed, and the leader is dead. Both protocols
elect the one that has it. A leader in Raft may not commit it by counting copies: it first writes an
entry of its own term, and the old one is committed with that. A leader in Zab makes the history of
a quorum equal to its own before it does anything else (synchronisation), and that alone commits it,
under its old zxid: epoch 2 has begun, nothing was proposed in it, and 1:n is committed.
"""

import asyncio
from contextlib import suppress

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
from zabd.model.errors import ConnectionLossError


async def experiment(stage: Stage, scenario: Scenario) -> None:
    """Leave a write on one follower, let no client near, and look at the new leader."""
    leader, [first, second] = await leader_and_followers(scenario)
    async with connect(address(leader)) as zk:
        await zk.create("/a", b"old")
        scenario.block(leader, second)
        scenario.block(first, leader)
        before = durable(leader)
        write = asyncio.create_task(zk.set("/a", b"left behind"))
        await scenario.until(lambda: durable(first) > before)
        left = durable(first)
        leader.kill()
        stage.say(f"{left!r} is on {first.host.name} alone, and its leader is dead")
        stage.say(where(second))
        with suppress(ConnectionLossError):
            await write
    new = await scenario.leader()
    assert new is first, "the higher id has the shorter history"
    await scenario.until(lambda: committed(second) >= left)
    for member in (new, second):
        assert member.peer is not None
        assert member.peer.current_epoch == left.epoch + 1
        assert committed(member) == durable(member) == left
        stage.say(where(member))
    stage.say("committed by synchronisation: no client is there, nothing was proposed in epoch 2")
    async with connect(address(new)) as zk:
        stage.say(
            f"/a is {(await zk.get('/a')).data!r}; the first txn of epoch 2: {durable(new)!r}"
        )


def run(stage: Stage) -> None:
    """One run."""
    stage.simulate(lambda scenario: experiment(stage, scenario))


LESSON = Lesson(
    "raft",
    "Zab beside Raft",
    "A new leader finds in its log a write of its predecessor that only it has. In Raft it may not "
    "commit that until a write of its own term is there. What does a leader do in Zab?",
    run,
    "the cell of the old epoch gets its bar (committed) in the new epoch, before any cell of that",
)
