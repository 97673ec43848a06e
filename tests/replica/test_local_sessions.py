"""Sessions that one member alone knows, with a quorum and without."""

from __future__ import annotations

import pytest
from tests.replica.harness import TICK_MS, Client, Ensemble

from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    CloseSession,
    Create,
    CreateMode,
    Exists,
    GetData,
    Multi,
    Ping,
    SetData,
    Sync,
)
from zabd.model.session import PASSWORD_SIZE, ConnectRequest
from zabd.replica.local_sessions import is_local
from zabd.zab import events

EPHEMERAL = Create("/e", b"", OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL)
PERSISTENT = Create("/n", b"x", OPEN_ACL_UNSAFE)


def session_of(client: Client) -> int:
    """The id of the client's session."""
    assert client.session is not None
    return client.session.session_id


# ---- with a quorum -------------------------------------------------------------------------


def test_a_local_session_costs_no_transaction() -> None:
    """Opening and closing it leaves the log alone; writing through it does not."""
    ensemble = Ensemble(3, local_sessions=True)
    member = ensemble.followers[0]
    before = ensemble.members[member].tree.zxid
    client = ensemble.connect(member)
    assert is_local(session_of(client))
    assert client.call(Exists("/")).error == 0
    assert client.call(CloseSession()).error == 0
    assert client.closed
    assert ensemble.members[member].tree.zxid == before


def test_a_local_session_writes_but_owns_nothing() -> None:
    """-120 for an ephemeral, alone or in a multi; anything else is an ordinary write."""
    ensemble = Ensemble(3, local_sessions=True)
    client = ensemble.connect(ensemble.followers[0])
    assert client.call(PERSISTENT).error == 0
    assert client.call(SetData("/n", b"y")).error == 0
    assert client.call(EPHEMERAL).error == ErrorCode.EPHEMERAL_ON_LOCAL_SESSION


def test_a_local_session_resumes_on_its_member_alone() -> None:
    """Elsewhere nobody knows it, so it is told that it is over."""
    ensemble = Ensemble(3, local_sessions=True)
    first, second = ensemble.followers
    client = ensemble.connect(first)
    again = ensemble.connect(first, resume=client.session)
    assert session_of(again) == session_of(client)
    assert client.closed
    elsewhere = ensemble.connect(second, resume=again.session)
    assert elsewhere.session is not None
    assert elsewhere.session.refused


def test_a_silent_local_session_ends() -> None:
    """Its own member keeps its time, and pings renew it."""
    ensemble = Ensemble(3, local_sessions=True)
    silent = ensemble.connect(ensemble.followers[0], 4000)
    speaking = ensemble.connect(ensemble.followers[0], 4000)
    for _ in range(8):
        ensemble.pass_time(1000)
        speaking.send(Ping())
    assert silent.closed
    assert not speaking.closed


@pytest.mark.parametrize("since_tick_ms", range(1100, 2000, 100))
def test_a_local_session_that_was_heard_has_not_expired(since_tick_ms: int) -> None:
    """Not even in the very half tick in which its member is to look for the silent ones."""
    ensemble = Ensemble(1, local_sessions=True)
    ensemble.pass_time(since_tick_ms)
    client = ensemble.connect(1, 4000)
    ensemble.pass_time(3900)
    client.send(Ping())
    ensemble.pass_time(3900)
    assert not client.closed


@pytest.mark.parametrize("op", [EPHEMERAL, Multi((PERSISTENT, EPHEMERAL))])
def test_the_first_ephemeral_makes_a_session_global_where_that_is_on(op: Create | Multi) -> None:
    """Same id, and from then on resumable everywhere; its ephemerals go when it expires."""
    ensemble = Ensemble(3, local_sessions=True, local_sessions_upgrade=True)
    first, second = ensemble.followers
    client = ensemble.connect(first, 4000)
    assert client.call(op).error == 0
    tree = ensemble.members[ensemble.leader].tree
    assert tree.nodes["/e"].owner == session_of(client)
    moved = ensemble.connect(second, 4000, resume=client.session)
    assert session_of(moved) == session_of(client)
    assert moved.call(SetData("/e", b"z")).error == 0
    ensemble.pass_time(4000 + 2 * TICK_MS)
    assert "/e" not in tree.nodes


