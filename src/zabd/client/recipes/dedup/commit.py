"""Recording an outcome, whatever becomes of the reply and of the session (dedup recipe, 5.7, 6.4).

Invariants
    I1  The record, the end of the journal and the end of the lock are one multi, guarded by the
        lock: it is recorded by the owner at that zxid, once, or not at all.
    I2  Success is told only of an outcome that is recorded with our attempt id; that nothing was
        recorded is told only when the ensemble has said so, and nothing can be any more.
    I3  A record that breaks each connection it is sent on, or that the client refuses to send, is
        sent without its value: a value that is too large costs itself, never the record.
"""

import asyncio
from typing import TYPE_CHECKING

from zabd.client.client import Client
from zabd.client.recipes.bound import Resends
from zabd.client.recipes.dedup import outcome
from zabd.client.recipes.dedup.errors import FencedError, RecordUnreadableError
from zabd.client.recipes.dedup.records import Result
from zabd.model.errors import (
    BadVersionError,
    ConnectionLossError,
    KeeperError,
    LocalProtocolError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    ZabdError,
)
from zabd.model.ops import Delete, MultiOp

if TYPE_CHECKING:
    from zabd.client.recipes.dedup.ledger import Ledger


# While the old session ends: its client closes it as soon as it has a connection for that.
SETTLE_PAUSE_S = 0.25


class NotCommittedError(Exception):
    """The session ended; `known` says whether the ensemble was asked and has no such record."""

    def __init__(self, *, known: bool) -> None:
        super().__init__()
        self.known = known


class Commit:
    """One outcome on its way into the ledger; `run` is called once, `result` is what it recorded.

    `journal` says whether there is one to end, `replaces` the version of an older outcome that
    does not count any more.
    """

    def __init__(
        self, ledger: "Ledger", result: Result, *, journal: bool, replaces: int | None
    ) -> None:
        self._ledger = ledger
        self.result = result
        self._journal = journal
        self._replaces = replaces
        self._in_doubt = False
        self._resends = Resends()

    async def run(self) -> None:
        """Record it.

        Raises:
            FencedError: the lock is not ours, and nothing was recorded.
            NotCommittedError: the session ended before the outcome was recorded.
        """
        try:
            await self._run()
        except SessionExpiredError as error:
            await self._settle_elsewhere(maybe=self._in_doubt or error.maybe_applied)

    async def _run(self) -> None:
        while True:
            try:
                await self._ledger.guarded(self._ops())
            except ConnectionLossError as error:
                self._in_doubt = True
                if await self._recorded():
                    return
                await self._pause(error)
                # Without it the lock's name may be somebody else's, and the guard would pass.
                if not await self._ledger.place.is_still():
                    raise FencedError(f"{self._ledger.place.path} is gone") from error
                self._ledger.meter.lost_reply("commit", "resent")
            except LocalProtocolError as error:
                # With more than the servers take nothing is sent; without the value it may be. If
                # it is for another reason, that holds for the next try as well.
                self._omit(error)
            except FencedError:
                if self._in_doubt and await self._recorded():
                    return
                raise
            except NoNodeError as error:
                self._leave_out(error)
            except (NodeExistsError, BadVersionError) as error:
                if await self._recorded():
                    return
                raise FencedError("another attempt's outcome is recorded") from error
            else:
                return

    def _ops(self) -> list[MultiOp]:
        ledger = self._ledger
        drops = [Delete(ledger.started_path)] if self._journal else []
        old = [] if self._replaces is None else [Delete(ledger.result_path, self._replaces)]
        return [*drops, *old, ledger.create_result(self.result), Delete(ledger.place.path)]

    def _leave_out(self, error: NoNodeError) -> None:
        """Something that was to be deleted is gone: its time ran out during a very long run."""
        if self._journal and error.op_index == 0:
            self._journal = False
        elif self._replaces is not None:
            self._replaces = None
        else:
            raise error

    async def _recorded(self) -> bool:
        """Whether our outcome is there, after a commit without an answer (I2)."""
        recorded = await self._ledger.recorded(self.result.attempt_id)
        if recorded is None:
            return False
        self.result = recorded
        if self._in_doubt:
            self._ledger.meter.lost_reply("commit", "adopted")
        return True

    async def _pause(self, error: ConnectionLossError) -> None:
        """Before it is sent again; what was sent often enough goes without its value (I3)."""
        try:
            await self._resends.pause(error)
        except ConnectionLossError as hopeless:
            self._omit(hopeless)

    def _omit(self, error: ZabdError) -> None:
        if self.result.omitted:
            raise error  # it is not the value
        self.result = outcome.without_value(self.result)
        self._resends = Resends()

    async def _settle_elsewhere(self, *, maybe: bool) -> None:
        """The commit may have landed before the session ended: only a new session can tell."""
        if not maybe:
            raise NotCommittedError(known=True)
        client = self._ledger.place.client
        try:
            await client.wait_connected(timeout=client.session_timeout)
            recorded = await self._ask(client, client.session_timeout)
        except (KeeperError, LocalProtocolError) as error:
            raise NotCommittedError(known=False) from error
        self._ledger.meter.lost_reply("commit", "adopted" if recorded else "gone")
        if recorded is None:
            raise NotCommittedError(known=True)
        self.result = recorded

    async def _ask(self, client: Client, limit: float) -> Result | None:
        """What is recorded of ours, or None when that is final (I2).

        A session that only we have given up lives on at the servers until it is closed or expires,
        and a commit that a slow server still holds may land until then: the lock, which goes with
        the session, is the guard of the commit and tells. It is read first.
        """
        loop = asyncio.get_running_loop()
        place, deadline = self._ledger.place, loop.time() + limit
        while True:
            await client.sync(place.parent, timeout=limit)
            lock = await client.exists(place.path, timeout=limit)
            try:
                data, _ = await client.get(self._ledger.result_path, timeout=limit)
            except NoNodeError:
                if lock is None or lock.czxid != place.token:
                    return None
            else:
                return self._ours(data)
            if loop.time() >= deadline:
                raise NotCommittedError(known=False)
            await asyncio.sleep(SETTLE_PAUSE_S)

    def _ours(self, data: bytes | None) -> Result | None:
        try:
            found = Result.decode(data)
        except RecordUnreadableError:
            return None  # ours can be read
        return found if found.attempt_id == self.result.attempt_id else None
