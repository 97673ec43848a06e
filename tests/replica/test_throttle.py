"""How much may be in progress on one member, and that nobody pays for another's pipeline."""

import pytest
from tests.replica.harness import Client, Ensemble

from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    AddWatch,
    CloseSession,
    Create,
    Exists,
    GetData,
    Multi,
    Ping,
    SetData,
    Sync,
)
from zabd.model.session import PASSWORD_SIZE, ConnectRequest
from zabd.model.watch_events import AddWatchMode
from zabd.replica import throttle
from zabd.replica.events import Drained
from zabd.wire import encode_request
from zabd.wire.connection import Reply
from zabd.znode_tree import watches


def create(path: str, size_bytes: int = 0) -> Create:
    """A create that anybody may undo."""
    return Create(path, b"x" * size_bytes, OPEN_ACL_UNSAFE, 0)


def errors(client: Client) -> list[int]:
    """The error codes of the replies, in order."""
    return [item.error for item in client.heard if isinstance(item, Reply)]


def assert_idle(ensemble: Ensemble, *clients: Client) -> None:
    """Nothing is counted, and everybody is read."""
    for member in ensemble.members.values():
        counts = member.clients.throttle
        assert member.clients.stats.outstanding == counts._bytes == counts._large_bytes == 0
        assert not counts.paused
    assert not any(client.paused for client in clients)


def test_pipelines_wait_while_the_member_has_too_much_in_progress() -> None:
    """A client that waits for each answer is read all the same (H1), and everything is answered."""
    ensemble = Ensemble(outstanding_global_max=10)
    follower = ensemble.followers[0]
    first, second, third = (ensemble.connect(follower) for _ in range(3))

    first.send(*[create(f"/a{i}") for i in range(8)])
    second.send(*[create(f"/b{i}") for i in range(8)])
    third.send(create("/c"))
    assert [client.paused for client in (first, second, third)] == [False, True, False]

    ensemble.settle()
    assert [len(errors(client)) for client in (first, second, third)] == [8, 8, 1]
    assert_idle(ensemble, first, second, third)


def test_a_connection_is_read_again_though_others_have_too_much_in_progress() -> None:
    """Once its own requests are answered: or its pings are not read, and its session ends (H1)."""
    ensemble = Ensemble(outstanding_global_max=10)
    follower = ensemble.followers[0]
    before, after = ([ensemble.connect(follower) for _ in range(15)] for _ in range(2))
    client = ensemble.connect(follower)
    for other in before:
        other.send(SetData("/", b"x"))
    client.send(*[SetData("/", b"x")] * 3)
    assert client.paused
    logged = ensemble.logs[follower]
    last = sum(batch.count for batch in logged) + len(before) + 3
    while sum(batch.count for batch in logged) < last:
        ensemble._todo.popleft()()
    for other in after:
        other.send(SetData("/", b"x"))

    while len(errors(client)) < 3:
        ensemble._todo.popleft()()

    assert ensemble.members[follower].clients.stats.outstanding > 10
    assert not client.paused


def test_a_connection_with_requests_left_waits_while_others_have_too_much() -> None:
    """One that may have more answers to come is read when it has one at most."""
    ensemble = Ensemble(outstanding_global_max=10)
    follower = ensemble.followers[0]
    others = [ensemble.connect(follower) for _ in range(15)]
    client = ensemble.connect(follower)
    for other in others:
        other.send(SetData("/", b"x"))
    paused = []
    for _ in range(3):
        client.send(SetData("/", b"x"))
        paused.append(client.paused)

    assert paused == [False, True, True]


