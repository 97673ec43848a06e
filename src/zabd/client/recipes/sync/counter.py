"""The counter for threads."""

from zabd.client.recipes.counter import Change, Counter
from zabd.client.recipes.sync.facade import Facade
from zabd.client.sync import SyncClient
from zabd.model.acl import Acl


class SyncCounter(Facade[Counter]):
    """As `Counter`."""

    def __init__(
        self,
        client: SyncClient,
        path: str,
        *,
        default: int = 0,
        curator: bool = False,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        super().__init__(
            client,
            lambda: Counter(client.asyncio_client, path, default=default, curator=curator, acl=acl),
        )
        self.path = path

    def value(self) -> int:
        """The number now, as this server knows it."""
        return self._client.run(self._recipe.value())

    def add(self, amount: int = 1) -> Change:
        """Add `amount`; return the number before and after."""
        return self._client.run(self._recipe.add(amount))

    def subtract(self, amount: int = 1) -> Change:
        """Add the negative."""
        return self._client.run(self._recipe.subtract(amount))
