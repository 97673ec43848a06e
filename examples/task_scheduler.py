"""A task scheduler: tasks wait in order of priority, each is done by one worker, none is lost.

    python examples/task_scheduler.py HOSTS put 5 "resize image 7"
    python examples/task_scheduler.py HOSTS work

A worker claims a task and consumes it when it is done. If it dies in between the claim goes with
its session and another worker gets the task: so a task may begin twice. What it writes elsewhere
carries the claim's fencing token, or is idempotent, or goes through `Dedup` with the task's id.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from zabd.client import Client, connect
from zabd.client.recipes import Item, LockingQueue

TASKS = "/tasks"


async def schedule(zk: Client, task: str, *, priority: int = 100) -> None:
    """Let somebody do it; the lowest priority first, then the oldest."""
    await LockingQueue(zk, TASKS).put(task.encode(), priority=priority)


async def work(zk: Client, perform: Callable[[str, Item], Awaitable[object]]) -> None:
    """Do task after task until cancelled; one whose `perform` raises is left to another try."""
    queue = LockingQueue(zk, TASKS)
    while True:
        item = await queue.get()
        assert item is not None, "it was waited for"
        async with item:
            await perform(item.value.decode(), item)
            await item.consume()


async def _print(task: str, item: Item) -> None:
    print(f"{task} (token {item.fencing_token})", flush=True)


async def main(hosts: str, action: str, *arguments: str) -> None:
    """Put one task, or work until interrupted."""
    async with connect(hosts) as zk:
        if action == "put":
            priority, task = arguments
            await schedule(zk, task, priority=int(priority))
        else:
            await work(zk, _print)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
