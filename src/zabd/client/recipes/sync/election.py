"""Elections for threads: none can be cancelled, so the leader's function looks at its term."""

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from zabd.client.recipes.election import Election, LeaderLatch, LeadershipLostError, Term
from zabd.client.recipes.lock import LockLostError
from zabd.client.recipes.sync.facade import Facade
from zabd.client.sync import SyncClient
from zabd.model.acl import Acl

T = TypeVar("T")


class SyncTerm(Facade[Term]):
    """As `Term`."""

    @property
    def fencing_token(self) -> int:
        """A number that rises with every leader."""
        return self._recipe.fencing_token

    @property
    def leading(self) -> bool:
        """Whether we lead, as far as can be known here and now."""
        return self._get(lambda term: term.leading)

    def verify(self) -> None:
        """Ask the leader of the ensemble whether we lead at this moment."""
        self._client.run(self._recipe.verify())


class SyncElection(Facade[Election]):
    """As `Election`; functions run on the caller's thread, and are not cancelled."""

    def __init__(
        self,
        client: SyncClient,
        path: str,
        *,
        identifier: str = "",
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        super().__init__(
            client, lambda: Election(client.asyncio_client, path, identifier=identifier, acl=acl)
        )
        self.path = path

    def run(self, lead: Callable[[SyncTerm], T], *, timeout: float | None = None) -> T:
        """Stand, and when elected call `lead(term)`; return what it returns.

        Raises:
            LeadershipLostError: the term was over before `lead` returned, or `verify` said so.
        """
        elected = self._client.run(
            self._recipe.stand(timeout=timeout), undo=lambda _: self._recipe.stand_down()
        )
        try:
            term = SyncTerm(self._client, lambda: elected)
            lost = f"the leadership of {self.path} was lost meanwhile"
            try:
                value = lead(term)
            except LockLostError as error:
                if term.leading:  # it was another lock
                    raise
                raise LeadershipLostError(lost) from error
            if not term.leading:
                raise LeadershipLostError(lost)
            return value
        finally:
            self._client.run(self._recipe.stand_down())

    def contenders(self) -> list[str]:
        """The identifiers of the leader and of those who stand behind, in their order."""
        return self._client.run(self._recipe.contenders())


class SyncLeaderLatch(Facade[LeaderLatch]):
    """As `LeaderLatch`."""

    def __init__(
        self,
        client: SyncClient,
        path: str,
        *,
        identifier: str = "",
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        super().__init__(
            client, lambda: LeaderLatch(client.asyncio_client, path, identifier=identifier, acl=acl)
        )
        self.path = path

    @property
    def leading(self) -> bool:
        """Whether we lead, as far as can be known here and now."""
        return self._get(lambda latch: latch.leading)

    @property
    def fencing_token(self) -> int:
        """A number that rises with every leader."""
        return self._get(lambda latch: latch.fencing_token)

    def verify(self) -> None:
        """Ask the leader of the ensemble whether we lead at this moment."""
        self._client.run(self._recipe.verify())

    def wait_leading(self, *, timeout: float | None = None) -> None:
        """Block until we lead; raises why, if that is not to be."""
        self._client.run(self._recipe.wait_leading(timeout=timeout))

    def contenders(self) -> list[str]:
        """The identifiers of the leader and of those who stand behind, in their order."""
        return self._client.run(self._recipe.contenders())

    def start(self) -> None:
        """Stand; returns at once."""
        self._client.run(self._recipe.start())

    def close(self) -> None:
        """Stand down; raises why, if we could not stand or cannot stand down."""
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
