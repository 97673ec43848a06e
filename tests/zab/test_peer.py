"""The front door: what one peer says to one event, and that nothing from outside can break it."""

import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.zab.harness import Shape, World, stable
from tests.zab.test_codec import any_message
from tests.zab.test_log import history

from zabd.model.errors import LocalProtocolError, RemoteProtocolError
from zabd.model.zxid import ZXID_ZERO, Zxid
from zabd.zab import effects as fx
from zabd.zab import events as ev
from zabd.zab import messages as msg
from zabd.zab import peer as front_door
from zabd.zab.config import EnsembleConfig, RecoveredState
from zabd.zab.log import GENESIS, LogPosition, chain_of, frame_record
from zabd.zab.messages import FORMAT, PeerState, Standing
from zabd.zab.peer import TRANSITIONS, Peer

CLUSTER = b"cluster of tests"
LEADER_LINK = 7


def make(
    recovered: RecoveredState | None = None, me: int = 1, voters: tuple[int, ...] = (1, 2, 3)
) -> Peer:
    """A member of a cluster that has been running; it has been started."""
    config = EnsembleConfig(me=me, voters=voters)
    recovered = recovered or RecoveredState(4, 4, CLUSTER)
    peer = Peer(config, recovered, random.Random(1))
    peer.step(ev.Start(), 0)
    return peer


def receive(peer: Peer, message: msg.Message, link: int = LEADER_LINK) -> list[fx.Effect]:
    """What the peer does about a message."""
    return peer.step(ev.Received(link, message), 1)


def promised(recovered: RecoveredState | None = None) -> Peer:
    """A follower of 3 that has promised epoch 5 durably."""
    peer = make(recovered)
    peer.step(ev.Elected(3), 0)
    peer.step(ev.Dialled(LEADER_LINK, 3), 0)
    [persisting] = receive(peer, msg.LeaderInfo(5))
    assert isinstance(persisting, fx.PersistEpochs)
    effects = peer.step(ev.EpochsPersisted(persisting.request_id), 1)
    assert isinstance(effects[0], fx.Send)
    assert isinstance(effects[0].message, msg.AckEpoch)
    return peer


def following() -> Peer:
    """A follower of 3 in broadcast of epoch 5, with an empty history."""
    peer = promised()
    receive(peer, msg.Diff(GENESIS))
    [persisting] = receive(peer, msg.NewLeader(5, CLUSTER, GENESIS))
    assert isinstance(persisting, fx.PersistEpochs)
    peer.step(ev.EpochsPersisted(persisting.request_id), 1)
    receive(peer, msg.UpToDate(ZXID_ZERO))
    assert peer.serving
    return peer


def standalone() -> Peer:
    """An ensemble of one, serving."""
    peer = make(voters=(1,))
    for _ in range(2):
        peer.step(ev.EpochsPersisted(peer._m.persisting.request_id), 1)  # type: ignore[union-attr]
    assert peer.can_submit
    return peer


def batch(counter: int, count: int = 1, previous: LogPosition = GENESIS) -> msg.Propose:
    """A proposal of epoch 5."""
    first = Zxid.of(5, counter)
    return msg.Propose(first, count, frame_record(first, count, b"payload", previous.chain))


# --- a follower -----------------------------------------------------------------------------------


def test_follower_acks_only_once_the_batch_is_durable() -> None:
    """A proposal that a crash could still lose must not count towards a quorum."""
    follower = following()

    [append] = receive(follower, batch(1, count=2))
    assert isinstance(append, fx.Append)
    persisted = follower.step(ev.Persisted(append.append_id), 1)

    assert append.record == batch(1, count=2).record
    assert persisted == [fx.Send(LEADER_LINK, msg.Ack(Zxid.of(5, 2)))]


def test_follower_delivers_only_what_is_committed_and_durable_here() -> None:
    """A snapshot of its tree may never be ahead of its own log."""
    follower = following()
    [append] = receive(follower, batch(1))
    assert isinstance(append, fx.Append)

    assert receive(follower, msg.Commit(Zxid.of(5, 1))) == []
    delivered, acked = follower.step(ev.Persisted(append.append_id), 1)

    assert isinstance(delivered, fx.Deliver)
    assert [one.last for one in delivered.batches] == [Zxid.of(5, 1)]
    assert acked == fx.Send(LEADER_LINK, msg.Ack(Zxid.of(5, 1)))
    assert follower.delivered_zxid == follower.committed_zxid == Zxid.of(5, 1)


