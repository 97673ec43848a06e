"""What the service promises, as a sequential specification: a dict of paths and what each op does.

It is written from the documentation of the client protocol and shares no code with the tree that is
replicated, so that it can judge it. Times, zxids and rights are left out.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from zabd.cluster_sim.history import Expire, Operation, Refusal
from zabd.model.errors import ErrorCode
from zabd.model.ids import SessionId
from zabd.model.ops import (
    Check,
    CloseSession,
    Create,
    Create2,
    CreateContainer,
    CreateMode,
    CreateTtl,
    Delete,
    Exists,
    GetChildren,
    GetChildren2,
    GetData,
    Multi,
    Op,
    SetAcl,
    SetData,
)
from zabd.model.results import (
    Children2Result,
    ChildrenResult,
    Create2Result,
    CreateResult,
    ErrorResult,
    GetDataResult,
    MultiResult,
    StatResult,
)


class Znode(NamedTuple):
    """What a path holds, as far as an answer can reveal it without times and zxids."""

    data: bytes | None
    version: int = 0
    owner: SessionId = 0
    created: int = 0  # children ever created: the next one's sequence number


Nodes: TypeAlias = dict[str, Znode]
Changes: TypeAlias = dict[str, Znode | None]
"""The paths that an op changes, and what they hold then; None where nothing is left."""

SYSTEM_PATHS: Final = ("/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota")

_EMPTY: Final = Znode(b"")
_VERSION_ANY: Final = -1


class _RefusedError(Exception):
    """An op may not be done in this state."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code)
        self.code = code


class TreeSpec:
    """The tree of znodes, one op at a time.

    `there` are the paths that exist before the first operation: those that every ensemble has.
    """

    def __init__(self, there: Iterable[str] = SYSTEM_PATHS) -> None:
        self._there = tuple(there)

    def initial(self) -> Nodes:
        """What is there before anybody has asked for anything."""
        return dict.fromkeys(self._there, _EMPTY)

    def changes(self, nodes: Nodes, operation: Operation) -> Changes | None:
        """What `operation` changes in this state; None if it cannot have been answered so here.

        An operation of unknown outcome changes what it would change now, which may be nothing.
        Raises ValueError for an op that this specification does not know.
        """
        session_id = operation.session_id
        try:
            changes, answer = _do(nodes, operation.op, session_id)
        except _RefusedError as refused:
            if not operation.known:
                return {}
            return {} if operation.result == Refusal(refused.code) else None
        if operation.known and not answer(operation.result):
            return None
        return changes


def apply(nodes: Nodes, changes: Mapping[str, Znode | None]) -> None:
    """Bring `nodes` to what they are after `changes`."""
    for path, node in changes.items():
        if node is None:
            nodes.pop(path, None)  # a multi may have made it as well
        else:
            nodes[path] = node


# --- what each op does: its changes, and which answers are true -----------------------------------

_Answer: TypeAlias = Callable[[object], bool]


def _do(nodes: Nodes, op: Op | Expire, session_id: SessionId) -> tuple[Changes, _Answer]:
    match op:
        case Create() | Create2() | CreateContainer() | CreateTtl():
            return _create(nodes, op, session_id)
        case SetData(path, data, version):
            node = _require(nodes, path, version)
            changed = node._replace(data=data, version=node.version + 1)
            return {path: changed}, lambda told: _stat_fits(told, changed)
        case Delete(path, version):
            return _delete(nodes, path, version), _not_refused
        case Check(path, version):
            _require(nodes, path, version)
            return {}, _not_refused
        case SetAcl(path):
            _require(nodes, path)
            return {}, _not_refused
        case Multi(ops):
            return _multi(nodes, ops, session_id)
        case CloseSession():
            return _without(nodes, session_id), _not_refused
        case Expire(owner):
            return _without(nodes, owner), _not_refused
        case GetData(path):
            node = _require(nodes, path)
            return (
                {},
                lambda told: (
                    isinstance(told, GetDataResult) and told.data == node.data and _fits(told, node)
                ),
            )
        case Exists(path):
            node = _require(nodes, path)
            return {}, lambda told: _stat_fits(told, node)
        case GetChildren(path) | GetChildren2(path):
            _require(nodes, path)
            names = _names(nodes, path)
            return (
                {},
                lambda told: (
                    isinstance(told, ChildrenResult | Children2Result)
                    and sorted(told.children) == names
                ),
            )
        case _:
            raise ValueError(f"the specification of the tree does not know {op}")


