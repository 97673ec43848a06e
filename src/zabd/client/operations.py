"""The operations of the protocol, as methods: what a user asks for becomes an op, then a result.

Reads are repeated when their connection is lost, writes never (`client.retry`).
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Final, TypeAlias

from zabd.client.chroot import Chroot
from zabd.client.events import Watcher
from zabd.client.fallbacks import Fallbacks, nearest
from zabd.client.transaction import Transaction
from zabd.model.acl import Acl
from zabd.model.errors import (
    BadArgumentsError,
    ConnectionLossError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    UnimplementedError,
)
from zabd.model.ids import SessionId
from zabd.model.ops import (
    AddWatch,
    Create,
    Create2,
    CreateContainer,
    CreateMode,
    CreateTtl,
    Delete,
    Exists,
    GetAcl,
    GetAllChildrenNumber,
    GetChildren,
    GetChildren2,
    GetData,
    GetEphemerals,
    MultiOp,
    MultiRead,
    MultiReadOp,
    Op,
    Reconfig,
    RemoveWatches,
    SetAcl,
    SetData,
    Sync,
    WhoAmI,
)
from zabd.model.paths import ROOT, join, parent_of
from zabd.model.results import (
    AclResult,
    AllChildrenNumberResult,
    Children2Result,
    ChildrenResult,
    ClientInfo,
    Create2Result,
    CreateResult,
    EphemeralsResult,
    GetDataResult,
    MultiPart,
    MultiResult,
    Result,
    StatResult,
    WhoAmIResult,
)
from zabd.model.stat import Stat
from zabd.model.watch_events import AddWatchMode, WatcherType

log = logging.getLogger("zabd.client")

# A read is repeated this often after a lost connection; a request that kills every connection it is
# sent on must not do so for ever.
READ_ATTEMPTS_MAX = 5
CONFIG_PATH = "/zookeeper/config"


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
"""In the place of a timeout: the client's `operation_timeout`."""

Timeout: TypeAlias = float | Unset | None


