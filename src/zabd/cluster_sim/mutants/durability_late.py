"""Mistakes about synchronisation and late writes: M18-M30 of the gallery."""

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from zabd.cluster_sim.disks import DiskSpeed
from zabd.cluster_sim.mutants.mutant import Mutant, Patch
from zabd.model.ids import MemberId
from zabd.model.zxid import Zxid
from zabd.storage.disk import DiskOutcome
from zabd.storage.txn_log import TxnLog
from zabd.zab.alignment import Alignment
from zabd.zab.broadcast import LeaderBroadcast, LearnerBroadcast
from zabd.zab.discovery import LearnerDiscovery
from zabd.zab.effects import Append, Deliver, StreamRecords, Truncate
from zabd.zab.establishment import Establishment
from zabd.zab.history import History
from zabd.zab.learners import Learner, Stage
from zabd.zab.log import Batch, LogPosition, LogTail, frame_record
from zabd.zab.member import Look, Member
from zabd.zab.messages import Ack, AckEpoch, Commit, FollowerInfo, Propose, TruncRefused, UpToDate
from zabd.zab.peer import Peer
from zabd.zab.synchronisation import LearnerSynchronisation

_COMING_BACK: Final = MappingProxyType(
    {"voters": 3, "kinds": ("cut", "kill", "partition"), "tail_batches": 8}
)
_BUSY: Final = MappingProxyType({**_COMING_BACK, "tick_ms": 200, "submit_every_ms": 5.0})
"""Learners come and go, and find that their leader has to read what they lack from its disk."""

_SLOW_DISKS: Final = MappingProxyType(
    {
        "voters": 3,
        "tick_ms": 500,
        "kinds": ("cut", "isolate the leader", "abdicate", "kill"),
        "disk_speed": DiskSpeed(write_us=(20, 20_000), sync_us=(20_000, 300_000)),
    }
)
"""Much is on its way to the disks whenever a leadership ends."""

_CUT_OFF: Final = MappingProxyType(
    {"voters": 3, "kinds": ("lonely proposal", "kill", "power cut"), "fault_every_ms": 500}
)
"""Members come back with what nobody else has."""

_FIVE: Final = MappingProxyType(
    {"voters": 5, "kinds": ("isolate the leader", "partition", "abdicate", "crash between effects")}
)


def _invited_while_streaming() -> list[Patch]:
    send_rest = Alignment._send_rest

    def hasty(self: Alignment, learner: Learner) -> None:
        m = self._m
        if m.tail.contains(learner.position) or learner.position.zxid >= m.tail.base.zxid:
            send_rest(self, learner)
            return
        base = m.tail.base.zxid
        m.outbox.append(StreamRecords(learner.link, learner.position, base, told=True))
        learner.position = m.tail.last
        learner.stage = Stage.CAUGHT_UP

    return [(Alignment, "_send_rest", hasty)]


def _commit_to_invited() -> list[Patch]:
    advance = LeaderBroadcast.advance

    def early(self: LeaderBroadcast, learners: Iterable[Learner]) -> None:
        m, before = self._m, self._m.committed
        advance(self, learners)
        if m.committed > before:
            for learner in learners:
                if learner.stage in {Stage.INVITED, Stage.SYNCED}:
                    m.send(learner.link, Commit(m.committed))

    return [(LeaderBroadcast, "advance", early)]


def _ack_overtakes() -> list[Patch]:
    persisted = LearnerSynchronisation.persisted

    def eager(self: LearnerSynchronisation) -> None:
        m = self._m
        if self._invited and not self._acked and not m.config.observer:
            m.send(self._link, Ack(m.durable.zxid))
        persisted(self)

    return [(LearnerSynchronisation, "persisted", eager)]


def _serves_too_early() -> list[Patch]:
    return [(LearnerBroadcast, "serving", property(lambda _self: True))]


def _proposals_after_ack_only() -> list[Patch]:
    def live(self: Learner) -> bool:
        return self.stage is Stage.CAUGHT_UP or self.stage >= Stage.SYNCED

    return [(Learner, "live", property(live))]


