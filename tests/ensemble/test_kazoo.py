"""kazoo, unmodified, against three real members."""

import threading
from collections.abc import Iterator
from itertools import count

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
)
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.security import make_digest_acl
from tests.ensemble.harness import PATIENCE_S, kazoo, wait_until

from zabd.cli.members import Ensemble

pytestmark = pytest.mark.ensemble

_places = count(1)


@pytest.fixture
def client(shared: Ensemble) -> Iterator[KazooClient]:
    """A client of its own for each test."""
    with kazoo(shared.hosts) as started:
        yield started


@pytest.fixture
def place(client: KazooClient) -> str:
    """A znode below which the test may do as it likes."""
    path = f"/kazoo-{next(_places)}"
    client.create(path)
    return path


class Events:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[WatchedEvent] = []
        self._came = threading.Condition()

    def __call__(self, event: WatchedEvent) -> None:
        with self._came:
            self.seen.append(event)
            self._came.notify_all()

    def wait(self, number: int = 1) -> list[WatchedEvent]:
        with self._came:
            assert self._came.wait_for(lambda: len(self.seen) >= number, PATIENCE_S), self.seen
        return self.seen


def test_every_create_mode_makes_its_kind_of_znode(
    client: KazooClient, shared: Ensemble, place: str
) -> None:
    """Persistent or ephemeral, named by the client or numbered by the parent."""
    with kazoo(shared.hosts) as other:
        session = other.client_id[0]
        persistent = other.create(f"{place}/p", b"1")
        sequential = other.create(f"{place}/s-", b"2", sequence=True)
        ephemeral = other.create(f"{place}/e", b"3", ephemeral=True)
        both = other.create(f"{place}/es-", b"4", ephemeral=True, sequence=True)
        stat = other.exists(ephemeral)

    assert (persistent, sequential) == (f"{place}/p", f"{place}/s-0000000001")
    assert (ephemeral, both) == (f"{place}/e", f"{place}/es-0000000003")
    assert stat.ephemeralOwner == session
    client.sync(place)
    assert sorted(client.get_children(place)) == ["p", "s-0000000001"]


def test_a_create_with_stat_answers_with_the_stat(client: KazooClient, place: str) -> None:
    """`create2`, which saves recipes a round trip."""
    path, stat = client.create(f"{place}/n", b"12345", include_data=True)

    assert path == f"{place}/n"
    assert (stat.version, stat.dataLength, stat.numChildren) == (0, 5, 0)
    assert stat.czxid == stat.mzxid == stat.pzxid


def test_versions_guard_sets_and_deletes(client: KazooClient, place: str) -> None:
    """Compare-and-set is what most of ZooKeeper's users build upon."""
    client.create(f"{place}/n", b"a")

    assert client.set(f"{place}/n", b"b", version=0).version == 1
    with pytest.raises(BadVersionError):
        client.set(f"{place}/n", b"c", version=0)
    with pytest.raises(BadVersionError):
        client.delete(f"{place}/n", version=0)
    client.delete(f"{place}/n", version=1)
    assert client.exists(f"{place}/n") is None


def test_errors_are_the_ones_kazoo_knows(client: KazooClient, place: str) -> None:
    """An answer in place of a result carries the right code."""
    client.create(f"{place}/n/below", makepath=True)

    with pytest.raises(NodeExistsError):
        client.create(f"{place}/n")
    with pytest.raises(NotEmptyError):
        client.delete(f"{place}/n")
    with pytest.raises(NoNodeError):
        client.get(f"{place}/absent")
    with pytest.raises(NoNodeError):
        client.create(f"{place}/absent/below")


def test_children_come_with_their_parents_stat(client: KazooClient, place: str) -> None:
    """`getChildren2`; cversion counts the children's comings and goings."""
    for name in "abc":
        client.create(f"{place}/{name}")
    client.delete(f"{place}/b")

    names, stat = client.get_children(place, include_data=True)

    assert sorted(names) == ["a", "c"]
    assert (stat.numChildren, stat.children_version) == (2, 4)


