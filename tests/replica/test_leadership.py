import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replica.harness import TICK_MS, Ensemble

from zabd.model.acl import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Identity
from zabd.model.errors import ConfigError, RemoteProtocolError
from zabd.model.ops import Create, Multi, OpCode, SetData
from zabd.model.zxid import Zxid
from zabd.replica import ReplicaConfig, messages
from zabd.replica.config import BATCH_BYTES_MAX, BATCH_OPS_MAX, JUTE_MAXBUFFER_MAX
from zabd.replica.leadership import Leadership
from zabd.replica.messages import Answer, AnswerKind, Intent
from zabd.wire.requests import encode_request
from zabd.zab import broadcast
from zabd.zab.config import EnsembleConfig
from zabd.znode_tree import txns
from zabd.znode_tree.prepare import MULTI_ACL_BYTES_MAX
from zabd.znode_tree.tree import ZnodeTree

FOLLOWER = 2
TIMEOUT_MS = (12_000).to_bytes(4, "big")


def config_of(request_bytes_max: int = JUTE_MAXBUFFER_MAX) -> ReplicaConfig:
    """The settings of member 1 of 3."""
    return ReplicaConfig(
        ensemble=EnsembleConfig(me=1, voters=(1, 2, 3), observers=(), tick_ms=2000),
        min_session_timeout_ms=4000,
        max_session_timeout_ms=40_000,
        request_bytes_max=request_bytes_max,
    )


def leadership() -> Leadership:
    """A leader's half on an empty tree, to which only the test delivers."""
    return Leadership(config_of(), ZnodeTree(), random.Random(1), wall_ms=0, now_ms=0)


def txns_of(leader: Leadership, first: Zxid) -> list[txns.Txn]:
    """The txns of the next batch."""
    batch = leader.next_batch(first, now_ms=0)
    assert batch is not None
    _, entries = txns.unpack_batch(batch[1])
    return [entry[3] for entry in entries]


def test_a_session_may_write_before_its_creation_is_applied_here() -> None:
    """With the leader's disk the slowest of three, a follower's client is ahead of its tree."""
    leader = leadership()
    leader.gather([Intent(FOLLOWER, 1, 0, OpCode.CREATE_SESSION, TIMEOUT_MS, ())])
    *_, created = txns_of(leader, Zxid.of(1, 1))
    session_id = Zxid.of(1, 2)  # behind the txn that founds the ensemble
    request = encode_request(1, Create("/a", b"", OPEN_ACL_UNSAFE, 0))[4:]

    leader.gather([Intent(FOLLOWER, 2, session_id, OpCode.CREATE, request, ())])
    leader.gather([Intent(FOLLOWER, 3, session_id, messages.VALIDATE, TIMEOUT_MS, ())])
    [write] = txns_of(leader, Zxid.of(1, 3))

    assert created[0] == txns.CREATE_SESSION
    assert write[0] == txns.CREATE
    [answer] = leader.take_answers()[FOLLOWER]
    assert answer.kind is AnswerKind.ALIVE


def test_a_client_hears_that_its_session_is_gone_only_once_the_close_is_committed() -> None:
    """A close in flight may be lost with its leader, and the session live on (core seed 1009)."""
    leader = leadership()
    leader.gather([Intent(FOLLOWER, 1, 0, OpCode.CREATE_SESSION, TIMEOUT_MS, ())])
    found, created = txns_of(leader, Zxid.of(1, 1))
    session_id = Zxid.of(1, 2)
    leader._tree.apply(Zxid.of(1, 1), 0, 0, found)
    leader._tree.apply(session_id, 0, session_id, created)
    leader.delivered(session_id)
    leader.gather([Intent(FOLLOWER, 2, session_id, OpCode.CLOSE_SESSION, b"", ())])
    leader.gather([Intent(FOLLOWER, 3, session_id, messages.VALIDATE, TIMEOUT_MS, ())])
    leader.gather([Intent(FOLLOWER, 4, Zxid.of(1, 1), messages.VALIDATE, TIMEOUT_MS, ())])

    [closed] = txns_of(leader, Zxid.of(1, 3))
    answered_before = leader.take_answers()[FOLLOWER]
    leader._tree.apply(Zxid.of(1, 3), 0, session_id, closed)
    leader.delivered(Zxid.of(1, 3))

    assert answered_before == [Answer(AnswerKind.GONE, 4, 0)]  # of a session that never was
    assert leader.take_answers() == {FOLLOWER: [Answer(AnswerKind.GONE, 3, 0)]}


def test_a_leader_does_not_judge_the_sessions_of_a_later_one() -> None:
    """It is deposed and has not noticed: its member is left, and the session lives elsewhere."""
    leader = leadership()
    later = Zxid.of(9, 9)
    leader.gather([Intent(FOLLOWER, 1, later, messages.VALIDATE, TIMEOUT_MS, ())])
    leader.next_batch(Zxid.of(1, 1), now_ms=0)

    assert leader.take_answers() == {FOLLOWER: [Answer(AnswerKind.REFUSED, 1, 0)]}


