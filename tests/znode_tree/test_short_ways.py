"""The short ways of the hot path: they do what the long ones do, or leave it to them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.znode_tree.histories import admissible, histories
from tests.znode_tree.test_properties import History, stats_of
from tests.znode_tree.world import ALICE, LOCAL, World

from zabd.model.acl import OPEN_ACL_UNSAFE, Acl, Identity
from zabd.model.ops import Create, Create2, Op, SetData
from zabd.znode_tree import (
    Preparer,
    Txn,
    WatchKind,
    WatchTable,
    Znode,
    ZnodeTree,
    stat_of,
    txns,
)
from zabd.znode_tree.state import CHANGED_MAX
from zabd.znode_tree.tree import RUN_MAX

ME = 3


def short_way(preparer: Preparer, zxid: int, now_ms: int, session_id: int, op: Op) -> Txn:
    """As the leader prepares: the short way where it goes, else the long one."""
    txn = None
    if isinstance(op, SetData):
        txn = preparer.prepare_set_data(zxid, now_ms, session_id, LOCAL, op)
    elif isinstance(op, Create | Create2) and op.acl == OPEN_ACL_UNSAFE:
        change = (op.path, op.data, op.flags)
        txn = preparer.prepare_create(zxid, now_ms, session_id, LOCAL, change)
    return txn or preparer.prepare(zxid, now_ms, session_id, LOCAL, op)


@given(histories)
def test_both_ways_make_the_same_of_any_history(history: History) -> None:
    """Txns, refusals, what stays outstanding, Stats and digests: all equal, in flight and after."""
    world = World()
    twin_tree = ZnodeTree()
    twin = Preparer(twin_tree)
    for zxid, time_ms, session_id, txn in world.log:  # the sessions that a world begins with
        twin_tree.apply(zxid, time_ms, session_id, txn)
    for session_id, op in admissible(history):
        txn = world.prepare(op, session_id)
        zxid, now_ms = world.zxid, world.now_ms
        assert short_way(twin, zxid, now_ms, session_id, op) == txn
        if zxid % 5 == 0:
            be_a_batch(world)
            apply_shortly(twin_tree, world.waiting)
            world.apply_all()
            twin.applied(zxid)
            assert stats_of(twin_tree) == stats_of(world.tree)
            assert twin_tree.data_bytes == world.tree.data_bytes
    be_a_batch(world)
    apply_shortly(twin_tree, world.waiting)
    world.apply_all()
    assert twin_tree.digest == world.tree.digest
    assert twin_tree.ephemerals == world.tree.ephemerals
    assert twin_tree.perishable == world.tree.perishable


def be_a_batch(world: World) -> None:
    """What waits has one time from now on, as a batch has."""
    world.waiting = [(zxid, world.now_ms, session, txn) for zxid, _, session, txn in world.waiting]


def apply_shortly(tree: ZnodeTree, waiting: list[tuple[int, int, int, Txn]]) -> list[int]:
    """As a batch is delivered while nobody watches; the zxids of what went the short way."""
    answered: list[int] = []

    def answer(request_id: int, zxid: int, node: Znode, path: str) -> None:
        assert zxid == tree.zxid == request_id
        assert tree.nodes[path or waiting[zxid - waiting[0][0]][3][1]] is node
        answered.append(zxid)

    at = 0
    entries = [(ME, zxid, session_id, txn) for zxid, _, session_id, txn in waiting]
    while at < len(waiting):
        zxid, time_ms, _, _ = waiting[at]
        at = tree.apply_run(zxid, time_ms, entries, at, ME, answer, {})
        if at < len(waiting):
            tree.apply(*waiting[at])
            at += 1
    return answered


def test_an_unusual_set_data_is_left_to_the_long_way() -> None:
    """A missing znode, a wrong version, a closed session: `prepare` knows what to answer."""
    world = World()
    world.create("/a")
    for session_id, op in (
        (ALICE, SetData("/missing", b"", -1)),
        (ALICE, SetData("/a", b"", 7)),
        (ALICE + 5, SetData("/a", b"", -1)),
    ):
        assert world.preparer.prepare_set_data(1 << 40, 1, session_id, LOCAL, op) is None


@pytest.mark.parametrize(("name", "granted"), [("me:hash", True), ("you:hash", False)])
def test_the_short_way_asks_for_rights(name: str, granted: bool) -> None:  # noqa: FBT001
    """Whoever may not write is refused, by the long way."""
    world = World()
    world.create("/mine", acl=(Acl(2, "digest", "me:hash"),))
    identities = (Identity("digest", name),)

    op = SetData("/mine", b"", -1)
    txn = world.preparer.prepare_set_data(world.zxid + 1, 1, ALICE, identities, op)

    assert (txn is not None) is granted


def test_what_was_applied_already_is_left_to_the_long_way() -> None:
    """A replay must change nothing, and only `apply` knows how to say so."""
    world = World()
    world.create("/a")
    world.prepare(SetData("/a", b"1", -1))
    [(zxid, time_ms, session_id, txn)] = world.waiting
    world.apply_all()
    entries = [(ME, zxid, session_id, txn)]
    assert world.tree.apply_run(zxid, time_ms, entries, 0, ME, pytest.fail, {}) == 0


def test_a_run_ends_where_somebody_begins_to_watch() -> None:
    """A read that waited for a write may set a watch, and the very next write must fire it."""
    world = World()
    world.create("/a")
    watched: dict[str, object] = {}
    for data in (b"1", b"2", b"3"):
        world.prepare(SetData("/a", data, -1))
    entries = [(ME, zxid, session_id, txn) for zxid, _, session_id, txn in world.waiting]

    def watch(request_id: int, _zxid: int, node: Znode, _path: str) -> None:
        if request_id == entries[1][1]:
            assert node.data == b"2"
            watched["/a"] = ME

    at = world.tree.apply_run(entries[0][1], 1, entries, 0, ME, watch, watched)

    assert at == 2
    assert world.tree.nodes["/a"].data == b"2"


def test_a_parent_that_was_read_within_a_run_is_read_anew_after_its_next_child() -> None:
    """What a reader keeps of a znode's Stat is true until the znode changes, in a run as well."""
    world = World()
    world.create("/a")
    for name in ("/a/1", "/a/2", "/a/3"):
        world.prepare(Create(name, b"", OPEN_ACL_UNSAFE, 0))
    entries = [(ME, zxid, session_id, txn) for zxid, _, session_id, txn in world.waiting]
    kept = world.tree.packed_stats
    before_each: list[bool] = []

    def read_the_parent(_request_id: int, _zxid: int, _node: Znode, _path: str) -> None:
        before_each.append("/a" in kept)
        kept["/a"] = b"packed"

    world.tree.apply_run(entries[0][1], 1, entries, 0, ME, read_the_parent, {})

    assert before_each == [False, False, False]


