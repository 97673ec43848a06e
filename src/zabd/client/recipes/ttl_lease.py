"""A lease for a time: held until it runs out, whatever becomes of the session or the process.

``async with TtlLease(zk, "/leases/nightly", 60.0) as lease: ...`` renews it every third of its
time while the block runs. For work that should keep its claim over a restart, or that nobody
should begin again for a while; a `Lock` is what ends with its session.

Invariants
    I1  The holder stops believing in the lease on its own clock before it can have run out: it
        counts from when it *sent* its last answered renewal, and takes a margin off.
    I2  Others judge its age by two stamps of the ensemble's, never by a client's clock. A lease
        that has run out is taken by the version under which it was found old.

The stamps are the leaders' clocks: members whose clocks differ by more than the margin break I1.

Znodes: `path`, persistent, which holds a record or nothing, as kazoo's `NonBlockingLease` does; to
look at the ensemble's clock, ``<path>-__now__<number>``, ephemeral, for a moment. Cost: 1 read and
1 write to take a free one (1 write more the first time ever), 1 write to renew, 1 write and 1 read
to release; a look at one that is held is 1 read and 2 writes.
"""

import asyncio
import json
import logging
from types import TracebackType
from typing import NamedTuple, Self

from zabd.client.client import Client
from zabd.client.events import EventStream
from zabd.client.recipes.claim import Claim
from zabd.client.recipes.lock import LockLostError, LockTimeoutError
from zabd.model.acl import Acl
from zabd.model.errors import (
    BadVersionError,
    ConnectionLossError,
    KeeperError,
    LocalProtocolError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from zabd.model.paths import check_path
from zabd.model.results import GetDataResult
from zabd.model.watch_events import WatchEvent

log = logging.getLogger("zabd.client.recipes")

_ID_BITS = 128
_LOST_REPLY = (ConnectionLossError, OperationTimeoutError, SessionExpiredError)
# What of its time a holder does not count on, and others wait beyond it.
MARGIN = 0.1
LOOK_AGAIN_S = 0.05


class _Record(NamedTuple):
    id: str
    ttl_ms: int
    identifier: str


class _Taken(NamedTuple):
    token: int  # the zxid of the taking; renewals do not change it
    version: int
    until_ms: int


class _Seen(NamedTuple):
    version: int
    left: float  # seconds, by the ensemble's clock


class TtlLease:
    """A lease on the znode `path` for `ttl` seconds from each renewal.

    `identifier` is for people. ``async with`` waits for it, renews it in the background and
    releases it; with `acquire`, `renew` and `release` you do so yourself.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        ttl: float,
        *,
        identifier: str = "",
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        check_path(path)
        if ttl <= 0:
            raise ValueError(f"ttl={ttl}: expected seconds above 0")
        self.path = path
        self.ttl = ttl
        self._client = client
        self._acl = client.default_acl if acl is None else acl
        number = f"{client.rng.getrandbits(_ID_BITS):032x}"
        self._record = _Record(number, int(ttl * 1000), identifier)
        self._data = json.dumps(self._record._asdict()).encode()
        self._taken: _Taken | None = None
        self._seen = _Seen(0, 0.0)
        self._renewing: asyncio.Task[None] | None = None

    # State.

    @property
    def held(self) -> bool:
        """Whether we hold it, by our own clock."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """For how many seconds we hold it if it is not renewed; 0 if we do not."""
        if self._taken is None:
            return 0.0
        return max(0, self._taken.until_ms - self._client.now_ms()) / 1000

    @property
    def fencing_token(self) -> int:
        """A number that rises with every holder."""
        if self._taken is None:
            raise LocalProtocolError(f"the lease {self.path} is not held")
        return self._taken.token

    async def holder(self) -> str | None:
        """The identifier of whoever has it, though it may have run out; None if nobody has."""
        found = await self._look()
        record = None if found is None else _decode(found.data)
        return None if record is None else record.identifier

    # Taking, renewing, giving back.

    async def acquire(self, *, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take the lease; False only without `blocking`, when somebody else has it.

        Raises:
            LockTimeoutError: it was not free within `timeout` seconds.
        """
        taken = False
        try:
            async with asyncio.timeout(timeout):
                taken = await self._acquire(blocking=blocking)
                return taken
        except TimeoutError:
            raise LockTimeoutError(f"{self.path} was not free within {timeout} s") from None
        finally:
            if not taken:
                # A write may be on its way, that nobody asks for any more.
                self._client.spawn(self._release())

    async def renew(self) -> None:
        """Hold it for `ttl` from now on.

        Raises:
            LockLostError: it has run out, and another has it, or somebody has deleted the znode.
        """
        if self._taken is None:
            raise LocalProtocolError(f"the lease {self.path} is not held")
        taken_zxid = self._taken.token
        if not await self._write(self._data, self._taken.version):
            self._taken = None
            raise LockLostError(f"the lease {self.path} has run out, and is another's now")
        self._taken = self._taken._replace(token=taken_zxid)

    async def release(self) -> None:
        """Give it back, if it is ours; a cancelled caller does not stop it."""
        await asyncio.shield(self._client.spawn(self._release()))

    async def __aenter__(self) -> Self:
        await self.acquire()
        self._renewing = self._client.spawn(self._keep())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        await self.release()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self.ttl / 3)
            try:
                await self.renew()
            except KeeperError as error:
                log.info("renewing %s again: %s", self.path, error)

    async def _acquire(self, *, blocking: bool) -> bool:
        while True:
            try:
                if await self._try():
                    return True
                if not blocking:
                    return False
                await self._wait()
            except _LOST_REPLY as error:
                if not blocking:
                    raise
                log.info("looking at %s again: %s", self.path, error)
                await self._client.wait_connected()

    async def _try(self) -> bool:
        """Take it if nobody has it, or if it has run out."""
        try:
            data, stat = await self._client.get(self.path)
        except NoNodeError:
            await self._client.ensure_path(self.path, acl=self._acl)
            return await self._try()
        record = _decode(data)
        if record is not None and record.id != self._record.id:
            left_ms = stat.mtime + record.ttl_ms - await self._ensemble_ms()
            if left_ms >= 0:
                self._seen = _Seen(stat.version, left_ms / 1000)
                return False
        return await self._write(self._data, stat.version)

    async def _write(self, data: bytes, version: int) -> bool:
        """Write the record over this version; whether that was done, whatever became of replies."""
        while True:
            sent_ms = self._client.now_ms()
            try:
                stat = await self._client.set(self.path, data, version=version)
            except (BadVersionError, NoNodeError):
                return False
            except _LOST_REPLY as error:
                log.info("writing %s: %s", self.path, error)
                await self._client.sync(self.path)
                found = await self._look()
                if found is None or found.stat.version > version + 1:
                    return False
                if found.stat.version == version:
                    continue
                if found.data != data:
                    return False
                stat = found.stat
            until_ms = sent_ms + int(self.ttl * 1000 * (1 - MARGIN))
            self._taken = _Taken(stat.mzxid, stat.version, until_ms)
            return True

    async def _release(self) -> None:
        """Clear the record if it is ours; repeated until that is answered."""
        self._taken = None
        while not self._client.closed:
            try:
                await self._client.sync(self.path)
                found = await self._look()
                if found is None or _decode(found.data) != self._record:
                    return
                await self._client.set(self.path, b"", version=found.stat.version)
            except (BadVersionError, NoNodeError) as error:
                log.info("looking at %s again: %s", self.path, error)
            except _LOST_REPLY as error:
                log.info("releasing %s again: %s", self.path, error)
            else:
                return

    async def _look(self) -> GetDataResult | None:
        try:
            return await self._client.get(self.path)
        except NoNodeError:
            return None

    async def _wait(self) -> None:
        """Until the lease is given back, or its time has passed and it is worth a look."""
        stream: EventStream[WatchEvent] = EventStream()
        try:
            while True:
                data, stat = await self._client.get(self.path, watch=stream)
                record = _decode(data)
                if record is None:
                    return
                renewed = stat.version != self._seen.version
                left = record.ttl_ms / 1000 if renewed else self._seen.left
                async with asyncio.timeout(left * (1 + MARGIN) + LOOK_AGAIN_S):
                    await anext(stream)
        except (NoNodeError, TimeoutError):
            return
        finally:
            self._client.unwatch(self.path, stream)

    async def _ensemble_ms(self) -> int:
        """The ensemble's time now: a write tells it."""
        number = f"{self._client.rng.getrandbits(_ID_BITS):032x}"
        probe = Claim(self._client, f"{self.path}-__now__{number}", b"", acl=self._acl)
        try:
            await probe.make()
            assert probe.stat is not None, "it was made"
            return probe.stat.ctime
        finally:
            probe.remove_soon()


def _decode(data: bytes | None) -> _Record | None:
    """The record, or None if it is not one of ours."""
    try:
        return _Record(**json.loads(data or b""))
    except (ValueError, TypeError):
        return None
