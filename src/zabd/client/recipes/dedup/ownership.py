"""What the owner of a key does first: look at what others have left, decide, and begin.

Invariants
    I1  The function's first instruction runs after `started` is committed (unless journal=False).
    I2  No clock of a client decides anything: a record's age is the difference of two stamps of the
        ensemble's, and what the ensemble ends by itself counts for as long as it is there.

Dedup recipe, sections 5.2a, 5.5, 5.6, 10 and 11.
"""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

from zabd.client.recipes.dedup.attempt import Attempt, Entered
from zabd.client.recipes.dedup.ending import Doubt
from zabd.client.recipes.dedup.ensemble_time import EnsembleTime
from zabd.client.recipes.dedup.errors import InDoubtError, NotExecuted, PermanentError
from zabd.client.recipes.dedup.flights import client_id_of
from zabd.client.recipes.dedup.ledger import STARTED, Ledger, RecordsChangedError
from zabd.client.recipes.dedup.options import Completed, Failed, Previous
from zabd.client.recipes.dedup.records import Result, Started, is_over
from zabd.client.recipes.dedup.request import Request
from zabd.client.recipes.parents import ensure_path
from zabd.client.recipes.place import Queue
from zabd.model.errors import ConnectionLossError, NodeExistsError, NoNodeError
from zabd.model.ops import Create2, CreateContainer, CreateMode, MultiOp
from zabd.model.paths import join, parent_of, sequential_name
from zabd.model.results import Create2Result, CreateResult
from zabd.model.stat import Stat

LOCK_PREFIX = "lock-"
_ID_BITS = 128


