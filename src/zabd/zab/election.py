"""Election: members trade votes until a quorum names the same one, or hear of a running leader.

Every voter begins with a vote for itself and changes to any better one it hears of; better is the
later current epoch, then the longer history, then the greater id. So the member elected has, of a
quorum, the best history. Safety does not rest on that: discovery checks it again.

A member without a cluster id votes, and is counted, only in a founding: when every configured voter
has said in this round that its history is empty, or one was told by its operator to found.

Invariants
    E1  Only votes of this round count, one for each voter, and only of those who may vote.
    E2  A member votes only while its disk owes it nothing, so its vote speaks of durable history.

Junqueira, Reed and Serafini, "Zab" (DSN 2011), phase 0; ZooKeeper's fast leader election.
"""

from typing import Final, NamedTuple

from zabd.model.errors import RemoteProtocolError
from zabd.model.ids import Epoch, LinkId, MemberId
from zabd.model.zxid import ZXID_ZERO, Zxid
from zabd.zab.effects import Hangup, Notify, Phase
from zabd.zab.events import (
    Dialled,
    Disconnected,
    Elapsed,
    Elected,
    Event,
    Notified,
    Received,
)
from zabd.zab.learners import EPOCH_JUMP_MAX, check_follower_info
from zabd.zab.member import Follow, Lead, Look, Member
from zabd.zab.messages import FollowerInfo, Notification, PeerState, Standing

FINALIZE_MS: Final = 20
"""A quorum that agrees waits this long for the voters it has not heard, who may know better."""

RETRY_MS_MIN: Final = 40
RETRY_MS_MAX: Final = 1000
"""How often to notify again, growing; notifications may be lost."""

BACKOFF_MS_MIN: Final = 20
BACKOFF_MS_MAX: Final = 1000
"""How long to wait after an attempt that failed, growing, so that attempts do not chase."""

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


