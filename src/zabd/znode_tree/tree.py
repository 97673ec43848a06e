"""Tree: the replicated state of an ensemble, and how a txn changes it.

Every member holds one `ZnodeTree` and applies the same txns in the same order; nothing else changes
it. The znodes lie flat in one dict by path.

Invariants
    R1  The state is a function of the txns alone: `apply` reads no clock, draws no chance, iterates
        over nothing unordered. Equal zxids mean equal digests.
    R2  Whatever stands at or below `zxid` is skipped, so that any replay is harmless.
    R5  A multi is one apply: its zxid, time and visibility are those of the whole.
    R6  `pzxid` is the zxid of the last create or delete of a child, `created` never decreases.
    S1  Every ephemeral's owner is an open session, which lists it in `ephemerals`.
    S2  A session closes together with all of its ephemerals, in one txn.

The client protocol's sections on Stat, kinds of znodes and system nodes; `txns` for the facts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from zabd.model.acl import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Acl
from zabd.model.errors import LocalProtocolError
from zabd.model.ops import OpCode
from zabd.model.paths import CONFIG_PATH, QUOTA_PATH, ROOT, SYSTEM_PATH
from zabd.model.results import (
    CheckResult,
    Create2Result,
    CreateResult,
    DeleteResult,
    ErrorResult,
    MultiPart,
    MultiResult,
    StatResult,
)
from zabd.model.watch_events import EventType
from zabd.znode_tree import txns
from zabd.znode_tree.acl_table import AclTable
from zabd.znode_tree.digest import DIGEST_MASK, secret_hash, session_hash, znode_hash
from zabd.znode_tree.snapshot import SnapshotWalk
from zabd.znode_tree.txns import Txn
from zabd.znode_tree.znode import Znode, is_session, stat_of

CHANGED_MAX: Final = 1024
"""How many changed znodes may wait for the digest: 1,024 times 2 us is a pause of 2 ms."""


class Change(NamedTuple):
    """What watches are told of: this happened at `path`, and who may read it is in `acl`."""

    type: EventType
    path: str
    acl: tuple[Acl, ...]


class Applied(NamedTuple):
    """What became of a txn.

    `error` is 0 or the code that the reply carries. `value` is the path for a create, the znode for
    setData and setACL, a MultiResult for a multi (also a refused one), None otherwise. `changes`
    stand in the order in which watches fire: the znode first, then its parent's children.
    """

    error: int
    value: str | Znode | MultiResult | None
    changes: tuple[Change, ...]


_Applier: TypeAlias = Callable[["ZnodeTree", int, int, int, Txn], Applied]

_NOTHING: Final = Applied(0, None, ())


class ZnodeTree:
    """The znodes, the sessions and the ensemble's secret, as of `zxid`.

    Attributes:
        nodes: every znode by its path.
        sessions: the timeout in ms of every open session.
        ephemerals: the paths of every session that owns any.
        perishable: the paths of containers and of znodes with a time to live, in order of creation.
        zxid: the last txn applied; 0 in a fresh tree.
        time_ms: the leader's time in that txn.
        secret: the ensemble's, empty before it is founded.
        data_bytes: the lengths of all paths and data together.
    """

    __slots__ = (
        "_acls",
        "_changed",
        "_sum",
        "_walk",
        "data_bytes",
        "ephemerals",
        "nodes",
        "perishable",
        "secret",
        "sessions",
        "time_ms",
        "zxid",
    )

    def __init__(self, *, planted: bool = True) -> None:
        """The state before the first txn; `planted=False` leaves out the system znodes."""
        self.nodes: dict[str, Znode] = {}
        self.sessions: dict[int, int] = {}
        self.ephemerals: dict[int, dict[str, None]] = {}
        self.perishable: dict[str, None] = {}
        self.zxid = 0
        self.time_ms = 0
        self.secret = b""
        self.data_bytes = 0
        self._acls = AclTable()
        # The digest's sum does not have the latest changes of these paths yet.
        self._changed: dict[str, None] = {}
        self._sum = 0
        self._walk: SnapshotWalk | None = None
        if planted:
            self._plant()

    def _plant(self) -> None:
        # As ZooKeeper's: the children made in advance are not counted by `created`, so the root's
        # cversion is -1 and the first sequential name under it ends in 0.
        for path in (ROOT, SYSTEM_PATH, QUOTA_PATH):
            self.restore(path, Znode(b"", OPEN_ACL_UNSAFE, 0, 0, 0, 0, 0, 0, 0, 0, 0))
        self.restore(CONFIG_PATH, Znode(b"", READ_ACL_UNSAFE, 0, 0, 0, 0, 0, -1, -1, 0, 0))

    # Reading.

    def get(self, path: str) -> Znode | None:
        """The znode at `path`, or None. Read it, and do not keep it over an `apply`."""
        return self.nodes.get(path)

    @property
    def digest(self) -> int:
        """One number for the whole state, see `digest`; reading it settles what has changed."""
        if self._changed:
            self._settle()
        return self._sum

    def descendant_count(self, path: str) -> int:
        """How many znodes there are below `path`, which exists."""
        if path == ROOT:
            return len(self.nodes) - 1
        count = 0
        waiting = [path]
        while waiting:
            children = self.nodes[waiting.pop()].children or ()
            count += len(children)
            waiting.extend(children)
        return count

    # Changing.

    def apply(self, zxid: int, time_ms: int, session_id: int, txn: Txn) -> Applied:
        """Make the fact `txn` so, at `zxid` and the leader's time.

        Never fails for what `Preparer` made in the state that this tree is in. A zxid that was
        applied already changes nothing and answers with no value and no changes.
        """
        if zxid <= self.zxid:
            return _NOTHING
        if len(self._changed) > CHANGED_MAX:
            self._settle()
        # A Zxid object would take more memory in each znode that keeps it.
        zxid = int(zxid)
        applied = self._appliers[txn[0]](self, zxid, time_ms, session_id, txn)
        self.zxid = zxid
        self.time_ms = time_ms
        return applied

    def _create(self, zxid: int, time_ms: int, _session_id: int, txn: Txn) -> Applied:
        _, path, data, packed_acl, owner, parent_created = txn
        parent_path = path[: path.rindex("/")] or ROOT
        parent = self.nodes[parent_path]
        self._before_change(parent_path, parent)
        parent.created = parent_created
        parent.pzxid = zxid
        if parent.children is None:
            parent.children = {}
        parent.children[path] = None

        acl = self._acls.share(txns.unpack_acl(packed_acl))
        node = Znode(data, acl, zxid, zxid, zxid, time_ms, time_ms, 0, 0, 0, owner)
        self.nodes[path] = node
        self._changed[path] = None
        self.data_bytes += len(path) + (len(data) if data else 0)
        if owner:
            self._list_owned(path, owner)
        return Applied(
            0,
            path,
            (
                Change(EventType.CREATED, path, acl),
                Change(EventType.CHILDREN_CHANGED, parent_path, parent.acl),
            ),
        )

    def _delete(self, zxid: int, _time_ms: int, _session_id: int, txn: Txn) -> Applied:
        return Applied(0, None, self._remove(zxid, txn[1]))

    def _remove(self, zxid: int, path: str) -> tuple[Change, Change]:
        node = self.nodes[path]
        self._before_change(path, node)
        parent_path = path[: path.rindex("/")] or ROOT
        parent = self.nodes[parent_path]
        self._before_change(parent_path, parent)
        parent.pzxid = zxid
        assert parent.children is not None, "a znode's parent lists it"
        del parent.children[path]
        if not parent.children:
            parent.children = None

        del self.nodes[path]
        self._add_to_sum(-node.mark)
        self._acls.drop(node.acl)
        self.data_bytes -= len(path) + (len(node.data) if node.data else 0)
        if node.owner:
            self._unlist_owned(path, node.owner)
        return (
            Change(EventType.DELETED, path, node.acl),
            Change(EventType.CHILDREN_CHANGED, parent_path, parent.acl),
        )

    def _set_data(self, zxid: int, time_ms: int, _session_id: int, txn: Txn) -> Applied:
        _, path, data, version = txn
        node = self.nodes[path]
        self._before_change(path, node)
        self.data_bytes += (len(data) if data else 0) - (len(node.data) if node.data else 0)
        node.data = data
        node.version = version
        node.mzxid = zxid
        node.mtime = time_ms
        return Applied(0, node, (Change(EventType.DATA_CHANGED, path, node.acl),))

    def _set_acl(self, _zxid: int, _time_ms: int, _session_id: int, txn: Txn) -> Applied:
        _, path, packed_acl, aversion = txn
        node = self.nodes[path]
        self._before_change(path, node)
        old = node.acl
        node.acl = self._acls.share(txns.unpack_acl(packed_acl))
        node.aversion = aversion
        self._acls.drop(old)
        return Applied(0, node, ())

    def _check(self, _zxid: int, _time_ms: int, _session_id: int, _txn: Txn) -> Applied:
        return _NOTHING

    def _multi(self, zxid: int, time_ms: int, session_id: int, txn: Txn) -> Applied:
        results: list[MultiPart] = []
        changes: list[Change] = []
        for opcode, part in zip(txn[1], txn[2], strict=True):
            applied = self._appliers[part[0]](self, zxid, time_ms, session_id, part)
            # At once: a Stat shows the state after its own op, not after the whole multi.
            results.append(self._result_of(opcode, applied))
            changes += applied.changes
        return Applied(0, MultiResult(tuple(results)), tuple(changes))

    def _result_of(self, opcode: int, applied: Applied) -> MultiPart:
        if opcode == OpCode.DELETE:
            return DeleteResult()
        if opcode == OpCode.CHECK:
            return CheckResult()
        if isinstance(applied.value, Znode):
            return StatResult(stat_of(applied.value))
        path: Any = applied.value
        if opcode == OpCode.CREATE:
            return CreateResult(path)
        return Create2Result(path, stat_of(self.nodes[path]))

    def _multi_failed(self, _zxid: int, _time_ms: int, _session_id: int, txn: Txn) -> Applied:
        return Applied(0, MultiResult(tuple(map(ErrorResult, txn[1]))), ())

    def _error(self, _zxid: int, _time_ms: int, _session_id: int, txn: Txn) -> Applied:
        return Applied(txn[1], None, ())

    def _create_session(self, _zxid: int, _time_ms: int, session_id: int, txn: Txn) -> Applied:
        self._forget_session(session_id)
        self.sessions[session_id] = txn[1]
        self._add_to_sum(session_hash(session_id, txn[1]))
        return _NOTHING

    def _close_session(self, zxid: int, _time_ms: int, session_id: int, txn: Txn) -> Applied:
        changes: list[Change] = []
        for path in txn[1]:
            changes += self._remove(zxid, path)
        assert session_id not in self.ephemerals, "S2"
        self._forget_session(session_id)
        return Applied(0, None, tuple(changes))

    def _forget_session(self, session_id: int) -> None:
        timeout_ms = self.sessions.pop(session_id, None)
        if timeout_ms is not None:
            self._add_to_sum(-session_hash(session_id, timeout_ms))

    def _found(self, _zxid: int, _time_ms: int, _session_id: int, txn: Txn) -> Applied:
        _, secret, config_text = txn
        self._add_to_sum(secret_hash(secret) - secret_hash(self.secret))
        self.secret = secret
        config = self.nodes[CONFIG_PATH]
        self._before_change(CONFIG_PATH, config)
        self.data_bytes += len(config_text) - len(config.data or b"")
        config.data = config_text
        return _NOTHING

    # Bookkeeping that goes with every change.

    def _before_change(self, path: str, node: Znode) -> None:
        """Every change of a znode that exists comes through here, before it happens."""
        self._changed[path] = None
        if self._walk is not None:
            self._walk.keep(path, node)

    def _settle(self) -> None:
        total = self._sum
        nodes = self.nodes
        for path in self._changed:
            node = nodes.get(path)
            if node is not None:
                mark = znode_hash(path, node)
                total += mark - node.mark
                node.mark = mark
        self._sum = total & DIGEST_MASK
        self._changed.clear()

    def _add_to_sum(self, number: int) -> None:
        self._sum = (self._sum + number) & DIGEST_MASK

    def _list_owned(self, path: str, owner: int) -> None:
        if is_session(owner):
            self.ephemerals.setdefault(owner, {})[path] = None
        else:
            self.perishable[path] = None

    def _unlist_owned(self, path: str, owner: int) -> None:
        if not is_session(owner):
            del self.perishable[path]
            return
        paths = self.ephemerals[owner]
        del paths[path]
        if not paths:
            del self.ephemerals[owner]

    # Snapshots.

    def begin_snapshot(self) -> SnapshotWalk:
        """Begin a snapshot of this very moment; it may be taken in slices while writes go on.

        One at a time: LocalProtocolError while another is neither at its end nor abandoned.
        """
        if self._walk is not None:
            raise LocalProtocolError("a snapshot is being taken already; finish or abandon it")
        self._walk = SnapshotWalk(
            nodes=self.nodes.copy(),
            sessions=tuple(self.sessions.items()),
            zxid=self.zxid,
            time_ms=self.time_ms,
            secret=self.secret,
            digest=self.digest,
            on_end=self._end_walk,
        )
        return self._walk

    def _end_walk(self) -> None:
        self._walk = None

    def restore(self, path: str, node: Znode) -> bool:
        """Put back a znode as it was, and under its parent; False if the parent is not there yet.

        For a tree that is being made, not for one in use: `TreeLoader` and the fresh tree use it.
        """
        node.acl = self._acls.share(node.acl)
        self.nodes[path] = node
        node.mark = mark = znode_hash(path, node)
        self._sum = (self._sum + mark) & DIGEST_MASK
        self.data_bytes += len(path) + (len(node.data) if node.data else 0)
        if node.owner:
            self._list_owned(path, node.owner)
        return self.link(path)

    def link(self, path: str) -> bool:
        """List a restored znode among its parent's children; False if there is no parent."""
        if path == ROOT:
            return True
        parent = self.nodes.get(path[: path.rindex("/")] or ROOT)
        if parent is None:
            return False
        if parent.children is None:
            parent.children = {}
        parent.children[path] = None
        return True

    def restore_session(self, session_id: int, timeout_ms: int) -> None:
        """Put back an open session, as `restore` does a znode."""
        self.sessions[session_id] = timeout_ms
        self._add_to_sum(session_hash(session_id, timeout_ms))

    def restore_position(self, zxid: int, time_ms: int, secret: bytes) -> None:
        """Put back where the tree stood and the ensemble's secret, as `restore` does a znode."""
        self.zxid = zxid
        self.time_ms = time_ms
        self._add_to_sum(secret_hash(secret) - secret_hash(self.secret))
        self.secret = secret

    _appliers: ClassVar[dict[int, _Applier]] = {
        txns.CREATE: _create,
        txns.DELETE: _delete,
        txns.SET_DATA: _set_data,
        txns.SET_ACL: _set_acl,
        txns.CHECK: _check,
        txns.MULTI: _multi,
        txns.MULTI_FAILED: _multi_failed,
        txns.ERROR: _error,
        txns.CREATE_SESSION: _create_session,
        txns.CLOSE_SESSION: _close_session,
        txns.FOUND: _found,
        txns.CONTAINER_DELETE: _delete,
    }
