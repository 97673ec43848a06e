"""A leader by itself: what it makes of each position, each answer, and each wrong word."""

import random

import pytest
from tests.zab.test_log import history
from tests.zab.test_peer import CLUSTER, receive

from zabd.model.errors import LocalProtocolError, RemoteProtocolError
from zabd.model.zxid import ZXID_ZERO, Zxid
from zabd.zab import effects as fx
from zabd.zab import events as ev
from zabd.zab import messages as msg
from zabd.zab.config import EnsembleConfig, RecoveredState
from zabd.zab.log import GENESIS, LogPosition
from zabd.zab.messages import FORMAT, PeerState, Standing
from zabd.zab.peer import Peer

BATCHES = history((3, 1, 1), (3, 2, 1), (4, 1, 2), (4, 3, 1))
SETTLED = BATCHES[1].position
ELSEWHERE = b"another."


def info(member: int, position: LogPosition = GENESIS, accepted: int = 4) -> msg.FollowerInfo:
    """The introduction of a voter of our cluster; 4 is the observer."""
    return msg.FollowerInfo(
        FORMAT, CLUSTER, member, member == 4, accepted, position, Standing.VOTER
    )


def saved(peer: Peer) -> list[fx.Effect]:
    """The epochs on their way to the disk are there."""
    assert peer._m.persisting is not None
    return peer.step(ev.EpochsPersisted(peer._m.persisting.request_id), 1)


def sent(effects: list[fx.Effect], link: int) -> list[msg.Message]:
    """What goes out over this link."""
    return [one.message for one in effects if isinstance(one, fx.Send) and one.link == link]


def leading(observers: tuple[int, ...] = ()) -> Peer:
    """Member 3, established in epoch 5 by 1 on link 1; its tree stood at 3:2 when it started."""
    config = EnsembleConfig(me=3, voters=(1, 2, 3), observers=observers)
    peer = Peer(config, RecoveredState(4, 4, CLUSTER, SETTLED, BATCHES[2:]), random.Random(1))
    peer.step(ev.Start(), 0)
    peer.step(ev.Elected(3), 0)
    end = BATCHES[-1].position
    receive(peer, info(1, end), link=1)
    assert sent(saved(peer), 1) == [msg.LeaderInfo(5)]
    assert sent(receive(peer, msg.AckEpoch(4, end), link=1), 1) == [msg.Diff(end)]
    assert sent(saved(peer), 1) == [msg.NewLeader(5, CLUSTER, end)]
    assert sent(receive(peer, msg.AckNewLeader(5, end.zxid), link=1), 1) == [
        msg.UpToDate(end.zxid),
        msg.Ping(1),
    ]
    assert peer.can_submit
    return peer


def join(peer: Peer, position: LogPosition, link: int = 2, member: int = 2) -> list[fx.Effect]:
    """A learner comes as far as telling its position."""
    receive(peer, info(member, position), link)
    return receive(peer, msg.AckEpoch(4, position), link)


PROPOSALS = [msg.Propose(*batch) for batch in BATCHES]
INVITATION = msg.NewLeader(5, CLUSTER, BATCHES[-1].position)


def test_a_prefix_gets_the_rest() -> None:
    """Diff, from memory."""
    effects = join(leading(), BATCHES[2].position)

    assert sent(effects, 2) == [msg.Diff(BATCHES[2].position), PROPOSALS[3], INVITATION]


@pytest.mark.parametrize(
    ("zxid", "boundary"),
    [
        (Zxid.of(4, 9), BATCHES[3].position),  # beyond our end
        (BATCHES[3].last, BATCHES[2].position),  # the same zxid, another history
        (Zxid.of(3, 9), SETTLED),  # between two epochs of ours
    ],
)
def test_another_way_is_cut_back_to_the_last_common_batch(
    zxid: Zxid, boundary: LogPosition
) -> None:
    """M10: one entry too many in the middle is enough; zxids alone do not decide."""
    peer = leading()

    assert sent(join(peer, LogPosition(zxid, ELSEWHERE)), 2) == [msg.Trunc(boundary)]
    aligned = sent(receive(peer, msg.Aligned(boundary), link=2), 2)

    assert aligned[-1] == INVITATION
    assert aligned[:-1] == [one for one in PROPOSALS if one.first > boundary.zxid]


