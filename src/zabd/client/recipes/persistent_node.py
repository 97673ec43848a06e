"""A znode that is there for as long as this is open: an ephemeral that survives its sessions.

``async with PersistentNode(zk, "/services/a", b"10.0.0.1:80"): ...``

Invariants
    I1  While a session lives the znode is made again whenever it is missing; a lost reply is
        settled by its owner. What stands there under another session is waited out, not replaced:
        it may be the last session's, which is dying, or somebody else's.
    I2  `close` ends with no znode of ours: it is deleted, or dies with the session that made it.
        `start` behind it waits for that.

Znodes: `path`, ephemeral unless said otherwise. Cost: 1 write and 2 reads; nothing while it stands.
"""

import asyncio
import logging
from types import TracebackType
from typing import Self

from zabd.client.client import Client
from zabd.client.events import EventStream
from zabd.client.recipes.bound import Bound, Resends
from zabd.client.recipes.parents import ensure_path
from zabd.model.acl import Acl
from zabd.model.errors import (
    ClosingError,
    ConnectionLossError,
    KeeperError,
    LocalProtocolError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from zabd.model.ops import Create, CreateMode, SetData
from zabd.model.paths import check_path, parent_of
from zabd.model.stat import Stat
from zabd.model.watch_events import WatchEvent

log = logging.getLogger("zabd.client.recipes")

# After an error that is not the connection's, such as a missing permission.
TRY_AGAIN_S = 1.0
# After a request that broke one connection after the other: those of the whole client.
TRY_HOPELESS_AGAIN_S = 60.0


class PersistentNode:
    """Keeps `path` there with `data`; ``async with``, or `start` and `close`.

    Without `ephemeral` the znode outlives a crash of this process, and belongs to nobody.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = True,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        check_path(path)
        self.path = path
        self.data = data
        self._client = client
        self._ephemeral = ephemeral
        self._acl = client.default_acl if acl is None else acl
        self._task: asyncio.Task[None] | None = None
        self._removing: asyncio.Task[None] | None = None
        self._bound: Bound | None = None
        self._stat: Stat | None = None
        self._stands = False
        self._refusal = ""
        self._settled = asyncio.Event()  # it stands, or there is a refusal

    @property
    def present(self) -> bool:
        """Whether our znode stands, as far as can be known here and now."""
        if not self._stands or self._stat is None or not self._client.check_lease():
            return False
        return not self._ephemeral or self._stat.ephemeral_owner == self._client.session_id

    @property
    def fencing_token(self) -> int:
        """The zxid that created the znode: who stands there later has a higher one."""
        if self._stat is None:
            raise LocalProtocolError(f"{self.path} does not stand yet")
        return self._stat.czxid

    async def wait_present(self, *, timeout: float | None = None) -> None:
        """Wait until our znode stands.

        Raises:
            TimeoutError: it did not within `timeout` seconds.
            LocalProtocolError: it cannot be asked for: the client or this is closed, or `data` is
                larger than a request may be.
        """
        async with asyncio.timeout(timeout):
            while not self._stands:
                if self._refusal:
                    raise LocalProtocolError(f"{self.path} does not stand: {self._refusal}")
                await self._settled.wait()

    async def set(self, data: bytes) -> None:
        """Change what it holds, now and whenever it is made again."""
        before, self.data = self.data, data
        # Otherwise whoever makes it stand compares.
        if self._stands:
            try:
                await self._client.retry(
                    lambda: self._client.set(self.path, self.data), idempotent=True
                )
            except (NoNodeError, SessionExpiredError):
                log.debug("%s is being made again, with its new data", self.path)
            except LocalProtocolError:
                self.data = before  # nothing has changed
                raise
        elif self._task is not None:
            self._settle(stands=False)  # what was refused may stand with the new data

    async def start(self) -> None:
        """Begin; returns at once."""
        if self._task is None:
            self._settle(stands=False)
            self._task = self._client.spawn(self._keep(self._removing))

    async def close(self) -> None:
        """Remove the znode; a cancelled caller does not stop that."""
        if (removing := self.close_soon()) is not None:
            await asyncio.shield(removing)

    def close_soon(self) -> asyncio.Task[None] | None:
        """Begin to remove the znode in the background; return what does, None if nothing began."""
        task, self._task = self._task, None
        if task is not None:
            self._settle(stands=False, refusal="it was closed")
            self._removing = self._client.spawn(self._end(task, self._removing))
        return self._removing

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _keep(self, removing: asyncio.Task[None] | None) -> None:
        if removing is not None:
            await asyncio.wait([removing])
        while not self._client.closed:
            try:
                self._bound = await Bound.now(self._client)
                await self._keep_in_session(self._bound)
            except (SessionExpiredError, ClosingError) as error:
                log.info("%s ended with its session: %s", self.path, error)
            except ConnectionLossError:
                log.exception("cannot keep %s; trying again much later", self.path)
                await asyncio.sleep(TRY_HOPELESS_AGAIN_S)
            except KeeperError:
                log.exception("cannot keep %s; trying again", self.path)
                await asyncio.sleep(TRY_AGAIN_S)
            except LocalProtocolError as error:
                if self._client.closed:
                    break
                self._settle(stands=False, refusal=str(error))
                log.exception("cannot ask for %s; trying again", self.path)
                await asyncio.sleep(TRY_AGAIN_S)
        self._settle(stands=False, refusal="the client is closed")

    async def _keep_in_session(self, bound: Bound) -> None:
        stream: EventStream[WatchEvent] = EventStream()
        resends = Resends()
        try:
            while True:
                found = await bound.get(self.path, watch=stream)
                if found is None:
                    await self._create(bound, resends)
                    continue
                if not self._ephemeral or found.stat.ephemeral_owner == bound.session_id:
                    if found.data != self.data:
                        await bound.insist(SetData(self.path, self.data, -1))
                        continue
                    self._stat = found.stat
                    self._settle(stands=True)
                    resends = Resends()
                await anext(stream)
                self._settle(stands=False)
        finally:
            self._settle(stands=False, refusal=self._refusal)
            self._client.unwatch(self.path, stream)

    def _settle(self, *, stands: bool, refusal: str = "") -> None:
        """Note whether it stands, or why it cannot, and tell who waits for either."""
        self._stands, self._refusal = stands, refusal
        if stands or refusal:
            self._settled.set()
        else:
            self._settled.clear()

    async def _create(self, bound: Bound, resends: Resends) -> None:
        """Make it; whether that is how it came to be is for the next look to say."""
        mode = CreateMode.EPHEMERAL if self._ephemeral else CreateMode.PERSISTENT
        try:
            await bound.once(Create(self.path, self.data, self._acl, mode))
        except NoNodeError:
            await ensure_path(bound, parent_of(self.path), self._acl)
        except NodeExistsError:
            # What this server does not show yet must not be asked for in a circle.
            await bound.sync(self.path)
        except ConnectionLossError as error:
            await resends.pause(error)
            await bound.sync(self.path)  # nor be made twice

    async def _end(self, task: asyncio.Task[None], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._remove(task)

    async def _remove(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])
        bound, ours = self._bound, None
        while bound is not None and not self._client.closed:
            try:
                # A create may be on its way still; behind a sync it has arrived or never will.
                await bound.sync(self.path)
                stat = await bound.stat(self.path)
                if stat is None or not self._is_ours(stat, bound, ours):
                    return
                ours = stat
                await bound.delete_this(self.path, stat)
            except ClosingError as error:
                log.debug("%s is left to the end of the client: %s", self.path, error)
                return
            except SessionExpiredError as error:
                log.debug("the session of %s is over: %s", self.path, error)
                # An ephemeral goes with it, whatever became of its delete; another one does not.
                bound = None if self._ephemeral else await Bound.now(self._client)
            else:
                return

    def _is_ours(self, stat: Stat, bound: Bound, before: Stat | None) -> bool:
        """Whether that is to be deleted: after a delete in doubt, only what was found before it."""
        if before is not None:
            return stat.czxid == before.czxid
        return stat.ephemeral_owner == (bound.session_id if self._ephemeral else 0)
