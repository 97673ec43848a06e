"""Reads and writes the records of one key, each write guarded by the lock znode of its writer.

Invariants
    I1  A write happens only if the writer's lock znode exists at its zxid, and is sent only on the
        session that created that znode: a writer whose session has ended cannot record anything.
    I2  A write whose reply was lost is settled by reading behind a `sync`: done if the record
        carries our attempt id, sent again only while the lock is still ours.
    I3  Records are TTL znodes where the server has them, and say so; where not, their age is told
        by the ensemble's stamps, and whoever owns the key replaces what is too old.

Dedup recipe, sections 4, 6 and 11.
"""

from dataclasses import replace

from zabd.client.fallbacks import CreateTtlOr
from zabd.client.recipes.bound import Bound, Resends
from zabd.client.recipes.dedup.commit import Commit
from zabd.client.recipes.dedup.errors import FencedError
from zabd.client.recipes.dedup.meter import DedupMeter
from zabd.client.recipes.dedup.records import Result, Started
from zabd.client.recipes.place import Place
from zabd.model.acl import Acl
from zabd.model.errors import (
    BadVersionError,
    ConnectionLossError,
    KeeperError,
    NodeExistsError,
    NoNodeError,
)
from zabd.model.ops import Check, Create, CreateMode, CreateTtl, Delete, MultiOp, OpCode, SetData
from zabd.model.paths import join
from zabd.model.results import MultiPart
from zabd.model.stat import Stat

RESULT = "result"
STARTED = "started"


class RecordsChangedError(Exception):
    """The records are not what they were when they were read: look again."""