def test_a_run_lets_no_more_wait_for_the_digest_than_its_limit() -> None:
    """A settling holds the loop up, so what it settles is bounded, however long a batch is."""
    world = World()
    world.create("/a")
    for number in range(3 * RUN_MAX):
        world.prepare(Create(f"/a/{number}", b"", OPEN_ACL_UNSAFE, 0))
    at, entries = 0, [(ME, zxid, session, txn) for zxid, _, session, txn in world.waiting]
    ends = []
    while at < len(entries):
        at = world.tree.apply_run(entries[at][1], 1, entries, at, 0, pytest.fail, {})
        ends.append(at)
        assert len(world.tree._changed) <= CHANGED_MAX
    assert ends == [RUN_MAX, 2 * RUN_MAX, 3 * RUN_MAX]


PLACES = ["/", "/a", "/a/x", "/b", "/s", "/s0000000000"]


@given(
    histories,
    st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(list(WatchKind))), max_size=4),
)
def test_who_watches_hears_the_same_whichever_way_a_txn_goes(
    history: History, watches: list[tuple[str, WatchKind]]
) -> None:
    """What goes the short way is what nobody would have heard of."""
    world = World()
    tree, told, tables = ZnodeTree(), [], (WatchTable(), WatchTable())
    for entry in world.log:
        tree.apply(*entry)
    for session_id, op in admissible(history):
        world.prepare(op, session_id)
    be_a_batch(world)
    for table, path, kind in ((table, *watch) for table in tables for watch in watches):
        table.add(kind, path, "me")
    for zxid, time_ms, session_id, txn in world.waiting:
        told += [
            tables[0].trigger(each) for each in tree.apply(zxid, time_ms, session_id, txn).changes
        ]

    heard = []
    entries = [(ME, zxid, session, txn) for zxid, _, session, txn in world.waiting]
    at = 0
    while at < len(entries):
        zxid, time_ms, *_ = world.waiting[at]
        table = tables[1]
        at = world.tree.apply_run(
            zxid, time_ms, entries, at, 0, pytest.fail, table.watched, table.watched_below
        )
        if at < len(entries):
            changes = world.tree.apply(*world.waiting[at]).changes
            heard += [table.trigger(each) for each in changes]
            at += 1

    assert [each for each in heard if each] == [each for each in told if each]
    assert world.tree.digest == tree.digest


