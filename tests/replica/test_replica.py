"""What clients of an ensemble of replicas may rely on, and what a replica does when it breaks."""

from __future__ import annotations

import struct
from functools import partial

import pytest
from tests.replica.harness import TICK_MS, Client, Ensemble

from zabd.model.acl import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    AddWatch,
    Auth,
    Check,
    CloseSession,
    Create,
    Create2,
    CreateContainer,
    CreateMode,
    CreateTtl,
    Delete,
    Exists,
    GetAcl,
    GetChildren,
    GetData,
    Multi,
    Op,
    Ping,
    SetAcl,
    SetData,
    SetWatches,
    Sync,
    WhoAmI,
)
from zabd.model.results import (
    AclResult,
    ChildrenResult,
    ClientInfo,
    CreateResult,
    GetDataResult,
    MultiResult,
    StatResult,
    SyncResult,
    WhoAmIResult,
)
from zabd.model.session import PASSWORD_SIZE, ConnectRequest
from zabd.model.watch_events import EventType
from zabd.model.zxid import Zxid
from zabd.replica.config import DIGEST_INTERVAL_TXNS
from zabd.replica.effects import TakeSnapshot
from zabd.replica.events import SnapshotTaken, SnapshotWanted, SpaceLow
from zabd.replica.gathering import GATHER_MS_MAX
from zabd.replica.messages import DigestAt
from zabd.replica.rebuild import TreeBuilder
from zabd.wire.connection import Event, Reply
from zabd.zab import effects as zab
from zabd.zab.messages import Ack, Carried, Commit, Pong


def create(path: str, data: bytes = b"", flags: int = CreateMode.PERSISTENT) -> Create:
    """A create that anybody may undo."""
    return Create(path, data, OPEN_ACL_UNSAFE, flags)


def replies(client: Client) -> list[Reply]:
    """What came back for requests, without events."""
    return [item for item in client.heard if isinstance(item, Reply)]


def data_of(reply: Reply) -> bytes | None:
    """The data in the reply to a getData."""
    assert isinstance(reply.result, GetDataResult), reply
    return reply.result.data


@pytest.fixture
def ensemble() -> Ensemble:
    """Three members, one of them leading."""
    return Ensemble()


# ---- sessions ------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked_ms", "granted_ms"), [(12_000, 12_000), (0, 4000), (10**6, 40_000)])
def test_a_session_gets_its_timeout_within_the_bounds(
    ensemble: Ensemble, asked_ms: int, granted_ms: int
) -> None:
    """Requested timeouts are clamped to 2 and 20 ticks; zero is not an error."""
    client = ensemble.connect(ensemble.leader, asked_ms)
    assert client.session is not None
    assert client.session.timeout_ms == granted_ms
    assert client.session.session_id != 0


def test_a_session_resumes_on_any_member_with_its_password(ensemble: Ensemble) -> None:
    """The password is verified by members that never saw the session."""
    first, second = ensemble.followers
    client = ensemble.connect(first)
    assert client.session is not None
    moved = ensemble.connect(second, resume=client.session)
    assert moved.session is not None
    assert moved.session.session_id == client.session.session_id
    assert moved.session.password == client.session.password


def test_a_wrong_password_is_refused_and_disturbs_nobody(ensemble: Ensemble) -> None:
    """The password is checked before the rightful connection is touched."""
    client = ensemble.connect(ensemble.leader)
    assert client.session is not None
    forged = client.session._replace(password=bytes(PASSWORD_SIZE))
    thief = ensemble.connect(ensemble.leader, resume=forged)
    assert thief.session is not None
    assert thief.session.refused
    assert thief.closed
    assert client.call(Exists("/")).error == 0


def test_a_client_from_the_future_is_turned_away(ensemble: Ensemble) -> None:
    """A member that lags behind what the client has seen would show it the past."""
    client = ensemble.dial(ensemble.leader)
    ahead = ConnectRequest(0, 2**40, 4000, 0, bytes(PASSWORD_SIZE), False)
    client.send_raw(client.wire.connect(ahead))
    ensemble.settle()
    assert client.closed
    assert client.session is None


def test_requests_behind_the_handshake_wait_for_the_session(ensemble: Ensemble) -> None:
    """Clients may pipeline behind the ConnectRequest."""
    client = ensemble.dial(ensemble.followers[0])
    hello = client.wire.connect(ConnectRequest(0, 0, 4000, 0, bytes(PASSWORD_SIZE), False))
    _, first = client.wire.send(create("/early", b"x"))
    _, second = client.wire.send(GetData("/early"))
    client.send_raw(hello + first + second)
    ensemble.settle()
    assert [reply.error for reply in replies(client)] == [0, 0]