def found(peer: Peer, asked: fx.Effect, position: LogPosition | None) -> list[fx.Effect]:
    """The disk answers."""
    assert isinstance(asked, fx.FindRecord)
    exact = position is not None and position.zxid == asked.zxid
    return peer.step(ev.RecordFound(asked.request_id, position, exact), 1)


def test_what_memory_lacks_is_streamed_from_the_disk() -> None:
    """The records never pass through the core."""
    peer = leading()
    [asked] = join(peer, BATCHES[0].position)

    diff, stream = found(peer, asked, BATCHES[0].position)
    assert diff == fx.Send(2, msg.Diff(BATCHES[0].position))
    assert stream == fx.StreamRecords(2, BATCHES[0].position, SETTLED.zxid, told=True)
    rest = sent(peer.step(ev.RecordsStreamed(2, SETTLED), 1), 2)

    assert rest == [*PROPOSALS[2:], INVITATION]


@pytest.mark.parametrize("established", [False, True])
def test_a_blank_member_hears_of_commits_only_from_who_serves(*, established: bool) -> None:
    """A founding that is cut short has to leave nothing with it that could not be replaced."""
    peer = leading() if established else promised_to()
    blank = msg.FollowerInfo(FORMAT, None, 2, False, 0, GENESIS, Standing.BLANK)
    receive(peer, blank, 2)
    [asked] = receive(peer, msg.AckEpoch(0, GENESIS), 2)

    _, stream = found(peer, asked, GENESIS)

    assert stream == fx.StreamRecords(2, GENESIS, SETTLED.zxid, told=established)


def test_the_disk_is_asked_again_below_a_position_of_another_history() -> None:
    """The same zxid on the disk with another chain value is no common point."""
    peer = leading()
    [asked] = join(peer, LogPosition(BATCHES[0].last, ELSEWHERE))

    [again] = found(peer, asked, BATCHES[0].position)
    assert isinstance(again, fx.FindRecord)
    assert again.zxid == BATCHES[0].last - 1
    assert sent(found(peer, again, GENESIS), 2) == [msg.Trunc(GENESIS)]
    [stream] = receive(peer, msg.Aligned(GENESIS), link=2)

    assert stream == fx.StreamRecords(2, GENESIS, SETTLED.zxid, told=True)


def test_what_the_disk_lacks_comes_as_a_snapshot() -> None:
    """Then the rest, once the learner says that it has it."""
    peer = leading()
    [asked] = join(peer, GENESIS)

    assert found(peer, asked, None) == [fx.StreamSnapshot(2)]
    assert peer.step(ev.SnapshotStreamed(2, SETTLED), 1) == []
    aligned = sent(receive(peer, msg.Aligned(SETTLED), link=2), 2)

    assert aligned == [*PROPOSALS[2:], INVITATION]


def test_a_refused_truncation_ends_in_a_snapshot() -> None:
    """An established leader can afford it at once."""
    peer = leading()
    join(peer, LogPosition(Zxid.of(4, 9), ELSEWHERE))

    assert receive(peer, msg.TruncRefused(), link=2) == [fx.StreamSnapshot(2)]


def promised_to() -> Peer:
    """Member 3 of five, to whom 1 and 5 have promised epoch 5: it is not established yet."""
    config = EnsembleConfig(me=3, voters=(1, 2, 3, 5, 6))
    peer = Peer(config, RecoveredState(4, 4, CLUSTER, SETTLED, BATCHES[2:]), random.Random(1))
    peer.step(ev.Start(), 0)
    peer.step(ev.Elected(3), 0)
    end = BATCHES[-1].position
    for link, member in ((1, 1), (5, 5)):
        receive(peer, info(member, end), link)
    saved(peer)
    for link in (1, 5):
        receive(peer, msg.AckEpoch(4, end), link)
    return peer


def test_a_better_history_than_its_own_ends_a_leadership_that_is_not_established() -> None:
    """D5: of the promises it rests on, one may be forgotten by now, and this be what came of it.

    Of five, 5 promised epoch 5 here, lost its disk before this leader noticed, and helped another
    leader to commit what 2 reports. If that were cut off, an acknowledged write would be lost.
    """
    peer = promised_to()
    saved(peer)

    effects = join(peer, LogPosition(Zxid.of(4, 9), ELSEWHERE))

    assert peer.state is PeerState.LOOKING
    assert [one.link for one in effects if isinstance(one, fx.Hangup)] == [1, 5, 2]
    assert not any(isinstance(one, fx.Send) for one in effects)


