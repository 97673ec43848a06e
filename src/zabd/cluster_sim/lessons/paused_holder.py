"""A lock is not a lock: its holder may be stopped, and wake up when somebody else has it.

The first holder looks (`held` is true), begins to write, and is stopped before the write leaves its
process: a long collection, a swapped-out machine, SIGSTOP. Its session expires, the second one gets
the lock and writes. Then the first one goes on from where it was. Nothing in any lock service can
prevent it; the resource can, by refusing a token that is lower than one it has seen.
"""

import asyncio
from functools import partial

from zabd.client import connect
from zabd.client.recipes import Lock
from zabd.cluster_sim.lessons.stage import Lesson, Stage, leader_and_followers
from zabd.cluster_sim.resource import Resource
from zabd.cluster_sim.scenario import Scenario
from zabd.model.zxid import Zxid


async def experiment(stage: Stage, scenario: Scenario, resource: Resource) -> None:
    """Stop a holder between its look and its write, for longer than its session."""
    await leader_and_followers(scenario)
    looked: list[str] = []

    async def work(name: str) -> None:
        async with connect(scenario.hosts, timeout=2) as zk, Lock(zk, "/lock") as lock:
            token = lock.fencing_token
            stage.say(f"{name} holds the lock, token {Zxid(token)!r}")
            assert lock.held
            looked.append(name)
            await asyncio.sleep(0.1)  # from the look to the write: the time to prepare it
            accepted = resource.write(token)
            stage.say(f"{name} writes: {'accepted' if accepted else 'refused'}")
            word = "still holds" if still_held(lock) else "has lost"
            stage.say(f"{name} looks again: it {word} the lock")

    first = scenario.spawn("first", partial(work, "first"))
    await scenario.until(lambda: looked)
    first.pause()
    stage.say("first is stopped")
    second = scenario.spawn("second", partial(work, "second"))
    await second.result()
    first.resume()
    stage.say("first goes on")
    await first.result()


def still_held(lock: Lock) -> bool:
    """What the local lease says, without asking anybody."""
    return lock.held


def run(stage: Stage) -> None:
    """Without a resource that looks at tokens, and with one."""
    for resource in (Resource(fenced=False), Resource()):
        stage.say(f"-- the resource {'refuses lower tokens' if resource.fenced else 'takes all'}")
        stage.simulate(partial(experiment, stage, resource=resource))
        assert (resource.late, resource.refused) == ((0, 1) if resource.fenced else (1, 0))


LESSON = Lesson(
    "paused-holder",
    "A lock holder that was stopped, without and with fencing",
    "A process holds a lock, looks that it does, and is stopped for ten seconds before its next "
    "line. What happens when it goes on, and who could prevent it?",
    run,
    "thick bars below the lanes are the lock: they overlap nowhere, and yet the late write happens "
    "(shield); in the second picture it is refused",
)
