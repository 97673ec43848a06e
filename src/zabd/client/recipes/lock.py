"""A lock that one session at a time holds, in the order in which they asked.

``async with Lock(zk, "/locks/report") as lock: await write(fence=lock.fencing_token)``

A lock in a distributed system is advisory: a holder that was stopped for longer than its session
timeout has lost the lock without noticing. `held` compares the local lease at each use, `verify`
asks the leader, and only the `fencing_token`, checked by the resource itself, closes the gap.

Znodes: ``<path>/<id>__lock__<number>``, ephemeral, named so that kazoo's and Curator's locks on the
same path and ours exclude each other. Cost: acquiring a free lock is 1 write and 1 read, waiting
adds 1 read with a watch and 1 read per wake, releasing is 1 write; one release wakes one waiter.
"""

import asyncio
import logging
from types import TracebackType
from typing import Self

from zabd.client.client import Client
from zabd.client.effects import SessionState
from zabd.client.events import StateChange
from zabd.client.recipes.contenders import contenders_among
from zabd.client.recipes.place import Place, PlaceGoneError
from zabd.model.acl import Acl
from zabd.model.errors import LocalProtocolError, NoNodeError, SessionExpiredError, ZabdError
from zabd.model.ids import format_session
from zabd.model.paths import check_path, join

log = logging.getLogger("zabd.client.lock")

_ID_BITS = 128


class LockError(ZabdError):
    """A lock is not, or not any more, the caller's."""


class LockTimeoutError(LockError):
    """The lock was not free in time; no znode is left behind."""


class LockLostError(LockError):
    """The lock was held and is not any more: its session or its znode is gone."""


class Lock:
    """A lock on the znode `path`, which is created when missing; reusable, not re-entrant.

    `identifier` is the contender's data, for people who look at the queue. Tasks that share one
    `Lock` queue for it in this process first.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        identifier: str = "",
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        check_path(path)
        self.path = path
        self._client = client
        self._data = identifier.encode()
        self._acl = acl
        self._local = asyncio.Lock()
        self._place: Place | None = None
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
        """Wait until the lock is lost; releasing it does not count."""
        await self._lost.wait()

    async def contenders(self) -> list[str]:
        """The identifiers of all who hold or wait, in their order."""
        try:
            queue = contenders_among(await self._client.get_children(self.path))
        except NoNodeError:
            return []
        found = []
        for contender in queue:
            try:
                data, _ = await self._client.get(join(self.path, contender.name))
            except NoNodeError:
                continue
            found.append((data or b"").decode(errors="replace"))
        return found

    # Acquiring and releasing.

    async def acquire(self, *, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take the lock; False only without `blocking`, when somebody else has it.

        Raises:
            LockTimeoutError: it was not free within `timeout` seconds, connected or not.
            SessionExpiredError: the session ended while waiting.
        """
        if not blocking and self._local.locked():
            return False
        try:
            async with asyncio.timeout(timeout):
                await self._local.acquire()
                return await self._acquire_in_ensemble(blocking=blocking)
        except TimeoutError:
            raise LockTimeoutError(f"{self.path} was not free within {timeout} s") from None

    async def release(self) -> None:
        """Give the lock back; returns once the znode is gone, or the session with it."""
        place = self._place
        if place is None:
            raise LocalProtocolError(f"the lock {self.path} is not held")
        self._place = None
        try:
            await place.leave("released")
        finally:
            self._local.release()

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

    async def _acquire_in_ensemble(self, *, blocking: bool) -> bool:
        prefix = f"{self._client.rng.getrandbits(_ID_BITS):032x}__lock__"
        place = Place(
            self._client, self.path, prefix, self._data, _PlaceLog(self.path), acl=self._acl
        )
        self._lost = asyncio.Event()
        try:
            await place.take()
            while (ahead := (await place.look()).ahead) is not None:
                if not blocking:
                    await self._give_up(place, "conflict")
                    return False
                await place.wait_for(ahead)
        except BaseException as error:
            # The znode must go, whatever took us out of the queue; whoever asks next waits for it.
            self._give_up(place, _outcome_of(error))
            raise
        self._become_holder(place)
        return True

    def _become_holder(self, place: Place) -> None:
        place.acquired()
        self._place = place
        lost = self._lost

        def notice(change: StateChange) -> None:
            if change.session_id == place.session_id and change.state is SessionState.LOST:
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


def _outcome_of(error: BaseException) -> str:
    # The deadline's cancellation looks like any other from in here.
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "error"


class _PlaceLog:
    """One log record for each transition."""

    def __init__(self, path: str) -> None:
        self._path = path

    def created(self, place: Place) -> None:
        self._log("created", place)

    def adopted(self, place: Place) -> None:
        self._log("adopted", place)

    def orphan_deleted(self, place: Place, name: str) -> None:
        self._log("orphan_deleted", place, orphan=name)

    def watch_fired(self, place: Place, predecessor: str) -> None:
        self._log("watch_fired", place, predecessor=predecessor)

    def acquired(self, place: Place) -> None:
        self._log("acquired", place, fencing_token=place.token)

    def released(self, place: Place, outcome: str) -> None:
        self._log("released", place, outcome=outcome)

    def session_expired(self, place: Place) -> None:
        self._log("session_expired", place)

    def _log(self, event: str, place: Place, **fields: object) -> None:
        extra = {
            "event": event,
            "lock_path": self._path,
            "znode_path": place.path,
            "session_id": format_session(place.session_id),
            **fields,
        }
        log.info("%s %s", event, place.path, extra=extra)
