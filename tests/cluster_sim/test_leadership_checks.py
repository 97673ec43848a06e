"""Each check of links and leaderships trips on its mistake, and accepts the legal thing like it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from zabd.cluster_sim.disk_image import DiskImage
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.zab_checks import Incarnation, ZabChecker
from zabd.model.ids import Epoch
from zabd.model.zxid import ZXID_ZERO, Zxid
from zabd.zab.config import RecoveredState
from zabd.zab.effects import Append, Became, Hangup, Notify, Phase, Send
from zabd.zab.log import GENESIS, Batch, LogPosition, frame_record
from zabd.zab.messages import (
    Ack,
    AckEpoch,
    AckNewLeader,
    Aligned,
    Commit,
    Diff,
    FollowerInfo,
    LeaderInfo,
    Message,
    NewLeader,
    Notification,
    PeerState,
    Ping,
    Pong,
    Propose,
    Standing,
    UpToDate,
)

OBSERVER = 4


class Ensemble:
    """Three voters and an observer as a checker sees them, and short ways to say what they do."""

    def __init__(self) -> None:
        self.checker = ZabChecker((1, 2, 3))
        for member in (1, 2, 3, OBSERVER):
            image = DiskImage()
            self.checker.watch_disks(member, image, image)
        self.a, self.b, self.c, self.o = map(self.start, (1, 2, 3, OBSERVER))
        self._links = 0
        self._appends = 0

    def start(self, member: int) -> Incarnation:
        return self.checker.recovered(member, RecoveredState())

    def become(
        self,
        who: Incarnation,
        state: PeerState,
        phase: Phase,
        epoch: Epoch,
        *,
        serving: bool = False,
    ) -> None:
        who.named = True
        self.checker.became(who, Became(state, phase, epoch, who.member, serving))

    def lead(self, who: Incarnation, phase: Phase, epoch: Epoch = 1) -> None:
        self.become(who, PeerState.LEADING, phase, epoch, serving=phase is Phase.BROADCAST)

    def tell(self, link: int, sender: Incarnation, receiver: Incarnation, *told: Message) -> None:
        for message in told:
            self.checker.asks(sender, Send(link, message), 1)
            self.checker.received(receiver, link, message)

    def introduce(
        self,
        learner: Incarnation,
        leader: Incarnation,
        *,
        accepted: Epoch = 0,
        standing: Standing = Standing.VOTER,
    ) -> int:
        self._links += 1
        observer = learner.member == OBSERVER
        info = FollowerInfo(1, b"id", learner.member, observer, accepted, GENESIS, standing)
        self.tell(self._links, learner, leader, info)
        return self._links

    def promise(
        self,
        learner: Incarnation,
        leader: Incarnation,
        *,
        epoch: Epoch = 1,
        accepted: Epoch = 0,
        standing: Standing = Standing.VOTER,
        history: tuple[Epoch, LogPosition] = (0, GENESIS),
    ) -> int:
        """Introduce, be offered the epoch, and promise it."""
        link = self.introduce(learner, leader, accepted=accepted, standing=standing)
        self.tell(link, leader, learner, LeaderInfo(epoch))
        self.tell(link, learner, leader, AckEpoch(*history))
        return link

    def invite(self, link: int, leader: Incarnation, learner: Incarnation) -> None:
        """Align and invite one that lacks nothing."""
        end = learner.history.last
        self.tell(link, leader, learner, Diff(end), NewLeader(1, b"id", end))

    def append(self, who: Incarnation, batch: Batch) -> None:
        self._appends += 1
        self.checker.asks(who, Append(self._appends, batch.record, ZXID_ZERO), 1)

    def propose(self, link: int, leader: Incarnation, learner: Incarnation, batch: Batch) -> None:
        self.tell(link, leader, learner, Propose(*batch))
        self.append(learner, batch)

    def establish(self) -> int:
        """Make A the leader of epoch 1 with B in step; the link between them."""
        self.lead(self.a, Phase.DISCOVERY)
        link = self.promise(self.b, self.a)
        self.lead(self.a, Phase.SYNCHRONISATION)
        self.invite(link, self.a, self.b)
        self.tell(link, self.b, self.a, AckNewLeader(1, ZXID_ZERO))
        self.tell(link, self.a, self.b, UpToDate(ZXID_ZERO))
        self.lead(self.a, Phase.BROADCAST)
        self.become(self.b, PeerState.FOLLOWING, Phase.BROADCAST, 1, serving=True)
        return link


def batch_after(after: LogPosition, epoch: Epoch = 1) -> Batch:
    """The next batch of a history."""
    counter = after.zxid.counter + 1 if after.zxid.epoch == epoch else 1
    first = Zxid.of(epoch, counter)
    return Batch(first, 1, frame_record(first, 1, b"x", after.chain))


@contextmanager
def trips(check: str) -> Iterator[None]:
    """The block breaks this invariant."""
    with pytest.raises(InvariantError) as raised:
        yield
    assert raised.value.id == check, raised.value


@pytest.fixture
def ensemble() -> Ensemble:
    """One in which nothing has happened yet."""
    return Ensemble()


def test_a_leadership_as_it_should_be_is_accepted(ensemble: Ensemble) -> None:
    """From the first frame to a commit, with a late joiner and a proposal that comes early."""
    e = ensemble
    link = e.establish()
    first = batch_after(GENESIS)
    late = e.promise(e.c, e.a)
    e.invite(late, e.a, e.c)
    e.append(e.a, first)
    e.propose(link, e.a, e.b, first)
    e.propose(late, e.a, e.c, first)  # between NEWLEADER and its acknowledgement
    e.tell(late, e.c, e.a, AckNewLeader(1, first.last), Pong(1))
    e.tell(link, e.b, e.a, Ack(first.last))
    e.tell(late, e.a, e.c, UpToDate(ZXID_ZERO), Commit(first.last), Ping(2))
    e.tell(link, e.a, e.b, Commit(first.last))


def test_a_message_has_its_time(ensemble: Ensemble) -> None:
    """A1: a commit before UPTODATE, a DIFF before the promise; pings may come all along."""
    e = ensemble
    e.lead(e.a, Phase.DISCOVERY)
    link = e.promise(e.b, e.a)
    with trips("A1"):
        e.tell(link, e.a, e.b, Diff(GENESIS))  # no quorum has promised, as far as A has said
    e.lead(e.a, Phase.SYNCHRONISATION)
    e.tell(link, e.a, e.b, Ping(1))
    with trips("A1"):
        e.checker.received(e.b, link, Commit(ZXID_ZERO))
    with trips("A1"):
        e.checker.received(e.b, link, Propose(*batch_after(GENESIS)))
    e.invite(link, e.a, e.b)
    with trips("A1"):
        e.checker.received(e.a, link, Aligned(GENESIS))


def test_a_proposal_follows_what_was_received(ensemble: Ensemble) -> None:
    """A2, at the learner's door: neither twice nor with a gap."""
    e = ensemble
    link = e.establish()
    first = batch_after(GENESIS)
    with trips("A2"):
        e.checker.received(e.b, link, Propose(*batch_after(first.position)))
    e.append(e.a, first)
    e.propose(link, e.a, e.b, first)
    with trips("A2"):
        e.checker.received(e.b, link, Propose(*first))