def test_one_ack_speaks_for_all_that_one_fsync_made_durable() -> None:
    """Group commit: the last append id of a write stands for all of them."""
    follower = following()
    receive(follower, batch(1))
    record = frame_record(Zxid.of(5, 2), 1, b"", chain_of(batch(1).record))
    [append] = receive(follower, msg.Propose(Zxid.of(5, 2), 1, record))
    assert isinstance(append, fx.Append)

    assert follower.step(ev.Persisted(append.append_id), 1) == [
        fx.Send(LEADER_LINK, msg.Ack(Zxid.of(5, 2)))
    ]


def test_follower_answers_a_ping_with_its_round() -> None:
    """The leader counts answers to one question, not signs of life."""
    assert receive(following(), msg.Ping(9)) == [fx.Send(LEADER_LINK, msg.Pong(9))]


def test_a_promise_leaves_only_when_it_is_durable() -> None:
    """D3: a crash after the answer must not forget it."""
    peer = make()
    peer.step(ev.Elected(3), 0)
    [dialled] = peer.step(ev.Dialled(LEADER_LINK, 3), 0)
    assert isinstance(dialled, fx.Send)
    assert isinstance(dialled.message, msg.FollowerInfo)

    [persisting] = receive(peer, msg.LeaderInfo(5))

    assert persisting == fx.PersistEpochs(persisting.request_id, 5, 4, CLUSTER)  # type: ignore[union-attr]


def test_an_epoch_accepted_before_is_answered_without_the_disk() -> None:
    """It is durable already; whether the answer counts is for the leader to know."""
    peer = make(RecoveredState(5, 4, CLUSTER))
    peer.step(ev.Elected(3), 0)
    peer.step(ev.Dialled(LEADER_LINK, 3), 0)

    effects = receive(peer, msg.LeaderInfo(5))

    assert effects[0] == fx.Send(LEADER_LINK, msg.AckEpoch(4, GENESIS))


def test_an_absurd_epoch_is_refused() -> None:
    """P22: a stranger cannot use up all epochs with one message."""
    peer = make()
    peer.step(ev.Elected(3), 0)
    peer.step(ev.Dialled(LEADER_LINK, 3), 0)

    with pytest.raises(RemoteProtocolError, match="absurd"):
        receive(peer, msg.LeaderInfo(2**30))


def test_new_leader_is_acknowledged_after_history_and_epoch_in_this_order() -> None:
    """D4: no moment has the new epoch and the old history."""
    peer = promised()
    receive(peer, msg.Diff(GENESIS))
    one = history((4, 1, 1))[0]
    [append] = receive(peer, msg.Propose(*one))
    assert isinstance(append, fx.Append)

    assert receive(peer, msg.NewLeader(5, CLUSTER, one.position)) == []
    [persisting] = peer.step(ev.Persisted(append.append_id), 1)
    assert persisting == fx.PersistEpochs(persisting.request_id, 5, 5, CLUSTER)  # type: ignore[union-attr]
    acked = peer.step(ev.EpochsPersisted(persisting.request_id), 1)  # type: ignore[union-attr]

    assert acked == [fx.Send(LEADER_LINK, msg.AckNewLeader(5, one.last))]


def test_truncation_below_the_commit_point_is_misbehaviour() -> None:
    """What was delivered can never be taken back."""
    one, two = history((4, 1, 1), (4, 2, 1))
    peer = promised(RecoveredState(4, 4, CLUSTER, two.position))

    with pytest.raises(RemoteProtocolError, match="committed here"):
        receive(peer, msg.Trunc(one.position))


