"""A lock that one session at a time holds, in the order in which they asked.

``async with Lock(zk, "/locks/report") as lock: await write(fence=lock.fencing_token)``

A lock in a distributed system is advisory: a holder that was stopped for longer than its session
timeout has lost the lock without noticing. `held` compares the local lease at each use, `verify`
asks the leader, and only the `fencing_token`, checked by the resource itself, closes the gap.

Znodes: ``<path>/<id>__lock__<number>``, ephemeral, named so that kazoo's locks on the same path and
ours exclude each other; with `curator` ``<path>/_c_<id>-lock-<number>``, as Curator's mutex names
its own. We wait for all of them; Curator only for names with ``lock-`` before the number, kazoo for
those that its `extra_lock_patterns` say besides. Cost: acquiring a free lock is 1 write and 1 read,
waiting adds 1 read with a watch and 1 read per wake, releasing is 1 write; one release wakes one
waiter.
"""

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Self

from zabd.client.client import Client
from zabd.client.effects import SessionState
from zabd.client.events import StateChange
from zabd.client.recipes.contenders import EXCLUSIVE, Rule, contenders_among
from zabd.client.recipes.place import Place, PlaceGoneError
from zabd.client.recipes.revocation import REVOKE, Revocation
from zabd.client.recipes.transitions import PlaceLog
from zabd.model.acl import Acl
from zabd.model.errors import LocalProtocolError, NoNodeError, SessionExpiredError, ZabdError
from zabd.model.paths import check_path, join

_ID_BITS = 128
_OVER = frozenset({SessionState.LOST, SessionState.CLOSED})


class LockError(ZabdError):
    """A lock is not, or not any more, the caller's."""


class LockTimeoutError(LockError):
    """The lock was not free in time; no znode is left behind."""


class LockLostError(LockError):
    """The lock was held and is not any more: its session or its znode is gone."""


