"""Who hears of what: the table of events, one row and column at a time."""

import pytest
from tests.znode_tree.world import World, plain

from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import RemoteProtocolError
from zabd.model.ops import Delete, SetAcl, SetData
from zabd.model.watch_events import EventType, WatcherType
from zabd.znode_tree import Change, WatchKind, WatchTable, watches
from zabd.znode_tree.watches import WatchesFullError

DATA, CHILD, PERSISTENT, RECURSIVE = WatchKind
CREATED, DELETED, CHANGED, CHILDREN = (
    EventType.CREATED,
    EventType.DELETED,
    EventType.DATA_CHANGED,
    EventType.CHILDREN_CHANGED,
)
ALL = DATA | CHILD | PERSISTENT | RECURSIVE


def change(event: EventType, path: str) -> Change:
    """What a tree would report, of a znode that everybody may read."""
    return Change(event, path, OPEN_ACL_UNSAFE)


# For each kind of change to /p/n, what a watcher with a watch of one kind at one place hears.
@pytest.mark.parametrize(
    ("event", "kind", "place", "heard"),
    [
        (CREATED, DATA, "/p/n", [(CREATED, "/p/n")]),
        (CREATED, CHILD, "/p/n", []),
        (CREATED, CHILD, "/p", [(CHILDREN, "/p")]),
        (CREATED, DATA, "/p", []),
        (CREATED, PERSISTENT, "/p/n", [(CREATED, "/p/n")]),
        (CREATED, PERSISTENT, "/p", [(CHILDREN, "/p")]),
        (CREATED, RECURSIVE, "/p/n", [(CREATED, "/p/n")]),
        (CREATED, RECURSIVE, "/p", [(CREATED, "/p/n")]),
        (CREATED, RECURSIVE, "/", [(CREATED, "/p/n")]),
        (CREATED, PERSISTENT, "/", []),
        (DELETED, DATA, "/p/n", [(DELETED, "/p/n")]),
        (DELETED, CHILD, "/p/n", [(DELETED, "/p/n")]),
        (DELETED, DATA | CHILD, "/p/n", [(DELETED, "/p/n")]),
        (DELETED, CHILD, "/p", [(CHILDREN, "/p")]),
        (DELETED, DATA, "/p", []),
        (DELETED, PERSISTENT, "/p/n", [(DELETED, "/p/n")]),
        (DELETED, PERSISTENT, "/p", [(CHILDREN, "/p")]),
        (DELETED, RECURSIVE, "/p", [(DELETED, "/p/n")]),
        (CHANGED, DATA, "/p/n", [(CHANGED, "/p/n")]),
        (CHANGED, CHILD, "/p/n", []),
        (CHANGED, CHILD, "/p", []),
        (CHANGED, DATA, "/p", []),
        (CHANGED, PERSISTENT, "/p/n", [(CHANGED, "/p/n")]),
        (CHANGED, PERSISTENT, "/p", []),
        (CHANGED, RECURSIVE, "/p/n", [(CHANGED, "/p/n")]),
        (CHANGED, RECURSIVE, "/p", [(CHANGED, "/p/n")]),
        (CHANGED, ALL, "/p/n", [(CHANGED, "/p/n")]),
        (CREATED, ALL, "/p", [(CREATED, "/p/n"), (CHILDREN, "/p")]),
        (DELETED, RECURSIVE, "/p/n/deeper", []),
        (DELETED, RECURSIVE, "/p/", []),
        (CHANGED, RECURSIVE, "/q", []),
    ],
)
def test_the_table_of_events(
    event: EventType, kind: WatchKind, place: str, heard: list[tuple[EventType, str]]
) -> None:
    """Made from real ops, so that the tree's changes and the table fit together."""
    world = World()
    world.create("/p")
    if event != CREATED:
        world.create("/p/n")
    table = WatchTable()
    table.add(kind, place, "me")

    op = {
        CREATED: plain("/p/n"),
        DELETED: Delete("/p/n"),
        CHANGED: SetData("/p/n", b"x"),
    }[event]
    events = [told for each in world.do(op).changes for told in table.trigger(each)]

    assert events == [("me", *each) for each in heard]


def test_changing_rights_is_not_heard() -> None:
    """An ACL is no data; there is no event for it."""
    assert World().do(SetAcl("/", OPEN_ACL_UNSAFE)).changes == ()


