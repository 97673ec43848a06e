"""Tree: the replicated state of an ensemble, and how a txn changes it.

Every member holds one `ZnodeTree` and applies the same txns in the same order; nothing else changes
it. What it consists of, and the books that are kept about it, stand in `state`.

Invariants
    R1  The state is a function of the txns alone: `apply` reads no clock, draws no chance, iterates
        over nothing unordered. Equal zxids mean equal digests.
    R2  Whatever stands at or below `zxid` is skipped, so that any replay is harmless.
    R5  A multi is one apply: its zxid, time and visibility are those of the whole.
    R6  `pzxid` is the zxid of the last create or delete of a child, `created` never decreases.
    S2  A session closes together with all of its ephemerals, in one txn.
    Q1  What is used of a quota is true after every change, and shown by the same txn (`quotas`).

The client protocol's sections on Stat, kinds of znodes and system nodes; `txns` for the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from zabd.model.acl import Acl
from zabd.model.ops import OpCode
from zabd.model.paths import CONFIG_PATH, ROOT
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
from zabd.znode_tree.digest import secret_hash, session_hash
from zabd.znode_tree.quotas import QUOTA_PREFIX, limited_path
from zabd.znode_tree.state import CHANGED_MAX, TreeState
from zabd.znode_tree.txns import CREATE, SET_DATA, Entry, Txn
from zabd.znode_tree.znode import Znode, newborn, stat_of

_CREATED: Final = EventType.CREATED
_DELETED: Final = EventType.DELETED
_DATA_CHANGED: Final = EventType.DATA_CHANGED
_CHILDREN_CHANGED: Final = EventType.CHILDREN_CHANGED


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

Answer: TypeAlias = Callable[[int, int, Znode, str], None]
"""Told of a setData or a create: request id, zxid, the znode, and the path if it is new."""

RUN_MAX: Final = CHANGED_MAX // 2
"""Txns that are applied without a look at what waits for the digest; each changes two paths."""

WATCHED_RUN_MAX: Final = 64
"""The same while somebody watches something."""

_NOWHERE: Final[Mapping[int, object]] = MappingProxyType({})
_NOTHING: Final = Applied(0, None, ())

# A NamedTuple's own constructor is a call in Python; this one takes a third of its time.
_make: Final = tuple.__new__


class ZnodeTree(TreeState):
    """The replicated state and `apply`, which alone changes it; `TreeState` says what it holds."""

    __slots__ = ()

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

    def apply_run(  # noqa: PLR0915 - what it is for forbids it to call others
        self,
        zxid: int,
        time_ms: int,
        entries: Sequence[Entry],
        at: int,
        me: int,
        answer: Answer,
        watched: Mapping[str, object],
        watched_below: Mapping[int, object] = _NOWHERE,
    ) -> int:
        """Apply the setData and creates that stand together from `entries[at]` on, from `zxid` on.

        Returns the place behind them. Takes only what leaves nobody to tell and no books to keep;
        the entry where it ends, maybe the first, is for `apply`. `answer` is told of each that
        member `me` asked for, while the tree stands at it, and may have somebody watch the very
        next one: `watched` are the paths, and whatever `watched_below` holds is some path below
        which all is watched.

        The loop that every member goes through with nearly every txn, so it makes few calls
        (docs/internals/performance.md has what that saves).
        """
        if zxid <= self.zxid or self.quotas:
            return at
        nodes, changed, packed_stats, walk = (
            self.nodes,
            self._changed,
            self.packed_stats,
            self._walk,
        )
        # Where each may be the last of its run, there would be much to copy for each.
        run = entries[at : at + (WATCHED_RUN_MAX if watched else RUN_MAX)]
        if len(changed) + 2 * len(run) > CHANGED_MAX:
            self._settle()
        growth = 0
        parent_path = ""  # of the create before
        self.time_ms = time_ms
        for origin, request_id, _, txn in run:
            if watched_below:
                break
            path = ""
            if txn[0] == SET_DATA:
                _, changed_path, data, version = txn
                if watched and changed_path in watched:
                    break
                node = nodes[changed_path]
                changed[changed_path] = node  # `_before_change` in place: its call is a fifth
                if packed_stats:
                    packed_stats.pop(changed_path, None)
                if walk is not None:
                    walk.keep(changed_path, node)
                old = node.data
                growth += (len(data) if data else 0) - (len(old) if old else 0)
                node.data = data
                node.version = version
                node.mzxid = zxid
                node.mtime = time_ms
            elif txn[0] == CREATE and txn[3] is None and not txn[1].startswith(QUOTA_PREFIX):
                _, path, data, _, owner, parent_created = txn
                above = path[: path.rindex("/")] or ROOT
                if watched and (path in watched or above in watched):
                    break
                if above != parent_path:  # else the digest and the snapshot have heard of it
                    parent_path, parent = above, nodes[above]
                    self._before_change(parent_path, parent)
                    if parent.children is None:
                        parent.children = {}
                    siblings = parent.children
                elif packed_stats:  # of the parent: a reader may have been answered in between
                    packed_stats.pop(parent_path, None)
                parent.created = parent_created
                parent.pzxid = zxid
                siblings[path] = None
                nodes[path] = changed[path] = node = newborn(data, zxid, time_ms, owner)
                growth += len(path) + (len(data) if data else 0)
                if owner:
                    self._list_owned(path, owner)
            else:
                break
            self.zxid = zxid
            zxid += 1
            at += 1
            if origin == me:
                answer(request_id, self.zxid, node, path)
        self.data_bytes += growth
        return at

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
        self._changed[path] = node
        self.data_bytes += len(path) + (len(data) if data else 0)
        if owner:
            self._list_owned(path, owner)
        if self.quotas:
            self._charge(path, 1, len(data) if data else 0)
        if path.startswith(QUOTA_PREFIX):
            self._quota_node_set(path, data, created=True)
        changes = (
            _make(Change, (_CREATED, path, acl)),
            _make(Change, (_CHILDREN_CHANGED, parent_path, parent.acl)),
        )
        return _make(Applied, (0, path, changes))

    def _delete(self, zxid: int, _time_ms: int, _session_id: int, txn: Txn) -> Applied:
        return _make(Applied, (0, None, self._remove(zxid, txn[1])))

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

        del self.nodes[path], self._changed[path]
        self._add_to_sum(-node.mark)
        self._acls.drop(node.acl)
        self.data_bytes -= len(path) + (len(node.data) if node.data else 0)
        if node.owner:
            self._unlist_owned(path, node.owner)
        if self.quotas:
            self._charge(path, -1, -len(node.data) if node.data else 0)
            subject = limited_path(path)
            if subject is not None:
                self.quotas.deactivate(subject)
        return (
            _make(Change, (_DELETED, path, node.acl)),
            _make(Change, (_CHILDREN_CHANGED, parent_path, parent.acl)),
        )

    def _set_data(self, zxid: int, time_ms: int, _session_id: int, txn: Txn) -> Applied:
        _, path, data, version = txn
        node = self.nodes[path]
        self._before_change(path, node)
        growth = (len(data) if data else 0) - (len(node.data) if node.data else 0)
        self.data_bytes += growth
        node.data = data
        node.version = version
        node.mzxid = zxid
        node.mtime = time_ms
        if self.quotas:
            if growth:
                self._charge(path, 0, growth)
            if path.startswith(QUOTA_PREFIX):
                self._quota_node_set(path, data, created=False)
        return _make(Applied, (0, node, (_make(Change, (_DATA_CHANGED, path, node.acl)),)))

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
        listed = txn[1]
        if listed is None:
            listed = sorted(self.ephemerals.get(session_id, ()))
        for path in listed:
            changes += self._remove(zxid, path)
        assert session_id not in self.ephemerals, "S2"
        self._forget_session(session_id)
        return Applied(0, None, tuple(changes))

    def _forget_session(self, session_id: int) -> None:
        timeout_ms = self.sessions.pop(session_id, None)
        if timeout_ms is not None:
            self._add_to_sum(-session_hash(session_id, timeout_ms))

    def _found(self, zxid: int, time_ms: int, _session_id: int, txn: Txn) -> Applied:
        _, secret, config_text = txn
        founded = bool(self.secret)
        self._add_to_sum(secret_hash(secret) - secret_hash(self.secret))
        self.secret = secret
        config = self.nodes[CONFIG_PATH]
        self._before_change(CONFIG_PATH, config)
        self.data_bytes += len(config_text) - len(config.data or b"")
        config.data = config_text
        if not founded:
            return _NOTHING  # a fresh tree is as ZooKeeper's: everything in it is of time 0
        config.mzxid = zxid
        config.mtime = time_ms
        return Applied(0, None, (Change(EventType.DATA_CHANGED, CONFIG_PATH, config.acl),))

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
