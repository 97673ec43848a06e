"""Mistakes about what is durable when, and about epochs: M01-M09 of the gallery.

M81 to M83 are ours: the plainest ways to break D8, D10 and D5.
"""

from collections import deque
from collections.abc import Generator
from functools import partial
from typing import Any, Final

from zabd.cluster_sim.disks import DiskSpeed
from zabd.cluster_sim.mutants.histories import HISTORIES
from zabd.cluster_sim.mutants.mutant import Mutant, Patch
from zabd.model.zxid import Zxid
from zabd.storage import recovery
from zabd.storage.epochs import Epochs, decode_epochs
from zabd.storage.record import SegmentHeader
from zabd.zab.broadcast import LeaderBroadcast, LearnerBroadcast
from zabd.zab.discovery import LeaderDiscovery, LearnerDiscovery
from zabd.zab.following import Following
from zabd.zab.learners import Learner
from zabd.zab.member import Member
from zabd.zab.messages import Ack, AckEpoch, AckNewLeader, LeaderInfo, Message, Propose
from zabd.zab.synchronisation import LearnerSynchronisation

# --- acknowledgements of transactions ------------------------------------------------------------


def _ack_before_fsync() -> list[Patch]:
    receive = LearnerBroadcast.receive

    def eager(self: LearnerBroadcast, message: Message) -> None:
        receive(self, message)
        m = self._m
        if isinstance(message, Propose) and not m.config.observer:
            m.send(self._link, Ack(m.tail.last.zxid))

    def silent(_self: LearnerBroadcast) -> None:
        """What is durable now was acknowledged before."""

    return [(LearnerBroadcast, "receive", eager), (LearnerBroadcast, "persisted", silent)]


def _leader_counts_early() -> list[Patch]:
    advance = LeaderBroadcast.advance

    def eager(self: LeaderBroadcast, learners: Any) -> None:
        m = self._m
        durable, m.durable = m.durable, m.tail.last
        try:
            advance(self, learners)
        finally:
            m.durable = durable

    return [(LeaderBroadcast, "advance", eager)]


# --- promises ------------------------------------------------------------------------------------


def _epoch_not_persisted() -> list[Patch]:
    receive, epochs_persisted = LearnerDiscovery.receive, Following._epochs_persisted

    def eager(self: LearnerDiscovery, message: Message) -> None:
        receive(self, message)
        m = self._m
        if m.persisting is not None:
            m.send(self._link, AckEpoch(m.current_epoch, m.tail.last))

    def silent(self: Following) -> None:
        if isinstance(self._phase, LearnerDiscovery):
            self._go_on()  # it was said before
        else:
            epochs_persisted(self)

    return [(LearnerDiscovery, "receive", eager), (Following, "_epochs_persisted", silent)]


def _epoch_greater_only() -> list[Patch]:
    def choose(self: LeaderDiscovery, learners: dict[Any, Learner]) -> None:
        m = self._m
        counted = [learner.member for learner in learners.values() if learner.counts]
        if not m.quorum.contains([*counted, *self.own_vote()]):
            return
        self.epoch = m.accepted_epoch + 1
        for learner in learners.values():
            if learner.accepted_epoch > self.epoch and not learner.observer:
                self.epoch = learner.accepted_epoch + 1
        m.persist_epochs(self.epoch, m.current_epoch, m.cluster_id)

    return [(LeaderDiscovery, "_choose", choose)]


def _leader_info_early() -> list[Patch]:
    choose, saved = LeaderDiscovery._choose, LeaderDiscovery.own_promise_saved

    def eager(self: LeaderDiscovery, learners: dict[Any, Learner]) -> None:
        choose(self, learners)
        if self.epoch is not None:
            for learner in learners.values():
                self._m.send(learner.link, LeaderInfo(self.epoch))

    def silent(self: LeaderDiscovery, learners: dict[Any, Learner]) -> None:
        outbox, self._m.outbox = self._m.outbox, []
        saved(self, learners)
        self._m.outbox = outbox  # it was said before

    return [(LeaderDiscovery, "_choose", eager), (LeaderDiscovery, "own_promise_saved", silent)]


