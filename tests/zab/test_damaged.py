"""A member that cannot vouch for its past: what it may not do, and what is not done to it (S20)."""

import random

import pytest
from tests.zab.harness import Shape, World, stable
from tests.zab.test_peer import CLUSTER, LEADER_LINK, make, receive

from zabd.model.zxid import ZXID_ZERO
from zabd.zab import effects as fx
from zabd.zab import events as ev
from zabd.zab import messages as msg
from zabd.zab.config import EnsembleConfig, RecoveredState
from zabd.zab.log import GENESIS
from zabd.zab.messages import FORMAT, PeerState, Standing
from zabd.zab.peer import Peer

DAMAGED = RecoveredState(4, 4, CLUSTER, damaged=True)


def look(sender: int, standing: Standing, *, leader: int | None = None) -> ev.Notified:
    """What a member with an empty history says while it looks, in the first round."""
    cluster = None if standing in (Standing.BLANK, Standing.FOUNDER) else CLUSTER
    said = msg.Notification(
        sender, cluster, 1, leader, ZXID_ZERO, 0, PeerState.LOOKING, standing, history_empty=True
    )
    return ev.Notified(said)


def told(effects: list[fx.Effect]) -> list[msg.Notification]:
    """The notifications among these effects."""
    return [effect.notification for effect in effects if isinstance(effect, fx.Notify)]


def test_it_has_no_vote_and_says_why() -> None:
    """Its history may lack what it acknowledged."""
    config = EnsembleConfig(me=1, voters=(1, 2, 3))
    peer = Peer(config, DAMAGED, random.Random(1))

    for notification in told(peer.step(ev.Start(), 0)):
        assert notification.leader is None
        assert notification.standing is Standing.DAMAGED


@pytest.mark.parametrize("standing", [Standing.BLANK, Standing.FOUNDER])
def test_nothing_is_founded_while_somebody_is_damaged(standing: Standing) -> None:
    """An empty history that was longer once is no beginning."""
    peer = make(RecoveredState())

    effects = peer.step(look(3, Standing.DAMAGED), 1)
    effects += peer.step(look(2, standing), 2)

    assert peer.state is PeerState.LOOKING
    assert all(notification.leader is None for notification in told(effects))


def test_it_does_not_lead_whoever_says_so() -> None:
    """Not even if all others take it for their leader."""
    peer = make(DAMAGED)

    peer.step(ev.Elected(1), 1)

    assert peer.state is PeerState.LOOKING


def test_it_is_whole_with_the_epochs_of_the_leader_that_invited_it() -> None:
    """A promise alone does not make it so; the history and the epoch do, durably, at once."""
    peer = make(DAMAGED)
    peer.step(ev.Elected(3), 0)
    peer.step(ev.Dialled(LEADER_LINK, 3), 0)
    [promise] = receive(peer, msg.LeaderInfo(5))
    assert promise == fx.PersistEpochs(promise.request_id, 5, 4, CLUSTER)  # type: ignore[union-attr]
    peer.step(ev.EpochsPersisted(promise.request_id), 1)  # type: ignore[union-attr]
    receive(peer, msg.Diff(GENESIS))
    assert peer.standing is Standing.DAMAGED

    [persisting] = receive(peer, msg.NewLeader(5, CLUSTER, GENESIS))
    assert persisting == fx.PersistEpochs(persisting.request_id, 5, 5, CLUSTER, repaired=True)  # type: ignore[union-attr]
    assert peer.standing is Standing.DAMAGED
    peer.step(ev.EpochsPersisted(persisting.request_id), 2)  # type: ignore[union-attr]

    assert peer.standing is Standing.VOTER


def test_it_may_have_lost_who_it_belongs_to() -> None:
    """An identity file that cannot be read is damage, and no new member."""
    world = World(3, Shape())
    world.start()
    world.run_until(lambda: stable(world))
    world.submit(b"one")
    world.run(100)
    world.crash(1)
    world.damage(1, keep=0, forgets=True)
    world.members[1].store.cluster_id = None

    world.restart(1)
    world.run_until(lambda: stable(world))

    assert world.members[1].store.cluster_id is not None
    assert not world.members[1].store.damaged


def test_what_it_has_left_is_not_touched_before_its_leader_is_established() -> None:
    """It may be the last copy of something: neither Trunc nor Snap comes from a mere candidate."""
    leader = make(RecoveredState(4, 4, CLUSTER), me=3)
    leader.step(ev.Elected(3), 0)
    for link, member, standing in ((11, 1, Standing.VOTER), (12, 2, Standing.DAMAGED)):
        info = msg.FollowerInfo(FORMAT, CLUSTER, member, False, 4, GENESIS, standing)
        effects = receive(leader, info, link)
        for persisting in (one for one in effects if isinstance(one, fx.PersistEpochs)):
            leader.step(ev.EpochsPersisted(persisting.request_id), 1)
    assert not any(
        isinstance(one, fx.PersistEpochs) for one in receive(leader, msg.AckEpoch(4, GENESIS), 12)
    )

    effects = receive(leader, msg.AckEpoch(4, GENESIS), 11)

    sent = [one for one in effects if isinstance(one, fx.Send)]
    assert [one.link for one in sent if isinstance(one.message, msg.Diff)] == [11]


@pytest.mark.parametrize("state", [RecoveredState(), DAMAGED])
def test_a_vote_for_what_it_was_begins_another_round(state: RecoveredState) -> None:
    """It cannot lead with a past that it has lost, and the others would keep to that vote."""
    peer = Peer(EnsembleConfig(me=1, voters=(1, 2, 3)), state, random.Random(1))
    first = told(peer.step(ev.Start(), 0))
    vote = msg.Notification(
        2, CLUSTER, 1, 1, ZXID_ZERO, 5, PeerState.LOOKING, Standing.VOTER, history_empty=True
    )

    said = told(peer.step(ev.Notified(vote), 1))

    assert {one.round for one in first} == {1}
    assert {one.sender for one in said} == {1}
    assert {one.round for one in said} == {2}
    assert all(one.leader is None for one in said)
