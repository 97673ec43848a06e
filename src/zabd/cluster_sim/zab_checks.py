"""The checks of Zab and of durability, kept beside a run: they watch, and change nothing.

The checker keeps what no member can see: the ledger (all transactions in the order of their first
delivery anywhere), every proposal, each epoch's leader, and what each member's disk holds for
certain. Histories are compared by chain value, which names everything before it, so each check of
an order or a prefix is one comparison.
"""

from collections.abc import Sequence

from zabd.cluster_sim.ghosts import Entry, History
from zabd.cluster_sim.leadership_checks import LeadershipChecks, Rank
from zabd.cluster_sim.link_checks import Talk
from zabd.model.ids import Epoch, LinkId, MemberId
from zabd.model.zxid import ZXID_ZERO, Zxid
from zabd.zab.config import RecoveredState
from zabd.zab.effects import Append, Became, Phase
from zabd.zab.log import (
    CHAIN_OFFSET,
    GENESIS,
    HEADER_SIZE,
    Batch,
    LogPosition,
    RecordError,
    follows,
    last_zxid,
    parse_header,
    payload_digest,
)
from zabd.zab.messages import (
    Ack,
    AckEpoch,
    AckNewLeader,
    Commit,
    Diff,
    FollowerInfo,
    LeaderInfo,
    Message,
    NewLeader,
    Notification,
    PeerState,
)


class Incarnation:
    """One life of one member, as the checker sees it."""

    def __init__(self, member: MemberId, number: int, recovered: RecoveredState) -> None:
        self.member = member
        self.number = number
        self.history = History(recovered.delivered, recovered.tail)
        self.position = 0  # how many entries of the ledger it has delivered
        self.leads: Epoch | None = None
        self.new_leader: NewLeader | None = None
        self.infos: dict[LinkId, FollowerInfo] = {}
        self.offered: dict[LinkId, Epoch] = {}
        self.acked_new_leader: set[LinkId] = set()
        self.confirming: dict[int, int] = {}
        self.unjudged = False  # where it stands is no place of the ledger, and that check is off
        self.cutting = False  # a truncation is on its way to the disk
        self.talks: dict[LinkId, Talk] = {}
        self.over: set[LinkId] = set()  # links that have broken, or were hung up
        self.heard_us: dict[MemberId, int] = {}  # when it last heard from each of its learners
        self.votes: list[Notification] = []  # heard since it began to look
        self.round: int | None = None
        self.looking = True
        self.named = False  # chance, and no election, has named its leader
        self.leading = False
        self.terms = 0  # how many leaderships it has begun
        self.rank: Rank = (0, ZXID_ZERO)  # its history when this one began
        self.initial = GENESIS  # the end of the history that this leadership stands for

    def __str__(self) -> str:
        return f"member {self.member} (life {self.number})"