def test_the_largest_request_behind_a_batch_that_is_nearly_full_still_fits() -> None:
    """All that may come together: others before it, jute.maxbuffer at its most, ACLs that grow."""
    leader = leadership()
    leader.gather([Intent(FOLLOWER, 1, 0, OpCode.CREATE_SESSION, TIMEOUT_MS, ())])
    txns_of(leader, Zxid.of(1, 1))
    session_id = Zxid.of(1, 2)
    identities = (Identity("digest", "u:" + "x" * 60_000),)
    before = SetData("/", bytes(BATCH_BYTES_MAX - 100))
    grows = [Create(f"/{n}", b"", CREATOR_ALL_ACL, 0) for n in range(MULTI_ACL_BYTES_MAX // 60_100)]
    large = Multi((*grows, SetData("/", bytes(JUTE_MAXBUFFER_MAX - 5000))))
    for number, op in enumerate((before, large), 2):
        frame = encode_request(number, op)[4:]
        assert len(frame) <= JUTE_MAXBUFFER_MAX
        leader.gather([Intent(FOLLOWER, number, session_id, op.opcode, frame, identities)])

    batch = leader.next_batch(Zxid.of(1, 3), now_ms=0)

    assert batch is not None
    count, payload = batch
    assert count == len((before, large))
    assert len(payload) > BATCH_BYTES_MAX + JUTE_MAXBUFFER_MAX + MULTI_ACL_BYTES_MAX - 200_000
    beside_bytes = 100  # of each txn: who asked, and its numbers
    assert len(payload) < broadcast.BATCH_BYTES_MAX - BATCH_OPS_MAX * beside_bytes


def test_a_member_does_not_take_requests_that_no_batch_would_hold() -> None:
    """By its own configuration; what another member forwards costs that one its link."""
    with pytest.raises(ConfigError, match="at most 8388608, not 8388609"):
        config_of(request_bytes_max=JUTE_MAXBUFFER_MAX + 1)

    intent = Intent(FOLLOWER, 1, 1, OpCode.SET_DATA, bytes(JUTE_MAXBUFFER_MAX + 1), ())
    with pytest.raises(RemoteProtocolError, match="more than 8388608 bytes"):
        messages.decode(messages.encode(messages.Forward((intent,))), FOLLOWER)


def test_sessions_that_fall_silent_together_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: a turn closes a bounded number, and the next ones do not wait for half a tick each."""
    monkeypatch.setattr("zabd.replica.leadership.EXPIRIES_PER_TURN_MAX", 10)
    ensemble = Ensemble(3)
    clients = [ensemble.connect(ensemble.followers[0], 4000) for _ in range(100)]
    kept = ensemble.connect(ensemble.followers[1], 40_000)
    for client in clients:
        ensemble.hang_up(client)

    ensemble.pass_time(4000 + 2 * TICK_MS)

    for member in ensemble.members.values():
        assert list(member.tree.sessions) == [kept.session.session_id if kept.session else 0]
    assert max(batch.count for batch in ensemble.logs[ensemble.leader]) <= 10


def test_a_leader_without_a_quorum_does_not_go_on_to_close_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has gathered waits; it neither grows nor keeps the member awake."""
    monkeypatch.setattr("zabd.replica.leadership.EXPIRIES_PER_TURN_MAX", 1)
    leader = leadership()
    leader.gather([Intent(FOLLOWER, n, 0, OpCode.CREATE_SESSION, TIMEOUT_MS, ()) for n in range(3)])
    leader.next_batch(Zxid.of(1, 1), now_ms=0)

    for now_ms in range(0, 14_001, TICK_MS):  # the time of those sessions
        leader.expire(now_ms)
    waiting = leader.expires_more
    leader.expire_more()
    gathered = leader.gathered
    leader.next_batch(Zxid.of(1, 5), now_ms=14_000)

    assert (waiting, gathered, leader.expires_more) == (False, 1, True)
    for _ in range(2):
        leader.expire_more()
        leader.next_batch(Zxid.of(1, 6), now_ms=14_000)
    leader.expire_more()
    assert (leader.gathered, leader.expires_more) == (0, False)


_ANYTHING = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**64 - 1) | st.integers(0, 3),
        st.sampled_from([*map(int, OpCode), messages.VALIDATE]) | st.integers(-(2**63), 2**64 - 1),
        st.binary(max_size=60) | st.just(TIMEOUT_MS),
        st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=2),
    ),
    max_size=6,
)


@given(_ANYTHING)
def test_whatever_a_member_forwards_ends_at_most_its_link(
    rows: list[tuple[int, int, bytes, list[tuple[str, str]]]],
) -> None:
    """What is decoded can be prepared, packed and applied."""
    intents = tuple(
        Intent(FOLLOWER, number, session_id, opcode, frame, tuple(Identity(*i) for i in shown))
        for number, (session_id, opcode, frame, shown) in enumerate(rows)
    )
    try:
        taken = messages.decode(messages.encode(messages.Forward(intents)), FOLLOWER)
    except RemoteProtocolError:
        return
    assert isinstance(taken, messages.Forward)
    leader = leadership()
    leader.gather(taken.intents)
    first = Zxid.of(1, 1)

    batch = leader.next_batch(first, now_ms=0)

    assert batch is not None
    time_ms, entries = txns.unpack_batch(batch[1])
    for zxid, (_, _, session_id, txn) in enumerate(entries, first):
        leader._tree.apply(zxid, time_ms, session_id, txn)
    leader.delivered(Zxid(first + batch[0] - 1))
