"""Mistakes about what the leader prepares and what a txn does: M34-M36, M50-M52 and M60."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final

from zabd.cluster_sim.mutants.mutant import Mutant, Patch
from zabd.model.paths import ROOT, sequential_name
from zabd.model.zxid import Zxid
from zabd.zab import log
from zabd.zab.broadcast import LeaderBroadcast
from zabd.znode_tree import txns
from zabd.znode_tree.outstanding import Outstanding, ZnodeView
from zabd.znode_tree.permissions import Identities
from zabd.znode_tree.prepare import Preparer
from zabd.znode_tree.tree import Answer, Applied, ZnodeTree
from zabd.znode_tree.txns import Entry, Txn
from zabd.znode_tree.znode import next_version

_Applier = Callable[[ZnodeTree, int, int, int, Txn], Applied]


def _applier(kind: int, make: Callable[[_Applier], _Applier]) -> list[Patch]:
    """Another way to apply one kind of txn, made of the right one; nothing goes a shorter way."""
    right = ZnodeTree._appliers
    return [
        (ZnodeTree, "_appliers", {**right, kind: make(right[kind])}),
        (ZnodeTree, "apply_run", no_short_way),
    ]


def no_short_way(
    _self: ZnodeTree,
    _zxid: int,
    _time_ms: int,
    _entries: Sequence[Entry],
    at: int,
    *_: object,
) -> int:
    """`apply_run` that leaves everything to `apply`."""
    return at


# --- what a txn does -----------------------------------------------------------------------------


def _replayed_twice() -> list[Patch]:
    def apply(self: ZnodeTree, zxid: int, time_ms: int, session_id: int, txn: Txn) -> Applied:
        applied = self._appliers[txn[0]](self, int(zxid), time_ms, session_id, txn)
        self.zxid, self.time_ms = int(zxid), time_ms
        return applied

    return [(ZnodeTree, "apply", apply)]


def _creates_recounted() -> list[Patch]:
    def make(create: _Applier) -> _Applier:
        def recounting(tree: ZnodeTree, zxid: int, time_ms: int, session: int, txn: Txn) -> Applied:
            applied = create(tree, zxid, time_ms, session, txn)
            parent = tree.nodes[_parent_of(txn[1])]
            parent.created = parent.child_count
            return applied

        return recounting

    return _applier(txns.CREATE, make)


def _close_leaves_pzxid() -> list[Patch]:
    def make(close: _Applier) -> _Applier:
        def skipping(tree: ZnodeTree, zxid: int, time_ms: int, session: int, txn: Txn) -> Applied:
            before = {path: tree.nodes[path].pzxid for path in map(_parent_of, txn[1])}
            applied = close(tree, zxid, time_ms, session, txn)
            for path, pzxid in before.items():
                tree.nodes[path].pzxid = pzxid
            return applied

        return skipping

    return _applier(txns.CLOSE_SESSION, make)


def _multi_half_applied() -> list[Patch]:
    def make(_multi: _Applier) -> _Applier:
        def part_by_part(tree: ZnodeTree, zxid: int, time_ms: int, s: int, txn: Txn) -> Applied:
            done = [tree.apply(zxid, time_ms, s, part) for part in txn[2]]  # the first one counts
            changes = tuple(change for applied in done for change in applied.changes)
            return Applied(0, None, changes)

        return part_by_part

    return _applier(txns.MULTI, make)


def _mtime_of_this_machine() -> list[Patch]:
    clock = count(1)

    def make(set_data: _Applier) -> _Applier:
        def dating(tree: ZnodeTree, zxid: int, time_ms: int, session: int, txn: Txn) -> Applied:
            applied = set_data(tree, zxid, time_ms, session, txn)
            tree.nodes[txn[1]].mtime = time_ms + next(clock)
            return applied

        return dating

    return _applier(txns.SET_DATA, make)


def _short_way_leaves_mtime() -> list[Patch]:
    short_way = ZnodeTree.apply_run

    def forgetful(
        self: ZnodeTree,
        zxid: int,
        time_ms: int,
        entries: Sequence[Entry],
        at: int,
        me: int,
        answer: Answer,
        *watched: Mapping[Any, object],
    ) -> int:
        node = self.get(entries[at][3][1]) if entries[at][3][0] == txns.SET_DATA else None
        before = 0 if node is None else node.mtime
        end = short_way(self, zxid, time_ms, entries[: at + 1], at, me, answer, *watched)
        if node is not None and end > at:
            node.mtime = before
        return end

    return [(ZnodeTree, "apply_run", forgetful)]


def _close_in_own_order() -> list[Patch]:
    def make(close: _Applier) -> _Applier:
        def by_own_books(tree: ZnodeTree, zxid: int, time_ms: int, s: int, txn: Txn) -> Applied:
            listed = tuple(tree.ephemerals.get(s, ()))
            same = sorted(listed) == sorted(txn[1])
            return close(tree, zxid, time_ms, s, txns.close_session(listed if same else txn[1]))

        return by_own_books

    return _applier(txns.CLOSE_SESSION, make)


# --- what the leader prepares --------------------------------------------------------------------


def _suffix_from_children() -> list[Patch]:
    def sequential(_self: Preparer, path: str, parent: ZnodeView) -> str:
        return sequential_name(path, parent.child_count)

    return [(Preparer, "_sequential", sequential)]


def _suffix_from_applied() -> list[Patch]:
    def sequential(self: Preparer, path: str, parent: ZnodeView) -> str:
        applied = self._tree.get(_parent_of(path))
        return sequential_name(path, (applied or parent).created)

    return [(Preparer, "_sequential", sequential)]


def _version_from_applied() -> list[Patch]:
    prepare_set_data = Preparer.prepare_set_data

    def hasty(
        self: Preparer,
        zxid: int,
        time_ms: int,
        session: int,
        who: Identities,
        op: tuple[str, bytes | None, int],
    ) -> Txn | None:
        txn = prepare_set_data(self, zxid, time_ms, session, who, op)
        path, data, _ = op
        node = self._tree.get(path)
        if txn is None or node is None:
            return txn
        return txns.set_data(path, data, next_version(node.version))

    return [(Preparer, "prepare_set_data", hasty)]


def _failed_multi_left() -> list[Patch]:
    def roll_back(_self: Outstanding, _mark: int) -> None:
        """What the parts before the culprit have put in stays."""

    return [(Outstanding, "roll_back", roll_back)]


def _counter_goes_on() -> list[Patch]:
    def next_zxid(self: LeaderBroadcast) -> Zxid:
        return Zxid.of(self.epoch, self._m.tail.last.zxid.counter + 1)

    def follows(first: Zxid, after: Zxid) -> bool:
        return first > after

    return [(LeaderBroadcast, "next_zxid", property(next_zxid)), (log, "follows", follows)]


def _parent_of(path: str) -> str:
    return path[: path.rindex("/")] or ROOT


DATA: Final = (
    Mutant(
        name="replayed-twice",
        bug="M34",
        what="apply does once more what the tree holds already",
        history="there is no fuzzy snapshot here that needs it (ADR 1), but a suffix of the log "
        "that begins before the snapshot's label sets counters and versions back",
        reference="ZOOKEEPER-1046, ZOOKEEPER-3249",
        level="core",
        found_by=frozenset({"R2"}),
        patches=_replayed_twice,
    ),
    Mutant(
        name="creates-recounted",
        bug="M34",
        what="applying a create counts the children instead of taking the counter of the txn",
        history="children were created and deleted before; the counter goes back, and the next "
        "sequential create repeats a name",
        reference="ZOOKEEPER-1046",
        level="core",
        found_by=frozenset({"R6"}),
        patches=_creates_recounted,
    ),
    Mutant(
        name="close-leaves-pzxid",
        bug="M35",
        what="the close of a session removes its ephemerals and leaves their parents' pzxid",
        history="a client that was away arms its child watch anew, and is not told that a child is "
        "gone",
        reference="ZOOKEEPER-3125, ZOOKEEPER-3145",
        level="core",
        found_by=frozenset({"R6"}),
        patches=_close_leaves_pzxid,
    ),
    Mutant(
        name="multi-half-applied",
        bug="M36",
        what="the zxid counts as applied after the first part of a multi",
        history="the other parts are skipped as done already, here and in a snapshot of that label",
        reference="ZOOKEEPER-3127",
        level="core",
        found_by=frozenset({"R5"}),
        patches=_multi_half_applied,
    ),
    Mutant(
        name="failed-multi-left",
        bug="M36",
        what="what a multi did before the part that failed stays with what is in flight",
        history="later requests are prepared against znodes and versions that will never be",
        reference="ZOOKEEPER-1624 is a relative of it",
        level="core",
        found_by=frozenset({"R8"}),
        patches=_failed_multi_left,
    ),
    Mutant(
        name="suffix-from-children",
        bug="M50",
        what="a sequential znode is numbered by how many children there are",
        history="s-0 and s-1 are created, s-0 is deleted, the next one is s-1 again",
        reference="classical",
        level="core",
        found_by=frozenset({"R7"}),
        patches=_suffix_from_children,
    ),
    Mutant(
        name="suffix-from-applied",
        bug="M51",
        what="a sequential znode is numbered by what is applied, not by what is in flight",
        history="two creates are in flight at once and get the same number",
        reference="the reason for ZooKeeper's table of outstanding changes",
        level="core",
        found_by=frozenset({"R7"}),
        patches=_suffix_from_applied,
    ),
    Mutant(
        name="version-from-applied",
        bug="M51",
        what="a setData's version is made of what is applied, not of what is in flight",
        history="two are in flight at once, and both of them make version 4 of version 3",
        reference="the reason for ZooKeeper's table of outstanding changes",
        level="core",
        found_by=frozenset({"R8"}),
        patches=_version_from_applied,
    ),
    Mutant(
        name="mtime-of-this-machine",
        bug="M52",
        what="mtime is read from a clock when the txn is applied",
        history="every member has another one; `stat` depends on whom one asks",
        reference="classical",
        level="core",
        found_by=frozenset({"R4"}),
        patches=_mtime_of_this_machine,
    ),
    Mutant(
        name="short-way-leaves-mtime",
        bug="M52",
        what="the short way of a setData, taken by who has no watch on anything, leaves out mtime",
        history="a member with watches and one without, or one that replays its log, differ",
        reference="classical; every optimisation of a hot path",
        level="core",
        found_by=frozenset({"R1"}),
        patches=_short_way_leaves_mtime,
    ),
    Mutant(
        name="close-in-own-order",
        bug="M52",
        what="a closed session's ephemerals go in the order of each member's own books",
        history="that order is another one in a tree that was made of a snapshot, and so is the "
        "order of the events that clients get",
        reference="classical",
        level="core",
        found_by=frozenset({"R4"}),
        patches=_close_in_own_order,
    ),
    Mutant(
        name="counter-goes-on",
        bug="M60",
        what="a new leader's counter goes on where the last leader's ended",
        history="the counter comes to its end however often leaders change, and the first zxid of "
        "an epoch does not say that it is the first",
        reference="ZOOKEEPER-1277 is a relative of it",
        level="zab",
        found_by=frozenset({"R9"}),
        patches=_counter_goes_on,
    ),
)
