"""A snapshot is one moment, however long it takes and whatever happens meanwhile."""

import random
from collections.abc import Iterator
from typing import NoReturn

import msgpack
import pytest
from tests.znode_tree.world import ALICE, World, check_invariants, contents

from zabd.model.acl import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Acl
from zabd.model.errors import DamagedError, LocalProtocolError
from zabd.model.ops import CloseSession, CreateContainer, CreateMode, Delete, SetAcl, SetData
from zabd.znode_tree import SnapshotWalk, TreeLoader, Znode, ZnodeTree, loader, snapshot, txns


def rest_of(walk: SnapshotWalk, nodes_max: int = 100) -> Iterator[bytes]:
    """What the walk has still to give."""
    while (chunk := walk.next_slice(nodes_max)) is not None:
        yield chunk


def load(chunks: bytes, size: int = 1 << 16) -> ZnodeTree:
    """The tree of a whole snapshot, fed in chunks of `size` bytes."""
    reader = TreeLoader()
    for start in range(0, len(chunks), size):
        reader.feed(chunks[start : start + size])
    return reader.finish()


@pytest.fixture
def world() -> World:
    """Every kind of znode and several ACLs."""
    world = World()
    world.tree.apply(world.zxid + 1, 1, 0, txns.found(b"secret", b"config"))
    world.zxid += 1
    acls = [OPEN_ACL_UNSAFE, READ_ACL_UNSAFE + OPEN_ACL_UNSAFE, (Acl(31, "digest", "a:\ud83d"),)]
    for number in range(30):
        world.create(f"/n{number}", b"x" * number or None, acl=acls[number % 2])
        world.create(f"/n{number}/c", acl=acls[number % 2])
    world.do(CreateContainer("/box", b"", acls[1], CreateMode.CONTAINER))
    world.create("/e", mode=CreateMode.EPHEMERAL)
    world.do(SetData("/n3", b"changed"))
    world.do(Delete("/n4/c"))
    # An id with a lone surrogate, as a Java client may send one.
    world.tree.apply(world.zxid + 1, 1, 0, txns.create("/s", b"", acls[2], 0, 33))
    world.zxid += 1
    return world


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_what_is_loaded_is_what_was_there(world: World, size: int) -> None:
    """Znodes, sessions, secret, counters, position: all of it, wherever chunks are cut."""
    tree = load(b"".join(rest_of(world.tree.begin_snapshot())), size)

    assert contents(tree) == contents(world.tree)
    check_invariants(tree)


def test_a_fresh_tree_can_be_saved() -> None:
    """The first snapshot may come before the first txn."""
    assert contents(load(b"".join(rest_of(ZnodeTree().begin_snapshot())))) == contents(ZnodeTree())


def test_writes_go_on_and_do_not_show(world: World) -> None:
    """P1: changed, deleted, created, made anew, closed; before and after the walk got there."""
    at_label = contents(world.tree)
    walk = world.tree.begin_snapshot()
    chunks = [walk.next_slice(3), walk.next_slice(3), walk.next_slice(10)]

    world.do(SetData("/n29", b"later"))
    world.do(SetData("/n29", b"again"))
    world.do(SetAcl("/", READ_ACL_UNSAFE))
    world.do(Delete("/n1/c"))
    world.do(Delete("/n1"))
    chunks.append(walk.next_slice(2))
    world.do(Delete("/n28/c"))
    world.do(Delete("/n28"))
    world.preparer.reset()
    world.do(CloseSession())
    chunks += rest_of(walk)

    tree = load(b"".join(chunk for chunk in chunks if chunk))
    assert tree.zxid == walk.label_zxid
    assert contents(tree) == at_label
    assert ALICE in tree.sessions


def test_replaying_what_came_later_gives_the_live_tree(world: World) -> None:
    """R2: the snapshot and the log from its label on are the whole state."""
    walk = world.tree.begin_snapshot()
    world.do(SetData("/n29", b"later"))
    chunks = b"".join(rest_of(walk, 1))
    world.do(CloseSession())

    tree = load(chunks)
    for entry in world.log:
        tree.apply(*entry)

    assert contents(tree) == contents(world.tree)


class _Untouched(dict[str, Znode]):
    """Znodes that nobody may go through or copy as a whole."""

    def _refuse(self, *_: object) -> NoReturn:
        raise AssertionError("a large tree would stop the member for this long")

    __iter__ = keys = values = items = copy = _refuse  # type: ignore[assignment]


def test_a_snapshot_begins_and_goes_on_without_a_look_at_all_znodes(world: World) -> None:
    """A copy of a million znodes took 60 ms, in which nobody was served."""
    at_label = contents(world.tree)
    znodes = world.tree.nodes
    world.tree.nodes = _Untouched(znodes)
    chunks = b"".join(rest_of(world.tree.begin_snapshot(), 3))
    world.tree.nodes = znodes

    assert contents(load(chunks)) == at_label


def test_znodes_that_came_later_are_looked_at_in_slices_as_well() -> None:
    """However many a parent has got since: each counts for its slice, though none is taken."""
    world = World()
    walk = world.tree.begin_snapshot()
    for number in range(100):
        world.create(f"/n{number}")

    chunks = list(rest_of(walk, 10))

    assert len(chunks) > 100 // 10
    assert set(load(b"".join(chunks)).nodes) == set(ZnodeTree().nodes)


