"""Broadcast: the steady state of an epoch, from proposal to delivery.

A leader numbers transactions, a quorum makes them durable, everyone delivers them in order. Links
are FIFO, so an Ack or a Commit speaks for everything before it too, and one of each serves a batch
or a hundred.

Invariants
    B1  An Ack speaks only of what is durable here, so a quorum of them survives the crash of any
        minority. The leader counts itself by the same rule.
    B2  The leader commits by counting only what was proposed in its own epoch. What is older was
        committed by the quorum that acknowledged NewLeader.
    B3  Each voter counts once, with what it acknowledged on its present link.
    B4  Counters begin at 1 in each epoch and rise by 1; before they are used up the leader asks for
        a new epoch.
    B5  Confirmed says that a quorum answered a question which was asked after the Confirm.

Junqueira, Reed and Serafini, "Zab" (DSN 2011), phase 3.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from zabd.model.errors import LocalProtocolError, RemoteProtocolError
from zabd.model.ids import Epoch, LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.zab.effects import Confirmed
from zabd.zab.learners import Learner, Stage
from zabd.zab.log import Batch, frame_record
from zabd.zab.member import Member
from zabd.zab.messages import Ack, Commit, Message, Ping, Pong, Propose
from zabd.zab.synchronisation import take_proposal

BATCH_BYTES_MAX: Final = 16 << 20
"""One batch: a turn's worth of requests and one of the largest jute.maxbuffer, which the replica
sees to; fits a peer's frame."""

BATCH_COUNT_MAX: Final = 1 << 16
"""Far below the margin that the counter keeps to its roll-over."""

OUTSTANDING_BYTES_MAX: Final = 16 << 20
OUTSTANDING_BATCHES_MAX: Final = 512
"""Proposed and not committed. At 2,000 batches a second this is a quarter of a second of them."""

CONFIRMS_MAX: Final = 100_000
"""Unanswered Confirms; each is a client's `sync`, and each client has a bounded number of them."""