def test_a_session_that_became_global_is_fenced_like_any_other() -> None:
    """Its lock is gone once its close is prepared, though its member has not heard of that yet."""
    ensemble = Ensemble(3, local_sessions=True, local_sessions_upgrade=True)
    client = ensemble.connect(ensemble.followers[0], 4000)
    assert client.call(EPHEMERAL).error == 0
    assert client.call(PERSISTENT).error == 0
    leader = ensemble.members[ensemble.leader]
    assert leader.leadership is not None
    while session_of(client) in leader.leadership.tracker:
        ensemble.now_ms += TICK_MS // 2
        ensemble._step(ensemble.leader, events.Elapsed())  # the close is on its way

    client.send(SetData("/n", b"by whoever has the lock"))
    ensemble.settle()

    assert "/e" not in leader.tree.nodes
    assert leader.tree.nodes["/n"].data == b"x"
    assert client.closed


# ---- without one ---------------------------------------------------------------------------


def lonely(ensemble: Ensemble) -> int:
    """The member that is left when two of three are gone, after a while."""
    member = ensemble.followers[0]
    for other in [m for m in ensemble.members if m != member]:
        ensemble.kill(other)
    ensemble.pass_time(4 * TICK_MS)
    return member


def reader(ensemble: Ensemble, member: int, *, read_only: bool) -> Client:
    """A client that says whether it would only read."""
    client = ensemble.dial(member)
    hello = ConnectRequest(0, 0, 4000, 0, bytes(PASSWORD_SIZE), read_only)
    client.send_raw(client.wire.connect(hello))
    ensemble.settle()
    return client


def test_without_a_quorum_readers_who_asked_for_it_are_served() -> None:
    """Reads are answered, every write is refused by name, and so is sync."""
    ensemble = Ensemble(3, read_only_enabled=True)
    ensemble.connect(ensemble.leader).call(PERSISTENT)
    client = reader(ensemble, lonely(ensemble), read_only=True)
    assert client.session is not None
    assert client.session.read_only
    assert client.call(GetData("/n")).error == 0
    for op in (SetData("/n", b"y"), EPHEMERAL, Sync("/n"), Multi((PERSISTENT,))):
        assert client.call(op).error == ErrorCode.NOT_READ_ONLY
    assert client.call(CloseSession()).error == 0
    assert client.closed


def test_without_a_quorum_others_are_turned_away() -> None:
    """A client that did not ask for it must not take old data for the present."""
    ensemble = Ensemble(3, read_only_enabled=True)
    member = lonely(ensemble)
    assert reader(ensemble, member, read_only=False).closed


def test_a_session_of_the_ensemble_is_not_resumed_without_a_quorum() -> None:
    """It may still live; neither a yes nor a no would be true."""
    ensemble = Ensemble(3, read_only_enabled=True)
    client = ensemble.connect(ensemble.followers[0])
    assert client.session is not None
    member = lonely(ensemble)
    again = ensemble.dial(member)
    hello = ConnectRequest(0, 0, 4000, session_of(client), client.session.password, True)
    again.send_raw(again.wire.connect(hello))
    ensemble.settle()
    assert again.closed
    assert again.session is None


@pytest.mark.parametrize("local_sessions", [False, True])
def test_with_the_quorum_back_a_readers_session_is_over(*, local_sessions: bool) -> None:
    """It is refused as one that has expired, unless sessions are local by choice."""
    ensemble = Ensemble(3, read_only_enabled=True, local_sessions=local_sessions)
    member = ensemble.followers[0]
    replica = ensemble.members[member]
    replica.clients.cut_all()
    replica.clients.serving, replica.clients.read_only = False, True
    client = reader(ensemble, member, read_only=True)
    replica._update_serving()
    ensemble.elapse(member)
    assert client.closed

    again = ensemble.connect(member, resume=client.session)
    assert again.session is not None
    assert again.session.refused is not local_sessions
    assert (session_of(client) in replica.clients.local) is local_sessions


def test_read_only_mode_is_off_unless_asked_for() -> None:
    """By default a member without a quorum serves nobody."""
    ensemble = Ensemble(3)
    assert reader(ensemble, lonely(ensemble), read_only=True).closed
