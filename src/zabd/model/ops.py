"""Ops: what a client may ask for, one value for each request of the client protocol, section 6.

An op is an intent. What becomes of it is a txn (`znode_tree.txns`), and what the client hears of it
is a result (`model.results`). The private classes are record shapes; ops that share one are still
different ops, so compare types before values: all of these are tuples.
"""

from enum import IntEnum
from typing import ClassVar, Final, NamedTuple, TypeAlias

from zabd.model.acl import Acl


class OpCode(IntEnum):
    """The type field of a request header (client protocol, section 4)."""

    CLOSE_SESSION = -11
    CREATE_SESSION = -10
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    DELETE_CONTAINER = 20
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107


class CreateMode(IntEnum):
    """The kind of znode to create, as the `flags` of a create (client protocol, section 9)."""

    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3
    CONTAINER = 4
    PERSISTENT_WITH_TTL = 5
    PERSISTENT_SEQUENTIAL_WITH_TTL = 6

    @property
    def ephemeral(self) -> bool:
        """Whether the znode goes when its session does."""
        return self in {CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL}

    @property
    def sequential(self) -> bool:
        """Whether the server completes the name with the parent's counter."""
        return self in _SEQUENTIAL

    @property
    def container(self) -> bool:
        """Whether the znode goes some time after its last child did."""
        return self is CreateMode.CONTAINER

    @property
    def ttl(self) -> bool:
        """Whether the znode goes when it is empty and was not set for its time to live."""
        return self >= CreateMode.PERSISTENT_WITH_TTL


_SEQUENTIAL: Final = frozenset(
    {
        CreateMode.PERSISTENT_SEQUENTIAL,
        CreateMode.EPHEMERAL_SEQUENTIAL,
        CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL,
    }
)

WRITE_OPCODES: Final = frozenset(
    {
        OpCode.CREATE,
        OpCode.DELETE,
        OpCode.SET_DATA,
        OpCode.SET_ACL,
        OpCode.MULTI,
        OpCode.CREATE2,
        OpCode.RECONFIG,
        OpCode.CREATE_CONTAINER,
        OpCode.DELETE_CONTAINER,
        OpCode.CREATE_TTL,
        OpCode.CREATE_SESSION,
        OpCode.CLOSE_SESSION,
    }
)
"""What goes through the leader and consumes a zxid."""

READ_OPCODES: Final = frozenset(
    {
        OpCode.EXISTS,
        OpCode.GET_DATA,
        OpCode.GET_ACL,
        OpCode.GET_CHILDREN,
        OpCode.GET_CHILDREN2,
        OpCode.CHECK,
        OpCode.MULTI_READ,
        OpCode.GET_EPHEMERALS,
        OpCode.GET_ALL_CHILDREN_NUMBER,
    }
)
"""What is answered from the tree of the member that the client is connected to."""


# Record shapes.


class _Empty(NamedTuple):
    pass


class _Create(NamedTuple):
    path: str
    data: bytes | None
    acl: tuple[Acl, ...] | None
    flags: int = CreateMode.PERSISTENT


class _CreateTtl(NamedTuple):
    path: str
    data: bytes | None
    acl: tuple[Acl, ...] | None
    flags: int
    ttl: int


class _Path(NamedTuple):
    path: str


class _PathVersion(NamedTuple):
    path: str
    version: int = -1


class _PathWatch(NamedTuple):
    path: str
    watch: bool = False


class _PathType(NamedTuple):
    path: str
    type: int


class _SetData(NamedTuple):
    path: str
    data: bytes | None
    version: int = -1


class _SetAcl(NamedTuple):
    path: str
    acl: tuple[Acl, ...] | None
    version: int = -1


class _NullablePath(NamedTuple):
    path: str | None


class _Prefix(NamedTuple):
    prefix: str | None


class _PathMode(NamedTuple):
    path: str
    mode: int


class _Auth(NamedTuple):
    type: int
    scheme: str
    auth: bytes


class _Token(NamedTuple):
    token: bytes | None


class _SetWatches(NamedTuple):
    relative_zxid: int
    data: tuple[str, ...] = ()
    exist: tuple[str, ...] = ()
    child: tuple[str, ...] = ()


class _SetWatches2(NamedTuple):
    relative_zxid: int
    data: tuple[str, ...] = ()
    exist: tuple[str, ...] = ()
    child: tuple[str, ...] = ()
    persistent: tuple[str, ...] = ()
    persistent_recursive: tuple[str, ...] = ()


class _Reconfig(NamedTuple):
    joining_servers: str | None
    leaving_servers: str | None
    new_members: str | None
    cur_config_id: int = -1


