"""Requests about watches: set again after a reconnect, add, check, remove.

`setWatches` compares each path with what the client last saw: what changed meanwhile fires at once,
before the reply; the rest is armed (client protocol, section 13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zabd.model.acl import Perms
from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    AddWatch,
    CheckWatches,
    OpCode,
    RemoveWatches,
    SetWatches,
    SetWatches2,
)
from zabd.model.results import ErrorResult
from zabd.model.watch_events import AddWatchMode, EventType, KeeperState, WatcherType, WatchEvent
from zabd.replica.authentication import may
from zabd.wire import replies
from zabd.wire.requests import decode_as, decode_header
from zabd.znode_tree.watches import WatchKind

if TYPE_CHECKING:
    from zabd.replica.connection import Connection
    from zabd.replica.reads import Read
    from zabd.znode_tree.tree import ZnodeTree
    from zabd.znode_tree.watches import WatchTable

SYNTHESISED_ZXID = -1
"""The header zxid of events that no transaction caused just now."""

_READ = int(Perms.READ)


def set_watches(
    tree: ZnodeTree, watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """SetWatches and setWatches2: the events that were missed, then the reply, as one output."""
    op: SetWatches | SetWatches2
    if decode_header(frame)[1] == OpCode.SET_WATCHES:
        op = decode_as(SetWatches, frame)
    else:
        op = decode_as(SetWatches2, frame)
    since = op.relative_zxid
    missed = [
        *_data(tree, watches, connection, op.data, since),
        *_exist(tree, watches, connection, op.exist),
        *_child(tree, watches, connection, op.child, since),
    ]
    if isinstance(op, SetWatches2):
        for path in op.persistent:
            watches.add(WatchKind.PERSISTENT, path, connection)
        for path in op.persistent_recursive:
            watches.add(WatchKind.RECURSIVE, path, connection)
    frames = [
        replies.watch_event(
            WatchEvent(event_type, KeeperState.SYNC_CONNECTED, path), SYNTHESISED_ZXID
        )
        for event_type, path in missed
    ]
    return b"".join([*frames, replies.reply(xid, tree.zxid)])


def add_watch(
    tree: ZnodeTree, watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """addWatch: a persistent watch, whether or not the node is there."""
    op = decode_as(AddWatch, frame)
    if op.mode == AddWatchMode.PERSISTENT:
        watches.add(WatchKind.PERSISTENT, op.path, connection)
    elif op.mode == AddWatchMode.PERSISTENT_RECURSIVE:
        watches.add(WatchKind.RECURSIVE, op.path, connection)
    else:
        return replies.reply(xid, tree.zxid, ErrorCode.MARSHALLING_ERROR)
    body = replies.encode_result(OpCode.ADD_WATCH, ErrorResult(0))
    return replies.reply(xid, tree.zxid, 0, body)


def _data(
    tree: ZnodeTree,
    watches: WatchTable,
    connection: Connection,
    paths: tuple[str, ...],
    since: int,
) -> list[tuple[EventType, str]]:
    missed = []
    for path in paths:
        node = tree.nodes.get(path)
        if node is None:
            missed.append((EventType.DELETED, path))
        elif node.mzxid > since:
            if may(connection, node.acl, _READ):
                missed.append((EventType.DATA_CHANGED, path))
        else:
            watches.add(WatchKind.DATA, path, connection)
    return missed


def _exist(
    tree: ZnodeTree, watches: WatchTable, connection: Connection, paths: tuple[str, ...]
) -> list[tuple[EventType, str]]:
    missed = []
    for path in paths:
        node = tree.nodes.get(path)
        if node is None:
            watches.add(WatchKind.DATA, path, connection)
        elif may(connection, node.acl, _READ):
            missed.append((EventType.CREATED, path))
    return missed


def _child(
    tree: ZnodeTree,
    watches: WatchTable,
    connection: Connection,
    paths: tuple[str, ...],
    since: int,
) -> list[tuple[EventType, str]]:
    missed = []
    for path in paths:
        node = tree.nodes.get(path)
        if node is None:
            missed.append((EventType.DELETED, path))
        elif node.pzxid > since:
            if may(connection, node.acl, _READ):
                missed.append((EventType.CHILDREN_CHANGED, path))
        else:
            watches.add(WatchKind.CHILD, path, connection)
    return missed


def check_watches(
    tree: ZnodeTree, watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """checkWatches: whether this connection has such a watch on exactly this path."""
    op = decode_as(CheckWatches, frame)
    if op.type not in _WATCHER_TYPES:
        return replies.reply(xid, tree.zxid, ErrorCode.MARSHALLING_ERROR)
    found = watches.has(op.type, op.path, connection)
    return replies.reply(xid, tree.zxid, ErrorCode.OK if found else ErrorCode.NO_WATCHER)


def remove_watches(
    tree: ZnodeTree, watches: WatchTable, connection: Connection, xid: int, frame: bytes
) -> bytes:
    """removeWatches: of that type, on exactly this path, of this connection alone."""
    op = decode_as(RemoveWatches, frame)
    if op.type not in _WATCHER_TYPES:
        return replies.reply(xid, tree.zxid, ErrorCode.MARSHALLING_ERROR)
    found = watches.remove(op.type, op.path, connection)
    return replies.reply(xid, tree.zxid, ErrorCode.OK if found else ErrorCode.NO_WATCHER)


_WATCHER_TYPES = frozenset(WatcherType)

WATCH_REQUESTS: dict[int, Read] = {
    OpCode.CHECK_WATCHES: check_watches,
    OpCode.REMOVE_WATCHES: remove_watches,
    OpCode.SET_WATCHES: set_watches,
    OpCode.SET_WATCHES2: set_watches,
    OpCode.ADD_WATCH: add_watch,
}