def test_txns_of_what_nobody_watches_go_the_short_way_beside_watches_of_others() -> None:
    """A write costs what it costs, however many watches there are elsewhere."""
    world = World()
    for path in ("/watched", "/parent", "/a"):
        world.create(path)
    watched = {"/watched": {}, "/parent": {}}
    ops = [
        SetData("/a", b"1", -1),
        Create("/a/b", b"", OPEN_ACL_UNSAFE, 0),
        SetData("/watched", b"1", -1),
        Create("/parent/c", b"", OPEN_ACL_UNSAFE, 0),
        SetData("/parent/c", b"2", -1),
    ]
    for op in ops:
        world.prepare(op)
    entries = [(ME, zxid, session, txn) for zxid, _, session, txn in world.waiting]
    zxid, time_ms, *_ = world.waiting[0]

    ends = []
    at = 0
    while at < len(ops):
        end = world.tree.apply_run(zxid + at, time_ms, entries, at, 0, pytest.fail, watched)
        ends.append(end)
        if end == at:
            world.tree.apply(zxid + at, time_ms, ALICE, entries[at][3])
            end += 1
        at = end

    assert ends == [2, 2, 3, 5]
    assert world.tree.apply_run(zxid + 9, 1, entries, 0, 0, pytest.fail, {}, {1: 1}) == 0


def test_an_unusual_create_is_left_to_the_long_way() -> None:
    """What is refused, has rules of its own, or is not of a plain kind: `prepare` knows."""
    world = World()
    world.create("/a")
    world.create("/e", mode=1)
    world.create("/mine", acl=(Acl(31, "digest", "me:hash"),))
    for session_id, path, flags in (
        (ALICE, "/a", 0),
        (ALICE, "/missing/a", 0),
        (ALICE, "/e/a", 0),
        (ALICE, "/mine/a", 0),
        (ALICE, "/a/", 0),
        (ALICE, "/a/..", 0),
        (ALICE, "/a/b\0", 0),
        (ALICE, "a", 0),
        (ALICE, "", 0),
        (ALICE, "/zookeeper/quota/x", 0),
        (ALICE, "/c", 4),
        (ALICE, "/c", -1),
        (ALICE + 5, "/c", 0),
    ):
        change = (path, b"", flags)
        assert world.preparer.prepare_create(1 << 40, 1, session_id, LOCAL, change) is None
    assert world.preparer.prepare_create(1 << 40, 1, ALICE, LOCAL, ("/a/s", b"", 3)) == (
        txns.create("/a/s0000000000", b"", OPEN_ACL_UNSAFE, ALICE, 1)
    )


@given(histories)
def test_what_readers_kept_about_a_znode_goes_with_its_next_change(history: History) -> None:
    """A Stat that was packed for a read must never answer a later one wrongly."""
    world = World()
    tree = world.tree
    for session_id, op in admissible(history):
        tree.packed_stats.update(
            (path, repr(stat_of(node)).encode()) for path, node in tree.nodes.items()
        )
        world.prepare(op, session_id)
        apply_shortly(tree, world.waiting)
        world.apply_all()
        for path, packed in tree.packed_stats.items():
            assert packed == repr(stat_of(tree.nodes[path])).encode()
