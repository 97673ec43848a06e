"""Many readers or one writer, in the order in which they asked: who waits is never overtaken.

``lock = ReadWriteLock(zk, "/locks/table")``, then ``async with lock.read:`` or ``lock.write:``.

Rules
    * A reader waits for the writers before it, a writer for everybody before it.
    * Down: `downgrade` turns the write lock into a read lock in one transaction, at the writer's
      place in the queue, so that no writer comes in between, and the readers behind go on.
    * Up: not possible. Two readers who both wanted it would wait for each other for ever; the task
      that holds `read` and acquires `write` gets an error instead. Release, acquire, look again.

Znodes: ``<path>/<id>__rlock__<number>`` and ``<id>__lock__<number>`` as kazoo's; Curator's
``__READ__`` and ``__WRIT__`` count too. Costs are those of `Lock`; a downgrade is 1 write and 1
read. A writer's release wakes the readers right behind it, each of which watched it.
"""

import asyncio
import logging
from types import TracebackType
from typing import ClassVar

from zabd.client.client import Client
from zabd.client.recipes.bound import Resends
from zabd.client.recipes.contenders import READER, WRITER, Rule
from zabd.client.recipes.lock import Lock, LockLostError
from zabd.client.recipes.place import Place
from zabd.model.acl import Acl
from zabd.model.errors import (
    ConnectionLossError,
    LocalProtocolError,
    NoNodeError,
    SessionExpiredError,
)
from zabd.model.ops import Create, CreateMode, Delete, MultiOp
from zabd.model.paths import join, sequential_name
from zabd.model.stat import Stat

_RWLOCK_LOG = logging.getLogger("zabd.client.rwlock")


class ReadLock(Lock):
    """The readers' half; as `Lock`, but held by many."""

    suffix: ClassVar[str] = "__rlock__"
    rule: ClassVar[Rule] = READER
    logger: ClassVar[logging.Logger] = _RWLOCK_LOG

    async def prepare(self) -> None:
        """Keep other tasks of this object out, for `take_over` or `give_up`.

        Raises:
            LocalProtocolError: one of them has it, or waits for it (and perhaps for our writer).
        """
        if not await self._take_local(blocking=False):
            raise LocalProtocolError(f"{self.path}: the read lock is in use by another task")

    def give_up(self) -> None:
        """Let other tasks in again."""
        self._local.release()

    def take_over(self, place: Place, owner: object) -> None:
        """Hold `place`, which was this owner's as a writer, and was just compared."""
        self._lost = asyncio.Event()
        self._owner, self._depth = owner, 1
        self._hold(place)


class WriteLock(Lock):
    """The writers' half; as `Lock`."""

    rule: ClassVar[Rule] = WRITER
    logger: ClassVar[logging.Logger] = _RWLOCK_LOG

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        identifier: str = "",
        reentrant: bool = False,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        super().__init__(client, path, identifier=identifier, reentrant=reentrant, acl=acl)
        self.reader: ReadLock | None = None

    async def acquire(
        self, *, blocking: bool = True, timeout: float | None = None, owner: object = None
    ) -> bool:
        """As `Lock.acquire`.

        Raises:
            LocalProtocolError: the owner holds the read lock, and would wait for itself.
        """
        asking = asyncio.current_task() if owner is None else owner
        if self.reader is not None and self.reader._depth and self.reader._owner == asking:  # noqa: SLF001
            raise LocalProtocolError(
                f"{self.path}: a reader cannot become a writer; release the read lock first"
            )
        return await super().acquire(blocking=blocking, timeout=timeout, owner=owner)

    def give_place(self) -> object:
        """Let go of the place, which the reader takes over; return whose it was."""
        owner = self._owner
        self._place = self._owner = None
        self._depth = 0
        self._local.release()
        return owner

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release what the block holds: this lock, or the read lock that it became."""
        if self._place is None and self.reader is not None:
            await self.reader.release()
        else:
            await self.release()


class ReadWriteLock:
    """A read-write lock on the znode `path`; options as for `Lock`."""

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        identifier: str = "",
        reentrant: bool = False,
        acl: tuple[Acl, ...] | None = None,
    ) -> None:
        self.path = path
        self.read = ReadLock(client, path, identifier=identifier, reentrant=reentrant, acl=acl)
        self.write = WriteLock(client, path, identifier=identifier, reentrant=reentrant, acl=acl)
        self.write.reader = self.read
        self._client = client

    async def downgrade(self) -> None:
        """Turn the held write lock into the read lock, with no writer in between.

        Afterwards `read` is held, under a higher fencing token, and is what has to be released; a
        block of ``async with lock.write`` does that. A cancelled caller does not stop it half-way.

        Raises:
            LocalProtocolError: `write` is not held, or another task of this object has `read`, or
                waits for it.
            LockLostError: `write` was held and is lost.
        """
        place = self.write._held_place()  # noqa: SLF001 - the two halves and this are one recipe
        # Before the swap: whoever took it meanwhile would have it first, for as long as it likes.
        await self.read.prepare()
        task = self._client.spawn(self._downgrade(place))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    async def _downgrade(self, place: Place) -> None:
        try:
            name, stat = await self._swap(place)
            place.replace(name, stat)
            place.acquired()
        except SessionExpiredError as error:
            self.read.give_up()
            raise LockLostError(f"{place.path} is lost: {error}") from error
        except BaseException:
            self.read.give_up()
            raise
        self.read.take_over(place, self.write.give_place())

    async def _swap(self, place: Place) -> tuple[str, Stat]:
        """Put a reader's znode with the writer's number in the writer's place (one multi)."""
        bound = place.bound
        prefix = place.name[: place.name.rindex(WriteLock.suffix)] + ReadLock.suffix
        name = sequential_name(prefix, place.sequence)
        path = join(self.path, name)
        ops: list[MultiOp] = [
            Create(path, place.data, place.acl, CreateMode.EPHEMERAL),
            Delete(place.path),
        ]
        resends = Resends()
        while True:
            lost: ConnectionLossError | None = None
            try:
                await bound.multi(ops)
            except ConnectionLossError as error:
                lost = error
                await bound.sync(path)
            except NoNodeError as error:
                raise LockLostError(f"{place.path} was deleted by somebody else") from error
            # The znode's Stat is the answer to both questions: was it done, and under which token.
            stat = await bound.stat(path)
            if stat is not None:
                return name, stat
            if lost is not None:
                await resends.pause(lost)