class ZabChecker(LeadershipChecks):
    """Watches every member of one ensemble. Its methods raise InvariantError."""

    def __init__(self, voters: Sequence[MemberId]) -> None:
        super().__init__(voters)
        self.ledger: list[Entry] = []
        self.leaders: dict[Epoch, Incarnation] = {}
        self._index: dict[bytes, int] = {}  # chain: its place in the ledger
        self._proposed: dict[Zxid, bytes] = {}  # last zxid of a batch: its chain
        self._broadcast_epoch: Epoch = 0  # the latest epoch whose leader has proposed anything
        self._lives: dict[MemberId, int] = {}
        self._acks: dict[Epoch, dict[MemberId, int]] = {}
        self._chosen: dict[Epoch, LogPosition] = {}  # epoch: the last that its quorum has acked

    # --- a life begins ---------------------------------------------------------------------------

    def recovered(self, member: MemberId, found: RecoveredState) -> Incarnation:
        """A member has started: is everything it ever vouched for still there?"""
        life = self._lives[member] = self._lives.get(member, 0) + 1
        incarnation = Incarnation(member, life, found)
        incarnation.position = self._place(incarnation, found.delivered, "recovers")
        self._starts(incarnation, found)
        return incarnation

    def _place(self, who: Incarnation, position: LogPosition, verb: str) -> int:
        if position == GENESIS:
            return 0
        index = self._index.get(position.chain)
        if index is None:
            other = self.ledger and position.zxid <= self.ledger[-1].last
            self.fail(
                "Z4" if other else "A3",
                f"{who} {verb} {position.zxid!r} as committed, which was never committed",
            )
            who.unjudged = True
            return 0
        return index + 1

    # --- history ---------------------------------------------------------------------------------

    def appending(self, who: Incarnation, effect: Append, epoch: Epoch) -> None:
        """A member takes a batch into its history; a leader proposes by that."""
        try:
            header = parse_header(effect.record)
        except RecordError as error:
            self.fail("R9" if who.leads is not None else "Z1", f"{who} appends no record: {error}")
            return
        last = last_zxid(header)
        chain = effect.record[CHAIN_OFFSET:HEADER_SIZE]
        end = who.history.last
        if who.leads is not None and who.leads == epoch:
            self._require_zxid_shape(who, epoch, header.first, last, end.zxid)
        if payload_digest(effect.record[HEADER_SIZE:]) != header.payload_digest:
            self.fail("Z1", f"{who} appends {last!r} with another content than its own")
        if header.previous != end.chain or not follows(header.first, end.zxid):
            self.fail("A2", f"{who} appends {header.first!r} after {end.zxid!r}")
        if who.leads is not None and header.first.epoch == who.leads == epoch:
            self._broadcast_epoch = max(self._broadcast_epoch, epoch)
            if self._proposed.setdefault(last, chain) != chain:
                self.fail("Z1", f"{who} proposes another content for {last!r}")
        elif self._proposed.get(last) != chain:
            self.fail("Z1", f"{who} appends {last!r}, which nobody proposed so")
        who.history.append(last, chain)

    def _require_zxid_shape(
        self, who: Incarnation, epoch: Epoch, first: Zxid, last: Zxid, before: Zxid
    ) -> None:
        """What a leader proposes is of its epoch to the end, from 1 on and without a gap (R9)."""
        counter = before.counter + 1 if before.epoch == epoch else 1
        if first.epoch != epoch or first.counter != counter or last.epoch != epoch:
            self.fail(
                "R9", f"{who} proposes {first!r} to {last!r} in epoch {epoch} after {before!r}"
            )

    def truncating(self, who: Incarnation, position: LogPosition) -> None:
        """A member is about to cut its history back."""
        if position not in who.history:
            self.fail("A2", f"{who} cuts to {position.zxid!r}, which it does not have")
        for entry in reversed(self.ledger):
            if entry.last <= position.zxid:
                break
            if LogPosition(entry.last, entry.chain) in who.history:
                self.fail(
                    "Z10", f"{who} cuts to {position.zxid!r}, though {entry.last!r} is committed"
                )
        who.cutting = True
        self._goes_back(who.member, position)

    def truncation_refused(self, who: Incarnation) -> None:
        """The disk has not cut anything."""
        who.cutting = False

    def truncated(self, who: Incarnation, position: LogPosition, end: LogPosition) -> None:
        """A member says that it has cut its history back; its log now ends at `end`."""
        if end != position:
            lost = [e for e in self.ledger if end.zxid < e.last <= position.zxid]
            if any(LogPosition(entry.last, entry.chain) in who.history for entry in lost):
                self.fail("Z10", f"{who} was cut to {end.zxid!r}: {lost[0].last!r} is gone")
            self.fail(
                "Z11", f"{who} was cut to {position.zxid!r}, but its log ends at {end.zxid!r}"
            )
        who.cutting = False
        who.history.truncate(position.zxid)
        self.look_closer(who.member)
        self.durable[who.member].truncate(position.zxid)

    def installing(self, who: Incarnation, position: LogPosition) -> None:
        """A member is about to take its leader's snapshot in place of its history."""
        if self.ledger and position.zxid < who.history.last.zxid:
            for entry in reversed(self.ledger):
                if entry.last <= position.zxid:
                    break
                if LogPosition(entry.last, entry.chain) in who.history:
                    self.fail("Z10", f"{who} goes back to {position.zxid!r}, behind {entry.last!r}")
        self._goes_back(who.member, position)

    def installed(self, who: Incarnation, position: LogPosition) -> None:
        """A member's state has become a snapshot from its leader."""
        who.position = self._place(who, position, "installs")
        who.history = History(position)
        self.look_closer(who.member)
        self.durable[who.member].restart_at(position)
        self._vouched[who.member] = position

    def delivered(self, who: Incarnation, batches: Sequence[Batch]) -> None:
        """A member applies batches: the same ones, in the same order, as everybody."""
        if who.unjudged:
            return
        if who.leads is not None:
            upto = max(batch.last for batch in batches)
            self._commits(who, max(upto, self.commit_points.get(who.leads, ZXID_ZERO)))
        for batch in batches:
            chain = batch.position.chain
            if who.position < len(self.ledger):
                entry = self.ledger[who.position]
                if entry.chain != chain:
                    self._out_of_line(who, batch, chain, entry)
            else:
                self._extend(who, batch, chain)
            who.position += 1
        if who.leads is not None:
            self._require_chosen(who, batches[-1].position)

    def _out_of_line(self, who: Incarnation, batch: Batch, chain: bytes, entry: Entry) -> None:
        check = "Z2" if chain in self._index else "Z3"
        self.fail(check, f"{who} delivers {batch.first!r} where others delivered {entry.first!r}")

    def _extend(self, who: Incarnation, batch: Batch, chain: bytes) -> None:
        before = self.ledger[-1].last if self.ledger else Zxid(0)
        if self._proposed.get(batch.last) != chain:
            self.fail("Z1", f"{who} delivers {batch.last!r}, never proposed like that")
        if chain in self._index:
            self.fail("Z1", f"{who} delivers {batch.last!r} for the second time")
        if batch.first.epoch < before.epoch:
            self.fail("Z6", f"{who} delivers {batch.first!r} after {before!r}")
        if not follows(batch.first, before):
            self.fail("Z5", f"{who} delivers {batch.first!r} after {before!r}")
        if batch.first.epoch < self._broadcast_epoch:
            self.fail(
                "Z7",
                f"{who} delivers {batch.first!r} after epoch {self._broadcast_epoch} broadcast",
            )
        if who.leads is None:
            self._require_committed(who, batch.last)
        self._index[chain] = len(self.ledger)
        self.ledger.append(Entry(batch.first, batch.last, chain))

    # --- leadership ------------------------------------------------------------------------------

    def became(self, who: Incarnation, news: Became) -> None:
        """A member has changed its state or phase."""
        self._turns(who, news)
        if news.state is not PeerState.LEADING:
            who.leads = None
            return
        if news.phase < Phase.SYNCHRONISATION:
            return
        if news.epoch in self.leaders and (
            self.leaders[news.epoch] is not who or who.leads != news.epoch
        ):
            self.fail("Z8", f"{who} leads epoch {news.epoch}, as {self.leaders[news.epoch]} did")
        if who.leads != news.epoch:
            if who.terms:
                self._require_promised(who, news.epoch)
            self._established(who, news.epoch)
        if who.terms and news.phase is Phase.BROADCAST:
            self._require_acknowledged(who, news.epoch)

    def _established(self, who: Incarnation, epoch: Epoch) -> None:
        who.leads = epoch
        who.initial = who.history.last
        self.leaders[epoch] = who
        self._named[who.member, epoch] = who.history.last
        # A leader that is established late, when others have gone on without it, cannot get its
        # NEWLEADER acknowledged any more: later epochs are not its business (a legal near miss).
        committed = self._last_before(epoch)
        if committed not in who.history:
            self.fail(
                "Z9",
                f"{who} leads epoch {epoch} from {who.history.last.zxid!r} on, without "
                f"{committed.zxid!r}, which is committed",
            )
        chosen = self._chosen.get(max((e for e in self._chosen if e < epoch), default=0), GENESIS)
        if chosen not in who.history:
            self.fail("Z13", f"{who} leads epoch {epoch} without {chosen.zxid!r}, which was chosen")

    def _last_before(self, epoch: Epoch) -> LogPosition:
        """The end of what was committed under leaders of earlier epochs."""
        for entry in reversed(self.ledger):
            if entry.last.epoch < epoch:
                return LogPosition(entry.last, entry.chain)
        return GENESIS

    # --- messages --------------------------------------------------------------------------------

    def received(self, who: Incarnation, link: LinkId, message: Message) -> None:
        """A message reaches a member."""
        self._hear(who, link, message)
        match message:
            case FollowerInfo():
                who.infos[link] = message
            case LeaderInfo(epoch):
                who.offered[link] = epoch
            case NewLeader(epoch, _, position):
                who.new_leader = message
                # One that comes back to the same leader has the epoch already, with less history.
                if self.durable[who.member].epochs().current < epoch:
                    self._named[who.member, epoch] = position
            case _:
                pass

    def sent(self, who: Incarnation, link: LinkId, message: Message) -> None:
        """A member says something: may it, by what its disk holds?"""
        self._assures(who, message)
        match message:
            case Ack(zxid):
                self._acknowledged(who, link, zxid)
            case AckNewLeader(epoch, zxid):
                self._acknowledged_new_leader(who, link, epoch, zxid)
                if who.member not in self.rotten:
                    self.damaged.pop(who.member, None)
            case AckEpoch(_, position):
                self._require_reported(who, position)
                self._promise(who, who.offered.get(link, 0), 0)
            case LeaderInfo(epoch):
                self._require_fresh(who, link, epoch)
                self._promise(who, epoch, 0)
            case FollowerInfo():
                self._require_reported(who, message.position)
            case Commit(zxid):
                self._require_own_share(who, zxid, self._acks.get(who.leads or 0, {}))
            case Diff(position) if position not in who.history:
                self.fail("Z11", f"{who} goes on from {position.zxid!r}, no point of its history")
            case _:
                pass

    def _acknowledged(self, who: Incarnation, link: LinkId, zxid: Zxid) -> None:
        chain = who.history.chain_at(zxid)
        position = LogPosition(zxid, chain) if chain is not None else who.history.base
        if position.zxid < zxid:
            self.fail("D1", f"{who} acks {zxid!r}, which is not in its history")
        self._require_durable(who, position, "D1")
        if link not in who.acked_new_leader:
            self.fail("A4", f"{who} acks {zxid!r} before the NEWLEADER of its link")
        self._vouch(who, position)
        if who.new_leader is not None:
            self.voted(who, who.new_leader.epoch, position)

    def _acknowledged_new_leader(
        self, who: Incarnation, link: LinkId, epoch: Epoch, zxid: Zxid
    ) -> None:
        durable, named = self.durable[who.member], who.new_leader
        if named is None or named.epoch != epoch:
            self.fail("A4", f"{who} acks the NEWLEADER of epoch {epoch}, never received")
            return
        if named.position not in who.history:
            self.fail("Z11", f"{who} acks a history that is not its leader's")
        chain = who.history.chain_at(zxid)  # it may have more than it was asked for by now
        end = named.position if chain is None else LogPosition(zxid, chain)
        self._require_durable(who, end, "D4")
        if durable.epochs().current < epoch:
            self.fail("D4", f"{who} acks NEWLEADER {epoch} before the epoch is durable")
        who.acked_new_leader.add(link)
        self._promise(who, epoch, epoch)
        self._vouch(who, end)
        self.voted(who, epoch, end)

    def counted_itself(self, who: Incarnation, position: LogPosition) -> None:
        """A leader hears that what it proposed is durable here, and counts itself (D2)."""
        if position in who.history and not self.durable[who.member].holds(position):
            self.fail("D2", f"{who} counts itself for {position.zxid!r}, not yet durable")
        if who.leads is not None:
            self.voted(who, who.leads, position)

    def voted(self, who: Incarnation, epoch: Epoch, position: LogPosition) -> None:
        """A member counts for `position` under the leader of `epoch`; is it chosen now (Z13)?"""
        acks = self._acks.setdefault(epoch, {})
        acks[who.member] = max(acks.get(who.member, 0), position.zxid)
        zxid = Zxid(self.quorum.acked(acks))
        if epoch in self.leaders and zxid > self._chosen.get(epoch, GENESIS).zxid:
            chain = self.leaders[epoch].history.chain_at(zxid)
            if chain is not None:
                self._chosen[epoch] = LogPosition(zxid, chain)

    def _require_fresh(self, who: Incarnation, link: LinkId, epoch: Epoch) -> None:
        info = who.infos.get(link)
        if info is not None and info.accepted_epoch > epoch and not info.observer:
            self.fail(
                "Z16", f"{who} offers epoch {epoch} to one who promised {info.accepted_epoch}"
            )

    # --- disks -----------------------------------------------------------------------------------

    def epochs_durable(self, member: MemberId) -> None:
        """The epoch file's name became durable: the history it stands for must be before (D4)."""
        current = self._require_growth(member).current
        if member in self.damaged:
            return  # it keeps its promises, though not what they stand for
        named = self._require_history_first(member, current)
        leader = self.leaders.get(current)
        if named is not None and leader is not None and leader.member == member:
            self.voted(leader, current, named)  # its own ack of NEWLEADER

    def purged(self, member: MemberId, base: Zxid, snapshots: Sequence[Zxid], kept: int) -> None:
        """A member has deleted the log before `base`: does it go on from each kept snapshot (R3)?

        If the newest ones turn out to be damaged, the oldest has to do.
        """
        usable = [zxid for zxid in snapshots if zxid >= base]
        if len(usable) < kept:
            self.fail(
                "R3",
                f"member {member} deletes its log up to {base!r}; of its snapshots at "
                f"{list(snapshots)} only {len(usable)} go on with what is left of it",
            )

    # --- confirmations ---------------------------------------------------------------------------

    def asked(self, who: Incarnation, token: int) -> None:
        """A leader is asked to prove that it leads."""
        who.confirming[token] = len(self.ledger)

    def confirmed(self, who: Incarnation, token: int) -> None:
        """It has proved it: it must have everything that was committed when it was asked (C6)."""
        length = who.confirming.pop(token)
        if not length:
            return
        entry = self.ledger[length - 1]
        if LogPosition(entry.last, entry.chain) not in who.history:
            self.fail(
                "C6", f"{who} confirmed that it leads, without {entry.last!r} committed before"
            )
