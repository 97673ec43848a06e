"""An attempt: what the holder of a key may do while it works, and how its work ends.

Invariants
    I1  An attempt ends once: by an outcome, by freeing the key, in doubt, or by losing the key.
    I2  After it is lost nothing is written for it.
    I3  How it ends is settled on the servers even if the caller is cancelled meanwhile.

Dedup recipe, sections 5.6, 5.7, 7 and 8.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from zabd.client.events import EventStream
from zabd.client.recipes.dedup.errors import (
    DedupError,
    FencedError,
    LockRevokedError,
    ResultTooLargeError,
    SessionLostError,
)
from zabd.client.recipes.dedup.gate import Gate
from zabd.client.recipes.dedup.ledger import Ledger, NotCommittedError
from zabd.client.recipes.dedup.options import Previous
from zabd.client.recipes.dedup.records import COMPLETED, FAILED, Result, Started
from zabd.client.recipes.dedup.request import Request
from zabd.client.recipes.place import Place, PlaceGoneError
from zabd.model.errors import ClosingError, LocalProtocolError, SessionExpiredError
from zabd.model.ops import MultiOp
from zabd.model.results import MultiPart
from zabd.model.watch_events import EventType, WatchEvent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Value:
    """A value as a record holds it."""

    stored: Any
    omitted: bool
    digest: str | None
    error: Exception | None


class Attempt:
    """The caller's context while it holds the key.

    `replay` is the recorded outcome if there was one already; then nothing else here is of use.
    `lost` is set when the key is not ours any more, and `failure` says why.
    """

    def __init__(
        self,
        request: Request,
        place: Place,
        ledger: Ledger,
        started: Started,
        *,
        previous: Previous | None,
        in_doubt: bool,
        replaces: int | None,
        on_end: Callable[[Result | None], None],
    ) -> None:
        self.key = request.key
        self.attempt = started.attempt
        self.attempt_id = started.attempt_id
        self.previous = previous
        self.replay: Result | None = None
        self.lost = asyncio.Event()
        self.record: Result | None = None
        self._request = request
        self._place = place
        self._ledger = ledger
        self._started = started
        self._in_doubt = in_doubt
        self._replaces = replaces
        self._on_end = on_end
        self._ended = False
        self._aborts: list[Callable[[], None]] = []
        self._gate = Gate(
            place,
            self._error,
            tell=lambda event: request.log.record(event, place),
            on_failure=self._on_failure,
        )
        self._own_watch: asyncio.Task[None] | None = None

    # What a function may ask.

    @property
    def fencing_token(self) -> int:
        """Send it with every external write; the resource refuses lower ones than it has seen."""
        return self._place.token

    @property
    def sequence(self) -> int:
        """The number of the lock znode, for display: it is not a token."""
        return self._place.sequence

    @property
    def znode_path(self) -> str:
        """The lock znode."""
        return self._place.path

    @property
    def failure(self) -> DedupError | None:
        """Why the key is not ours any more."""
        return self._gate.failure

    @property
    def ended(self) -> bool:
        """Whether it was said how the attempt ends."""
        return self._ended

    async def gate(self) -> None:
        """Wait while the connection is suspended; raise if the key is not ours any more."""
        await self._gate.wait()

    async def verify(self) -> None:
        """Ask the leader whether the key is ours at this moment: before an irreversible step.

        Raises:
            FencedError, SessionLostError: it is not.
        """
        self._require_open()
        try:
            await self._place.verify()
        except PlaceGoneError as error:
            raise self._fail(FencedError, str(error)) from error
        except (SessionExpiredError, ClosingError) as error:
            raise self._fail(SessionLostError, str(error)) from error
        self._gate.check()

    async def multi(self, ops: Sequence[MultiOp]) -> tuple[MultiPart, ...]:
        """Do these ops if, at their zxid, the key is ours; return their results.

        Raises:
            FencedError, SessionLostError: it is not, and nothing was done.
        """
        self._require_open()
        return await self._as_ours(self._ledger.guarded(list(ops)))

    async def checkpoint(self, name: str, data: Any = None) -> None:  # noqa: ANN401 - any JSON
        """Note how far the work has come, for the attempt that may have to go on from here."""
        self._require_open()
        if not self._request.options.journal:
            raise LocalProtocolError("journal=False keeps no checkpoints")
        self._started = replace(self._started, recovery_point=name, recovery_data=data)
        await self._as_ours(self._ledger.rewrite(self._started))

    # How it ends.

    async def complete(self, value: Any = None, *, result_ref: str | None = None) -> None:  # noqa: ANN401
        """Record the value: later callers get it replayed.

        Raises:
            ResultTooLargeError: it is recorded that this happened, but not the value.
            FencedError, SessionLostError: nothing is recorded, somebody else may run it.
        """
        self._require_open()
        kept = self._keep(value)
        await self._commit(self._result(COMPLETED, kept, None, result_ref))
        if kept.error is not None:
            raise kept.error

    async def fail(self, error: BaseException, *, kind: str | None = None) -> None:
        """Record a failure: later callers get it replayed as `ReplayedFailureError`.

        `kind` is recorded as its type, by default the name of the exception's class.
        """
        self._require_open()
        failure = {
            "type": kind or type(error).__name__,
            "message": str(error),
            "data": getattr(error, "data", None),
        }
        nothing = _Value(None, omitted=False, digest=None, error=None)
        await self._commit(self._result(FAILED, nothing, failure, None))

    async def release(self) -> None:
        """Free the key: nothing has happened, and the next caller starts afresh."""
        self._require_open()
        await self._settle(self._free())

    async def leave_in_doubt(self, outcome: str = "error") -> None:
        """Give only the lock back: whoever comes next is told that this may have happened."""
        if self._end():
            self._request.log.record("in_doubt", self._place, attempt=self.attempt)
            await self._settle(self._place.leave(outcome))

    # For those who run it.

    def start(self, on_lost: Callable[[], None] | None = None) -> None:
        """The work begins; call `on_lost` when the key is lost before it has ended."""
        if on_lost is not None:
            self._aborts.append(on_lost)
        if self._request.options.watch_own:
            self._own_watch = self._place.client.spawn(self._watch_own())

    @property
    def driver_gate(self) -> Gate:
        """The gate for `drive`."""
        return self._gate

    def forsake(self) -> None:
        """End an attempt that is lost; nothing is written (I2)."""
        if self._end():
            self._place.leave_soon("lost").add_done_callback(lambda _: self._on_end(None))

    # Inside.

    async def _commit(self, result: Result) -> None:
        await self._settle(self._record(result))

    async def _record(self, result: Result) -> None:
        request = self._request
        journal = request.options.journal
        try:
            await self._ledger.commit(result, journal=journal, replaces=self._replaces)
        except NotCommittedError as error:
            lost = request.error(SessionLostError, "the session ended before the outcome was kept")
            lost.committed = False if error.known else None
            self._gate.fail(lost)
            raise lost from error
        except FencedError as error:
            await self._place.leave("fenced")
            raise self._fail(FencedError, str(error)) from error
        self.record = result
        request.log.record("committed", self._place, attempt=self.attempt, status=result.status)
        if result.omitted:
            request.log.record("omitted", self._place, attempt=self.attempt)
        self._place.left("completed" if result.status == COMPLETED else "failed")

    async def _free(self) -> None:
        # An earlier attempt is still in doubt, whatever became of this one: its journal stays.
        if self._request.options.journal and not self._in_doubt:
            try:
                await self._ledger.clear()
                self._place.left("error")
            except (SessionExpiredError, ClosingError):
                await self._place.leave("error")
        else:
            await self._place.leave("error")

    async def _settle(self, work: Coroutine[object, object, None]) -> None:
        """Do what ends the attempt, to its end (I3)."""
        self._end()
        task = self._place.client.spawn(work)
        task.add_done_callback(lambda _: self._on_end(self.record))
        await asyncio.shield(task)

    def _end(self) -> bool:
        if self._ended:
            return False
        self._ended = True
        self._gate.dismiss()
        if self._own_watch is not None:
            self._own_watch.cancel()
        return True

    def _require_open(self) -> None:
        if self._ended:
            raise LocalProtocolError("this attempt has ended: it was said how, or the key was lost")
        self._gate.check()

    async def _as_ours(self, work: Coroutine[object, object, T]) -> T:
        try:
            return await work
        except FencedError as error:
            raise self._fail(FencedError, str(error)) from error
        except (SessionExpiredError, ClosingError) as error:
            raise self._fail(SessionLostError, str(error)) from error

    async def _watch_own(self) -> None:
        stream: EventStream[WatchEvent] = EventStream()
        while not self._ended:
            if await self._place.bound.get(self._place.path, watch=stream) is None:
                self._fail(LockRevokedError, f"{self._place.path} was deleted by somebody else")
                return
            if (await anext(stream)).type is EventType.NONE:
                return

    def _fail(self, kind: type[DedupError], message: str) -> DedupError:
        failure = self._error(kind, message)
        self._gate.fail(failure)
        return failure

    def _error(self, kind: type[DedupError], message: str) -> DedupError:
        return self._request.error(kind, message, session_id=self._place.session_id)

    def _on_failure(self) -> None:
        self.lost.set()
        for call in self._aborts:
            call()

    def _keep(self, value: Any) -> _Value:  # noqa: ANN401 - whatever the function returned
        """The value as a record holds it; what cannot be held is left out, never the record."""
        options = self._request.options
        try:
            stored = options.codec.encode(value)
            text = json.dumps(stored, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            return _Value(None, omitted=True, digest=None, error=error)
        data = text.encode()
        if len(data) <= options.max_inline:
            return _Value(stored, omitted=False, digest=None, error=None)
        too_large = self._error(
            ResultTooLargeError,
            f"the value has {len(data)} bytes, max_inline is {options.max_inline}: the outcome is"
            " recorded without it",
        )
        return _Value(None, omitted=True, digest=hashlib.sha256(data).hexdigest(), error=too_large)

    def _result(
        self,
        status: str,
        value: _Value,
        failure: dict[str, object] | None,
        result_ref: str | None,
    ) -> Result:
        started, options = self._started, self._request.options
        return Result(
            key=self.key,
            status=status,
            attempt=started.attempt,
            attempt_id=started.attempt_id,
            payload_hash=started.payload_hash,
            alg=started.alg,
            fencing_token=self.fencing_token,
            seq=self.sequence,
            codec=options.codec.name,
            value=value.stored,
            result_ref=result_ref,
            omitted=value.omitted,
            error=failure,
            owner=started.owner,
            started_ms=started.started_ms,
            finished_ms=self._place.client.wall_ms(),
            ttl_ms=int(options.result_ttl * 1000),
            digest=value.digest,
        )


Entered: TypeAlias = Result | Attempt
