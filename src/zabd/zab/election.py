"""Election: members trade votes until a quorum names the same one, or hear of a running leader.

Every voter begins with a vote for itself and changes to any better one it hears of; better is the
later current epoch, then the longer history, then the greater id. So the member elected has, of a
quorum, the best history. Safety does not rest on that: discovery checks it again.

A member without a cluster id votes, and is counted, only in a founding: when every configured voter
has said in this round that its history is empty, or one was told by its operator to found. A member
that is damaged neither votes nor counts: it waits for a leader that the others elect without it.
One that is to found a cluster anew, with its history, leads that one, or does nothing. Who has lost
its past and hears a vote for what it was begins a round in which there are no such votes.

Invariants
    E2  A member votes only while its disk owes it nothing, so its vote speaks of durable history.

Junqueira, Reed and Serafini, "Zab" (DSN 2011), phase 0; ZooKeeper's fast leader election.
"""

from typing import Final

from zabd.model.errors import RemoteProtocolError
from zabd.model.ids import LinkId, MemberId
from zabd.model.zxid import ZXID_ZERO
from zabd.zab.ballot import Ballot
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
from zabd.zab.learners import check_follower_info
from zabd.zab.member import Follow, Lead, Look, Member
from zabd.zab.messages import FollowerInfo, Notification, PeerState, Standing

FINALIZE_MS: Final = 20
"""A quorum that agrees waits this long for the voters it has not heard, who may know better."""

RETRY_MS_MIN: Final = 40
RETRY_MS_MAX: Final = 1000
"""How often to notify again, growing; notifications may be lost."""

BACKOFF_MS_MIN: Final = 20
BACKOFF_MS_MAX: Final = 1000
"""How long to wait after an attempt that failed, growing, so that attempts do not chase.

Never longer than a follower waits for its leader: who comes first is still there for the last."""

DAMAGED_TOO_MANY: Final = (
    "so many members are damaged that the others cannot elect a leader: nothing is served until "
    "one of them is restored from a copy, or an operator gives up what it lost (--give-up-damaged)"
)
BLANK_TOO_MANY: Final = (
    "so many members have an empty directory that those with a history cannot elect a leader: "
    "nothing is served until members that have a history come back with it, or an operator has a "
    "new cluster founded from one copy (--found-anew, with the id of this cluster)"
)
NOT_THE_ONLY_COPY: Final = (
    "this member is to found a new cluster from its history, and others have one as well or belong "
    "to a cluster: nothing is founded. Start it without --found-anew to join them, or empty the "
    "directories of those whose history is to be given up"
)
FOREIGN: Final = (
    "it belongs to another cluster than this member's data directory, so neither listens to the "
    "other: one of the two was started with a directory of somewhere else"
)


