"""Queues for threads."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from zabd.client.recipes.locking_queue import Item, LockingQueue
from zabd.client.recipes.queue import DEFAULT_PRIORITY, PriorityQueue, Queue
from zabd.client.recipes.sync.facade import Facade
from zabd.client.sync import SyncClient
from zabd.model.acl import Acl


class SyncQueue(Facade[Queue]):
    """As `Queue`."""

    def __init__(
        self, client: SyncClient, path: str, *, acl: tuple[Acl, ...] | None = None
    ) -> None:
        super().__init__(client, lambda: Queue(client.asyncio_client, path, acl=acl))
        self.path = path

    def put(self, value: bytes) -> None:
        """Put a value in."""
        self._client.run(self._recipe.put(value))

    def put_all(self, values: Sequence[bytes]) -> None:
        """Put values in, in their order, all or none of them."""
        self._client.run(self._recipe.put_all(values))

    def get(self, *, blocking: bool = True, timeout: float | None = None) -> bytes | None:
        """Take the first value out; None only without `blocking`, when there is none."""
        return self._client.run(
            self._recipe.get(blocking=blocking, timeout=timeout),
            undo=self._recipe._keep,  # noqa: SLF001 - the two are one recipe
        )

    def size(self) -> int:
        """How many values there are now."""
        return self._client.run(self._recipe.size())


class SyncPriorityQueue(Facade[PriorityQueue]):
    """As `PriorityQueue`."""

    def __init__(
        self, client: SyncClient, path: str, *, acl: tuple[Acl, ...] | None = None
    ) -> None:
        super().__init__(client, lambda: PriorityQueue(client.asyncio_client, path, acl=acl))
        self.path = path

    def put(self, value: bytes, *, priority: int = DEFAULT_PRIORITY) -> None:
        """Put a value in; `priority` is from 0 (first) to 999 (last)."""
        self._client.run(self._recipe.put(value, priority=priority))

    def put_all(self, values: Sequence[bytes], *, priority: int = DEFAULT_PRIORITY) -> None:
        """Put values in, in their order, all or none of them."""
        self._client.run(self._recipe.put_all(values, priority=priority))

    def get(self, *, blocking: bool = True, timeout: float | None = None) -> bytes | None:
        """Take the first value out; None only without `blocking`, when there is none."""
        return self._client.run(
            self._recipe.get(blocking=blocking, timeout=timeout),
            undo=self._recipe._keep,  # noqa: SLF001 - the two are one recipe
        )

    def size(self) -> int:
        """How many values there are now."""
        return self._client.run(self._recipe.size())


class SyncItem(Facade[Item]):
    """As `Item`."""

    @property
    def value(self) -> bytes:
        """What was put in."""
        return self._recipe.value

    @property
    def held(self) -> bool:
        """Whether we hold it, as far as can be known here and now."""
        return self._get(lambda item: item.held)

    @property
    def fencing_token(self) -> int:
        """A number that rises with every holder of the item."""
        return self._get(lambda item: item.fencing_token)

    def verify(self) -> None:
        """Ask the leader whether we hold it at this moment."""
        self._client.run(self._recipe.verify())

    def wait_lost(self) -> None:
        """Block until it is lost; consuming or releasing it does not count."""
        self._client.run(self._recipe.wait_lost())

    def consume(self) -> None:
        """Take it out of the queue for good."""
        self._client.run(self._recipe.consume())

    def release(self) -> None:
        """Give it back, for somebody else to get."""
        self._client.run(self._recipe.release())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.run(self._recipe.__aexit__(kind, error, trace))


class SyncLockingQueue(Facade[LockingQueue]):
    """As `LockingQueue`."""

    def __init__(
        self, client: SyncClient, path: str, *, acl: tuple[Acl, ...] | None = None
    ) -> None:
        super().__init__(client, lambda: LockingQueue(client.asyncio_client, path, acl=acl))
        self.path = path

    def put(self, value: bytes, *, priority: int = DEFAULT_PRIORITY) -> None:
        """Put a value in; `priority` is from 0 (first) to 999 (last)."""
        self._client.run(self._recipe.put(value, priority=priority))

    def put_all(self, values: Sequence[bytes], *, priority: int = DEFAULT_PRIORITY) -> None:
        """Put values in, in their order, all or none of them."""
        self._client.run(self._recipe.put_all(values, priority=priority))

    def get(self, *, blocking: bool = True, timeout: float | None = None) -> SyncItem | None:
        """Hold the first item that nobody holds; None only without `blocking`."""
        item = self._client.run(
            self._recipe.get(blocking=blocking, timeout=timeout), undo=_give_back
        )
        return None if item is None else SyncItem(self._client, lambda: item)

    def size(self) -> int:
        """How many items there are now, held ones included."""
        return self._client.run(self._recipe.size())


async def _give_back(item: Item | None) -> None:
    if item is not None:
        await item.release()
