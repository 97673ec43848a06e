"""The requests of a run, counted, so that some of them can be left out.

Each turn of work (a client that asks for something, a leader that is given something to propose)
has a number. A turn that is left out takes place without asking: what comes after it still does.
"""

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any

from zabd.client import Client
from zabd.cluster_sim.core_client import CoreClient
from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.whole_client import Program


class Work:
    """Numbers the turns of one run from 0 on; those that are not in `kept` do nothing."""

    def __init__(self, kept: Collection[int] | None = None) -> None:
        self.turns = 0
        self._kept = None if kept is None else frozenset(kept)

    def take_over(self, level: CoreLevel, clients: list[Any]) -> None:
        """Stand between a run and its work, before it begins."""
        mine = vars(level)
        mine["_submit"] = partial(self._turn, level._submit, level._submit_next)  # noqa: SLF001
        for client in clients:
            if isinstance(client, CoreClient):
                later = client._work_later  # noqa: SLF001 - a part of the room
                vars(client)["_work"] = partial(self._turn, client._work, later)  # noqa: SLF001
            elif isinstance(client, Program):
                vars(client)["work"] = partial(self._asked, client.work, client)

    def _takes_place(self) -> bool:
        number, self.turns = self.turns, self.turns + 1
        return self._kept is None or number in self._kept

    def _turn(self, do: Callable[[], None], go_on: Callable[[], None]) -> None:
        if self._takes_place():
            do()
        else:
            go_on()

    async def _asked(
        self, work: Callable[[Client], Awaitable[None]], program: Program, client: Client
    ) -> None:
        if self._takes_place():
            await work(client)
        else:
            await program.rest(1)
