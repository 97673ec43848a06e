"""What a txn does to the tree, and what clients see of it."""

import pytest
from tests.znode_tree.world import (
    ALICE,
    BOB,
    FIRST_ZXID,
    START_MS,
    World,
    check_invariants,
    contents,
    plain,
    refusal,
)

from zabd.model.acl import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Acl, Identity
from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    CloseSession,
    Create,
    CreateContainer,
    CreateMode,
    CreateSession,
    CreateTtl,
    Delete,
    SetAcl,
    SetData,
)
from zabd.model.stat import Stat
from zabd.model.watch_events import EventType
from zabd.model.zxid import Zxid
from zabd.znode_tree import ZnodeTree, children_of, stat_of, txns


def test_a_fresh_tree_is_that_of_an_empty_server() -> None:
    """Clients and tools know these numbers from ZooKeeper; the -1s are not mistakes."""
    tree = ZnodeTree()
    nothing = Stat(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

    assert {path: stat_of(node) for path, node in tree.nodes.items()} == {
        "/": nothing._replace(cversion=-1, num_children=1),
        "/zookeeper": nothing._replace(cversion=-2, num_children=2),
        "/zookeeper/config": nothing._replace(version=-1, aversion=-1),
        "/zookeeper/quota": nothing,
    }
    assert tree.nodes["/zookeeper/config"].acl == READ_ACL_UNSAFE
    assert all(node.acl is OPEN_ACL_UNSAFE for p, node in tree.nodes.items() if "config" not in p)
    assert children_of(tree.nodes["/zookeeper"]) == ["config", "quota"]


def test_create_stamps_the_znode_and_its_parent() -> None:
    """One zxid and the leader's time go into all fields of the newborn; see the table of Stat."""
    world = World()
    world.create("/a")
    before = world.stat("/a")

    assert world.create("/a/b", b"four") == "/a/b"

    zxid, now = world.zxid, world.now_ms
    assert world.stat("/a/b") == Stat(zxid, zxid, now, now, 0, 0, 0, 0, 4, 0, zxid)
    assert world.stat("/a") == before._replace(cversion=1, num_children=1, pzxid=zxid)


def test_delete_raises_cversion_but_not_the_counter() -> None:
    """The creation counter feeds sequence numbers: a delete must not make one come back."""
    world = World()
    world.create("/a")
    world.create("/a/b")
    world.do(Delete("/a/b"))

    stat = world.stat("/a")
    assert (stat.cversion, stat.num_children, stat.pzxid) == (2, 0, world.zxid)
    assert world.node("/a").created == 1
    assert world.node("/a").children is None


def test_set_data_changes_the_znode_alone() -> None:
    """The parent's Stat is about its children, not about what they hold."""
    world = World()
    world.create("/a", b"old")
    root, created = world.stat("/"), world.stat("/a")

    applied = world.do(SetData("/a", b"newer", 0))

    assert world.node("/a").data == b"newer"
    assert world.stat("/a") == created._replace(
        mzxid=world.zxid, mtime=world.now_ms, version=1, data_length=5
    )
    assert world.stat("/") == root
    assert applied.value is world.node("/a")


def test_set_acl_changes_aversion_alone() -> None:
    """Changing rights is not changing data: mzxid and mtime stay."""
    world = World()
    world.create("/a")
    before = world.stat("/a")

    world.do(SetAcl("/a", READ_ACL_UNSAFE, 0))

    assert world.stat("/a") == before._replace(aversion=1)
    assert world.node("/a").acl == READ_ACL_UNSAFE


def test_null_data_differs_from_empty_data() -> None:
    """Both come back as they were set, and both have the length 0."""
    world = World()
    world.create("/null", None)
    world.create("/empty", b"")

    assert world.node("/null").data is None
    assert world.node("/empty").data == b""
    assert world.stat("/null").data_length == world.stat("/empty").data_length == 0


def test_changes_stand_in_the_order_of_events() -> None:
    """A client hears of the znode before it hears of the parent's children."""
    world = World()
    acl = (Acl(31, "ip", "127.0.0.1"),)

    created = world.do(Create("/a", b"", acl, 0))
    changed = world.do(SetData("/a", b"x"))
    deleted = world.do(Delete("/a"))

    children = (EventType.CHILDREN_CHANGED, "/", OPEN_ACL_UNSAFE)
    assert created.changes == ((EventType.CREATED, "/a", acl), children)
    assert changed.changes == ((EventType.DATA_CHANGED, "/a", acl),)
    assert deleted.changes == ((EventType.DELETED, "/a", acl), children)
    assert world.do(SetAcl("/", OPEN_ACL_UNSAFE)).changes == ()


def test_closing_a_session_deletes_its_ephemerals_in_one_txn() -> None:
    """No moment exists at which the session is gone and an ephemeral is left, or the reverse."""
    world = World()
    world.create("/a")
    for path in ("/z", "/a/e", "/m"):
        world.create(path, mode=CreateMode.EPHEMERAL)
    world.create("/bobs", mode=CreateMode.EPHEMERAL, session_id=BOB)

    applied = world.do(CloseSession())

    gone = [change.path for change in applied.changes if change.type == EventType.DELETED]
    assert gone == ["/a/e", "/m", "/z"]
    assert ALICE not in world.tree.sessions
    assert set(world.tree.ephemerals) == {BOB}
    assert world.stat("/a").pzxid == world.stat("/").pzxid == world.zxid
    check_invariants(world.tree)


def test_only_ephemerals_show_an_owner() -> None:
    """Containers and TTL znodes carry a marker inside; clients must not take it for a session."""
    world = World()
    world.create("/e", mode=CreateMode.EPHEMERAL, session_id=BOB)
    world.do(CreateContainer("/c", b"", OPEN_ACL_UNSAFE, CreateMode.CONTAINER))
    world.do(CreateTtl("/t", b"", OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, 1000))

    assert [world.stat(path).ephemeral_owner for path in ("/e", "/c", "/t")] == [BOB, 0, 0]
    assert list(world.tree.perishable) == ["/c", "/t"]


def test_versions_wrap_like_ints_of_32_bits_and_leave_out_minus_one() -> None:
    """A client in Java must be able to read them, and -1 would mean: do not check."""
    world = World()
    world.create("/a")
    world.node("/a").version = (1 << 31) - 1
    world.node("/a").aversion = -2

    world.do(SetData("/a", b"", (1 << 31) - 1))
    world.do(SetAcl("/a", OPEN_ACL_UNSAFE, -2))

    stat = world.stat("/a")
    assert (stat.version, stat.aversion) == (-(1 << 31), 0)
    assert world.do(SetData("/a", b"", -(1 << 31))).error == 0


def test_cversion_wraps_like_an_int_of_32_bits() -> None:
    """After 2^30 children it turns negative, as in ZooKeeper; it must still fit the wire."""
    world = World()
    world.create("/a")
    world.node("/a").created = 1 << 30
    world.create("/a/b")

    assert world.stat("/a").cversion == -(1 << 31) + 1


def test_applying_again_changes_nothing() -> None:
    """R2: a replay may start anywhere before the end of what is in the tree."""
    world = World()
    world.create("/a", b"1")
    world.do(SetData("/a", b"2"))
    world.create("/a/e", mode=CreateMode.EPHEMERAL)
    world.do(CloseSession())
    before = contents(world.tree)

    replayed = [world.tree.apply(*entry) for entry in world.log]

    assert contents(world.tree) == before
    assert all(applied == (0, None, ()) for applied in replayed)


def test_the_numbers_in_a_znode_are_plain() -> None:
    """A Zxid object in each of a million znodes would cost megabytes for nothing."""
    tree = ZnodeTree()

    tree.apply(Zxid.of(1, 1), START_MS, 0, txns.create("/a", b"", OPEN_ACL_UNSAFE, 0, 1))

    assert type(tree.nodes["/a"].czxid) is int
    assert type(tree.zxid) is int
    assert tree.zxid == FIRST_ZXID + 1


def test_founding_sets_the_secret_and_the_configuration() -> None:
    """The configuration znode keeps its version of -1 and its zxids: nobody has set it."""
    tree = ZnodeTree()
    before = stat_of(tree.nodes["/zookeeper/config"])

    tree.apply(FIRST_ZXID + 1, START_MS, 0, txns.found(b"secret", b"server.1=a:1:2"))

    assert tree.secret == b"secret"
    config = tree.nodes["/zookeeper/config"]
    assert config.data == b"server.1=a:1:2"
    assert stat_of(config) == before._replace(data_length=14)
    check_invariants(tree)


def test_another_configuration_is_news() -> None:
    """Whoever watches the configuration znode hears of it, and sees when that was."""
    tree = ZnodeTree()
    tree.apply(FIRST_ZXID + 1, START_MS, 0, txns.found(b"secret", b"server.1=a:1:2"))

    applied = tree.apply(FIRST_ZXID + 2, START_MS + 5, 0, txns.found(b"secret", b"server.1=b:1:2"))

    assert [(change.type, change.path) for change in applied.changes] == [
        (EventType.DATA_CHANGED, "/zookeeper/config")
    ]
    stat = stat_of(tree.nodes["/zookeeper/config"])
    assert (stat.mzxid, stat.mtime, stat.version) == (FIRST_ZXID + 2, START_MS + 5, -1)
    check_invariants(tree)


def test_a_session_can_be_given_another_timeout() -> None:
    """A client that resumes its session negotiates again."""
    world = World()

    world.do(CreateSession(4_000))

    assert world.tree.sessions[ALICE] == 4_000
    check_invariants(world.tree)


def test_an_error_takes_its_zxid_and_changes_nothing() -> None:
    """A refusal is settled by the log like any other answer."""
    world = World()
    before = contents(world.tree)

    assert refusal(world.do(Delete("/nothing"))) == ErrorCode.NO_NODE

    after = contents(world.tree)
    assert world.tree.zxid == world.zxid
    assert before | {"zxid": 0, "time_ms": 0} == after | {"zxid": 0, "time_ms": 0}


@pytest.mark.parametrize(
    ("path", "count"), [("/", 8), ("/a", 3), ("/a/b", 1), ("/a/b/c", 0), ("/ab", 0)]
)
def test_descendants_are_counted_below_and_not_beside(path: str, count: int) -> None:
    """`/ab` is no child of `/a`, whatever their texts have in common."""
    world = World()
    for each in ("/a", "/ab", "/a/b", "/a/b/c", "/a/x"):
        world.create(each)

    # With the three system znodes that makes eight below the root.
    assert world.tree.descendant_count(path) == count


def test_children_are_listed_by_name() -> None:
    """Sorted, whatever the order of their creation, under the root as anywhere else."""
    world = World()
    for path in ("/b", "/a", "/a/z", "/a/x", "/a/y"):
        world.create(path)

    assert children_of(world.node("/")) == ["a", "b", "zookeeper"]
    assert children_of(world.node("/a")) == ["x", "y", "z"]
    assert children_of(world.node("/b")) == []


def test_equal_acls_are_one_tuple_as_long_as_somebody_has_them() -> None:
    """A client that gives every znode an ACL of its own gets the memory back by deleting them."""
    world = World()
    mine = (Identity("digest", "alice:hash"),)
    world.do(Create("/a", b"", CREATOR_ALL_ACL, 0), identities=mine)
    world.do(Create("/b", b"", CREATOR_ALL_ACL, 0), identities=mine)
    assert world.node("/a").acl is world.node("/b").acl
    assert len(world.tree._acls) == 2  # and that of /zookeeper/config

    world.do(SetAcl("/a", OPEN_ACL_UNSAFE), identities=mine)
    assert len(world.tree._acls) == 2
    world.do(Delete("/b"))

    assert len(world.tree._acls) == 1


def test_a_deep_path_is_like_any_other() -> None:
    """Nothing recurses: depth costs time and memory, not the interpreter's stack."""
    world = World()
    path = ""
    for _ in range(2_000):
        path += "/d"
        assert world.do(plain(path)).error == 0

    assert world.tree.descendant_count("/d") == 1_999