def test_a_parent_that_is_gone_before_the_walk_gets_there_is_in_it_with_its_children() -> None:
    """P1, also where others of the same names have taken their places since."""
    world = World()
    for path in ("/p", "/p/q", "/p/q/r", "/other"):
        world.create(path, b"then")
    at_label = contents(world.tree)
    walk = world.tree.begin_snapshot()
    chunks = [walk.next_slice(1) or b"" for _ in range(3)]
    for path in ("/p/q/r", "/p/q", "/p"):
        world.do(Delete(path))
    for path in ("/p", "/p/q", "/p/q/new"):
        world.create(path, b"now")
    world.do(SetData("/p/q", b"again"))

    chunks += rest_of(walk, 1)

    assert contents(load(b"".join(chunks))) == at_label


def test_slices_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By znodes, so that a slice fits in its time, and by bytes, so that data does not pile up."""
    world = World()
    for number in range(20):
        world.create(f"/n{number:02}", b"x" * 1000)
    monkeypatch.setattr(snapshot, "SLICE_BYTES_MAX", 3000)

    slices = list(rest_of(world.tree.begin_snapshot(), 5))[1:-1]

    assert all(len(msgpack.unpackb(chunk)) <= 5 for chunk in slices)
    assert max(map(len, slices)) < 4000
    assert sum(len(msgpack.unpackb(chunk)) for chunk in slices) == 24


def test_one_snapshot_at_a_time(world: World) -> None:
    """The second could not know what the first has taken; after the end, or without it, another."""
    walk = world.tree.begin_snapshot()
    with pytest.raises(LocalProtocolError):
        world.tree.begin_snapshot()

    walk.abandon()
    assert walk.next_slice(1) is None
    list(rest_of(world.tree.begin_snapshot()))
    walk.abandon()
    world.tree.begin_snapshot()


def refuse(chunks: bytes) -> None:
    """Make sure that this is not taken for a snapshot."""
    with pytest.raises(DamagedError):
        load(chunks)


def test_every_cut_is_noticed(world: World) -> None:
    """M58: a snapshot that lacks its end is not a smaller tree."""
    chunks = b"".join(rest_of(world.tree.begin_snapshot()))
    for length in [*range(200), *range(200, len(chunks), 97), len(chunks) - 1]:
        refuse(chunks[:length])
    refuse(chunks + chunks[-1:])


def test_every_flipped_bit_is_noticed(world: World) -> None:
    """S17: whatever passes msgpack fails at the digest. A sample of positions."""
    chunks = b"".join(rest_of(world.tree.begin_snapshot()))
    rng = random.Random(1)
    for _ in range(2_000):
        damaged = bytearray(chunks)
        place = rng.randrange(len(chunks))
        damaged[place] ^= 1 << rng.randrange(8)
        try:
            tree = load(bytes(damaged))
        except DamagedError:
            continue
        # msgpack can say the same in more than one way.
        assert contents(tree) == contents(world.tree)


def test_equal_numbers_of_a_znode_are_one_object(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million znodes have eight million numbers; what was shared when written is shared again."""
    monkeypatch.setattr(loader, "_TIMES_KEPT_MAX", 1)
    node = load(b"".join(rest_of(world.tree.begin_snapshot(), 2))).nodes["/n5/c"]

    assert node.czxid is node.mzxid is node.pzxid
    assert node.ctime is node.mtime


@pytest.mark.parametrize(
    "stream",
    [
        [],
        [[1, 2]],
        [["zabd-snapshot", 2, 0, 0, b"", 0, []]],
        [["other", 1, 0, 0, b"", 0, []]],
        [["zabd-snapshot", 1, 0, 0, b"", 0, [1]]],
        [["zabd-snapshot", 1, 0, 0, b"", 0, []], 0],
        [["zabd-snapshot", 1, 0, 0, b"", 0, []], [["/", b"", 7, *[0] * 9]], 1],
        [["zabd-snapshot", 1, 0, 0, b"", 0, []], [["/", b"", None, *[0] * 9]], 1],
        [["zabd-snapshot", 1, 0, 0, b"", 0, []], [[5, b"", None, *[0] * 9]], 1],
        [["zabd-snapshot", 1, 0, 0, b"", 0, []], [["", b"", None, *[0] * 9]], 1],
        [
            ["zabd-snapshot", 1, 0, 0, b"", 0, []],
            [["/", b"", None, *[0] * 9], ["/a/b", b"", None, *[0] * 9]],
            2,
        ],
        [
            ["zabd-snapshot", 1, 0, 0, b"", 0, []],
            [["/", b"", None, *[0] * 9], ["/a", b"", None, *[0] * 8, 5]],
            2,
        ],
        [None],
        ["text"],
    ],
)
def test_what_is_no_snapshot_is_refused(stream: list[object]) -> None:
    """With the one error that storage understands, so that it takes an older one."""
    refuse(b"".join(map(msgpack.packb, stream)))


def test_nothing_may_follow_the_end_and_the_end_must_fit_the_header(world: World) -> None:
    """Two snapshots run together, or mixed, are neither of them."""
    first = list(rest_of(world.tree.begin_snapshot()))
    world.do(SetData("/n1", b"x"))
    second = list(rest_of(world.tree.begin_snapshot()))

    refuse(b"".join([*first, *first]))
    refuse(b"".join([*first[:-1], second[-1]]))
    refuse(b"".join([second[0], *first[1:]]))


def test_garbage_is_refused() -> None:
    """Any bytes at all."""
    rng = random.Random(2)
    for _ in range(200):
        refuse(rng.randbytes(rng.randrange(200)))
