"""A learner by itself: dialling, waiting, and each wrong word of a leader."""

import pytest
from tests.zab.test_log import history
from tests.zab.test_peer import CLUSTER, LEADER_LINK, batch, following, make, promised, receive

from zabd.model.errors import LocalProtocolError, RemoteProtocolError
from zabd.model.zxid import ZXID_ZERO, Zxid
from zabd.zab import effects as fx
from zabd.zab import events as ev
from zabd.zab import messages as msg
from zabd.zab.config import RecoveredState
from zabd.zab.log import GENESIS, TAIL_BATCHES_MAX, Batch, LogPosition, frame_record
from zabd.zab.messages import PeerState
from zabd.zab.peer import Peer

ONE, TWO = history((4, 1, 1), (4, 2, 1))
ELSEWHERE = LogPosition(Zxid.of(4, 2), b"another.")


def dialling() -> Peer:
    """A member that was told to follow 3."""
    peer = make()
    assert fx.Dial(3) in peer.step(ev.Elected(3), 0)
    return peer


def test_a_failed_dial_is_tried_again_a_few_times() -> None:
    """The leader may not have opened its door yet; or it is gone, and we look again."""
    peer = dialling()
    dials = 1
    now_ms = 0

    while peer.state is PeerState.FOLLOWING:
        effects = peer.step(ev.DialFailed(3), now_ms)
        if peer.state is PeerState.FOLLOWING:
            assert effects == []
            now_ms = peer.deadline_ms or 0
            assert peer.step(ev.Elapsed(), now_ms) == [fx.Dial(3)]
            dials += 1

    assert dials == 5
    assert now_ms <= 150


def test_a_link_that_nobody_wanted_is_closed() -> None:
    """An answer to a dial of a past life, or a second one."""
    peer = dialling()

    assert peer.step(ev.Dialled(1, 2), 0) == [fx.Hangup(1)]
    peer.step(ev.Dialled(LEADER_LINK, 3), 0)
    assert peer.step(ev.Dialled(2, 3), 0) == [fx.Hangup(2)]
    assert peer.step(ev.DialFailed(3), 0) == []
    assert make().step(ev.Dialled(3, 2), 0) == [fx.Hangup(3)]


def test_one_that_dials_a_follower_is_told_to_go() -> None:
    """Only leaders have learners."""
    info = msg.FollowerInfo(1, CLUSTER, 2, False, 4, GENESIS, msg.Standing.VOTER)

    assert receive(following(), info, link=9) == [fx.Hangup(9)]


def test_a_leader_that_proposes_an_old_epoch_is_left() -> None:
    """We have promised a later one to somebody."""
    peer = make(RecoveredState(7, 4, CLUSTER))
    peer.step(ev.Elected(3), 0)
    peer.step(ev.Dialled(LEADER_LINK, 3), 0)

    effects = receive(peer, msg.LeaderInfo(6))

    assert fx.Hangup(LEADER_LINK) in effects
    assert peer.state is PeerState.LOOKING


def looking(sender: int, leader: int | None, round_: int) -> ev.Notified:
    """A member that still looks, and votes for this one."""
    vote = (leader, Zxid.of(4, 2), 4)
    return ev.Notified(
        msg.Notification(
            sender, CLUSTER, round_, *vote, PeerState.LOOKING, msg.Standing.VOTER, False
        )
    )


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize(
    ("sender", "leader", "later", "left"),
    [
        (3, 3, 0, False),  # it has not heard of all votes yet
        (3, 2, 0, True),  # it heard of a better one
        (3, None, 0, True),
        (3, 3, 1, True),  # it will not come back to the round of these votes
        (3, 2, -1, False),  # this is older than its vote for itself
        (2, 2, 1, False),  # another member, which is told whom we follow
    ],
)
def test_a_leader_that_looks_for_another_one_is_not_waited_for(
    sender: int, leader: int | None, later: int, *, left: bool, connected: bool
) -> None:
    """It would keep our link open; and the others may need us for the one that it looks for."""
    peer = dialling()
    if connected:
        peer.step(ev.Dialled(LEADER_LINK, 3), 0)

    effects = peer.step(looking(sender, leader, 1 + later), 1)

    assert peer.state is (PeerState.LOOKING if left else PeerState.FOLLOWING)
    assert (fx.Hangup(LEADER_LINK) in effects) == (left and connected)


