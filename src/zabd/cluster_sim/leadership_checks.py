"""The checks of leaderships: what each decision of a leader rests on, and what it stands for.

A decision (to lead, to take an epoch, to be its leader, to be established, to commit) is judged
when it is asked for, by what its leader has heard over links of this leadership that are still
open. That is counted here, member by member, and never by the code that is watched.

A leadership that a checker has not seen from its beginning, as in a test that starts in the middle
of one, is not judged.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from zabd.cluster_sim.durability_checks import DurabilityChecks
from zabd.cluster_sim.ghosts import Entry
from zabd.cluster_sim.link_checks import Talk
from zabd.model.ids import Epoch, LinkId, MemberId
from zabd.model.zxid import ZXID_ZERO, Zxid
from zabd.zab.effects import (
    Append,
    Became,
    Effect,
    Hangup,
    Notify,
    PersistEpochs,
    Phase,
    Send,
)
from zabd.zab.log import LogPosition, RecordError, follows, parse_header
from zabd.zab.messages import (
    Ack,
    AckNewLeader,
    Commit,
    Diff,
    FollowerInfo,
    Message,
    NewLeader,
    Notification,
    PeerState,
    Propose,
    Standing,
    Trunc,
    UpToDate,
)

if TYPE_CHECKING:
    from zabd.cluster_sim.zab_checks import Incarnation

Rank: TypeAlias = tuple[Epoch, Zxid]
"""How good a history is: its current epoch, then its end."""


class LeadershipChecks(DurabilityChecks):
    """The half of a checker that follows links, votes and decisions."""

    ledger: list[Entry]

    def __init__(self, voters: Sequence[MemberId]) -> None:
        super().__init__(voters)
        self.commit_points: dict[Epoch, Zxid] = {}
        """How far the leader of each epoch has said that it has committed."""
        self.leaderships = 0
        """How many attempts to lead there have been."""
        self.clock_us: Callable[[], int] = lambda: 0

    def appending(self, who: "Incarnation", effect: Append, epoch: Epoch) -> None:
        """A member takes a batch into its history."""
        raise NotImplementedError

    # --- links -----------------------------------------------------------------------------------

    def link_over(self, who: "Incarnation", link: LinkId) -> None:
        """A link has broken, or this member hangs up: nothing that was said over it counts now."""
        who.over.add(link)

    def asks(self, who: "Incarnation", effect: Effect, epoch: Epoch) -> None:
        """A member's peer asks for an effect, in an epoch; the host may not have done it yet."""
        match effect:
            case Send(link, message):
                self._say(who, link, message)
            case Append():
                self.appending(who, effect, epoch)
            case Hangup(link):
                self.link_over(who, link)
            case Notify(_, notification):
                self.notified(who, notification)
            case PersistEpochs(_, accepted):
                self.choosing(who, accepted)
            case _:
                pass

    def _hear(self, who: "Incarnation", link: LinkId, message: Message) -> None:
        if link in who.over:
            return
        talk = who.talks.get(link)
        if talk is None:
            if isinstance(message, FollowerInfo):
                term = who.terms + (not who.leading)  # an early one waits for the next leadership
                who.talks[link] = Talk(message, term, learns=False)
            return
        if not talk.learns and (not who.leading or talk.term != who.terms):
            self.fail("A5", f"{who} hears {message} over a link of an earlier leadership")
        if not talk.learns:
            who.heard_us[talk.info.member] = self.clock_us()
        self._judge(who, talk, message)
        talk.hear(message, who, self.fail)

    def _judge(self, who: "Incarnation", talk: Talk, message: Message) -> None:
        if talk.learns:
            self._judge_what_a_learner_hears(who, message)
        else:
            self._judge_what_a_leader_hears(who, talk, message)

    def _judge_what_a_learner_hears(self, who: "Incarnation", message: Message) -> None:
        match message:
            case Propose():
                self._require_next(who, message)
            case NewLeader(epoch, _, position) if position != who.history.last:
                self.fail(
                    "Z14",
                    f"{who} is told that the history of leader {epoch} ends at {position.zxid!r}, "
                    f"and was sent one up to {who.history.last.zxid!r}",
                )
            case Commit(zxid) | UpToDate(zxid) if not _ends_at(who, zxid):
                self.fail("A3", f"{who} is told to commit {zxid!r}, which it has not received")
            case _:
                pass

    def _judge_what_a_leader_hears(self, who: "Incarnation", talk: Talk, message: Message) -> None:
        match message:
            case AckNewLeader(epoch) if epoch != who.leads:
                self.fail("A4", f"{who} hears an ack of leader {epoch}, and leads {who.leads}")
            case Ack(zxid) if not talk.acked < zxid <= who.history.last.zxid:
                self.fail("A4", f"{who} hears an ack of {zxid!r} after one of {talk.acked!r}")
            case _:
                pass

    def _require_next(self, who: "Incarnation", message: Propose) -> None:
        end = who.history.last
        try:
            header = parse_header(message.record)
        except RecordError:
            return  # damaged on its way: who takes it all the same breaks Z1
        if header.previous != end.chain or not follows(header.first, end.zxid):
            self.fail("A2", f"{who} hears a proposal of {header.first!r} after {end.zxid!r}")

    def _say(self, who: "Incarnation", link: LinkId, message: Message) -> None:
        if isinstance(message, FollowerInfo):
            who.talks[link] = Talk(message, 0, learns=True)
            return
        talk = who.talks.get(link)
        if talk is None:
            return
        if who.leads is None and isinstance(message, Diff | Trunc | NewLeader | UpToDate):
            self.fail("A1", f"{who} says {message} before a quorum has promised")
        match message:
            case NewLeader(epoch, _, position) if position != who.history.last:
                self.fail(
                    "Z14",
                    f"{who} names {position.zxid!r} as the end of its history in epoch {epoch}; "
                    f"that is {who.history.last.zxid!r}",
                )
            case Commit(zxid) | UpToDate(zxid):
                self._commits(who, zxid)
            case _:
                pass
        talk.say(message)

    # --- elections -------------------------------------------------------------------------------

    def notified(self, who: "Incarnation", vote: Notification) -> None:
        """A member sends a notification: while it looks, that tells its round."""
        if vote.state is PeerState.LOOKING:
            who.round = vote.round

    def heard_vote(self, who: "Incarnation", vote: Notification) -> None:
        """A notification reaches a member."""
        who.votes.append(vote)

    def _require_elected(self, who: "Incarnation", leader: MemberId | None) -> None:
        backers = [
            vote.sender
            for vote in who.votes
            if vote.leader == leader
            and (vote.state is not PeerState.LOOKING or vote.round == who.round)
        ]
        if not (who.named or self.quorum.contains([*backers, who.member])):
            self.fail(
                "Z15", f"{who} takes {leader} for elected in round {who.round} by {set(backers)}"
            )

    # --- decisions -------------------------------------------------------------------------------

    def choosing(self, who: "Incarnation", epoch: Epoch) -> None:
        """A member asks for its epochs to be made durable: does it choose the one to lead?"""
        if not who.leading or who.leads is not None:
            return
        talks = [talk for talk in self._followers(who) if not talk.info.observer]
        self._require_quorum_of(who, talks, f"chooses epoch {epoch}")
        accepted = [talk.info.accepted_epoch for talk in talks]
        greatest = max([self.durable[who.member].epochs().accepted, *accepted])
        if epoch <= greatest:
            self.fail("Z16", f"{who} chooses epoch {epoch}, {greatest} is promised already")

    def _followers(self, who: "Incarnation") -> Iterator[Talk]:
        """What it has heard in this leadership, over links that are open."""
        for link, talk in who.talks.items():
            if not talk.learns and talk.term == who.terms and link not in who.over:
                yield talk

    def _require_quorum_of(
        self, who: "Incarnation", talks: Iterable[Talk], what: str, check: str = "Z15"
    ) -> None:
        members = {
            talk.info.member
            for talk in talks
            if not talk.info.observer
            # Once established, a leader repairs a damaged one: then it has all of that history.
            and (talk.info.standing is not Standing.DAMAGED or who.leads in self.commit_points)
        }
        if not self.quorum.contains({*members, who.member}):
            self.fail(check, f"{who} {what}, by {sorted({*members, who.member})}")

    def _require_promised(self, who: "Incarnation", epoch: Epoch) -> None:
        """The epoch is its own now (Z15, Z16, Z17)."""
        promised = [talk for talk in self._followers(who) if talk.promise is not None]
        self._require_quorum_of(who, promised, f"leads epoch {epoch}")
        fresh = [talk for talk in promised if talk.info.accepted_epoch < epoch]
        self._require_quorum_of(who, fresh, f"leads epoch {epoch}, promised anew", "Z16")
        self._require_best(who)

    def _require_best(self, who: "Incarnation") -> None:
        for talk in who.talks.values():
            if talk.learns or talk.term != who.terms or talk.promise is None:
                continue
            theirs = (talk.promise.current_epoch, talk.promise.position.zxid)
            voter = not talk.info.observer and talk.info.standing is not Standing.DAMAGED
            if voter and theirs > who.rank:
                self.fail(
                    "Z17",
                    f"{who} goes on with history {who.rank}, though member {talk.info.member} "
                    f"has {theirs}",
                )

    def _require_acknowledged(self, who: "Incarnation", epoch: Epoch) -> None:
        """A quorum has its history and its epoch (Z14, Z15, Z17)."""
        self._require_best(who)
        acked = [talk for talk in self._followers(who) if talk.acked_epoch == epoch]
        self._require_quorum_of(who, acked, f"is established in epoch {epoch}")
        whole = [talk for talk in acked if talk.acked >= who.initial.zxid]
        what = f"is established with {who.initial.zxid!r}"
        self._require_quorum_of(who, whole, what, "Z14")
        if who.history.last != who.initial:
            self.fail(
                "Z14",
                f"{who} was acknowledged with {who.initial.zxid!r}, and is established with "
                f"{who.history.last.zxid!r}",
            )

    def _commits(self, who: "Incarnation", zxid: Zxid) -> None:
        """A leader says or shows that everything up to there is committed (Z12, Z15)."""
        epoch = who.leads
        if not who.terms or epoch is None:
            return
        if zxid > self.commit_points.get(epoch, -1):
            acked = [
                talk
                for talk in self._followers(who)
                if talk.acked_epoch == epoch and talk.acked >= zxid
            ]
            self._require_quorum_of(who, acked, f"commits {zxid!r}")
            self.commit_points[epoch] = zxid
        if epoch == max(self.commit_points) and self.ledger and self.ledger[-1].last > zxid:
            last = self.ledger[-1].last
            self.fail("Z12", f"{who} gives {zxid!r} as its commit point, {last!r} is committed")

    def _require_committed(self, who: "Incarnation", zxid: Zxid) -> None:
        """What anyone delivers first, the leader of the latest epoch has committed (Z12)."""
        epoch = max(self.commit_points, default=0)
        if self.commit_points and zxid > self.commit_points[epoch]:
            self.fail(
                "Z12",
                f"{who} delivers {zxid!r}; the leader of {epoch} has committed "
                f"{self.commit_points[epoch]!r}",
            )

    # --- changes of state ------------------------------------------------------------------------

    def _turns(self, who: "Incarnation", news: Became) -> None:
        """Keep up what a member is doing, and judge how it came to that."""
        if news.state is PeerState.LOOKING:
            who.looking, who.named, who.leading = True, False, False
            who.votes.clear()
            return
        if who.looking:
            self._require_elected(who, news.leader)
            who.looking = False
        if news.state is not PeerState.LEADING:
            who.leading = False
            if news.serving:
                self._require_served(who)
        elif not who.leading and news.phase is Phase.DISCOVERY:
            who.leading = True
            who.terms += 1
            self.leaderships += 1
            who.rank = (self.durable[who.member].epochs().current, who.history.last.zxid)

    def _require_served(self, who: "Incarnation") -> None:
        if who.unjudged:
            return
        delivered = self.ledger[who.position - 1].last if who.position else ZXID_ZERO
        for link, talk in who.talks.items():
            due = talk.serve_from
            if talk.learns and link not in who.over and due is not None and delivered < due:
                self.fail("Z14", f"{who} serves at {delivered!r}, its leader had committed {due!r}")


def _ends_at(who: "Incarnation", zxid: Zxid) -> bool:
    """Whether a batch of its history ends there; what is before its base is not known here."""
    base: LogPosition = who.history.base
    return zxid <= base.zxid or who.history.chain_at(zxid) is not None
