"""Containers and znodes with a time to live go on all members alike, whatever happens meanwhile."""

import asyncio

import pytest

from zabd.client import Client, connect
from zabd.cluster_sim import Scenario, simulate
from zabd.cluster_sim.whole_member import WholeProcess
from zabd.model.errors import ConnectionLossError

pytestmark = pytest.mark.sim

CHECK_S = 60
"""How often a leader looks for them."""

GONE = {"/idle", "/empty"}
KEPT = {"/renewed", "/full", "/full/child", "/parent", "/parent/child"}


async def plant(zk: Client) -> None:
    """One of each kind that goes and of each that stays."""
    for path in ("/idle", "/renewed", "/parent"):
        await zk.create(path, ttl=30)
    for path in ("/empty", "/full"):
        await zk.create(path, container=True)
        await zk.create(f"{path}/child")
    await zk.create("/parent/child")
    await zk.delete("/empty/child")


async def renew(zk: Client) -> None:
    """Set it again and again, over leader changes."""
    while True:
        try:
            await zk.set("/renewed", b"")
        except ConnectionLossError:
            continue  # setting it twice does no harm
        await asyncio.sleep(5)


def trees_of(scenario: Scenario) -> list[tuple[int, int, frozenset[str]]]:
    """Zxid, digest and paths of every member's tree."""
    found = []
    for member in scenario.level.members.values():
        process = member.process
        assert isinstance(process, WholeProcess)
        assert process.replica is not None
        tree = process.replica.tree
        found.append((tree.zxid, tree.digest, frozenset(tree.nodes)))
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_they_go_on_all_members_over_a_leader_change_and_a_restart_of_all(seed: int) -> None:
    """The leader dies when it is about to look; later the power fails for everybody."""

    async def experiment(scenario: Scenario) -> list[list[tuple[int, int, frozenset[str]]]]:
        async with connect(scenario.hosts, timeout=8) as zk:
            await plant(zk)
            renewing = asyncio.ensure_future(renew(zk))
            await asyncio.sleep(CHECK_S - 5)
            first = await scenario.leader()
            first.kill()
            await asyncio.sleep(10)
            first.start()
            await asyncio.sleep(CHECK_S + 20)
            before = trees_of(scenario)
            for member in scenario.members.values():
                member.power_off()
            await asyncio.sleep(1)
            for member in scenario.members.values():
                member.start()
            await scenario.leader()
            await asyncio.sleep(10)
            renewing.cancel()
            await asyncio.sleep(5)
            return [before, trees_of(scenario)]

    for trees in simulate(experiment, seed=seed):
        assert len({(zxid, digest) for zxid, digest, _ in trees}) == 1
        for _, _, paths in trees:
            assert paths >= KEPT
            assert not paths & GONE
