"""The client bound to one session: what a recipe writes under a lock must not outlive the lock.

Every request fails with `SessionExpiredError` as soon as the client has another session, even if it
only waited for a connection. What is refused for now, by a server that has no quorum or too much to
do, or because too much waits in the client already, has not happened and is asked for again, as
long as the session lives. `insist` repeats what may safely happen twice until it is answered.

Invariants
    I1  One and the same request is sent again at most `RESENDS_MAX` times because its connection
        broke under it: one that breaks each connection it is sent on takes the connections of all
        the rest of the client with it, and must not do so for as long as the session lives. What
        carries no data either way (delete, exists, sync) goes on: it is never the culprit, and what
        is not deleted blocks others.
"""

import asyncio
from collections.abc import Sequence

from zabd.client.client import Client
from zabd.client.events import Watcher
from zabd.model.errors import (
    ConnectionLossError,
    NoNodeError,
    NotReadOnlyError,
    ThrottledOpError,
    TooManyRequestsError,
    UnimplementedError,
)
from zabd.model.ids import SessionId
from zabd.model.ops import (
    Delete,
    Exists,
    GetChildren,
    GetData,
    MultiOp,
    MultiReadOp,
    Op,
    OpCode,
    Sync,
)
from zabd.model.paths import ROOT, name_of, parent_of
from zabd.model.results import (
    ChildrenResult,
    GetDataResult,
    MultiPart,
    Result,
    StatResult,
)
from zabd.model.stat import Stat

# Each of them needs a connection that was made and a request that was sent: with the pauses, 16 in
# a row outlast any failover. What waits for a connection waits for as long as the session lives.
RESENDS_MAX = 16
_PAUSE_MAX = 1.0
_FIRST_PAUSE = 0.05

NOT_NOW = (NotReadOnlyError, ThrottledOpError, TooManyRequestsError)
"""What is said of a request that was not executed, and may be later: by a server, or the client."""
NOT_NOW_PAUSE_S = 0.25
"""Until it is asked again: an election takes about as long."""


class Resends:
    """Counts how often the connection broke under one request, sent again and again (I1).

    One for each request: ``except ConnectionLossError as error: resends.count(error)``.
    """

    def __init__(self, limit: int | None = RESENDS_MAX) -> None:
        self._limit = limit
        self._lost = 0
        self._pause = 0.0

    def count(self, error: ConnectionLossError) -> None:
        """The request was lost once more, and is to be sent again.

        Raises:
            ConnectionLossError: it has been sent again often enough.
        """
        self._lost += 1
        if self._limit is not None and self._lost > self._limit:
            raise _hopeless(error, self._lost) from error

    async def pause(self, error: ConnectionLossError) -> None:
        """As `count`, and wait: what breaks its connection must not do so as fast as it can."""
        self.count(error)
        await asyncio.sleep(self._pause)
        self._pause = min(_PAUSE_MAX, self._pause * 2 or _FIRST_PAUSE)


def _hopeless(last: ConnectionLossError, times: int) -> ConnectionLossError:
    asked = " ".join(word for word in (last.operation, last.path) if word)
    error = ConnectionLossError(
        f"{asked}: the connection broke each of the {times} times that this was sent; a server does"
        " so, without an answer, to a request larger than its jute.maxbuffer",
        path=last.path,
        operation=last.operation,
        session_id=last.session_id,
    )
    error.maybe_applied = last.maybe_applied
    return error