class Looking:
    """A peer without a leader."""

    __slots__ = (
        "_begun",
        "_early",
        "_finalize_ms",
        "_hold_ms",
        "_lost",
        "_m",
        "_retry_ms",
        "_retry_wait_ms",
        "_settled",
        "_vote",
        "_votes",
    )

    def __init__(self, member: Member, cause: Look) -> None:
        self._m = member
        self._lost = cause.lost
        self._begun = False
        self._vote: Vote | None = None
        self._votes: dict[MemberId, Notification] = {}  # of members that look, in this round
        self._settled: dict[MemberId, Notification] = {}  # of members that have a leader
        self._early: dict[LinkId, FollowerInfo] = {}
        self._finalize_ms: int | None = None
        self._hold_ms = 0
        self._retry_ms = 0
        self._retry_wait_ms = RETRY_MS_MIN

    def enter(self) -> None:
        """Begin as soon as the disk is quiet (E2)."""
        m = self._m
        m.become(PeerState.LOOKING, Phase.ELECTION, m.current_epoch, None)
        if m.failures:
            ceiling = min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(m.failures, 10))
            self._hold_ms = m.now_ms + m.rng.randint(ceiling // 2, ceiling)
        self._begin_when_quiet()

    def leave(self) -> None:
        """Those who dialled too early are told to try elsewhere, unless they are taken over."""
        for link in self._early:
            self._m.outbox.append(Hangup(link))

    @property
    def deadline_ms(self) -> int | None:
        """When time alone has something to do here."""
        if not self._begun:
            return None
        times = [self._retry_ms]
        if self._finalize_ms is not None:
            times.append(max(self._finalize_ms, self._hold_ms))
        elif self._hold_ms > self._m.now_ms:
            times.append(self._hold_ms)
        return min(times)

    def step(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Notified(notification):
                self._notified(notification)
            case Elapsed():
                self._elapsed()
            case Elected(leader):
                self._elected(leader)
            case Received(link, FollowerInfo() as info):
                self._take_early(link, info)
            case Disconnected(link):
                self._early.pop(link, None)
            case Dialled(link):
                self._m.outbox.append(Hangup(link))
            case _:
                # Answers of the disk have been booked already; the rest is news of a past life.
                self._begin_when_quiet()

    # --- the round ------------------------------------------------------------------------------

    def _begin_when_quiet(self) -> None:
        if self._begun or not self._m.quiet:
            return
        self._begun = True
        self._m.round += 1
        self._vote = self._own_vote()
        heard = [*self._votes.values()]
        self._votes.clear()
        self._broadcast()
        for notification in heard:
            self._count(notification)
        self._decide()

    def _own_vote(self) -> Vote | None:
        m = self._m
        if m.config.observer or not (m.standing is Standing.VOTER or self._founding()):
            return None
        return Vote(m.current_epoch, m.tail.last.zxid, m.me)

    def _founding(self) -> bool:
        """Whether all that could know of an earlier life of this ensemble say there was none."""
        m = self._m
        if not m.history_empty or m.config.observer:
            return False
        heard = self._heard()
        if not all(notification.history_empty for notification in heard):
            return False
        told = m.standing is Standing.FOUNDER or any(
            notification.standing is Standing.FOUNDER for notification in heard
        )
        return told or len(heard) + 1 == len(m.config.voters)

    def _heard(self) -> list[Notification]:
        """What the other voters said in this round, those who have decided already included."""
        settled = [one for one in self._settled.values() if one.round == self._m.round]
        known = {**{one.sender: one for one in settled}, **self._votes}
        return [known[voter] for voter in self._m.config.voters if voter in known]

    def _counts(self, notification: Notification) -> bool:
        return notification.standing is Standing.VOTER or self._founding()

    # --- notifications --------------------------------------------------------------------------

    def _notified(self, notification: Notification) -> None:
        if not self._is_believable(notification):
            return
        sender = notification.sender
        if notification.state is PeerState.LOOKING:
            self._settled.pop(sender, None)
            if sender not in self._m.config.voters:
                return  # an observer asks who leads; it has to ask again
            if self._begun:
                self._count(notification)
            else:
                self._votes[sender] = notification
        else:
            self._votes.pop(sender, None)
            before = self._settled.get(sender)
            self._settled[sender] = notification
            known = before is not None and before.state is PeerState.LEADING
            if self._begun and not known and notification.state is PeerState.LEADING:
                self._ask_about(sender)
        self._decide()

    def _ask_about(self, leader: MemberId) -> None:
        """One more says it leads: ask the others at once whether they follow."""
        for voter in self._m.config.voters:
            if voter not in (self._m.me, leader):
                self._notify(voter)

    def _is_believable(self, notification: Notification) -> bool:
        m = self._m
        members = (*m.config.voters, *m.config.observers)
        foreign = notification.cluster_id not in (None, m.cluster_id) and m.cluster_id is not None
        return (
            notification.sender in members
            and notification.sender != m.me
            and (notification.leader is None or notification.leader in m.config.voters)
            and not foreign
            and notification.round <= m.round + ROUND_JUMP_MAX
            and notification.epoch <= m.accepted_epoch + EPOCH_JUMP_MAX
        )

    def _count(self, notification: Notification) -> None:
        m = self._m
        if notification.round < m.round:
            self._notify(notification.sender)  # it will come over to this round
            return
        if notification.round > m.round:
            m.round = notification.round
            self._votes.clear()
            self._vote = None
            self._votes[notification.sender] = notification
            self._reconsider()
            self._broadcast()
            return
        first = notification.sender not in self._votes
        self._votes[notification.sender] = notification
        if self._reconsider():
            self._broadcast()
        elif first or self._is_better_than(vote_of(notification)):
            self._notify(notification.sender)  # it may have missed what we sent to all

    def _reconsider(self) -> bool:
        """Take the best vote there is; whether that changed ours."""
        own = self._own_vote()
        candidates = [vote for vote in (own, self._vote) if vote is not None]
        if own is not None:
            for notification in self._votes.values():
                vote = vote_of(notification)
                if vote is not None and self._counts(notification):
                    candidates.append(vote)
        best = max(candidates, default=None)
        if best == self._vote:
            return False
        self._vote = best
        self._finalize_ms = None
        return True

    def _is_better_than(self, vote: Vote | None) -> bool:
        return self._vote is not None and (vote is None or self._vote > vote)

    def _broadcast(self) -> None:
        m = self._m
        m.trace(
            "votes",
            {"round": m.round, "leader": self._vote.leader, "zxid": self._vote.zxid}
            if self._vote
            else {"round": m.round, "leader": None},
        )
        for voter in m.config.voters:
            if voter != m.me:
                self._notify(voter)
        wait_ms = self._retry_wait_ms
        self._retry_ms = m.now_ms + m.rng.randint(wait_ms * 3 // 4, wait_ms * 5 // 4)

    def _notify(self, voter: MemberId) -> None:
        m = self._m
        vote = self._vote
        notification = (
            m.notification(None, ZXID_ZERO, 0, PeerState.LOOKING)
            if vote is None
            else m.notification(vote.leader, vote.zxid, vote.epoch, PeerState.LOOKING)
        )
        m.outbox.append(Notify(voter, notification))

    def _elapsed(self) -> None:
        if not self._begun:
            return
        if self._m.now_ms >= self._retry_ms:
            self._retry_wait_ms = min(RETRY_MS_MAX, self._retry_wait_ms * 2)
            self._broadcast()
        self._decide()

    # --- the decision ---------------------------------------------------------------------------

    def _decide(self) -> None:
        if not self._begun or self._m.now_ms < self._hold_ms or self._m.transition:
            return
        leader = self._running_leader()
        if leader is not None:
            self._m.transition = Follow(leader)
        elif not self._is_elected():
            self._finalize_ms = None
        elif self._is_final():
            assert self._vote is not None
            self._elected(self._vote.leader)

    def _running_leader(self) -> MemberId | None:
        """A member that says it leads, and that a quorum would follow if we did.

        Whether that leadership is any good is for discovery to find out; here it only has to be
        worth a try, so who says so may be blank, and need not agree about the details of a vote.
        """
        m = self._m
        for leader, notification in sorted(self._settled.items()):
            if notification.state is PeerState.LEADING and notification.leader == leader:
                backers = [
                    sender
                    for heard in (self._settled, self._votes)
                    for sender, heard_of in heard.items()
                    if heard_of.leader == leader
                ]
                if m.quorum.contains([*backers, m.me]):
                    return leader
        return None

    def _is_elected(self) -> bool:
        own = self._own_vote()
        if own is None or self._vote is None:
            return False
        backers = [
            heard.sender
            for heard in self._heard()
            if self._counts(heard)
            and (
                vote_of(heard) == self._vote
                # It has decided before us, and speaks of its decision instead of its vote.
                or (heard.state is not PeerState.LOOKING and heard.leader == self._vote.leader)
            )
        ]
        return self._m.quorum.contains([*backers, self._m.me])

    def _is_final(self) -> bool:
        """Whether all who can be expected to have voted have, or time is up."""
        m = self._m
        missing = [
            voter
            for voter in m.config.voters
            if voter not in self._settled
            and voter not in (m.me, self._lost)
            and (voter not in self._votes or vote_of(self._votes[voter]) != self._vote)
        ]
        if not missing:
            return True
        if self._finalize_ms is None:
            self._finalize_ms = m.now_ms + FINALIZE_MS
        return m.now_ms >= self._finalize_ms

    def _elected(self, leader: MemberId) -> None:
        m = self._m
        if not self._begun or leader not in m.config.voters:
            return
        if leader == m.me:
            early, self._early = tuple(self._early.items()), {}
            m.transition = Lead(self._founding(), early)
        else:
            m.transition = Follow(leader)

    def _take_early(self, link: LinkId, info: FollowerInfo) -> None:
        """A learner found out before us that we lead, or is wrong: keep its word until we know."""
        check_follower_info(self._m, info)
        if link in self._early:
            raise RemoteProtocolError(f"member {info.member} introduced itself twice")
        for other, known in [*self._early.items()]:
            if known.member == info.member:
                del self._early[other]
                self._m.outbox.append(Hangup(other))
        self._early[link] = info

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next, but for time and chance."""
        return (
            self._begun,
            self._vote,
            self._lost,
            tuple(sorted(self._votes.items())),
            tuple(sorted(self._settled.items())),
            tuple(sorted(self._early.items())),
        )