def test_an_unknown_truncation_point_is_answered_with_a_refusal() -> None:
    """The leader then sends a snapshot."""
    one, two = history((4, 1, 1), (4, 2, 1))
    peer = promised(RecoveredState(4, 4, CLUSTER, one.position, (two,)))

    assert receive(peer, msg.Trunc(LogPosition(two.last, b"another."))) == [
        fx.Send(LEADER_LINK, msg.TruncRefused())
    ]


def test_records_wait_for_the_truncation() -> None:
    """The leader hears Aligned only when the disk has done it."""
    one, two = history((4, 1, 1), (4, 2, 1))
    peer = promised(RecoveredState(4, 4, CLUSTER, one.position, (two,)))

    [truncate] = receive(peer, msg.Trunc(one.position))
    assert isinstance(truncate, fx.Truncate)
    with pytest.raises(RemoteProtocolError, match="aligned"):
        receive(peer, batch(1, previous=one.position))
    aligned = peer.step(ev.Truncated(truncate.request_id, done=True), 1)

    assert aligned == [fx.Send(LEADER_LINK, msg.Aligned(one.position))]
    assert peer.logged_zxid == one.last


def test_a_truncation_that_the_disk_could_not_do_is_not_taken_as_done() -> None:
    """M14: memory stays with the disk, and the leader sends a snapshot instead."""
    one, two = history((4, 1, 1), (4, 2, 1))
    peer = promised(RecoveredState(4, 4, CLUSTER, one.position, (two,)))
    [truncate] = receive(peer, msg.Trunc(one.position))
    assert isinstance(truncate, fx.Truncate)

    refused = peer.step(ev.Truncated(truncate.request_id, done=False), 1)

    assert refused == [fx.Send(LEADER_LINK, msg.TruncRefused())]
    assert peer.logged_zxid == two.last


def test_an_installation_that_outlives_its_link_is_waited_for() -> None:
    """A peer whose state may still change under it does not vote."""
    peer = promised()
    position = LogPosition(Zxid.of(4, 9), b"snapshot")
    [install] = receive(peer, msg.Snap(position))
    assert install == fx.InstallSnapshot(LEADER_LINK, position)

    lost = peer.step(ev.Disconnected(LEADER_LINK), 1)
    assert [type(effect) for effect in lost] == [fx.Became]
    installed = peer.step(ev.SnapshotInstalled(LEADER_LINK, position), 2)

    votes = [one.notification for one in installed if isinstance(one, fx.Notify)]
    assert [vote.zxid for vote in votes] == [position.zxid, position.zxid]
    assert peer.delivered_zxid == position.zxid


# --- a leader -------------------------------------------------------------------------------------


def test_a_leader_counts_itself_only_for_what_is_durable() -> None:
    """D2: an ensemble of one waits for its own disk."""
    leader = standalone()

    [append] = leader.step(ev.Submit(2, b"payload"), 1)
    assert isinstance(append, fx.Append)
    assert leader.delivered_zxid == ZXID_ZERO
    [delivered] = leader.step(ev.Persisted(append.append_id), 2)

    assert isinstance(delivered, fx.Deliver)
    assert leader.delivered_zxid == Zxid.of(5, 2)
    assert leader.next_zxid == Zxid.of(5, 3)


def test_an_epoch_leaves_the_leader_only_when_it_has_promised_it_itself() -> None:
    """D3, M05: after a crash it must not lead the same epoch again."""
    leader = make()
    leader.step(ev.Elected(1), 0)
    info = msg.FollowerInfo(FORMAT, CLUSTER, 2, False, 4, GENESIS, Standing.VOTER)

    [persisting] = receive(leader, info, link=1)
    assert persisting == fx.PersistEpochs(persisting.request_id, 5, 4, CLUSTER)  # type: ignore[union-attr]
    named = leader.step(ev.EpochsPersisted(persisting.request_id), 1)  # type: ignore[union-attr]

    assert named == [fx.Send(1, msg.LeaderInfo(5))]


