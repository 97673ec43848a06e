"""The replicated state: the tree of znodes, its sessions and its watches, without I/O."""

from zabd.znode_tree import txns
from zabd.znode_tree.loader import TreeLoader
from zabd.znode_tree.permissions import (
    allowed,
    authenticate,
    expand_acl,
    user_of,
    visible_acl,
)
from zabd.znode_tree.prepare import PrepareOptions, Preparer
from zabd.znode_tree.snapshot import SnapshotWalk
from zabd.znode_tree.tree import Applied, Change, ZnodeTree
from zabd.znode_tree.txns import Entry, Txn, pack_batch, unpack_batch
from zabd.znode_tree.watches import WatchKind, WatchTable
from zabd.znode_tree.znode import Znode, children_of, stat_of

__all__ = [
    "Applied",
    "Change",
    "Entry",
    "PrepareOptions",
    "Preparer",
    "SnapshotWalk",
    "TreeLoader",
    "Txn",
    "WatchKind",
    "WatchTable",
    "Znode",
    "ZnodeTree",
    "allowed",
    "authenticate",
    "children_of",
    "expand_acl",
    "pack_batch",
    "stat_of",
    "txns",
    "unpack_batch",
    "user_of",
    "visible_acl",
]
