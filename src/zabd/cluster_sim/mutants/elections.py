"""Mistakes about election and leadership: M31-M33, M53, M54, M60-M62, M64, M65, M67, M77, M78."""

from collections.abc import Callable, Collection, Iterable
from types import MappingProxyType
from typing import Final

from zabd.cluster_sim.mutants.mutant import Mutant, Patch
from zabd.model.ids import Epoch, LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.storage.storage import Storage
from zabd.zab import ballot, broadcast
from zabd.zab.ballot import Ballot, Vote
from zabd.zab.broadcast import LeaderBroadcast, LearnerBroadcast
from zabd.zab.discovery import LeaderDiscovery
from zabd.zab.effects import Hangup
from zabd.zab.election import Looking
from zabd.zab.establishment import Establishment
from zabd.zab.leading import Leading
from zabd.zab.learners import Learner, Stage
from zabd.zab.member import Lead, Member
from zabd.zab.messages import AckEpoch, AckNewLeader, FollowerInfo, Notification, Propose
from zabd.zab.quorum import MajorityQuorum

_CHANGING: Final = MappingProxyType(
    {
        "voters": 3,
        "kinds": ("isolate the leader", "lonely proposal", "kill", "named leader", "abdicate"),
    }
)
"""One leader after the other, and proposals that only one member has."""

_NAMED: Final = MappingProxyType(
    {"voters": 3, "kinds": ("isolate the leader", "lonely proposal", "kill", "forced succession")}
)
_HALVES: Final = MappingProxyType(
    {"voters": 4, "observers": 0, "kinds": ("partition", "isolate the leader")}
)


# --- votes ---------------------------------------------------------------------------------------


def _compared_by(key: Callable[[Ballot, Vote], tuple[int, ...]]) -> list[Patch]:
    """A ballot that finds another vote the best."""

    def reconsider(self: Ballot) -> bool:
        own, before = self.own_vote(), self.vote
        found = [own, before] if own is not None else [before]
        if own is not None:
            found += [ballot.vote_of(one) for one in self.votes.values() if self._counts(one)]
        votes = [vote for vote in found if vote is not None]
        self.vote = max(votes, key=lambda vote: key(self, vote), default=None)
        return self.vote != before

    return [(Ballot, "reconsider", reconsider)]


def _votes_by_zxid() -> list[Patch]:
    return _compared_by(lambda _ballot, vote: vote[1:])


def _better_history_ignored() -> list[Patch]:
    promise = LeaderDiscovery.promise

    def blind(self: LeaderDiscovery, learner: Learner, message: AckEpoch) -> None:
        best, self._history = self._history, (1 << 62, Zxid(1 << 62))
        promise(self, learner, message)
        self._history = best

    return [(LeaderDiscovery, "promise", blind)]


def _votes_by_zxid_unguarded() -> list[Patch]:
    return [*_votes_by_zxid(), *_better_history_ignored()]


def _vote_of_a_new_epoch() -> list[Patch]:
    own_vote = Ballot.own_vote

    def proud(self: Ballot) -> Vote | None:
        vote, accepted = own_vote(self), self._m.accepted_epoch
        if vote is None or accepted <= self._m.current_epoch:
            return vote
        return vote._replace(zxid=max(vote.zxid, Zxid.of(accepted, 0)))

    return [(Ballot, "own_vote", proud)]


def _rounds_mixed() -> list[Patch]:
    count = Looking._count

    def mixed(self: Looking, notification: Notification) -> None:
        if notification.round < self._m.round:
            self._ballot.votes[notification.sender] = notification
            self._ballot.reconsider()
        else:
            count(self, notification)

    return [(Looking, "_count", mixed)]


def _ties_stand() -> list[Patch]:
    return _compared_by(lambda mine, vote: (*vote[:2], vote.leader == mine._m.me))


# --- counting ------------------------------------------------------------------------------------