def test_a_leader_that_has_begun_is_not_left_for_an_old_word() -> None:
    """Its word that it looks was late: from the promise on the link itself tells how it is."""
    peer = promised()
    peer.step(looking(3, 2, 9), 1)
    assert peer.state is PeerState.FOLLOWING


def test_a_silent_leader_is_left_after_the_sync_limit() -> None:
    """And a leader that makes no progress with us after the init limit."""
    peer = following()
    assert peer.deadline_ms == 10_001
    peer.step(ev.Elapsed(), 10_001)
    assert peer.state is PeerState.LOOKING

    peer = promised()
    assert peer.deadline_ms == 20_001
    peer.step(ev.Elapsed(), 20_001)
    assert peer.state is PeerState.LOOKING


def test_a_follower_whose_disk_stalls_leaves_and_does_not_vote() -> None:
    """S12."""
    peer = following()
    [append] = receive(peer, batch(1))
    assert isinstance(append, fx.Append)

    left = peer.step(ev.Elapsed(), 5_001)

    assert [type(one) for one in left] == [fx.Hangup, fx.Became]
    assert peer.deadline_ms is None
    voted = peer.step(ev.Persisted(append.append_id), 6_000)
    assert [type(one) for one in voted] == [fx.Notify, fx.Notify]


def test_a_snapshot_that_could_not_be_installed_costs_the_leadership() -> None:
    """The old state is untouched, and the next attempt begins anew."""
    peer = promised()
    receive(peer, msg.Snap(LogPosition(Zxid.of(4, 9), b"snapshot")))

    effects = peer.step(ev.StreamFailed(LEADER_LINK), 1)

    assert fx.Hangup(LEADER_LINK) in effects
    assert any(isinstance(one, fx.Notify) for one in effects)


def test_a_snapshot_may_take_its_time_but_has_to_go_on() -> None:
    """The leader's questions do not show that it does; it believes that we leave if it does not."""
    peer = promised()
    receive(peer, msg.Snap(LogPosition(Zxid.of(4, 9), b"snapshot")))
    for now_ms in range(2_000, 200_001, 2_000):
        peer.step(ev.StreamProgressed(LEADER_LINK), now_ms)
    assert peer.deadline_ms == 220_000

    answered = peer.step(ev.Received(LEADER_LINK, msg.Ping(7)), 219_000)
    assert answered == [fx.Send(LEADER_LINK, msg.Pong(7))]
    left = peer.step(ev.Elapsed(), 220_000)

    assert fx.Hangup(LEADER_LINK) in left
    assert peer.state is PeerState.LOOKING


def test_a_truncation_to_where_we_are_needs_no_disk() -> None:
    """The leader knows less of our history than we do."""
    peer = promised(RecoveredState(4, 4, CLUSTER, ONE.position, (TWO,)))

    assert receive(peer, msg.Trunc(TWO.position)) == [
        fx.Send(LEADER_LINK, msg.Aligned(TWO.position))
    ]


def aligned(peer: Peer) -> Peer:
    """A learner whose history is a prefix of the leader's."""
    receive(peer, msg.Diff(TWO.position))
    return peer


def invited(peer: Peer) -> Peer:
    """A learner that was sent NewLeader, and has not yet saved its epoch."""
    receive(aligned(peer), msg.NewLeader(5, CLUSTER, TWO.position))
    return peer


def in_step(peer: Peer) -> Peer:
    """A learner in broadcast."""
    receive(peer, msg.UpToDate(ONE.last))
    return peer


def acked(peer: Peer) -> Peer:
    """A learner that has acknowledged the leader."""
    invited(peer)
    assert peer._m.persisting is not None
    peer.step(ev.EpochsPersisted(peer._m.persisting.request_id), 1)
    return peer