def test_a_refused_truncation_waits_for_a_quorum_without_that_learner() -> None:
    """A snapshot may be older than what the learner has and all others lost."""
    peer, end = promised_to(), BATCHES[-1].position
    cut = msg.Trunc(BATCHES[-2].position)
    assert sent(join(peer, LogPosition(end.zxid, ELSEWHERE)), 2) == [cut]

    assert receive(peer, msg.TruncRefused(), link=2) == []
    saved(peer)
    receive(peer, msg.AckNewLeader(5, end.zxid), link=1)
    established = receive(peer, msg.AckNewLeader(5, end.zxid), link=5)

    assert fx.StreamSnapshot(2) in established


def test_who_would_take_office_with_a_quorum_that_is_silent_by_now_leaves_instead() -> None:
    """Of five, 1 was in step long ago, and may follow another when 5 comes (L4)."""
    peer, end = promised_to(), BATCHES[-1].position
    saved(peer)
    receive(peer, msg.AckNewLeader(5, end.zxid), link=1)
    silent_ms = peer._m.config.sync_timeout_ms + 2

    effects = peer.step(ev.Received(5, msg.AckNewLeader(5, end.zxid)), silent_ms)

    assert peer.state is PeerState.LOOKING
    assert not any(
        isinstance(one, fx.Send) and isinstance(one.message, msg.UpToDate) for one in effects
    )


def needs_a_snapshot() -> Peer:
    """Member 3, which leads when 2 is in step: 2 needs a snapshot. Observer 4 is there too."""
    config = EnsembleConfig(me=3, voters=(1, 2, 3), observers=(4,))
    peer = Peer(config, RecoveredState(4, 4, CLUSTER, SETTLED, BATCHES[2:]), random.Random(1))
    peer.step(ev.Start(), 0)
    peer.step(ev.Elected(3), 0)
    for member in (2, 4):
        receive(peer, info(member), member)
    saved(peer)
    for member in (2, 4):
        receive(peer, msg.AckEpoch(4, GENESIS), member)
    saved(peer)
    asked = [learner.request_id for learner in peer._role._learners]  # type: ignore[union-attr]
    for request_id in asked:
        assert request_id is not None
        [stream] = peer.step(ev.RecordFound(request_id, None, exact=False), 1)
        assert isinstance(stream, fx.StreamSnapshot)
    return peer


def goes_on(peer: Peer, begin_ms: int, end_ms: int, *events: ev.Event) -> int:
    """These happen every two seconds, and every question is answered; when the leader gave up."""
    rounds: dict[int, int] = {2: 0, 4: 0}
    for now_ms in range(begin_ms, end_ms, 2_000):
        for event in (*events, ev.Elapsed()):
            for effect in peer.step(event, now_ms):
                if isinstance(effect, fx.Send) and isinstance(effect.message, msg.Ping):
                    rounds[effect.link] = effect.message.round
        if peer.state is not PeerState.LEADING:
            return now_ms
        for link, round_ in rounds.items():
            peer.step(ev.Received(link, msg.Pong(round_)), now_ms)
    return end_ms


def test_a_leader_waits_for_a_snapshot_as_long_as_it_goes_on() -> None:
    """G3: one of 10 GB takes minutes, and every attempt to send it would be cut off anew."""
    peer = needs_a_snapshot()
    assert goes_on(peer, 2_000, 200_000, ev.StreamProgressed(2)) == 200_000

    peer.step(ev.SnapshotStreamed(2, SETTLED), 200_000)
    # The learner reads it now, and leaves by itself if it cannot.
    assert goes_on(peer, 200_000, 400_000) == 400_000
    receive(peer, msg.Aligned(SETTLED), link=2)

    gave_up_ms = goes_on(peer, 400_000, 600_000)
    assert gave_up_ms <= 400_000 + 2_000 + peer._m.config.init_timeout_ms


@pytest.mark.parametrize("events", [(), (ev.StreamProgressed(4),)])
def test_a_snapshot_that_does_not_go_on_ends_the_leadership(events: tuple[ev.Event, ...]) -> None:
    """After the init limit, though the learner answers, and though an observer gets on."""
    peer = needs_a_snapshot()

    assert goes_on(peer, 2_000, 200_000, *events) <= 2_000 + peer._m.config.init_timeout_ms