class Operations(ABC):
    """Every operation; the rest of the client says how one op is sent."""

    default_acl: tuple[Acl, ...]
    _chroot: Chroot

    def __init__(self) -> None:
        self.fallbacks = Fallbacks(self.now_ms)

    @abstractmethod
    async def call(
        self,
        op: Op,
        *,
        watch: Watcher | None = None,
        session_id: SessionId | None = None,
        timeout: Timeout = UNSET,
        raw: bool = False,
    ) -> Result:
        """Send one op and return its result."""

    @abstractmethod
    def unwatch(self, path: str, watcher: Watcher) -> None:
        """Forget a watcher."""

    @abstractmethod
    def now_ms(self) -> int:
        """Boot time in milliseconds."""

    @property
    @abstractmethod
    def server(self) -> str:
        """The server that has the session."""

    @abstractmethod
    def _require_open(self) -> None: ...

    # Writes.

    async def create(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        acl: tuple[Acl, ...] | None = None,
        ephemeral: bool = False,
        sequential: bool = False,
        container: bool = False,
        ttl: float | None = None,
        make_parents: bool = False,
        timeout: Timeout = UNSET,
    ) -> str:
        """Create a znode and return its path, with the number of a sequential one.

        `ttl` is in seconds. With `make_parents` missing parents are created too. On a server that
        knows no containers, or no TTLs, the znode is a plain one, and the log says so.
        """
        op = self._create_op(
            path,
            data,
            acl=acl,
            ephemeral=ephemeral,
            sequential=sequential,
            container=container,
            ttl=ttl,
        )
        created = await self._create(op, timeout, make_parents=make_parents)
        return self._chroot.to_user(created.path)

    async def create_with_stat(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        acl: tuple[Acl, ...] | None = None,
        ephemeral: bool = False,
        sequential: bool = False,
        container: bool = False,
        ttl: float | None = None,
        make_parents: bool = False,
        timeout: Timeout = UNSET,
    ) -> Create2Result:
        """As `create`, with the new znode's Stat."""
        op = self._create_op(
            path,
            data,
            acl=acl,
            ephemeral=ephemeral,
            sequential=sequential,
            container=container,
            ttl=ttl,
        )
        with_stat = Create2(*op) if isinstance(op, Create) else op
        created = await self._create(with_stat, timeout, make_parents=make_parents)
        assert isinstance(created, Create2Result)
        return created._replace(path=self._chroot.to_user(created.path))

    async def delete(
        self,
        path: str,
        *,
        version: int = -1,
        recursive: bool = False,
        timeout: Timeout = UNSET,
    ) -> None:
        """Delete a znode; -1 is any version. `recursive` deletes what is below first."""
        if recursive:
            await self._delete_below(path)
        await self.call(Delete(path, version), timeout=timeout)

    async def set(
        self, path: str, data: bytes | None, *, version: int = -1, timeout: Timeout = UNSET
    ) -> Stat:
        """Replace a znode's data; -1 is any version."""
        result = await self.call(SetData(path, data, version), timeout=timeout)
        assert isinstance(result, StatResult)
        return result.stat

    async def set_acl(
        self,
        path: str,
        acl: Sequence[Acl],
        *,
        version: int = -1,
        timeout: Timeout = UNSET,
    ) -> Stat:
        """Replace a znode's ACL; `version` is compared with `aversion`, -1 is any."""
        result = await self.call(SetAcl(path, tuple(acl), version), timeout=timeout)
        assert isinstance(result, StatResult)
        return result.stat

    async def ensure_path(self, path: str, *, acl: tuple[Acl, ...] | None = None) -> None:
        """Create the znode and what is missing above it; that it exists is success."""
        missing = [path]
        while missing:
            try:
                await self._ensure(missing[-1], acl)
            except NoNodeError:
                missing.append(parent_of(missing[-1]))
            else:
                missing.pop()

    def transaction(self) -> Transaction:
        """Gather writes and checks that happen all together or not at all."""
        return Transaction(self)

    async def multi(
        self,
        ops: Sequence[MultiOp],
        *,
        session_id: SessionId | None = None,
        timeout: Timeout = UNSET,
    ) -> tuple[MultiPart, ...]:
        """Do all of these ops or none; the error of the op that failed raises (`op_index`)."""
        result = await self.call(
            self._chroot.multi(tuple(ops)), session_id=session_id, timeout=timeout, raw=True
        )
        assert isinstance(result, MultiResult)
        return tuple(self._part_to_user(part) for part in result.results)

    # Reads.

    async def get(
        self, path: str, *, watch: Watcher | None = None, timeout: Timeout = UNSET
    ) -> GetDataResult:
        """Return data and Stat; `watch` hears once of the next change or deletion."""
        result = await self._read(GetData(path, watch is not None), watch, timeout)
        assert isinstance(result, GetDataResult)
        return result

    async def exists(
        self, path: str, *, watch: Watcher | None = None, timeout: Timeout = UNSET
    ) -> Stat | None:
        """Return the Stat, or None; `watch` hears once of creation, change or deletion."""
        try:
            result = await self._read(Exists(path, watch is not None), watch, timeout)
        except NoNodeError:
            return None
        assert isinstance(result, StatResult)
        return result.stat

    async def get_children(
        self, path: str, *, watch: Watcher | None = None, timeout: Timeout = UNSET
    ) -> list[str]:
        """Return the children's names, sorted; `watch` hears once that they changed."""
        result = await self._read(GetChildren(path, watch is not None), watch, timeout)
        assert isinstance(result, ChildrenResult)
        return sorted(result.children)

    async def get_children_with_stat(
        self, path: str, *, watch: Watcher | None = None, timeout: Timeout = UNSET
    ) -> tuple[list[str], Stat]:
        """As `get_children`, with the parent's Stat."""
        result = await self._read(GetChildren2(path, watch is not None), watch, timeout)
        assert isinstance(result, Children2Result)
        return sorted(result.children), result.stat

    async def get_acl(self, path: str, *, timeout: Timeout = UNSET) -> AclResult:
        """Return ACL and Stat."""
        result = await self._read(GetAcl(path), None, timeout)
        assert isinstance(result, AclResult)
        return result

    async def get_ephemerals(
        self,
        prefix: str = ROOT,
        *,
        session_id: SessionId | None = None,
        timeout: Timeout = UNSET,
    ) -> list[str]:
        """Return the paths of this session's ephemerals that start with `prefix`, as text."""
        op = GetEphemerals(self._chroot.to_server(prefix))
        result = await self._repeated(op, None, timeout, session_id)
        assert isinstance(result, EphemeralsResult)
        return [self._chroot.to_user(path) for path in result.paths]

    async def count_descendants(self, path: str, *, timeout: Timeout = UNSET) -> int:
        """Return how many znodes there are below `path`."""
        result = await self._read(GetAllChildrenNumber(path), None, timeout)
        assert isinstance(result, AllChildrenNumberResult)
        return result.total

    async def multi_read(
        self,
        ops: Sequence[MultiReadOp],
        *,
        session_id: SessionId | None = None,
        timeout: Timeout = UNSET,
    ) -> tuple[MultiPart, ...]:
        """Read several from one state of the tree; each part is a result or an `ErrorResult`."""
        moved = tuple(op._replace(path=self._chroot.to_server(op.path)) for op in ops)
        result = await self._repeated(MultiRead(moved), None, timeout, session_id)
        assert isinstance(result, MultiResult)
        return result.results

    async def sync(self, path: str = ROOT, *, timeout: Timeout = UNSET) -> None:
        """Wait until this server has everything that the leader had at the time of the call."""
        op = Sync(self._chroot.to_server(path))
        await self._repeated(op, None, timeout)

    async def reconfig(
        self,
        *,
        joining: str | None = None,
        leaving: str | None = None,
        new_members: str | None = None,
        from_config: int = -1,
        timeout: Timeout = UNSET,
    ) -> GetDataResult:
        """Change the ensemble's members; return the new configuration.

        Either `joining` (server lines) and `leaving` (ids), or `new_members`, all of them, each
        separated by commas. With `from_config` only if that is the version of the one in force.

        Raises:
            ReconfigDisabledError: the ensemble does not allow it.
            BadVersionError: another configuration is in force.
        """
        op = Reconfig(joining, leaving, new_members, from_config)
        result = await self.call(op, timeout=timeout)
        assert isinstance(result, GetDataResult)
        return result

    async def get_config(
        self, *, watch: Watcher | None = None, timeout: Timeout = UNSET
    ) -> GetDataResult:
        """Return the ensemble's configuration, which no chroot hides."""
        op = GetData(CONFIG_PATH, watch is not None)
        result = await self._repeated(op, watch, timeout)
        assert isinstance(result, GetDataResult)
        return result

    async def who_am_i(self, *, timeout: Timeout = UNSET) -> tuple[ClientInfo, ...]:
        """Return the identities that the server knows this connection by."""
        result = await self._read(WhoAmI(), None, timeout)
        assert isinstance(result, WhoAmIResult)
        return result.infos

    # Watches and identities.

    async def add_watch(
        self, path: str, watcher: Watcher, *, recursive: bool = False, timeout: Timeout = UNSET
    ) -> None:
        """Tell `watcher` of every change from now on, of all below as well if `recursive`."""
        mode = AddWatchMode.PERSISTENT_RECURSIVE if recursive else AddWatchMode.PERSISTENT
        await self._read(AddWatch(path, mode), watcher, timeout)

    async def remove_watches(
        self, path: str, kind: WatcherType = WatcherType.ANY, *, timeout: Timeout = UNSET
    ) -> None:
        """Remove this client's watches of that kind on exactly this path, and tell them so.

        Each watcher hears of an event whose type ends in ``WATCH_REMOVED``, and of nothing more.

        Raises:
            NoWatcherError: there is none.
        """
        await self.call(RemoveWatches(path, kind), timeout=timeout)

    # How.

    async def _read(self, op: Op, watch: Watcher | None, timeout: Timeout) -> Result:
        return await self._repeated(self._chroot.op(op), watch, timeout)

    async def _repeated(
        self,
        op: Op,
        watch: Watcher | None,
        timeout: Timeout,
        session_id: SessionId | None = None,
    ) -> Result:
        for _ in range(READ_ATTEMPTS_MAX - 1):
            try:
                return await self.call(
                    op, watch=watch, session_id=session_id, timeout=timeout, raw=True
                )
            except ConnectionLossError:
                # The next attempt waits for a connection by itself.
                self._require_open()
        return await self.call(op, watch=watch, session_id=session_id, timeout=timeout, raw=True)

    async def _create(
        self,
        op: Create | Create2 | CreateContainer | CreateTtl,
        timeout: Timeout,
        *,
        make_parents: bool,
    ) -> CreateResult | Create2Result:
        try:
            return await self._create_as_known(op, timeout)
        except NoNodeError:
            if not make_parents:
                raise
            await self.ensure_path(parent_of(op.path))
            return await self._create_as_known(op, timeout)

    async def _create_as_known(
        self, op: Create | Create2 | CreateContainer | CreateTtl, timeout: Timeout
    ) -> CreateResult | Create2Result:
        """Create in the way that this server knows; found out once for each server."""
        if isinstance(op, Create) or self.fallbacks.knows(op.opcode):
            try:
                result = await self.call(op, timeout=timeout)
            except UnimplementedError:
                if isinstance(op, Create):
                    raise
                log.warning("%s knows no %s; a plain create serves", self.server, op.opcode.name)
                self.fallbacks.forget(op.opcode)
                # ZooKeeper closes the connection behind that answer: the read outlasts it, as the
                # create would not.
                await self.exists(ROOT, timeout=timeout)
            else:
                assert isinstance(result, CreateResult | Create2Result)
                return result
        created = await self.call(nearest(op), timeout=timeout)
        assert isinstance(created, CreateResult)
        stat = await self.call(Exists(created.path, False), timeout=timeout, raw=True)
        assert isinstance(stat, StatResult)
        return Create2Result(created.path, stat.stat)

    def _create_op(
        self,
        path: str,
        data: bytes | None,
        *,
        acl: tuple[Acl, ...] | None,
        ephemeral: bool = False,
        sequential: bool = False,
        container: bool = False,
        ttl: float | None = None,
    ) -> Create | CreateContainer | CreateTtl:
        entries = self.default_acl if acl is None else acl
        if container:
            if ephemeral or sequential or ttl is not None:
                raise BadArgumentsError("a container is neither ephemeral, sequential nor with ttl")
            return CreateContainer(path, data, entries, CreateMode.CONTAINER)
        if ttl is not None:
            if ephemeral:
                raise BadArgumentsError("an ephemeral znode lives as long as its session: no ttl")
            mode = (
                CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL
                if sequential
                else CreateMode.PERSISTENT_WITH_TTL
            )
            return CreateTtl(path, data, entries, mode, int(ttl * 1000))
        flags = (CreateMode.EPHEMERAL if ephemeral else 0) | (
            CreateMode.PERSISTENT_SEQUENTIAL if sequential else 0
        )
        return Create(path, data, entries, flags)

    async def _ensure(self, path: str, acl: tuple[Acl, ...] | None) -> None:
        if path == ROOT and not self._chroot:
            return
        if path == ROOT:
            await self._ensure_chroot(acl)
            return
        if await self.exists(path) is None:
            op = self._create_op(path, b"", acl=acl)
            await self._make(op)

    async def _ensure_chroot(self, acl: tuple[Acl, ...] | None) -> None:
        entries = self.default_acl if acl is None else acl
        path = ""
        for component in self._chroot.path[1:].split("/"):
            path = f"{path}/{component}"
            await self._make(Create(path, b"", entries), raw=True)

    async def _make(self, op: Op, *, raw: bool = False) -> None:
        """Create what may exist already; doing it twice is the same as once, so it is repeated."""
        try:
            await self._create_again(op, raw=raw)
        except NodeExistsError:
            return

    async def _create_again(self, op: Op, *, raw: bool) -> None:
        for _ in range(READ_ATTEMPTS_MAX - 1):
            try:
                await self.call(op, raw=raw)
            except ConnectionLossError:
                self._require_open()
            else:
                return
        await self.call(op, raw=raw)

    async def _delete_below(self, path: str) -> None:
        """Leaves first, with a list of our own: a tree may be deeper than Python's stack."""
        left = [join(path, name) for name in await self.get_children(path)]
        opened: set[str] = set()
        while left:
            try:
                await self.call(Delete(left[-1]))
            except NoNodeError:
                left.pop()
            except NotEmptyError:
                if left[-1] in opened:
                    raise
                opened.add(left[-1])
                left += await self._paths_in(left[-1])
            else:
                left.pop()

    async def _paths_in(self, path: str) -> list[str]:
        try:
            return [join(path, name) for name in await self.get_children(path)]
        except NoNodeError:
            return []

    def _part_to_user(self, part: MultiPart) -> MultiPart:
        if isinstance(part, CreateResult | Create2Result):
            return part._replace(path=self._chroot.to_user(part.path))
        return part