def _promise_given_twice() -> list[Patch]:
    greet, promise = LeaderDiscovery.greet, LeaderDiscovery.promise

    def believe(self: LeaderDiscovery, learner: Learner) -> None:
        """Take one that has promised this very epoch to somebody for one that has not."""
        if learner.accepted_epoch == self.epoch:
            learner.accepted_epoch -= 1

    def greets(self: LeaderDiscovery, learner: Learner, learners: dict[Any, Learner]) -> None:
        believe(self, learner)
        greet(self, learner, learners)

    def takes(self: LeaderDiscovery, learner: Learner, message: AckEpoch) -> None:
        believe(self, learner)
        promise(self, learner, message)

    return [(LeaderDiscovery, "greet", greets), (LeaderDiscovery, "promise", takes)]


def _promise_forgotten() -> list[Patch]:
    def decode(data: bytes) -> Epochs:
        epochs = decode_epochs(data)
        return epochs._replace(accepted=epochs.current)

    return [(recovery, "decode_epochs", decode)]


# --- history, then epoch, then the acknowledgement -----------------------------------------------


def _persist_at_once(self: LearnerSynchronisation) -> bool:
    """Ask for the epoch as soon as one is invited; whether that has been done now or before."""
    m, invited = self._m, self._invited
    if self._acked or invited is None or m.persisting:
        return False
    if m.current_epoch < self.epoch:
        accepted = max(m.accepted_epoch, self.epoch)
        m.persist_epochs(accepted, self.epoch, invited.cluster_id, repaired=m.damaged)
    return True


def _ack_before_history() -> list[Patch]:
    persisted = LearnerSynchronisation.persisted

    def eager(self: LearnerSynchronisation) -> None:
        if not _persist_at_once(self):
            persisted(self)

    def ack(self: LearnerSynchronisation) -> None:
        assert self._invited is not None
        self._acked = True
        self._m.send(self._link, AckNewLeader(self.epoch, self._invited.position.zxid))

    return [
        (LearnerSynchronisation, "persisted", eager),
        (LearnerSynchronisation, "epochs_persisted", ack),
    ]


def _epoch_before_history() -> list[Patch]:
    persisted, epochs_persisted = (
        LearnerSynchronisation.persisted,
        LearnerSynchronisation.epochs_persisted,
    )

    def ack_when_whole(self: LearnerSynchronisation) -> None:
        assert self._invited is not None
        if self._m.durable.zxid >= self._invited.position.zxid:
            epochs_persisted(self)

    def eager(self: LearnerSynchronisation) -> None:
        if not _persist_at_once(self):
            persisted(self)
        elif not self._m.persisting:
            ack_when_whole(self)

    return [
        (LearnerSynchronisation, "persisted", eager),
        (LearnerSynchronisation, "epochs_persisted", ack_when_whole),
    ]


def _epoch_at_uptodate() -> list[Patch]:
    persisted, up_to_date = LearnerSynchronisation.persisted, LearnerSynchronisation._up_to_date
    epochs_persisted = Following._epochs_persisted

    def ack(self: LearnerSynchronisation) -> None:
        m, invited = self._m, self._invited
        if self._acked:
            persisted(self)
        elif invited is not None and m.durable.zxid >= invited.position.zxid:
            self._acked = True
            m.send(self._link, AckNewLeader(self.epoch, m.durable.zxid))

    def late(self: LearnerSynchronisation, zxid: Zxid) -> None:
        up_to_date(self, zxid)
        m = self._m
        assert self._invited is not None
        if m.current_epoch < self.epoch:
            accepted = max(m.accepted_epoch, self.epoch)
            m.persist_epochs(accepted, self.epoch, self._invited.cluster_id, repaired=m.damaged)

    def booked(self: Following) -> None:
        if not isinstance(self._phase, LearnerBroadcast):
            epochs_persisted(self)

    return [
        (LearnerSynchronisation, "persisted", ack),
        (LearnerSynchronisation, "_up_to_date", late),
        (Following, "_epochs_persisted", booked),
    ]


