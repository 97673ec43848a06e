"""The way from a key to its record or to its ownership: contend, and wait.

Invariants
    I1  Whatever ends the way, no lock znode of ours stays behind while the session lives, and the
        next local caller goes only when that is settled.
    I2  One absolute deadline holds for the whole way, in every state of the connection.
    I3  The front of the local queue is left once, by a task of the client's that nobody cancels:
        the way's own clean-up or, once there is one, the end of the attempt.

Dedup recipe, sections 5.0 to 5.4; what the owner does then is `ownership`.
"""

import asyncio
import logging
from contextlib import suppress
from typing import NamedTuple, TypeVar

from zabd.client.recipes.bound import Bound
from zabd.client.recipes.dedup.attempt import Attempt, Entered
from zabd.client.recipes.dedup.ensemble_time import EnsembleTime
from zabd.client.recipes.dedup.errors import (
    AlreadyInProgressError,
    DedupError,
    PayloadMismatchError,
    RecordUnreadableError,
    TooManyContendersError,
)
from zabd.client.recipes.dedup.flights import Flight
from zabd.client.recipes.dedup.ledger import RESULT, Ledger
from zabd.client.recipes.dedup.naming import named
from zabd.client.recipes.dedup.ownership import LOCK_PREFIX, Ownership
from zabd.client.recipes.dedup.parents import make_parent, retire_overflowed
from zabd.client.recipes.dedup.records import Result, is_over
from zabd.client.recipes.dedup.request import Request
from zabd.client.recipes.place import Place, PlaceGoneError, Queue
from zabd.model.errors import (
    ClosingError,
    ErrorCode,
    NoAuthError,
    SessionExpiredError,
    error_for,
)
from zabd.model.ops import GetChildren, GetData
from zabd.model.paths import join
from zabd.model.results import ChildrenResult, ErrorResult, GetDataResult
from zabd.model.stat import Stat

log = logging.getLogger("zabd.dedup")

E = TypeVar("E", bound=DedupError)


class _Found(NamedTuple):
    record: Result
    stat: Stat

    @classmethod
    def of(cls, result: GetDataResult) -> "_Found":
        return cls(Result.decode(result.data), result.stat)


