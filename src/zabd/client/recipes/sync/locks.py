"""Locks and semaphores for threads."""

import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from zabd.client.recipes.lock import Lock
from zabd.client.recipes.rwlock import ReadWriteLock
from zabd.client.recipes.semaphore import Lease, Semaphore
from zabd.client.recipes.sync.facade import Facade
from zabd.client.sync import SyncClient
from zabd.model.acl import Acl

L = TypeVar("L", bound=Lock)


class _AnyLock(Facade[L]):
    """What all locks can; a re-entrant one belongs to the thread that acquired it."""

    @property
    def path(self) -> str:
        """The znode below which contenders queue."""
        return self._recipe.path

    @property
    def held(self) -> bool:
        """Whether we hold the lock, as far as can be known here and now."""
        return self._get(lambda lock: lock.held)

    @property
    def fencing_token(self) -> int:
        """A number that rises with every holder."""
        return self._get(lambda lock: lock.fencing_token)

    @property
    def znode(self) -> str:
        """The path of our znode."""
        return self._get(lambda lock: lock.znode)

    def acquire(self, *, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take the lock; False only without `blocking`, when somebody else has it."""
        owner = threading.get_ident()
        return self._client.run(
            self._recipe.acquire(blocking=blocking, timeout=timeout, owner=owner),
            undo=self._give_back,
        )

    async def _give_back(self, acquired: bool) -> None:  # noqa: FBT001 - what `acquire` returned
        if acquired:
            await self._recipe.release()

    def release(self) -> None:
        """Give the lock back."""
        self._client.run(self._recipe.release())

    def verify(self) -> None:
        """Ask the leader whether we hold the lock at this moment."""
        self._client.run(self._recipe.verify())

    def wait_lost(self) -> None:
        """Block until the lock is lost; releasing it does not count."""
        self._client.run(self._recipe.wait_lost())

    def settled(self) -> None:
        """Block until this object neither holds nor waits, and has no znode in the queue."""
        self._client.run(self._recipe.settled())

    def contenders(self) -> list[str]:
        """The identifiers of all who hold or wait, in their order."""
        return self._client.run(self._recipe.contenders())

    def revoke(self) -> bool:
        """Ask whoever holds the lock to let go; False if nobody holds it."""
        return self._client.run(self._recipe.revoke())

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.run(self._recipe.__aexit__(kind, error, trace))


class SyncLock(_AnyLock[Lock]):
    """As `Lock`; `on_revoke` is called on the callbacks' thread."""

    def __init__(
        self,
        client: SyncClient,
        path: str,
        *,
        identifier: str = "",
        reentrant: bool = False,
        curator: bool = False,
        on_revoke: Callable[[], object] | None = None,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        tell = None
        if on_revoke is not None:
            call = client.off_loop(lambda _: on_revoke())
            tell = partial(call, None)
        super().__init__(
            client,
            lambda: Lock(
                client.asyncio_client,
                path,
                identifier=identifier,
                reentrant=reentrant,
                curator=curator,
                on_revoke=tell,
                acl=acl,
            ),
        )


class _Half(_AnyLock[Lock]):
    """One half of a read-write lock."""


class SyncReadWriteLock(Facade[ReadWriteLock]):
    """As `ReadWriteLock`: ``with lock.read:``, ``with lock.write:``."""

    def __init__(
        self,
        client: SyncClient,
        path: str,
        *,
        identifier: str = "",
        reentrant: bool = False,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        super().__init__(
            client,
            lambda: ReadWriteLock(
                client.asyncio_client, path, identifier=identifier, reentrant=reentrant, acl=acl
            ),
        )
        self.path = path
        self.read: _AnyLock[Lock] = _Half(client, lambda: self._recipe.read)
        self.write: _AnyLock[Lock] = _Half(client, lambda: self._recipe.write)

    def downgrade(self) -> None:
        """Turn the held write lock into the read lock, with no writer in between."""
        self._client.run(self._recipe.downgrade())


class SyncLease(Facade[Lease]):
    """As `Lease`."""

    @property
    def held(self) -> bool:
        """Whether we hold it, as far as can be known here and now."""
        return self._get(lambda lease: lease.held)

    @property
    def znode(self) -> str:
        """The path of the lease's znode."""
        return self._recipe.znode

    @property
    def fencing_token(self) -> int:
        """A number that tells this lease from all others."""
        return self._get(lambda lease: lease.fencing_token)

    def verify(self) -> None:
        """Ask the leader whether we hold it at this moment."""
        self._client.run(self._recipe.verify())

    def wait_lost(self) -> None:
        """Block until it is lost; releasing it does not count."""
        self._client.run(self._recipe.wait_lost())

    def release(self) -> None:
        """Give it back."""
        self._client.run(self._recipe.release())


class SyncSemaphore(Facade[Semaphore]):
    """As `Semaphore`."""

    def __init__(
        self,
        client: SyncClient,
        path: str,
        *,
        max_leases: int = 1,
        identifier: str = "",
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        super().__init__(
            client,
            lambda: Semaphore(
                client.asyncio_client, path, max_leases=max_leases, identifier=identifier, acl=acl
            ),
        )
        self.path = path
        self._entered = threading.local()

    def acquire(self, *, blocking: bool = True, timeout: float | None = None) -> SyncLease | None:
        """Take a lease; None only without `blocking`, when there is none to be had at once."""
        lease = self._client.run(
            self._recipe.acquire(blocking=blocking, timeout=timeout), undo=_give_back
        )
        return None if lease is None else SyncLease(self._client, lambda: lease)

    def lease_holders(self) -> list[str]:
        """The identifiers of those who hold a lease, in no order."""
        return self._client.run(self._recipe.lease_holders())

    def __enter__(self) -> SyncLease:
        lease = self.acquire()
        assert lease is not None, "it blocks"
        self._leases().append(lease)
        return lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leases().pop().release()

    def _leases(self) -> list[SyncLease]:
        """The leases of this thread's ``with`` blocks, the innermost last."""
        if not hasattr(self._entered, "leases"):
            self._entered.leases = []
        leases: list[SyncLease] = self._entered.leases
        return leases


async def _give_back(lease: Lease | None) -> None:
    if lease is not None:
        await lease.release()