# --- recovery ------------------------------------------------------------------------------------


def _tail_dropped() -> list[Patch]:
    read = recovery._Replay.read

    def forgetful(
        self: recovery._Replay, headers: list[SegmentHeader]
    ) -> Generator[Any, Any, None]:
        yield from read(self, headers)
        self.pending = deque()

    return [(recovery._Replay, "read", forgetful)]


def _votes_while_writing() -> list[Patch]:
    return [(Member, "quiet", property(lambda _self: True))]


_mutant = partial(Mutant, level="zab")

_RIVALS: Final = {
    "voters": 5,
    "kinds": ("named leader", "cut"),
    "fault_every_ms": 50,
    "tick_ms": 200,
    "faults_ms": 10_000,
    "disk_speed": DiskSpeed(write_us=(20, 200), sync_us=(2_000, 40_000)),
}
"""Two that are named leaders at once, slow to promise, and links that break meanwhile."""

_SLOW_DISKS: Final = {
    "voters": 3,
    "kinds": ("kill", "power cut"),
    "tick_ms": 200,
    "submit_every_ms": 12.5,
    "disk_speed": DiskSpeed(write_us=(20, 200), sync_us=(200, 40_000)),
}
"""Disks that take their time, so that what is said too early is said too early by far."""

_STALLED_DISKS: Final = {**_SLOW_DISKS, "kinds": ("disk stall", "cut", "isolate the leader")}
"""The same, and links that break while something is on its way to the disk."""

