"""A ballot: what the others have said in one round of an election, and what follows from it.

Invariants
    E1  Only votes of this round count, one for each voter, and only of those who may vote.

See `election` for the rules; this is their arithmetic, without time and without messages.
"""

from typing import Final, NamedTuple

from zabd.model.ids import Epoch, MemberId
from zabd.model.zxid import Zxid
from zabd.zab.learners import EPOCH_JUMP_MAX
from zabd.zab.member import Member
from zabd.zab.messages import Notification, PeerState, Standing

ROUND_JUMP_MAX: Final = 1 << 32
"""No peer is that many elections ahead; a round from a stranger must not end all elections."""


class Vote(NamedTuple):
    """In the order of what decides."""

    epoch: Epoch
    zxid: Zxid
    leader: MemberId


def vote_of(notification: Notification) -> Vote | None:
    """The vote in a notification, if it has one."""
    if notification.leader is None:
        return None
    return Vote(notification.epoch, notification.zxid, notification.leader)


def may_found(notification: Notification) -> bool:
    """Whether the sender knows of no earlier life, and has forgotten none, or is told to begin."""
    told = notification.standing is Standing.FOUNDER
    return told or (notification.history_empty and notification.standing is not Standing.DAMAGED)


def is_copy(notification: Notification) -> bool:
    """Whether the sender brings a history to found a new cluster with.

    A blank member's is none: it came from a founding, or from a leader, that was cut short before
    it acknowledged anything, and whoever leads it next replaces it.
    """
    return notification.standing is Standing.FOUNDER and not notification.history_empty


