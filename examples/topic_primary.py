"""For each topic one primary and any number of backups, and a switch that stops a topic everywhere.

    python examples/topic_primary.py HOSTS run n1 orders payments
    python examples/topic_primary.py HOSTS off orders
    python examples/topic_primary.py HOSTS on orders

Each process stands for every topic; a topic is led by one of them, and topics by different ones.
The switch is a znode that everybody watches: while it says off nobody leads the topic, or stands
for it.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from zabd.client import Client, connect
from zabd.client.recipes import DataWatch, Election, Term
from zabd.model import NodeExistsError

TOPICS = "/topics"
OFF = b"off"

Primary = Callable[[str, Term], Awaitable[object]]


async def switch(zk: Client, topic: str, *, on: bool) -> None:
    """Stop a topic, or let it go on; returns at once, the primary follows within a moment."""
    path, state = f"{TOPICS}/{topic}/switch", b"on" if on else OFF
    with suppress(NodeExistsError):
        await zk.create(path, state, make_parents=True)
    await zk.set(path, state)


async def take_part(zk: Client, name: str, topic: str, primary: Primary) -> None:
    """Stand for a topic until cancelled; await `primary(topic, term)` in each term."""
    election = Election(zk, f"{TOPICS}/{topic}/primary", identifier=name)
    standing: asyncio.Task[None] | None = None
    try:
        async for value in DataWatch(zk, f"{TOPICS}/{topic}/switch"):
            off = value is not None and value.data == OFF
            if off and standing is not None:
                await _end(standing)
                standing = None
            elif not off and standing is None:
                standing = asyncio.create_task(election.serve(lambda term: primary(topic, term)))
    finally:
        if standing is not None:
            await _end(standing)


async def _end(standing: asyncio.Task[None]) -> None:
    """Stand down, in order: when this returns the next one may lead."""
    standing.cancel()
    with suppress(asyncio.CancelledError):
        await standing


async def _say(topic: str, term: Term) -> None:
    print(f"primary of {topic}, token {term.fencing_token}", flush=True)
    await asyncio.Event().wait()


async def main(hosts: str, action: str, *arguments: str) -> None:
    """Take part in topics until interrupted, or turn one off or on."""
    async with connect(hosts) as zk:
        if action == "run":
            name, *topics = arguments
            async with asyncio.TaskGroup() as group:
                for topic in topics:
                    group.create_task(take_part(zk, name, topic, _say))
        else:
            await switch(zk, arguments[0], on=action == "on")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
