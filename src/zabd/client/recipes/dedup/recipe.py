"""Request deduplication: one execution and one recorded outcome per idempotency key.

``out = await Dedup(zk).run("req-42", charge, payload=body)``

Alone this cannot promise that the function's effects outside of the ensemble happen exactly once:
a holder that was stopped past its session timeout may wake in the middle of a call. Send
`ctx.fencing_token` with every external write and let the resource refuse lower ones than it has
seen, or write to something that is idempotent itself. What is promised for a key, inside its
retention: one owner at any zxid, one recorded outcome, replay of it to every later caller with the
same payload, a loud error for another payload, no key stuck behind a crash, and a next owner that
is told when the one before it may have begun.

Not made for hundreds of operations a second on one ensemble: a new key costs two quorum writes, a
duplicate two reads.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import unquote

from zabd.client.client import Client
from zabd.client.recipes.dedup.attempt import Attempt, Entered
from zabd.client.recipes.dedup.contention import Contention
from zabd.client.recipes.dedup.ensemble_time import EnsembleTime
from zabd.client.recipes.dedup.errors import NotExecuted, SessionLostError
from zabd.client.recipes.dedup.fingerprint import Fingerprint, fingerprint
from zabd.client.recipes.dedup.flights import flights_of
from zabd.client.recipes.dedup.hold import Hold
from zabd.client.recipes.dedup.keys import znode_name
from zabd.client.recipes.dedup.log import DedupLog
from zabd.client.recipes.dedup.meter import meter_of, unheard
from zabd.client.recipes.dedup.operator import forget, read_status
from zabd.client.recipes.dedup.options import Completed, Failed, Options, Outcome, Previous
from zabd.client.recipes.dedup.records import Result
from zabd.client.recipes.dedup.request import Request
from zabd.client.recipes.dedup.run import execute
from zabd.client.recipes.dedup.status import Status
from zabd.client.recipes.dedup.sweep import Sweeper, Swept
from zabd.model.paths import check_path, join

T = TypeVar("T")


def _fingerprint(payload: object, options: Options) -> Fingerprint:
    if options.fingerprint is not None and payload is not None:
        return options.fingerprint(payload)
    return fingerprint(payload, select=options.select, hmac_key=options.hmac_key)


class Dedup:
    """Deduplication under the znode `base`; the other options are those of `Options`."""

    def __init__(self, client: Client, base: str = "/dedup", **options: Any) -> None:  # noqa: ANN401
        check_path(base)
        self.client = client
        self.base = base
        self.options = Options(**options)
        self._time = EnsembleTime(client.now_ms)
        self._warned = False

    async def run(
        self,
        key: str,
        function: Callable[[Attempt], Awaitable[T]],
        *,
        payload: object = None,
        **options: Any,  # noqa: ANN401 - see Options
    ) -> Outcome[T]:
        """Run `function(ctx)` once for the key, or return what was recorded for it.

        The function is not resumed while the connection is suspended, and cancelled when the
        session is lost. Raises the errors of `dedup.errors`, and what the function raises.
        """
        request = self.request(key, payload, options)
        with request.span("run"):
            entered = await self.enter(request)
            return await execute(request, entered, function)

    def hold(self, key: str, *, payload: object = None, **options: Any) -> Hold:  # noqa: ANN401
        """Hold the key in an ``async with`` block, which says itself how it ended.

        In the block look at `ctx.replay` first, then work and await `ctx.complete(value)`,
        `ctx.fail(error)` or `ctx.release()`. The block is cancelled when the session is lost.
        """
        request = self.request(key, payload, options)
        return Hold(request, lambda: self.enter(request))

    def idempotent(
        self,
        *,
        key: Callable[..., str],
        payload: Callable[..., object] | None = None,
        **options: Any,  # noqa: ANN401 - see Options
    ) -> Callable[[Callable[..., Awaitable[T]]], Callable[..., Awaitable[T]]]:
        """Deduplicate the calls of a coroutine function, which gets `ctx` as an argument.

        `key` and `payload` are called with the function's own arguments.
        """

        def decorate(function: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
            @wraps(function)
            async def call(*args: Any, **kwargs: Any) -> T:  # noqa: ANN401 - the function's own
                outcome = await self.run(
                    key(*args, **kwargs),
                    lambda ctx: function(*args, ctx=ctx, **kwargs),
                    payload=payload(*args, **kwargs) if payload else None,
                    **options,
                )
                return outcome.value

            return call

        return decorate

    async def status(self, key: str, *, strict: bool = False) -> Status:
        """Say what is known of a key, as of now; `strict` asks a quorum and not just the leader."""
        self.client.require_own_process()
        return await read_status(self.client, self._path(key, self.options), strict=strict)

    async def forget(self, key: str) -> bool:
        """Take the key's lock and delete its records; return whether there were any."""
        return await forget(self.request(key, None, {}))

    async def resolve(self, key: str, verdict: Completed[Any] | Failed | type[NotExecuted]) -> bool:
        """Settle an attempt in doubt: `Completed(value)`, `Failed(error)` or `NotExecuted`.

        Takes the lock like anybody else; returns whether there was something to settle.
        """
        if not (isinstance(verdict, Completed | Failed | NotExecuted) or verdict is NotExecuted):
            raise TypeError(f"{verdict!r}: expected Completed, Failed or NotExecuted")
        if (await self.status(key)).started is None:
            return False
        settled = False

        async def recover(_ctx: Attempt, _previous: Previous) -> object:
            nonlocal settled
            settled = True
            return verdict

        options = {
            "on_in_doubt": "recover",
            "recover": recover,
            "max_attempts": None,
            "reuse": "replay",
            "journal": True,
        }
        entered = await self._enter(replace(self.request(key, None, options), meter=unheard()))
        if isinstance(entered, Attempt):
            await entered.release()
        return settled

    async def sweep(self, *, limit: int = 1000, rate: float = 100.0, after: str = "") -> Swept:
        """Remove what servers without containers and TTLs leave behind, one page of keys at a time.

        Looks at `limit` keys at most, `rate` of them in a second, from the one behind `after`, and
        says in `Swept.after` where to go on. Only keys that nobody works on are touched.
        """
        self.client.require_own_process()
        sweeper = Sweeper(self.base, self._request_for_znode, self._time)
        return await sweeper.sweep(self.client, limit=limit, rate=rate, after=after)

    # What other ways of running are built on.

    async def enter(self, request: Request) -> Entered:
        """Contend for the key: return its record, or the attempt that the caller has to end."""
        try:
            with request.span("wait"):
                entered = await self._enter(request)
        except BaseException as error:
            request.meter.refused(error)
            raise
        if isinstance(entered, Result):
            request.meter.ended("replayed")
        return entered

    def request(self, key: str, payload: object, options: dict[str, Any]) -> Request:
        """A wish for the key, with options of its own over those of this `Dedup`."""
        self.client.require_own_process()
        chosen = replace(self.options, **options) if options else self.options
        return self._request(key, self._path(key, chosen), _fingerprint(payload, chosen), chosen)

    # Inside.

    async def _enter(self, request: Request) -> Entered:
        loop = asyncio.get_running_loop()
        limit = request.options.acquire_timeout
        deadline = None if limit is None else loop.time() + limit
        self._warn_once()
        while True:
            flight = flights_of(self.client).of(request.parent)
            try:
                return await Contention(request, flight, self._time).enter(deadline)
            except SessionLostError:
                if not request.options.retry_on_lost:
                    raise

    def _request(self, key: str, path: str, print_: Fingerprint, chosen: Options) -> Request:
        meter = meter_of(self.client)
        log = DedupLog(key, path, meter, hide_key=chosen.log_key == "hash")
        return Request(self.client, key, path, print_, chosen, log, meter)

    def _request_for_znode(self, name: str) -> Request:
        """A wish for a key of which only the znode's name is known."""
        print_ = Fingerprint(None)
        return self._request(unquote(name), join(self.base, name), print_, self.options)

    def _path(self, key: str, options: Options) -> str:
        return join(self.base, znode_name(key, hashed=options.key_hash))

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            self.options.warn_if_short(self.client.session_timeout)