class LearnerBroadcast:
    """The learner's side: append, acknowledge, deliver."""

    __slots__ = ("_link", "_m", "_serve_from", "epoch")

    def __init__(self, member: Member, link: LinkId, epoch: Epoch, serve_from: Zxid) -> None:
        self._m = member
        self._link = link
        self.epoch = epoch
        self._serve_from = serve_from

    @property
    def serving(self) -> bool:
        """Whether what was committed when we came in step has been delivered here."""
        return self._m.delivered >= self._serve_from

    def receive(self, message: Message) -> None:
        """Take one message of the leader."""
        match message:
            case Propose():
                if message.first.epoch != self.epoch:
                    raise RemoteProtocolError(
                        f"a proposal from {message.first!r} on came in epoch {self.epoch}"
                    )
                take_proposal(self._m, message)
            case Commit(zxid):
                self._commit(zxid)
            case Ping(round_):
                self._m.send(self._link, Pong(round_))
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} came in broadcast")

    def _commit(self, zxid: Zxid) -> None:
        # Cumulative: it settles every batch up to zxid. Links are FIFO, so all of them are here.
        m = self._m
        if zxid > m.tail.last.zxid:
            raise RemoteProtocolError(
                f"commit of {zxid!r}, the last proposal was {m.tail.last.zxid!r}"
            )
        if zxid < m.committed or not m.is_boundary(zxid):
            raise RemoteProtocolError(f"commit of {zxid!r}, {m.committed!r} was committed before")
        m.commit(zxid)

    def persisted(self) -> None:
        """More is durable: say so (B1). Observers have nothing to say, they do not count."""
        m = self._m
        if not m.config.observer:
            m.send(self._link, Ack(m.durable.zxid))

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next."""
        return ("broadcast", self.epoch, self._serve_from)


class LeaderBroadcast:
    """The leader's side: propose, count acknowledgements, commit."""

    __slots__ = (
        "_acked",
        "_m",
        "_outstanding_batches",
        "_outstanding_bytes",
        "epoch",
        "handing_over",
    )

    def __init__(self, member: Member, epoch: Epoch) -> None:
        self._m = member
        self.epoch = epoch
        self._acked: dict[MemberId, int] = {}
        self._outstanding_bytes = 0
        self._outstanding_batches = 0
        self.handing_over = False

    # --- proposals ------------------------------------------------------------------------------

    @property
    def next_zxid(self) -> Zxid:
        """The zxid of the next transaction."""
        last = self._m.tail.last.zxid
        return Zxid(last + 1) if last.epoch == self.epoch else Zxid.of(self.epoch, 1)

    @property
    def can_submit(self) -> bool:
        """Whether another batch is welcome."""
        m = self._m
        return (
            not self.handing_over
            and self._outstanding_bytes < OUTSTANDING_BYTES_MAX
            and max(self._outstanding_batches, len(m.appends)) < OUTSTANDING_BATCHES_MAX
        )

    def submit(self, count: int, payload: bytes, learners: Iterable[Learner]) -> None:
        """Number the transactions, and send the batch to our disk and to everyone in step."""
        m = self._m
        first = self.next_zxid
        if not 1 <= count <= BATCH_COUNT_MAX or len(payload) > BATCH_BYTES_MAX:
            raise LocalProtocolError(
                f"a batch has 1 to {BATCH_COUNT_MAX} transactions and at most "
                f"{BATCH_BYTES_MAX} bytes, not {count} and {len(payload)}"
            )
        record = frame_record(first, count, payload, m.tail.last.chain)
        batch = Batch(first, count, record)
        m.append(batch)
        self._outstanding_bytes += len(record)
        self._outstanding_batches += 1
        proposal = Propose(first, count, record)
        for learner in learners:
            if learner.live:
                m.send(learner.link, proposal)
        if batch.last.counter >= m.config.counter_handover:
            self.handing_over = True  # B4

    # --- acknowledgements -----------------------------------------------------------------------

    def count(self, member: MemberId, zxid: Zxid) -> None:
        """This voter has everything up to `zxid` (B3)."""
        self._acked[member] = zxid

    def forget(self, member: MemberId) -> None:
        """The link is gone over which this voter acknowledged."""
        self._acked.pop(member, None)

    def ack(self, learner: Learner, zxid: Zxid) -> None:
        """A voter in step has made more durable."""
        m = self._m
        before = self._acked.get(learner.member, 0)
        if zxid.epoch != self.epoch or zxid <= before or zxid > m.tail.last.zxid:
            raise RemoteProtocolError(
                f"member {learner.member} acknowledged {zxid!r} after {Zxid(before)!r}, "
                f"proposed is {m.tail.last.zxid!r}"
            )
        if zxid > m.delivered and not m.is_boundary(zxid):
            raise RemoteProtocolError(f"{zxid!r} of an acknowledgement is not the end of a batch")
        self._acked[learner.member] = zxid

    def advance(self, learners: Iterable[Learner]) -> None:
        """Commit what a quorum has made durable, and tell those in step."""
        m = self._m
        self._acked[m.me] = m.durable.zxid  # B1
        zxid = Zxid(m.quorum.acked(self._acked))
        if zxid > m.committed and zxid.epoch == self.epoch:  # B2
            self._commit(zxid, learners)
        # Asked also when nothing is committed anew: our own disk may have been the last one.
        if self.handing_over and m.committed == m.delivered == m.tail.last.zxid:
            m.look(f"epoch {self.epoch} has used up its counter")

    def _commit(self, zxid: Zxid, learners: Iterable[Learner]) -> None:
        m = self._m
        settled = m.tail.between(m.committed, zxid)
        self._outstanding_bytes -= sum(len(batch.record) for batch in settled)
        self._outstanding_batches -= len(settled)
        commit = Commit(zxid)
        for learner in learners:
            if learner.stage is Stage.SERVING:
                m.send(learner.link, commit)
        m.commit(zxid)

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next."""
        return (self.epoch, tuple(sorted(self._acked.items())), self.handing_over)


class Confirmations:
    """Numbered questions to all learners, and what may be said once a quorum has answered (B5).

    A Confirm that comes while a question is open waits for the next one, so any number of them
    costs one round trip after another, not one each.
    """

    __slots__ = ("_admitting", "_asked", "_confirmed", "_m", "_waiting", "round")

    def __init__(self, member: Member) -> None:
        self._m = member
        self.round = 0
        self._confirmed = 0
        self._waiting: list[int] = []  # tokens for the question not yet asked
        self._asked: deque[tuple[int, list[int]]] = deque()
        self._admitting: dict[LinkId, int] = {}

    def ask(self, learners: Iterable[Learner]) -> None:
        """Ask everyone who has promised whether they still follow."""
        self.round += 1
        if self._waiting:
            self._asked.append((self.round, self._waiting))
            self._waiting = []
        ping = Ping(self.round)
        for learner in learners:
            if learner.stage >= Stage.PROMISED:
                self._m.send(learner.link, ping)

    def confirm(self, token: int, learners: list[Learner]) -> None:
        """The host wants to know whether we still lead."""
        if len(self._waiting) >= CONFIRMS_MAX:
            raise LocalProtocolError(f"{CONFIRMS_MAX} confirmations are waiting already")
        self._waiting.append(token)
        if self._confirmed == self.round:
            self.ask(learners)
        self.settle(learners)

    def admit(self, link: LinkId, learners: list[Learner]) -> None:
        """A blank learner has to wait for an answer to a question asked from now on.

        It may have forgotten a promise to another leader. A quorum that follows us now, without
        it, is proof that no such leader can have been established with its help.
        """
        if link not in self._admitting:
            self._admitting[link] = self.round + 1
            if self._confirmed == self.round:
                self.ask(learners)
                self.settle(learners)

    def is_admitted(self, link: LinkId) -> bool:
        """Whether a quorum has followed us since that learner came."""
        return self._confirmed >= self._admitting.get(link, self.round + 1)

    def forget(self, link: LinkId) -> None:
        """The learner is gone."""
        self._admitting.pop(link, None)

    def pong(self, learner: Learner, round_: int) -> None:
        """A learner has answered."""
        if not learner.pong_round < round_ <= self.round:
            raise RemoteProtocolError(
                f"member {learner.member} answers question {round_}, "
                f"expected is one from {learner.pong_round + 1} to {self.round}"
            )
        learner.pong_round = round_

    def settle(self, learners: list[Learner]) -> None:
        """Say what a quorum's answers allow, and ask what waited for that."""
        m = self._m
        answered: dict[MemberId, int] = {
            learner.member: learner.pong_round
            for learner in learners
            if learner.counts and learner.stage >= Stage.SYNCED
        }
        answered[m.me] = self.round
        self._confirmed = max(self._confirmed, m.quorum.acked(answered))
        while self._asked and self._asked[0][0] <= self._confirmed:
            for token in self._asked.popleft()[1]:
                m.outbox.append(Confirmed(token))
        if self._waiting and self._confirmed == self.round:
            self.ask(learners)
            self.settle(learners)

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next."""
        asked = tuple((round_, tuple(tokens)) for round_, tokens in self._asked)
        waiting = tuple(self._waiting)
        return (self.round, self._confirmed, waiting, asked, tuple(self._admitting.items()))