def test_each_turn_looks_at_a_few_of_many_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns stay short, and nobody is passed over for ever."""
    monkeypatch.setattr(throttle, "LOOKS_MAX", 2)
    ensemble = Ensemble(outstanding_global_max=10)
    follower = ensemble.followers[0]
    clients = [ensemble.connect(follower) for _ in range(10)]
    for client in clients:
        client.send(*[SetData("/", b"x")] * 3)
    throttled = ensemble.members[follower].clients.throttle
    [*paused] = throttled.paused
    paused[-1].queue.clear()  # as if its requests had been answered

    resumed = [len(throttled.resume()) for _ in range(4)]

    assert len(paused) == 7
    assert resumed == [0, 0, 0, 1]
    assert paused[-1] not in throttled.paused


def test_what_comes_before_the_session_is_counted_too() -> None:
    """Reading stops, and goes on even if all of it was answered without waiting."""
    ensemble = Ensemble(outstanding_max=10)
    client = ensemble.dial(ensemble.followers[0])
    request = ConnectRequest(0, 0, 10_000, 0, bytes(PASSWORD_SIZE), read_only=False)
    client.send_raw(client.wire.connect(request))
    client.send(*[Exists("/")] * 30)
    assert client.paused

    ensemble.settle()
    assert errors(client) == [0] * 30
    assert_idle(ensemble, client)


def test_a_connection_that_ends_leaves_nothing_counted() -> None:
    """Whether its client hangs up or is cut, with requests in progress or before its session."""
    ensemble = Ensemble(outstanding_max=5, large_request_threshold=100)
    member = ensemble.followers[0]
    client = ensemble.connect(member)
    client.send(*[create(f"/a{i}", 200) for i in range(8)])
    ensemble.hang_up(client)
    early = ensemble.dial(member)
    request = ConnectRequest(0, 0, 10_000, 0, bytes(PASSWORD_SIZE), read_only=False)
    early.send_raw(early.wire.connect(request))
    early.send(*[Exists("/")] * 3)
    ensemble.hang_up(early)

    ensemble.settle()
    assert_idle(ensemble)


def test_too_many_large_requests_end_the_connection() -> None:
    """Only where a threshold says what is large, and only while they are in progress."""
    ensemble = Ensemble(large_request_threshold=1000, large_request_bytes_max=5000)
    client = ensemble.connect(ensemble.followers[0])
    client.send(*[create(f"/small{i}", 800) for i in range(20)])
    client.send(*[create(f"/large{i}", 2000) for i in range(2)])
    ensemble.settle()
    client.send(*[create(f"/again{i}", 2000) for i in range(2)])
    ensemble.settle()
    assert errors(client) == [0] * 24

    client.send(*[create(f"/more{i}", 2000) for i in range(3)])
    ensemble.settle()
    assert client.closed
    assert_idle(ensemble)


def test_requests_that_waited_too_long_are_not_done() -> None:
    """-127 in their turn: reads behind a write, and writes behind a sync; never the close."""
    ensemble = Ensemble(throttled_op_wait_ms=100)
    client = ensemble.connect(ensemble.followers[0])
    client.send(create("/a"), GetData("/a"), Sync("/"), create("/b"), Ping(), CloseSession())
    ensemble.now_ms += 101
    ensemble.settle()

    in_turn = [item for item in client.heard if isinstance(item, Reply) and item.xid > 0]
    throttled = ErrorCode.THROTTLED_OP
    assert [reply.error for reply in in_turn] == [0, throttled, 0, throttled, 0]
    assert client.closed
    assert ensemble.members[ensemble.leader].tree.get("/b") is None
    assert_idle(ensemble)


def test_requests_that_waited_too_long_and_their_client_as_well_are_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is refused behind a sync waits for the client, and the next sync leaves it alone."""
    ensemble = Ensemble(throttled_op_wait_ms=100)
    follower = ensemble.followers[0]
    client = ensemble.connect(follower)
    client.call(create("/big", 600_000))
    connection = ensemble.members[follower].clients.connections[client.connection_id]
    later, slow = ensemble._later, []

    def keeps_what_is_drained(member: int, event: object) -> None:
        if isinstance(event, Drained):
            slow.append(event)
        else:
            later(member, event)

    with monkeypatch.context() as patched:
        patched.setattr(ensemble, "_later", keeps_what_is_drained)
        client.send(GetData("/big"), GetData("/big"), Sync("/"), create("/a"))
        ensemble.now_ms += 101
        client.send(Sync("/"), create("/b"))
        ensemble.settle()
        assert connection.stuffed
    for event in slow:
        later(follower, event)
    ensemble.settle()

    throttled = ErrorCode.THROTTLED_OP
    assert errors(client) == [0, 0, 0, 0, throttled, 0, 0]
    assert connection.held == 0
    assert client.call(create("/c")).error == 0
    assert_idle(ensemble)


