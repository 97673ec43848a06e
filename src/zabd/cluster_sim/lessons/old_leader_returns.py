"""An old leader returns with a write that nobody else has: it is told to cut it off.

Its log says 1:n, which has a place in a history that no longer exists: the others went on in epoch
2 from the write before. A zxid of an older epoch that the new leader does not have was never
committed, so it may go; and it has to go, or two members would hold two histories.
"""

import asyncio
from contextlib import suppress

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import (
    Lesson,
    Stage,
    address,
    all_serve,
    durable,
    leader_and_followers,
    told,
    where,
)
from zabd.cluster_sim.scenario import Scenario
from zabd.model.errors import ConnectionLossError


async def experiment(stage: Stage, scenario: Scenario) -> None:
    """A lonely proposal, a new epoch, and a return."""
    old, followers = await leader_and_followers(scenario)
    async with connect(address(old)) as zk:
        await zk.create("/a", b"agreed")
        agreed = durable(old)
        scenario.partition([old], followers)
        write = asyncio.create_task(zk.set("/a", b"lonely"))
        await scenario.until(lambda: durable(old) > agreed)
        lonely = durable(old)
        stage.say(where(old))
        old.power_off()
        stage.say(f"{old.host.name} loses its power")
        with suppress(ConnectionLossError):
            await write
    scenario.heal()
    new = await scenario.leader()
    async with connect(address(new)) as zk:
        await zk.set("/a", b"agreed later")
    stage.say(where(new))
    old.start()
    await all_serve(scenario)
    [trunc] = told(scenario, "trunc")
    stage.say(f"{old.host.name} is back, and its new leader says: {trunc}")
    await scenario.until(lambda: durable(old) == durable(new))
    stage.say(where(old))
    process = scenario.level.members[old.id].process
    assert process is not None
    assert process.seen is not None
    assert process.seen.history.chain_at(lonely) is None, "it is in the log no longer"


def run(stage: Stage) -> None:
    """One run."""
    stage.simulate(lambda scenario: experiment(stage, scenario))


LESSON = Lesson(
    "old-leader-returns",
    "The old leader returns",
    "A leader wrote 1:4 to its own disk and lost power. The others elected a leader of epoch 2 and "
    "went on. What becomes of 1:4 when the old leader comes back, and who decides?",
    run,
    "choose an event of the old leader before and after Trunc: the last cell of its log is gone",
)
