"""A lock with a mistake, which docs/how-to/simulate-your-code.md finds. Use recipes.Lock."""

import asyncio

from zabd.client import Client
from zabd.model import EventType, WatchEvent


class NaiveLock:
    """The lock of the recipe, from memory: one with a smaller number goes first."""

    def __init__(self, zk: Client, root: str) -> None:
        self._zk = zk
        self._root = root
        self._mine = ""

    async def __aenter__(self) -> None:
        self._mine = await self._zk.create(f"{self._root}/n-", ephemeral=True, sequential=True)
        while True:
            waiting = sorted(await self._zk.get_children(self._root))
            place = waiting.index(self._mine.rpartition("/")[2])
            if place == 0:
                return
            gone = asyncio.Event()

            def tell(event: WatchEvent, gone: asyncio.Event = gone) -> None:
                if event.type is EventType.DELETED:
                    gone.set()

            await self._zk.exists(f"{self._root}/{waiting[place - 1]}", watch=tell)
            await gone.wait()

    async def __aexit__(self, *_error: object) -> None:
        await self._zk.delete(self._mine)
