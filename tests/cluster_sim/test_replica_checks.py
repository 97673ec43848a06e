"""The checks of tree, sessions and clients trip on what they are there for."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from zabd.cluster_sim.invariants import INVARIANTS, InvariantError
from zabd.cluster_sim.replica_checks import ReplicaChecker
from zabd.cluster_sim.zab_checks import Incarnation
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.watch_events import EventType
from zabd.model.zxid import Zxid
from zabd.zab.config import RecoveredState
from zabd.zab.log import GENESIS, Batch, frame_record
from zabd.znode_tree import txns
from zabd.znode_tree.tree import ZnodeTree

SESSION = 77


class World:
    """A checker that is told of deliveries by one member."""

    def __init__(self, *, names_tell: bool = True) -> None:
        self.checker = ReplicaChecker((1,), names_tell=names_tell)
        self.who = Incarnation(1, 1, RecoveredState())
        self.end = GENESIS

    def deliver(self, *done: txns.Txn, session: int = SESSION) -> Zxid:
        """Commit these txns as one batch; its last zxid."""
        first = Zxid.of(1, self.end.zxid.counter + 1)
        payload = txns.pack_batch(5, [(1, 0, session, txn) for txn in done])
        record = frame_record(first, len(done), payload, self.end.chain)
        batch = Batch(first, len(done), record)
        self.checker._proposed[batch.last] = batch.position.chain
        self.checker.delivered(self.who, [batch])
        self.end = batch.position
        return batch.last


def create(path: str, *, owner: int = 0, count: int = 1) -> txns.Txn:
    """A znode with its path as data."""
    return txns.create(path, path.encode(), OPEN_ACL_UNSAFE, owner, count)


@contextmanager
def trips(check: str) -> Iterator[None]:
    """The block breaks this invariant and no other."""
    with pytest.raises(InvariantError) as raised:
        yield
    assert raised.value.id == check
    assert raised.value.name == INVARIANTS[check][0]


@pytest.fixture
def world() -> World:
    """An open session, /a, and the session's ephemeral /e."""
    world = World()
    world.deliver(txns.create_session(4_000))
    world.deliver(create("/a"), create("/e", owner=SESSION, count=2))
    return world


def test_a_close_removes_exactly_what_the_session_owns(world: World) -> None:
    """S2, both ways."""
    with trips("S2"):
        world.deliver(txns.close_session(()))
    other = World()
    other.deliver(txns.create_session(4_000))
    other.deliver(create("/a"))
    with trips("S2"):
        other.deliver(txns.close_session(("/a",)))


def test_nothing_of_a_session_follows_its_close(world: World) -> None:
    """S3; a refusal may, since it changes nothing."""
    world.deliver(txns.close_session(("/e",)))
    world.deliver(txns.error(-112))
    with trips("S3"):
        world.deliver(txns.set_data("/a", b"late", 1))


def test_every_ephemeral_has_an_open_session(world: World) -> None:
    """S1."""
    world.checker.require_owned()
    del world.checker.tree.sessions[SESSION]
    with trips("S1"):
        world.checker.require_owned()


def test_members_at_one_zxid_have_one_state(world: World) -> None:
    """R1: a tree that differs, and one that stands where no batch ends."""
    tree = ZnodeTree()
    tree.apply(Zxid.of(1, 1), 5, SESSION, txns.create_session(4_000))
    world.checker.stands_at(world.who, tree)
    tree.apply(Zxid.of(1, 2), 5, SESSION, create("/a"))
    with trips("R1"):
        world.checker.stands_at(world.who, tree)
    tree.apply(Zxid.of(1, 3), 5, SESSION, create("/other", count=2))
    with trips("R1"):
        world.checker.stands_at(world.who, tree)


def test_what_a_path_held_is_known_for_every_zxid(world: World) -> None:
    """The truth that answers of clients are compared with."""
    before = world.checker.last_zxid
    changed = world.deliver(txns.set_data("/a", b"new", 1))
    gone = world.deliver(txns.delete("/a"))
    assert world.checker.at("/a", before).data == b"/a"
    assert world.checker.at("/a", changed) == (changed, True, b"new", changed)
    assert not world.checker.at("/a", gone).there
    assert not world.checker.at("/a", 0).there


def test_what_happened_to_a_path_is_known(world: World) -> None:
    """The truth that watch events are compared with."""
    first = world.deliver(txns.set_data("/a", b"1", 1))
    second = world.deliver(txns.set_data("/a", b"2", 2))
    child = world.deliver(create("/a/b"))
    assert [each.zxid for each in world.checker.changes if each.path == "/a"][-3:] == [
        first,
        second,
        child,
    ]
    assert world.checker.changed_at("/a", EventType.DATA_CHANGED, first)
    assert not world.checker.changed_at("/a", EventType.DELETED, first)
    assert world.checker.pzxid_at("/a", child) == child
    assert world.checker.pzxid_at("/a", second) < first
    assert world.checker.held_by("/a", b"1", second)
    assert not world.checker.held_by("/a", b"2", first)


def test_a_sequential_path_is_given_once(world: World) -> None:
    """R7; hearing of the same create twice is no second create."""
    world.checker.sequential_created("/n-1", 5)
    world.checker.sequential_created("/n-1", 5)
    with trips("R7"):
        world.checker.sequential_created("/n-1", 6)
