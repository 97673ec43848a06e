"""Who leads: one session of those that stand, in the order in which they stood.

``await Election(zk, "/leader").run(lead)`` stands, leads one term and stands down. ``serve`` leads
term after term, the leader selector; `LeaderLatch` stands for as long as it is open and says
whether it leads.

Invariants
    I1  A term ends when its session does: the function is cancelled by the local lease, before the
        ensemble can have given the leadership to another.
    I2  Only fencing makes a late write harmless: `term.fencing_token` rises with every leader.

Znodes and costs are those of `Lock` on the same path: kazoo's `Election` and Curator's
`LeaderSelector` there take part in the same election, and Curator's `LeaderLatch` too. Logger
``zabd.client.election``, with the events of a lock.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from zabd.client.client import Client
from zabd.client.events import EventStream
from zabd.client.recipes.lock import Lock, LockLostError
from zabd.client.recipes.place import PlaceGoneError
from zabd.model.acl import Acl
from zabd.model.errors import (
    ConnectionLossError,
    LocalProtocolError,
    SessionExpiredError,
    ZabdError,
)

T = TypeVar("T")

log = logging.getLogger("zabd.client.election")

# After a failed attempt to stand, so that a broken ensemble is not hammered.
STAND_AGAIN_S = 1.0


class LeadershipLostError(LockLostError):
    """The term ended with its session, or with its znode; the function was cancelled."""


class Term:
    """What a leader knows of its leadership."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.fencing_token = lock.fencing_token

    @property
    def leading(self) -> bool:
        """Whether we lead, as far as can be known here and now: see `verify`."""
        return self._lock.held

    async def verify(self) -> None:
        """Ask the leader of the ensemble whether we lead at this moment.

        Raises:
            LockLostError: we do not.
        """
        await self._lock.verify()


class _ElectionLock(Lock):
    logger: ClassVar[logging.Logger] = log


class Election:
    """An election on the znode `path`; `identifier` is for people who look at the candidates."""

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        identifier: str = "",
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        self.path = path
        self._client = client
        self._lock = _ElectionLock(client, path, identifier=identifier, acl=acl)
        self._term: Term | None = None

    async def run(self, lead: Callable[[Term], Awaitable[T]], *, timeout: float | None = None) -> T:
        """Stand, and when elected await `lead(term)`; return what it returns.

        `timeout` is for the wait. What `lead` raises is raised, but for what `verify` raised in a
        term that is lost; the leadership ends either way.

        Raises:
            LockTimeoutError: we were not elected within `timeout` seconds.
            LeadershipLostError: the session ended, or somebody deleted our znode, in the term.
            SessionExpiredError: the session ended while waiting.
        """
        await self.stand(timeout=timeout)
        term = asyncio.ensure_future(_led(lead, self.term))
        # Whatever takes us out of here, somebody has looked at how it ended.
        term.add_done_callback(_note)
        try:
            return await self._lead(term)
        finally:
            # To its end, even if who waits for it is cancelled once more.
            await asyncio.shield(self._client.spawn(self._end(term)))

    async def stand(self, *, timeout: float | None = None) -> Term:
        """Stand until elected, for who does without `run`: `stand_down` has to follow.

        Raises:
            ConnectionLossError: the connection broke each time that the znode was asked for, as by
                an `identifier` above the server's ``jute.maxbuffer``.
            LocalProtocolError: above the client's `request_bytes_max`.
            LockTimeoutError: we were not elected within `timeout` seconds.
            LeadershipLostError: the term ended as it began.
            SessionExpiredError: the session ended while waiting.
        """
        await self._lock.acquire(timeout=timeout)
        try:
            self._term = Term(self._lock)
        except LockLostError as error:
            # Time has passed since it was ours: nobody but us would stand down.
            await self._lock.release()
            raise LeadershipLostError(f"the leadership of {self.path} is lost") from error
        return self._term

    async def stand_down(self) -> None:
        """End the term; returns once the znode is gone, or the session with it."""
        await self._lock.release()

    @property
    def term(self) -> Term:
        """The term that `stand` began."""
        if self._term is None:
            raise LocalProtocolError(f"nobody here was elected at {self.path}")
        return self._term

    async def serve(self, lead: Callable[[Term], Awaitable[object]]) -> None:
        """Lead term after term, until cancelled, or until `lead` raises.

        Whoever stands behind us gets the next term: we queue anew after each. The loss of the
        session ends a term, not the service.
        """
        while True:
            try:
                await self.run(lead)
            except (LeadershipLostError, PlaceGoneError, SessionExpiredError) as error:
                log.info("standing again at %s: %s", self.path, error)

    async def contenders(self) -> list[str]:
        """The identifiers of the leader and of those who stand behind, in their order."""
        return await self._lock.contenders()

    async def _lead(self, term: "asyncio.Future[T]") -> T:
        loss = asyncio.ensure_future(self._lock.wait_lost())
        ends: list[asyncio.Future[Any]] = [term, loss]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loss.cancel()
        lost = f"the leadership of {self.path} is lost"
        if not term.done():
            raise LeadershipLostError(lost)
        try:
            return term.result()
        except LockLostError as error:
            # Of its term, by `verify`, or of another lock, which is for whoever called us.
            if self._lock.held:
                raise
            raise LeadershipLostError(lost) from error

    async def _end(self, term: "asyncio.Future[T]") -> None:
        if not term.done():
            term.cancel()
            # The next leader does not wait for it; our znode is what it waits for.
            await asyncio.wait([term])
        await self.stand_down()


