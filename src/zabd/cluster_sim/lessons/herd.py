"""Why a waiter watches the one before it, and not the list.

Twelve clients queue for a lock. In the first run each watches the children of the lock, so each
release wakes everybody, and everybody lists them again: about n^2 / 2 events and lists for n
holders. In the second one each watches the next lower znode: one event and one look for each.
"""

import asyncio
from functools import partial

from zabd.client import Client, connect
from zabd.cluster_sim.lessons.stage import Bell, Lesson, Stage, leader_and_followers, notifications
from zabd.cluster_sim.lessons.stage import requests as answered
from zabd.cluster_sim.scenario import Scenario

CLIENTS = 12


async def wait_in_a_herd(zk: Client, mine: str) -> None:
    """Look at all, and again whenever there is any change."""
    while True:
        changed = Bell()
        names = sorted(await zk.get_children("/lock", watch=changed.ring))
        if names[0] == mine:
            return
        await changed.wait()


async def wait_in_a_chain(zk: Client, mine: str) -> None:
    """Look at all once, and then at the one that goes before."""
    while True:
        names = sorted(await zk.get_children("/lock"))
        place = names.index(mine)
        if place == 0:
            return
        gone = Bell()
        if await zk.exists(f"/lock/{names[place - 1]}", watch=gone.ring):
            await gone.wait()


async def experiment(scenario: Scenario, *, chain: bool) -> tuple[int, int]:
    """How many events and answers it takes until each has held the lock once."""
    await leader_and_followers(scenario)
    held: list[str] = []
    counts: list[tuple[int, int]] = []
    ready: list[str] = []

    async def work(name: str) -> None:
        async with connect(scenario.hosts) as zk:
            path = await zk.create("/lock/n-", ephemeral=True, sequential=True)
            ready.append(name)
            await scenario.until(lambda: len(ready) == CLIENTS, every=0.01)
            before = answered(zk), notifications(zk)
            await (wait_in_a_chain if chain else wait_in_a_herd)(zk, path.rpartition("/")[2])
            held.append(path)
            await asyncio.sleep(0.05)
            counts.append((notifications(zk) - before[1], answered(zk) - before[0]))
            await zk.delete(path)

    async with connect(scenario.hosts) as zk:
        await zk.create("/lock")
    processes = [
        scenario.spawn(f"c{number}", partial(work, f"c{number}")) for number in range(CLIENTS)
    ]
    for process in processes:
        await process.result()
    assert held == sorted(held), "both are fair"
    assert len(held) == CLIENTS
    return sum(events for events, _ in counts), sum(answers for _, answers in counts)


def run(stage: Stage) -> None:
    """The same work in two ways."""
    herd = stage.simulate(partial(experiment, chain=False))
    stage.say(
        f"all watch the list:      {herd[0]:>3} events, {herd[1]:>3} reads for {CLIENTS} holders"
    )
    chain = stage.simulate(partial(experiment, chain=True))
    stage.say(f"each watches the one before: {chain[0]:>3} events, {chain[1]:>3} reads")
    assert chain[0] == CLIENTS - 1
    assert herd[0] == CLIENTS * (CLIENTS - 1) // 2
    assert herd[1] > 2 * chain[1]


LESSON = Lesson(
    "herd",
    "The herd, and the chain",
    "Twelve clients wait for one lock, one after the other. How many watch events are sent if "
    "everybody watches the list of waiters? And if everybody watches the one before?",
    run,
    "hollow triangles and diamonds: at each release all lanes wake, or one",
)