def test_an_epoch_promised_before_does_not_count() -> None:
    """Z16, M06: then two leaders could have it; the leader asks for a later one instead."""
    leader = make(RecoveredState(4, 4, CLUSTER), voters=(1, 2, 3, 4, 5))
    leader.step(ev.Elected(1), 0)
    for link, member in ((1, 2), (2, 3)):
        info = msg.FollowerInfo(FORMAT, CLUSTER, member, False, 4, GENESIS, Standing.VOTER)
        effects = receive(leader, info, link)
    assert isinstance(effects[0], fx.PersistEpochs)
    leader.step(ev.EpochsPersisted(effects[0].request_id), 1)

    late = msg.FollowerInfo(FORMAT, CLUSTER, 4, False, 5, GENESIS, Standing.VOTER)
    receive(leader, late, link=3)

    assert leader.state is PeerState.LOOKING


def test_only_an_established_leader_takes_batches() -> None:
    """The caller's mistake raises before anything changes."""
    follower = following()
    before = follower.state_key()

    with pytest.raises(LocalProtocolError):
        follower.step(ev.Submit(1, b""), 1)
    with pytest.raises(LocalProtocolError):
        follower.step(ev.Confirm(1), 1)

    assert follower.state_key() == before


def test_a_leader_that_is_told_too_much_says_so() -> None:
    """Backpressure: what is in flight is bounded, and the host can ask before."""
    leader = standalone()
    submitted = 0

    while leader.can_submit:
        leader.step(ev.Submit(1, b""), 1)
        submitted += 1

    assert submitted == 512
    with pytest.raises(LocalProtocolError):
        leader.step(ev.Submit(1, b""), 1)
    leader.step(ev.Persisted(leader._m.appends[-1].append_id), 2)
    assert leader.can_submit


def test_abdication_closes_every_link_at_once() -> None:
    """S9: the followers elect within a tick when the leader's disk fails."""
    world = World(1, Shape(latency_ms=(1, 1)))
    world.start()
    world.run_until(lambda: stable(world))
    leader = world.leader()
    assert leader is not None
    assert leader.peer is not None

    effects = leader.peer.step(ev.Abdicate("the disk failed"), world.now_ms)

    assert sum(isinstance(effect, fx.Hangup) for effect in effects) == 2
    assert leader.peer.state is PeerState.LOOKING


def test_confirmations_share_rounds() -> None:
    """Any number of syncs costs one round trip after another, not one each."""
    world = World(1, Shape(latency_ms=(5, 5), disk_ms=(0, 0)))
    world.start()
    world.run_until(lambda: stable(world))
    leader = world.leader()
    assert leader is not None
    assert leader.peer is not None

    world.run(20)
    pings = 0
    for token in range(1, 101):
        world._asked_when[token] = 0
        effects = leader.peer.step(ev.Confirm(token), world.now_ms)
        pings += sum(isinstance(effect, fx.Send) for effect in effects)
        for effect in effects:
            world._perform(leader, effect)
    world.run(50)

    assert leader.confirmed == [*range(1, 101)]
    assert pings == 2


# --- links and elections --------------------------------------------------------------------------


def test_what_arrives_on_another_link_is_not_for_us() -> None:
    """A5, M77: a leader is a link, not a number."""
    follower = following()
    before = follower.state_key()

    assert receive(follower, msg.Commit(Zxid.of(5, 1)), link=8) == []
    assert receive(follower, batch(1), link=8) == []

    assert follower.state_key() == before


def test_the_link_to_the_leader_is_the_one_that_carries() -> None:
    """The replica's own talk counts only on the link of this leadership."""
    follower = following()

    assert follower.accepts(LEADER_LINK)
    assert not follower.accepts(8)
    follower.step(ev.Disconnected(LEADER_LINK), 2)
    assert not follower.accepts(LEADER_LINK)
    assert follower.leader_link is None


@pytest.mark.parametrize(
    "change",
    [
        {"sender": 9},
        {"sender": 1},
        {"leader": 9},
        {"cluster_id": b"another cluster."},
        {"round": 2**60},
        {"epoch": 2**30},
    ],
)
def test_a_vote_of_a_stranger_changes_nothing(change: dict[str, object]) -> None:
    """P22: non-members, foreign clusters, absurd rounds and epochs are passed over."""
    fields: dict[str, object] = {
        "sender": 2,
        "cluster_id": CLUSTER,
        "round": 2,
        "leader": 3,
        "zxid": Zxid.of(9, 9),
        "epoch": 9,
        "state": PeerState.LOOKING,
        "standing": Standing.VOTER,
        "history_empty": False,
    }
    peer = make()
    before = peer.state_key()

    assert peer.step(ev.Notified(msg.Notification(**(fields | change))), 1) == []  # type: ignore[arg-type]

    assert peer.state_key() == before