class Looking:
    """A peer without a leader."""

    __slots__ = (
        "_ballot",
        "_begun",
        "_early",
        "_finalize_ms",
        "_foreign",
        "_forgetful",
        "_hold_ms",
        "_lost",
        "_m",
        "_others",
        "_retry_ms",
        "_retry_wait_ms",
    )

    def __init__(self, member: Member, cause: Look) -> None:
        self._m = member
        self._lost = cause.lost
        self._begun = False
        self._ballot = Ballot(member)
        self._early: dict[LinkId, FollowerInfo] = {}
        self._foreign: list[MemberId] = []
        self._forgetful: dict[MemberId, Standing] = {}
        self._others: tuple[MemberId, ...] = ()
        self._finalize_ms: int | None = None
        self._hold_ms = 0
        self._retry_ms = 0
        self._retry_wait_ms = RETRY_MS_MIN

    def enter(self) -> None:
        """Begin as soon as the disk is quiet (E2)."""
        m = self._m
        m.become(PeerState.LOOKING, Phase.ELECTION, m.current_epoch, None)
        if m.failures:
            longest = min(BACKOFF_MS_MAX, m.config.init_timeout_ms)
            ceiling = min(longest, BACKOFF_MS_MIN << min(m.failures, 10))
            self._hold_ms = m.now_ms + m.rng.randint(ceiling // 2, ceiling)
        self._begin_when_quiet()

    def leave(self) -> None:
        """Those who dialled too early are told to try elsewhere, unless they are taken over."""
        for link in self._early:
            self._m.outbox.append(Hangup(link))

    @property
    def waiting_for(self) -> tuple[MemberId, ...]:
        """The voters that have not been heard yet."""
        return self._ballot.silent()

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
        heard = self._ballot.begin()
        self._broadcast()
        for notification in heard:
            self._count(notification)
        self._tell_if_hopeless()
        self._decide()

    # --- notifications --------------------------------------------------------------------------

    def _notified(self, notification: Notification) -> None:
        ballot = self._ballot
        if not ballot.is_believable(notification):
            self._tell_if_foreign(notification)
            return
        sender = notification.sender
        if notification.state is PeerState.LOOKING:
            ballot.settled.pop(sender, None)
            if sender not in self._m.config.voters:
                return  # an observer asks who leads; it has to ask again
            if self._begun:
                self._count(notification)
            else:
                ballot.votes[sender] = notification
        else:
            ballot.votes.pop(sender, None)
            before = ballot.settled.get(sender)
            ballot.settled[sender] = notification
            known = before is not None and before.state is PeerState.LEADING
            if self._begun and not known and notification.state is PeerState.LEADING:
                self._ask_about(sender)
        self._tell_if_hopeless()
        self._decide()

    def _tell_if_foreign(self, notification: Notification) -> None:
        """Say once of each such member why we do not listen to it."""
        sender, m = notification.sender, self._m
        news = sender in m.config.voters and sender not in self._foreign
        if news and self._ballot.is_foreign(notification):
            self._foreign.append(sender)
            m.trace("foreign_member", {"level": "warning", "other": sender, "what": FOREIGN})

    def _ask_about(self, leader: MemberId) -> None:
        """One more says it leads: ask the others at once whether they follow."""
        for voter in self._m.config.voters:
            if voter not in (self._m.me, leader):
                self._notify(voter)

    def _count(self, notification: Notification) -> None:
        ballot = self._ballot
        if notification.round < self._m.round:
            self._notify(notification.sender)  # it will come over to this round
            return
        if notification.round > self._m.round:
            ballot.join(notification)
            self._finalize_ms = None
            self._broadcast()
            return
        if ballot.is_for_our_past(notification):
            self._m.round += 1  # in which nobody has that vote any more
            ballot.begin()
            self._finalize_ms = None
            self._broadcast()
            return
        first = notification.sender not in ballot.votes
        ballot.votes[notification.sender] = notification
        if ballot.reconsider():
            self._finalize_ms = None
            self._broadcast()
        elif first or ballot.is_better_than(notification):
            self._notify(notification.sender)  # it may have missed what we sent to all

    def _broadcast(self) -> None:
        m = self._m
        vote = self._ballot.vote
        facts = {"leader": vote.leader, "zxid": vote.zxid} if vote else {"leader": None}
        m.trace("votes", {"round": m.round, **facts})
        for voter in m.config.voters:
            if voter != m.me:
                self._notify(voter)
        wait_ms = self._retry_wait_ms
        self._retry_ms = m.now_ms + m.rng.randint(wait_ms * 3 // 4, wait_ms * 5 // 4)

    def _notify(self, voter: MemberId) -> None:
        m = self._m
        vote = self._ballot.vote
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

    # --- when there can be none -----------------------------------------------------------------

    @property
    def hopeless(self) -> tuple[MemberId, ...]:
        """The damaged and blank voters, if the others are too few for a quorum without them.

        Blank ones alone wait for a founding, unless somebody remembers an earlier life.
        """
        m, ballot = self._m, self._ballot
        told = ballot.forgetful()
        left = len(m.config.voters) - len(told)
        no_founding = Standing.DAMAGED in told.values() or ballot.is_remembered()
        return tuple(told) if left < m.quorum.size and no_founding else ()

    def _tell_if_hopeless(self) -> None:
        """Say once, and whenever it changes, that no leader can be elected, and why."""
        self._tell_if_not_the_only_copy()
        told = self._ballot.forgetful()
        members = self.hopeless
        forgetful = {member: told[member] for member in members}
        if forgetful == self._forgetful:
            return
        self._forgetful = forgetful
        if members:
            names = ", ".join(f"{member} ({told[member].name.lower()})" for member in members)
            what = DAMAGED_TOO_MANY if Standing.DAMAGED in told.values() else BLANK_TOO_MANY
            facts: dict[str, object] = {"level": "error", "members": names, "what": what}
            if self._m.cluster_id is not None:
                facts["cluster"] = self._m.cluster_id.hex()
            self._m.trace("waits_for_repair", facts)

    def _tell_if_not_the_only_copy(self) -> None:
        """Say once, and whenever it changes, why nothing is founded anew."""
        others = self._ballot.who_knows_better()
        if others and others != self._others:
            names = ", ".join(map(str, others))
            facts = {"level": "error", "members": names, "what": NOT_THE_ONLY_COPY}
            self._m.trace("founds_nothing", facts)
        self._others = others

    # --- the decision ---------------------------------------------------------------------------

    def _decide(self) -> None:
        if not self._begun or self._m.now_ms < self._hold_ms or self._m.transition:
            return
        ballot = self._ballot
        leader = ballot.running_leader()
        if leader is not None and not self._m.founds_anew:
            self._m.transition = Follow(leader)
        elif not ballot.is_elected():
            self._finalize_ms = None
        elif self._is_final():
            assert ballot.vote is not None
            self._elected(ballot.vote.leader)

    def _is_final(self) -> bool:
        """Whether all who can be expected to have voted have, or time is up."""
        m = self._m
        if self._ballot.is_unanimous(self._lost):
            return True
        if self._finalize_ms is None:
            # Who gives a whole cluster up takes the time to hear whether somebody is left of it.
            wait_ms = m.config.sync_timeout_ms if m.founds_anew else FINALIZE_MS
            self._finalize_ms = m.now_ms + wait_ms
        return m.now_ms >= self._finalize_ms

    def _elected(self, leader: MemberId) -> None:
        m = self._m
        if not self._begun or leader not in m.config.voters or (m.damaged and leader == m.me):
            return
        if m.founds_anew and not (leader == m.me and self._ballot.founding()):
            return
        if leader == m.me:
            early, self._early = tuple(self._early.items()), {}
            m.transition = Lead(self._ballot.founding(), early, self._ballot.cluster_id())
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
            self._lost,
            self._ballot.state_key(),
            tuple(sorted(self._early.items())),
        )
