"""Watches, parties and caches for threads."""

from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from zabd.client.recipes.node_watch import ChildrenWatch, DataWatch, NodeWatch, Value
from zabd.client.recipes.party import Party
from zabd.client.recipes.persistent_node import PersistentNode
from zabd.client.recipes.sync.facade import Facade
from zabd.client.recipes.tree_cache import TreeCache, TreeChange
from zabd.client.sync import SyncClient
from zabd.model.acl import Acl

V = TypeVar("V")


class _Watch(Facade[NodeWatch[V]], Generic[V]):
    """A blocking iterator of what a path is; ends when it or the client is closed."""

    @property
    def path(self) -> str:
        """The path that is watched."""
        return self._recipe.path

    def start(self, callback: Callable[[V | None], object]) -> None:
        """Call `callback` with each state, on the callbacks' thread, until it returns False."""

        def call(value: V | None) -> None:
            if callback(value) is False:
                self.close()

        self._get(lambda watch: watch.start(self._client.off_loop(call)))

    def close(self) -> None:
        """End the iteration, and forget the watch."""
        self._get(lambda watch: watch.close())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> V | None:
        ended, value = self._client.run(self._next())
        if ended:
            raise StopIteration
        return value

    async def _next(self) -> tuple[bool, V | None]:
        try:
            return False, await anext(self._recipe)
        except StopAsyncIteration:
            return True, None


class SyncDataWatch(_Watch[Value]):
    """As `DataWatch`: ``for value in SyncDataWatch(zk, path): ...``."""

    def __init__(self, client: SyncClient, path: str) -> None:
        super().__init__(client, lambda: DataWatch(client.asyncio_client, path))


class SyncChildrenWatch(_Watch[list[str]]):
    """As `ChildrenWatch`: ``for names in SyncChildrenWatch(zk, path): ...``."""

    def __init__(self, client: SyncClient, path: str) -> None:
        super().__init__(client, lambda: ChildrenWatch(client.asyncio_client, path))


class SyncPersistentNode(Facade[PersistentNode]):
    """As `PersistentNode`."""

    def __init__(
        self,
        client: SyncClient,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = True,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        super().__init__(
            client,
            lambda: PersistentNode(client.asyncio_client, path, data, ephemeral=ephemeral, acl=acl),
        )
        self.path = path

    @property
    def present(self) -> bool:
        """Whether our znode stands, as far as can be known here and now."""
        return self._get(lambda node: node.present)

    @property
    def fencing_token(self) -> int:
        """The zxid that created the znode."""
        return self._get(lambda node: node.fencing_token)

    def wait_present(self, *, timeout: float | None = None) -> None:
        """Block until our znode stands."""
        self._client.run(self._recipe.wait_present(timeout=timeout))

    def set(self, data: bytes) -> None:
        """Change what it holds, now and whenever it is made again."""
        self._client.run(self._recipe.set(data))

    def start(self) -> None:
        """Begin; returns at once."""
        self._client.run(self._recipe.start())

    def close(self) -> None:
        """Remove the znode."""
        self._client.run(self._recipe.close())

    def close_soon(self) -> None:
        """Begin to remove the znode in the background."""
        self._get(lambda node: node.close_soon())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SyncParty(Facade[Party]):
    """As `Party`; `members` is what a thread asks, a `SyncChildrenWatch` what it waits on."""

    def __init__(
        self,
        client: SyncClient,
        path: str,
        *,
        identifier: str = "",
        shallow: bool = False,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        super().__init__(
            client,
            lambda: Party(
                client.asyncio_client, path, identifier=identifier, shallow=shallow, acl=acl
            ),
        )
        self.path = path
        self.identifier = identifier

    @property
    def joined(self) -> bool:
        """Whether our znode stands, as far as can be known here and now."""
        return self._get(lambda party: party.joined)

    def join(self, *, timeout: float | None = None) -> None:
        """Become a member."""
        self._client.run(self._recipe.join(timeout=timeout))

    def leave(self) -> None:
        """Stop being a member."""
        self._client.run(self._recipe.leave())

    def members(self) -> list[str]:
        """The identifiers of the members now, sorted."""
        return self._client.run(self._recipe.members())

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()


class SyncTreeCache(Facade[TreeCache]):
    """As `TreeCache`; `on_change` is called with each `TreeChange` on the callbacks' thread."""

    def __init__(
        self,
        client: SyncClient,
        path: str,
        *,
        on_change: Callable[[TreeChange], object] | None = None,
    ) -> None:
        tell = None if on_change is None else client.off_loop(on_change)
        super().__init__(client, lambda: TreeCache(client.asyncio_client, path, on_change=tell))
        self.path = path

    def get(self, path: str) -> Value | None:
        """Data and Stat of a path, None if there is no such znode."""
        return self._get(lambda cache: cache.get(path))

    def data(self, path: str) -> bytes | None:
        """The data of a path, None if there is no such znode."""
        return self._get(lambda cache: cache.data(path))

    def children(self, path: str) -> list[str]:
        """The names of the znodes right below a path, sorted."""
        return self._get(lambda cache: cache.children(path))

    def paths(self) -> list[str]:
        """All paths, sorted."""
        return self._get(lambda cache: cache.paths())

    def start(self, *, timeout: float | None = None) -> None:
        """Load the subtree; returns when all of it is here."""
        self._client.run(self._recipe.start(timeout=timeout))

    def close(self) -> None:
        """Stop; what is here stays as it is."""
        self._client.run(self._recipe.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