def test_a_stream_that_failed_costs_the_link() -> None:
    """The learner comes again, and then it may need something else."""
    peer = leading()
    [asked] = join(peer, GENESIS)
    found(peer, asked, None)

    assert peer.step(ev.StreamFailed(2), 1) == [fx.Hangup(2)]
    assert peer.state is PeerState.LEADING


def test_live_proposals_go_only_to_those_who_have_all_before() -> None:
    """S4: no queue grows for a learner that is still catching up."""
    peer = leading()
    join(peer, GENESIS)

    effects = peer.step(ev.Submit(1, b"payload"), 1)

    assert [type(one) for one in sent(effects, 1)] == [msg.Propose]
    assert sent(effects, 2) == []


def test_a_commit_needs_a_quorum_of_present_links() -> None:
    """B3, M53: what was acknowledged on a link that is gone is asked for again."""
    peer = leading()
    join(peer, BATCHES[-1].position)
    receive(peer, msg.AckNewLeader(5, BATCHES[-1].last), link=2)
    peer.step(ev.Submit(1, b"payload"), 1)

    committed = receive(peer, msg.Ack(Zxid.of(5, 1)), link=2)

    assert committed == []  # nobody but 2 has it: our own append is still on its way
    committed = receive(peer, msg.Ack(Zxid.of(5, 1)), link=1)
    assert sent(committed, 1) == sent(committed, 2) == [msg.Commit(Zxid.of(5, 1))]
    assert peer.committed_zxid == Zxid.of(5, 1)
    assert peer.delivered_zxid == BATCHES[-1].last


def test_a_leader_whose_own_disk_comes_last_still_hands_over_its_counter() -> None:
    """The others have committed the last batch before it is durable here; that is the end (B4)."""
    peer = leading()
    object.__setattr__(peer._m.config, "counter_handover", 1)
    end = BATCHES[-1].position
    join(peer, end)
    receive(peer, msg.AckNewLeader(5, end.zxid), link=2)
    [append] = [e for e in peer.step(ev.Submit(1, b"last"), 2) if isinstance(e, fx.Append)]
    for link in (1, 2):
        receive(peer, msg.Ack(Zxid.of(5, 1)), link)
    assert peer.committed_zxid == Zxid.of(5, 1)
    assert peer.state is PeerState.LEADING
    assert not peer.can_submit

    effects = peer.step(ev.Persisted(append.append_id), 3)

    assert fx.Deliver in map(type, effects)
    assert peer.state is PeerState.LOOKING


def test_a_member_that_dials_anew_replaces_its_old_link() -> None:
    """Each member counts once; its earlier link counts for nothing."""
    peer = leading()
    join(peer, BATCHES[-1].position)

    effects = receive(peer, info(2, BATCHES[-1].position), link=7)

    assert effects == [fx.Hangup(2), fx.Send(7, msg.LeaderInfo(5))]


def test_an_observer_is_served_and_never_asked() -> None:
    """It is sent what a follower is sent, and its word counts for nothing."""
    peer = leading(observers=(4,))
    join(peer, BATCHES[-1].position, link=4, member=4)
    effects = receive(peer, msg.AckNewLeader(5, BATCHES[-1].last), link=4)
    assert sent(effects, 4) == [msg.UpToDate(BATCHES[-1].last)]
    assert peer.learner_links == {1: 1, 4: 4}
    assert peer.synced_followers == 1
    peer.step(ev.Submit(1, b"payload"), 1)

    with pytest.raises(RemoteProtocolError):
        receive(peer, msg.Ack(Zxid.of(5, 1)), link=4)


def test_a_voter_that_accepted_a_later_epoch_makes_the_leader_ask_for_one() -> None:
    """It could not follow otherwise, and an election costs little."""
    peer = leading()

    receive(peer, info(2, accepted=9), link=2)

    assert peer.state is PeerState.LOOKING


@pytest.mark.parametrize(
    "wrong",
    [
        msg.Ack(Zxid.of(4, 3)),  # of another epoch
        msg.Ack(Zxid.of(5, 2)),  # never proposed
        msg.AckEpoch(4, GENESIS),
        msg.AckNewLeader(5, BATCHES[-1].last),
        msg.Aligned(GENESIS),
        msg.TruncRefused(),
        msg.Pong(9),
        msg.Pong(0),
        msg.LeaderInfo(5),
        msg.UpToDate(ZXID_ZERO),
        PROPOSALS[0],
        info(1),
    ],
    ids=repr,
)
def test_a_wrong_word_of_a_follower_costs_its_link(wrong: msg.Message) -> None:
    """A1, A4, A5: each message only at its time, and only to whom it can mean something."""
    peer = leading()
    peer.step(ev.Submit(1, b"payload"), 1)
    before = peer.state_key()

    with pytest.raises(RemoteProtocolError):
        receive(peer, wrong, link=1)

    assert peer.state_key() == before


