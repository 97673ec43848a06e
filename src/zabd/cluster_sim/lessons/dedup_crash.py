"""The same request three times, its worker killed in the middle: one charge.

The first worker is killed right after the charge, before it could record the outcome. Nobody can
know from the ensemble alone whether the charge happened: its journal says "started". So the second
one asks the account, by the number of the order, and records what it learns. The third one is
answered from the record, though the leader was killed as well.
"""

import asyncio

from zabd.client import connect
from zabd.client.recipes import Dedup
from zabd.client.recipes.dedup import Attempt, Completed, NotExecuted, Previous
from zabd.cluster_sim.lessons.stage import Lesson, Stage, leader_and_followers
from zabd.cluster_sim.scenario import Scenario


async def experiment(stage: Stage, scenario: Scenario) -> None:
    """Kill a worker after its charge, and the leader after the answer."""
    leader, _ = await leader_and_followers(scenario)
    account: dict[str, int] = {}

    async def charge(attempt: Attempt) -> str:
        account["order-42"] = account.get("order-42", 0) + 1
        if attempt.attempt == 1:
            await asyncio.sleep(1)  # the answer is on its way
        return "charged"

    async def recover(_payload: object, previous: Previous) -> Completed[str] | NotExecuted:
        stage.say(f"attempt {previous.attempt} is in doubt: the account is asked")
        return Completed("charged, as the account says") if account else NotExecuted()

    async def handle(name: str) -> str:
        async with connect(scenario.hosts, timeout=2) as zk:
            dedup = Dedup(zk, on_in_doubt="recover", recover=recover)
            outcome = await dedup.run("order-42", charge)
            told = "replayed" if outcome.replayed else "executed"
            stage.say(f"{name}: {outcome.value}, {told}")
            return str(outcome.value)

    first = scenario.spawn("first", lambda: handle("first"))
    await scenario.until(lambda: account)
    first.kill()
    stage.say("first has charged, and is killed before it can record that")
    value = await scenario.spawn("second", lambda: handle("second")).result()
    leader.kill()
    stage.say(f"{leader.host.name}, the leader, is killed")
    again = await scenario.spawn("third", lambda: handle("third")).result()
    assert value == again
    stage.say(f"charges: {account['order-42']}")
    assert account == {"order-42": 1}


def run(stage: Stage) -> None:
    """One run."""
    stage.simulate(lambda scenario: experiment(stage, scenario))


LESSON = Lesson(
    "dedup-crash",
    "Deduplication across a crash",
    "A worker charges an account and is killed before it can record that it did. The request is "
    "delivered again, twice. How many charges are there, and what has to be asked to make it one?",
    run,
    "the second worker waits while the session of the dead one lives on in the ensemble",
)
