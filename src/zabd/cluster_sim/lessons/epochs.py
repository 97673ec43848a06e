"""Each leadership has a number of its own, the epoch, and every zxid begins with it.

Three leaders are killed one after the other. A write of a later leader has a greater zxid than any
of an earlier one, however many there were: that is what makes "who has the longer history" a
comparison of two numbers, and a leader of yesterday recognisable by anything it sends.
"""

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import Lesson, Stage, address, all_serve
from zabd.cluster_sim.scenario import Scenario
from zabd.model.zxid import Zxid


async def experiment(stage: Stage, scenario: Scenario) -> list[Zxid]:
    """Write under four leaders; the zxids."""
    zxids = []
    for writes in (5, 3, 1, 1):
        leader = await scenario.leader()
        async with connect(address(leader)) as zk:
            await zk.ensure_path("/a")
            for _ in range(writes):
                stat = await zk.set("/a", b"")
            zxids.append(Zxid(stat.mzxid))
            assert leader.peer is not None
            stage.say(
                f"{leader.host.name} leads epoch {leader.peer.current_epoch}, "
                f"its last write is {zxids[-1]!r}, as a number {stat.mzxid:#x}"
            )
        leader.kill()
        await scenario.leader()
        leader.start()
        await all_serve(scenario)
    return zxids


def run(stage: Stage) -> None:
    """One run."""
    zxids = stage.simulate(lambda scenario: experiment(stage, scenario))
    assert [zxid.epoch for zxid in zxids] == [1, 2, 3, 4]
    assert zxids == sorted(zxids)


LESSON = Lesson(
    "epochs",
    "Epochs",
    "The first leader did five writes, the second one. Which has the greater zxid, the last write "
    "of the first or the only one of the second, and why must it?",
    run,
)