def test_a_commit_names_what_was_received(ensemble: Ensemble) -> None:
    """A3: what was delivered already may be named again, what has not come may not."""
    e = ensemble
    link = e.establish()
    first = batch_after(GENESIS)
    e.append(e.a, first)
    e.propose(link, e.a, e.b, first)
    e.checker.received(e.b, link, Commit(first.last))
    e.checker.received(e.b, link, Commit(ZXID_ZERO))
    with trips("A3"):
        e.checker.received(e.b, link, Commit(batch_after(first.position).last))


def test_acknowledgements_come_in_order(ensemble: Ensemble) -> None:
    """A4: first that of NEWLEADER, of this epoch; then upwards, one of many batches at once."""
    e = ensemble
    e.lead(e.a, Phase.DISCOVERY)
    link = e.promise(e.b, e.a)
    e.lead(e.a, Phase.SYNCHRONISATION)
    with trips("A4"):
        e.checker.received(e.a, link, AckNewLeader(1, ZXID_ZERO))  # of no invitation
    e.invite(link, e.a, e.b)
    with trips("A4"):
        e.checker.received(e.a, link, AckNewLeader(2, ZXID_ZERO))
    e.tell(link, e.b, e.a, AckNewLeader(1, ZXID_ZERO))
    first = batch_after(GENESIS)
    second = batch_after(first.position)
    e.append(e.a, first)
    e.append(e.a, second)
    e.tell(link, e.b, e.a, Ack(second.last))
    with trips("A4"):
        e.checker.received(e.a, link, Ack(first.last))