class Contention:
    """One caller's way; `enter` is called once."""

    def __init__(self, request: Request, flight: Flight, time: EnsembleTime) -> None:
        self._request = request
        self._options = request.options
        self._log = request.log
        self._flight = flight
        self._time = time
        self._place = Place(
            request.client,
            request.parent,
            LOCK_PREFIX,
            request.fingerprint.data,
            request.log,
            acl=request.acl,
            make_parent=make_parent(request.parent, request.acl),
        )
        self._ledger = Ledger(self._place, request.acl, request.meter)
        self._owner = Ownership(request, self._ledger, time, self._leave_front)
        self._in_front = False
        self._seen: Result | None = None

    async def enter(self, deadline: float | None) -> Entered:
        """Return the record that settles this call, or the attempt that is to be made.

        `deadline` is in the loop's time.
        """
        outcome = "error"
        entered: Entered | None = None
        try:
            async with asyncio.timeout_at(deadline):
                entered = await self._enter()
            outcome = "replay"
        except BaseException as error:
            outcome = _OUTCOMES.get(type(error), "error")
            if isinstance(error, PlaceGoneError):
                self._place.left(outcome)  # its name may be somebody else's by now
            called = named(self._request, error, self._place.session_id)
            if called is error:
                raise
            raise called from error
        finally:
            # An attempt ends place and flight by itself; whoever was never in front has no znode.
            if not isinstance(entered, Attempt) and not self._owner.settling:
                if self._in_front:
                    self._request.client.spawn(self._undo(outcome))
                else:
                    self._place.left(outcome)
        return entered

    async def _enter(self) -> Entered:
        shared = await self._join_flight()
        return await self._contend() if shared is None else shared

    async def _join_flight(self) -> Result | None:
        """Wait for the front of the local queue, or for a record that those before us got."""
        if self._flight.busy and self._options.on_conflict == "fail":
            return await self._recorded_meanwhile()
        while (record := await self._flight.join()) is not None:
            if self._request.settled_by(record):
                return record
        self._in_front = True
        return None

    async def _recorded_meanwhile(self) -> Result:
        """The record, if whoever is in front has only come to read it as well."""
        found, _ = await self._glance(await self._place.bind())
        if found is None or self._looks_expired(found) or not self._settles(found.record):
            raise self._error(AlreadyInProgressError, "another caller in this process works on it")
        return found.record

    async def _undo(self, outcome: str) -> None:
        """Leave nothing behind (I1); a journal of ours goes too, as nothing has happened."""
        record = self._seen if outcome == "replay" else None
        try:
            with self._request.meter.cleaning():
                try:
                    await self._undo_journal(outcome)
                except Exception:
                    # Nobody waits for this; what is left is taken for an attempt in doubt.
                    log.exception("cannot undo the journal in %s", self._place.parent)
                await self._place.leave(outcome)
                await retire_overflowed(self._place)
        finally:
            self._leave_front(record)

    def _leave_front(self, record: Result | None) -> None:
        if self._in_front:
            self._in_front = False
            self._flight.end(record)

    async def _undo_journal(self, outcome: str) -> None:
        await self._place.taken()
        doubt = self._owner.doubt
        if self._owner.begun and self._options.journal and self._place.alive:
            with suppress(SessionExpiredError, ClosingError):
                await self._ledger.clear(doubt.journal if doubt else None)
                self._place.left(outcome)

    # 5.1 to 5.4: the record, or the front of the queue.

    async def _contend(self) -> Entered:
        bound = await self._place.bind()
        found, parent_seen = await self._glance(bound)
        if found is not None and not self._looks_expired(found) and self._settles(found.record):
            return found.record
        if not parent_seen:
            await self._place.run_as_taking(self._owner.take_all())
        if self._owner.begun:
            self._request.meter.listed(self._place.parent, 1)
            self._place.acquired()
            return self._owner.attempt()
        if not self._place.name:
            await self._place.take()
        return await self._wait_for_turn()

    async def _glance(self, bound: Bound) -> tuple[_Found | None, bool]:
        """Two pipelined reads: the record, and whether the key was ever used."""
        found, parent = await asyncio.gather(
            bound.get(self._ledger.result_path), bound.stat(self._place.parent)
        )
        if found is None:
            return None, parent is not None
        self._time.observe(found.stat.mtime)
        return _Found.of(found), True

    async def _wait_for_turn(self) -> Entered:
        while True:
            queue, found = await self._look()
            self._request.meter.listed(self._place.parent, len(queue.contenders))
            if found is not None and not self._expired(found) and self._settles(found.record):
                return found.record
            if queue.ahead is None:
                self._place.acquired()
                if found is not None and self._expired(found):
                    self._log.record("expired", self._place)
                entered = await self._owner.own(queue, found.stat.version if found else None)
                if entered is not None:
                    return entered
                continue
            await self._check_queue(queue)
            await self._place.wait_for(queue.ahead)

    async def _look(self) -> tuple[Queue, _Found | None]:
        """The queue, then the record: of one moment where the server can, else in this order."""
        path = self._ledger.result_path
        ops = (GetChildren(self._place.parent), GetData(path))
        parts = await self._place.bound.read_all(ops)
        if parts is None:
            queue = await self._place.look()
            recorded = await self._ledger.result() if RESULT in queue.children else None
            return queue, None if recorded is None else _Found(*recorded)
        children, record = parts
        for part, op in zip(parts, ops, strict=True):
            if isinstance(part, ErrorResult) and part.code != ErrorCode.NO_NODE:
                raise error_for(part.code, path=op.path, session_id=self._place.session_id)
        names = children.children if isinstance(children, ChildrenResult) else ()
        queue = self._place.queue_in(sorted(names))
        return queue, _Found.of(record) if isinstance(record, GetDataResult) else None

    async def _check_queue(self, queue: Queue) -> None:
        if len(queue.contenders) > self._options.max_contenders:
            raise self._error(
                TooManyContendersError, f"{len(queue.contenders)} callers contend for the key"
            )
        if self._options.on_conflict == "fail":
            error = self._error(AlreadyInProgressError, "another caller works on the key")
            with suppress(NoAuthError, RecordUnreadableError):
                holder = await self._ledger.started()
                error.holder = holder[0] if holder else None
            raise error
        if self._options.early_mismatch:
            holder_path = join(self._place.parent, queue.contenders[0].name)
            data = await self._place.bound.get(holder_path)
            if data is not None and data.data:
                self._request.compare(
                    data.data.decode(errors="replace"), self._request.fingerprint.alg, "the holder"
                )

    # Small things.

    def _settles(self, record: Result) -> bool:
        if self._request.settled_by(record):
            self._seen = record
            return True
        return False

    def _looks_expired(self, found: _Found) -> bool:
        """Whether it is worth contending to find out: the ensemble's time is at least this."""
        return is_over(*found, self._time.at_least_ms())

    def _expired(self, found: _Found) -> bool:
        return self._owner.outdated(*found)

    def _error(self, kind: type[E], message: str) -> E:
        return self._request.error(kind, message, session_id=self._place.session_id)


# How a lock znode's release is logged when this ends the way.
_OUTCOMES: dict[type[BaseException], str] = {
    PayloadMismatchError: "mismatch",
    AlreadyInProgressError: "conflict",
    TooManyContendersError: "conflict",
    TimeoutError: "timeout",
    asyncio.CancelledError: "cancelled",
}
