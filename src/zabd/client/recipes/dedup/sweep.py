"""Clearing away what servers without containers and TTLs leave behind (dedup recipe, section 11).

Invariants
    I1  A record is deleted only under the key's lock, by its version, when the stamps of the
        ensemble say that its time is over; a key that somebody works on is left alone.
    I2  A key's znode goes only if it is empty, which the ensemble itself checks.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from zabd.client.client import Client
from zabd.client.recipes.contenders import contenders_among
from zabd.client.recipes.dedup.ensemble_time import EnsembleTime
from zabd.client.recipes.dedup.errors import FencedError, RecordUnreadableError
from zabd.client.recipes.dedup.ledger import RESULT, STARTED, Ledger
from zabd.client.recipes.dedup.operator import owning
from zabd.client.recipes.dedup.records import Result, Started, is_over
from zabd.client.recipes.dedup.request import Request
from zabd.model.errors import BadVersionError, NoNodeError, NotEmptyError
from zabd.model.ops import Delete, MultiOp
from zabd.model.paths import join
from zabd.model.results import GetDataResult

log = logging.getLogger("zabd.dedup")

# No key has this name: behind a percent sign stand two hexadecimal digits.
CLOCK = "%sweep-"
RECORDS = (RESULT, STARTED)


@dataclass(frozen=True, slots=True)
class Swept:
    """What one page of a sweep did; go on behind `after`, None when this was the last page."""

    keys: int
    records: int
    parents: int
    after: str | None


class Sweeper:
    """Sweeps the keys below `base`; `make_request` makes what owning a key takes."""

    def __init__(
        self, base: str, make_request: Callable[[str], Request], time: EnsembleTime
    ) -> None:
        self._base = base
        self._make_request = make_request
        self._time = time
        self._records = 0
        self._parents = 0

    async def sweep(self, client: Client, *, limit: int, rate: float, after: str) -> Swept:
        """Look at one page of keys."""
        if limit < 1 or rate <= 0:
            raise ValueError(
                f"limit={limit!r}, rate={rate!r}: expected at least 1, and more than 0"
            )
        try:
            names = sorted(await client.get_children(self._base))
        except NoNodeError:
            return Swept(0, 0, 0, None)
        rest = [name for name in names if name > after and not name.startswith(CLOCK)]
        page = rest[:limit]
        if page:
            await self._ask_the_time(client)
        for name in page:
            await self._look(client, name)
            await asyncio.sleep(1 / rate)
        more = len(rest) > len(page)
        return Swept(len(page), self._records, self._parents, page[-1] if more else None)

    async def _ask_the_time(self, client: Client) -> None:
        """Make a znode, for its stamp: it says what time it is for the ensemble."""
        made = await client.create_with_stat(
            join(self._base, CLOCK), ephemeral=True, sequential=True
        )
        self._time.observe(made.stat.ctime)
        await client.delete(made.path)

    async def _look(self, client: Client, name: str) -> None:
        path = join(self._base, name)
        try:
            children = await client.get_children(path)
            if contenders_among(children):
                return
            records = [child for child in RECORDS if child in children]
            over = [r for r in records if self._is_over(r, await client.get(join(path, r)))]
            if over:
                await self._drop(self._make_request(name), over)
            if len(over) == len(children):
                await client.delete(path)
                self._parents += 1
        except (NoNodeError, NotEmptyError):
            return  # somebody has come, or it went by itself
        except RecordUnreadableError as error:
            log.warning("leaving %s alone: %s", path, error)

    async def _drop(self, request: Request, names: list[str]) -> None:
        async with owning(request) as ledger:
            drops = [op for name in names for op in await self._drop_of(ledger, name)]
            if not drops:
                return
            try:
                await ledger.guarded(drops)
            except (NoNodeError, BadVersionError, FencedError):
                return  # it went by itself, or it is not ours to judge any more
            self._records += len(drops)

    async def _drop_of(self, ledger: Ledger, name: str) -> list[MultiOp]:
        """Look again under the lock, whose own stamp is the time (I1)."""
        path = join(ledger.place.parent, name)
        found = await ledger.place.bound.get(path)
        own = ledger.place.stat
        if found is None or own is None:
            return []
        over = is_over(_decoded(name, found), found.stat, own.ctime)
        return [Delete(path, found.stat.version)] if over else []

    def _is_over(self, name: str, found: GetDataResult) -> bool:
        return is_over(_decoded(name, found), found.stat, self._time.at_least_ms())


def _decoded(name: str, found: GetDataResult) -> Result | Started:
    return Result.decode(found.data) if name == RESULT else Started.decode(found.data)