class Ballot:
    """The notifications that count, by sender, and our own vote."""

    __slots__ = ("_m", "settled", "vote", "votes")

    def __init__(self, member: Member) -> None:
        self._m = member
        self.vote: Vote | None = None
        self.votes: dict[MemberId, Notification] = {}
        """Of members that look, in this round."""
        self.settled: dict[MemberId, Notification] = {}
        """Of members that have a leader, of any round."""

    def begin(self) -> list[Notification]:
        """A new round, with a vote for ourselves if we may; what was heard before it began."""
        heard = [*self.votes.values()]
        self.votes.clear()
        self.vote = self.own_vote()
        return heard

    def join(self, notification: Notification) -> None:
        """The others are in a later round: go there, and take the better vote."""
        self._m.round = notification.round
        self.votes = {notification.sender: notification}
        self.vote = None
        self.reconsider()

    def is_believable(self, notification: Notification) -> bool:
        """Whether it comes from a member of our ensemble and says nothing absurd."""
        m = self._m
        members = (*m.config.voters, *m.config.observers)
        return (
            notification.sender in members
            and notification.sender != m.me
            and (notification.leader is None or notification.leader in m.config.voters)
            and not self.is_foreign(notification)
            and notification.round <= m.round + ROUND_JUMP_MAX
            and notification.epoch <= m.accepted_epoch + EPOCH_JUMP_MAX
        )

    def is_foreign(self, notification: Notification) -> bool:
        """Whether it comes from a member of another cluster than ours."""
        ids = (notification.cluster_id, self._m.cluster_id)
        return None not in ids and ids[0] != ids[1]

    # --- who votes ------------------------------------------------------------------------------

    def own_vote(self) -> Vote | None:
        """The vote for ourselves, if we may vote at all."""
        m = self._m
        if m.config.observer or not (m.standing is Standing.VOTER or self.founding()):
            return None
        return Vote(m.current_epoch, m.tail.last.zxid, m.me)

    def founding(self) -> bool:
        """Whether all that could know of an earlier life of this ensemble say there was none."""
        m = self._m
        if m.config.observer or m.damaged:
            return False
        if self.who_knows_better():
            return False  # of any round: a leader may not have noticed yet that it leads no more
        heard = self._heard()
        copies = self._copies(heard)
        if copies:
            return self._founding_anew(heard, copies)
        if not m.history_empty or not all(may_found(notification) for notification in heard):
            return False
        told = m.standing is Standing.FOUNDER or any(
            notification.standing is Standing.FOUNDER for notification in heard
        )
        return told or len(heard) + 1 == len(m.config.voters)

    def _copies(self, heard: list[Notification]) -> list[MemberId]:
        """Who brings a history to found a new cluster with."""
        m = self._m
        own = m.founds_anew or (m.standing is Standing.FOUNDER and not m.history_empty)
        return [m.me] * own + [one.sender for one in heard if is_copy(one)]

    def _founding_anew(self, heard: list[Notification], copies: list[MemberId]) -> bool:
        """Whether one member brings a history, and nobody else knows of any cluster.

        Of two copies nobody could say which one is meant; and one that still belongs to a cluster
        might bring it back, with what the copy lacks.
        """
        new = (Standing.BLANK, Standing.FOUNDER)
        return len(copies) == 1 and all(
            one in new for one in (self._m.standing, *(h.standing for h in heard))
        )

    def who_knows_better(self) -> tuple[MemberId, ...]:
        """The voters with a history or a cluster, if we are to found a new one with our history."""
        if not self._m.founds_anew:
            return ()
        told = {one.sender: one for one in (*self.votes.values(), *self.settled.values())}
        new = (Standing.BLANK, Standing.FOUNDER)
        return tuple(
            voter
            for voter in self._m.config.voters
            if voter in told and (told[voter].standing not in new or is_copy(told[voter]))
        )

    def cluster_id(self) -> bytes | None:
        """What a voter knows of the cluster, though it may not come in time to say so again.

        A founding that was cut short leaves members of a cluster that has no quorum yet. The next
        one has to go on with that id: under another they would be shut out for ever.
        """
        known = [one for one in self._heard() if one.cluster_id is not None]
        return max(known, key=lambda one: one.epoch).cluster_id if known else None

    def _heard(self) -> list[Notification]:
        """What the other voters said in this round, those who have decided already included."""
        settled = [one for one in self.settled.values() if one.round == self._m.round]
        known = {**{one.sender: one for one in settled}, **self.votes}
        return [known[voter] for voter in self._m.config.voters if voter in known]

    def _counts(self, notification: Notification) -> bool:
        return notification.standing is Standing.VOTER or self.founding()

    def forgetful(self) -> dict[MemberId, Standing]:
        """The voters that say they cannot vouch for their past, ourselves included."""
        m = self._m
        told = {one.sender: one.standing for one in (*self.votes.values(), *self.settled.values())}
        told[m.me] = m.standing
        return {
            voter: told[voter]
            for voter in m.config.voters
            if told.get(voter, Standing.VOTER) is not Standing.VOTER
        }

    def is_remembered(self) -> bool:
        """Whether somebody knows of an earlier life of this ensemble, and nobody has a leader."""
        if self.settled:
            return False  # what was heard of those who look may be older than the new leader
        empty = self._m.history_empty or self._m.founds_anew
        return not empty or not all(map(may_found, self.votes.values()))

    # --- what follows ---------------------------------------------------------------------------

    def reconsider(self) -> bool:
        """Take the best vote there is; whether that changed ours."""
        own = self.own_vote()
        candidates = [vote for vote in (own, self.vote) if vote is not None]
        if own is not None:
            for notification in self.votes.values():
                vote = vote_of(notification)
                if vote is not None and self._counts(notification):
                    candidates.append(vote)
        best = max(candidates, default=None)
        changed = best != self.vote
        self.vote = best
        return changed

    def is_better_than(self, notification: Notification) -> bool:
        """Whether our vote would change that of the sender."""
        theirs = vote_of(notification)
        return self.vote is not None and (theirs is None or self.vote > theirs)

    def is_for_our_past(self, notification: Notification) -> bool:
        """Whether it is a vote for ourselves with more than we have, which we have lost since."""
        theirs, own = vote_of(notification), self.own_vote()
        return theirs is not None and theirs.leader == self._m.me and (own is None or theirs > own)

    def running_leader(self) -> MemberId | None:
        """A member that says it leads, and that a quorum would follow if we did.

        Whether that leadership is any good is for discovery to find out; here it only has to be
        worth a try, so who says so may be blank, and need not agree about the details of a vote.
        """
        m = self._m
        for leader, notification in sorted(self.settled.items()):
            if notification.state is PeerState.LEADING and notification.leader == leader:
                backers = [
                    sender
                    for heard in (self.settled, self.votes)
                    for sender, heard_of in heard.items()
                    if heard_of.leader == leader
                ]
                if m.quorum.contains([*backers, m.me]):
                    return leader
        return None

    def is_elected(self) -> bool:
        """Whether a quorum, ourselves included, votes as we do."""
        if self.own_vote() is None or self.vote is None:
            return False
        copies = [] if self._m.standing is Standing.VOTER else self._copies(self._heard())
        if copies and self.vote.leader not in copies:
            return False  # the copy is what is to be founded with, though it may vote later
        backers = [
            heard.sender
            for heard in self._heard()
            if self._counts(heard)
            and (
                vote_of(heard) == self.vote
                # It has decided before us, and speaks of its decision instead of its vote.
                or (heard.state is not PeerState.LOOKING and heard.leader == self.vote.leader)
            )
        ]
        return self._m.quorum.contains([*backers, self._m.me])

    def is_unanimous(self, lost: MemberId | None) -> bool:
        """Whether all voters but the lost leader agree with us, or have another leader already.

        Who still follows the lost one has not noticed yet, and may have the better vote.
        """
        return all(
            (voter in self.settled and self.settled[voter].leader != lost)
            or voter in (self._m.me, lost)
            or (voter in self.votes and vote_of(self.votes[voter]) == self.vote)
            for voter in self._m.config.voters
        )

    def silent(self) -> tuple[MemberId, ...]:
        """The voters that have not been heard in this election."""
        m = self._m
        known = {m.me, *self.votes, *self.settled}
        return tuple(voter for voter in m.config.voters if voter not in known)

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next."""
        votes, settled = sorted(self.votes.items()), sorted(self.settled.items())
        return (self.vote, tuple(votes), tuple(settled))