def test_a_standard_watch_fires_once() -> None:
    """W3, M45: registered twice it is still one watch, and gone after its event."""
    table = WatchTable()
    table.add(DATA, "/a", "me")
    table.add(DATA, "/a", "me")

    assert table.trigger(change(CHANGED, "/a")) == [("me", CHANGED, "/a")]
    assert table.trigger(change(CHANGED, "/a")) == []
    assert len(table) == 0


def test_a_persistent_watch_stays_when_its_znode_is_deleted() -> None:
    """It is a watch of the path: the znode may come back."""
    table = WatchTable()
    table.add(PERSISTENT, "/a", "me")

    for event in (CREATED, DELETED, CREATED, CHANGED, CHILDREN):
        assert table.trigger(change(event, "/a")) == [("me", event, "/a")]


def test_kinds_are_independent() -> None:
    """One event may use up the standard watch and leave the others."""
    table = WatchTable()
    table.add(DATA, "/a", "me")
    table.add(CHILD, "/a", "me")
    table.add(RECURSIVE, "/a", "me")

    table.trigger(change(CHANGED, "/a"))

    assert not table.has(WatcherType.DATA, "/a", "me")
    assert table.has(WatcherType.CHILDREN, "/a", "me")
    assert table.has(WatcherType.PERSISTENT_RECURSIVE, "/a", "me")
    table.trigger(change(CHILDREN, "/a"))
    assert not table.has(WatcherType.CHILDREN, "/a", "me")
    assert table.has(WatcherType.ANY, "/a", "me")


def test_everybody_is_told_once_in_the_order_of_registration() -> None:
    """A watcher above and at the path hears one event, and one seed gives one order."""
    table = WatchTable()
    for watcher in ("c", "a", "b"):
        table.add(DATA, "/x/y", watcher)
    table.add(RECURSIVE, "/", "d")
    table.add(RECURSIVE, "/x", "a")

    told = table.trigger(change(CREATED, "/x/y"))

    assert [watcher for watcher, _, _ in told] == ["c", "a", "b", "d"]


def test_a_recursive_watch_follows_components_and_not_letters() -> None:
    """`/ab` is not below `/a`."""
    table = WatchTable()
    table.add(RECURSIVE, "/a", "me")

    assert table.trigger(change(CREATED, "/ab")) == []
    assert table.trigger(change(CREATED, "/ab/c")) == []
    assert table.trigger(change(CREATED, "/a/b/c")) == [("me", CREATED, "/a/b/c")]


@pytest.mark.parametrize(
    ("watcher_type", "left"),
    [
        (WatcherType.DATA, CHILD | PERSISTENT | RECURSIVE),
        (WatcherType.CHILDREN, DATA | PERSISTENT | RECURSIVE),
        (WatcherType.PERSISTENT, DATA | CHILD | RECURSIVE),
        (WatcherType.PERSISTENT_RECURSIVE, DATA | CHILD | PERSISTENT),
        (WatcherType.ANY, 0),
    ],
)
def test_removing_takes_exactly_what_was_named(watcher_type: WatcherType, left: int) -> None:
    """And nothing of another watcher or path; a second time there is nothing to remove."""
    table = WatchTable()
    for path, watcher in (("/a", "me"), ("/a", "you"), ("/b", "me")):
        table.add(ALL, path, watcher)

    assert table.remove(watcher_type, "/a", "me")
    assert not table.remove(watcher_type, "/a", "me")

    assert table._by_path["/a"].get("me", 0) == left
    assert table._by_path["/a"]["you"] == table._by_path["/b"]["me"] == ALL


def test_a_connection_that_is_gone_leaves_nothing() -> None:
    """W7: no entry, no count, no event; others are not touched."""
    table = WatchTable()
    for path in ("/a", "/a/b", "/c"):
        table.add(ALL, path, "me")
    table.add(DATA, "/c", "you")

    table.remove_watcher("me")
    table.remove_watcher("me")

    assert (len(table), table.path_count, table.watcher_count) == (1, 1, 1)
    assert not table._recursive_lengths
    assert table.trigger(change(CHANGED, "/c")) == [("you", CHANGED, "/c")]


