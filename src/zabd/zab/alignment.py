"""Alignment: the leader's side of synchronisation, up to the end of its own history.

See `synchronisation` for what Diff, Trunc and Snap mean and for the invariants; this is where the
leader chooses between them, for one learner at a time, by the learner's position alone.
"""

from zabd.model.errors import RemoteProtocolError
from zabd.model.zxid import Zxid
from zabd.zab.effects import FindRecord, StreamRecords, StreamSnapshot
from zabd.zab.learners import Learner, Stage
from zabd.zab.log import LogPosition
from zabd.zab.member import Member
from zabd.zab.messages import Diff, Propose, Standing, Trunc


class Alignment:
    """Bring each learner from its position to the end of our history."""

    __slots__ = ("_m",)

    def __init__(self, member: Member) -> None:
        self._m = member

    def begin(self, learner: Learner, *, established: bool) -> None:
        """Align the learner now, or once we are established.

        What a damaged one has left may be the last copy of something: nobody changes it before a
        quorum holds our history without it.
        """
        if learner.standing is Standing.DAMAGED and not established:
            learner.stage = Stage.HELD
        else:
            self.align(learner)

    def align(self, learner: Learner) -> None:
        """Decide, by the learner's position, between Diff, Trunc and a look at the disk."""
        m = self._m
        position = learner.position
        if m.tail.contains(position):
            m.trace("diff", {"learner": learner.member, "from": position.zxid})
            m.send(learner.link, Diff(position))
            self._send_rest(learner)
            return
        boundary = m.tail.boundary(position.zxid)
        if boundary is not None and boundary.zxid == position.zxid:
            # The same zxid with another history: the common part ends before it.
            boundary = m.tail.boundary(position.zxid - 1)
        if boundary is not None:
            self._truncate(learner, boundary)
        else:
            self._find(learner, position.zxid)

    def _truncate(self, learner: Learner, boundary: LogPosition) -> None:
        self._m.trace("trunc", {"learner": learner.member, "to": boundary.zxid})
        learner.position = boundary
        learner.stage = Stage.ALIGNING
        self._m.send(learner.link, Trunc(boundary))

    def _find(self, learner: Learner, zxid: Zxid) -> None:
        learner.stage = Stage.FINDING
        learner.request_id = self._m.new_id()
        self._m.outbox.append(FindRecord(learner.request_id, zxid))

    def found(self, learner: Learner, found: LogPosition | None) -> None:
        """The log has been searched for the learner's position."""
        learner.request_id = None
        if found == learner.position:
            self._m.trace("diff", {"learner": learner.member, "from": found.zxid, "disk": True})
            self._m.send(learner.link, Diff(found))
            self._send_rest(learner)
        elif found is None or found.zxid > learner.position.zxid:
            self._snapshot(learner)
        elif found.zxid == learner.position.zxid:
            if found.zxid:
                self._find(learner, Zxid(found.zxid - 1))
            else:
                self._snapshot(learner)
        else:
            self._truncate(learner, found)

    def _snapshot(self, learner: Learner) -> None:
        self._m.trace("snap", {"learner": learner.member})
        learner.stage = Stage.ALIGNING
        self._m.outbox.append(StreamSnapshot(learner.link))

    def refused(self, learner: Learner, *, established: bool) -> None:
        """The learner has no such point.

        The snapshot may be older than what it has and others lost: it waits for a quorum that
        holds our history without it.
        """
        if established:
            self._snapshot(learner)
        else:
            learner.stage = Stage.HELD

    def release(self, learner: Learner) -> None:
        """We are established: a learner that had to wait is aligned, or gets its snapshot."""
        if learner.standing is Standing.DAMAGED:
            self.align(learner)
        else:
            self._snapshot(learner)

    def aligned(self, learner: Learner, position: LogPosition) -> None:
        """The learner's history durably ends at this point of ours."""
        learner.position = position
        self._send_rest(learner)

    def streamed(self, learner: Learner, upto: LogPosition) -> None:
        """The records up to there are on the link."""
        learner.position = upto
        self._send_rest(learner)

    def _send_rest(self, learner: Learner) -> None:
        """From memory, which is bounded, if it reaches back so far; else from the disk (S4)."""
        m = self._m
        if not m.tail.contains(learner.position):
            if learner.position.zxid >= m.tail.base.zxid:
                raise RemoteProtocolError(
                    f"member {learner.member} aligned at {learner.position.zxid!r}, "
                    "which is no point of this leader's history"
                )
            learner.stage = Stage.STREAMING
            # What left our memory was delivered here (L3), hence it is committed: S5.
            base, told = m.tail.base.zxid, self._may_be_told(learner)
            m.outbox.append(StreamRecords(learner.link, learner.position, base, told))
            return
        for batch in m.tail.after(learner.position.zxid):
            m.send(learner.link, Propose(*batch))
        learner.position = m.tail.last
        learner.stage = Stage.CAUGHT_UP

    def _may_be_told(self, learner: Learner) -> bool:
        """Whether the learner may hear what is committed before it is invited.

        What a blank one has of a founding that is cut short must go if another history is founded,
        so it must not be committed there before there is a cluster.
        """
        return learner.cluster_id is not None or self._m.became.serving