def test_nothing_of_another_leadership_or_role_is_heard(ensemble: Ensemble) -> None:
    """A5; what still comes over a link that was hung up is nobody's business."""
    e = ensemble
    link = e.establish()
    with trips("A5"):
        e.checker.received(e.b, link, Ack(ZXID_ZERO))
    with trips("A5"):
        e.checker.received(e.a, link, Commit(ZXID_ZERO))
    with trips("A5"):
        e.checker.received(e.b, link, Propose(*batch_after(GENESIS, epoch=2)))
    e.become(e.a, PeerState.LOOKING, Phase.ELECTION, 1)
    with trips("A5"):
        e.checker.received(e.a, link, Pong(1))
    e.lead(e.a, Phase.DISCOVERY)
    with trips("A5"):
        e.checker.received(e.a, link, Pong(1))
    e.checker.asks(e.a, Hangup(link), 1)
    e.checker.received(e.a, link, Pong(1))


def test_an_epoch_takes_a_quorum_of_voters(ensemble: Ensemble) -> None:
    """Z15: observers, the damaged, and links that are over do not count; a voter counts once."""
    e = ensemble
    e.lead(e.a, Phase.DISCOVERY)
    e.introduce(e.o, e.a)
    e.introduce(e.c, e.a, standing=Standing.DAMAGED)
    with trips("Z15"):
        e.checker.choosing(e.a, 1)
    gone = e.introduce(e.b, e.a)
    e.checker.link_over(e.a, gone)
    with trips("Z15"):
        e.checker.choosing(e.a, 1)
    e.introduce(e.b, e.a)
    e.checker.choosing(e.a, 1)
    with trips("Z15"):
        e.lead(e.a, Phase.SYNCHRONISATION)  # introduced, but nobody has promised


def test_a_commit_takes_a_quorum_of_acknowledgements(ensemble: Ensemble) -> None:
    """Z15: of this batch, over links that are open."""
    e = ensemble
    link = e.establish()
    first = batch_after(GENESIS)
    e.append(e.a, first)
    e.propose(link, e.a, e.b, first)
    with trips("Z15"):
        e.checker.asks(e.a, Send(link, Commit(first.last)), 1)
    e.tell(link, e.b, e.a, Ack(first.last))
    e.checker.link_over(e.a, link)
    again = e.promise(e.b, e.a)
    with trips("Z15"):
        e.checker.asks(e.a, Send(again, Commit(first.last)), 1)


def test_an_election_takes_a_quorum_of_votes_of_its_round(ensemble: Ensemble) -> None:
    """Z15; who has a leader already counts in any round."""
    e = ensemble

    def vote(sender: int, round_: int, state: PeerState) -> Notification:
        return Notification(sender, b"id", round_, 1, ZXID_ZERO, 0, state, Standing.VOTER, True)

    following = Became(PeerState.FOLLOWING, Phase.DISCOVERY, 0, 1, False)
    for who, state, round_ in ((e.b, PeerState.LOOKING, 2), (e.c, PeerState.LEADING, 1)):
        e.checker.asks(who, Notify(1, vote(who.member, 2, PeerState.LOOKING)), 0)
        e.checker.heard_vote(who, vote(1, round_, state))
        e.checker.became(who, following)
    late = e.start(3)
    e.checker.asks(late, Notify(1, vote(3, 2, PeerState.LOOKING)), 0)
    e.checker.heard_vote(late, vote(1, 1, PeerState.LOOKING))
    with trips("Z15"):
        e.checker.became(late, following)


def test_a_new_epoch_rests_on_new_promises(ensemble: Ensemble) -> None:
    """Z16: one that had promised it before is answered, and does not count; others may."""
    e = ensemble
    e.lead(e.a, Phase.DISCOVERY)
    e.introduce(e.b, e.a, accepted=1)
    with trips("Z16"):
        e.checker.choosing(e.a, 1)
    e.checker.choosing(e.a, 2)
    e.promise(e.c, e.a, accepted=1)
    with trips("Z16"):
        e.lead(e.a, Phase.SYNCHRONISATION)
    e.promise(e.b, e.a)
    e.lead(e.start(1), Phase.DISCOVERY)
    fresh = Ensemble()
    fresh.lead(fresh.a, Phase.DISCOVERY)
    fresh.promise(fresh.b, fresh.a)
    fresh.promise(fresh.c, fresh.a, accepted=1)
    fresh.lead(fresh.a, Phase.SYNCHRONISATION)