@pytest.mark.parametrize(
    "wrong",
    [
        msg.AckNewLeader(4, BATCHES[-1].last),  # M64: of another epoch
        msg.AckNewLeader(5, BATCHES[2].last),  # less than asked for
        msg.AckNewLeader(5, Zxid.of(9, 9)),  # more than there is
        msg.Ack(Zxid.of(5, 1)),  # M20: before the acknowledgement of the leader
    ],
    ids=repr,
)
def test_a_wrong_acknowledgement_of_the_leader_costs_the_link(wrong: msg.Message) -> None:
    """M64, M20."""
    peer = leading()
    join(peer, BATCHES[-1].position)

    with pytest.raises(RemoteProtocolError):
        receive(peer, wrong, link=2)


def test_a_promise_of_an_impossible_history_costs_the_link() -> None:
    """Nobody can have current what nobody has proposed yet."""
    peer = leading()
    receive(peer, info(2), link=2)

    with pytest.raises(RemoteProtocolError, match="promised"):
        receive(peer, msg.AckEpoch(6, GENESIS), link=2)


def test_a_batch_has_its_limits() -> None:
    """A caller's mistake raises and changes nothing."""
    peer = leading()
    before = peer.state_key()

    for count, payload in ((0, b""), (1 << 17, b""), (1, bytes((16 << 20) + 1))):
        with pytest.raises(LocalProtocolError, match="a batch has"):
            peer.step(ev.Submit(count, payload), 1)

    assert peer.state_key() == before


def test_a_leader_that_hears_nobody_for_the_sync_limit_steps_down() -> None:
    """G2: half-open links are noticed by silence alone."""
    peer = leading()
    now_ms = 0

    while peer.state is PeerState.LEADING:
        now_ms = peer.deadline_ms or 0
        peer.step(ev.Elapsed(), now_ms)

    assert 10_000 < now_ms < 12_000


def test_a_leader_that_nobody_joins_gives_up_within_a_tick() -> None:
    """It was elected by members that have moved on."""
    peer = Peer(
        EnsembleConfig(me=3, voters=(1, 2, 3)), RecoveredState(4, 4, CLUSTER), random.Random(1)
    )
    peer.step(ev.Start(), 0)
    peer.step(ev.Elected(3), 0)

    peer.step(ev.Elapsed(), 2000)

    assert peer.state is PeerState.LOOKING


def test_news_of_a_leader_goes_to_those_who_are_not_with_it() -> None:
    """They may be looking, and would ask again only a second later."""
    peer = leading()
    receive(peer, info(2), link=2)
    peer.step(ev.Disconnected(2), 1)
    asked = msg.Notification(
        2, CLUSTER, 7, 2, ZXID_ZERO, 4, PeerState.LOOKING, Standing.VOTER, history_empty=True
    )

    [answer] = peer.step(ev.Notified(asked), 1)

    assert isinstance(answer, fx.Notify)
    assert (answer.member, answer.notification.leader) == (2, 3)
    assert answer.notification.state is PeerState.LEADING


def test_what_a_leader_is_not_asked_for_it_passes_over() -> None:
    """Late answers to what it asked in another life, links it did not want, its host's talk."""
    peer = leading()
    before = peer.state_key()

    assert receive(peer, msg.Carried(b"between hosts"), link=1) == []
    assert receive(peer, msg.Ack(Zxid.of(5, 1)), link=99) == []
    assert peer.step(ev.DialFailed(1), 1) == []
    assert peer.step(ev.RecordFound(77, None, exact=False), 1) == []
    assert peer.step(ev.RecordsStreamed(1, GENESIS), 1) == []
    assert peer.step(ev.SnapshotStreamed(99, GENESIS), 1) == []
    assert peer.step(ev.Dialled(50, 1), 1) == [fx.Hangup(50)]

    assert peer.state_key() == before
    assert peer.accepts(1)
    assert not peer.accepts(99)
