"""Replaying a log over a snapshot that already holds a part of it changes nothing.

ZooKeeper's snapshots are fuzzy: the walk over the tree takes time, and what is walked last is newer
than what is walked first. zabd's are exact, the state at one zxid. Both rest on the same two facts:
a txn says what is so afterwards ("the version is 7"), not what to do ("one more"), and what stands
at or below the tree's zxid is skipped. Here a member restarts from a snapshot taken while writes
went on; then the log is replayed over its end once more, and over a mixture of two moments.
"""

import asyncio
from typing import cast

from zabd.client import connect
from zabd.cluster_sim.lessons.stage import Lesson, Stage, address, all_serve, leader_and_followers
from zabd.cluster_sim.restored_trees import difference
from zabd.cluster_sim.scenario import Scenario
from zabd.cluster_sim.whole_member import WholeProcess
from zabd.model.zxid import Zxid
from zabd.replica.rebuild import apply_batch
from zabd.zab.log import Batch
from zabd.znode_tree import ZnodeTree

WRITES = 40


async def experiment(stage: Stage, scenario: Scenario) -> list[Batch]:
    """Snapshot, go on writing, kill, start; everything that was committed."""
    leader, [follower, _] = await leader_and_followers(scenario)
    async with connect(address(leader)) as zk:
        for path in ("/a", "/b"):
            await zk.create(path)
        for number in range(WRITES):
            if number == WRITES // 2:
                follower.fault("snapshot")
            await asyncio.gather(zk.set("/a", b"%d" % number), zk.set("/b", b"%d" % number))
    follower.kill()
    stage.say(f"{follower.host.name} took a snapshot during {2 * WRITES} writes, and is killed")
    follower.start()
    await all_serve(scenario)
    checker = scenario.level.checker
    process = cast("WholeProcess", scenario.level.members[follower.id].process)
    assert process.replica is not None
    restored = process.replica.tree
    assert not difference(restored, checker.tree)
    stage.say(f"it is back from snapshot and log: digest {restored.digest:016x}, as everywhere")
    return list(checker.batches)


def rebuilt(batches: list[Batch]) -> ZnodeTree:
    """The tree that these batches make."""
    tree = ZnodeTree()
    for batch in batches:
        apply_batch(tree, batch)
    return tree


def run(stage: Stage) -> None:
    """A restart, a replay of what is there, and a replay over a mixture."""
    batches = stage.simulate(lambda scenario: experiment(stage, scenario))
    whole, again = rebuilt(batches), rebuilt(batches)
    for batch in batches:
        apply_batch(again, batch)
    assert not difference(whole, again)
    stage.say(f"{len(batches)} batches replayed over their own end: no difference")

    early = len(batches) // 2
    mixed, versions = rebuilt(batches[:early]), []
    versions.append((mixed.nodes["/a"].version, mixed.nodes["/b"].version))
    mixed.nodes["/a"] = rebuilt(batches).nodes["/a"]  # as a walk that came by later
    versions.append((mixed.nodes["/a"].version, mixed.nodes["/b"].version))
    stage.say(
        f"at {Zxid(mixed.zxid)!r} the versions of /a and /b are {versions[0]}; "
        f"a fuzzy walk finds {versions[1]}, which never was"
    )
    assert versions[0] != versions[1]
    for batch in batches[early:]:
        apply_batch(mixed, batch)
    assert not difference(whole, mixed)
    stage.say(
        f"the log from there on, over that: no difference, both are at {whole.nodes['/a'].version}"
    )
    counted = versions[1][0] + whole.nodes["/a"].version - versions[0][0]
    stage.say(f"had the log said 'one more' instead, /a would be at {counted}")
    assert counted > whole.nodes["/a"].version


LESSON = Lesson(
    "replay",
    "Snapshots, fuzzy or exact, and replay",
    "A snapshot was taken while writes went on, so some znodes in it are newer than others. The "
    "log is replayed from the moment at which the snapshot began. Are some writes done twice?",
    run,
)
