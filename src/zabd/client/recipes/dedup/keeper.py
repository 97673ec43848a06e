"""The journal of a running attempt: kept alive, and rewritten at each checkpoint.

Invariants
    I1  The journal is touched three times within its time to live, so that it cannot be collected
        under a living owner.
    I2  One write of the journal is under way at a time, and a checkpoint that was begun is settled
        even if its caller is cancelled: a touch never brings an earlier phase back.

Dedup recipe, sections 4, 10 and 11.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

from zabd.client.recipes.dedup.errors import FencedError
from zabd.client.recipes.dedup.ledger import Ledger
from zabd.client.recipes.dedup.records import Started
from zabd.client.recipes.dedup.request import Request
from zabd.model.errors import ClosingError, SessionExpiredError
from zabd.model.ops import MultiOp

TOUCHES = 3


class Keeper:
    """Keeps the journal of one attempt; `started` is what it holds."""

    def __init__(self, ledger: Ledger, started: Started) -> None:
        self.started = started
        self._ledger = ledger
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, request: Request) -> None:
        """Touch it from now on (I1)."""
        if request.options.journal:
            self._arm(request.options.started_ttl_ms / 1000 / TOUCHES)

    def end(self) -> None:
        """The attempt has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def checkpoint(self, name: str, data: Any, ops: list[MultiOp]) -> None:  # noqa: ANN401
        """Rewrite it together with `ops` (I2)."""
        work = self._checkpoint(name, data, ops)
        await asyncio.shield(self._ledger.place.client.spawn(work))

    async def _checkpoint(self, name: str, data: Any, ops: list[MultiOp]) -> None:  # noqa: ANN401
        async with self._turn:
            started = replace(
                self.started, recovery_point=name, recovery_data=data, phase=self.started.phase + 1
            )
            await self._ledger.rewrite(started, ops)
            self.started = started

    def _arm(self, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(pause_s, self._touch_soon, pause_s)

    def _touch_soon(self, pause_s: float) -> None:
        self._ledger.place.client.spawn(self._touch(pause_s))

    async def _touch(self, pause_s: float) -> None:
        # That the key is lost shows in the attempt's gate, or when it ends.
        with suppress(FencedError, SessionExpiredError, ClosingError):
            async with self._turn:
                if self._timer is not None and await self._ledger.touch(self.started):
                    self._arm(pause_s)