class LeaderLatch:
    """Stands for as long as it is open, and says whether it leads; ``async with``, or start/close.

    A lost session makes it stand again with the next one. `changes` is an `EventStream` of True and
    False, for each change of leadership; it ends with the latch. What keeps it from standing at all
    (`stand`'s ConnectionLossError and LocalProtocolError) ends it, and is raised by `wait_leading`
    and `close`.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        identifier: str = "",
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        self.path = path
        self.changes: EventStream[bool] = EventStream()
        self._client = client
        self._lock = _ElectionLock(client, path, identifier=identifier, acl=acl)
        self._task: asyncio.Task[None] | None = None
        self._leads = asyncio.Event()

    @property
    def leading(self) -> bool:
        """Whether we lead, as far as can be known here and now: see `verify`."""
        return self._lock.held

    @property
    def fencing_token(self) -> int:
        """A number that rises with every leader."""
        return self._lock.fencing_token

    async def verify(self) -> None:
        """Ask the leader of the ensemble whether we lead at this moment.

        Raises:
            LockLostError: we do not.
        """
        await self._lock.verify()

    async def wait_leading(self, *, timeout: float | None = None) -> None:
        """Wait until we lead.

        Raises:
            TimeoutError: we did not within `timeout` seconds.
            LocalProtocolError: the client is closed.
        """
        async with asyncio.timeout(timeout):
            while not self.leading:
                self._require_standing()
                self._leads.clear()
                await self._leads.wait()

    async def contenders(self) -> list[str]:
        """The identifiers of the leader and of those who stand behind, in their order."""
        return await self._lock.contenders()

    async def start(self) -> None:
        """Stand; returns at once."""
        if self._task is None:
            self._task = self._client.spawn(self._stand())
            self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Stand down; returns once the znode is gone, or the session with it.

        Raises:
            KeeperError: the server does not let us delete the znode, as of `Lock.release`.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            await self._lock.settled()
        self.changes.close()
        if task is not None and not task.cancelled():
            task.result()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _ended(self, _: "asyncio.Task[None]") -> None:
        """Wake whoever waits for what does not come any more."""
        self._leads.set()
        self.changes.close()

    def _require_standing(self) -> None:
        task = self._task
        if task is None or not task.done():
            return
        if not task.cancelled():
            task.result()
        raise LocalProtocolError(f"the latch at {self.path} has ended with its client")

    async def _stand(self) -> None:
        while True:
            try:
                await self._lock.acquire()
            except ZabdError as error:
                if self._client.closed:
                    return
                if isinstance(error, ConnectionLossError | LocalProtocolError):
                    log.exception("cannot stand at %s", self.path)
                    raise
                log.info("standing again at %s: %s", self.path, error)
                await asyncio.sleep(STAND_AGAIN_S)
                continue
            self._leads.set()
            self.changes(True)
            try:
                await self._lock.wait_lost()
            finally:
                self.changes(False)
                await self._lock.release()


async def _led(lead: Callable[[Term], Awaitable[T]], term: Term) -> T:
    """Call it on the task: what it raises before its first step ends the term, too."""
    return await lead(term)


def _note(term: "asyncio.Future[T]") -> None:
    if not term.cancelled() and (error := term.exception()) is not None:
        log.info("a leader's function ended with %r", error)
