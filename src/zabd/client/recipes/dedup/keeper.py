"""The journal of a running attempt: kept alive, and rewritten at each checkpoint.

Invariants
    I1  The journal is touched three times within its time to live, so that it cannot be collected
        under a living owner.
    I2  One write of the journal is under way at a time, and a checkpoint that was begun is settled
        even if its caller is cancelled: a touch never brings an earlier phase back.
    I3  An attempt that has ended writes no more: once the key's znode was made anew, a later lock
        may have the name of ours, and the guard alone would let us write over a later journal.

Dedup recipe, sections 4, 10 and 11.
"""

import asyncio
import logging
from dataclasses import replace
from typing import Any

from zabd.client.recipes.dedup.errors import FencedError
from zabd.client.recipes.dedup.ledger import Ledger
from zabd.client.recipes.dedup.records import Started
from zabd.client.recipes.dedup.request import Request
from zabd.model.errors import ClosingError, KeeperError, LocalProtocolError, SessionExpiredError
from zabd.model.ops import MultiOp

log = logging.getLogger("zabd.dedup")

TOUCHES = 3


class Keeper:
    """Keeps the journal of one attempt; `started` is what it holds."""

    def __init__(self, ledger: Ledger, started: Started) -> None:
        self.started = started
        self._ledger = ledger
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._touching: asyncio.Task[None] | None = None
        self._ended = False

    def start(self, request: Request) -> None:
        """Touch it from now on (I1)."""
        if request.options.journal:
            self._arm(request.options.started_ttl_ms / 1000 / TOUCHES)

    def end(self) -> None:
        """The attempt has ended (I3); a touch that was sent arrives before what ends it."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._touching is not None:
            self._touching.cancel()

    async def checkpoint(self, name: str, data: Any, ops: list[MultiOp]) -> None:  # noqa: ANN401
        """Rewrite it together with `ops` (I2)."""
        work = self._checkpoint(name, data, ops)
        await asyncio.shield(self._ledger.place.client.spawn(work))

    async def _checkpoint(self, name: str, data: Any, ops: list[MultiOp]) -> None:  # noqa: ANN401
        async with self._turn:
            if self._ended:
                raise LocalProtocolError("this attempt has ended: it keeps no more checkpoints")
            started = replace(
                self.started, recovery_point=name, recovery_data=data, phase=self.started.phase + 1
            )
            await self._ledger.rewrite(started, ops)
            self.started = started

    def _arm(self, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(pause_s, self._touch_soon, pause_s)

    def _touch_soon(self, pause_s: float) -> None:
        self._touching = self._ledger.place.client.spawn(self._touch(pause_s))

    async def _touch(self, pause_s: float) -> None:
        try:
            async with self._turn:
                goes_on = await self._ledger.touch(self.started)
        except (FencedError, SessionExpiredError, ClosingError):
            return  # that the key is lost shows in the attempt's gate, or when it ends
        except (KeeperError, LocalProtocolError):
            log.warning("cannot touch %s", self._ledger.started_path, exc_info=True)
            goes_on = True  # two more come before it would matter
        if goes_on and not self._ended:
            self._arm(pause_s)
