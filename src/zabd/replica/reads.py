"""Reads: answered at once, from the local tree, as it stands.

Each function takes the tree, the watches, the connection and the request's frame, and returns the
reply ready for the socket. It registers the watch in the same step as it reads, so no change can
fall between (client protocol, sections 4, 11, 13 and 14).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from zabd.model.acl import OPEN_ACL_UNSAFE, Perms
from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    Check,
    GetAcl,
    GetAllChildrenNumber,
    GetEphemerals,
    MultiRead,
    MultiReadOp,
    OpCode,
    Sasl,
)
from zabd.model.paths import ROOT
from zabd.model.results import (
    AclResult,
    AllChildrenNumberResult,
    Children2Result,
    ChildrenResult,
    ClientInfo,
    EphemeralsResult,
    ErrorResult,
    GetDataResult,
    MultiPart,
    MultiResult,
    SaslResult,
    WhoAmIResult,
)
from zabd.replica.authentication import may, proved_by_sasl
from zabd.wire import replies
from zabd.wire.requests import decode_as, decode_path_watch
from zabd.znode_tree.permissions import user_of, visible_acl
from zabd.znode_tree.watches import WatchKind
from zabd.znode_tree.znode import Znode, children_of, stat_of

if TYPE_CHECKING:
    from zabd.replica.connection import Connection
    from zabd.replica.work import Work
    from zabd.znode_tree.tree import ZnodeTree
    from zabd.znode_tree.watches import WatchTable

Read: TypeAlias = Callable[["ZnodeTree", "WatchTable", "Connection", int, bytes], bytes]

PACKED_STATS_MAX = 16_384
"""Znodes whose packed Stat is kept: 3 MiB. After that it starts anew."""

MULTI_READ_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of data one multiRead may return; a small request must not make a huge answer."""

_READ = int(Perms.READ)
_READ_OR_ADMIN = int(Perms.READ | Perms.ADMIN)


