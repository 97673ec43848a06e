"""What the blocking recipes have in common: they look and act on the client's loop."""

from collections.abc import Callable
from typing import Generic, TypeVar

from zabd.client.sync import SyncClient

R = TypeVar("R")
T = TypeVar("T")


class Facade(Generic[R]):
    """A recipe behind methods that block; may be used from any thread but the client's own."""

    def __init__(self, client: SyncClient, make: Callable[[], R]) -> None:
        self._client = client
        # Made where it is used: a recipe may ask for the running loop.
        self._recipe = client.run(_called(make))

    def _get(self, ask: Callable[[R], T]) -> T:
        """Ask on the loop, where what is asked for does not change meanwhile."""
        return self._client.run(_called(lambda: ask(self._recipe)))


async def _called(make: Callable[[], T]) -> T:
    return make()