def _not_refused(told: object) -> bool:
    return not isinstance(told, Refusal | ErrorResult)


def _fits(told: GetDataResult | StatResult | Create2Result, node: Znode) -> bool:
    return told.stat.version == node.version and told.stat.ephemeral_owner == node.owner


def _stat_fits(told: object, node: Znode) -> bool:
    return isinstance(told, StatResult) and _fits(told, node)


def _require(nodes: Nodes, path: str, version: int = _VERSION_ANY) -> Znode:
    node = nodes.get(path)
    if node is None:
        raise _RefusedError(ErrorCode.NO_NODE)
    if version not in {_VERSION_ANY, node.version}:
        raise _RefusedError(ErrorCode.BAD_VERSION)
    return node


def _parent_of(path: str) -> str:
    return path[: path.rindex("/")] or "/"


def _names(nodes: Nodes, path: str) -> list[str]:
    prefix = path if path == "/" else f"{path}/"
    return sorted(
        other[len(prefix) :]
        for other in nodes
        if other.startswith(prefix) and "/" not in other[len(prefix) :] and other != "/"
    )


def _create(
    nodes: Nodes, op: Create | Create2 | CreateContainer | CreateTtl, session_id: SessionId
) -> tuple[Changes, _Answer]:
    mode = CreateMode(op.flags)
    parent_path = _parent_of(op.path)
    parent = nodes.get(parent_path)
    if parent is None:
        raise _RefusedError(ErrorCode.NO_NODE)
    path = f"{op.path}{parent.created:010d}" if mode.sequential else op.path
    if path in nodes:
        raise _RefusedError(ErrorCode.NODE_EXISTS)
    if parent.owner:
        raise _RefusedError(ErrorCode.NO_CHILDREN_FOR_EPHEMERALS)
    node = Znode(op.data, owner=session_id if mode.ephemeral else 0)
    changes: Changes = {
        parent_path: parent._replace(created=parent.created + 1),
        path: node,
    }
    return (
        changes,
        lambda told: isinstance(told, CreateResult | Create2Result) and told.path == path,
    )


def _delete(nodes: Nodes, path: str, version: int) -> Changes:
    _require(nodes, path, version)
    prefix = f"{path}/"
    if any(other.startswith(prefix) for other in nodes):
        raise _RefusedError(ErrorCode.NOT_EMPTY)
    return {path: None}


def _without(nodes: Nodes, owner: SessionId) -> Changes:
    return {path: None for path, node in nodes.items() if owner and node.owner == owner}


def _multi(nodes: Nodes, ops: tuple[Op, ...], session_id: SessionId) -> tuple[Changes, _Answer]:
    inside = dict(nodes)
    changes: Changes = {}
    answers: list[_Answer] = []
    for op in ops:
        try:
            more, answer = _do(inside, op, session_id)
        except _RefusedError as refused:
            return {}, partial(_failed_at, len(answers), refused.code, len(ops))
        apply(inside, more)
        changes |= more
        answers.append(answer)
    return changes, lambda told: _all_fit(told, answers)


def _all_fit(told: object, answers: list[_Answer]) -> bool:
    if not isinstance(told, MultiResult) or len(told.results) != len(answers):
        return False
    return all(answer(part) for answer, part in zip(answers, told.results, strict=True))


def _failed_at(culprit: int, code: ErrorCode, size: int, told: object) -> bool:
    """All or nothing: each op is told of an error, and only the culprit of one of its own."""
    if isinstance(told, Refusal):
        return told.code == code
    codes = [0] * culprit + [code] + [ErrorCode.RUNTIME_INCONSISTENCY] * (size - culprit - 1)
    return told == MultiResult(tuple(map(ErrorResult, codes)))
