"""Discovery: a prospective leader finds an epoch that no quorum has promised to anyone.

Learners say what they accepted (FollowerInfo); from a quorum's answers the leader takes the next
epoch and makes its own promise durable before it names it (LeaderInfo). A learner makes the same
promise durable before it says so (AckEpoch), together with its history.

Invariants
    D1  An epoch leaves the leader only when its own accepted epoch is durably that one.
    D2  AckEpoch leaves a learner only when its accepted epoch is durably at least that one.
    D3  The epoch is greater than all in the quorum that chose it. A learner that had accepted it
        before is answered as any other, but does not count.
    D4  Of a quorum of promises at most one leader can have each epoch, and that leader's history
        holds all that any member of the quorum has; otherwise it steps down.
    D5  So it does, until it is established, for everyone who could count towards that: a promise
        may be one that its member has forgotten since (decisions 6 and 9), and what that member has
        acknowledged to another leader since then is known to those who have it.

Junqueira, Reed and Serafini, "Zab" (DSN 2011), phase 1.
"""

from zabd.model.errors import RemoteProtocolError
from zabd.model.ids import Epoch, LinkId, MemberId
from zabd.zab.learners import EPOCH_JUMP_MAX, Learner, Stage
from zabd.zab.member import Member
from zabd.zab.messages import FORMAT, AckEpoch, FollowerInfo, LeaderInfo, Message, Standing