def test_a_silent_session_expires_with_its_ephemerals_on_all_members(ensemble: Ensemble) -> None:
    """Expiry is one txn: everybody sees the node go, and the connection is cut."""
    client = ensemble.connect(ensemble.followers[0], 4000)
    client.call(create("/e", flags=CreateMode.EPHEMERAL))
    ensemble.pass_time(4000 + 2 * TICK_MS)
    assert client.closed
    assert [replica.tree.get("/e") for replica in ensemble.members.values()] == [None] * 3


def test_pings_keep_a_session_on_a_follower_alive(ensemble: Ensemble) -> None:
    """Touches travel to the leader, which alone decides."""
    client = ensemble.connect(ensemble.followers[0], 4000)
    client.call(create("/e", flags=CreateMode.EPHEMERAL))
    for _ in range(10):
        ensemble.pass_time(1500)
        client.send(Ping())
    ensemble.settle()
    assert not client.closed
    assert client.call(Exists("/e")).error == 0


def test_closing_a_session_takes_its_ephemerals_and_what_is_queued_behind(
    ensemble: Ensemble,
) -> None:
    """The close is answered; a request behind it is told that the session is over."""
    client = ensemble.connect(ensemble.followers[0])
    client.call(create("/e", flags=CreateMode.EPHEMERAL))
    client.send(CloseSession(), GetData("/"))
    ensemble.settle()
    assert [reply.error for reply in replies(client)[-2:]] == [0, ErrorCode.SESSION_EXPIRED]
    assert client.closed
    assert ensemble.members[ensemble.leader].tree.get("/e") is None


def test_a_write_on_the_old_connection_of_a_moved_session_is_refused(ensemble: Ensemble) -> None:
    """The old connection is cut without a word, and nothing of it takes effect."""
    first, second = ensemble.followers
    old = ensemble.connect(first)
    assert old.session is not None
    new = ensemble.connect(second, resume=old.session)
    old.send(create("/late"))
    ensemble.settle()
    assert old.closed
    assert new.call(Exists("/late")).error == ErrorCode.NO_NODE


def test_what_a_session_left_behind_does_not_come_through_when_it_is_back(
    ensemble: Ensemble,
) -> None:
    """The older connection is cut when the session asks to be resumed, not when it is."""
    first, second = ensemble.followers
    old = ensemble.connect(first)
    assert old.session is not None
    ensemble.connect(second, resume=old.session)
    back = ensemble.dial(first)
    session = old.session
    request = ConnectRequest(0, 0, 12_000, session.session_id, session.password, False)
    back.send_raw(back.wire.connect(request))
    old.send(create("/late"))  # under way all the time, and behind the question of the leader
    ensemble.settle()
    assert old.closed
    assert back.call(Exists("/late")).error == ErrorCode.NO_NODE


def test_a_client_that_comes_back_is_heard_before_the_leader_has_answered(
    ensemble: Ensemble,
) -> None:
    """Or its session could expire while a busy leader has not come to its question."""
    session = ensemble.connect(ensemble.leader).session
    assert session is not None
    clients = ensemble.members[ensemble.followers[0]].clients
    back = ensemble.dial(ensemble.followers[0])
    request = ConnectRequest(0, 0, 12_000, session.session_id, session.password, False)
    back.send_raw(back.wire.connect(request))
    assert dict(clients.take_touches(ensemble.now_ms)) == {session.session_id: 0}


def test_a_second_connection_on_the_same_member_replaces_the_first(ensemble: Ensemble) -> None:
    """K1: one member serves a session through one connection."""
    old = ensemble.connect(ensemble.leader)
    assert old.session is not None
    new = ensemble.connect(ensemble.leader, resume=old.session)
    assert old.closed
    assert new.call(Exists("/")).error == 0


def test_a_new_leader_gives_every_session_its_full_timeout() -> None:
    """Nobody expires because the old leader's deadlines were lost."""
    ensemble = Ensemble(5)
    client = ensemble.connect(ensemble.followers[0], 8000)
    client.call(create("/e", flags=CreateMode.EPHEMERAL))
    ensemble.pass_time(7000)
    ensemble.kill(ensemble.leader)
    ensemble.run_until(lambda: all(replica.serving for replica in ensemble.members.values()))
    taken_over_ms = ensemble.now_ms
    reader = ensemble.connect(ensemble.followers[0])
    ensemble.pass_time(8000 - (ensemble.now_ms - taken_over_ms) - 10)
    reader.send(Ping())
    assert reader.call(Exists("/e")).error == 0


# ---- order ---------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_read_sees_the_writes_before_it_and_none_behind(ensemble: Ensemble, role: str) -> None:
    """C2: pipelined reads and writes take effect in issue order, in one batch or not."""
    member = ensemble.leader if role == "leader" else ensemble.followers[0]
    client = ensemble.connect(member)
    client.send(
        create("/n", b"0"),
        GetData("/n"),
        SetData("/n", b"1"),
        GetData("/n"),
        Sync("/n"),
        GetData("/n"),
        SetData("/n", b"2"),
        GetData("/n"),
        Delete("/n"),
        Exists("/n"),
    )
    ensemble.settle()
    answers = replies(client)
    assert [data_of(answers[i]) for i in (1, 3, 5, 7)] == [b"0", b"1", b"1", b"2"]
    assert answers[4].result == SyncResult("/n")
    assert answers[9].error == ErrorCode.NO_NODE