def get_data(
    tree: ZnodeTree, watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """getData: data and Stat; arms a data watch on success."""
    path, watch = decode_path_watch(frame)
    node = tree.nodes.get(path)
    if node is None:
        return _missing(tree, xid, path)
    acl = node.acl
    if acl is not OPEN_ACL_UNSAFE and not may(connection, acl, _READ):
        return replies.reply(xid, tree.zxid, ErrorCode.NO_AUTH)
    if watch:
        watches.add(WatchKind.DATA, path, connection)
    packed = tree.packed_stats.get(path) or _pack_stat(tree, path, node)
    return replies.get_data_reply(xid, tree.zxid, node.data, packed)


def exists(
    tree: ZnodeTree, watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """exists: Stat; arms a data watch whether or not the node is there."""
    path, watch = decode_path_watch(frame)
    if not path or "\0" in path:
        return replies.reply(xid, tree.zxid, ErrorCode.BAD_ARGUMENTS)
    node = tree.nodes.get(path)
    if (
        node is not None
        and node.acl is not OPEN_ACL_UNSAFE
        and not may(connection, node.acl, _READ)
    ):
        return replies.reply(xid, tree.zxid, ErrorCode.NO_AUTH)
    if watch:
        watches.add(WatchKind.DATA, path, connection)
    if node is None:
        return replies.reply(xid, tree.zxid, ErrorCode.NO_NODE)
    packed = tree.packed_stats.get(path) or _pack_stat(tree, path, node)
    return replies.exists_reply(xid, tree.zxid, packed)


def _pack_stat(tree: ZnodeTree, path: str, node: Znode) -> bytes:
    """Pack the Stat for this read and for the next ones: 0.5 us less for each of them.

    Of some znodes only: for every one of a large tree it would take 100 bytes.
    """
    packed_stats = tree.packed_stats
    if len(packed_stats) >= PACKED_STATS_MAX:
        packed_stats.clear()
    packed = packed_stats[path] = replies.pack_stat(stat_of(node))
    return packed


def get_children(
    tree: ZnodeTree, watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """getChildren: the sorted names; arms a child watch on success."""
    node = _listed(tree, watches, connection, frame)
    if not isinstance(node, ErrorCode):
        body = replies.encode_result(OpCode.GET_CHILDREN, ChildrenResult(tuple(children_of(node))))
        return replies.reply(xid, tree.zxid, 0, body)
    return replies.reply(xid, tree.zxid, node)


def get_children2(
    tree: ZnodeTree, watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """getChildren2: the sorted names and the Stat; arms a child watch on success."""
    node = _listed(tree, watches, connection, frame)
    if not isinstance(node, ErrorCode):
        result = Children2Result(tuple(children_of(node)), stat_of(node))
        body = replies.encode_result(OpCode.GET_CHILDREN2, result)
        return replies.reply(xid, tree.zxid, 0, body)
    return replies.reply(xid, tree.zxid, node)


def get_acl(
    tree: ZnodeTree, _watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """getACL: needs READ or ADMIN; digests are masked for who lacks ADMIN."""
    op = decode_as(GetAcl, frame)
    node = tree.nodes.get(op.path)
    if node is None:
        return _missing(tree, xid, op.path)
    if not may(connection, node.acl, _READ_OR_ADMIN):
        return replies.reply(xid, tree.zxid, ErrorCode.NO_AUTH)
    acl = node.acl if connection.skips_acl else visible_acl(node.acl, connection.identities)
    body = replies.encode_result(OpCode.GET_ACL, AclResult(acl, stat_of(node)))
    return replies.reply(xid, tree.zxid, 0, body)


def multi_read(
    tree: ZnodeTree, _watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """multiRead: independent getData and getChildren, all from one state of the tree."""
    op = decode_as(MultiRead, frame)
    work = connection.work
    work.require()
    found = [_find(tree, connection, part.path) for part in op.ops]
    work.spend(len(found))
    size_bytes = 0
    for part, node in zip(op.ops, found, strict=True):
        if isinstance(node, Znode):
            size_bytes += _size_of(part, node, work)
        if size_bytes > MULTI_READ_BYTES_MAX:  # before anything is made
            return replies.reply(xid, tree.zxid, ErrorCode.BAD_ARGUMENTS)
    results = tuple(map(_read_one, op.ops, found))
    body = replies.encode_result(OpCode.MULTI_READ, MultiResult(results))
    return replies.reply(xid, tree.zxid, 0, body)


def get_ephemerals(
    tree: ZnodeTree, _watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """getEphemerals: paths of the calling session's ephemerals that start with the prefix."""
    op = decode_as(GetEphemerals, frame)
    prefix = op.prefix or ""
    if prefix == "/" or all(character <= " " for character in prefix):
        prefix = (
            ""  # blank, in the sense of Java, which takes control characters for blanks as well
        )
    connection.work.require()
    owned = tree.ephemerals.get(connection.session_id, ())
    connection.work.spend(len(owned))
    paths = tuple(sorted(path for path in owned if path.startswith(prefix)))
    body = replies.encode_result(OpCode.GET_EPHEMERALS, EphemeralsResult(paths))
    return replies.reply(xid, tree.zxid, 0, body)


def get_all_children_number(
    tree: ZnodeTree, _watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """getAllChildrenNumber: how many descendants the node has."""
    op = decode_as(GetAllChildrenNumber, frame)
    node = tree.nodes.get(op.path)
    if node is None:
        return _missing(tree, xid, op.path)
    if not may(connection, node.acl, _READ):
        return replies.reply(xid, tree.zxid, ErrorCode.NO_AUTH)
    connection.work.require()
    count = tree.descendant_count(op.path)
    connection.work.spend(count)
    result = AllChildrenNumberResult(count)
    body = replies.encode_result(OpCode.GET_ALL_CHILDREN_NUMBER, result)
    return replies.reply(xid, tree.zxid, 0, body)


def who_am_i(
    tree: ZnodeTree, _watches: WatchTable, connection: Connection, xid: int, _frame: bytes
) -> bytes:
    """whoAmI: scheme and user of each of the connection's identities."""
    infos = tuple(ClientInfo(i.scheme, user_of(i)) for i in connection.identities)
    body = replies.encode_result(OpCode.WHO_AM_I, WhoAmIResult(infos))
    return replies.reply(xid, tree.zxid, 0, body)


def check(
    tree: ZnodeTree, _watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """A check outside a multi: header only, never logged (client protocol, section 4)."""
    op = decode_as(Check, frame)
    node = tree.nodes.get(op.path)
    if node is None:
        return _missing(tree, xid, op.path)
    if not may(connection, node.acl, _READ):
        return replies.reply(xid, tree.zxid, ErrorCode.NO_AUTH)
    matches = op.version in (-1, node.version)
    return replies.reply(xid, tree.zxid, ErrorCode.OK if matches else ErrorCode.BAD_VERSION)


def sasl(
    _tree: ZnodeTree, _watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """A step of SASL; where there are no users, no error and no token (section 11)."""
    answer = proved_by_sasl(connection, decode_as(Sasl, frame).token)
    body = replies.encode_result(OpCode.SASL, SaslResult(answer))
    return replies.reply(xid, 0, ErrorCode.OK, body)


READS: dict[int, Read] = {
    OpCode.CHECK: check,
    OpCode.GET_DATA: get_data,
    OpCode.EXISTS: exists,
    OpCode.GET_CHILDREN: get_children,
    OpCode.GET_CHILDREN2: get_children2,
    OpCode.GET_ACL: get_acl,
    OpCode.MULTI_READ: multi_read,
    OpCode.GET_EPHEMERALS: get_ephemerals,
    OpCode.GET_ALL_CHILDREN_NUMBER: get_all_children_number,
    OpCode.WHO_AM_I: who_am_i,
    OpCode.SASL: sasl,
}


def _missing(tree: ZnodeTree, xid: int, path: str | None) -> bytes:
    code = ErrorCode.NO_NODE if path else ErrorCode.BAD_ARGUMENTS
    return replies.reply(xid, tree.zxid, code)


def _listed(
    tree: ZnodeTree, watches: WatchTable, connection: Connection, frame: bytes
) -> Znode | ErrorCode:
    path, watch = decode_path_watch(frame)
    node = tree.nodes.get(path)
    if node is None:
        return ErrorCode.NO_NODE if path else ErrorCode.BAD_ARGUMENTS
    if not may(connection, node.acl, _READ):
        return ErrorCode.NO_AUTH
    if watch:
        watches.add(WatchKind.CHILD, path, connection)
    return node


def _find(tree: ZnodeTree, connection: Connection, path: str) -> Znode | ErrorResult:
    node = tree.nodes.get(path)
    if node is None:
        return ErrorResult(ErrorCode.NO_NODE if path else ErrorCode.BAD_ARGUMENTS)
    if not may(connection, node.acl, _READ):
        return ErrorResult(ErrorCode.NO_AUTH)
    return node


def _size_of(part: MultiReadOp, node: Znode, work: Work) -> int:
    """The length of the data, or of all names of children."""
    if part.opcode == OpCode.GET_DATA:
        return len(node.data or b"")
    paths = node.children
    if not paths:
        return 0
    work.spend(len(paths))
    name_at = 1 if part.path == ROOT else len(part.path) + 1
    return sum(map(len, paths)) - len(paths) * name_at


def _read_one(part: MultiReadOp, node: Znode | ErrorResult) -> MultiPart:
    if isinstance(node, ErrorResult):
        return node
    if part.opcode == OpCode.GET_DATA:
        return GetDataResult(node.data, stat_of(node))
    return ChildrenResult(tuple(children_of(node)))
