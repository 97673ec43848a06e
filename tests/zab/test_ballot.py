"""A ballot by itself: who may found, and after whom nobody may."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from zabd.model.zxid import ZXID_ZERO, Zxid
from zabd.zab.ballot import Ballot
from zabd.zab.member import Member
from zabd.zab.messages import Notification, PeerState, Standing

ROUND = 7


def from_one_copy() -> Ballot:
    """Member 1 of three brings its history into a new cluster."""
    config = SimpleNamespace(me=1, voters=(1, 2, 3), observer=False)
    member = SimpleNamespace(
        me=1,
        config=config,
        damaged=False,
        history_empty=False,
        founds_anew=True,
        standing=Standing.BLANK,
        round=ROUND,
    )
    return Ballot(cast("Member", member))


def settled(sender: int, round_: int, state: PeerState) -> Notification:
    """From a member that has 3 for its leader, or is it."""
    last = Zxid.of(5, 9)
    return Notification(
        sender, b"c" * 16, round_, 3, last, 5, state, Standing.VOTER, history_empty=False
    )


BLANK = Notification(
    2, None, ROUND, None, ZXID_ZERO, 0, PeerState.LOOKING, Standing.BLANK, history_empty=True
)


def test_one_copy_and_blank_members_may_found() -> None:
    """Of three, with one that is not heard."""
    ballot = from_one_copy()
    ballot.votes[2] = BLANK

    assert ballot.founding()


def test_what_is_left_of_a_founding_that_was_cut_short_is_no_second_copy() -> None:
    """Nobody belongs to a cluster yet, so the same founding can be asked for again."""
    ballot = from_one_copy()
    ballot.votes[2] = replace(BLANK, history_empty=False)

    assert ballot.who_knows_better() == ()
    assert ballot.founding()

    ballot.votes[2] = replace(BLANK, history_empty=False, standing=Standing.FOUNDER)
    assert ballot.who_knows_better() == (2,)
    assert not ballot.founding()


def test_nobody_founds_anew_beside_a_leader_of_another_round() -> None:
    """It may have lost its quorum and not have noticed; what it knows is more than the copy."""
    ballot = from_one_copy()
    ballot.votes[2] = BLANK
    ballot.settled[3] = settled(3, ROUND - 4, PeerState.LEADING)

    assert not ballot.founding()


def test_who_follows_the_lost_leader_has_not_been_heard() -> None:
    """It has not noticed yet, and may have the best vote of all; other leaders are an answer."""
    member = SimpleNamespace(me=1, config=SimpleNamespace(voters=(1, 2, 3)), round=ROUND)
    ballot = Ballot(cast("Member", member))
    follower = settled(2, ROUND - 1, PeerState.FOLLOWING)
    ballot.settled[2] = follower

    assert not ballot.is_unanimous(lost=3)
    ballot.settled[2] = replace(follower, leader=2)
    assert ballot.is_unanimous(lost=3)