def test_many_syncs_and_writes_in_one_chunk_are_answered_in_order(ensemble: Ensemble) -> None:
    """Held writes are handed on as the syncs before them are answered, none twice, none lost."""
    client = ensemble.connect(ensemble.followers[0])
    client.call(create("/n"))
    ops = [
        op
        for i in range(10)
        for op in (Sync("/n"), Sync("/n"), SetData("/n", b"%d" % i), GetData("/n"))
    ]
    client.send(*ops)
    ensemble.settle()
    answers = replies(client)[1:]
    assert [reply.error for reply in answers] == [0] * len(ops)
    assert [data_of(reply) for reply in answers[3::4]] == [b"%d" % i for i in range(10)]
    node = ensemble.members[client.member].tree.get("/n")
    assert node is not None
    assert node.version == 10


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_read_between_two_writes_of_one_batch_sees_the_first(
    ensemble: Ensemble, role: str
) -> None:
    """C2: a run of writes is applied in one go, and yet each read has its place in it."""
    member = ensemble.leader if role == "leader" else ensemble.followers[0]
    client, other = ensemble.connect(member), ensemble.connect(member)
    client.call(create("/n"))
    ops: list[Op] = []
    for number in range(20):
        ops += [SetData("/n", b"%d" % number), GetData("/n"), GetData("/n"), create(f"/n/{number}")]
        ops += [Exists(f"/n/{number}"), Exists(f"/n/{number + 1}")]
    other.send(*[SetData("/other", b"")] * 3, create("/other"))
    client.send(*ops, GetData("/n", watch=True), SetData("/n", b"last"), SetData("/n", b"none"))
    ensemble.settle()

    answers = replies(client)[1:]
    assert [data_of(reply) for reply in answers[1:120:6]] == [b"%d" % n for n in range(20)]
    assert [data_of(reply) for reply in answers[2:120:6]] == [b"%d" % n for n in range(20)]
    assert [reply.error for reply in answers[4:120:6]] == [0] * 20
    assert [reply.error for reply in answers[5:120:6]] == [ErrorCode.NO_NODE] * 20
    results = [reply.result for reply in answers[:120:6]]
    assert all(isinstance(result, StatResult) for result in results)
    assert [result.stat.version for result in results] == list(range(1, 21))
    heard = [type(item) for item in client.heard[-3:]]
    assert heard == [Event, Reply, Reply]  # the watch fires once, before its write is answered
    member_clients = ensemble.members[member].clients
    assert member_clients.stats.outstanding == member_clients.throttle._bytes == 0


def test_a_request_that_waited_is_counted_once(ensemble: Ensemble) -> None:
    """A read behind a write has waited: counted as answered at once as well it halved the mean."""
    client = ensemble.connect(ensemble.followers[0])
    client.call(create("/n"))
    stats = ensemble.members[client.member].clients.stats
    stats.reset()

    def answered() -> int:
        return sum(histogram.count for histogram in stats.histograms.values())

    before = answered()
    client.send(SetData("/n", b""), GetData("/n"), Exists("/none"), GetData("/none"))
    ensemble.settle()
    assert answered() - before == 4
    assert stats.answered_at_once == 0
    client.send(GetData("/n"), Exists("/none"), GetData("/none"))
    assert answered() - before == 7
    assert stats.answered_at_once == 3


def test_a_frame_without_a_header_in_the_middle_of_a_pipeline_ends_the_connection(
    ensemble: Ensemble,
) -> None:
    """What came whole before it is done all the same."""
    client, other = (ensemble.connect(ensemble.followers[0]) for _ in range(2))
    writes = [client.wire.send(op)[1] for op in (create("/n"), SetData("/n", b"1"))]
    client.send_raw(b"".join((*writes, b"\0\0\0\x03abc", *writes)))
    ensemble.settle()
    assert client.closed
    assert data_of(other.call(GetData("/n"))) == b"1"
    assert ensemble.members[client.member].clients.stats.outstanding == 0


def test_a_sync_makes_the_latest_write_visible(ensemble: Ensemble) -> None:
    """After sync, a read is at least as new as the leader was."""
    first, second = ensemble.followers
    writer, reader = ensemble.connect(first), ensemble.connect(second)
    writer.call(create("/n", b"new"))
    reader.send(Sync("/n"), GetData("/n"))
    ensemble.settle()
    assert data_of(replies(reader)[-1]) == b"new"