def _up_to_date_at_ack() -> list[Patch]:
    def let_serve(self: Establishment, learner: Learner) -> None:
        learner.stage = Stage.SERVING
        self._m.send(learner.link, UpToDate(learner.position.zxid))

    return [(Establishment, "_let_serve", let_serve)]


def _proposed_twice() -> list[Patch]:
    return [(Learner, "live", property(lambda self: self.stage >= Stage.STREAMING))]


def _reports_what_it_delivered() -> list[Patch]:
    def known(m: Member) -> LogPosition:
        return m.tail.boundary(m.delivered) or m.tail.last

    def introduce(self: LearnerDiscovery) -> None:
        m = self._m
        info = FollowerInfo(
            1, m.cluster_id, m.me, m.config.observer, m.accepted_epoch, known(m), m.standing
        )
        m.send(self._link, info)

    def promise(self: LearnerDiscovery) -> None:
        self._m.send(self._link, AckEpoch(self._m.current_epoch, known(self._m)))

    return [(LearnerDiscovery, "introduce", introduce), (LearnerDiscovery, "promise", promise)]


def _reports_counted_as_acks() -> list[Patch]:
    begin = Establishment.begin

    def commit_reported(self: Establishment, known: bytes | None) -> None:
        m = self._m
        reported: dict[MemberId, int] = {
            learner.member: learner.position.zxid
            for learner in self._learners
            if learner.counts and m.tail.contains(learner.position)
        }
        reported[m.me] = m.tail.last.zxid
        begin(self, known)
        zxid = Zxid(m.quorum.acked(reported))
        if zxid > m.committed and m.is_boundary(zxid):
            m.commit(zxid)

    return [(Establishment, "begin", commit_reported)]


def _forgets_what_is_being_written() -> list[Patch]:
    change, persisted = Peer._change, History.persisted

    def forget(self: Peer) -> None:
        m = self._m
        if isinstance(m.transition, Look) and m.appends:
            m.appends.clear()
            m.tail.truncate(m.durable.zxid)
        change(self)

    def late(self: History, append_id: int) -> None:
        if self.appends and self.appends[0].append_id <= append_id:
            persisted(self, append_id)

    return [(Peer, "_change", forget), (History, "persisted", late)]


def _votes_while_truncating() -> list[Patch]:
    def quiet(self: Member) -> bool:
        return not (self.appends or self.persisting or self.installing)

    return [(Member, "quiet", property(quiet))]


def _failed_write_dropped() -> list[Patch]:
    written = TxnLog._written

    def go_on(self: TxnLog, outcome: DiskOutcome) -> None:
        if outcome.error is None or self._stopped:
            written(self, outcome)
            return
        self._in_flight = []
        self.flush()

    return [(TxnLog, "_written", go_on)]


def _commits_one_alone() -> list[Patch]:
    def deliver(self: History) -> None:
        upto = Zxid(min(self.committed, self.durable.zxid))
        batches = self.tail.between(self.delivered, upto)
        if batches:
            self.delivered = batches[-1].last
            self.tail.trim(self.delivered)
            self.outbox.append(Deliver(batches[-1:]))

    return [(History, "deliver", deliver)]


def _any_ack_counts() -> list[Patch]:
    def ack(self: LeaderBroadcast, learner: Learner, _zxid: Zxid) -> None:
        self._acked[learner.member] = self._m.tail.last.zxid

    return [(LeaderBroadcast, "ack", ack)]


def _synchronised_is_delivered() -> list[Patch]:
    commit = History.commit

    def skip(self: History, zxid: Zxid) -> None:
        assert isinstance(self, Member), "every history is a member's"
        if self.became.phase.name == "SYNCHRONISATION" and self.became.leader != self.me:
            self.committed = self.delivered = zxid
        else:
            commit(self, zxid)

    return [(History, "commit", skip)]


