"""A lease for a time: held until it runs out, whatever becomes of the session or the process.

``async with TtlLease(zk, "/leases/nightly", 60.0) as lease: ...`` renews it every third of its
time while the block runs. For work that should keep its claim over a restart, or that nobody
should begin again for a while; a `Lock` is what ends with its session.

Invariants
    I1  The holder stops believing in the lease on its own clock before it can have run out: it
        counts from when it *sent* its last answered renewal, and takes a margin off.
    I2  Others judge its age by two stamps of the ensemble's, never by a client's clock. A lease
        that has run out is taken by the version under which it was found old.
    I3  Each taking writes a record of its own: what clears up after one that was given up in the
        middle, however late, leaves the next one alone.

The stamps are the leaders' clocks: members whose clocks differ by more than the margin break I1.

Znodes: `path`, persistent, which holds a record or nothing, as kazoo's `NonBlockingLease` does; to
look at the ensemble's clock, ``<path>-__now__<number>``, ephemeral, for a moment. Cost: 1 read and
1 write to take a free one (1 write more the first time ever), 1 write to renew, 1 write and 1 read
to release; a look at one that is held is 1 read and 2 writes.
"""

import asyncio
import json
import logging
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

from zabd.client.client import Client
from zabd.client.events import EventStream
from zabd.client.recipes.bound import NOT_NOW, NOT_NOW_PAUSE_S, Resends
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
    TooManyRequestsError,
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
    record: _Record
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
        self._identifier = identifier
        self._taken: _Taken | None = None
        self._lost = asyncio.Event()
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
        return self._require().token

    async def wait_lost(self) -> None:
        """Wait until it has run out by our own clock, or is another's; releasing does not count."""
        lost = self._lost
        while not lost.is_set() and (self._taken is None or self.held):
            with suppress(TimeoutError):
                async with asyncio.timeout(self.remaining if self.held else None):
                    await lost.wait()

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
            ConnectionLossError: each connection broke that the record was sent on.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._acquire(blocking=blocking)
        except TimeoutError:
            raise LockTimeoutError(f"{self.path} was not free within {timeout} s") from None

    async def renew(self) -> None:
        """Hold it for `ttl` from now on.

        Raises:
            LockLostError: it has run out, and another has it, or somebody has deleted the znode.
        """
        taken = self._require()
        renewed = await self._write(taken.record, taken.version, Resends())
        if self._taken is not taken:
            self._require()  # it was taken anew meanwhile, or given back
        elif renewed is None:
            self._taken = None
            self._lost.set()
            raise LockLostError(f"the lease {self.path} has run out, and is another's now")
        else:
            self._taken = renewed._replace(token=taken.token)

    async def release(self) -> None:
        """Give it back, if it is ours; a cancelled caller does not stop it.

        Out of reach of the ensemble this returns when the lease has run out.
        """
        if self._taken is not None:
            await asyncio.shield(self._give_back(self._taken.record))

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
            except (KeeperError, TooManyRequestsError) as error:
                log.info("renewing %s again: %s", self.path, error)
            except LockLostError as error:
                log.warning("%s", error)  # the block hears of it by `held` and `wait_lost`
                return
            except LocalProtocolError as error:
                log.debug("renewing has ended: %s", error)  # it was given back inside the block
                return

    async def _acquire(self, *, blocking: bool) -> bool:
        resends = Resends()
        while True:
            try:
                if await self._try(resends):
                    return True
                if not blocking:
                    return False
                resends = Resends()
                await self._wait()
            except (*_LOST_REPLY, *NOT_NOW) as error:
                if not blocking:
                    raise
                log.info("looking at %s again: %s", self.path, error)
                if isinstance(error, ConnectionLossError):
                    await resends.pause(error)
                elif isinstance(error, NOT_NOW):
                    await asyncio.sleep(NOT_NOW_PAUSE_S)
                await self._client.wait_connected()

    async def _try(self, resends: Resends) -> bool:
        """Take it if nobody has it, or if it has run out."""
        try:
            data, stat = await self._client.get(self.path)
        except NoNodeError:
            await self._client.ensure_path(self.path, acl=self._acl)
            return await self._try(resends)
        record = _decode(data)
        ours = self._taken is not None and record == self._taken.record
        if record is not None and not ours:
            left_ms = stat.mtime + record.ttl_ms - await self._ensemble_ms()
            if left_ms >= 0:
                self._seen = _Seen(stat.version, left_ms / 1000)
                return False
        return await self._take(stat.version, resends)

    async def _take(self, version: int, resends: Resends) -> bool:
        """Take it over this version, under a record of this taking alone (I3)."""
        id = f"{self._client.rng.getrandbits(_ID_BITS):032x}"
        record = _Record(id, int(self.ttl * 1000), self._identifier)
        before = self._taken
        try:
            taken = await self._write(record, version, resends)
        except BaseException:
            # The write may be on its way, and nobody asks for it any more.
            self._give_back(record)
            if before is not None:
                self._give_back(before.record)
            raise
        if taken is None:
            return False
        self._taken, self._lost = taken, asyncio.Event()
        return True

    async def _write(self, record: _Record, version: int, resends: Resends) -> _Taken | None:
        """Write the record over this version, or over itself; None if another's stands there."""
        data = json.dumps(record._asdict()).encode()
        began_ms = self._client.now_ms()
        while True:
            sent_ms = self._client.now_ms()
            try:
                stat = await self._client.set(self.path, data, version=version)
            except NoNodeError:
                return None
            except BadVersionError:
                found = await self._look()
                if found is None or found.data != data:
                    return None
                # A renewal of ours has arrived after all, but nobody knows when.
                version = found.stat.version
                continue
            except _LOST_REPLY as error:
                log.info("writing %s: %s", self.path, error)
                await self._client.sync(self.path)
                found = await self._look()
                if found is not None and found.stat.version == version:
                    if isinstance(error, ConnectionLossError):
                        await resends.pause(error)
                    continue
                if found is None or found.data != data:
                    return None
                stat, sent_ms = found.stat, began_ms
            until_ms = sent_ms + int(self.ttl * 1000 * (1 - MARGIN))
            return _Taken(record, stat.mzxid, stat.version, until_ms)

    def _give_back(self, record: _Record) -> asyncio.Task[None]:
        """Stop believing in it, and begin to clear it."""
        if self._taken is not None and self._taken.record == record:
            self._taken = None
        return self._client.spawn(self._clear(record))

    async def _clear(self, record: _Record) -> None:
        """Clear the record if it is the one that stands; no longer than it would stand anyway."""
        try:
            async with asyncio.timeout(self.ttl * (1 + MARGIN)):
                await self._insist_clear(record)
        except TimeoutError:
            log.info("%s has run out before it could be given back", self.path)

    async def _insist_clear(self, record: _Record) -> None:
        """Clear the record if it is the one that stands; repeated until that is answered."""
        while not self._client.closed:
            try:
                await self._client.sync(self.path)
                found = await self._look()
                if found is None or _decode(found.data) != record:
                    return
                await self._client.set(self.path, b"", version=found.stat.version)
            except (BadVersionError, NoNodeError) as error:
                log.info("looking at %s again: %s", self.path, error)
            except _LOST_REPLY as error:
                log.info("releasing %s again: %s", self.path, error)
            except NOT_NOW:
                await asyncio.sleep(NOT_NOW_PAUSE_S)
            else:
                return

    def _require(self) -> _Taken:
        if self._taken is None:
            if self._lost.is_set():
                raise LockLostError(f"the lease {self.path} is lost: another has it")
            raise LocalProtocolError(f"the lease {self.path} is not held")
        return self._taken

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