class LearnerDiscovery:
    """The learner's side: from the first frame of the link to the promise."""

    __slots__ = ("_epoch", "_link", "_m")

    def __init__(self, member: Member, link: LinkId) -> None:
        self._m = member
        self._link = link
        self._epoch: Epoch | None = None

    @property
    def promised(self) -> Epoch | None:
        """The epoch in which the leader may go on with us."""
        return self._epoch if self._m.persisting is None else None

    def introduce(self) -> None:
        """Say who we are and what we accepted; nothing is on its way to the disk (E2)."""
        m = self._m
        assert m.quiet, "E2: what a learner reports is what a restart would load"
        m.send(
            self._link,
            FollowerInfo(
                format=FORMAT,
                cluster_id=m.cluster_id,
                member=m.me,
                observer=m.config.observer,
                accepted_epoch=m.accepted_epoch,
                position=m.tail.last,
                standing=m.standing,
            ),
        )

    def receive(self, message: Message) -> None:
        """Only LeaderInfo has a meaning here, and only once."""
        if not isinstance(message, LeaderInfo) or self._epoch is not None:
            raise RemoteProtocolError(f"{type(message).__name__} came in discovery")
        m = self._m
        epoch = message.epoch
        if epoch > m.accepted_epoch + EPOCH_JUMP_MAX:
            raise RemoteProtocolError(
                f"the leader proposed epoch {epoch}, absurdly far from {m.accepted_epoch}"
            )
        # An observer's promise binds nobody: no quorum rests on it.
        oldest = m.current_epoch if m.config.observer else m.accepted_epoch
        if epoch < oldest:
            m.look(f"the leader proposes epoch {epoch}, and {oldest} is accepted here")
            return
        self._epoch = epoch
        if epoch > m.accepted_epoch:
            m.persist_epochs(epoch, m.current_epoch, m.cluster_id)
        else:
            self.promise()

    def promise(self) -> None:
        """The accepted epoch is durable (D2)."""
        m = self._m
        assert self._epoch is not None
        assert m.config.observer or m.accepted_epoch == self._epoch, "D2"
        m.send(self._link, AckEpoch(m.current_epoch, m.tail.last))

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next."""
        return ("discovery", self._epoch)


class LeaderDiscovery:
    """The leader's side: choose the epoch, then collect promises until a quorum has made them."""

    __slots__ = (
        "_anew",
        "_history",
        "_m",
        "_promised",
        "complete",
        "epoch",
        "founding",
        "over",
        "ready",
    )

    def __init__(self, member: Member, *, founding: bool) -> None:
        self._m = member
        self._history = (member.current_epoch, member.tail.last.zxid)
        self.founding = founding
        self._anew = member.founds_anew
        self.epoch: Epoch | None = None
        self.ready = False
        """Whether our own promise is durable, so that the epoch may be named (D1)."""
        self.complete = False
        """Whether a quorum has promised: from then on the epoch is ours and nobody else's."""
        self.over = False
        """Whether a quorum has acknowledged our history too: from then on it is the one."""
        self._promised: dict[MemberId, None] = {}

    def own_vote(self) -> tuple[MemberId, ...]:
        """Ourselves, if we can vouch for our past."""
        m = self._m
        assert not m.damaged, "a damaged member never leads"
        return (m.me,) if m.cluster_id is not None or self.founding else ()

    def counts(self, info: FollowerInfo) -> bool:
        """Whether quorums may rest on a learner with this introduction."""
        if info.observer or info.standing is Standing.DAMAGED:
            return False
        # What a blank one may have of a founding anew that was cut short is replaced by ours.
        replaced = self._anew and info.standing is Standing.BLANK
        founds = self.founding and (replaced or not info.position.zxid)
        return info.cluster_id is not None or founds

    def greet(self, learner: Learner, learners: dict[LinkId, Learner]) -> None:
        """A learner has introduced itself."""
        if self.epoch is None:
            self._choose(learners)
        elif learner.accepted_epoch >= self.epoch + self.complete and not learner.observer:
            # It has promised what we ask for, or more, to somebody: it could not count for us, or
            # not follow at all. The next epoch is above that, and an election costs little.
            self._m.look(
                f"member {learner.member} has already accepted epoch {learner.accepted_epoch}"
            )
        elif self.ready:
            self._m.send(learner.link, LeaderInfo(self.epoch))

    def _choose(self, learners: dict[LinkId, Learner]) -> None:
        m = self._m
        counted = [learner.member for learner in learners.values() if learner.counts]
        if not m.quorum.contains([*counted, *self.own_vote()]):
            return
        accepted = [one.accepted_epoch for one in learners.values() if not one.observer]
        self.epoch = max(m.accepted_epoch, *accepted, 0) + 1
        m.trace("epoch", {"epoch": self.epoch, "of": sorted([m.me, *counted])})
        m.persist_epochs(self.epoch, m.current_epoch, m.cluster_id)

    def begin(self, learners: dict[LinkId, Learner]) -> None:
        """The ensemble may be so small that nobody has to be waited for."""
        self._choose(learners)

    def own_promise_saved(self, learners: dict[LinkId, Learner]) -> None:
        """Our own promise is durable: name the epoch (D1)."""
        m = self._m
        assert self.epoch is not None
        assert m.accepted_epoch == self.epoch, "D1"
        self.ready = True
        for member in self.own_vote():
            self._promised[member] = None
        for learner in learners.values():
            m.send(learner.link, LeaderInfo(self.epoch))
        self.complete = m.quorum.contains(self._promised)

    def promise(self, learner: Learner, message: AckEpoch) -> None:
        """A learner has promised, and says what history it has."""
        if not self.ready or learner.stage is not Stage.GREETED or self.epoch is None:
            raise RemoteProtocolError("AckEpoch came without a LeaderInfo to answer")
        if message.current_epoch > self.epoch or message.position.zxid.epoch > self.epoch:
            raise RemoteProtocolError(
                f"member {learner.member} promised epoch {self.epoch} "
                f"and reports a history of {message.current_epoch}, {message.position.zxid!r}"
            )
        learner.promised_epoch = self.epoch
        learner.position = message.position
        learner.stage = Stage.PROMISED
        if not learner.counts or self.over:
            return
        theirs = (message.current_epoch, message.position.zxid)
        if theirs > self._history:
            self._m.look(  # D4, D5
                f"member {learner.member} has the history {theirs}, ours is {self._history}"
            )
            return
        if self.complete or learner.accepted_epoch >= self.epoch:
            return  # D3
        self._promised[learner.member] = None
        self.complete = self._m.quorum.contains(self._promised)

    def forget(self, learner: Learner) -> None:
        """The link is gone, and with it what was said over it."""
        if not self.complete:
            self._promised.pop(learner.member, None)

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next."""
        return (self.founding, self.epoch, self.ready, self.complete, tuple(self._promised))