def _framed_for_each() -> list[Patch]:
    submit = LeaderBroadcast.submit

    def anew(
        self: LeaderBroadcast, count: int, payload: bytes, learners: Iterable[Learner]
    ) -> None:
        submit(self, count, payload, ())
        batch = self._m.tail.after(0)[-1]
        for learner in learners:
            if learner.live:
                record = frame_record(batch.first, count, payload + b" ", batch.previous)
                self._m.send(learner.link, Propose(batch.first, count, record))

    return [(LeaderBroadcast, "submit", anew)]


def _never_trimmed() -> list[Patch]:
    def trim(_self: LogTail, _settled: int, _bytes_max: int = 0, _batches_max: int = 0) -> None:
        """Keep everything."""

    return [(LogTail, "trim", trim)]


def _stream_unanswered() -> list[Patch]:
    def streamed(self: Establishment, learner: Learner, upto: LogPosition) -> None:
        """Forget that it has the rest coming."""

    return [(Establishment, "streamed", streamed)]


def _cut_too_far() -> list[Patch]:
    cut = Alignment._truncate

    def far(self: Alignment, learner: Learner, boundary: LogPosition) -> None:
        cut(self, learner, self._m.tail.boundary(boundary.zxid - 1) or boundary)

    def trusting(self: LearnerSynchronisation, position: LogPosition) -> None:
        m = self._m
        if not m.tail.contains(position):
            m.send(self._link, TruncRefused())
        elif position == m.tail.last:
            trunc(self, position)
        else:
            m.truncating = Truncate(m.new_id(), position)
            m.outbox.append(m.truncating)

    trunc = LearnerSynchronisation._trunc
    return [(Alignment, "_truncate", far), (LearnerSynchronisation, "_trunc", trusting)]


def _uncommitted_watermark() -> list[Patch]:
    def append(self: History, batch: Batch) -> None:
        append_before(self, batch)
        effect = self.outbox.pop()
        assert isinstance(effect, Append), "it has just been asked for"
        self.outbox.append(Append(effect.append_id, effect.record, self.durable.zxid))

    append_before = History.append
    return [(History, "append", append)]


_FAILING: Final = MappingProxyType({"voters": 3, "kinds": ("sync error",)})


def _last_commit_untold() -> list[Patch]:
    submit, commit = LeaderBroadcast.submit, LeaderBroadcast._commit

    def silent(self: LeaderBroadcast, zxid: Zxid, _learners: Iterable[Learner]) -> None:
        commit(self, zxid, ())

    def tell_first(
        self: LeaderBroadcast, count: int, payload: bytes, learners: Iterable[Learner]
    ) -> None:
        everyone = [*learners]
        for learner in everyone:
            if learner.stage is Stage.SERVING:
                self._m.send(learner.link, Commit(self._m.committed))
        submit(self, count, payload, everyone)

    return [(LeaderBroadcast, "_commit", silent), (LeaderBroadcast, "submit", tell_first)]


