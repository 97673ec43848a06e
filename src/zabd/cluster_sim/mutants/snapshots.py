"""Mistakes about snapshots, replay and what may be purged: M34, M37, M58, M66 and M71."""

from collections import deque
from typing import Any, Final

import msgpack

from zabd.cluster_sim.mutants.data import no_short_way
from zabd.cluster_sim.mutants.mutant import Mutant, Patch
from zabd.model.errors import DamagedError
from zabd.model.paths import ROOT
from zabd.storage import recovery, small_file
from zabd.storage.disk import Rename, SyncDir
from zabd.storage.log_changes import Home
from zabd.storage.procedures import Procedure, list_names, read_at
from zabd.storage.recovery import RecoverySink
from zabd.storage.retention import delete, doomed_segments
from zabd.storage.snapshots import WINDOW_BYTES, SnapshotDecoder, SnapshotInfo, snapshot_zxid
from zabd.storage.storage import Storage
from zabd.znode_tree import state, txns
from zabd.znode_tree.loader import TreeLoader
from zabd.znode_tree.snapshot import SnapshotWalk, pack
from zabd.znode_tree.tree import Applied, ZnodeTree
from zabd.znode_tree.txns import Txn
from zabd.znode_tree.znode import Znode

_MANY_SNAPSHOTS: Final = {"snapshot_every": 5, "segment_bytes": 8 << 10}


# --- the walk ------------------------------------------------------------------------------------


def _walk_misses_the_parent() -> list[Patch]:
    create = ZnodeTree._appliers[txns.CREATE]

    def unseen(tree: ZnodeTree, zxid: int, time_ms: int, session_id: int, txn: Txn) -> Applied:
        walk, tree._walk = tree._walk, None
        try:
            return create(tree, zxid, time_ms, session_id, txn)
        finally:
            tree._walk = walk

    return [
        (ZnodeTree, "_appliers", {**ZnodeTree._appliers, txns.CREATE: unseen}),
        (ZnodeTree, "apply_run", no_short_way),
    ]


class _LateWalk(SnapshotWalk):
    """Sessions when it is made, znodes when the first of them are wanted."""

    __slots__ = ("_tree",)

    def __init__(self, **facts: Any) -> None:
        super().__init__(**facts)
        self._tree: ZnodeTree | None = facts["on_end"].__self__

    def next_slice(self, nodes_max: int) -> bytes | None:
        """As a walk's."""
        if self._header is None and self._tree is not None:
            tree, self._tree = self._tree, None
            self._horizon = tree.zxid
            self._early = deque((self._record(ROOT, tree.nodes[ROOT]),))
            self._early_paths = {ROOT}
            self._end = pack([len(tree.nodes), msgpack.unpackb(self._end)[1]])
        return super().next_slice(nodes_max)


def _sessions_of_another_moment() -> list[Patch]:
    return [(state, "SnapshotWalk", _LateWalk)]


def _acls_apart_from_nodes() -> list[Patch]:
    record = SnapshotWalk._record

    def with_acl(self: SnapshotWalk, path: str, node: Znode) -> list[Any]:
        fields = record(self, path, node)
        fields[2] = self._packed_acl(node.acl)
        return fields

    def take(self: SnapshotWalk, nodes_max: int) -> list[list[Any]]:
        records: list[list[Any]] = []
        while len(records) < nodes_max and (self._left or self._parents):
            if (found := self._step()) is not None:
                records.append(found)
        while len(records) < nodes_max and self._early:
            records.append(self._early.popleft())
        return records

    return [(SnapshotWalk, "_record", with_acl), (SnapshotWalk, "_take", take)]


# --- recovery ------------------------------------------------------------------------------------


def _half_a_snapshot_trusted() -> list[Patch]:
    load_snapshot = recovery._load_snapshot

    def load(home: Home, *rest: Any) -> Procedure[Any]:
        names = yield from list_names(home.data)
        for name in names:
            whole = name.removesuffix(small_file.TEMPORARY)
            if whole != name and snapshot_zxid(whole) is not None and whole not in names:
                yield home.data, [Rename(name, whole), SyncDir()]
        return (yield from load_snapshot(home, *rest))

    def read(home: Home, sink: RecoverySink, file: str) -> Procedure[SnapshotInfo]:
        decoder = SnapshotDecoder(file)
        pieces = decoder.feed((yield from read_at(home.data, file, 0, 8 * WINDOW_BYTES)))
        if decoder.position is None:
            raise DamagedError(f"{file} has no header")
        sink.begin_snapshot(decoder.position)
        for piece in pieces:
            sink.snapshot_chunk(piece)
        sink.end_snapshot()
        return SnapshotInfo(decoder.position, decoder.content_bytes)

    def finish(self: TreeLoader) -> ZnodeTree:
        tree = self._tree
        for path in self._orphans:
            tree.link(path)
        tree.recount_quotas()
        return tree

    return [
        (recovery, "_load_snapshot", load),
        (recovery, "_read_snapshot", read),
        (TreeLoader, "finish", finish),
    ]