def test_watches_are_counted_for_the_summaries() -> None:
    """By path and by watcher, of the data table: that is what the four-letter words show."""
    table = WatchTable()
    table.add(DATA, "/a", 1)
    table.add(DATA, "/a", 2)
    table.add(CHILD, "/b", 1)
    table.add(CHILD, "/b", 3)

    assert list(table.by_path()) == [("/a", [1, 2])]
    assert list(table.by_watcher()) == [(1, ["/a"]), (2, ["/a"])]
    assert (len(table), table.path_count, table.watcher_count) == (4, 2, 3)


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("WATCHES_PER_WATCHER_MAX", 3),
        ("CHARS_PER_WATCHER_MAX", 6),
        ("WATCHES_MAX", 4),
        ("CHARS_MAX", 8),
    ],
)
def test_watches_do_not_outgrow_their_limits(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """A path need not exist to be watched, so nothing else bounds them (W9)."""
    monkeypatch.setattr(watches, limit, value)
    table = WatchTable()
    for path in ("/a", "/b", "/c"):
        table.add(WatchKind.DATA, path, 1)
    if not limit.endswith("WATCHER_MAX"):
        table.add(WatchKind.DATA, "/a", 2)
        with pytest.raises(RemoteProtocolError):
            table.add(WatchKind.DATA, "/b", 2)
    with pytest.raises(RemoteProtocolError):
        table.add(WatchKind.DATA, "/d", 1)

    table.add(WatchKind.CHILD, "/a", 1)  # another kind of the same watch takes no more room
    table.remove_watcher(1)
    table.add(WatchKind.DATA, "/d", 1)
    assert table.path_count == len(table)


@pytest.mark.parametrize(("limit", "value"), [("WATCHES_MAX", 5), ("CHARS_MAX", 10)])
def test_where_there_are_too_many_the_largest_has_to_go(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """Not who asks for one more, unless it is that itself (W9)."""
    monkeypatch.setattr(watches, limit, value)
    table = WatchTable()
    for watcher, path in [(1, "/a"), (2, "/a"), (2, "/b"), (2, "/c"), (3, "/a")]:
        table.add(DATA, path, watcher)

    for asking in (1, 2, 4):
        with pytest.raises(WatchesFullError) as full:
            table.add(DATA, "/d", asking)
        assert full.value.largest == 2

    table.remove_watcher(2)
    table.add(DATA, "/d", 4)


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> WatchTable:
    """A table that removes three watches a turn, and of which ten of a watcher were removed."""
    monkeypatch.setattr(watches, "SWEPT_MAX", 3)
    table = WatchTable()
    for number in range(10):
        table.add(DATA | RECURSIVE, f"/{number}", "gone")
        table.add(DATA, f"/{number}", "stays")
    table.remove_watcher("gone")
    return table


def test_what_is_removed_over_many_turns_shows_in_none_of_them(swept: WatchTable) -> None:
    """W7: neither to clients nor to operators, from the first turn on."""
    turns = 0
    while swept.sweeping:
        turns += 1
        told = swept.trigger(change(CHANGED, f"/{turns}"))
        assert [watcher for watcher, *_ in told] == ["stays"]
        assert not swept.trigger(change(CREATED, f"/{turns}/child"))
        assert not swept.has(WatcherType.ANY, "/9", "gone")
        assert (len(swept), swept.watcher_count) == (10 - turns, 1)
        assert {watcher for _, watchers in swept.by_path() for watcher in watchers} == {"stays"}
        assert [watcher for watcher, _ in swept.by_watcher()] == ["stays"]
        swept.sweep()
    assert turns == 3


def test_after_the_last_turn_nothing_is_left_of_a_removed_watcher(swept: WatchTable) -> None:
    """W7: neither an entry nor an ancestor that every change would be compared with."""
    while swept.sweeping:
        swept.sweep()
    swept.remove_watcher("stays")
    while swept.sweeping:
        swept.sweep()

    assert (len(swept), swept.path_count, dict(swept.watched)) == (0, 0, {})
    assert not swept._recursive_lengths


def test_who_comes_back_while_being_removed_has_what_it_sets_and_no_more(
    swept: WatchTable,
) -> None:
    """The rest of the old is gone at once, as the new could not be told from it."""
    swept.add(CHILD, "/9", "gone")

    assert not swept.sweeping
    assert [watcher for watcher, *_ in swept.trigger(change(CHANGED, "/9"))] == ["stays"]
    assert [watcher for watcher, *_ in swept.trigger(change(CHILDREN, "/9"))] == ["gone"]
