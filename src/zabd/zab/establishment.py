"""Establishment: the leader's side of synchronisation, from its promise to a quorum in step.

Once a quorum has promised, the epoch is this leader's and its history is the one. It makes its own
current epoch durable, brings every learner to the end of its history (`alignment`), invites it
(NewLeader), and is established when a quorum has acknowledged that. Learners that come later go the
same way.

Invariants
    N1  NewLeader goes out only when the leader's own current epoch is durable, and to a learner
        that has been sent all of its history.
    N2  What was in the history at that time is committed by the quorum of AckNewLeader, never by
        counting anything else.
    N3  A learner that cannot vouch for its past is invited only by a leader that was established
        without it, and that a quorum has followed since it came.

Junqueira, Reed and Serafini, "Zab" (DSN 2011), phase 2.
"""

from zabd.model.errors import RemoteProtocolError
from zabd.model.ids import Epoch
from zabd.zab.alignment import Alignment
from zabd.zab.broadcast import Confirmations, LeaderBroadcast
from zabd.zab.codec import CLUSTER_ID_SIZE
from zabd.zab.learners import Learner, Learners, Stage
from zabd.zab.log import LogPosition
from zabd.zab.member import Member
from zabd.zab.messages import AckNewLeader, NewLeader, Standing, TruncRefused, UpToDate


class Establishment:
    """What a leader has to do for each learner until it serves, and for itself."""

    __slots__ = (
        "_alignment",
        "_confirmations",
        "_epoch",
        "_learners",
        "_m",
        "_own_epoch_saved",
        "broadcast",
        "established",
    )

    def __init__(
        self, member: Member, epoch: Epoch, learners: Learners, confirmations: Confirmations
    ) -> None:
        assert member.quiet, "what we take as the initial history is durable"
        self._m = member
        self._epoch = epoch
        self._learners = learners
        self._confirmations = confirmations
        self._alignment = Alignment(member)
        self._own_epoch_saved = False
        self.established = False
        self.broadcast = LeaderBroadcast(member, epoch)

    def begin(self, cluster_id: bytes | None) -> None:
        """What the epoch stands for is our present history, which is durable: so is it, next.

        `cluster_id` is what the election has heard of one.
        """
        self._m.persist_epochs(self._epoch, self._epoch, self._cluster_id(cluster_id))
        for learner in self._learners:
            if learner.stage is Stage.PROMISED:
                self._alignment.begin(learner, established=False)

    def _cluster_id(self, heard: bytes | None) -> bytes:
        """Ours, or that of anyone who has one, or a new one: then this is the founding."""
        m = self._m
        known = [learner.cluster_id for learner in self._learners if learner.cluster_id]
        if m.cluster_id is not None:
            return m.cluster_id
        return known[0] if known else heard or m.rng.randbytes(CLUSTER_ID_SIZE)

    def own_epoch_saved(self) -> None:
        """Our current epoch is durable (N1)."""
        self._own_epoch_saved = True
        self.invite_all()
        self._establish_if_acked()

    # --- histories ------------------------------------------------------------------------------

    def join(self, learner: Learner) -> None:
        """A learner has promised, after the quorum that made the epoch ours."""
        self._alignment.begin(learner, established=self.established)
        self._invite(learner)

    def found(self, request_id: int, position: LogPosition | None) -> None:
        """The log has been searched for a learner's position."""
        for learner in self._learners:
            if learner.request_id == request_id:
                self._alignment.found(learner, position)
                self._invite(learner)

    def aligned(self, learner: Learner, position: LogPosition) -> None:
        """The learner has done what Trunc or Snap asked for."""
        self._alignment.aligned(learner, position)
        self._invite(learner)

    def refused(self, learner: Learner) -> None:
        """The learner cannot do what Trunc asked for."""
        require_stage(learner, Stage.ALIGNING, TruncRefused())
        self._alignment.refused(learner, established=self.established)

    def streamed(self, learner: Learner, upto: LogPosition) -> None:
        """Records from the disk are on the link."""
        if learner.stage is Stage.STREAMING:
            self._alignment.streamed(learner, upto)
            self._invite(learner)

    # --- invitations ----------------------------------------------------------------------------

    def invite_all(self) -> None:
        """Something has changed that some may have waited for."""
        for learner in self._learners:
            self._invite(learner)

    def _invite(self, learner: Learner) -> None:
        m = self._m
        if (
            learner.stage is not Stage.CAUGHT_UP
            or not self._own_epoch_saved
            or m.transition
            or not self._may_be_invited(learner)
        ):
            return
        assert m.current_epoch == self._epoch, "N1"
        assert m.cluster_id is not None
        learner.stage = Stage.INVITED
        learner.position = m.tail.last
        m.send(learner.link, NewLeader(self._epoch, m.cluster_id, m.tail.last))

    def _may_be_invited(self, learner: Learner) -> bool:
        """N3."""
        if learner.counts or learner.standing is Standing.VOTER:
            return True
        if self.established:
            self._confirmations.admit(learner.link, [*self._learners])
        return self.established and self._confirmations.is_admitted(learner.link)

    def ack(self, learner: Learner, message: AckNewLeader) -> None:
        """A learner has our history and our epoch."""
        require_stage(learner, Stage.INVITED, message)
        m = self._m
        if (
            message.epoch != self._epoch
            or not learner.position.zxid <= message.zxid <= m.tail.last.zxid
            or (message.zxid > m.delivered and not m.is_boundary(message.zxid))
        ):
            raise RemoteProtocolError(
                f"member {learner.member} acknowledged leader {message.epoch} "
                f"at {message.zxid!r}, asked for {learner.position.zxid!r}"
            )
        m.trace("synced", {"learner": learner.member, "zxid": message.zxid})
        learner.stage = Stage.SYNCED
        if not learner.observer:
            # From here on even one that was blank knows what it has promised, and to whom, and one
            # that was damaged has all of our history.
            learner.counts = True
            self.broadcast.count(learner.member, message.zxid)
        if self.established:
            self._let_serve(learner)
        else:
            self._establish_if_acked()

    def _establish_if_acked(self) -> None:
        m = self._m
        if self.established or not self._own_epoch_saved or m.transition:
            return
        if not self._learners.make_quorum(Stage.SYNCED):
            return
        if not self._learners.make_quorum(Stage.SYNCED, m.now_ms - m.config.sync_timeout_ms):
            m.look("a quorum is in step, but has been silent since")  # and may have another leader
            return
        assert m.quiet, "nothing is proposed before the leader is established"
        self.established = True
        by = sorted([m.me, *self._learners.counted(Stage.SYNCED)])
        m.trace("established", {"epoch": self._epoch, "by": by})
        m.commit(m.tail.last.zxid)  # N2
        for learner in self._learners:
            if learner.stage is Stage.SYNCED:
                self._let_serve(learner)
            elif learner.stage is Stage.HELD:
                self._alignment.release(learner)
                self._invite(learner)

    def _let_serve(self, learner: Learner) -> None:
        learner.stage = Stage.SERVING
        self._m.send(learner.link, UpToDate(self._m.committed))

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next, but for time."""
        return (self._own_epoch_saved, self.established, self.broadcast.state_key())


def require_stage(learner: Learner, stage: Stage, message: object) -> None:
    """A message means something only at the stage that expects it (A1, A4)."""
    if learner.stage is not stage:
        raise RemoteProtocolError(
            f"member {learner.member} sent {type(message).__name__} "
            f"while it was {learner.stage.name.lower()}, not {stage.name.lower()}"
        )