DURABILITY_LATE: Final = (
    Mutant(
        name="last-commit-untold",
        bug="M102",
        what="a commit is told only before the next proposal, to save a message",
        history="while writes come all is well; the last of them is never seen on a follower",
        reference="classical: commits that ride on proposals need heartbeats that carry them",
        level="zab",
        found_by=frozenset({"L3"}),
        patches=_last_commit_untold,
        shape={"voters": 3, "kinds": ()},
    ),
    Mutant(
        name="marker-overtakes-data",
        bug="M18",
        what="NEWLEADER overtakes the records that come from the disk",
        history=(
            "the marker is queued while the data it vouches for is still on its way: what the "
            "learner acknowledges is not what it has"
        ),
        reference="ZOOKEEPER-3104",
        level="zab",
        found_by=frozenset({"A2", "Z14"}),
        patches=_invited_while_streaming,
        shape=_COMING_BACK,
    ),
    Mutant(
        name="commit-during-synchronisation",
        bug="M19",
        what="commits go to learners that have not been told UPTODATE yet",
        history=(
            "a proposal comes before NEWLEADER, its commit between NEWLEADER and UPTODATE, where "
            "no handler expects it"
        ),
        reference="ZOOKEEPER-4394",
        level="zab",
        found_by=frozenset({"A1"}),
        patches=_commit_to_invited,
    ),
    Mutant(
        name="ack-overtakes-newleader-ack",
        bug="M20",
        what="a learner acknowledges proposals before it has acknowledged NEWLEADER",
        history=(
            "the thread of the disk answers first; the leader takes that for a wrong answer to "
            "NEWLEADER, and resigns"
        ),
        reference="ZOOKEEPER-4685",
        level="zab",
        found_by=frozenset({"A4"}),
        patches=_ack_overtakes,
    ),
    Mutant(
        name="serves-before-applied",
        bug="M21",
        what="a learner serves before it has applied what was committed when it was let in",
        history="a client that has seen a write elsewhere reads the past here",
        reference="ZOOKEEPER-3023",
        level="zab",
        found_by=frozenset({"Z14"}),
        patches=_serves_too_early,
    ),
    Mutant(
        name="proposals-miss-the-invited",
        bug="M22",
        what="proposals go only to those who have acknowledged NEWLEADER, commits reach more",
        history=(
            "one is between NEWLEADER and its acknowledgement; it is told to commit what it was "
            "never sent"
        ),
        reference="ZOOKEEPER-962; issue 1 of its TLA+ specification",
        level="zab",
        found_by=frozenset({"A3", "A2"}),
        patches=_proposals_after_ack_only,
    ),
    Mutant(
        name="uptodate-at-the-ack",
        bug="M23",
        what="UPTODATE names what was acknowledged in place of the leader's commit point",
        history="the learner never learns that what was committed in the meantime is",
        reference="issue 3 of ZooKeeper's TLA+ specification",
        level="zab",
        found_by=frozenset({"Z12"}),
        without=frozenset({"Z15"}),
        patches=_up_to_date_at_ack,
    ),
    Mutant(
        name="proposed-twice",
        bug="M24",
        what="a joiner is sent a proposal live and again from the log",
        history="it appends the batch twice",
        reference="issue 2 of ZooKeeper's TLA+ specification",
        level="zab",
        found_by=frozenset({"A2"}),
        patches=_proposed_twice,
        shape=_BUSY,
    ),
    Mutant(
        name="reports-what-it-delivered",
        bug="M25",
        what="a learner reports where its tree stands in place of where its log ends",
        history=(
            "it keeps its database over an election, and a batch in its log comes back after the "
            "next restart"
        ),
        reference="ZOOKEEPER-2845",
        level="zab",
        found_by=frozenset({"D5"}),
        patches=_reports_what_it_delivered,
    ),
    Mutant(
        name="reports-counted-as-acks",
        bug="M26",
        what=(
            "what a quorum reports that it has, a new leader commits before its history is "
            "acknowledged"
        ),
        history=(
            "a batch of an earlier epoch is counted on a majority and committed; a leader of a "
            "later epoch cuts it off"
        ),
        reference="Raft, figure 8; LogCabin issue 44",
        level="zab",
        found_by=frozenset({"Z15"}),
        patches=_reports_counted_as_acks,
        shape=_FIVE,
    ),
    Mutant(
        name="forgets-what-is-being-written",
        bug="M27",
        what="what is on its way to the disk is forgotten when a leadership ends",
        history=(
            "the member reports less than it has, is synchronised, and then the old write lands"
        ),
        reference="ZOOKEEPER-4712",
        level="zab",
        found_by=frozenset({"D5"}),
        patches=_forgets_what_is_being_written,
    ),
    Mutant(
        name="votes-while-truncating",
        bug="M28",
        what="a member votes and follows again while its log is still being cut",
        history=(
            "the connection is lost in the middle of TRUNC; what it reports next is not what a "
            "restart would load"
        ),
        reference="ZOOKEEPER-5094",
        level="zab",
        found_by=frozenset({"D5"}),
        patches=_votes_while_truncating,
        shape=_SLOW_DISKS,
    ),
    Mutant(
        name="failed-write-dropped",
        bug="M29",
        what="a batch whose write has failed is dropped, and the log goes on behind it",
        history=(
            "the commit is applied in memory, the log has a hole, and the member rejoins with it"
        ),
        reference="ZOOKEEPER-4882",
        level="zab",
        found_by=frozenset({"D7"}),
        patches=_failed_write_dropped,
        shape=_FAILING,
    ),
    Mutant(
        name="commits-one-alone",
        bug="M30",
        what="a commit delivers the batch that it names and not the ones before it",
        history=(
            "our acknowledgements and commits are cumulative, so one batch can only be committed "
            "before an earlier one if somebody takes them for single ones"
        ),
        reference="the guard in ZooKeeper's tryToCommit",
        level="zab",
        found_by=frozenset({"Z5", "Z2"}),
        patches=_commits_one_alone,
    ),
    Mutant(
        name="any-ack-counts",
        bug="M30",
        what="an acknowledgement counts for all that is proposed, whichever batch it names",
        history="a batch is committed that nobody but the leader has",
        reference="the guard in ZooKeeper's tryToCommit",
        level="zab",
        found_by=frozenset({"Z15"}),
        patches=_any_ack_counts,
    ),
    Mutant(
        name="any-ack-counts-unchecked",
        bug="M30",
        what="the same, seen by what comes of it",
        history="as above",
        reference="the guard in ZooKeeper's tryToCommit",
        level="zab",
        found_by=frozenset({"D6"}),
        patches=_any_ack_counts,
        without=frozenset({"Z15", "D2"}),
    ),
    Mutant(
        name="synchronised-taken-for-delivered",
        bug="M16",
        what="what was committed during synchronisation is taken for delivered",
        history="the tree lacks batches that the log has",
        reference="ZOOKEEPER-4925, in another form",
        level="zab",
        found_by=frozenset({"Z2"}),
        patches=_synchronised_is_delivered,
        without=frozenset({"Z14"}),
    ),
    Mutant(
        name="framed-for-each",
        bug="M72",
        what="a leader frames the record of a batch anew for each follower",
        history="one zxid has two contents, as with a record that rots on its way",
        reference="after Ganesan et al., FAST 2017",
        level="zab",
        found_by=frozenset({"Z1"}),
        patches=_framed_for_each,
    ),
    Mutant(
        name="cut-too-far",
        bug="M12",
        what="a learner is cut back one batch further than to the last common one",
        history="a committed batch goes from its disk, and one member more has lost it",
        reference="ZOOKEEPER-1156",
        level="zab",
        found_by=frozenset({"Z10"}),
        patches=_cut_too_far,
        shape=_CUT_OFF,
        without=frozenset({"A5"}),
    ),
    Mutant(
        name="uncommitted-watermark",
        bug="M11",
        what="the log's commit mark is what is durable, and not what is committed",
        history="a restart applies, and a snapshot contains, what another leader cuts off",
        reference="ZOOKEEPER-2832, in another form",
        level="zab",
        found_by=frozenset({"A3", "Z4"}),
        patches=_uncommitted_watermark,
    ),
    Mutant(
        name="uncommitted-watermark-unchecked",
        bug="M11",
        what="the same, seen when others have gone another way",
        history="as above",
        reference="ZOOKEEPER-2832, in another form",
        level="zab",
        found_by=frozenset({"Z4"}),
        patches=_uncommitted_watermark,
        shape=_CUT_OFF,
        without=frozenset({"A3", "Z5", "Z7"}),
    ),
    Mutant(
        name="never-trimmed",
        bug="M91",
        what="the recent history in memory is never cut",
        history="a member's memory grows until it dies",
        reference="classical",
        level="zab",
        found_by=frozenset({"L7"}),
        patches=_never_trimmed,
        shape=MappingProxyType({"tail_batches": 8}),
    ),
    Mutant(
        name="stream-unanswered",
        bug="M92",
        what="a learner that has been sent records from the disk is forgotten there",
        history="it is never invited, and hangs behind its leader for ever",
        reference="classical",
        level="zab",
        found_by=frozenset({"L6"}),
        patches=_stream_unanswered,
        shape=MappingProxyType({"tail_batches": 8, "voters": 3}),
    ),
)
