"""The checks of what a client watches trip on what they are there for, and on nothing else."""

import pytest
from tests.cluster_sim.test_replica_checks import World, create, trips

from zabd.cluster_sim.core_watches import WatchBook
from zabd.cluster_sim.invariants import InvariantError
from zabd.model.errors import ErrorCode
from zabd.model.ops import AddWatch, Exists, GetChildren, GetData, Op, OpCode
from zabd.model.watch_events import AddWatchMode, EventType, KeeperState, WatchEvent
from zabd.wire.connection import Reply
from zabd.znode_tree import txns

AGAIN = -1  # the zxid of events that no transaction has caused just now


class Watcher:
    """A world with /a and /b, and the book of a client that watches in it."""

    def __init__(self) -> None:
        self.world = World()
        self.world.deliver(txns.create_session(4_000))
        self.zxid = int(self.world.deliver(create("/a"), create("/b", count=2)))
        self.book = WatchBook(self.world.checker, InvariantError)

    def watch(self, op: Op, error: int = 0) -> None:
        opcode = OpCode.EXISTS if isinstance(op, Exists) else OpCode.GET_DATA
        self.book.shown(self.zxid)
        self.book.arm(op, Reply(1, opcode, self.zxid, error, None))

    def change(self, *done: txns.Txn) -> int:
        self.zxid = int(self.world.deliver(*done))
        return self.zxid

    def told(self, kind: EventType, path: str, zxid: int) -> None:
        self.book.told(zxid, WatchEvent(kind, KeeperState.SYNC_CONNECTED, path))

    def comes_back(self, seen: int, *told: tuple[EventType, str]) -> None:
        """Set everything again as one that has seen so much, and hear this before the reply."""
        self.book.reconnected(seen)
        op = self.book.set_again(seen)
        for kind, path in told:
            self.told(kind, path, AGAIN)
        self.book.were_set_again(op, self.zxid)
        self.book.skip(self.zxid)


@pytest.fixture
def watcher() -> Watcher:
    """A client that watches nothing yet."""
    return Watcher()


def test_no_reply_shows_a_change_before_its_event(watcher: Watcher) -> None:
    """W1; a reply from before the change shows nothing of it (a stale read)."""
    watcher.watch(GetData("/a", True))
    before = watcher.zxid
    changed = watcher.change(txns.set_data("/a", b"new", 1))
    watcher.book.shown(before)
    with trips("W1"):
        watcher.book.shown(changed)


def test_persistent_watches_speak_first_too(watcher: Watcher) -> None:
    """W1, on the path itself and below it."""
    watcher.watch(AddWatch("/a", AddWatchMode.PERSISTENT))
    changed = watcher.change(txns.set_data("/a", b"new", 1))
    with trips("W1"):
        watcher.book.shown(changed)
    watcher = Watcher()
    watcher.watch(AddWatch("/a", AddWatchMode.PERSISTENT_RECURSIVE))
    changed = watcher.change(create("/a/below"))
    with trips("W1"):
        watcher.book.shown(changed)


def test_events_come_in_the_order_of_the_changes(watcher: Watcher) -> None:
    """W2."""
    watcher.watch(GetData("/a", True))
    watcher.watch(GetData("/b", True))
    first = watcher.change(txns.set_data("/a", b"1", 1))
    second = watcher.change(txns.set_data("/b", b"2", 1))
    watcher.told(EventType.DATA_CHANGED, "/b", second)
    with trips("W2"):
        watcher.told(EventType.DATA_CHANGED, "/a", first)


def test_another_member_may_tell_again_of_what_no_reply_has_shown(watcher: Watcher) -> None:
    """Near miss of W2: an event moves no lastZxidSeen, so the next member may stand behind it."""
    watcher.watch(AddWatch("/a", AddWatchMode.PERSISTENT))
    seen = watcher.zxid
    first = watcher.change(txns.set_data("/a", b"1", 1))
    second = watcher.change(txns.set_data("/a", b"2", 2))
    watcher.told(EventType.DATA_CHANGED, "/a", first)
    watcher.told(EventType.DATA_CHANGED, "/a", second)
    watcher.zxid = seen
    watcher.comes_back(seen)
    watcher.told(EventType.DATA_CHANGED, "/a", first)


