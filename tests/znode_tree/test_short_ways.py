"""The short ways of the hot path: they do what the long ones do, or leave it to them."""

import pytest
from hypothesis import given
from tests.znode_tree.histories import admissible, histories
from tests.znode_tree.test_properties import History, stats_of
from tests.znode_tree.world import ALICE, LOCAL, World

from zabd.model.acl import Acl, Identity
from zabd.model.ops import SetData
from zabd.znode_tree import Preparer, Txn, ZnodeTree, stat_of


def short_way(preparer: Preparer, zxid: int, now_ms: int, session_id: int, op: SetData) -> Txn:
    """As the leader prepares a setData: the short way where it goes, else the long one."""
    txn = preparer.prepare_set_data(zxid, now_ms, session_id, LOCAL, op)
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
        if isinstance(op, SetData):
            assert short_way(twin, zxid, now_ms, session_id, op) == txn
        else:
            assert twin.prepare(zxid, now_ms, session_id, LOCAL, op) == txn
        if zxid % 3 == 0:
            for entry in world.waiting:
                apply_shortly(twin_tree, *entry)
            world.apply_all()
            twin.applied(zxid)
            assert stats_of(twin_tree) == stats_of(world.tree)
            assert twin_tree.data_bytes == world.tree.data_bytes
    for entry in world.waiting:
        apply_shortly(twin_tree, *entry)
    world.apply_all()
    assert twin_tree.digest == world.tree.digest


def apply_shortly(tree: ZnodeTree, zxid: int, time_ms: int, session_id: int, txn: Txn) -> None:
    """As a batch is delivered while nobody watches."""
    if txn[0] != 3 or tree.apply_set_data(zxid, time_ms, txn) is None:
        tree.apply(zxid, time_ms, session_id, txn)


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
    txn = world.prepare(SetData("/a", b"1", -1))
    assert world.tree.apply_set_data(world.tree.zxid, 1, txn) is None


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
        for entry in world.waiting:
            apply_shortly(tree, *entry)
        world.apply_all()
        for path, packed in tree.packed_stats.items():
            assert packed == repr(stat_of(tree.nodes[path])).encode()