@pytest.mark.parametrize(
    "wrong",
    [
        msg.FollowerInfo(FORMAT + 1, CLUSTER, 2, False, 4, GENESIS, Standing.VOTER),
        msg.FollowerInfo(FORMAT, b"another cluster.", 2, False, 4, GENESIS, Standing.VOTER),
        msg.FollowerInfo(FORMAT, CLUSTER, 9, False, 4, GENESIS, Standing.VOTER),
        msg.FollowerInfo(FORMAT, CLUSTER, 1, False, 4, GENESIS, Standing.VOTER),
        msg.FollowerInfo(FORMAT, CLUSTER, 2, True, 4, GENESIS, Standing.VOTER),
        msg.FollowerInfo(FORMAT, CLUSTER, 2, False, 2**30, GENESIS, Standing.VOTER),
        msg.FollowerInfo(FORMAT, None, 2, False, 4, GENESIS, Standing.VOTER),
        msg.FollowerInfo(FORMAT, CLUSTER, 2, False, 4, GENESIS, Standing.BLANK),
    ],
)
def test_a_learner_that_does_not_belong_is_refused(wrong: msg.FollowerInfo) -> None:
    """P22, F22: another format, cluster, ensemble or role; an absurd epoch; a contradiction."""
    looking, leader = make(), make()
    leader.step(ev.Elected(1), 0)

    for peer in (looking, leader):
        with pytest.raises(RemoteProtocolError):
            receive(peer, wrong)


def test_a_peer_starts_once() -> None:
    """The host's mistakes are told apart from a peer's."""
    peer = Peer(EnsembleConfig(me=1, voters=(1,)), RecoveredState(), random.Random(1))
    with pytest.raises(LocalProtocolError, match="Start"):
        peer.step(ev.Elapsed(), 0)
    peer.step(ev.Start(), 0)
    with pytest.raises(LocalProtocolError, match="once"):
        peer.step(ev.Start(), 0)


# --- any event in any phase -----------------------------------------------------------------------


def any_moment(seed: int) -> World:
    """An ensemble caught at a random moment of a random life."""
    chance = random.Random(seed)
    shape = Shape(voters=chance.choice([1, 3]), observers=chance.choice([0, 1]))
    world = World(seed, shape)
    world.start()
    for number in range(chance.randint(0, 8)):
        world.run(chance.randint(0, 20))
        world.submit(b"%d" % number)
        if chance.random() < 0.3:
            one = chance.choice([*world.members])
            world.crash(one)
            world.run(chance.randint(0, 10))
            world.restart(one)
    return world


links = st.integers(0, 6)
any_event = st.one_of(
    st.builds(ev.Received, links, any_message),
    st.builds(ev.Received, links, any_message),
    st.builds(ev.Disconnected, links),
    st.builds(ev.Dialled, links, st.integers(1, 4)),
    st.builds(ev.DialFailed, st.integers(1, 4)),
    st.builds(ev.Elapsed),
    st.builds(ev.Abdicate, st.just("any reason")),
    st.builds(ev.Elected, st.integers(0, 5)),
)


@given(st.integers(0, 400), st.data())
def test_any_event_in_any_phase_raises_only_remote_protocol_error(
    seed: int, data: st.DataObject
) -> None:
    """Whatever comes over any link at any moment, it costs at most that link."""
    world = any_moment(seed)
    number = data.draw(st.sampled_from([*world.members]))
    peer = copy.deepcopy(world.members[number].peer)
    assert peer is not None
    now_ms = world.now_ms
    for event in data.draw(st.lists(any_event, max_size=8)):
        now_ms += data.draw(st.integers(0, 300))
        try:
            peer.step(event, now_ms)
        except RemoteProtocolError:
            assert isinstance(event, ev.Received)
            peer.step(ev.Disconnected(event.link), now_ms)