def test_failed_writes_travel_through_the_log(ensemble: Ensemble) -> None:
    """A refusal depends on uncommitted state too, so it takes a zxid like any write."""
    client = ensemble.connect(ensemble.followers[0])
    made = client.call(create("/n"))
    failed = client.call(create("/n"))
    assert failed.error == ErrorCode.NODE_EXISTS
    assert failed.zxid == made.zxid + 1


def test_a_multi_is_answered_op_by_op(ensemble: Ensemble) -> None:
    """Header error 0; the results say what happened."""
    client = ensemble.connect(ensemble.followers[0])
    reply = client.call(Multi((create("/a"), Check("/a", 0), SetData("/a", b"1", 0))))
    assert reply.error == 0
    assert isinstance(reply.result, MultiResult)
    assert reply.result.results[0] == CreateResult("/a")


def test_a_check_alone_is_answered_and_never_logged(ensemble: Ensemble) -> None:
    """The reference server dies of a successful one."""
    client = ensemble.connect(ensemble.leader)
    zxid = client.call(create("/n")).zxid
    codes = [client.call(op).error for op in (Check("/n", 0), Check("/n", 7), Check("/x", 0))]
    assert codes == [0, ErrorCode.BAD_VERSION, ErrorCode.NO_NODE]
    assert ensemble.members[ensemble.leader].tree.zxid == zxid


# ---- watches -------------------------------------------------------------------------------


def test_the_event_of_a_change_comes_before_any_reply_that_reveals_it(ensemble: Ensemble) -> None:
    """K2, for the writer itself and for a reader on another member."""
    first, second = ensemble.followers
    writer, reader = ensemble.connect(first), ensemble.connect(second)
    writer.call(create("/n", b"0"))
    reader.send(Sync("/n"), GetData("/n", True))
    ensemble.settle()
    writer.send(GetData("/n", True), SetData("/n", b"1"))
    reader.send(Sync("/n"), GetData("/n"))
    ensemble.settle()
    for client in (writer, reader):
        kinds = [type(item) for item in client.heard]
        assert kinds.index(Event) < len(kinds) - 1
        event = client.events[0]
        assert event.event.type is EventType.DATA_CHANGED
        before = client.heard[: client.heard.index(event)]
        assert all(item.zxid < event.zxid for item in before)


def test_set_watches_tells_what_was_missed_and_arms_the_rest(ensemble: Ensemble) -> None:
    """The events come before the reply; what did not change stays watched."""
    client = ensemble.connect(ensemble.leader)
    seen = client.call(create("/a")).zxid
    client.call(create("/b"))
    client.call(SetData("/a", b"1"))
    client.send(SetWatches(seen + 1, ("/a", "/b", "/gone"), ("/new",), ("/b",)))
    ensemble.settle()
    events = [(event.event.type, event.event.path) for event in client.events]
    assert events == [(EventType.DATA_CHANGED, "/a"), (EventType.DELETED, "/gone")]
    assert isinstance(client.heard[-1], Reply)
    client.send(create("/new"), SetData("/b", b"1"))
    ensemble.settle()
    assert [event.event.path for event in client.events[2:]] == ["/new", "/b"]


def test_a_persistent_recursive_watch_outlives_its_events(ensemble: Ensemble) -> None:
    """AddWatch answers at once and keeps firing for everything below."""
    client = ensemble.connect(ensemble.followers[0])
    assert client.call(AddWatch("/r", 1)).error == 0
    for path in ("/r", "/r/a", "/r/a/b"):
        client.call(create(path))
    assert [event.event.path for event in client.events] == ["/r", "/r/a", "/r/a/b"]


def test_a_closed_connection_leaves_no_watch_behind(ensemble: Ensemble) -> None:
    """W7: watches belong to the connection."""
    client = ensemble.connect(ensemble.leader)
    client.call(Exists("/n", True))
    ensemble.hang_up(client)
    other = ensemble.connect(ensemble.leader)
    other.call(create("/n"))
    assert client.events == []


# ---- who may -------------------------------------------------------------------------------


def test_acls_bind_and_are_masked_for_strangers(ensemble: Ensemble) -> None:
    """Auth expands to the creator's identity; others are refused; digests are not shown."""
    owner = ensemble.connect(ensemble.followers[0])
    owner.call(Auth(0, "digest", b"ann:secret"))
    owner.call(Create2("/mine", b"x", CREATOR_ALL_ACL))
    stranger = ensemble.connect(ensemble.leader)
    assert stranger.call(GetData("/mine")).error == ErrorCode.NO_AUTH
    assert stranger.call(SetData("/mine", b"y")).error == ErrorCode.NO_AUTH
    assert stranger.call(GetAcl("/mine")).error == ErrorCode.NO_AUTH
    result = owner.call(GetAcl("/mine")).result
    assert isinstance(result, AclResult)
    assert result.acl[0].id.startswith("ann:")
    who = owner.call(WhoAmI()).result
    assert isinstance(who, WhoAmIResult)
    assert ClientInfo("digest", "ann") in who.infos


