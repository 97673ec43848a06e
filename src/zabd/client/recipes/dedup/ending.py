"""How an attempt ends on the servers, and what is logged and counted of it.

Invariants
    I1  What was begun here goes to its end even if the caller is cancelled meanwhile, and `on_end`
        is called when the lock is settled: the next local caller goes only then.
    I2  An attempt counts once, by its end.
    I3  The lock goes, whatever stops the way to the end: an outcome that the ensemble refuses to
        record leaves the attempt in doubt, never the key locked.

Dedup recipe, section 5.7.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import NamedTuple

from zabd.client.recipes.dedup.commit import NotCommittedError
from zabd.client.recipes.dedup.errors import DedupError, FencedError, SessionLostError
from zabd.client.recipes.dedup.ledger import Ledger
from zabd.client.recipes.dedup.options import Previous
from zabd.client.recipes.dedup.parents import retire_overflowed
from zabd.client.recipes.dedup.records import COMPLETED, Result, Started
from zabd.client.recipes.dedup.request import Request
from zabd.model.errors import ClosingError, SessionExpiredError


class Doubt(NamedTuple):
    """An earlier attempt that may have happened: its journal, and what a caller is told of it."""

    journal: Started
    previous: Previous


class Ending:
    """The end of one attempt; `result` is the outcome once it is recorded."""

    def __init__(
        self,
        request: Request,
        ledger: Ledger,
        number: int,
        *,
        doubt: Doubt | None,
        replaces: int | None,
        on_failure: Callable[[DedupError], None],
        on_end: Callable[[Result | None], None],
        counts: bool,
    ) -> None:
        self.result: Result | None = None
        self._request = request
        self._ledger = ledger
        self._place = ledger.place
        self._number = number
        self._doubt = doubt
        self._replaces = replaces
        self._on_failure = on_failure
        self._on_end = on_end
        self._counts = counts

    async def commit(self, result: Result) -> None:
        """Record the outcome.

        Raises:
            FencedError, SessionLostError: it is not recorded.
            KeeperError: the ensemble has refused it, for its size or a quota for example.
        """
        await self._settle(self._commit(result))

    async def free(self) -> None:
        """Nothing has happened; an earlier attempt that is in doubt stays so."""
        await self._settle(self._free())

    async def leave(self, outcome: str) -> None:
        """Give only the lock back: this may have happened."""
        self._note_doubt()
        await self._settle(self._place.leave(outcome))

    def forsake(self) -> None:
        """The key is lost; nothing is written."""
        self._count("lost")
        self._place.client.spawn(self._to_the_end(self._give_back()))

    # Inside.

    async def _settle(self, work: Coroutine[object, object, None]) -> None:
        await asyncio.shield(self._place.client.spawn(self._to_the_end(work)))

    async def _to_the_end(self, work: Coroutine[object, object, None]) -> None:
        try:
            with self._request.meter.cleaning():
                try:
                    await work
                except Exception as error:
                    if not isinstance(error, DedupError):
                        error.add_note("No outcome is recorded: the attempt stays in doubt.")
                        self._note_doubt()
                    await self._give_back()  # (I3)
                    raise
                await retire_overflowed(self._place)
        finally:
            self._on_end(self.result)

    async def _commit(self, result: Result) -> None:
        request = self._request
        journal = request.options.journal
        try:
            with request.span("commit", attempt=self._number, status=result.status):
                result = await self._ledger.commit(result, journal=journal, replaces=self._replaces)
        except NotCommittedError as error:
            lost = request.error(SessionLostError, "the session ended before the outcome was kept")
            lost.committed = False if error.known else None
            raise self._failed(lost) from error
        except FencedError as error:
            fenced = request.error(FencedError, str(error), session_id=self._place.session_id)
            raise self._failed(fenced) from error
        self.result = result
        self._count("executed")
        request.log.record("committed", self._place, attempt=self._number, status=result.status)
        if result.omitted:
            request.log.record("omitted", self._place, attempt=self._number)
        self._place.left("completed" if result.status == COMPLETED else "failed")

    async def _give_back(self) -> None:
        """Delete the lock, if it is ours: of one that was lost the name may be somebody else's."""
        place = self._place
        try:
            with suppress(SessionExpiredError, ClosingError):
                if place.alive and not await place.is_still():
                    place.left("error")
        finally:
            await place.leave("error")

    async def _free(self) -> None:
        self._count("executed")
        if self._request.options.journal:
            try:
                await self._ledger.clear(self._doubt.journal if self._doubt else None)
                self._place.left("error")
            except (SessionExpiredError, ClosingError):
                await self._place.leave("error")
        else:
            await self._place.leave("error")

    def _failed(self, failure: DedupError) -> DedupError:
        self._count("lost")
        self._on_failure(failure)
        return failure

    def _note_doubt(self) -> None:
        self._count("in_doubt")
        self._request.log.record("in_doubt", self._place, attempt=self._number)

    def _count(self, outcome: str) -> None:
        if self._counts:
            self._counts = False
            self._request.meter.ended(outcome)
