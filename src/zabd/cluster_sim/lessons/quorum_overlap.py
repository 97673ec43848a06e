"""Two quorums share a member: so whoever is elected has every committed write.

Three runs of five members. Each time a write is committed by another three of them, the other two
are cut off, and the leader dies. The next one needs the votes of three, at least one of which comes
from a member that has the write; and a member votes for nobody whose history is shorter than its
own. So the elected one has it, even where another member has the higher id.
"""

from functools import partial
from itertools import combinations

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import (
    Lesson,
    Stage,
    address,
    committed,
    durable,
    leader_and_followers,
)
from zabd.cluster_sim.scenario import Scenario

MEMBERS = 5
QUORUM = 3


async def experiment(stage: Stage, scenario: Scenario, pair: tuple[int, int]) -> None:
    """Let the leader commit with two followers, and the others be without the write."""
    leader, followers = await leader_and_followers(scenario)
    have = [followers[number] for number in pair]
    have_not = [each for each in followers if each not in have]
    async with connect(address(leader)) as zk:
        await zk.create("/a", b"old")
        await scenario.until(lambda: all(committed(f) == committed(leader) for f in followers))
        for each in have_not:
            scenario.block(leader, each)
        await zk.set("/a", b"new")
        zxid = committed(leader)
        assert all(durable(each) >= zxid for each in have)
        assert all(durable(each) < zxid for each in have_not)
        leader.kill()
    new = await scenario.leader()
    names = " ".join(each.host.name for each in have)
    stage.say(f"{zxid!r} is on {leader.host.name} {names}; next leader: {new.host.name}")
    assert new in have
    async with connect(address(new)) as zk:
        assert (await zk.get("/a")).data == b"new"


def run(stage: Stage) -> None:
    """First by counting, then by running."""
    quorums = list(combinations(range(1, MEMBERS + 1), QUORUM))
    shared = [set(one) & set(other) for one in quorums for other in quorums]
    stage.say(
        f"{len(quorums)} quorums of {QUORUM} among {MEMBERS}: any two share at least "
        f"{min(map(len, shared))} member"
    )
    assert min(map(len, shared)) == 1
    for pair in ((0, 1), (1, 2), (2, 3)):
        stage.simulate(partial(experiment, stage, pair=pair), members=MEMBERS)


LESSON = Lesson(
    "quorum-overlap",
    "Why the new leader has every committed write",
    "Five members. A write was committed by m5, m1 and m2; m3 and m4 have never heard of it, and "
    "m5 dies. Usually the highest id wins an election. Can m4 win this one?",
    run,
)