class Ledger:
    """The records under the key's znode, as the holder of `place` sees and writes them."""

    def __init__(self, place: Place, acl: tuple[Acl, ...], meter: DedupMeter) -> None:
        self.place = place
        self.meter = meter
        self._acl = acl
        self.result_path = join(place.parent, RESULT)
        self.started_path = join(place.parent, STARTED)

    # Reading.

    async def result(self) -> tuple[Result, Stat] | None:
        """The recorded outcome."""
        found = await self._bound.get(self.result_path)
        return None if found is None else (Result.decode(found.data), found.stat)

    async def started(self) -> tuple[Started, Stat] | None:
        """The journal."""
        found = await self._bound.get(self.started_path)
        return None if found is None else (Started.decode(found.data), found.stat)

    async def recorded(self, attempt_id: str) -> Result | None:
        """The outcome of this attempt, if it is the recorded one, by all that the leader knows."""
        await self._bound.sync(self.place.parent)
        found = await self.result()
        return found[0] if found is not None and found[0].attempt_id == attempt_id else None

    # Writing.

    def create_started(self, started: Started) -> MultiOp:
        """The op that makes the journal."""
        return self._create(self.started_path, started)

    def create_result(self, result: Result) -> MultiOp:
        """The op that makes the record."""
        return self._create(self.result_path, result)

    def as_made(self, started: Started) -> Started:
        """The journal as a `create_started` has written it; to be called when the reply comes.

        What has served then is what the server at hand knows: no other connection was made since.
        """
        made = self.place.client.fallbacks.knows(OpCode.CREATE_TTL)
        return replace(started, server_ttl=started.ttl_ms is not None and made)

    async def begin(self, started: Started, *, over: int | None, drop: int | None) -> Started:
        """Write the journal: a new one, or `over` the version of an earlier one, made as that was.

        `drop` is the version of a result that does not count any more. Returns what is written.

        Raises:
            FencedError: the lock is not ours.
            RecordsChangedError: the records have other versions.
        """
        ops: list[MultiOp] = [] if drop is None else [Delete(self.result_path, drop)]
        if over is None:
            ops.append(self.create_started(started))
        else:
            ops.append(SetData(self.started_path, started.encode(), over))
        resends = Resends()
        while True:
            try:
                await self.guarded(ops)
            except ConnectionLossError as error:
                if (found := await self._has_begun(started)) is not None:
                    return found
                await resends.pause(error)
            except (NodeExistsError, BadVersionError, NoNodeError) as error:
                raise RecordsChangedError from error
            else:
                return self.as_made(started) if over is None else started

    async def rewrite(self, started: Started, more: list[MultiOp]) -> tuple[MultiPart, ...]:
        """Replace our own journal by one of another phase, together with `more`, exactly once.

        Returns the results of `more`; none if the reply was lost and the write had happened.

        Raises:
            FencedError: the lock is not ours, or the journal is another attempt's.
            ConnectionLossError: it has not happened, and breaks each connection it is sent on.
        """
        resends, version = Resends(), -1
        while True:
            try:
                write = SetData(self.started_path, started.encode(), version)
                return (await self.guarded([write, *more]))[1:]
            except ConnectionLossError as error:
                await self._bound.sync(self.place.parent)
                found = await self.started()
                if found is not None and _same_phase(found[0], started):
                    self.meter.lost_reply("checkpoint", "adopted")
                    return ()
                # The lock's name may be somebody else's by now: only this journal is replaced.
                version = self._own_version(found, started)
                await resends.pause(error)
                self.meter.lost_reply("checkpoint", "resent")
            except BadVersionError as error:
                if version == -1 or error.op_index != 0:
                    raise  # it is about one of `more`
                raise FencedError(f"{self.started_path} was replaced by somebody else") from error

    async def touch(self, started: Started) -> bool:
        """Let the journal's time to live begin anew; False if there is none any more."""
        try:
            await self.guarded([SetData(self.started_path, started.encode())])
        except NoNodeError:
            return False
        except ConnectionLossError:
            pass  # another one comes long before it would matter
        return True

    async def commit(self, result: Result, *, journal: bool, replaces: int | None) -> Result:
        """Record the outcome and give the lock back, at one zxid: see `Commit`.

        Returns what is recorded: without the value, if that is what no server takes.
        """
        commit = Commit(self, result, journal=journal, replaces=replaces)
        await commit.run()
        return commit.result

    async def clear(self, instead: Started | None = None) -> None:
        """Delete our journal and give the lock back: nothing has happened, the key is free.

        With `instead`, that journal of an earlier attempt is put back: it is in doubt as before. A
        lock that is gone already is success, since then nobody can be in our way.
        """
        ours: MultiOp = Delete(self.started_path)
        if instead is not None:
            ours = SetData(self.started_path, instead.encode())
        ops: list[MultiOp] = [ours, Delete(self.place.path)]
        resends = Resends(limit=None)  # a server has taken all of this before
        while True:
            try:
                await self.guarded(ops)
            except ConnectionLossError as error:
                await resends.pause(error)
                # With its parent gone and made again, the lock's name may be somebody else's.
                if not await self.place.is_still():
                    self.meter.lost_reply("delete", "gone")
                    return
                self.meter.lost_reply("delete", "resent")
            except FencedError:
                return
            except NoNodeError:
                ops = [Delete(self.place.path)]
            else:
                return

    async def guarded(self, ops: list[MultiOp]) -> tuple[MultiPart, ...]:
        """Do the ops if, at that zxid, the lock is ours (I1); return their results.

        Raises:
            FencedError: it is not.
            KeeperError: one of the ops failed; `op_index` counts without the guard.
        """
        try:
            parts = await self._bound.multi([Check(self.place.path), *ops])
        except KeeperError as error:
            if error.op_index == 0 and isinstance(error, NoNodeError):
                raise FencedError(f"{self.place.path} is gone: the key is not ours") from error
            if error.op_index is not None:
                error.op_index -= 1
            raise
        return parts[1:]

    # Inside.

    @property
    def _bound(self) -> Bound:
        return self.place.bound

    def _create(self, path: str, record: Started | Result) -> MultiOp:
        plain = Create(path, replace(record, server_ttl=False).encode(), self._acl)
        if record.ttl_ms is None:
            return plain
        data = replace(record, server_ttl=True).encode()
        flags = CreateMode.PERSISTENT_WITH_TTL
        return CreateTtlOr.of(CreateTtl(path, data, self._acl, flags, record.ttl_ms), plain)

    def _own_version(self, found: tuple[Started, Stat] | None, ours: Started) -> int:
        if found is None:
            return -1  # that it is gone is for the server to say
        if found[0].attempt_id != ours.attempt_id:
            raise FencedError(f"{self.started_path} is another attempt's")
        return found[1].version

    async def _has_begun(self, started: Started) -> Started | None:
        await self._bound.sync(self.place.parent)
        found = await self.started()
        begun = found is not None and found[0].attempt_id == started.attempt_id
        self.meter.lost_reply("begin", "adopted" if begun else "resent")
        return found[0] if found is not None and begun else None


def _same_phase(found: Started, ours: Started) -> bool:
    return (found.attempt_id, found.phase) == (ours.attempt_id, ours.phase)
