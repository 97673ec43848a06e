"""Dedup for threads: the same names, on a `SyncClient`.

A function that runs on a thread cannot be stepped or cancelled. It asks: `ctx.gate()` blocks while
the connection is suspended and raises once the key is lost, `ctx.lost` is an event, and leaving the
block after the loss raises.
"""

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar

from zabd.client.recipes.dedup import (
    Attempt,
    Completed,
    Dedup,
    Failed,
    NotExecuted,
    Outcome,
    Result,
    Status,
    Swept,
)
from zabd.client.recipes.dedup.hold import finish, replayed
from zabd.client.recipes.dedup.request import Request
from zabd.client.sync import SyncClient
from zabd.model.ops import MultiOp
from zabd.model.results import MultiPart

T = TypeVar("T")


class SyncAttempt:
    """The context of a block or function: as `Attempt`, with methods that block."""

    def __init__(self, client: SyncClient, attempt: Attempt | None, replay: Any) -> None:  # noqa: ANN401
        self.replay: Outcome[Any] | None = replay
        self.lost = threading.Event()
        self._client = client
        self._attempt = attempt

    @property
    def attempt(self) -> Attempt:
        """The attempt underneath, for its `attempt`, `fencing_token`, `previous` and others."""
        assert self._attempt is not None, "the outcome is in `replay`; there is no attempt"
        return self._attempt

    @property
    def fencing_token(self) -> int:
        """Send it with every external write."""
        return self.attempt.fencing_token

    @property
    def fence(self) -> tuple[int, int]:
        """`token_epoch` and the token, for a resource that compares pairs."""
        return self.attempt.fence

    def gate(self) -> None:
        """Block while the connection is suspended; raise if the key is not ours any more."""
        self._client.run(self.attempt.gate())

    def verify(self) -> None:
        """Ask the leader whether the key is ours at this moment."""
        self._client.run(self.attempt.verify())

    def multi(self, ops: Sequence[MultiOp]) -> tuple[MultiPart, ...]:
        """Do these ops if, at their zxid, the key is ours."""
        return self._client.run(self.attempt.multi(ops))

    def checkpoint(self, name: str, data: object = None, ops: Sequence[MultiOp] = ()) -> None:
        """Note how far the work has come, together with `ops`."""
        self._client.run(self.attempt.checkpoint(name, data, ops))

    def complete(self, value: object = None, *, result_ref: str | None = None) -> None:
        """Record the value."""
        self._client.run(self.attempt.complete(value, result_ref=result_ref))

    def fail(self, error: BaseException) -> None:
        """Record a failure."""
        self._client.run(self.attempt.fail(error))

    def release(self) -> None:
        """Free the key: nothing has happened."""
        self._client.run(self.attempt.release())


class SyncHold:
    """The context manager that `SyncDedup.hold` returns."""

    def __init__(self, client: SyncClient, dedup: Dedup, request: Request) -> None:
        self._client = client
        self._dedup = dedup
        self._request = request
        self._context: SyncAttempt | None = None

    def __enter__(self) -> SyncAttempt:
        self._context = self._client.run(self._enter(), undo=_not_executed)
        return self._context

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._context is not None, "entered"
        if self._context.replay is None:
            self._client.run(finish(self._context.attempt, error, self._request))

    async def _enter(self) -> SyncAttempt:
        entered = await self._dedup.enter(self._request)
        if isinstance(entered, Result):
            return SyncAttempt(self._client, None, replayed(self._request, entered))
        context = SyncAttempt(self._client, entered, None)
        entered.start(on_lost=context.lost.set)
        return context


async def _not_executed(context: SyncAttempt) -> None:
    if context.replay is None:
        await context.attempt.release()


class SyncDedup:
    """As `Dedup`, with methods that block; functions run on the caller's thread."""

    def __init__(self, client: SyncClient, base: str = "/dedup", **options: Any) -> None:  # noqa: ANN401
        self._client = client
        self._dedup = Dedup(client.asyncio_client, base, **options)
        self._refuse_timeout(options)

    def run(
        self,
        key: str,
        function: Callable[[SyncAttempt], T],
        *,
        payload: object = None,
        **options: Any,  # noqa: ANN401 - those of Dedup
    ) -> Outcome[T]:
        """Run `function(ctx)` once for the key, or return what was recorded for it."""
        with self.hold(key, payload=payload, **options) as ctx:
            if ctx.replay is not None:
                return ctx.replay
            value = function(ctx)
            ctx.complete(value)
        attempt = ctx.attempt
        assert attempt.record is not None
        return Outcome(value, False, attempt.attempt, attempt.fencing_token, attempt.record)

    def hold(self, key: str, *, payload: object = None, **options: Any) -> SyncHold:  # noqa: ANN401
        """Hold the key in a ``with`` block, which says itself how it ended."""
        self._refuse_timeout(options)
        request = self._dedup.request(key, payload, options)
        return SyncHold(self._client, self._dedup, request)

    def idempotent(
        self,
        *,
        key: Callable[..., str],
        payload: Callable[..., object] | None = None,
        **options: Any,  # noqa: ANN401 - those of Dedup
    ) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Deduplicate the calls of a function, which gets `ctx` as an argument.

        `key` and `payload` are called with the function's own arguments.
        """

        def decorate(function: Callable[..., T]) -> Callable[..., T]:
            @wraps(function)
            def call(*args: Any, **kwargs: Any) -> T:  # noqa: ANN401 - the function's own
                outcome = self.run(
                    key(*args, **kwargs),
                    lambda ctx: function(*args, ctx=ctx, **kwargs),
                    payload=payload(*args, **kwargs) if payload else None,
                    **options,
                )
                return outcome.value

            return call

        return decorate

    def status(self, key: str, *, strict: bool = False) -> Status:
        """Say what is known of a key, as of now."""
        return self._client.run(self._dedup.status(key, strict=strict))

    def forget(self, key: str) -> bool:
        """Take the key's lock and delete its records."""
        return self._client.run(self._dedup.forget(key))

    def resolve(self, key: str, verdict: Completed[Any] | Failed | type[NotExecuted]) -> bool:
        """Settle an attempt in doubt; return whether there was one."""
        return self._client.run(self._dedup.resolve(key, verdict))

    def sweep(self, *, limit: int = 1000, rate: float = 100.0, after: str = "") -> Swept:
        """Remove what servers without containers and TTLs leave behind, one page at a time."""
        return self._client.run(self._dedup.sweep(limit=limit, rate=rate, after=after))

    @staticmethod
    def _refuse_timeout(options: dict[str, Any]) -> None:
        if options.get("execution_timeout") is not None:
            raise ValueError("execution_timeout: a thread cannot be cancelled; look at ctx.lost")
