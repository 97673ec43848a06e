"""Replies to writes: built on the member that holds the session, once the txn is in its tree.

A write's reply carries the zxid of its own txn (client protocol, sections 3, 4 and 12).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zabd.model.errors import ErrorCode
from zabd.model.ops import OpCode
from zabd.model.results import MultiResult
from zabd.wire import replies
from zabd.znode_tree.znode import Znode, stat_fields

if TYPE_CHECKING:
    from zabd.znode_tree.tree import Applied, ZnodeTree

_WITH_STAT = frozenset((OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL))


def write_reply(opcode: int, xid: int, zxid: int, applied: Applied, tree: ZnodeTree) -> bytes:
    """The framed reply to a write of this opcode, whose txn had this outcome."""
    error, value, _ = applied
    if isinstance(value, Znode):
        return replies.stat_reply(xid, zxid, stat_fields(value))
    if error:
        return replies.reply(xid, zxid, error)
    if isinstance(value, MultiResult):
        return replies.reply(xid, zxid, ErrorCode.OK, replies.encode_result(OpCode.MULTI, value))
    if value is None:
        return replies.reply(xid, zxid)
    if opcode in _WITH_STAT:
        return replies.path_stat_reply(xid, zxid, value, stat_fields(tree.nodes[value]))
    return replies.path_reply(xid, zxid, value)
