"""Observers hear everything and decide nothing.

Three voters and two observers. With both observers gone everything goes on; with two voters gone
nothing is written any more, though three of five members run: observers are no part of a quorum.
"""

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import Lesson, Stage, address, all_serve, leader_and_followers
from zabd.cluster_sim.scenario import Scenario
from zabd.model.errors import ConnectionLossError


async def experiment(stage: Stage, scenario: Scenario) -> None:
    """Lose the observers, get them back, lose two voters."""
    leader, others = await leader_and_followers(scenario)
    voters, observers = others[:2], others[2:]
    names = " ".join(each.host.name for each in observers)
    async with connect(address(observers[0])) as zk:
        await zk.create("/a", b"1")
        assert (await zk.get("/a")).data == b"1"
    stage.say(f"a client of {observers[0].host.name}, an observer, writes and reads")
    for observer in observers:
        observer.kill()
    async with connect(address(leader)) as zk:
        await zk.set("/a", b"2")
        stage.say(f"without the observers {names}: a write is done")
        for observer in observers:
            observer.start()
        await all_serve(scenario)
        for voter in voters:
            voter.kill()
        stage.say(f"without the voters {' '.join(each.host.name for each in voters)}:")
        try:
            await zk.set("/a", b"3")
        except ConnectionLossError:
            stage.say("  a write ends with ConnectionLossError")
        else:
            raise AssertionError("one voter of three has committed something")
    running = [member for member in scenario.members.values() if member.up]
    await scenario.until(lambda: not any(each.peer and each.peer.serving for each in running))
    stage.say(f"  and none of the {len(running)} members that run serves")
    voters[0].start()
    async with connect(address(observers[1]), connect_timeout=30) as zk:
        await zk.sync("/a")
        stage.say(f"with one voter back: /a is {(await zk.get('/a')).data!r}")


def run(stage: Stage) -> None:
    """One run."""
    stage.simulate(lambda scenario: experiment(stage, scenario), observers=2)


LESSON = Lesson(
    "observers",
    "Observers",
    "Three voters and two observers run. Which loss stops writes: that of both observers, or that "
    "of two voters?",
    run,
)
