"""The checks of the tree (R2 to R9) trip on what they are there for, and accept what is legal."""

import pytest
from tests.cluster_sim.test_replica_checks import SESSION, World, create, trips

from zabd.cluster_sim.restored_trees import difference, reborn
from zabd.cluster_sim.zab_checks import Incarnation, ZabChecker
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.ops import OpCode
from zabd.model.zxid import Zxid
from zabd.zab.config import RecoveredState
from zabd.zab.effects import Append
from zabd.zab.log import GENESIS, Batch, LogPosition, frame_record
from zabd.znode_tree import txns
from zabd.znode_tree.tree import ZnodeTree


@pytest.fixture
def world() -> World:
    """An open session, /a, the session's ephemeral /e and the parent /s."""
    world = World()
    world.deliver(txns.create_session(4_000))
    world.deliver(create("/a"), create("/e", owner=SESSION, count=2), create("/s", count=3))
    return world


def multi(*parts: txns.Txn) -> txns.Txn:
    """All of them, as creates and so on are asked for."""
    opcodes = {
        txns.CREATE: OpCode.CREATE,
        txns.DELETE: OpCode.DELETE,
        txns.SET_DATA: OpCode.SET_DATA,
        txns.CHECK: OpCode.CHECK,
    }
    return txns.multi([int(opcodes[part[0]]) for part in parts], parts)


# --- R2 -------------------------------------------------------------------------------------------


def test_a_tree_of_a_snapshot_and_the_log_is_the_one_that_was_there(world: World) -> None:
    """R2; it may lag behind, and what it holds already may be replayed once more."""
    restored = reborn(world.checker.tree)
    world.deliver(txns.set_data("/a", b"1", 1))
    world.deliver(txns.delete("/a"))

    world.checker.restored("a member", restored, 0)

    other = reborn(world.checker.tree)
    other.time_ms += 1
    with trips("R2"):
        world.checker.restored("a member", other, len(world.checker.batches))


def test_a_field_that_no_digest_knows_of_is_compared_too(world: World) -> None:
    """R2: a session that lists what it does not own would be found by its close only."""
    restored = reborn(world.checker.tree)
    assert difference(restored, world.checker.tree) == ""
    restored.ephemerals[SESSION]["/a"] = None
    assert restored.digest == world.checker.tree.digest
    with trips("R2"):
        world.checker.restored("a member", restored, len(world.checker.batches))


def test_a_restored_tree_has_another_digest(world: World) -> None:
    """R2, at the label itself."""
    with trips("R2"):
        world.checker.restored_to("a member", ZnodeTree(planted=False))


# --- R3 -------------------------------------------------------------------------------------------


def test_only_a_snapshot_that_was_written_to_its_end_is_built_upon(world: World) -> None:
    """R3; one that was not published before a crash may have been complete all the same."""
    position = world.end
    with trips("R3"):
        world.checker.uses_snapshot(1, position)
    world.checker.has_whole(1, position)
    world.checker.uses_snapshot(1, position)
    with trips("R3"):
        world.checker.uses_snapshot(2, position)


def test_the_log_goes_on_where_the_snapshot_stands(world: World) -> None:
    """R3; from the very beginning no snapshot is needed."""
    first, second = world.checker.batches
    world.checker.goes_on(1, GENESIS, first)
    world.checker.goes_on(1, first.position, second)
    with trips("R3"):
        world.checker.goes_on(1, GENESIS, second)


def test_the_log_is_kept_for_every_snapshot_that_counts(world: World) -> None:
    """R3; a fourth snapshot that is about to go may be behind the log's beginning."""
    zxids = [Zxid.of(1, counter) for counter in (5, 10, 15, 20)]
    world.checker.purged(1, Zxid.of(1, 10), zxids, 3)
    with trips("R3"):
        world.checker.purged(1, Zxid.of(1, 11), zxids, 3)


# --- R4 -------------------------------------------------------------------------------------------


def test_what_a_txn_does_is_the_same_in_a_tree_of_other_memory(world: World) -> None:
    """R4; the twin has its books in another order, which nothing may depend on."""
    children = [create(f"/s/{n}", owner=SESSION, count=n + 1) for n in range(8)]
    for child in children:
        world.deliver(child)
    world.checker._twin = reborn(world.checker.tree)
    closed = sorted(child[1] for child in children)
    world.deliver(txns.close_session(("/e", *closed)))

    world.checker._twin.nodes["/a"].mtime += 1
    world.checker._twin._changed["/a"] = world.checker._twin.nodes["/a"]
    with trips("R4"):
        world.deliver(txns.set_data("/s", b"1", 1), session=SESSION + 1)


def test_watches_hear_the_same_in_the_same_order(world: World) -> None:
    """R4: changes are part of what a txn does."""
    world.checker._twin.nodes["/s"].acl = ()
    with trips("R4"):
        world.deliver(create("/s/1"))


# --- R5 -------------------------------------------------------------------------------------------


def test_a_multi_is_done_as_a_whole(world: World) -> None:
    """R5; a znode may come and go within one, and be changed twice."""
    world.deliver(
        multi(
            create("/m", count=4),
            txns.set_data("/m", b"1", 1),
            txns.set_data("/m", b"2", 2),
            create("/n", count=5),
            txns.delete("/n"),
            txns.check("/a"),
        )
    )

    shadow, tree, zxid = world.checker._shadow, world.checker.tree, Zxid.of(1, 99)
    half = multi(txns.set_data("/a", b"1", 1), txns.set_data("/s", b"1", 1))
    shadow.take(zxid, half)
    applied = reborn(tree).apply(zxid, 5, SESSION, half)
    tree.apply(zxid, 5, SESSION, half[2][0])
    with trips("R5"):
        shadow.compare(zxid, half, tree, applied)


