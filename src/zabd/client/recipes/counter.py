"""A number that many add to, each addition exactly once.

``counter = Counter(zk, "/counters/ids"); await counter.add(1); await counter.value()``

Znodes: `path` holds the number as kazoo's `Counter` writes it, or with `curator` as Curator's
`DistributedAtomicInteger` does; below it each client that adds has one ephemeral, its receipt
(`client.recipes.receipt`). Cost: adding is 1 write, and 1 read the first time and after somebody
else has changed the number; the value is 1 read.
"""

import asyncio
import struct
from typing import NamedTuple

from zabd.client.client import Client
from zabd.client.operations import UNSET, Timeout
from zabd.client.recipes.receipt import Receipt
from zabd.model.acl import Acl
from zabd.model.errors import BadVersionError, NodeExistsError, NoNodeError, ZabdError
from zabd.model.ops import SetData
from zabd.model.paths import check_path
from zabd.model.stat import Stat

# A busy counter makes others come first; each time somebody has got on, so this is no live-lock.
ROUNDS_MAX = 1000


class CounterBusyError(ZabdError):
    """Others came first too often."""


class Change(NamedTuple):
    """The number before and after an addition of ours."""

    before: int
    after: int


class _Seen(NamedTuple):
    value: int
    version: int


class Counter:
    """A counter on the znode `path`, which is created with `default` when missing.

    `curator` keeps the number in four bytes, as Curator does, between -2**31 and 2**31 - 1.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        default: int = 0,
        curator: bool = False,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        check_path(path)
        self.path = path
        self.default = default
        self._curator = curator
        self._client = client
        self._acl = acl
        self._turn = asyncio.Lock()
        self._seen: _Seen | None = None

    async def value(self) -> int:
        """The number now, as this server knows it; after `client.sync()`, as of then."""
        return (await self._read()).value

    async def add(self, amount: int = 1) -> Change:
        """Add `amount`, which may be negative; return the number before and after.

        It waits as long as the session lives, whatever the client's `operation_timeout`.

        Raises:
            SessionExpiredError: the session ended; with `maybe_applied`, perhaps behind the
                addition.
            CounterBusyError: others came first too often.
        """
        async with self._turn:
            for _ in range(ROUNDS_MAX):
                if (change := await self._try(amount)) is not None:
                    return change
        raise CounterBusyError(f"{self.path}: others came first {ROUNDS_MAX} times")

    async def subtract(self, amount: int = 1) -> Change:
        """Add the negative."""
        return await self.add(-amount)

    async def _try(self, amount: int) -> Change | None:
        """Add to the number as we know it; None if somebody has changed it."""
        seen = self._seen or await self._read(None)
        self._seen = None
        after = seen.value + amount
        try:
            receipt = Receipt(self._client, self.path, self._acl)
            await receipt.write([SetData(self.path, self._encode(after), seen.version)])
        except (BadVersionError, NoNodeError):
            return None
        self._seen = _Seen(after, seen.version + 1)
        return Change(seen.value, after)

    async def _read(self, limit: Timeout = UNSET) -> _Seen:
        while True:
            try:
                data, stat = await self._client.get(self.path, timeout=limit)
            except NoNodeError:
                await self._create(limit)
            else:
                return self._decode(data or b"", stat)

    async def _create(self, limit: Timeout) -> None:
        """Begin with the default; doing it twice is the same as once."""
        data = self._encode(self.default)
        try:
            await self._client.retry(
                lambda: self._client.create(
                    self.path, data, acl=self._acl, make_parents=True, timeout=limit
                ),
                idempotent=True,
            )
        except NodeExistsError:
            return

    def _encode(self, value: int) -> bytes:
        return struct.pack(">i", value) if self._curator else str(value).encode()

    def _decode(self, data: bytes, stat: Stat) -> _Seen:
        if not data:
            return _Seen(self.default, stat.version)
        value = struct.unpack(">i", data)[0] if self._curator else int(data)
        return _Seen(value, stat.version)