def test_by_default_requests_wait_as_long_as_they_must() -> None:
    """An hour, if it takes that."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    client.send(create("/a"), GetData("/a"), Sync("/"), create("/b"))
    ensemble.now_ms += 10_000
    ensemble.settle()

    assert errors(client) == [0, 0, 0, 0]


def test_too_many_watches_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error that says so, also where the request had to wait; nobody else is told."""
    monkeypatch.setattr(watches, "WATCHES_PER_WATCHER_MAX", 2)
    ensemble = Ensemble()
    member = ensemble.followers[0]
    client, waiting, other = (ensemble.connect(member) for _ in range(3))
    client.send(*[Exists(f"/{i}", watch=True) for i in range(3)])
    waiting.send(create("/w"), *[Exists(f"/{i}", watch=True) for i in range(4)])
    ensemble.settle()

    missing, refused = ErrorCode.NO_NODE, ErrorCode.BAD_ARGUMENTS
    assert errors(client) == [missing, missing, refused]
    assert errors(waiting)[:4] == [0, missing, missing, refused]
    assert client.closed
    assert waiting.closed
    assert other.call(Exists("/")).error == 0
    assert len(ensemble.members[member].clients.watches) == 0
    assert_idle(ensemble)


@pytest.mark.parametrize("waits", [False, True])
def test_who_has_most_of_the_watches_makes_room_for_others(
    monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """Those with a few are served, however many a few others have asked for."""
    monkeypatch.setattr(watches, "CHARS_MAX", 4000)
    ensemble = Ensemble()
    member = ensemble.followers[0]
    greedy = [ensemble.connect(member) for _ in range(4)]
    for client in greedy:
        client.send(AddWatch("/" + "x" * 999, AddWatchMode.PERSISTENT))
    other = ensemble.connect(member)
    other.send(*[create("/w")] * waits, Exists("/service/leader", watch=True))
    ensemble.settle()

    assert errors(other) == [0] * waits + [ErrorCode.NO_NODE]
    assert [client.closed for client in greedy] == [True, False, False, False]
    assert not other.closed

    greedy[1].send(AddWatch("/" + "y" * 1999, AddWatchMode.PERSISTENT))
    ensemble.settle()
    assert errors(greedy[1]) == [0, ErrorCode.BAD_ARGUMENTS]
    assert [client.closed for client in greedy] == [True, True, False, False]
    assert len(ensemble.members[member].clients.watches) == 3


def test_connections_come_as_fast_as_there_are_tokens() -> None:
    """One too many is hung up on, and tries another member; later there are tokens again."""
    ensemble = Ensemble(
        connection_tokens_max=2, connection_token_fill_ms=50, connection_token_fill_count=1
    )
    member = ensemble.followers[0]
    assert [ensemble.connect(member).closed for _ in range(4)] == [False, False, True, True]
    ensemble.now_ms += 49
    assert ensemble.connect(member).closed
    ensemble.now_ms += 51
    assert [ensemble.connect(member).closed for _ in range(3)] == [False, False, True]


def test_the_answer_to_a_multi_grows_with_its_request_alone() -> None:
    """Not by more than four times, whatever it asks for."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    sent = ensemble.members[ensemble.followers[0]].clients.stats.sent
    ops = Multi((SetData("/", b"", -1),) * 10_000)
    size_bytes = len(encode_request(1, ops))

    assert client.call(ops).error == 0

    assert ensemble.members[ensemble.followers[0]].clients.stats.sent - sent < 4 * size_bytes