def _damaged_is_empty() -> list[Patch]:
    load_snapshot = recovery._load_snapshot

    def load(home: Home, sink: RecoverySink, *rest: Any) -> Procedure[Any]:
        names = yield from list_names(home.data)
        newest = max((name for name in names if snapshot_zxid(name) is not None), default=None)
        if newest is not None:
            try:
                yield from recovery._read_snapshot(home, sink, newest)
            except DamagedError:
                sink.begin_anew()
                return None, [newest]
        return (yield from load_snapshot(home, sink, *rest))

    return [(recovery, "_load_snapshot", load)]


def _purged_by_the_newest() -> list[Patch]:
    def retain(self: Storage) -> Procedure[None]:
        if len(self._verified) < self._config.snapshots_kept:
            return
        segments = doomed_segments(self._log.settled, self._verified[-1].position.zxid)
        self._log.forget(segments)
        yield from delete(self._home.log, [segment.file for segment in segments])

    return [(Storage, "_retain", retain)]


SNAPSHOTS: Final = (
    Mutant(
        name="walk-misses-the-parent",
        bug="M34",
        what="a snapshot's walk does not hear that a create changes the parent",
        history="two children are created and deleted before the walk comes to their parent; the "
        "snapshot has a counter of a later moment than its label, and replay sets it back",
        reference="ZOOKEEPER-1046; here it is the copy on write that can miss something (ADR 1)",
        level="core",
        found_by=frozenset({"R2"}),
        patches=_walk_misses_the_parent,
        shape=_MANY_SNAPSHOTS,
    ),
    Mutant(
        name="sessions-of-another-moment",
        bug="M37",
        what="a snapshot's list of sessions is taken when it begins, its znodes a little later",
        history="a session is closed in between: it is there, and its ephemerals are not",
        reference="ZOOKEEPER-3144",
        level="core",
        found_by=frozenset({"R2"}),
        patches=_sessions_of_another_moment,
        shape=_MANY_SNAPSHOTS,
    ),
    Mutant(
        name="acls-apart-from-nodes",
        bug="M71",
        what="a snapshot's ACLs are numbered in another order than that in which they are written",
        history="a znode names an ACL by a number that the reader has not met yet",
        reference="ZOOKEEPER-3306",
        level="core",
        found_by=frozenset({"R2"}),
        patches=_acls_apart_from_nodes,
        shape=_MANY_SNAPSHOTS,
    ),
    Mutant(
        name="half-a-snapshot-trusted",
        bug="M58",
        what="a start takes an unfinished snapshot for one, and looks neither for its end nor at "
        "its digest (three guards are off at once)",
        history="the member is killed while it writes; the next start loads what there is",
        reference="ZOOKEEPER-3644",
        level="core",
        found_by=frozenset({"R3"}),
        patches=_half_a_snapshot_trusted,
        shape=_MANY_SNAPSHOTS | {"kinds": ("kill", "crash at the disk")},
    ),
    Mutant(
        name="damaged-is-empty",
        bug="M58",
        what="a start that cannot read the newest snapshot goes on as if there were none",
        history="the log begins later, and is replayed over an empty tree",
        reference="ZOOKEEPER-2325, ZOOKEEPER-2872",
        level="core",
        found_by=frozenset({"R3"}),
        patches=_damaged_is_empty,
        shape=_MANY_SNAPSHOTS | {"kinds": ("damaged snapshot",)},
    ),
    Mutant(
        name="purged-by-the-newest",
        bug="M66",
        what="the log is deleted up to the newest snapshot, though older ones are kept",
        history="the newest two turn out to be damaged, and what the third one needs is gone",
        reference="ZOOKEEPER-3231",
        level="zab",
        found_by=frozenset({"R3"}),
        patches=_purged_by_the_newest,
        shape=_MANY_SNAPSHOTS,
    ),
)
