"""Whatever the history: the tree is what a much simpler one says, and its books are right."""

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.znode_tree.histories import STEP_MS, admissible, histories
from tests.znode_tree.spec import Spec
from tests.znode_tree.world import World, check_invariants, contents

from zabd.model.ops import Create2, Multi, Op
from zabd.model.results import Create2Result, CreateResult, ErrorResult, MultiResult
from zabd.znode_tree import Applied, TreeLoader, ZnodeTree, stat_of

History = list[tuple[int, Op]]


def outcome(op: Op, applied: Applied) -> object:
    """What was answered, in the words of the spec."""
    if not isinstance(op, Multi):
        return applied.error or (applied.value if isinstance(applied.value, str) else None)
    assert isinstance(applied.value, MultiResult)
    return [
        part.code
        if isinstance(part, ErrorResult)
        else part.path
        if isinstance(part, CreateResult | Create2Result)
        else None
        for part in applied.value.results
    ]


def stats_of(tree: ZnodeTree) -> dict[str, object]:
    """Data and Stat of every znode."""
    return {path: (node.data, stat_of(node)) for path, node in tree.nodes.items()}


@given(histories)
def test_the_tree_does_what_the_plain_one_does(history: History) -> None:
    """Every answer, every Stat, every session, after every op."""
    world, spec = World(), Spec()
    spec.sessions = dict(world.tree.sessions)
    for session_id, op in admissible(history):
        world.now_ms += STEP_MS
        applied = world.do(op, session_id)
        expected = spec.do(world.zxid, world.now_ms, session_id, op)

        assert outcome(op, applied) == expected
        assert stats_of(world.tree) == spec.stats()
        assert world.tree.sessions == spec.sessions
        assert {p: n.acl for p, n in world.tree.nodes.items() if spec.nodes[p]["acl"]} == {
            path: node["acl"] for path, node in spec.nodes.items() if node["acl"]
        }


@given(histories, st.randoms(use_true_random=False))
def test_the_books_are_right_after_any_history(history: History, rng: random.Random) -> None:
    """Digest, owners, counters: kept up change by change, they equal what a full count says."""
    world = World()
    for session_id, op in admissible(history):
        world.do(op, session_id)
        # The digest is computed lazily: when it is read must not matter.
        if rng.random() < 0.3:
            check_invariants(world.tree)
    check_invariants(world.tree)
    assert sum(world.tree._acls._counts.values()) == sum(
        1 for node in world.tree.nodes.values() if len(node.acl) > 1 or node.acl[0].perms == 1
    )


@given(histories, st.randoms(use_true_random=False))
def test_a_pipeline_gives_what_one_by_one_gives(history: History, rng: random.Random) -> None:
    """R8: the same txns, however far apply is behind; and nothing is left in the overlay."""
    one_by_one, pipelined = World(), World()
    for session_id, op in admissible(history):
        one_by_one.do(op, session_id)
        pipelined.prepare(op, session_id)
        for _ in range(rng.randrange(3)):
            if pipelined.waiting:
                pipelined.apply_next()
    pipelined.apply_all()

    assert pipelined.log == one_by_one.log
    assert contents(pipelined.tree) == contents(one_by_one.tree)
    outstanding = pipelined.preparer._outstanding
    assert not outstanding._by_path
    assert not outstanding._by_owner
    assert not outstanding._steps


def sequential_paths(op: Op, applied: Applied) -> list[str]:
    """The paths that the op, or an op of the multi, has completed with a number."""
    if not isinstance(op, Multi):
        asked = op.flags if isinstance(op, Create2) else 0
        return [str(applied.value)] if asked and not applied.error else []
    assert isinstance(applied.value, MultiResult)
    return [
        result.path
        for part, result in zip(op.ops, applied.value.results, strict=True)
        if isinstance(part, Create2) and isinstance(result, Create2Result)
    ]


@given(histories)
def test_no_two_creates_get_the_same_sequence_number(history: History) -> None:
    """R7: while the parent lives they strictly increase, whatever is deleted in between."""
    world = World()
    last: dict[tuple[str, int], int] = {}
    for session_id, op in admissible(history):
        for path in sequential_paths(op, world.do(op, session_id)):
            parent_path = path.rpartition("/")[0] or "/"
            parent = world.tree.get(parent_path)
            if parent is not None:
                life = (parent_path, parent.czxid)
                assert int(path[-10:]) > last.get(life, -1)
                last[life] = int(path[-10:])


@given(histories, histories, st.randoms(use_true_random=False))
def test_a_snapshot_is_its_label_and_replay_gives_the_rest(
    before: History, during: History, rng: random.Random
) -> None:
    """P1, R2: exact at the label; with the log, from there or from earlier, the live tree."""
    history = admissible(before + during)
    world = World()
    for session_id, op in history[: len(history) // 2]:
        world.do(op, session_id)
    at_label = contents(world.tree)
    walk = world.tree.begin_snapshot()
    chunks = []
    for session_id, op in history[len(history) // 2 :]:
        world.do(op, session_id)
        if rng.random() < 0.5:
            chunks.append(walk.next_slice(rng.randrange(1, 4)) or b"")
    while (chunk := walk.next_slice(rng.randrange(1, 4))) is not None:
        chunks.append(chunk)

    loader = TreeLoader()
    for chunk in chunks:
        loader.feed(chunk)
    tree = loader.finish()

    assert contents(tree) == at_label
    check_invariants(tree)
    first_needed = sum(entry[0] <= walk.label_zxid for entry in world.log)
    for entry in world.log[rng.randint(0, first_needed) :]:
        tree.apply(*entry)
    assert contents(tree) == contents(world.tree)
