"""A service registry: instances register, callers route by a ring that a watch keeps up to date.

    python examples/service_registry.py HOSTS serve 10.0.0.1:80
    python examples/service_registry.py HOSTS route user-42

A caller never polls. It reads the list of instances once, together with a watch, and again when
that fires: while nothing changes it sends nothing, and a key keeps its instance while that lives.
"""

import asyncio
import hashlib
import sys
from collections.abc import Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

from zabd.client import Client, connect
from zabd.client.recipes import Party

SERVICES = "/services/pay"


def registered(zk: Client, address: str) -> Party:
    """For `async with`: the address is listed while the block runs and its session lives."""
    return Party(zk, SERVICES, identifier=address, shallow=True)


def owner(key: str, instances: Sequence[str]) -> str:
    """The instance for a key: who leaves takes only its own keys along (rendezvous hashing)."""
    return max(instances, key=lambda each: hashlib.sha256(f"{key} {each}".encode()).digest())


class Router:
    """Routes keys to the instances that are there."""

    def __init__(self, zk: Client) -> None:
        self.rebuilt = 0
        self._party = Party(zk, SERVICES, shallow=True)
        self._instances: list[str] = []
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    def route(self, key: str) -> str:
        """Where to send what belongs to this key."""
        if not self._instances:
            raise LookupError(f"nobody is registered at {SERVICES}")
        return owner(key, self._instances)

    async def wait_for(self, count: int) -> None:
        """Wait until so many instances are there."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._instances) == count)

    async def _follow(self) -> None:
        async with aclosing(self._party.watch()) as changes:
            async for instances in changes:
                async with self._changed:
                    self._instances = instances
                    self.rebuilt += 1
                    self._changed.notify_all()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


async def main(hosts: str, action: str, argument: str) -> None:
    """Serve until interrupted, or route one key."""
    async with connect(hosts) as zk:
        if action == "serve":
            async with registered(zk, argument):
                await asyncio.Event().wait()
        instances = await Party(zk, SERVICES, shallow=True).members()
        print(owner(argument, instances))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
