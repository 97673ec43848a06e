"""Barriers, timed leases and partitions for threads."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from zabd.client.recipes.barrier import Barrier, DoubleBarrier
from zabd.client.recipes.partitioner import Divide, Partitioner, Share, round_robin
from zabd.client.recipes.sync.facade import Facade
from zabd.client.recipes.ttl_lease import TtlLease
from zabd.client.sync import SyncClient
from zabd.model.acl import Acl


class SyncBarrier(Facade[Barrier]):
    """As `Barrier`."""

    def __init__(
        self, client: SyncClient, path: str, *, acl: tuple[Acl, ...] | None = None
    ) -> None:
        super().__init__(client, lambda: Barrier(client.asyncio_client, path, acl=acl))
        self.path = path

    def create(self) -> None:
        """Put it up; that it stands already is success."""
        self._client.run(self._recipe.create())

    def remove(self) -> bool:
        """Take it down; False if it did not stand."""
        return self._client.run(self._recipe.remove())

    def wait(self, *, timeout: float | None = None) -> None:
        """Block until it does not stand."""
        self._client.run(self._recipe.wait(timeout=timeout))


class SyncDoubleBarrier(Facade[DoubleBarrier]):
    """As `DoubleBarrier`."""

    def __init__(
        self,
        client: SyncClient,
        path: str,
        count: int,
        *,
        identifier: str = "",
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        super().__init__(
            client,
            lambda: DoubleBarrier(
                client.asyncio_client, path, count, identifier=identifier, acl=acl
            ),
        )
        self.path = path
        self.count = count

    def enter(self, *, timeout: float | None = None) -> None:
        """Block until `count` participants are there."""
        self._client.run(self._recipe.enter(timeout=timeout))

    def leave(self, *, timeout: float | None = None) -> None:
        """Block until all participants want to leave, or are gone."""
        self._client.run(self._recipe.leave(timeout=timeout))

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()


class SyncTtlLease(Facade[TtlLease]):
    """As `TtlLease`."""

    def __init__(
        self,
        client: SyncClient,
        path: str,
        ttl: float,
        *,
        identifier: str = "",
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        super().__init__(
            client,
            lambda: TtlLease(client.asyncio_client, path, ttl, identifier=identifier, acl=acl),
        )
        self.path = path
        self.ttl = ttl

    @property
    def held(self) -> bool:
        """Whether we hold it, by our own clock."""
        return self._get(lambda lease: lease.held)

    @property
    def remaining(self) -> float:
        """For how many seconds we hold it if it is not renewed."""
        return self._get(lambda lease: lease.remaining)

    @property
    def fencing_token(self) -> int:
        """A number that rises with every holder."""
        return self._get(lambda lease: lease.fencing_token)

    def holder(self) -> str | None:
        """The identifier of whoever has it, though it may have run out; None if nobody has."""
        return self._client.run(self._recipe.holder())

    def wait_lost(self) -> None:
        """Block until it has run out, or is another's; releasing it does not count."""
        self._client.run(self._recipe.wait_lost())

    def acquire(self, *, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take the lease; False only without `blocking`, when somebody else has it."""
        return self._client.run(
            self._recipe.acquire(blocking=blocking, timeout=timeout),
            undo=lambda _: self._recipe.release(),
        )

    def renew(self) -> None:
        """Hold it for `ttl` from now on."""
        self._client.run(self._recipe.renew())

    def release(self) -> None:
        """Give it back, if it is ours."""
        self._client.run(self._recipe.release())

    def __enter__(self) -> Self:
        self._client.run(
            self._recipe.__aenter__(), undo=lambda lease: lease.__aexit__(None, None, None)
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.run(self._recipe.__aexit__(kind, error, trace))


class SyncShare(Facade[Share]):
    """As `Share`. A thread cannot be cancelled: `stop` says that the partition is to be given up.

    The partition's lock is held until the work has returned, or the session is lost.
    """

    def __init__(
        self, client: SyncClient, make: Callable[[], Share], stop: threading.Event
    ) -> None:
        super().__init__(client, make)
        self.stop = stop

    @property
    def partition(self) -> str:
        """Which one it is."""
        return self._recipe.partition

    @property
    def held(self) -> bool:
        """Whether it is ours, as far as can be known here and now."""
        return self._get(lambda share: share.held)

    @property
    def fencing_token(self) -> int:
        """A number that rises with every worker of this partition."""
        return self._recipe.fencing_token

    def verify(self) -> None:
        """Ask the leader of the ensemble whether it is ours at this moment."""
        self._client.run(self._recipe.verify())


class SyncPartitioner(Facade[Partitioner]):
    """As `Partitioner`; each share's work runs on a thread of its own."""

    def __init__(
        self,
        client: SyncClient,
        path: str,
        partitions: Sequence[str],
        *,
        identifier: str = "",
        divide: Divide = round_robin,
        settle: float = 1.0,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        super().__init__(
            client,
            lambda: Partitioner(
                client.asyncio_client,
                path,
                partitions,
                identifier=identifier,
                divide=divide,
                settle=settle,
                acl=acl,
            ),
        )
        self.path = path
        self.partitions = list(partitions)
        self.identifier = self._recipe.identifier
        self._running: asyncio.Task[None] | None = None

    @property
    def owned(self) -> list[str]:
        """The partitions that are ours now, sorted."""
        return self._get(lambda partitioner: partitioner.owned)

    def run(self, work: Callable[[SyncShare], object]) -> None:
        """Work until `stop` is called by another thread; what `work` raises is raised."""
        self._client.run(self._run(work))

    def stop(self) -> None:
        """Let `run` end, behind the work that it does."""
        self._get(lambda _: self._running.cancel() if self._running is not None else None)

    async def _run(self, work: Callable[[SyncShare], object]) -> None:
        self._running = asyncio.ensure_future(
            self._recipe.run(lambda share: self._on_thread(work, share))
        )
        await asyncio.wait([self._running])
        if not self._running.cancelled():
            self._running.result()

    async def _on_thread(self, work: Callable[[SyncShare], object], share: Share) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        stop = threading.Event()

        def end(error: BaseException | None) -> None:
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        def run() -> None:
            try:
                work(SyncShare(self._client, lambda: share, stop))
            except BaseException as error:  # noqa: BLE001 - it is raised where `run` was called
                loop.call_soon_threadsafe(end, error)
            else:
                loop.call_soon_threadsafe(end, None)

        threading.Thread(target=run, name=f"zabd-{share.partition}", daemon=True).start()
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([ended])
            raise