def test_nobody_in_the_quorum_has_more_history(ensemble: Ensemble) -> None:
    """Z17: whoever hears of more steps down; observers and the damaged may have more."""
    ahead = (1, batch_after(GENESIS).position)
    e = ensemble
    e.lead(e.a, Phase.DISCOVERY)
    e.promise(e.o, e.a, history=ahead)
    e.promise(e.c, e.a, history=ahead, standing=Standing.DAMAGED)
    e.promise(e.b, e.a)
    e.lead(e.a, Phase.SYNCHRONISATION)
    other = Ensemble()
    other.lead(other.a, Phase.DISCOVERY)
    other.promise(other.b, other.a, history=ahead)
    other.become(other.a, PeerState.LOOKING, Phase.ELECTION, 0)  # legal: it steps down
    other.lead(other.a, Phase.DISCOVERY)
    other.promise(other.b, other.a, history=ahead)
    with trips("Z17"):
        other.lead(other.a, Phase.SYNCHRONISATION)


def test_a_leadership_stands_for_what_was_acknowledged(ensemble: Ensemble) -> None:
    """Z14: the leader adds nothing before it is established, and names its end and no other."""
    e = ensemble
    e.lead(e.a, Phase.DISCOVERY)
    link = e.promise(e.b, e.a)
    e.lead(e.a, Phase.SYNCHRONISATION)
    e.tell(link, e.a, e.b, Diff(GENESIS))
    first = batch_after(GENESIS)
    with trips("Z14"):
        e.checker.asks(e.a, Send(link, NewLeader(1, b"id", first.position)), 1)
    with trips("Z14"):
        e.checker.received(e.b, link, NewLeader(1, b"id", first.position))
    e.tell(link, e.a, e.b, NewLeader(1, b"id", GENESIS))
    e.append(e.a, first)
    e.tell(link, e.b, e.a, AckNewLeader(1, ZXID_ZERO))
    with trips("Z14"):
        e.lead(e.a, Phase.BROADCAST)


def test_who_serves_has_applied_what_was_committed_before(ensemble: Ensemble) -> None:
    """Z14; what is committed later may come later."""
    e = ensemble
    link = e.establish()
    first = batch_after(GENESIS)
    late = e.promise(e.c, e.a)
    e.invite(late, e.a, e.c)
    e.append(e.a, first)
    e.propose(link, e.a, e.b, first)
    e.propose(late, e.a, e.c, first)
    e.tell(link, e.b, e.a, Ack(first.last))
    e.tell(link, e.a, e.b, Commit(first.last))
    e.tell(late, e.c, e.a, AckNewLeader(1, ZXID_ZERO))
    e.tell(late, e.a, e.c, UpToDate(first.last))
    with trips("Z14"):
        e.become(e.c, PeerState.FOLLOWING, Phase.BROADCAST, 1, serving=True)
    e.checker.delivered(e.c, [first])
    e.become(e.c, PeerState.FOLLOWING, Phase.BROADCAST, 1, serving=True)


def test_the_latest_leader_is_never_behind_what_is_committed(ensemble: Ensemble) -> None:
    """Z12; one that a later leader has replaced, and that has not noticed, may be."""
    e = ensemble
    link = e.establish()
    first = batch_after(GENESIS)
    e.append(e.a, first)
    e.propose(link, e.a, e.b, first)
    with trips("Z12"):
        e.checker.delivered(e.b, [first])  # its leader has not committed it
    e.tell(link, e.b, e.a, Ack(first.last))
    e.tell(link, e.a, e.b, Commit(first.last))
    e.checker.delivered(e.b, [first])
    with trips("Z12"):
        e.checker.asks(e.a, Send(link, UpToDate(ZXID_ZERO)), 1)
    e.checker.commit_points[2] = first.last  # a leader of epoch 2 is established
    e.checker.asks(e.a, Send(link, UpToDate(ZXID_ZERO)), 1)