def test_a_multi_that_was_refused_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5; that it takes a zxid is no change."""
    world.deliver(txns.multi_failed([0, -101]))
    right = ZnodeTree._appliers

    def leaves_something(tree: ZnodeTree, *facts: object) -> object:
        tree.sessions[5] = 1
        tree._add_to_sum(7)
        return right[txns.MULTI_FAILED](tree, *facts)  # type: ignore[arg-type]

    wrong = {**right, txns.MULTI_FAILED: leaves_something}
    monkeypatch.setattr(ZnodeTree, "_appliers", wrong)
    with trips("R5"):
        world.deliver(txns.multi_failed([0, -101]))


# --- R6 -------------------------------------------------------------------------------------------


def test_the_counters_of_a_parent_follow_its_children(world: World) -> None:
    """R6; deleting children changes pzxid and leaves the count of creates."""
    world.deliver(create("/s/1"))
    world.deliver(txns.delete("/s/1"))
    world.checker._shadow.compare_all("the tree", world.checker.tree)

    world.checker.tree.nodes["/s"].created -= 1
    with trips("R6"):
        world.checker._shadow.compare_all("the tree", world.checker.tree)


# --- R7 -------------------------------------------------------------------------------------------


def test_a_sequential_number_is_the_parents_counter_and_never_comes_again(world: World) -> None:
    """R7; other creates may lie between two, and a parent that is made anew counts anew."""
    world.deliver(create("/s/n-0000000000"), create("/s/other", count=2))
    world.deliver(create("/s/n-0000000002", count=3))
    world.deliver(txns.delete("/s/n-0000000002"))
    again = create("/s/n-0000000002", count=4)
    with trips("R7"):
        world.deliver(again)

    other = World()
    other.deliver(create("/s"), create("/s/n-0000000000"))
    other.deliver(txns.delete("/s/n-0000000000"), txns.delete("/s"))
    other.deliver(create("/s", count=2), create("/s/n-0000000000"))


def test_a_znode_may_be_named_after_a_sequential_one_where_users_give_the_names() -> None:
    """R7 is about what the leader numbers; LockingQueue names a claim after its entry."""
    named_after = create("/s/n-0000000007", count=1)
    world = World(names_tell=False)
    world.deliver(create("/s"), named_after)

    strict = World()
    strict.deliver(create("/s"))
    with trips("R7"):
        strict.deliver(named_after)


# --- R8 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        txns.set_data("/a", b"1", 0),
        txns.set_data("/a", b"1", 2),
        txns.set_data("/b", b"1", 1),
        txns.set_acl("/a", OPEN_ACL_UNSAFE, 2),
        txns.delete("/b"),
        txns.delete("/"),
        txns.check("/b"),
        create("/a", count=4),
        create("/b/c"),
        create("/b", count=3),
        create("/b", count=5),
        multi(create("/b", count=4), txns.set_data("/b", b"1", 2)),
        txns.container_delete("/b"),
    ],
    ids=str,
)
def test_a_committed_txn_follows_from_what_was_committed_before(
    world: World, wrong: txns.Txn
) -> None:
    """R8: whoever made it looked at something else."""
    with trips("R8"):
        world.deliver(wrong)


def test_versions_wrap_and_leave_out_the_one_that_means_any(world: World) -> None:
    """R8, and a legal near miss: from -2 to 0, from the greatest to the least."""
    shadow = world.checker._shadow._nodes["/a"]
    shadow.version = -2
    world.deliver(txns.set_data("/a", b"1", 0))
    shadow.version = (1 << 31) - 1
    world.deliver(txns.set_data("/a", b"1", -(1 << 31)))
    shadow.version = -2
    with trips("R8"):
        world.deliver(txns.set_data("/a", b"1", -1))


# --- R9 -------------------------------------------------------------------------------------------


def proposal(after: LogPosition, first: Zxid, count: int = 1) -> Append:
    """A record of so many txns from `first` on."""
    record = frame_record(first, count, b"x", after.chain)
    return Append(1, record, Zxid(0))


def test_a_leader_counts_from_one_within_its_epoch() -> None:
    """R9; after 1:5 a leader of epoch 7 begins at 7:1."""
    before = Batch(Zxid.of(1, 1), 5, frame_record(Zxid.of(1, 1), 5, b"x", GENESIS.chain))
    state = RecoveredState(accepted_epoch=7, tail=(before,))
    end = before.position
    for first in (Zxid.of(7, 0) + 2, Zxid.of(1, 6), Zxid.of(8, 1)):
        checker, leader = ZabChecker((1,)), Incarnation(1, 1, state)
        leader.leads = 7
        with trips("R9"):
            checker.appending(leader, proposal(end, Zxid(first)), 7)
    checker, leader = ZabChecker((1,)), Incarnation(1, 1, state)
    leader.leads = 7
    checker.appending(leader, proposal(end, Zxid.of(7, 1), 3), 7)
    checker.appending(leader, proposal(leader.history.last, Zxid.of(7, 4)), 7)
