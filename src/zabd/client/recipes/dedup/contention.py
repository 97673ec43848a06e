"""The way from a key to its record or to its ownership: contend, wait, decide, begin.

Invariants
    I1  Whatever ends the way, no lock znode of ours stays behind while the session lives, and the
        next local caller goes only when that is settled.
    I2  The function's first instruction runs after `started` is committed (unless journal=False).
    I3  No clock of a client decides anything: a record's age is the difference of two stamps of the
        ensemble's.

Dedup recipe, sections 5 and 10.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import NamedTuple, TypeVar

from zabd.client.recipes.bound import Bound
from zabd.client.recipes.dedup.attempt import Attempt, Entered
from zabd.client.recipes.dedup.ensemble_time import EnsembleTime
from zabd.client.recipes.dedup.errors import (
    AcquireTimeoutError,
    AlreadyInProgressError,
    ContainerChurnError,
    DedupError,
    FencedError,
    InDoubtError,
    LockRevokedError,
    NotExecuted,
    PayloadMismatchError,
    PermanentError,
    SessionLostError,
    TooManyContendersError,
)
from zabd.client.recipes.dedup.flights import Flight
from zabd.client.recipes.dedup.ledger import RESULT, STARTED, Ledger, RecordsChangedError
from zabd.client.recipes.dedup.options import Completed, Failed, Previous
from zabd.client.recipes.dedup.records import Result, Started
from zabd.client.recipes.dedup.request import Request
from zabd.client.recipes.place import ParentChurnError, Place, PlaceGoneError, Queue
from zabd.model.errors import (
    ClosingError,
    ConnectionLossError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from zabd.model.ops import Create, Create2, CreateMode, MultiOp
from zabd.model.paths import join, parent_of, sequential_name
from zabd.model.results import Create2Result, CreateResult
from zabd.model.stat import Stat

E = TypeVar("E", bound=DedupError)

LOCK_PREFIX = "lock-"
_ID_BITS = 128


class _Found(NamedTuple):
    record: Result
    stat: Stat


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
        )
        self._ledger = Ledger(self._place, request.acl)
        self._in_front = False
        self._begun = False
        self._previous: Previous | None = None
        self._doubt = False
        self._started = self._new_journal()

    async def enter(self, deadline: float | None) -> Entered:
        """Return the record that settles this call, or the attempt that is to be made.

        `deadline` is in the loop's time and holds in every state of the connection.
        """
        outcome = "error"
        entered: Entered | None = None
        try:
            async with asyncio.timeout_at(deadline):
                entered = await self._enter()
            outcome = "replay"
        except TimeoutError:
            outcome = "timeout"
            raise self._error(AcquireTimeoutError, "the key was not free in time") from None
        except BaseException as error:
            outcome = _OUTCOMES.get(type(error), "error")
            if (kind := _NAMES_HERE.get(type(error))) is not None:
                raise self._error(kind, str(error)) from error
            raise
        finally:
            # An attempt ends place and flight by itself; whoever was never in front has no znode.
            if not isinstance(entered, Attempt):
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
            raise self._error(AlreadyInProgressError, "another caller in this process works on it")
        while (record := await self._flight.join()) is not None:
            if self._request.settled_by(record):
                return record
        self._in_front = True
        return None

    async def _undo(self, outcome: str) -> None:
        """Leave nothing behind (I1); a journal of ours goes too, as nothing has happened."""
        record = self._seen if outcome == "replay" else None
        try:
            await self._place.taken()
            if self._begun and not self._doubt and self._place.alive:
                await self._ledger.clear()
                self._place.left(outcome)
        except (SessionExpiredError, ClosingError):
            pass
        finally:
            await self._place.leave(outcome)
            self._flight.end(record)

    # 5.1 to 5.4: the record, or the front of the queue.

    _seen: Result | None = None

    async def _contend(self) -> Entered:
        bound = await self._place.bind()
        found, parent_seen = await self._glance(bound)
        if found is not None and not self._looks_expired(found) and self._settles(found.record):
            return found.record
        if not parent_seen:
            await self._place.run_as_taking(self._take_all())
        if self._begun:
            self._place.acquired()
            return self._attempt(replaces=None)
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
        return _Found(Result.decode(found.data), found.stat), True

    async def _wait_for_turn(self) -> Entered:
        while True:
            queue = await self._place.look()
            found = await self._recorded(queue)
            if found is not None and not self._expired(found) and self._settles(found.record):
                return found.record
            if queue.ahead is None:
                self._place.acquired()
                if found is not None and self._expired(found):
                    self._log.record("expired", self._place)
                entered = await self._own(queue, found.stat.version if found else None)
                if entered is not None:
                    return entered
                continue
            await self._check_queue(queue)
            await self._place.wait_for(queue.ahead)

    async def _recorded(self, queue: Queue) -> _Found | None:
        """The record, if the list shows one; the list and our place in it are one moment."""
        found = await self._ledger.result() if RESULT in queue.children else None
        return None if found is None else _Found(*found)

    async def _check_queue(self, queue: Queue) -> None:
        if len(queue.contenders) > self._options.max_contenders:
            raise self._error(
                TooManyContendersError, f"{len(queue.contenders)} callers contend for the key"
            )
        if self._options.on_conflict == "fail":
            error = self._error(AlreadyInProgressError, "another caller works on the key")
            holder = await self._ledger.started()
            error.holder = holder[0] if holder else None
            raise error
        if self._options.early_mismatch:
            holder_path = join(self._place.parent, queue.contenders[0].name)
            data = await self._place.bound.get(holder_path)
            if data is not None and data.data:
                self._request.compare(
                    data.data.decode(errors="replace"), self._started.alg, "the holder"
                )

    # 5.2a: parent, lock and journal in one multi.

    async def _take_all(self) -> None:
        bound = self._place.bound
        lock = sequential_name(LOCK_PREFIX, 0)
        self._started = replace(self._started, lock=lock)
        ops: list[MultiOp] = [
            Create(self._place.parent, b"", self._request.acl),
            Create2(
                join(self._place.parent, LOCK_PREFIX),
                self._place.data,
                self._request.acl,
                CreateMode.EPHEMERAL_SEQUENTIAL,
            ),
        ]
        if self._options.journal:
            ops.append(Create(self._ledger.started_path, self._started.encode(), self._request.acl))
        try:
            parts = await self._create_all(bound, ops)
        except NodeExistsError:
            return
        except ConnectionLossError:
            await self._find_all()
            return
        created = parts[1]
        assert isinstance(created, CreateResult | Create2Result)
        stat = created.stat if isinstance(created, Create2Result) else None
        stat = stat or await bound.stat(created.path)
        if stat is not None:
            self._adopt(created.path, stat)

    async def _create_all(self, bound: Bound, ops: list[MultiOp]) -> tuple[object, ...]:
        try:
            return await bound.multi(ops)
        except NoNodeError:
            await self._request.client.ensure_path(parent_of(self._place.parent))
            return await bound.multi(ops)

    async def _find_all(self) -> None:
        """The multi's reply was lost: our lock znode and our journal tell whether it happened."""
        if await self._place.find_own() and self._options.journal:
            journal = await self._ledger.started()
            self._begun = journal is not None and journal[0].attempt_id == self._started.attempt_id

    def _adopt(self, path: str, stat: Stat) -> None:
        self._place.adopt(path, stat)
        self._time.observe(stat.ctime)
        self._begun = True

    # 5.5 and 5.6: the owner looks at the journal, and begins.

    async def _own(self, queue: Queue, replaces: int | None) -> Entered | None:
        """Begin, or deal with what an earlier attempt left; None means to look again."""
        self._started = replace(self._started, lock=self._place.name, attempt=1)
        self._previous, self._doubt = None, False
        journal = await self._ledger.started() if STARTED in queue.children else None
        over = None
        if journal is not None:
            over = journal[1].version
            ours = journal[0].attempt_id == self._started.attempt_id
            if not ours and not self._stale(journal[0].ttl_ms, journal[1]):
                settled = await self._in_doubt(*journal, replaces)
                if settled is not None:
                    return settled
        if not self._options.journal:
            return self._attempt(replaces=replaces)
        try:
            await self._place.run_as_taking(self._begin(over, replaces))
        except RecordsChangedError:
            return None
        return self._attempt(replaces=None)

    async def _begin(self, over: int | None, drop: int | None) -> None:
        self._started = replace(self._started, fencing_token=self._place.token)
        await self._ledger.begin(self._started, over=over, drop=drop)
        self._begun = True

    async def _in_doubt(self, started: Started, stat: Stat, replaces: int | None) -> Result | None:
        """An earlier holder left its journal: it may have done its work. What now?"""
        self._request.compare(started.payload_hash, started.alg, "an attempt in doubt")
        previous = self._previous = Previous.of(started, stat)
        self._doubt = True
        self._started = replace(self._started, attempt=started.attempt + 1)
        self._log.record("in_doubt", self._place, attempt=previous.attempt)
        limit = self._options.max_attempts
        if limit is not None and previous.attempt >= limit:
            poison = PermanentError(f"{previous.attempt} attempts ended in doubt")
            return await self._commit(Failed(poison), replaces, kind="MaxAttempts")
        if self._options.on_in_doubt == "fail":
            error = self._error(InDoubtError, "an earlier attempt may have happened")
            error.previous = previous
            raise error
        if self._options.on_in_doubt == "recover":
            return await self._recover(previous, replaces)
        return None

    async def _recover(self, previous: Previous, replaces: int | None) -> Result | None:
        assert self._options.recover is not None
        attempt = self._attempt(replaces=replaces)
        try:
            verdict = await _no_execution(self._options.recover(attempt, previous))
        finally:
            attempt.driver_gate.dismiss()
        self._log.record("recovered", self._place, attempt=previous.attempt)
        if verdict is NotExecuted or isinstance(verdict, NotExecuted):
            self._doubt = False
            return None
        return await self._commit(verdict, replaces)

    async def _commit(
        self, verdict: object, replaces: int | None, *, kind: str | None = None
    ) -> Result:
        """Record what became of the earlier attempt."""
        attempt = self._attempt(replaces=replaces)
        self._in_front = False
        if isinstance(verdict, Completed):
            await attempt.complete(verdict.value)
        elif isinstance(verdict, Failed):
            await attempt.fail(verdict.error, kind=kind)
        else:
            await attempt.leave_in_doubt()
            raise TypeError(
                f"recover returned {verdict!r}: expected Completed, Failed or NotExecuted"
            )
        assert attempt.record is not None
        return attempt.record

    # Small things.

    def _settles(self, record: Result) -> bool:
        if self._request.settled_by(record):
            self._seen = record
            return True
        return False

    def _attempt(self, *, replaces: int | None) -> Attempt:
        return Attempt(
            self._request,
            self._place,
            self._ledger,
            self._started,
            previous=self._previous,
            in_doubt=self._doubt,
            replaces=replaces,
            on_end=self._flight.end,
        )

    def _new_journal(self) -> Started:
        client, ttl = self._request.client, self._options.result_ttl
        fingerprint = self._request.fingerprint
        return Started(
            key=self._request.key,
            attempt=1,
            attempt_id=f"{client.rng.getrandbits(_ID_BITS):032x}",
            payload_hash=fingerprint.hash,
            alg=fingerprint.alg,
            owner={
                "session": f"{client.session_id:#x}",
                "host": client.identity.host,
                "pid": client.identity.pid,
            },
            lock="",
            started_ms=client.wall_ms(),
            ttl_ms=int(ttl * 1000),
        )

    def _looks_expired(self, found: _Found) -> bool:
        """Whether it is worth contending to find out: the ensemble's time is at least this."""
        ttl_ms = found.record.ttl_ms
        return ttl_ms is not None and self._time.at_least_ms() > found.stat.mtime + ttl_ms

    def _expired(self, found: _Found) -> bool:
        return self._stale(found.record.ttl_ms, found.stat)

    def _stale(self, ttl_ms: int | None, stat: Stat) -> bool:
        """Compare two stamps of the ensemble's: our lock's birth and the record's last change."""
        own = self._place.stat
        assert own is not None, "the place was taken"
        self._time.observe(own.ctime)
        return ttl_ms is not None and own.ctime > stat.mtime + ttl_ms

    def _error(self, kind: type[E], message: str) -> E:
        return self._request.error(kind, message, session_id=self._place.session_id)


# How a lock znode's release is logged when this ends the way.
_OUTCOMES: dict[type[BaseException], str] = {
    PayloadMismatchError: "mismatch",
    AlreadyInProgressError: "conflict",
    asyncio.CancelledError: "cancelled",
}
# What is called differently from here on up.
_NAMES_HERE: dict[type[BaseException], type[DedupError]] = {
    SessionExpiredError: SessionLostError,
    ClosingError: SessionLostError,
    PlaceGoneError: LockRevokedError,
    ParentChurnError: ContainerChurnError,
    FencedError: FencedError,
}


async def _no_execution(verdict: Awaitable[object]) -> object:
    try:
        return await verdict
    except NotExecuted as nothing:
        return nothing
