"""An attempt: what the holder of a key may do while it works, and how its work ends.

Invariants
    I1  An attempt ends once: by an outcome, by freeing the key, in doubt, or by losing the key.
    I2  After it is lost nothing is written for it.
    I3  How it ends is settled on the servers even if the caller is cancelled meanwhile.
    I4  `complete`, `fail` and `release` end it, whatever they raise: with an outcome that cannot be
        recorded it is in doubt, with a key that is lost it is forsaken. The lock never stays.

Dedup recipe, sections 5.6, 5.7, 7 and 8.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from zabd.client.events import EventStream
from zabd.client.recipes.dedup import outcome
from zabd.client.recipes.dedup.ending import Doubt, Ending
from zabd.client.recipes.dedup.errors import (
    DedupError,
    FencedError,
    LockRevokedError,
    SessionLostError,
)
from zabd.client.recipes.dedup.gate import Gate
from zabd.client.recipes.dedup.keeper import Keeper
from zabd.client.recipes.dedup.ledger import Ledger
from zabd.client.recipes.dedup.records import Result, Started
from zabd.client.recipes.dedup.request import Request
from zabd.client.recipes.place import PlaceGoneError
from zabd.model.errors import ClosingError, LocalProtocolError, SessionExpiredError
from zabd.model.ops import MultiOp
from zabd.model.results import MultiPart
from zabd.model.watch_events import EventType, WatchEvent

T = TypeVar("T")


class Attempt:
    """The caller's context while it holds the key.

    `replay` is the recorded outcome if there was one already; then nothing else here is of use.
    `lost` is set when the key is not ours any more, and `failure` says why.
    """

    def __init__(
        self,
        request: Request,
        ledger: Ledger,
        started: Started,
        *,
        doubt: Doubt | None,
        replaces: int | None,
        on_end: Callable[[Result | None], None],
        counts: bool = True,
    ) -> None:
        self.key = request.key
        self.attempt = started.attempt
        self.attempt_id = started.attempt_id
        self.previous = doubt.previous if doubt else None
        self.replay: Result | None = None
        self.lost = asyncio.Event()
        self._request = request
        self._place = ledger.place
        self._ledger = ledger
        self._keeper = Keeper(ledger, started)
        self._ended = False
        self._aborts: list[Callable[[], None]] = []
        self._gate = Gate(
            self._place,
            self._error,
            tell=lambda event: request.log.record(event, self._place),
            on_failure=self._on_failure,
        )
        self._ending = Ending(
            request,
            ledger,
            started.attempt,
            doubt=doubt,
            replaces=replaces,
            on_failure=self._gate.fail,
            on_end=on_end,
            counts=counts,
        )
        self._own_watch: asyncio.Task[None] | None = None

    # What a function may ask.

    @property
    def fencing_token(self) -> int:
        """Send it with every external write; the resource refuses lower ones than it has seen."""
        return self._place.token

    @property
    def fence(self) -> tuple[int, int]:
        """`token_epoch`, 0 without one, and the token, for a resource that compares pairs.

        Raise the epoch when an ensemble was made anew or restored from a backup: tokens then start
        from lower ones.
        """
        return self._request.options.token_epoch or 0, self._place.token

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
    def record(self) -> Result | None:
        """The outcome, once it is recorded."""
        return self._ending.result

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

    async def checkpoint(
        self,
        name: str,
        data: Any = None,  # noqa: ANN401 - any JSON
        ops: Sequence[MultiOp] = (),
    ) -> None:
        """Note how far the work has come, for the attempt that may have to go on from here.

        `ops` are done together with it, exactly once.

        Raises:
            FencedError, SessionLostError: the key is not ours, and nothing was done.
        """
        self._require_open()
        if not self._request.options.journal:
            raise LocalProtocolError("journal=False keeps no checkpoints")
        await self._as_ours(self._keeper.checkpoint(name, data, list(ops)))

    # How it ends.

    async def complete(self, value: Any = None, *, result_ref: str | None = None) -> None:  # noqa: ANN401
        """Record the value: later callers get it replayed.

        Raises:
            ResultTooLargeError: it is recorded that this happened, but not the value.
            TypeError, ValueError: the same, of a value that is no JSON; or what the codec raised.
            FencedError, SessionLostError: nothing is recorded, somebody else may run it.
            KeeperError: the ensemble refuses the record; the attempt stays in doubt.
        """
        self._require_open_to_end()
        kept = outcome.keep(self._request, value)
        started = self._keeper.started
        await self._commit(outcome.completed(self._request, self._place, started, kept, result_ref))
        unfit = self._unfit(kept)
        if unfit is not None:
            raise unfit

    async def fail(self, error: BaseException, *, kind: str | None = None) -> None:
        """Record a failure: later callers get it replayed as `ReplayedFailureError`.

        `kind` is recorded as its type, by default the name of the exception's class. Raises as
        `complete` does; without its data a failure is recorded by its type and text.
        """
        unfit = await self.record_failure(error, kind=kind)
        if unfit is not None:
            raise unfit

    async def release(self) -> None:
        """Free the key: nothing has happened, and the next caller starts afresh."""
        self._require_open_to_end()
        self._end()
        await self._ending.free()

    async def leave_in_doubt(self, outcome: str = "error") -> None:
        """Give only the lock back: whoever comes next is told that this may have happened."""
        if self._end():
            await self._ending.leave(outcome)

    # For those who run it.

    def start(self, on_lost: Callable[[], None] | None = None) -> None:
        """The work begins; call `on_lost` when the key is lost before it has ended.

        The lease is compared first: the way here may have taken long.
        """
        try:
            self._gate.check()
        except DedupError:
            self.forsake()
            raise
        self._keeper.start(self._request)
        if on_lost is not None:
            self._aborts.append(on_lost)
        if self._request.options.watch_own:
            self._own_watch = self._place.client.spawn(self._watch_own())

    async def record_failure(
        self, error: BaseException, *, kind: str | None = None
    ) -> Exception | None:
        """As `fail`, but return what was wrong with the failure's data."""
        self._require_open_to_end()
        kept = outcome.keep_failure(self._request, error, kind)
        await self._commit(outcome.failed(self._request, self._place, self._keeper.started, kept))
        return self._unfit(kept)

    @property
    def driver_gate(self) -> Gate:
        """The gate for `drive`."""
        return self._gate

    def forsake(self) -> None:
        """End an attempt that is lost; nothing is written (I2)."""
        if self._end():
            self._ending.forsake()

    # Inside.

    async def _commit(self, result: Result) -> None:
        self._end()
        await self._ending.commit(result)

    def _unfit(self, kept: outcome.Value) -> Exception | None:
        """Why the record has not all of the outcome, if so."""
        recorded = self._ending.result
        if kept.omitted or recorded is None or not recorded.omitted:
            return kept.error
        return outcome.omission(self._request)

    def _end(self) -> bool:
        if self._ended:
            return False
        self._ended = True
        self._gate.dismiss()
        self._keeper.end()
        if self._own_watch is not None:
            self._own_watch.cancel()
        return True

    def _require_open(self) -> None:
        if self._ended:
            raise LocalProtocolError("this attempt has ended: it was said how, or the key was lost")
        self._gate.check()

    def _require_open_to_end(self) -> None:
        """As `_require_open`; a key that is found to be lost has ended the attempt (I4)."""
        try:
            self._require_open()
        except DedupError:
            self.forsake()
            raise

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


Entered: TypeAlias = Result | Attempt
