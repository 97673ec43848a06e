"""Reads and writes the records of one key, each write guarded by the lock znode of its writer.

Invariants
    I1  A write happens only if the writer's lock znode exists at its zxid, and is sent only on the
        session that created that znode: a writer whose session has ended cannot record anything.
    I2  A write whose reply was lost is settled by reading behind a `sync`: done if the record
        carries our attempt id, sent again only while the lock is still ours.

Dedup recipe, sections 4 and 6.
"""

from zabd.client.recipes.dedup.errors import FencedError
from zabd.client.recipes.dedup.records import Result, Started
from zabd.client.recipes.place import Place
from zabd.model.acl import Acl
from zabd.model.errors import (
    BadVersionError,
    ConnectionLossError,
    KeeperError,
    LocalProtocolError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from zabd.model.ops import Check, Create, Delete, MultiOp, SetData
from zabd.model.paths import join
from zabd.model.results import MultiPart
from zabd.model.stat import Stat

RESULT = "result"
STARTED = "started"


class RecordsChangedError(Exception):
    """The records are not what they were when they were read: look again."""


class NotCommittedError(Exception):
    """The session ended; `known` says whether the ensemble was asked and has no such record."""

    def __init__(self, *, known: bool) -> None:
        super().__init__()
        self.known = known


class Ledger:
    """The records under the key's znode, as the holder of `place` sees and writes them."""

    def __init__(self, place: Place, acl: tuple[Acl, ...]) -> None:
        self._place = place
        self._acl = acl
        self.result_path = join(place.parent, RESULT)
        self.started_path = join(place.parent, STARTED)

    # Reading.

    async def result(self) -> tuple[Result, Stat] | None:
        """The recorded outcome."""
        found = await self._place.bound.get(self.result_path)
        return None if found is None else (Result.decode(found.data), found.stat)

    async def started(self) -> tuple[Started, Stat] | None:
        """The journal."""
        found = await self._place.bound.get(self.started_path)
        return None if found is None else (Started.decode(found.data), found.stat)

    # Writing.

    async def begin(self, started: Started, *, over: int | None, drop: int | None) -> None:
        """Write the journal: a new one, or `over` the version of an earlier one.

        `drop` is the version of a result that does not count any more.

        Raises:
            FencedError: the lock is not ours.
            RecordsChangedError: the records have other versions.
        """
        data = started.encode()
        ops: list[MultiOp] = [] if drop is None else [Delete(self.result_path, drop)]
        if over is None:
            ops.append(Create(self.started_path, data, self._acl))
        else:
            ops.append(SetData(self.started_path, data, over))
        while True:
            try:
                await self.guarded(ops)
            except ConnectionLossError:
                await self._place.bound.sync(self._place.parent)
                found = await self.started()
                if found is not None and found[0].attempt_id == started.attempt_id:
                    return
            except (NodeExistsError, BadVersionError, NoNodeError) as error:
                raise RecordsChangedError from error
            else:
                return

    async def rewrite(self, started: Started) -> None:
        """Replace our own journal; doing it twice is the same as once."""
        ops: list[MultiOp] = [SetData(self.started_path, started.encode())]
        while True:
            try:
                await self.guarded(ops)
            except ConnectionLossError:
                continue
            else:
                return

    async def commit(self, result: Result, *, journal: bool, replaces: int | None) -> None:
        """Record the outcome and give the lock back, at one zxid.

        Raises:
            FencedError: the lock is not ours, and nothing was recorded.
            NotCommittedError: the session ended before the outcome was recorded.
        """
        sent = False
        while True:
            try:
                await self.guarded(self._commit_ops(result, journal=journal, replaces=replaces))
            except SessionExpiredError as error:
                await self._settle_elsewhere(result, maybe=sent or error.maybe_applied)
                return
            except ConnectionLossError:
                sent = True
                if await self._recorded(result):
                    return
            except FencedError:
                if sent and await self._recorded(result):
                    return
                raise
            except NoNodeError as error:
                if not journal:
                    raise RecordsChangedError from error
                journal = False  # it ran out during a very long run
            except NodeExistsError as error:
                if await self._recorded(result):
                    return
                raise FencedError("another attempt's outcome is recorded") from error
            else:
                return

    async def clear(self) -> None:
        """Delete our journal and give the lock back: nothing has happened, the key is free.

        A lock that is gone already is success, since then nobody can be in our way.
        """
        ops: list[MultiOp] = [Delete(self.started_path), Delete(self._place.path)]
        while True:
            try:
                await self.guarded(ops)
            except ConnectionLossError:
                continue
            except FencedError:
                return
            except NoNodeError:
                ops = [Delete(self._place.path)]
            else:
                return

    async def guarded(self, ops: list[MultiOp]) -> tuple[MultiPart, ...]:
        """Do the ops if, at that zxid, the lock is ours (I1); return their results.

        Raises:
            FencedError: it is not.
            KeeperError: one of the ops failed; `op_index` counts without the guard.
        """
        try:
            parts = await self._place.bound.multi([Check(self._place.path), *ops])
        except KeeperError as error:
            if error.op_index == 0 and isinstance(error, NoNodeError):
                raise FencedError(f"{self._place.path} is gone: the key is not ours") from error
            if error.op_index is not None:
                error.op_index -= 1
            raise
        return parts[1:]

    def _commit_ops(self, result: Result, *, journal: bool, replaces: int | None) -> list[MultiOp]:
        drops = [Delete(self.started_path)] if journal else []
        old = [] if replaces is None else [Delete(self.result_path, replaces)]
        record = Create(self.result_path, result.encode(), self._acl)
        return [*drops, *old, record, Delete(self._place.path)]

    async def _recorded(self, result: Result) -> bool:
        """Whether our outcome is there, after a commit without an answer."""
        try:
            await self._place.bound.sync(self._place.parent)
            found = await self.result()
        except SessionExpiredError:
            await self._settle_elsewhere(result, maybe=True)
            return True
        return found is not None and found[0].attempt_id == result.attempt_id

    async def _settle_elsewhere(self, result: Result, *, maybe: bool) -> None:
        """The commit may have landed before the session ended: only a new session can tell."""
        if not maybe:
            raise NotCommittedError(known=True)
        client = self._place.client
        limit = client.session_timeout
        try:
            await client.wait_connected(timeout=limit)
            await client.sync(self._place.parent, timeout=limit)
            data, _ = await client.get(self.result_path, timeout=limit)
        except NoNodeError:
            raise NotCommittedError(known=True) from None
        except (KeeperError, LocalProtocolError) as error:
            raise NotCommittedError(known=False) from error
        if Result.decode(data).attempt_id != result.attempt_id:
            raise NotCommittedError(known=True)