def test_a_recursive_delete_leaves_nothing(client: KazooClient, place: str) -> None:
    """Kazoo walks the tree with many requests in flight."""
    for number in range(20):
        client.ensure_path(f"{place}/x/{number}/deep/er")

    client.delete(f"{place}/x", recursive=True)

    assert client.get_children(place) == []


def test_an_exists_watch_fires_on_creation_from_another_member(
    client: KazooClient, shared: Ensemble, place: str
) -> None:
    """The watch and the write meet on different members."""
    events = Events()
    assert client.exists(f"{place}/n", watch=events) is None
    for member in shared.members:
        with kazoo(member.address) as other:
            other.sync(place)
            if other.exists(f"{place}/n") is None:
                other.create(f"{place}/n")

    [event] = events.wait()
    assert (event.type, event.path) == (EventType.CREATED, f"{place}/n")


def test_a_data_watch_fires_once(client: KazooClient, place: str) -> None:
    """One-shot: the second change goes unreported unless the watch is set again."""
    events = Events()
    client.create(f"{place}/n", b"a")
    client.get(f"{place}/n", watch=events)

    client.set(f"{place}/n", b"b")
    client.set(f"{place}/n", b"c")

    assert [event.type for event in events.wait()] == [EventType.CHANGED]
    client.get(f"{place}/n", watch=events)
    client.delete(f"{place}/n")
    assert events.wait(2)[1].type == EventType.DELETED


def test_a_child_watch_fires_when_a_child_comes_or_goes(client: KazooClient, place: str) -> None:
    """And not when a child's data changes."""
    events = Events()
    client.create(f"{place}/a")
    client.get_children(place, watch=events)

    client.set(f"{place}/a", b"data")
    assert events.seen == []
    client.create(f"{place}/b")

    [event] = events.wait()
    assert (event.type, event.path) == (EventType.CHILD, place)


def test_kazoos_own_watch_recipes_follow_the_changes(client: KazooClient, place: str) -> None:
    """`DataWatch` and `ChildrenWatch`, which set their watch again after each event."""
    values: list[bytes | None] = []
    names: list[list[str]] = []
    client.DataWatch(f"{place}/n", lambda data, stat: values.append(data))
    client.ChildrenWatch(place, lambda children: names.append(sorted(children)))

    client.create(f"{place}/n", b"1")
    wait_until(lambda: values[-1:] == [b"1"], "the creation")
    client.set(f"{place}/n", b"2")
    wait_until(lambda: values[-1:] == [b"2"], "the change")
    client.delete(f"{place}/n")
    wait_until(lambda: values[-1:] == [None] and names[-1:] == [[]], "the deletion")

    assert values == [None, b"1", b"2", None]
    assert names == [[], ["n"], []]


def test_a_transaction_is_all_or_nothing(client: KazooClient, place: str) -> None:
    """The op that failed is named; those before and after it are rolled back."""
    client.create(f"{place}/n", b"0")
    good = client.transaction()
    good.check(f"{place}/n", version=0)
    good.create(f"{place}/a", b"1")
    good.set_data(f"{place}/n", b"1")
    good.delete(f"{place}/a")
    bad = client.transaction()
    bad.create(f"{place}/b")
    bad.check(f"{place}/n", version=0)
    bad.create(f"{place}/c")

    made = good.commit()
    refused = bad.commit()

    assert [type(result).__name__ for result in made] == ["bool", "str", "ZnodeStat", "bool"]
    assert isinstance(refused[0], RolledBackError)
    assert isinstance(refused[1], BadVersionError)
    assert client.get_children(place) == ["n"]


