"""A znode that is there for as long as this is open: an ephemeral that survives its sessions.

``async with PersistentNode(zk, "/services/a", b"10.0.0.1:80"): ...``

Invariants
    I1  While a session lives the znode is made again whenever it is missing; a lost reply is
        settled by its owner. What stands there under another session is waited out, not replaced:
        it may be the last session's, which is dying, or somebody else's.
    I2  `close` ends with no znode of ours.

Znodes: `path`, ephemeral unless said otherwise. Cost: 1 write and 2 reads; nothing while it stands.
"""

import asyncio
import logging
from types import TracebackType
from typing import Self

from zabd.client.client import Client
from zabd.client.events import EventStream
from zabd.client.recipes.bound import Bound
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
        self._stat: Stat | None = None
        self._stands = asyncio.Event()

    @property
    def present(self) -> bool:
        """Whether our znode stands, as far as can be known here and now."""
        if not self._stands.is_set() or self._stat is None or not self._client.check_lease():
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
        """
        async with asyncio.timeout(timeout):
            await self._stands.wait()

    async def set(self, data: bytes) -> None:
        """Change what it holds, now and whenever it is made again."""
        self.data = data
        # Otherwise whoever makes it stand compares.
        if self._stands.is_set():
            try:
                await self._client.retry(
                    lambda: self._client.set(self.path, self.data), idempotent=True
                )
            except (NoNodeError, SessionExpiredError):
                log.debug("%s is being made again, with its new data", self.path)

    async def start(self) -> None:
        """Begin; returns at once."""
        if self._task is None:
            self._task = self._client.spawn(self._keep())

    async def close(self) -> None:
        """Remove the znode; a cancelled caller does not stop that."""
        task, self._task = self._task, None
        if task is not None:
            await asyncio.shield(self._client.spawn(self._remove(task)))

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

    async def _keep(self) -> None:
        while not self._client.closed:
            try:
                await self._keep_in_session(await Bound.now(self._client))
            except (SessionExpiredError, ClosingError) as error:
                log.info("%s ended with its session: %s", self.path, error)
            except KeeperError:
                log.exception("cannot keep %s; trying again", self.path)
                await asyncio.sleep(TRY_AGAIN_S)
            finally:
                self._stands.clear()

    async def _keep_in_session(self, bound: Bound) -> None:
        stream: EventStream[WatchEvent] = EventStream()
        try:
            while True:
                found = await bound.get(self.path, watch=stream)
                if found is None:
                    await self._create(bound)
                    continue
                if not self._ephemeral or found.stat.ephemeral_owner == bound.session_id:
                    if found.data != self.data:
                        await bound.insist(SetData(self.path, self.data, -1))
                        continue
                    self._stat = found.stat
                    self._stands.set()
                await anext(stream)
                self._stands.clear()
        finally:
            self._client.unwatch(self.path, stream)

    async def _create(self, bound: Bound) -> None:
        """Make it; whether that is how it came to be is for the next look to say."""
        mode = CreateMode.EPHEMERAL if self._ephemeral else CreateMode.PERSISTENT
        try:
            await bound.once(Create(self.path, self.data, self._acl, mode))
        except NoNodeError:
            await self._client.ensure_path(parent_of(self.path), acl=self._acl)
        except (NodeExistsError, ConnectionLossError):
            # What this server does not show yet must not be made twice, or asked for in a circle.
            await bound.sync(self.path)

    async def _remove(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])
        if self._client.closed:
            return
        bound = Bound(self._client, self._client.session_id)
        try:
            # A create may be on its way still; behind a sync it has arrived or never will.
            await bound.sync(self.path)
            stat = await bound.stat(self.path)
            if stat is not None and stat.ephemeral_owner == (
                bound.session_id if self._ephemeral else 0
            ):
                await bound.delete_this(self.path, stat)
        except (SessionExpiredError, ClosingError) as error:
            log.debug("%s is gone with its session: %s", self.path, error)