def caught_up(count: int, *, told: bool) -> tuple[Peer, int]:
    """A learner that was sent so many batches it had missed, and the most that one step delivered.

    Its disk writes at once. `told`: as the stream goes on it hears that they are committed.
    """
    peer, position, most = aligned(promised(RecoveredState(4, 4, CLUSTER, TWO.position))), TWO, 0
    for number in range(1, count + 1):
        proposal = batch(number, previous=position.position)
        [append] = receive(peer, proposal)
        assert isinstance(append, fx.Append)
        peer.step(ev.Persisted(append.append_id), 1)
        position = Batch(proposal.first, proposal.count, proposal.record)
        if told and number % 100 == 0:
            [deliver] = receive(peer, msg.Commit(position.last))
            assert isinstance(deliver, fx.Deliver)
            most = max(most, len(deliver.batches))
    return peer, most


def test_a_learner_that_missed_much_keeps_little_of_it_in_memory() -> None:
    """S5: it was all kept until UpToDate, and then delivered in one step."""
    count = TAIL_BATCHES_MAX * 2

    peer, most = caught_up(count, told=True)

    assert len(peer._m.tail) <= TAIL_BATCHES_MAX + 100
    assert most <= 100
    assert not peer.serving
    assert len(caught_up(count, told=False)[0]._m.tail) == count


def test_a_learner_may_know_more_commits_than_its_new_leader() -> None:
    """What it had delivered before is not committed anew, nor taken back."""
    peer = aligned(promised(RecoveredState(4, 4, CLUSTER, TWO.position)))
    assert receive(peer, msg.Commit(ONE.last)) == []
    assert peer.committed_zxid == TWO.last


def foreign() -> msg.Propose:
    """A proposal with the right number that continues another history."""
    first = Zxid.of(5, 1)
    return msg.Propose(first, 1, frame_record(first, 1, b"", b"another."))


def damaged() -> msg.Propose:
    """A proposal with a flipped bit."""
    right = batch(1, previous=TWO.position)
    return msg.Propose(right.first, 1, right.record[:-1] + b"?")


def mislabelled() -> msg.Propose:
    """A proposal whose frame says something else than its record."""
    right = batch(1, previous=TWO.position)
    return msg.Propose(right.first, 2, right.record)


NEXT = batch(1, previous=TWO.position)
GAP = batch(2, previous=TWO.position)
FRESH, ALIGNED, INVITED, ACKED, IN_STEP = (
    lambda peer: peer,
    aligned,
    invited,
    acked,
    lambda peer: in_step(acked(peer)),
)


@pytest.mark.parametrize(
    ("reach", "wrong"),
    [
        (FRESH, msg.LeaderInfo(5)),
        (FRESH, NEXT),
        (FRESH, msg.NewLeader(5, CLUSTER, TWO.position)),
        (FRESH, msg.UpToDate(ONE.last)),
        (FRESH, msg.Commit(TWO.last)),
        (FRESH, msg.Diff(ONE.position)),
        (FRESH, msg.Diff(ELSEWHERE)),
        (FRESH, msg.Trunc(GENESIS)),
        (FRESH, msg.Snap(GENESIS)),
        (FRESH, msg.Pong(1)),
        (ALIGNED, msg.Diff(TWO.position)),
        (ALIGNED, msg.Trunc(TWO.position)),
        (ALIGNED, msg.Snap(TWO.position)),
        (ALIGNED, GAP),
        (ALIGNED, foreign()),
        (ALIGNED, damaged()),
        (ALIGNED, mislabelled()),
        (ALIGNED, msg.NewLeader(4, CLUSTER, TWO.position)),
        (ALIGNED, msg.NewLeader(5, b"another cluster.", TWO.position)),
        (ALIGNED, msg.NewLeader(5, CLUSTER, ONE.position)),
        (ALIGNED, msg.UpToDate(TWO.last)),
        (ALIGNED, msg.Commit(Zxid.of(4, 3))),
        (INVITED, msg.NewLeader(5, CLUSTER, TWO.position)),
        (INVITED, msg.UpToDate(TWO.last)),
        (INVITED, msg.Commit(TWO.last)),
        (ACKED, msg.UpToDate(ZXID_ZERO)),
        (ACKED, msg.UpToDate(Zxid.of(9, 9))),
        (IN_STEP, msg.UpToDate(TWO.last)),
        (IN_STEP, GAP),
        (IN_STEP, foreign()),
        (IN_STEP, msg.Propose(Zxid.of(6, 1), 1, NEXT.record)),
        (IN_STEP, msg.Commit(ZXID_ZERO)),
        (IN_STEP, msg.Commit(Zxid.of(5, 1))),
        (IN_STEP, msg.AckEpoch(4, GENESIS)),
    ],
)
def test_a_wrong_word_of_the_leader_costs_its_link(reach: "object", wrong: msg.Message) -> None:
    """A1-A5: each message only in the phase that expects it, and only if it fits."""
    peer = promised(RecoveredState(4, 4, CLUSTER, ONE.position, (TWO,)))
    reach(peer)  # type: ignore[operator]
    before = peer.state_key()

    with pytest.raises(RemoteProtocolError):
        receive(peer, wrong)

    assert peer.state_key() == before


