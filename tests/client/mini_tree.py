"""A dict of znodes with as many of ZooKeeper's rules as the client's tests need."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from zabd.model.acl import Acl
from zabd.model.errors import ErrorCode, KeeperError, error_for
from zabd.model.ops import (
    Check,
    Create,
    Create2,
    CreateContainer,
    CreateMode,
    CreateTtl,
    Delete,
    MultiOp,
    Op,
    SetAcl,
    SetData,
)
from zabd.model.paths import join, parent_of, sequential_name
from zabd.model.results import (
    CheckResult,
    Create2Result,
    CreateResult,
    DeleteResult,
    MultiPart,
    StatResult,
)
from zabd.model.stat import Stat
from zabd.model.watch_events import EventType


@dataclass
class Node:
    data: bytes | None
    acl: tuple[Acl, ...] | None
    czxid: int
    ctime: int
    owner: int = 0
    kind: int = 0
    mzxid: int = 0
    mtime: int = 0
    pzxid: int = 0
    version: int = 0
    created: int = 0
    children: dict[str, None] = field(default_factory=dict)

    @property
    def stat(self) -> Stat:
        size, count = len(self.data or b""), len(self.children)
        return Stat(
            self.czxid, self.mzxid, self.ctime, self.mtime, self.version,
            2 * self.created - count, 0, self.owner, size, count, self.pzxid,
        )  # fmt: skip


Events = list[tuple[EventType, str]]


class MiniTree:
    """Applies ops; `apply` returns results and events, or raises and changes nothing."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node(b"", (), 0, 0)}
        self.zxid = 0

    def get(self, path: str) -> Node:
        if path not in self.nodes:
            raise error_for(ErrorCode.NO_NODE, path=path)
        return self.nodes[path]

    def apply(
        self, zxid: int, time_ms: int, session: int, ops: Sequence[Op]
    ) -> tuple[list[MultiPart], Events]:
        saved = {
            path: replace(node, children=dict(node.children)) for path, node in self.nodes.items()
        }
        results: list[MultiPart] = []
        events: Events = []
        for index, op in enumerate(ops):
            try:
                results.append(self._do(zxid, time_ms, session, op, events))
            except KeeperError as error:
                self.nodes = saved
                self.zxid = zxid
                error.op_index = index
                raise
        self.zxid = zxid
        return results, events

    def ephemerals(self, session: int) -> list[str]:
        return [path for path, node in self.nodes.items() if node.owner == session]

    def _do(self, zxid: int, time_ms: int, session: int, op: Op, events: Events) -> MultiPart:
        match op:
            case Create() | Create2() | CreateContainer() | CreateTtl():
                return self._create(zxid, time_ms, session, op, events)
            case Delete():
                node = self.get(op.path)
                _check_version(node, op.version)
                if node.children:
                    raise error_for(ErrorCode.NOT_EMPTY, path=op.path)
                self._remove(zxid, op.path, events)
                return DeleteResult()
            case SetData():
                node = self.get(op.path)
                _check_version(node, op.version)
                node.data, node.mzxid, node.mtime = op.data, zxid, time_ms
                node.version += 1
                events.append((EventType.DATA_CHANGED, op.path))
                return StatResult(node.stat)
            case SetAcl():
                node = self.get(op.path)
                node.acl = op.acl
                return StatResult(node.stat)
            case Check():
                _check_version(self.get(op.path), op.version)
                return CheckResult()
        raise error_for(ErrorCode.UNIMPLEMENTED)

    def _create(
        self,
        zxid: int,
        time_ms: int,
        session: int,
        op: Create | Create2 | CreateContainer | CreateTtl,
        events: Events,
    ) -> MultiPart:
        parent_path = parent_of(op.path)
        parent = self.get(parent_path)
        mode = CreateMode(op.flags)
        path = sequential_name(op.path, parent.created) if mode.sequential else op.path
        if path in self.nodes:
            raise error_for(ErrorCode.NODE_EXISTS, path=path)
        if parent.owner:
            raise error_for(ErrorCode.NO_CHILDREN_FOR_EPHEMERALS, path=path)
        owner = session if mode.ephemeral else 0
        node = Node(op.data, op.acl, zxid, time_ms, owner, _kind(op), zxid, time_ms, zxid)
        self.nodes[path] = node
        parent.children[path[path.rindex("/") + 1 :]] = None
        parent.created += 1
        parent.pzxid = zxid
        events += [(EventType.CREATED, path), (EventType.CHILDREN_CHANGED, parent_path)]
        return CreateResult(path) if isinstance(op, Create) else Create2Result(path, node.stat)

    def _remove(self, zxid: int, path: str, events: Events) -> None:
        del self.nodes[path]
        parent = self.nodes[parent_of(path)]
        del parent.children[path[path.rindex("/") + 1 :]]
        parent.pzxid = zxid
        events += [(EventType.DELETED, path), (EventType.CHILDREN_CHANGED, parent_of(path))]

    def children(self, path: str) -> list[str]:
        return [join(path, name) for name in self.get(path).children]


CONTAINER = -(1 << 63)
TTL = -(1 << 56)


def _kind(op: Create | Create2 | CreateContainer | CreateTtl) -> int:
    """What ZooKeeper keeps as the owner of a container, or of a znode with a time to live.

    A Stat does not show it.
    """
    if isinstance(op, CreateContainer):
        return CONTAINER
    return TTL + op.ttl if isinstance(op, CreateTtl) else 0


def collectable(tree: MiniTree, now_ms: int) -> list[MultiOp]:
    """Containers that are empty, and znodes whose time is over."""
    return [
        Delete(path)
        for path, node in tree.nodes.items()
        if not node.children
        and (
            (node.kind == CONTAINER and node.created)
            or (
                node.kind > CONTAINER // 2
                and node.kind < 0
                and now_ms > node.mtime + node.kind - TTL
            )
        )
    ]


def _check_version(node: Node, version: int) -> None:
    if version not in {-1, node.version}:
        raise error_for(ErrorCode.BAD_VERSION)


def close_ops(tree: MiniTree, session: int) -> list[MultiOp]:
    """What the end of a session does to the tree."""
    return [Delete(path) for path in tree.ephemerals(session)]