DURABILITY: Final = (
    _mutant(
        name="ack-before-fsync",
        bug="M01",
        what="a follower acknowledges a batch when it is handed to the disk, before it is durable",
        history="A leads, C is cut off; B acknowledges what it has only buffered, A replies; "
        "A and B lose power, B and C go on without the write",
        reference="classical; Ganesan et al., FAST 2017",
        found_by=frozenset({"D1"}),
        patches=_ack_before_fsync,
    ),
    _mutant(
        name="leader-counts-early",
        bug="M02",
        what="a leader counts itself for a batch that its own disk does not hold yet",
        history="A leads, C is cut off; B makes a write durable and acknowledges it, A has only "
        "buffered it and replies; A and B lose power, A and C go on without the write",
        reference="Ongaro's thesis on Raft, 10.2.1, states the rule",
        found_by=frozenset({"D2"}),
        patches=_leader_counts_early,
        shape=_SLOW_DISKS,
    ),
    _mutant(
        name="epoch-not-persisted",
        bug="M03",
        what="a follower promises an epoch before its promise is durable",
        history="B promises epoch 2 to A, restarts, and promises 2 once more, to C",
        reference="the paper's step `f.p := e'`; ZOOKEEPER-335",
        found_by=frozenset({"D3"}),
        patches=_epoch_not_persisted,
    ),
    _mutant(
        name="epoch-greater-only",
        bug="M04",
        what="a new epoch only has to be greater than the promises above it, not than equal ones",
        history="A proposes 2, A and B accept, A crashes; C hears that B accepted 2, finds that 2 "
        "is not greater than 2, and proposes 2: the answer of B cannot count, for ever",
        reference="ZOOKEEPER-1343: the fix is this one character",
        found_by=frozenset({"Z16"}),
        patches=_epoch_greater_only,
        shape=_RIVALS,
    ),
    _mutant(
        name="leader-info-early",
        bug="M05",
        what="a leader names its epoch before its own promise is durable",
        history="A leads 2 with B and logs 2:1, crashes, and has forgotten 2; with C it leads "
        "another epoch 2 and logs another 2:1",
        reference="ZOOKEEPER-1291",
        found_by=frozenset({"D3"}),
        patches=_leader_info_early,
    ),
    _mutant(
        name="promise-given-twice",
        bug="M06",
        what="a promise counts that its follower has given for the same epoch before",
        history="of five, A hears A, B and C, proposes 2, C promises, B has moved on; D with B and "
        "E establishes 2; E loses D, comes to A, and promises 2 again: A has A, C and E",
        reference="the rule of the reply that does not count, beside ZOOKEEPER-1343",
        found_by=frozenset({"Z16"}),
        patches=_promise_given_twice,
        shape=_RIVALS,
    ),
    _mutant(
        name="ack-before-history",
        bug="M07",
        what="a follower acknowledges NEWLEADER before the history it was sent is durable",
        history="1:1 is committed on A and C, A crashes; C leads 2, B is sent 1:1, writes epoch 2 "
        "and acknowledges, 1:1 still buffered; B and C crash; B wins against A and cuts off 1:1",
        reference="ZOOKEEPER-3911, ZOOKEEPER-4646, ZOOKEEPER-4785",
        found_by=frozenset({"D4"}),
        patches=_ack_before_history,
        shape=_SLOW_DISKS,
    ),
    _mutant(
        name="epoch-before-history",
        bug="M08",
        what="a follower writes the current epoch before the history it stands for is durable",
        history="as M07, but B crashes between the epoch's file and the log, before it says "
        "anything; C crashes, A and B restart, B wins by its epoch",
        reference="ZOOKEEPER-4643",
        found_by=frozenset({"D4"}),
        patches=_epoch_before_history,
        shape=_SLOW_DISKS,
    ),
    _mutant(
        name="epoch-at-uptodate",
        bug="M09",
        what="a follower writes the current epoch only at UPTODATE, after it has acknowledged",
        history="1:2 is only on A, which crashes; C leads 2 with B, which has acknowledged and has "
        "not written 2 yet; C logs 2:1 alone and crashes; 1:2 of A wins and is committed, "
        "though epoch 2 had broadcast",
        reference="ZOOKEEPER-1282",
        found_by=frozenset({"D4"}),
        patches=_epoch_at_uptodate,
    ),
    _mutant(
        name="tail-dropped",
        bug="M81",
        what="a restart keeps of its log only what it knows to be committed",
        history="B acknowledges 1:1 and crashes before it hears that it is committed; A crashes; "
        "B and C go on without 1:1, which A has replied to",
        reference="classical: what is acknowledged counts for the quorum, committed or not",
        found_by=frozenset({"D8"}),
        patches=_tail_dropped,
        shape=_SLOW_DISKS,
    ),
    _mutant(
        name="promise-forgotten",
        bug="M82",
        what="a restart takes the current epoch for the accepted one",
        history="B promises epoch 2 to A, restarts with a promise of 1, and promises 2 to C",
        reference="classical: a vote has to outlive a restart (Ongaro and Ousterhout, 2014, 5.1)",
        found_by=frozenset({"D10"}),
        patches=_promise_forgotten,
        # With hardly a log: its marks know of the promise, and recovery notices the contradiction.
        shape={"voters": 3, "kinds": ("kill",), "tick_ms": 200, "submit_every_ms": 800.0},
    ),
    _mutant(
        name="votes-while-writing",
        bug="M83",
        what="a member votes and introduces itself while its disk still owes it an answer",
        history="B has 1:5 on its way to the disk when its leader goes, votes at 1:5 and crashes; "
        "the one elected for the sake of that vote, or B itself, comes back without it",
        reference="classical: the mirror of ZOOKEEPER-4712, which reports too little",
        found_by=frozenset({"D5"}),
        patches=_votes_while_writing,
        shape=_STALLED_DISKS,
    ),
    _mutant(
        name="ack-before-fsync-unseen",
        bug="M01",
        what="as ack-before-fsync, with the check off that sees the acknowledgement itself",
        history="the leader commits and replies, by acknowledgements of what is only buffered",
        reference="classical; Ganesan et al., FAST 2017",
        found_by=frozenset({"D6"}),
        patches=_ack_before_fsync,
        without=frozenset({"D1"}),
        shape=_SLOW_DISKS,
    ),
    *HISTORIES,
)