def test_a_digest_acl_keeps_others_out(client: KazooClient, shared: Ensemble, place: str) -> None:
    """Who has not said the password neither reads nor writes; who has does both."""
    acl = [make_digest_acl("ada", "lovelace", all=True)]
    client.create(f"{place}/secret", b"x", acl=acl)

    with pytest.raises(NoAuthError):
        client.get(f"{place}/secret")
    with kazoo(shared.hosts, auth_data=[("digest", "ada:lovelace")]) as ada:
        ada.sync(place)
        assert ada.get(f"{place}/secret")[0] == b"x"
        assert ada.get_acls(f"{place}/secret")[0] == acl
        ada.set(f"{place}/secret", b"y")


def test_credentials_reach_a_write_through_any_member(shared: Ensemble) -> None:
    """A follower forwards the identities of the connection with the write."""
    acl = [make_digest_acl("ada", "lovelace", all=True)]
    for member in shared.members:
        with kazoo(member.address, auth_data=[("digest", "ada:lovelace")]) as ada:
            ada.create(f"/auth-{member.id}", acl=acl)
            ada.create(f"/auth-{member.id}/below")
            assert ada.set(f"/auth-{member.id}", b"mine").version == 1


def test_the_lock_recipe_excludes(shared: Ensemble, place: str) -> None:
    """Four clients on three members add one each, twenty times; nothing is lost."""
    with kazoo(shared.hosts) as setup:
        setup.create(f"{place}/sum", b"0")
    inside: list[int] = []
    overlaps: list[int] = []

    def work() -> None:
        with kazoo(shared.hosts) as own:
            lock = own.Lock(f"{place}/lock")
            for _ in range(10):
                with lock:
                    inside.append(1)
                    overlaps.append(len(inside))
                    own.sync(f"{place}/sum")
                    value = int(own.get(f"{place}/sum")[0])
                    own.set(f"{place}/sum", b"%d" % (value + 1))
                    inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert set(overlaps) == {1}
    with kazoo(shared.hosts) as reader:
        reader.sync(place)
        assert reader.get(f"{place}/sum")[0] == b"40"


def test_the_election_recipe_elects_one_after_the_other(shared: Ensemble, place: str) -> None:
    """When the one who leads goes, the next one leads."""
    led: list[str] = []

    def stand(name: str) -> None:
        with kazoo(shared.hosts) as own:
            own.Election(f"{place}/election", name).run(led.append, name)

    threads = [threading.Thread(target=stand, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert sorted(led) == ["a", "b", "c"]


def test_the_counter_recipe_counts_every_addition(shared: Ensemble, place: str) -> None:
    """Compare-and-set in a loop, from all members at once."""

    def add(address: str) -> None:
        with kazoo(address) as own:
            counter = own.Counter(f"{place}/counter")
            for _ in range(10):
                counter += 2

    threads = [threading.Thread(target=add, args=(m.address,)) for m in shared.members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    with kazoo(shared.hosts) as reader:
        reader.sync(place)
        assert reader.Counter(f"{place}/counter").value == 60


def test_a_session_lives_through_the_death_of_the_leader(ensemble: Ensemble) -> None:
    """SIGKILL of the member the client is on: same session, ephemerals and watches kept."""
    leader = ensemble.wait_leader()
    others = [member.address for member in ensemble.members if member is not leader]
    hosts = ",".join([leader.address, *others])
    values: list[bytes] = []
    with kazoo(hosts, randomize_hosts=False) as client, kazoo(others[0]) as other:
        session = client.client_id
        client.create("/mine", b"x", ephemeral=True)
        client.create("/watched", b"x")
        client.DataWatch("/watched", lambda data, stat: values.append(data))

        leader.kill()
        wait_until(lambda: not client.connected, "the client to notice")
        wait_until(lambda: client.connected, "the client to reconnect")

        assert client.client_id == session
        client.set("/watched", b"y")
        wait_until(lambda: values[-1:] == [b"y"], "the watch")
        other.retry(other.sync, "/mine")
        assert other.exists("/mine").ephemeralOwner == session[0]