def test_an_unknown_auth_scheme_ends_the_connection(ensemble: Ensemble) -> None:
    """-115, then close: clients treat it as final."""
    client = ensemble.connect(ensemble.leader)
    client.send(Auth(0, "nonsense", b""))
    ensemble.settle()
    assert [reply.error for reply in replies(client)] == [ErrorCode.AUTH_FAILED]
    assert client.closed


# ---- hostile and unlucky -------------------------------------------------------------------


def test_an_unknown_opcode_is_answered_and_the_connection_kept(ensemble: Ensemble) -> None:
    """Probing for a feature should not cost the connection."""
    client = ensemble.connect(ensemble.leader)
    client.wire.send(Exists("/"))  # so that the answer's xid is expected
    for opcode in (0, -1, -10, 20, 999):
        raw = struct.pack(">iii", 8, 1, opcode)
        client.ensemble.members[client.member].receive(client.connection_id, raw, 0)
    effects = ensemble.members[client.member].flush(0)
    assert all(type(effect).__name__ == "Write" for effect in effects)
    assert not client.closed


def test_the_log_says_when_a_member_serves_and_when_it_stops(ensemble: Ensemble) -> None:
    """Once each: it is what somebody who starts a member waits for."""
    leader, (survivor, _) = ensemble.leader, ensemble.followers
    told = [m for m, name, _ in ensemble.traces if name == "serves"]
    assert sorted(told) == [1, 2, 3]
    ensemble.kill(leader)
    ensemble.settle()
    assert [m for m, name, _ in ensemble.traces if name == "serves_no_more"].count(survivor) == 1


def test_an_over_long_request_ends_the_connection_and_is_named_in_the_log(
    ensemble: Ensemble,
) -> None:
    """Clients know this refusal as a lost connection; what it was is for the operator."""
    client = ensemble.connect(ensemble.leader)
    xid, _ = client.wire.send(Exists("/"))
    header = xid.to_bytes(4, "big") + (5).to_bytes(4, "big")
    client.send_raw((2_000_000).to_bytes(4, "big") + header)
    ensemble.settle()
    assert replies(client) == []
    assert client.closed
    [(member, fields)] = [(m, f) for m, name, f in ensemble.traces if name == "request_refused"]
    assert (member, fields["xid"], fields["opcode"]) == (ensemble.leader, xid, 5)
    assert "2000000" in str(fields["why"])


def test_a_request_that_cannot_be_decoded_is_answered(ensemble: Ensemble) -> None:
    """-5, and the connection stays; on a follower too, where the leader finds out."""
    for member in (ensemble.leader, ensemble.followers[0]):
        client = ensemble.connect(member)
        xid, _ = client.wire.send(SetData("/n", b""))
        client.send_raw((8).to_bytes(4, "big") + xid.to_bytes(4, "big") + (5).to_bytes(4, "big"))
        ensemble.settle()
        assert [reply.error for reply in replies(client)] == [ErrorCode.MARSHALLING_ERROR]
        assert not client.closed


def test_too_many_unanswered_requests_stop_the_reading_for_a_while() -> None:
    """The queue of one connection is bounded; it drains and reading goes on."""
    ensemble = Ensemble(3, outstanding_max=10)
    client = ensemble.connect(ensemble.followers[0])
    client.send(*[create(f"/n{i}") for i in range(30)])
    assert client.paused
    ensemble.settle()
    assert not client.paused
    assert len(replies(client)) == 30


def test_losing_the_quorum_cuts_every_client(ensemble: Ensemble) -> None:
    """K3: a member that cannot know the outcome any more says nothing."""
    leader = ensemble.leader
    client = ensemble.connect(leader)
    for member in ensemble.followers:
        ensemble.kill(member)
    client.send(create("/n")) if not client.closed else None
    ensemble.pass_time(TICK_MS)
    assert client.closed
    assert replies(client) == []
    assert not ensemble.members[leader].serving


def test_a_leader_change_keeps_sessions_and_data(ensemble: Ensemble) -> None:
    """The new leader has every acknowledged write, and the session goes on there."""
    client = ensemble.connect(ensemble.leader)
    client.call(create("/n", b"x"))
    client.call(create("/e", flags=CreateMode.EPHEMERAL))
    ensemble.kill(ensemble.leader)
    ensemble.run_until(lambda: all(replica.serving for replica in ensemble.members.values()))
    again = ensemble.connect(ensemble.leader, resume=client.session)
    assert data_of(again.call(GetData("/n"))) == b"x"
    assert again.call(Exists("/e")).error == 0
    assert again.call(SetData("/n", b"y")).error == 0