class Ownership:
    """One owner's beginning; `begun` says whether the journal is ours, `doubt` what was before."""

    def __init__(
        self,
        request: Request,
        ledger: Ledger,
        time: EnsembleTime,
        on_end: Callable[[Result | None], None],
    ) -> None:
        self.begun = False
        self.settling = False
        self.doubt: Doubt | None = None
        self._request = request
        self._options = request.options
        self._place = ledger.place
        self._ledger = ledger
        self._time = time
        self._on_end = on_end
        self._started = self._new_journal()

    # 5.2a: parent, lock and journal in one multi.

    async def take_all(self) -> None:
        """Make all three if there is none of them yet: whoever does, owns."""
        bound, place = self._place.bound, self._place
        self._started = replace(self._started, lock=sequential_name(LOCK_PREFIX, 0))
        ops: list[MultiOp] = [
            CreateContainer(place.parent, b"", self._request.acl, CreateMode.CONTAINER),
            Create2(
                join(place.parent, LOCK_PREFIX),
                place.data,
                self._request.acl,
                CreateMode.EPHEMERAL_SEQUENTIAL,
            ),
        ]
        if self._options.journal:
            ops.append(self._ledger.create_started(self._started))
        try:
            parts = await self._create_all(ops)
        except NodeExistsError:
            return
        except ConnectionLossError:
            await self._find_all()
            return
        self._started = self._ledger.as_made(self._started)
        created = parts[1]
        assert isinstance(created, CreateResult | Create2Result)
        stat = created.stat if isinstance(created, Create2Result) else None
        stat = stat or await bound.stat(created.path)
        if stat is not None:
            place.adopt(created.path, stat)
            self._time.observe(stat.ctime)
            self._note_begun()

    async def _create_all(self, ops: list[MultiOp]) -> tuple[object, ...]:
        bound = self._place.bound
        try:
            return await bound.multi(ops)
        except NoNodeError:
            # The base is an ordinary znode, made once: it must not vanish with the last key.
            await ensure_path(bound, parent_of(self._place.parent))
            return await bound.multi(ops)

    async def _find_all(self) -> None:
        """The multi's reply was lost: our lock znode and our journal tell whether it happened."""
        if not await self._place.find_own():
            self._request.meter.lost_reply("create", "resent")
            return
        if self._options.journal:
            journal = await self._ledger.started()
            if journal is not None and journal[0].attempt_id == self._started.attempt_id:
                self._started = journal[0]
                self._note_begun()

    def _note_begun(self) -> None:
        self.begun = True
        self._request.log.fields["attempt"] = self._started.attempt
        if self._options.journal:
            self._request.log.record("begun", self._place)

    # 5.5 and 5.6: the owner looks at the journal, and begins.

    async def own(self, queue: Queue, replaces: int | None) -> Entered | None:
        """Begin, or deal with what an earlier attempt left; None means to look again.

        `replaces` is the version of a recorded outcome that does not count any more.
        """
        self._started = replace(self._started, lock=self._place.name, attempt=1, server_ttl=False)
        self.doubt = None
        journal = await self._ledger.started() if STARTED in queue.children else None
        over = None
        if journal is not None:
            over = journal[1].version
            self._started = replace(self._started, server_ttl=journal[0].server_ttl)
            ours = journal[0].attempt_id == self._started.attempt_id
            if not ours and not self.outdated(*journal):
                settled = await self._in_doubt(*journal, replaces)
                if settled is not None:
                    return settled
        if not self._options.journal:
            self._note_begun()
            return self.attempt(replaces=replaces)
        try:
            await self._place.run_as_taking(self._begin(over, replaces))
        except RecordsChangedError:
            return None
        return self.attempt()

    async def _begin(self, over: int | None, drop: int | None) -> None:
        self._started = replace(self._started, fencing_token=self._place.token)
        self._started = await self._ledger.begin(self._started, over=over, drop=drop)
        self._note_begun()

    def attempt(self, *, replaces: int | None = None, counts: bool = True) -> Attempt:
        """The attempt that the caller has to end."""
        return Attempt(
            self._request,
            self._ledger,
            self._started,
            doubt=self.doubt,
            replaces=replaces,
            on_end=self._on_end,
            counts=counts,
        )

    def outdated(self, record: Started | Result, stat: Stat) -> bool:
        """Whether a record is older than it should become (I2): our lock's birth is the time."""
        own = self._place.stat
        assert own is not None, "the place was taken"
        self._time.observe(own.ctime)
        return is_over(record, stat, own.ctime)

    # 10: an earlier attempt is in doubt.

    async def _in_doubt(self, started: Started, stat: Stat, replaces: int | None) -> Result | None:
        """An earlier holder left its journal: it may have done its work. What now?"""
        request, options = self._request, self._options
        request.compare(started.payload_hash, started.alg, "an attempt in doubt")
        previous = Previous.of(started, stat)
        self.doubt = Doubt(started, previous)
        self._started = replace(self._started, attempt=started.attempt + 1)
        request.log.record("in_doubt", self._place, attempt=previous.attempt)
        limit = options.max_attempts
        if limit is not None and previous.attempt >= limit:
            poison = PermanentError(f"{previous.attempt} attempts ended in doubt")
            return await self._commit(Failed(poison), replaces, kind="MaxAttempts")
        if options.on_in_doubt == "fail":
            error = request.error(
                InDoubtError,
                "an earlier attempt may have happened",
                session_id=self._place.session_id,
            )
            error.previous = previous
            raise error
        if options.on_in_doubt == "recover":
            return await self._recover(previous, replaces)
        return None

    async def _recover(self, previous: Previous, replaces: int | None) -> Result | None:
        assert self._options.recover is not None
        attempt = self.attempt(replaces=replaces, counts=False)
        try:
            verdict = await _no_execution(self._options.recover(attempt, previous))
        finally:
            attempt.driver_gate.dismiss()
        self._request.log.record("recovered", self._place, attempt=previous.attempt)
        if verdict is NotExecuted or isinstance(verdict, NotExecuted):
            self.doubt = None
            return None
        return await self._commit(verdict, replaces)

    async def _commit(
        self, verdict: object, replaces: int | None, *, kind: str | None = None
    ) -> Result:
        """Record what became of the earlier attempt; from here on the attempt ends itself."""
        attempt = self.attempt(replaces=replaces, counts=False)
        self.settling = True
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

    def _new_journal(self) -> Started:
        client, fingerprint = self._request.client, self._request.fingerprint
        return Started(
            key=self._request.key,
            attempt=1,
            attempt_id=str(uuid.UUID(int=client.rng.getrandbits(_ID_BITS), version=4)),
            payload_hash=fingerprint.hash,
            alg=fingerprint.alg,
            owner={
                "session": f"{client.session_id:#x}",
                "client_id": client_id_of(client),
                "host": client.identity.host,
                "pid": client.identity.pid,
            },
            lock="",
            started_ms=client.wall_ms(),
            ttl_ms=self._options.started_ttl_ms,
        )


async def _no_execution(verdict: Awaitable[object]) -> object:
    try:
        return await verdict
    except NotExecuted as nothing:
        return nothing
