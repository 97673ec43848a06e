"""No client can make another one wait, whatever it does, or does not do any more.

There are no locks in the service: it orders writes and answers. A client that hangs in the middle,
holding a lock, with watches set and requests asked for, costs the others nothing. Who waits for
that lock waits by choice, and until the session expires at most.
"""

from zabd.client import connect
from zabd.client.recipes import Lock
from zabd.cluster_sim.lessons.stage import Lesson, Stage, leader_and_followers
from zabd.cluster_sim.scenario import Scenario

WRITES = 50
TIMEOUT_S = 4


async def experiment(stage: Stage, scenario: Scenario) -> None:
    """Measure writes of one client with and without one that hangs."""
    await leader_and_followers(scenario)
    holds: list[bool] = []

    async def hang() -> None:
        async with connect(scenario.hosts, timeout=TIMEOUT_S) as zk, Lock(zk, "/lock"):
            await zk.get("/a", watch=print)
            holds.append(True)
            while True:
                await zk.get("/a")

    async with connect(scenario.hosts) as zk:
        await zk.create("/a")

        async def slowest_ms() -> float:
            worst = 0.0
            for _ in range(WRITES):
                begun = scenario.loop.time()
                await zk.set("/a", b"")
                worst = max(worst, scenario.loop.time() - begun)
            return worst * 1000

        alone = await slowest_ms()
        stage.say(f"{WRITES} writes, the slowest took {alone:.1f} ms")
        stuck = scenario.spawn("stuck", hang)
        await scenario.until(lambda: holds)
        stuck.pause()
        stage.say("a client that holds a lock, has a watch and requests under way is stopped")
        beside = await slowest_ms()
        stage.say(f"{WRITES} writes, the slowest took {beside:.1f} ms")
        assert beside < 2 * alone
        begun = scenario.loop.time()
        async with Lock(zk, "/lock"):
            waited = scenario.loop.time() - begun
        stage.say(f"who wants that lock waits {waited:.1f} s: the session's {TIMEOUT_S} s, about")
        assert waited < 1.5 * TIMEOUT_S


def run(stage: Stage) -> None:
    """One run."""
    stage.simulate(lambda scenario: experiment(stage, scenario))


LESSON = Lesson(
    "wait-freedom",
    "A stuck client blocks nobody",
    "A client holds a lock, has a watch on the znode that everybody writes, and hangs. How much "
    "slower are the writes of the others? And who does wait?",
    run,
)