def test_a_disk_that_is_nearly_full_refuses_growth_only(ensemble: Ensemble) -> None:
    """S11: creates, sets and ACLs are refused by name; deletes make room."""
    leader = ensemble.leader
    client = ensemble.connect(ensemble.followers[0])
    client.call(create("/n"))
    ensemble.members[leader].step(SpaceLow(low=True), ensemble.now_ms)
    assert client.call(SetData("/n", b"x")).error == ErrorCode.QUOTA_EXCEEDED
    assert client.call(SetAcl("/n", OPEN_ACL_UNSAFE)).error == ErrorCode.QUOTA_EXCEEDED
    assert client.call(Delete("/n")).error == 0
    ensemble.members[leader].step(SpaceLow(low=False), ensemble.now_ms)
    assert client.call(create("/n")).error == 0


# ---- znodes that go by themselves ----------------------------------------------------------


def test_an_empty_container_goes_and_a_full_one_stays(ensemble: Ensemble) -> None:
    """The leader proposes the deletion, so members agree; watches hear of it."""
    client = ensemble.connect(ensemble.followers[0], 40_000)
    for path in ("/empty", "/full", "/unused"):
        client.call(CreateContainer(path, b"", OPEN_ACL_UNSAFE, CreateMode.CONTAINER))
    for path in ("/empty/x", "/full/x"):
        client.call(create(path))
    client.call(Delete("/empty/x"))
    client.call(Exists("/empty", True))
    _keep_alive(client, 61_000)
    assert [client.call(Exists(p)).error for p in ("/empty", "/full", "/unused")] == [
        ErrorCode.NO_NODE,
        0,
        0,
    ]
    assert [event.event.type for event in client.events] == [EventType.DELETED]
    _keep_alive(client, 360_000)
    assert client.call(Exists("/unused")).error == ErrorCode.NO_NODE


def test_a_znode_outlives_its_time_only_while_it_is_renewed_or_has_children(
    ensemble: Ensemble,
) -> None:
    """SetData renews; a child keeps it; the rest goes."""
    client = ensemble.connect(ensemble.leader, 40_000)
    for path in ("/idle", "/renewed", "/parent"):
        client.call(CreateTtl(path, b"", OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, 70_000))
    client.call(create("/parent/x"))
    _keep_alive(client, 61_000)
    client.call(SetData("/renewed", b"1"))
    _keep_alive(client, 61_000)
    codes = [client.call(Exists(path)).error for path in ("/idle", "/renewed", "/parent")]
    assert codes == [ErrorCode.NO_NODE, 0, 0]
    assert len({replica.tree.digest for replica in ensemble.members.values()}) == 1