@given(st.integers(0, 400), st.data())
def test_near_misses_are_refused_or_taken_never_a_crash(seed: int, data: st.DataObject) -> None:
    """The messages that are almost right: the ones on their way, on another link or twice."""
    world = any_moment(seed)
    member = world.members[data.draw(st.sampled_from([*world.members]))]
    peer = copy.deepcopy(member.peer)
    assert peer is not None
    flying = [m for one in world.members.values() for e in one.ends.values() for _, m in e.inbox]
    flying += [msg.Ping(1), msg.Pong(1), msg.Commit(peer.logged_zxid), msg.Ack(peer.logged_zxid)]
    flying += [msg.UpToDate(peer.logged_zxid), msg.AckNewLeader(peer.epoch, peer.logged_zxid)]
    flying += [msg.Trunc(peer._m.tail.base), msg.Diff(peer._m.tail.last), msg.TruncRefused()]
    flying += [msg.Aligned(peer._m.tail.last), msg.LeaderInfo(peer.accepted_epoch + 1)]
    for message in data.draw(st.lists(st.sampled_from(flying), max_size=10)):
        if isinstance(message, msg.SnapshotChunk | msg.Notification):
            continue
        link = data.draw(st.sampled_from([*member.ends, 99]))
        try:
            peer.step(ev.Received(link, message), world.now_ms)
        except RemoteProtocolError:
            peer.step(ev.Disconnected(link), world.now_ms)


# --- searches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_does_the_same_and_shares_nothing(seed: int) -> None:
    """The exhaustive search forks peers at every choice."""
    world = any_moment(seed)
    for member in world.members.values():
        peer = member.peer
        assert peer is not None
        twin = copy.deepcopy(peer)
        before = peer.state_key()
        assert twin.state_key() == before
        assert hash(before) == hash(twin.state_key())

        twin.step(ev.Abdicate("a fork"), world.now_ms)
        twin.step(ev.Elapsed(), world.now_ms + 10_000)

        assert peer.state_key() == before


def test_every_transition_of_the_table_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture in the docs is drawn from the table; a transition nobody takes is a wrong one."""
    taken = set()

    class Watched(dict[object, object]):
        def __getitem__(self, pair: object) -> object:
            taken.add(pair)
            return super().__getitem__(pair)

    monkeypatch.setattr(front_door, "TRANSITIONS", Watched(TRANSITIONS))
    world = World(1)
    world.start()
    world.run_until(lambda: stable(world))
    for _ in range(2):
        leader = world.leader()
        assert leader is not None
        world.step(leader, ev.Abdicate("any reason"))
        world.run_until(lambda: stable(world))

    assert taken == set(TRANSITIONS)


@pytest.mark.parametrize(("tick_ms", "init_limit"), [(50, 5), (200, 2), (2_000, 10)])
def test_however_often_it_failed_it_comes_before_a_follower_gives_up(
    tick_ms: int, init_limit: int
) -> None:
    """Members that hold back longer than others wait for them would miss each other for ever."""
    config = EnsembleConfig(me=1, voters=(1, 2, 3), tick_ms=tick_ms, init_limit=init_limit)
    for seed in range(10):
        peer = Peer(config, RecoveredState(4, 4, CLUSTER), random.Random(seed))
        peer.step(ev.Start(), 0)
        now_ms = 0
        for _ in range(12):
            for voter in (2, 3):
                vote = msg.Notification(
                    sender=voter,
                    cluster_id=CLUSTER,
                    round=peer._m.round,
                    leader=3,
                    zxid=ZXID_ZERO,
                    epoch=4,
                    state=PeerState.LOOKING,
                    standing=Standing.VOTER,
                    history_empty=True,
                )
                peer.step(ev.Notified(vote), now_ms)
            begun_ms = now_ms
            while peer.state is PeerState.LOOKING:
                now_ms += 1
                assert now_ms - begun_ms <= config.init_timeout_ms
                peer.step(ev.Elapsed(), now_ms)
            now_ms += config.init_timeout_ms + 1
            peer.step(ev.Elapsed(), now_ms)
            assert peer.state is PeerState.LOOKING