class Lock:
    """A lock on the znode `path`, which is created when missing; reusable.

    `identifier` is the contender's data, for people who look at the queue. Tasks that share one
    `Lock` queue for it in this process first. With `reentrant` the task that holds it may acquire
    it again, and releases it as often. With `curator` Curator's locks wait for this one too, and
    kazoo's only with ``extra_lock_patterns=["lock-"]``. `on_revoke` is called when somebody asks
    the holder to let go (`revoke`, or Curator's `Revoker`); it is for the holder to decide, and
    costs a read.
    """

    suffix: ClassVar[str] = "__lock__"
    rule: ClassVar[Rule] = EXCLUSIVE
    logger: ClassVar[logging.Logger] = logging.getLogger("zabd.client.lock")

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        identifier: str = "",
        reentrant: bool = False,
        curator: bool = False,
        on_revoke: Callable[[], object] | None = None,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        check_path(path)
        self.path = path
        self._client = client
        self._data = identifier.encode()
        self._acl = acl
        self._reentrant = reentrant
        self._curator = curator
        self._on_revoke = on_revoke
        self._local = asyncio.Lock()
        self._place: Place | None = None
        self._revocation: Revocation | None = None
        self._owner: object = None
        self._depth = 0
        self._lost = asyncio.Event()

    # State.

    @property
    def held(self) -> bool:
        """Whether we hold the lock, as far as can be known here and now: see `verify`."""
        return self._place is not None and not self._lost.is_set() and self._place.alive

    @property
    def fencing_token(self) -> int:
        """A number that rises with every holder; a resource refuses lower ones than it has seen."""
        return self._held_place().token

    @property
    def znode(self) -> str:
        """The path of our znode."""
        return self._held_place().path

    async def verify(self) -> None:
        """Ask the leader whether we hold the lock at this moment.

        Raises:
            LockLostError: we do not.
        """
        place = self._held_place()
        try:
            await place.verify()
        except (PlaceGoneError, SessionExpiredError) as error:
            self._lost.set()
            raise LockLostError(f"{place.path} is not ours any more: {error}") from error

    async def wait_lost(self) -> None:
        """Wait until the lock is lost, or its client closed; releasing it does not count."""
        await self._lost.wait()

    async def settled(self) -> None:
        """Wait until this object neither holds nor waits, and has no znode left in the queue."""
        async with self._local:
            pass

    async def contenders(self) -> list[str]:
        """The identifiers of all who hold or wait, in their order."""
        found = []
        for name in await self._queue():
            try:
                data, _ = await self._client.get(join(self.path, name))
            except NoNodeError:
                continue
            found.append((data or b"").decode(errors="replace"))
        return found

    async def revoke(self) -> bool:
        """Ask whoever holds the lock to let go, as Curator does; False if nobody holds it.

        The holder need not listen; kazoo's locks do not. Its identifier is overwritten.
        """
        for name in (await self._queue())[:1]:
            try:
                await self._client.set(join(self.path, name), REVOKE)
            except NoNodeError:
                return False
            return True
        return False

    # Acquiring and releasing.

    async def acquire(
        self, *, blocking: bool = True, timeout: float | None = None, owner: object = None
    ) -> bool:
        """Take the lock; False only without `blocking`, when somebody else has it.

        `owner` is who may acquire a re-entrant lock again, by default the current task.

        Raises:
            LockTimeoutError: it was not free within `timeout` seconds, connected or not.
            ConnectionLossError: the connection broke each time that the znode was asked for, as by
                an `identifier` above the server's ``jute.maxbuffer``.
            SessionExpiredError: the session ended before the lock was ours.
            LockLostError: the re-entrant lock is ours, and lost.
        """
        owner = asyncio.current_task() if owner is None else owner
        if self._reentrant and self._depth and owner == self._owner:
            self._held_place()
            self._depth += 1
            return True
        try:
            async with asyncio.timeout(timeout):
                if not await self._take_local(blocking=blocking):
                    return False
                taken = await self._acquire_in_ensemble(blocking=blocking)
        except TimeoutError:
            raise LockTimeoutError(f"{self.path} was not free within {timeout} s") from None
        if taken:
            self._owner, self._depth = owner, 1
        return taken

    async def release(self) -> None:
        """Give the lock back; returns once the znode is gone, or the session with it.

        Raises:
            KeeperError: the server does not let us delete it, because of its ACL for example; it
                keeps others out until the session ends.
        """
        place = self._place
        if place is None:
            raise LocalProtocolError(f"the lock {self.path} is not held")
        self._depth -= 1
        if self._depth:
            return
        self._place = self._owner = None
        if self._revocation is not None:
            self._revocation.end()
        try:
            await place.leave("released")
        finally:
            self._local.release()
        if place.stuck is not None:
            raise place.stuck

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.release()

    async def _take_local(self, *, blocking: bool) -> bool:
        """Take this object's own lock; without `blocking` only if no task has it or waits for it.

        `locked` alone would not tell: released, and not yet taken by the next in line, it is free.
        """
        if blocking:
            return await self._local.acquire()
        try:
            # What nobody wants is taken without a turn of the loop.
            async with asyncio.timeout(0):
                return await self._local.acquire()
        except TimeoutError:
            return False

    async def _acquire_in_ensemble(self, *, blocking: bool) -> bool:
        place = self._new_place()
        self._lost = asyncio.Event()
        try:
            await place.take()
            if blocking:
                await place.wait_for_turn()
            elif (await place.look()).ahead is not None:
                raise _BusyError
            if self._on_revoke is not None:
                self._revocation = await Revocation.watch(place, self._on_revoke)
            place.acquired()
        except _BusyError:
            await asyncio.shield(self._give_up(place, "conflict"))
            return False
        except BaseException as error:
            # The znode must go, whatever took us out of the queue; whoever asks next waits for it.
            self._give_up(place, _outcome_of(error))
            raise
        # No turn of the loop between the comparison and this: a loss from now on is noticed.
        self._hold(place)
        return True

    def _new_place(self) -> Place:
        return Place(
            self._client,
            self.path,
            self._new_prefix(),
            self._data,
            PlaceLog(self.logger, self.path),
            acl=self._acl,
            rule=self.rule,
        )

    def _new_prefix(self) -> str:
        id = f"{self._client.rng.getrandbits(_ID_BITS):032x}"
        if not self._curator:
            return f"{id}{self.suffix}"
        return f"_c_{id[:8]}-{id[8:12]}-{id[12:16]}-{id[16:20]}-{id[20:]}-lock-"

    def _hold(self, place: Place) -> None:
        """Be the holder of a place that was just compared with the lease (its `acquired`)."""
        self._place = place
        lost = self._lost

        def notice(change: StateChange) -> None:
            if change.session_id == place.session_id and change.state in _OVER:
                lost.set()

        remove = self._client.on_transition(notice)
        place.when_ended(remove)

    def _give_up(self, place: Place, outcome: str) -> asyncio.Task[None]:
        leaving = place.leave_soon(outcome)
        leaving.add_done_callback(lambda _: self._local.release())
        return leaving

    def _held_place(self) -> Place:
        if self._place is None:
            raise LocalProtocolError(f"the lock {self.path} is not held")
        if not self.held:
            raise LockLostError(f"{self._place.path} is lost: its session is over")
        return self._place

    async def _queue(self) -> list[str]:
        try:
            children = await self._client.get_children(self.path)
        except NoNodeError:
            return []
        return [contender.name for contender in contenders_among(children, self.rule.contends)]


class _BusyError(Exception):
    """Somebody is ahead, and the caller does not want to wait."""


def _outcome_of(error: BaseException) -> str:
    # The deadline's cancellation looks like any other from in here.
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "error"