def _keep_alive(client: Client, duration_ms: int) -> None:
    for _ in range(duration_ms // 5000 + 1):
        client.ensemble.pass_time(5000)
        client.send(Ping())


# ---- many members --------------------------------------------------------------------------


def test_observers_serve_and_forward(ensemble: Ensemble) -> None:
    """An observer's client cannot tell the difference."""
    ensemble = Ensemble(3, observers=1)
    client = ensemble.connect(4)
    client.call(GetChildren("/", True))
    client.call(create("/n", b"x"))
    assert data_of(client.call(GetData("/n"))) == b"x"
    assert [event.event.path for event in client.events] == ["/"]
    result = client.call(GetChildren("/")).result
    assert isinstance(result, ChildrenResult)
    assert result.children == ("n", "zookeeper")


def until_digests_are_compared(ensemble: Ensemble, client: Client) -> None:
    """Write to /n until all have come to where they look."""
    for _ in range(DIGEST_INTERVAL_TXNS // 100 + 2):
        client.send(*[SetData("/n", b"x") for _ in range(100)])
        ensemble.settle()


def test_equal_members_find_equal_digests(ensemble: Ensemble) -> None:
    """M1: every member's word is compared at the same zxid."""
    client = ensemble.connect(ensemble.followers[0])
    client.call(create("/n"))
    until_digests_are_compared(ensemble, client)
    assert ensemble.stopped == {}
    assert len({replica.tree.digest for replica in ensemble.members.values()}) == 1
    assert all(replica._digests for replica in ensemble.members.values())


def test_a_member_whose_tree_differs_stops(ensemble: Ensemble) -> None:
    """S17: a difference is never logged and ignored."""
    follower = ensemble.followers[0]
    replica = ensemble.members[follower]
    client = ensemble.connect(ensemble.leader)
    client.call(create("/n"))
    replica.tree._sum ^= 1
    until_digests_are_compared(ensemble, client)
    assert "differs from that of most members" in ensemble.stopped[follower]
    assert list(ensemble.stopped) == [follower]


@pytest.mark.parametrize("observers", [0, 1])
def test_a_leader_whose_tree_differs_from_all_others_is_the_one_that_stops(
    observers: int,
) -> None:
    """F29: it is one of them. The others have the right data, and throw nothing away."""
    ensemble = Ensemble(3, observers=observers)
    client = ensemble.connect(ensemble.leader)
    client.call(create("/n"))
    ensemble.members[ensemble.leader].tree._sum ^= 1
    until_digests_are_compared(ensemble, client)
    assert [*ensemble.stopped] == [ensemble.leader]
    assert ensemble.distrusted == {ensemble.leader}


def test_an_observer_whose_tree_differs_stops() -> None:
    """It has no say in whose tree is right."""
    ensemble = Ensemble(3, observers=1)
    client = ensemble.connect(ensemble.leader)
    client.call(create("/n"))
    ensemble.members[4].tree._sum ^= 1
    until_digests_are_compared(ensemble, client)
    assert [*ensemble.stopped] == [4]


@pytest.mark.parametrize("leader_is_wrong", [False, True])
def test_of_two_members_that_differ_both_go_back_to_their_disks(*, leader_is_wrong: bool) -> None:
    """V1: the third is away, so nobody can say whose tree is wrong, and nothing is thrown away."""
    ensemble = Ensemble(3)
    leader, (follower, away) = ensemble.leader, ensemble.followers
    client = ensemble.connect(leader)
    client.call(create("/n"))
    ensemble.kill(away)
    ensemble.members[leader if leader_is_wrong else follower].tree._sum ^= 1
    until_digests_are_compared(ensemble, client)
    assert "no quorum agrees" in ensemble.stopped[follower]
    assert leader not in ensemble.stopped

    ensemble.kill(follower)
    assert "no quorum agrees" in ensemble.stopped[leader]
    assert not ensemble.distrusted


def test_a_digest_of_what_is_not_committed_costs_the_link(ensemble: Ensemble) -> None:
    """Else a broken member could push out what the others said."""
    follower = ensemble.followers[0]
    replica = ensemble.members[follower]
    links = ensemble.members[ensemble.leader].peer.learner_links
    [link] = [link for link, member in links.items() if member == follower]
    assert replica.peer.leader_link is not None
    replica._carry(replica.peer.leader_link, DigestAt(Zxid.of(9, 9), 1))
    ensemble.elapse(follower)
    ensemble.settle()
    assert link not in ensemble.members[ensemble.leader].peer.learner_links


def test_a_standalone_member_needs_nobody() -> None:
    """An ensemble of one founds itself and serves."""
    ensemble = Ensemble(1)
    client = ensemble.connect(1)
    assert client.call(create("/n")).error == 0


def test_a_snapshot_is_asked_for_after_so_many_txns() -> None:
    """The walk starts at a batch's end and is finished while writes go on."""
    ensemble = Ensemble(1, snapshot_every_txns=10)
    client = ensemble.connect(1)
    for i in range(12):
        client.call(create(f"/n{i}"))
    assert 1 in ensemble.snapshots


def test_a_snapshot_is_taken_at_once_when_the_disk_has_lost_the_last_one() -> None:
    """Until there is a new one a start has nothing to begin with, also where nobody writes."""
    ensemble = Ensemble(1)
    ensemble.connect(1).call(create("/a"))
    replica = ensemble.members[1]

    [effect] = replica.step(SnapshotWanted(), ensemble.now_ms)

    assert isinstance(effect, TakeSnapshot)
    builder = TreeBuilder()
    builder.begin_snapshot(effect.position)
    for piece in iter(partial(effect.walk.next_slice, 100), None):
        builder.snapshot_chunk(piece)
    builder.end_snapshot()
    assert builder.tree.digest == replica.tree.digest
    assert replica.step(SnapshotWanted(), ensemble.now_ms) == [], "one is under way"


@pytest.mark.parametrize(("small_bytes", "sets"), [(100_000, 2), (10_000, 15)])
def test_a_large_tree_waits_until_its_log_is_worth_a_snapshot(
    monkeypatch: pytest.MonkeyPatch, small_bytes: int, sets: int
) -> None:
    """Half of what it holds beyond a small tree's 10,000 bytes has to be in the log as well."""
    monkeypatch.setattr("zabd.replica.replica.SMALL_TREE_BYTES", small_bytes)
    ensemble = Ensemble(1, snapshot_every_txns=2)
    client = ensemble.connect(1)
    for number in range(40):
        client.call(create(f"/n{number}", bytes(1_000)))

    def sets_until_a_snapshot() -> int:
        ensemble.snapshots.clear()
        count = 0
        while not ensemble.snapshots:
            client.call(SetData("/n1", bytes(900)))
            count += 1
        return count

    sets_until_a_snapshot()

    assert sets_until_a_snapshot() == pytest.approx(sets, abs=sets // 10)


def test_many_watches_go_over_many_turns_that_follow_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others are served in between, and the member asks for its next turn until all are gone."""
    monkeypatch.setattr("zabd.znode_tree.watches.SWEPT_MAX", 4)
    ensemble = Ensemble(1)
    replica = ensemble.members[1]
    leaving, other = ensemble.connect(1), ensemble.connect(1)
    for number in range(10):
        leaving.call(Exists(f"/{number}", watch=True))
    ensemble.pass_time(1)
    assert replica.deadline_ms > ensemble.now_ms

    ensemble.hang_up(leaving)
    turns = 0
    while replica.clients.watches.sweeping:
        assert replica.deadline_ms <= ensemble.now_ms
        assert other.call(Exists("/0", watch=False)).error == ErrorCode.NO_NODE
        turns += 1

    assert 1 <= turns <= 3
    assert not replica.clients.watches.watched
    assert replica.deadline_ms > ensemble.now_ms


def test_talk_of_a_learner_that_makes_no_sense_costs_its_link(ensemble: Ensemble) -> None:
    """A peer that sends rubbish in order is hung up on; the rest goes on."""
    replica = ensemble.members[ensemble.leader]
    link = next(iter(replica.peer.learner_links))
    from zabd.zab import events  # noqa: PLC0415

    effects = replica.step(events.Received(link, Carried(b"rubbish")), ensemble.now_ms)
    assert zab.Hangup(link) in effects


def test_writes_that_come_while_a_batch_is_decided_share_the_next_one(ensemble: Ensemble) -> None:
    """A batch costs each member a write, a sync and some frames, however many are in it."""
    leader = ensemble.leader
    client = ensemble.connect(leader)
    before = len(ensemble.logs[leader])

    for number in range(10):
        client.send(create(f"/{number}"))
    ensemble.settle()

    assert [batch.count for batch in ensemble.logs[leader][before:]] == [1, 9]


def test_only_an_acknowledgement_of_what_is_committed_may_wait(ensemble: Ensemble) -> None:
    """It changes nothing but a counter; of everything else something may come at once."""
    leader = ensemble.members[ensemble.leader]
    ensemble.connect(ensemble.leader).call(create("/n"))
    committed = leader.peer.committed_zxid

    assert leader.can_wait(Ack(committed))
    assert leader.can_wait(Ack(Zxid(committed - 1)))
    for message in (Ack(Zxid(committed + 1)), Commit(committed), Pong(1), Carried(b"")):
        assert not leader.can_wait(message)


def test_slow_disks_hold_the_next_batch_up_for_a_moment_only(ensemble: Ensemble) -> None:
    """Gathering is for disks that answer soon; others are given more to write at once."""
    leader = ensemble.leader
    client = ensemble.connect(leader)
    ensemble.pass_time(10)
    before = len(ensemble.logs[leader])
    replica = ensemble.members[leader]

    client.send(create("/first"))
    client.send(create("/second"))
    assert len(ensemble.logs[leader]) == before + 1
    assert replica.deadline_ms == ensemble.now_ms + GATHER_MS_MAX

    ensemble.now_ms += GATHER_MS_MAX  # and no disk has answered yet
    ensemble.elapse(leader)
    assert len(ensemble.logs[leader]) == before + 2


def test_a_snapshot_is_late_once_its_log_has_outgrown_the_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a start has to read is bounded, also where writes come faster than it is written."""
    monkeypatch.setattr("zabd.replica.replica.SMALL_TREE_BYTES", 1_500)
    ensemble = Ensemble(1, snapshot_every_txns=4)
    replica = ensemble.members[1]
    later = ensemble._later
    monkeypatch.setattr(  # it does not end
        ensemble, "_later", lambda me, e: None if isinstance(e, SnapshotTaken) else later(me, e)
    )
    client = ensemble.connect(1)
    while not ensemble.snapshots:
        client.call(create("/n", bytes(100)))
    late = []
    for _ in range(6):
        client.call(SetData("/n", bytes(900)))
        late.append(replica.snapshot_is_late)

    assert late == [False, False, False, True, True, True]
    replica.step(SnapshotTaken(done=True), ensemble.now_ms)
    assert not replica.snapshot_is_late


def test_what_a_start_had_to_read_counts_towards_the_next_snapshot() -> None:
    """A member that is started often would otherwise have more to read each time."""
    history = Ensemble(1).logs[1]
    builder = TreeBuilder()
    for batch in [*history, *history]:  # of which the second half is nothing new
        builder.record(batch)
    read = (builder.replayed_txns, builder.replayed_bytes)

    assert read == (sum(b.count for b in history), sum(len(b.record) for b in history))
    fresh, later = (
        Ensemble(1, replayed=replayed, snapshot_every_txns=20) for replayed in ((0, 0), (15, 0))
    )
    for ensemble in (fresh, later):
        client = ensemble.connect(1)
        for number in range(4):
            client.call(create(f"/n{number}"))
    assert (list(fresh.snapshots), list(later.snapshots)) == ([], [1])