def test_a_standard_watch_fires_once(watcher: Watcher) -> None:
    """W3; armed twice it is one watch, and a persistent one goes on."""
    watcher.watch(GetData("/a", True))
    watcher.watch(GetData("/a", True))
    changed = watcher.change(txns.set_data("/a", b"new", 1))
    watcher.told(EventType.DATA_CHANGED, "/a", changed)
    with trips("W3"):
        watcher.told(EventType.DATA_CHANGED, "/a", changed)
    watcher.watch(AddWatch("/a", AddWatchMode.PERSISTENT))
    for version in (2, 3):
        changed = watcher.change(txns.set_data("/a", b"new", version))
        watcher.told(EventType.DATA_CHANGED, "/a", changed)


def test_an_event_has_its_transaction(watcher: Watcher) -> None:
    """W4."""
    watcher.watch(GetData("/a", True))
    elsewhere = watcher.change(txns.set_data("/b", b"new", 1))
    with trips("W4"):
        watcher.told(EventType.DATA_CHANGED, "/a", elsewhere)


def test_what_changed_meanwhile_is_told_when_watches_are_set_again(watcher: Watcher) -> None:
    """W5: data, children and existence, each by what is there now."""
    watcher.watch(GetData("/a", True))
    watcher.watch(GetChildren("/b", True))
    watcher.watch(Exists("/c", True), ErrorCode.NO_NODE)
    seen = watcher.zxid
    watcher.comes_back(seen)
    watcher.change(txns.set_data("/a", b"new", 1), create("/b/child"), create("/c", count=3))
    news = [
        (EventType.DATA_CHANGED, "/a"),
        (EventType.CHILDREN_CHANGED, "/b"),
        (EventType.CREATED, "/c"),
    ]
    for missing in range(len(news)):
        other = Watcher()
        other.watch(GetData("/a", True))
        other.watch(GetChildren("/b", True))
        other.watch(Exists("/c", True), ErrorCode.NO_NODE)
        seen = other.zxid
        other.change(txns.set_data("/a", b"new", 1), create("/b/child"), create("/c", count=3))
        with trips("W5"):
            other.comes_back(seen, *(each for each in news if each is not news[missing]))
    watcher.comes_back(seen, *news)


def test_an_exist_watch_may_miss_what_came_and_went(watcher: Watcher) -> None:
    """Near miss of W5: a znode created and deleted meanwhile is invisible to it."""
    watcher.watch(Exists("/c", True), ErrorCode.NO_NODE)
    seen = watcher.zxid
    watcher.change(create("/c", count=3), txns.delete("/c"))
    watcher.comes_back(seen)


def test_nothing_is_told_twice_when_watches_are_set_again(watcher: Watcher) -> None:
    """W4 of a change that the client had seen when its connection broke."""
    changed = watcher.change(txns.set_data("/a", b"new", 1))
    watcher.watch(GetData("/a", True))
    with trips("W4"):
        watcher.comes_back(changed, (EventType.DATA_CHANGED, "/a"))


def test_a_read_that_fails_arms_nothing(watcher: Watcher) -> None:
    """W6; `exists` of what is not there arms a watch, and that may fire."""
    watcher.watch(GetData("/c", True), ErrorCode.NO_NODE)
    created = watcher.change(create("/c", count=3))
    with trips("W6"):
        watcher.told(EventType.CREATED, "/c", created)
    watcher.watch(Exists("/d", True), ErrorCode.NO_NODE)
    created = watcher.change(create("/d", count=4))
    watcher.told(EventType.CREATED, "/d", created)
