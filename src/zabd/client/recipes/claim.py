"""An ephemeral znode of one session under a name of its own, made and removed safely.

Invariants
    I1  After a lost reply the znode is looked for by its owner behind a `sync`: what is there under
        another session is not ours, and what is ours is not made again.
    I2  `remove` ends with no znode on the servers, or with the session gone; what was being made is
        waited for. What a server refuses for good raises, and may be asked for again.
"""

import asyncio
import logging
from collections.abc import Sequence

from zabd.client.client import Client
from zabd.client.effects import SessionState
from zabd.client.events import StateChange
from zabd.client.recipes.bound import Bound, Resends
from zabd.model.acl import Acl
from zabd.model.errors import (
    ClosingError,
    ConnectionLossError,
    KeeperError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    ZabdError,
)
from zabd.model.ids import SessionId
from zabd.model.ops import Check, Create, CreateMode, MultiOp
from zabd.model.stat import Stat

log = logging.getLogger("zabd.client.recipes")


class ClaimGoneError(ZabdError):
    """The session or the znode of a claim is gone."""


class Claim:
    """One ephemeral at `path`; bound to the session that the client has when it is made."""

    def __init__(
        self, client: Client, path: str, data: bytes, *, acl: tuple[Acl, ...] | None = None
    ) -> None:
        self.client = client
        self.path = path
        self.data = data
        self.acl = client.default_acl if acl is None else acl
        self.stat: Stat | None = None
        self.lost = asyncio.Event()
        self._bound: Bound | None = None
        self._making: asyncio.Task[None] | None = None
        self._removing: asyncio.Task[None] | None = None
        self._stop_listening = client.on_transition(self._on_transition)

    @property
    def session_id(self) -> SessionId:
        """The session it is bound to."""
        return self._bound.session_id if self._bound else 0

    @property
    def token(self) -> int:
        """The zxid that created it."""
        assert self.stat is not None, "the claim was made"
        return self.stat.czxid

    @property
    def alive(self) -> bool:
        """Whether it is there, as far as can be known here and now, by the local lease too."""
        if self.stat is None or self.lost.is_set() or self._removing is not None:
            return False
        return self.client.check_lease() and self.client.session_id == self.session_id

    async def make(
        self,
        *,
        bound: Bound | None = None,
        before: Sequence[MultiOp] = (),
        after: Sequence[MultiOp] = (),
    ) -> None:
        """Create the znode, in one transaction with `before` and `after`.

        A cancelled caller does not stop it; `remove` waits for it and undoes it.

        Raises:
            NodeExistsError: somebody else's znode is there.
            NoNodeError: its parent is not (with `op_index`), or what `before` asks for.
            ConnectionLossError: the connection broke each of the many times that it was asked for,
                as by data above the server's ``jute.maxbuffer``; nothing was done.
            SessionExpiredError: the session ended.
        """
        self._making = self.client.spawn(self._make(bound, [*before, self._create, *after]))
        await asyncio.shield(self._making)

    async def verify(self) -> None:
        """Ask the leader whether it exists at this moment.

        Raises:
            ClaimGoneError: it does not.
        """
        try:
            await self._require().insist_multi([Check(self.path, -1)])
        except (NoNodeError, SessionExpiredError) as error:
            self.lost.set()
            raise ClaimGoneError(f"{self.path} is not ours any more: {error}") from error

    async def remove(self) -> None:
        """Delete the znode (I2); a cancelled caller does not stop it.

        Raises:
            KeeperError: the server does not let us, by an ACL for example; the znode stays as long
                as the session, or until another call.
        """
        await asyncio.shield(self.remove_soon())

    def remove_soon(self) -> asyncio.Task[None]:
        """Begin to delete it in the background; the same task however often it is called.

        Only after a failure it is another one.
        """
        if self._removing is None or _failed(self._removing):
            self._removing = self.client.spawn(self._remove())
        return self._removing

    def removed(self) -> None:
        """Note that a transaction has deleted it."""
        self._stop_listening()
        self.stat = None

    @property
    def _create(self) -> Create:
        return Create(self.path, self.data, self.acl, CreateMode.EPHEMERAL)

    def _require(self) -> Bound:
        assert self._bound is not None, "the claim was made"
        return self._bound

    async def _make(self, bound: Bound | None, ops: list[MultiOp]) -> None:
        self._bound = bound or await Bound.now(self.client)
        resends = Resends()
        while True:
            try:
                await self._bound.multi(ops)
            except ConnectionLossError as error:
                await self._bound.sync(self.path)
                if await self._adopt():
                    return
                error.maybe_applied = False
                await resends.pause(error)
            except NodeExistsError:
                if await self._adopt():
                    return
                raise
            else:
                if not await self._adopt():
                    self.lost.set()  # made, and deleted by somebody already
                    raise ClaimGoneError(f"{self.path} was deleted by somebody else")
                return

    async def _adopt(self) -> bool:
        """Note the znode's Stat if it is there and ours (I1)."""
        bound = self._require()
        stat = await bound.stat(self.path)
        if stat is None or stat.ephemeral_owner != bound.session_id:
            return False
        self.stat = stat
        return True

    async def _remove(self) -> None:
        if self._making is not None:
            await asyncio.wait([self._making])
        try:
            if self.stat is not None and not self.lost.is_set():
                await self._require().delete_this(self.path, self.stat)
        except (SessionExpiredError, ClosingError):
            self.lost.set()
        except KeeperError:
            log.exception("cannot delete %s, which stays until our session ends", self.path)
            raise
        self.removed()

    def _on_transition(self, change: StateChange) -> None:
        ours = self._bound is not None and change.session_id == self._bound.session_id
        if ours and change.state in {SessionState.LOST, SessionState.CLOSED}:
            self.lost.set()


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
