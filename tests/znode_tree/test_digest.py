"""The digest: everything that clients can read is in it, and nothing else."""

import pytest
from tests.znode_tree.world import World, digest_from_scratch, plain

from zabd.model.acl import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Acl
from zabd.model.ops import CloseSession, CreateSession, Delete, SetData
from zabd.znode_tree import Znode, ZnodeTree, tree, txns
from zabd.znode_tree.digest import secret_hash, session_hash, znode_hash

ZNODE_HASH = 0x36A74215BB907C
SESSION_HASH = 0x5835EC8C22664C
SECRET_HASH = 0x9418FAE9DB59DD
FRESH_DIGEST = 0xA984A2B8E0D1B5


def node(**changes: object) -> Znode:
    """A znode with one thing changed."""
    made = Znode(b"data", OPEN_ACL_UNSAFE, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    "change",
    [
        {"data": b"Data"},
        {"data": b""},
        {"data": None},
        {"acl": READ_ACL_UNSAFE},
        {"acl": ()},
        {"acl": (Acl(31, "worl", "danyone"),)},
        {"czxid": 0},
        {"mzxid": 0},
        {"pzxid": 0},
        {"ctime": 0},
        {"mtime": 0},
        {"version": 0},
        {"aversion": 0},
        {"created": 0},
        {"owner": 0},
    ],
    ids=str,
)
def test_every_part_of_a_znode_counts(change: dict[str, object]) -> None:
    """R1: a member that differs in any of them is broken and must be found out."""
    assert znode_hash("/a", node(**change)) != znode_hash("/a", node())


def test_the_path_counts_and_cannot_run_into_the_acl() -> None:
    """One text must not be able to pose as another by shifting the boundary."""
    hashes = {
        znode_hash("/a", node(acl=(Acl(1, "ip", "b/"),))),
        znode_hash("/a", node(acl=(Acl(1, "ip", "b"),))),
        znode_hash("/b", node(acl=(Acl(1, "ip", "b"),))),
        znode_hash("/b/a", node(acl=(Acl(1, "ip", ""),))),
        znode_hash("/a", node(data=None)),
        znode_hash("/a", node(data=b"")),
    }
    assert len(hashes) == 6


def test_the_hash_is_a_matter_of_the_format() -> None:
    """Members of different versions compare digests: the hash may not change unnoticed."""
    assert znode_hash("/a", node()) == ZNODE_HASH
    assert session_hash(1, 2) == SESSION_HASH
    assert secret_hash(b"secret") == SECRET_HASH
    assert ZnodeTree().digest == FRESH_DIGEST


def test_history_does_not_count() -> None:
    """G1: two ways to one state, one digest; coming back is like having never been away."""
    world = World()
    before = world.tree.digest
    world.do(CreateSession(5), 77)
    assert world.tree.digest != before
    world.do(CloseSession(), 77)

    assert world.tree.digest == before


def test_reading_the_digest_or_not_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is settled lazily, at the latest after a bounded number of changes."""
    monkeypatch.setattr(tree, "CHANGED_MAX", 3)
    world = World()
    for number in range(20):
        world.do(plain(f"/n{number}"))
        assert len(world.tree._changed) <= 3 + 2
    world.do(SetData("/n1", b"x"))
    world.do(Delete("/n2"))

    assert world.tree.digest == world.tree.digest == digest_from_scratch(world.tree)


def test_the_secret_and_the_sessions_count() -> None:
    """A member that lacks a session would keep its ephemerals for ever."""
    digests = set()
    for secret in (b"a", b"b"):
        for sessions in ([], [(1, 10)], [(1, 20)], [(2, 10)]):
            made = ZnodeTree()
            made.apply(1, 0, 0, txns.found(secret))
            for zxid, (session_id, timeout_ms) in enumerate(sessions, 2):
                made.apply(zxid, 0, session_id, txns.create_session(timeout_ms))
            digests.add(made.digest)

    assert len(digests) == 8