class _CreateSession(NamedTuple):
    timeout_ms: int


# Writes.


class Create(_Create):
    """Create a znode; the answer is its path. `flags` is a CreateMode, 0 to 3."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.CREATE


class Create2(_Create):
    """Create a znode; the answer is its path and Stat."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.CREATE2


class CreateContainer(_Create):
    """Create a container; `flags` is CreateMode.CONTAINER."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.CREATE_CONTAINER


class CreateTtl(_CreateTtl):
    """Create a znode that lives `ttl` ms after it was last set; `flags` is 5 or 6."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.CREATE_TTL


class Delete(_PathVersion):
    """Delete a znode without children; version -1 means any."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.DELETE


class SetData(_SetData):
    """Replace a znode's data; null (None) and empty data are different values."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.SET_DATA


class SetAcl(_SetAcl):
    """Replace a znode's ACL; `version` is compared with aversion."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.SET_ACL


class Check(_PathVersion):
    """Succeed if the znode exists and has this version (any, if -1)."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.CHECK


class Reconfig(_Reconfig):
    """Change the ensemble's members: all of them, or some joining and some leaving."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.RECONFIG


class DeleteContainer(_Path):
    """Delete a container or TTL znode whose time has come. Internal: no client may send it."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.DELETE_CONTAINER


class CreateSession(_CreateSession):
    """Open a session. Internal: clients open theirs by the handshake."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.CREATE_SESSION


class CloseSession(_Empty):
    """End the session and delete its ephemerals."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.CLOSE_SESSION


# Reads.


class Exists(_PathWatch):
    """The znode's Stat; the watch is set even if there is no such znode."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.EXISTS


class GetData(_PathWatch):
    """The znode's data and Stat."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.GET_DATA


class GetAcl(_Path):
    """The znode's ACL and Stat."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.GET_ACL


class GetChildren(_PathWatch):
    """The names of the znode's children."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.GET_CHILDREN


class GetChildren2(_PathWatch):
    """The names of the znode's children, and its Stat."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.GET_CHILDREN2


class GetEphemerals(_Prefix):
    """The calling session's ephemerals whose path starts with the prefix."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.GET_EPHEMERALS


class GetAllChildrenNumber(_Path):
    """How many znodes there are below this one."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.GET_ALL_CHILDREN_NUMBER


# Watches.


class SetWatches(_SetWatches):
    """Set watches again after a reconnect; what changed since `relative_zxid` fires at once."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.SET_WATCHES


class SetWatches2(_SetWatches2):
    """As SetWatches, with persistent watches."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.SET_WATCHES2


class AddWatch(_PathMode):
    """Set a persistent watch; `mode` is an AddWatchMode."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.ADD_WATCH


class CheckWatches(_PathType):
    """Succeed if this connection has such a watch; `type` is a WatcherType."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.CHECK_WATCHES


class RemoveWatches(_PathType):
    """Remove this connection's watches of that WatcherType on the path."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.REMOVE_WATCHES


# The connection itself.


class Sync(_NullablePath):
    """Wait until this member has all that the leader had when it heard of this; echoes the path."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.SYNC


class Ping(_Empty):
    """Keep the session alive."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.PING


class Auth(_Auth):
    """Add an identity to the connection; `type` is ignored."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.AUTH


class Sasl(_Token):
    """One step of a SASL exchange."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.SASL


class WhoAmI(_Empty):
    """The identities of the connection."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.WHO_AM_I


# Several at once (client protocol, section 12).

MultiOp: TypeAlias = Create | Create2 | CreateContainer | CreateTtl | Delete | SetData | Check
MultiReadOp: TypeAlias = GetData | GetChildren


class _Multi(NamedTuple):
    ops: tuple[MultiOp, ...]


class _MultiRead(NamedTuple):
    ops: tuple[MultiReadOp, ...]


class Multi(_Multi):
    """All of these writes and checks, or none."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.MULTI


class MultiRead(_MultiRead):
    """These reads, from one state of the tree, each with its own outcome."""

    __slots__ = ()
    opcode: ClassVar[OpCode] = OpCode.MULTI_READ


Op: TypeAlias = (
    MultiOp
    | MultiReadOp
    | Multi
    | MultiRead
    | SetAcl
    | Reconfig
    | DeleteContainer
    | CreateSession
    | CloseSession
    | Exists
    | GetAcl
    | GetChildren2
    | GetEphemerals
    | GetAllChildrenNumber
    | SetWatches
    | SetWatches2
    | AddWatch
    | CheckWatches
    | RemoveWatches
    | Sync
    | Ping
    | Auth
    | Sasl
    | WhoAmI
)