def _acks_counted() -> list[Patch]:
    ack, advance = LeaderBroadcast.ack, LeaderBroadcast.advance
    tallies: dict[int, list[int]] = {}

    def tally(self: LeaderBroadcast, learner: Learner, zxid: Zxid) -> None:
        ack(self, learner, zxid)
        tallies.setdefault(id(self), []).append(zxid)

    def by_number(self: LeaderBroadcast, learners: Iterable[Learner]) -> None:
        acks = sorted([*tallies.get(id(self), []), self._m.durable.zxid], reverse=True)
        quorum = self._m.quorum
        if len(acks) < quorum.size or acks[quorum.size - 1] <= self._m.committed:
            advance(self, learners)
            return
        before = dict(self._acked)
        for voter in quorum.voters:
            self._acked[voter] = acks[quorum.size - 1]
        advance(self, learners)
        self._acked = before

    return [(LeaderBroadcast, "ack", tally), (LeaderBroadcast, "advance", by_number)]


def _half_is_enough() -> list[Patch]:
    init = MajorityQuorum.__init__

    def half(self: MajorityQuorum, voters: Collection[MemberId]) -> None:
        init(self, voters)
        self.size = max(1, len(self.voters) // 2)

    return [(MajorityQuorum, "__init__", half)]


def _observers_count() -> list[Patch]:
    def contains(self: MajorityQuorum, members: Collection[MemberId]) -> bool:
        return len(set(members)) >= self.size

    def counts(self: LeaderDiscovery, info: FollowerInfo) -> bool:
        founds = self.founding and not info.position.zxid
        return info.cluster_id is not None or founds

    return [(MajorityQuorum, "contains", contains), (LeaderDiscovery, "counts", counts)]


def _tally_for_all() -> list[Patch]:
    init, advance = LeaderBroadcast.__init__, LeaderBroadcast.advance
    everywhere: dict[MemberId, int] = {}

    def share(self: LeaderBroadcast, member: Member, epoch: Epoch) -> None:
        init(self, member, epoch)
        self._acked = everywhere

    def by_all(self: LeaderBroadcast, learners: Iterable[Learner]) -> None:
        last = self._m.tail.last.zxid
        if Zxid(self._m.quorum.acked(everywhere)).epoch > self.epoch == last.epoch:
            self._acked = dict.fromkeys(self._m.quorum.voters, last)
            advance(self, learners)
            self._acked = everywhere
        else:
            advance(self, learners)

    return [(LeaderBroadcast, "__init__", share), (LeaderBroadcast, "advance", by_all)]


# --- epochs --------------------------------------------------------------------------------------


def _counter_overflows() -> list[Patch]:
    submit = LeaderBroadcast.submit

    def on_and_on(
        self: LeaderBroadcast, count: int, payload: bytes, learners: Iterable[Learner]
    ) -> None:
        submit(self, count, payload, learners)
        self.handing_over = False

    return [
        (LeaderBroadcast, "submit", on_and_on),
        (broadcast, "BATCH_COUNT_MAX", 1 << 32),  # so that a run comes to the end of an epoch
    ]


def _old_epoch_and_its_promise() -> list[Patch]:
    """A prospective leader takes the greatest promise itself, and those who made it count."""
    choose, promise = LeaderDiscovery._choose, LeaderDiscovery.promise

    def same(self: LeaderDiscovery, learners: dict[LinkId, Learner]) -> None:
        m = self._m
        greatest = max([one.accepted_epoch for one in learners.values()], default=0)
        if greatest <= m.accepted_epoch:
            choose(self, learners)
            return
        held, m.accepted_epoch = m.accepted_epoch, greatest - 1
        others = [one.accepted_epoch for one in learners.values()]
        for one in learners.values():
            one.accepted_epoch = min(one.accepted_epoch, greatest - 1)
        try:
            choose(self, learners)
        finally:
            m.accepted_epoch = held
            for one, accepted in zip(learners.values(), others, strict=True):
                one.accepted_epoch = accepted

    def counts(self: LeaderDiscovery, learner: Learner, message: AckEpoch) -> None:
        accepted, learner.accepted_epoch = learner.accepted_epoch, 0
        promise(self, learner, message)
        learner.accepted_epoch = accepted

    return [(LeaderDiscovery, "_choose", same), (LeaderDiscovery, "promise", counts)]


# --- links ---------------------------------------------------------------------------------------


def _kept_links() -> list[Patch]:
    """The last link of a leadership is not hung up, and the next one goes on with it."""
    kept: dict[Member, list[Learner]] = {}
    init = Leading.__init__

    def leave(self: Leading) -> None:
        learners = [*self._learners]
        kept[self._m] = learners[-1:]
        for learner in learners[:-1]:
            self._m.outbox.append(Hangup(learner.link))

    def take_over(self: Leading, member: Member, cause: Lead) -> None:
        init(self, member, cause)
        for learner in kept.pop(member, []):
            if learner.member not in self._learners:
                learner.heard_ms = member.now_ms
                self._learners.add(learner)

    return [(Leading, "leave", leave), (Leading, "__init__", take_over)]


def _link_outlives_leadership() -> list[Patch]:
    patches = _kept_links()
    receive = LearnerBroadcast.receive

    def trusting(self: LearnerBroadcast, message: object) -> None:
        if isinstance(message, Propose):
            self.epoch = message.first.epoch
        receive(self, message)  # type: ignore[arg-type]

    return [*patches, (LearnerBroadcast, "receive", trusting)]


def _old_acknowledgement() -> list[Patch]:
    patches = _kept_links()
    ack = Establishment.ack

    def trusting(self: Establishment, learner: Learner, message: AckNewLeader) -> None:
        there = self._m.tail.boundary(message.zxid)
        if there is not None and (message.epoch != self._epoch or learner.stage < Stage.INVITED):
            learner.stage, learner.position = Stage.INVITED, there
            message = AckNewLeader(self._epoch, there.zxid)
        ack(self, learner, message)

    return [*patches, (Establishment, "ack", trusting)]


# --- leaders that should go ----------------------------------------------------------------------


def _leads_without_a_disk() -> list[Patch]:
    def note_only(self: Storage, _error: object) -> None:
        """A line in the log, and on it goes."""
        self._failed = True

    return [
        (Storage, "_fail", note_only),
        (Member, "stalled_at_ms", lambda _self: None),
    ]


def _leads_alone() -> list[Patch]:
    def all_is_well(_self: Leading, _heard_since_ms: int | None = None) -> bool:
        return True

    return [
        (Leading, "_has_quorum", all_is_well),
        (Leading, "_drop_silent", lambda _self: None),
    ]


_DECISIONS: Final = frozenset({"C6", "D6", "L4", "Z9", "Z12", "Z13", "Z14", "Z15", "Z16", "Z17"})
"""What sees a wrong decision when it is taken."""

_ISOLATED: Final = MappingProxyType({"voters": 3, "kinds": ("isolate the leader",)})

_RESIGNING: Final = MappingProxyType(
    {"voters": 3, "kinds": ("abdicate", "forced succession", "stall")}
)

ELECTIONS: Final = (
    Mutant(
        name="votes-by-zxid",
        bug="M31",
        what="votes are compared by zxid only, and not by epoch first",
        history=(
            "C alone has 2:1; A leads 3 with B, and has 3:1 alone; of B and C, C wins with the "
            "older history, finds B ahead, steps down, and wins again"
        ),
        reference="ZOOKEEPER-335, ZOOKEEPER-1082, ZOOKEEPER-1419",
        level="zab",
        found_by=frozenset({"L5"}),
        patches=_votes_by_zxid,
        shape=_CHANGING,
    ),
    Mutant(
        name="better-history-ignored",
        bug="M32",
        what="a leader goes on although a member of its quorum has more history",
        history=(
            "an election names B; A, which has a committed batch that B lacks, follows, and B "
            "cuts it off"
        ),
        reference="the paper: a leader takes the best history of its quorum",
        level="zab",
        found_by=frozenset({"Z17"}),
        patches=_better_history_ignored,
        shape=_NAMED,
    ),
    Mutant(
        name="better-history-ignored-unguarded",
        bug="M32",
        what="the same, seen by what comes of it",
        history="as above",
        reference="the paper",
        level="zab",
        found_by=frozenset({"Z9"}),
        patches=_better_history_ignored,
        shape=_NAMED,
        without=frozenset({"Z13", "Z17"}),
    ),
    Mutant(
        name="better-history-ignored-chosen",
        bug="M32",
        what="the same, seen by what a quorum had acknowledged",
        history="as above",
        reference="the paper",
        level="zab",
        found_by=frozenset({"Z13"}),
        patches=_better_history_ignored,
        shape=_NAMED,
        without=frozenset({"Z17", "Z9"}),
    ),
    Mutant(
        name="votes-by-zxid-unguarded",
        bug="M31+M32",
        what="votes are compared by zxid only, and a leader goes on whoever has more history",
        history=(
            "as of the two: C leads with the batch of an epoch that a later one has superseded"
        ),
        reference="ZOOKEEPER-335; the paper",
        level="zab",
        found_by=frozenset({"Z17"}),
        patches=_votes_by_zxid_unguarded,
        shape=_CHANGING,
    ),
    Mutant(
        name="votes-by-zxid-revived",
        bug="M31+M32",
        what="the same, seen where the superseded batch is committed",
        history="as above",
        reference="ZOOKEEPER-335; the paper",
        level="zab",
        found_by=frozenset({"Z7"}),
        patches=_votes_by_zxid_unguarded,
        shape=_CHANGING,
        without=frozenset({"A5", "Z9", "Z10", "Z13", "Z17"}),
    ),
    Mutant(
        name="vote-of-a-new-epoch",
        bug="M33",
        what="a member that only tried to lead an epoch votes as if it had its first zxid",
        history="B tries to lead 2, fails, and its vote of 2:0 beats the committed 1:1 of A",
        reference="ZOOKEEPER-790",
        level="zab",
        found_by=frozenset({"D5"}),
        patches=_vote_of_a_new_epoch,
        shape=_CHANGING,
    ),
    Mutant(
        name="acks-counted",
        bug="M53",
        what="acknowledgements are counted by number, and not by who gave them",
        history="B acknowledges two batches; for the first one that counts as two members of five",
        reference="classical",
        level="zab",
        found_by=frozenset({"Z15"}),
        patches=_acks_counted,
        shape=MappingProxyType({"voters": 5}),
    ),
    Mutant(
        name="half-is-enough",
        bug="M54",
        what="half of the voters are taken for a quorum",
        history="four members are cut into two and two, and both halves elect and commit",
        reference="classical",
        level="zab",
        found_by=frozenset({"Z15"}),
        patches=_half_is_enough,
        shape=_HALVES,
    ),
    Mutant(
        name="half-is-enough-agreement",
        bug="M54",
        what="the same, seen where the halves deliver",
        history="as above",
        reference="classical",
        level="zab",
        found_by=frozenset({"Z3"}),
        patches=_half_is_enough,
        shape=_HALVES,
        without=_DECISIONS | {"A5", "D2", "Z5", "Z6", "Z7", "Z8"},
    ),
    Mutant(
        name="half-is-enough-gap",
        bug="M54",
        what="the same, seen where an epoch is delivered with a gap",
        history="as above",
        reference="classical",
        level="zab",
        found_by=frozenset({"Z5"}),
        patches=_half_is_enough,
        shape=_HALVES,
        without=_DECISIONS | {"A5", "D2", "Z2", "Z3", "Z4", "Z6", "Z7", "Z8"},
    ),
    Mutant(
        name="counter-overflows",
        bug="M60",
        what="the counter of an epoch runs on into the next epoch's zxids",
        history="a busy leader has proposed 2^32 transactions",
        reference="ZOOKEEPER-1277",
        level="zab",
        found_by=frozenset({"R9"}),
        patches=_counter_overflows,
        shape=MappingProxyType({"batch_counts": (1, 1 << 29)}),
    ),
    Mutant(
        name="rounds-mixed",
        bug="M61",
        what="votes of different rounds of an election are counted together",
        history=(
            "a joiner gathers old votes and takes itself for the leader while a quorum has one"
        ),
        reference="ZOOKEEPER-975",
        level="zab",
        found_by=frozenset({"Z15"}),
        patches=_rounds_mixed,
    ),
    Mutant(
        name="ties-stand",
        bug="M62",
        what="of equally good votes each member keeps its own, so an election never ends",
        history="two that have the same history never name the same leader",
        reference="ZOOKEEPER-1419, ZOOKEEPER-1732, ZOOKEEPER-1818",
        level="zab",
        found_by=frozenset({"L1"}),
        patches=_ties_stand,
    ),
    Mutant(
        name="old-acknowledgement",
        bug="M64",
        what="the acknowledgement of an earlier NEWLEADER counts, over a link of that leadership",
        history=(
            "A tries 2, B acknowledges late; A tries 3, and is established by that, though B "
            "never had its history"
        ),
        reference="cf. ZOOKEEPER-1192",
        level="zab",
        found_by=frozenset({"A5", "A4"}),
        patches=_old_acknowledgement,
        shape=_RESIGNING,
    ),
    Mutant(
        name="observers-count",
        bug="M65",
        what="observers count in quorums",
        history="one voter of three and an observer elect and commit",
        reference="cf. ZOOKEEPER-764",
        level="zab",
        found_by=frozenset({"Z15"}),
        patches=_observers_count,
        shape=MappingProxyType({"voters": 3, "observers": 2}),
    ),
    Mutant(
        name="leads-without-a-disk",
        bug="M67",
        what="a leader whose disk has failed goes on leading",
        history=(
            "it pings and nobody takes over, but what it proposes is never durable at its own place"
        ),
        reference="ZOOKEEPER-2247",
        level="zab",
        found_by=frozenset({"L1", "L3", "L7", "D7"}),
        patches=_leads_without_a_disk,
        shape=MappingProxyType({"voters": 3, "kinds": ("sync error",)}),
    ),
    Mutant(
        name="link-outlives-leadership",
        bug="M77",
        what=(
            "a follower goes on with a leader that has resigned and leads a new epoch, over the "
            "old link"
        ),
        history=(
            "C never notices that A has resigned, takes a proposal of the new epoch without "
            "having been synchronised, and A and C commit it"
        ),
        reference="classical: why every handler is bound to a connection",
        level="zab",
        found_by=frozenset({"A5"}),
        patches=_link_outlives_leadership,
        shape=_RESIGNING,
    ),
    Mutant(
        name="tally-for-all",
        bug="M78",
        what="the tally of acknowledgements is one for all leaderships, and not one for each",
        history=(
            "an old leader finds what was acknowledged to the new one, and commits its own with "
            "that"
        ),
        reference="classical",
        level="zab",
        found_by=frozenset({"Z15"}),
        patches=_tally_for_all,
        shape=_ISOLATED,
    ),
    Mutant(
        name="tally-for-all-late",
        bug="M78",
        what="the same, seen where the old leader delivers",
        history="as above",
        reference="classical",
        level="zab",
        found_by=frozenset({"Z3", "Z7"}),
        patches=_tally_for_all,
        shape=_ISOLATED,
        without=frozenset({"Z15", "D6"}),
    ),
    Mutant(
        name="tally-for-all-order",
        bug="M78",
        what="the same, seen where an older epoch is delivered after a newer one",
        history="as above",
        reference="classical",
        level="zab",
        found_by=frozenset({"Z6"}),
        patches=_tally_for_all,
        shape=_ISOLATED,
        without=frozenset({"Z15", "D6", "Z2", "Z3", "Z4", "Z5", "Z7"}),
    ),
    Mutant(
        name="epoch-taken-twice",
        bug="M04+M06",
        what=(
            "an epoch that is promised already is chosen again, and counted where it was promised"
        ),
        history=(
            "B has promised 2 to A; C hears that, takes 2 too, and B's word counts once more: two "
            "lead 2"
        ),
        reference="ZOOKEEPER-1343; the rule of the reply that does not count",
        level="zab",
        found_by=frozenset({"Z16"}),
        patches=_old_epoch_and_its_promise,
        shape=_NAMED,
    ),
    Mutant(
        name="epoch-taken-twice-unguarded",
        bug="M04+M06",
        what="the same, seen when both lead",
        history="as above",
        reference="ZOOKEEPER-1343",
        level="zab",
        found_by=frozenset({"Z8"}),
        patches=_old_epoch_and_its_promise,
        shape=_NAMED,
        without=frozenset({"Z16"}),
    ),
    Mutant(
        name="leads-alone",
        bug="M93",
        what="a leader that is cut off from its quorum does not notice",
        history="it goes on serving for ever",
        reference="classical",
        level="zab",
        found_by=frozenset({"L4"}),
        patches=_leads_alone,
        shape=MappingProxyType({"voters": 3, "kinds": ("isolate the leader", "partition")}),
    ),
)
