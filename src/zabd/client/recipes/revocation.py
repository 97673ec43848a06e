"""Hearing that somebody asks for a lock: a watch on the holder's own znode.

Curator's convention: who wants the lock sets the holder's data to ``__REVOKE__``.
"""

import asyncio
import logging
from collections.abc import Callable

from zabd.client.events import EventStream
from zabd.client.recipes.place import Place
from zabd.model.errors import KeeperError, SessionExpiredError
from zabd.model.watch_events import EventType, WatchEvent

log = logging.getLogger("zabd.client.recipes")

REVOKE = b"__REVOKE__"


class Revocation:
    """Watches one held place until it is asked for, left or lost."""

    def __init__(self, place: Place, tell: Callable[[], object]) -> None:
        self._place = place
        self._tell = tell
        self._stream: EventStream[WatchEvent] = EventStream()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def watch(cls, place: Place, tell: Callable[[], object]) -> "Revocation":
        """Begin to watch; it may have been asked for already."""
        revocation = cls(place, tell)
        if not await revocation._asked_for():
            revocation._task = place.client.spawn(revocation._run())
        return revocation

    def end(self) -> None:
        """Stop watching."""
        self._stream.close()
        self._place.client.unwatch(self._place.path, self._stream)

    async def _run(self) -> None:
        try:
            async for event in self._stream:
                if event.type in {EventType.NONE, EventType.DELETED} or await self._asked_for():
                    return
        except KeeperError:
            log.exception("%s: nobody hears any more that it is asked for", self._place.path)

    async def _asked_for(self) -> bool:
        """Read our data, with a watch; tell if it was asked for."""
        try:
            found = await self._place.bound.get(self._place.path, watch=self._stream)
        except SessionExpiredError:
            return True
        if found is None or found.data != REVOKE:
            return found is None
        self.end()
        self._tell()
        return True