def test_proposals_between_new_leader_and_up_to_date_are_kept() -> None:
    """M19, M22: they are acknowledged after the leader is, and committed with the rest."""
    peer = invited(promised(RecoveredState(4, 4, CLUSTER, ONE.position, (TWO,))))
    [append] = receive(peer, NEXT)
    assert isinstance(append, fx.Append)
    assert peer.step(ev.Persisted(append.append_id), 1) == []
    assert peer._m.persisting is not None

    acknowledged = peer.step(ev.EpochsPersisted(peer._m.persisting.request_id), 1)
    assert acknowledged == [fx.Send(LEADER_LINK, msg.AckNewLeader(5, Zxid.of(5, 1)))]
    delivered = receive(peer, msg.UpToDate(Zxid.of(5, 1)))

    assert isinstance(delivered[0], fx.Deliver)
    assert [one.last for one in delivered[0].batches] == [TWO.last, Zxid.of(5, 1)]
    assert peer.serving


def test_acks_after_the_leaders_come_before_up_to_date_too() -> None:
    """A batch that is durable between both counts for the leader already."""
    peer = acked(promised(RecoveredState(4, 4, CLUSTER, ONE.position, (TWO,))))
    [append] = receive(peer, NEXT)
    assert isinstance(append, fx.Append)

    assert peer.step(ev.Persisted(append.append_id), 1) == [
        fx.Send(LEADER_LINK, msg.Ack(Zxid.of(5, 1)))
    ]


def test_a_learner_serves_only_when_it_has_delivered_the_leaders_commit_point() -> None:
    """M21: a client that saw it elsewhere must not read the past here."""
    peer = acked(promised(RecoveredState(4, 4, CLUSTER, ONE.position, (TWO,))))
    [append] = receive(peer, NEXT)
    assert isinstance(append, fx.Append)

    receive(peer, msg.UpToDate(Zxid.of(5, 1)))
    assert not peer.serving
    effects = peer.step(ev.Persisted(append.append_id), 1)

    assert peer.serving
    assert [type(one) for one in effects] == [fx.Deliver, fx.Send, fx.Became]


def test_the_hosts_talk_is_not_the_peers() -> None:
    """Carried frames pass it by."""
    assert receive(following(), msg.Carried(b"between hosts")) == []


@pytest.mark.parametrize(
    "answer",
    [
        ev.Persisted(99),
        ev.EpochsPersisted(99),
        ev.Truncated(99, done=True),
        ev.SnapshotInstalled(99, GENESIS),
    ],
    ids=repr,
)
def test_an_answer_of_the_disk_that_was_not_asked_for_is_the_hosts_mistake(
    answer: ev.Event,
) -> None:
    """It would move history without a reason."""
    peer = following()
    before = peer.state_key()

    with pytest.raises(LocalProtocolError):
        peer.step(answer, 1)

    assert peer.state_key() == before