class Bound:
    """One session of a client; paths are the user's."""

    def __init__(self, client: Client, session_id: SessionId) -> None:
        self.client = client
        self.session_id = session_id

    @classmethod
    async def now(cls, client: Client) -> "Bound":
        """Bind to the session the client has as soon as it is connected."""
        await client.wait_connected()
        return cls(client, client.session_id)

    async def once(self, op: Op, *, watch: Watcher | None = None) -> Result:
        """Send an op once; `ConnectionLossError` leaves open what happened."""
        client, session_id = self.client, self.session_id
        while True:
            try:
                return await client.call(op, watch=watch, session_id=session_id, timeout=None)
            except NOT_NOW:
                await asyncio.sleep(NOT_NOW_PAUSE_S)

    async def insist(
        self, op: Op, *, watch: Watcher | None = None, resends: Resends | None = None
    ) -> Result:
        """Send an op that may happen twice until the server answers or the session ends.

        Raises:
            ConnectionLossError: its connection broke more often than `resends` allow (I1).
        """
        resends = resends or Resends()
        while True:
            try:
                return await self.once(op, watch=watch)
            except ConnectionLossError as error:
                await resends.pause(error)

    async def multi(self, ops: Sequence[MultiOp]) -> tuple[MultiPart, ...]:
        """Do all or nothing, once, with plain znodes for what the server does not know."""
        known = self.client.fallbacks
        while True:
            sent = known.as_known(ops)
            try:
                parts = await self.client.multi(sent, session_id=self.session_id, timeout=None)
            except UnimplementedError as error:
                if not known.learn(sent, error):
                    raise
                await self.outlast_refusal()
            except ConnectionLossError:
                known.lost(sent)
                raise
            except NOT_NOW:
                await asyncio.sleep(NOT_NOW_PAUSE_S)
            else:
                known.proved(sent)
                return parts

    async def outlast_refusal(self) -> None:
        """ZooKeeper closes the connection behind UNIMPLEMENTED: send no write on what is left."""
        await self.stat(ROOT)

    async def insist_multi(self, ops: Sequence[MultiOp]) -> tuple[MultiPart, ...]:
        """As `multi`, for ops that may happen twice, such as checks alone; bounded as `insist`."""
        resends = Resends()
        while True:
            try:
                return await self.multi(ops)
            except ConnectionLossError as error:
                await resends.pause(error)

    async def sync(self, path: str) -> None:
        """Wait until this server has all that the leader had: before a search by a new server."""
        await self.insist(Sync(path), resends=Resends(limit=None))

    async def children(self, path: str) -> list[str]:
        """The names of the children."""
        result = await self.insist(GetChildren(path))
        assert isinstance(result, ChildrenResult)
        return sorted(result.children)

    async def ephemerals(self, parent: str) -> list[str] | None:
        """The names of this session's ephemerals right below; None if the server cannot tell."""
        known = self.client.fallbacks
        if not known.knows(OpCode.GET_EPHEMERALS):
            return None
        try:
            paths = await self.client.get_ephemerals(
                parent, session_id=self.session_id, timeout=None
            )
        except UnimplementedError:
            known.forget(OpCode.GET_EPHEMERALS)
            return None
        except (ConnectionLossError, *NOT_NOW):
            return None
        # What starts with the parent's path is not all below it: /dedup/req-4, /dedup/req-42/...
        return sorted(name_of(path) for path in paths if parent_of(path) == parent)

    async def read_all(self, ops: Sequence[MultiReadOp]) -> tuple[MultiPart, ...] | None:
        """Several reads of one state of the tree; None if the server knows no such thing."""
        known = self.client.fallbacks
        if not known.knows(OpCode.MULTI_READ):
            return None
        try:
            return await self.client.multi_read(ops, session_id=self.session_id, timeout=None)
        except UnimplementedError:
            known.forget(OpCode.MULTI_READ)
        except (ConnectionLossError, *NOT_NOW):
            pass
        return None

    async def stat(self, path: str) -> Stat | None:
        """The Stat, None without such a znode."""
        try:
            result = await self.insist(Exists(path), resends=Resends(limit=None))
        except NoNodeError:
            return None
        assert isinstance(result, StatResult)
        return result.stat

    async def get(self, path: str, *, watch: Watcher | None = None) -> GetDataResult | None:
        """Data and Stat, None without such a znode; then no watch is left behind."""
        try:
            result = await self.insist(GetData(path, watch is not None), watch=watch)
        except NoNodeError:
            return None
        assert isinstance(result, GetDataResult)
        return result

    async def is_still(self, path: str, stat: Stat) -> bool:
        """Whether the znode that had this Stat is there, and not another one of that name.

        It answers for the leader, and no earlier request of this session arrives any more.
        """
        await self.sync(path)
        found = await self.stat(path)
        return found is not None and found.czxid == stat.czxid

    async def delete_this(self, path: str, stat: Stat) -> None:
        """Delete the znode that has this Stat; already gone is success.

        After a lost reply it is looked for: who has made one of that name since is left alone.
        """
        resends = Resends(limit=None)
        while True:
            try:
                await self.once(Delete(path))
            except NoNodeError:
                return
            except ConnectionLossError as error:
                await resends.pause(error)
                if not await self.is_still(path, stat):
                    return
            else:
                return

    async def delete(self, path: str) -> bool:
        """Delete whatever is there, whoever made it; return whether anything was.

        After a lost reply once more: for what nobody makes again, or everybody may delete.
        """
        try:
            await self.insist(Delete(path), resends=Resends(limit=None))
        except NoNodeError:
            return False
        return True
