"""The checks of durability (D1 to D11): may a member say this, by what its disks hold?

What a disk holds is known twice. A ghost keeps it up from the completions of syncs and costs next
to nothing, so it is asked at every step. And the real recovery code is run on a copy of the durable
bytes: at crashes, and at acknowledgements chosen at random (see `audit`).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from zabd.cluster_sim.disk_image import DiskImage
from zabd.cluster_sim.ghosts import Durable, DurableLog, History, Majority
from zabd.cluster_sim.invariants import InvariantError
from zabd.model.errors import StorageError
from zabd.model.ids import Epoch, MemberId
from zabd.model.zxid import Zxid
from zabd.storage.epochs import Epochs
from zabd.storage.recovery import RecoverySink
from zabd.zab.config import RecoveredState
from zabd.zab.log import GENESIS, LogPosition
from zabd.zab.messages import (
    Ack,
    AckEpoch,
    AckNewLeader,
    Aligned,
    FollowerInfo,
    LeaderInfo,
    Message,
    NewLeader,
    Notification,
    PeerState,
)

if TYPE_CHECKING:
    from zabd.cluster_sim.zab_checks import Incarnation


_ASSURANCES: Final = (Ack, AckEpoch, AckNewLeader, Aligned, FollowerInfo, LeaderInfo, NewLeader)
"""What only one may say whose disk works (D7)."""


class Audit(Protocol):
    """Runs the real recovery code on a copy of a member's disks."""

    def __call__(self, member: MemberId) -> RecoveredState | StorageError:
        """What a restart would load if the power failed now and nothing unsynced survived."""

    def into(self, sink: RecoverySink, member: MemberId) -> RecoveredState | StorageError:
        """As the call; the tree that a restart would make is in `sink`."""

    def after_some_crash(self, member: MemberId) -> RecoveredState | StorageError:
        """The same, but that chance decides what survives."""

    @property
    def due(self) -> bool:
        """Whether chance wants one at this acknowledgement."""


class DurabilityChecks:
    """What members vouch for and what their disks hold. Its methods raise InvariantError."""

    def __init__(self, voters: Sequence[MemberId]) -> None:
        self.quorum = Majority(voters)
        self.off: frozenset[str] = frozenset()
        """Checks that are switched off, to see what fires behind them (`Mutant.without`)."""
        self.durable: dict[MemberId, Durable] = {}
        self.damaged: dict[MemberId, None] = {}
        """Members whose disks were damaged, until they find nothing missing or are repaired."""
        self.rotten: dict[MemberId, None] = {}
        """Those that run on a disk which was damaged under them: they cannot be repaired before."""
        self.audit: Audit | None = None
        self._lost: list[Durable] = []
        self._vouched: dict[MemberId, LogPosition] = {}
        self._promised: dict[MemberId, tuple[Epoch, Epoch]] = {}
        self._named: dict[tuple[MemberId, Epoch], LogPosition] = {}
        self._failed: dict[MemberId, None] = {}  # those who know that a write or sync has failed
        self._closer: dict[MemberId, bool] = {}  # those to be looked at next time
        self._saved: dict[MemberId, Epochs] = {}  # the epochs that were durable last

    def fail(self, check: str, detail: str) -> None:
        """A check does not hold: raise InvariantError, unless that check is switched off."""
        if check not in self.off:
            raise InvariantError(check, detail)

    # --- disks -----------------------------------------------------------------------------------

    def watch_disks(self, member: MemberId, log: DiskImage, data: DiskImage) -> None:
        """Keep up what this member's devices hold; they may be one and the same."""
        self.durable[member] = DurableLog(member, log, data)

    def disks_lost(self, member: MemberId, log: DiskImage, data: DiskImage) -> None:
        """This member's disks were replaced: nobody expects it to remember anything."""
        # What it had acknowledged before may still be on its way, and counts: it was durable.
        self._lost.append(self.durable[member])
        self.watch_disks(member, log, data)
        self._forget(member)

    def disks_damaged(self, member: MemberId) -> None:
        """Something on this member's disks is not as it was written: it has all, or says so."""
        self.damaged[member] = None

    def disks_rot(self, member: MemberId) -> None:
        """The same, while the member runs: what it reads of it again, it has to notice."""
        self.disks_damaged(member)
        self.rotten[member] = None

    def disk_failed(self, member: MemberId) -> None:
        """This life of a member has been told that a write or a sync failed (D7)."""
        self._failed[member] = None

    def look_closer(self, member: MemberId) -> None:
        """What has happened to its log is rare: audit the next thing that rests on it."""
        self._closer[member] = True

    def _forget(self, member: MemberId) -> None:
        self.damaged.pop(member, None)
        self._vouched.pop(member, None)
        self._promised.pop(member, None)
        self._saved.pop(member, None)

    # --- a life begins, or ends ------------------------------------------------------------------

    def _starts(self, who: "Incarnation", found: RecoveredState) -> None:
        """A member has recovered this: is everything it ever vouched for still there?"""
        self._failed.pop(who.member, None)
        self.rotten.pop(who.member, None)
        if found.damaged:
            self._require_damage(who)
        else:
            self.damaged.pop(who.member, None)
        self._require_nothing_lost(who.member, found, f"{who} recovers")
        self.durable[who.member].adopt(found)

    def crashed(self, member: MemberId) -> None:
        """A life has ended: whatever the crash has left, a restart finds its way (D8, D10, D11)."""
        if self.audit is None or member in self.damaged:
            return
        found = self.audit.after_some_crash(member)
        if isinstance(found, StorageError):
            self.fail("D11", f"member {member} would not start again: {found}")
            return
        if found.damaged:
            self.fail("D11", f"member {member} would take its disk for damaged")
        self._require_nothing_lost(member, found, f"member {member} would recover")

    def _require_damage(self, who: "Incarnation") -> None:
        """It vouches only for what it has found; what it had acknowledged before counts."""
        if who.member not in self.damaged:
            self.fail("D11", f"{who} says that it is damaged, and nothing was")
        self._lost.append(self.durable[who.member])
        self.durable[who.member] = self.durable[who.member].fresh()
        self._forget(who.member)
        self.damaged[who.member] = None

    def _require_nothing_lost(self, member: MemberId, found: RecoveredState, told: str) -> None:
        accepted, current = self._promised.get(member, (0, 0))
        if found.accepted_epoch < accepted or found.current_epoch < current:
            self.fail(
                "D10",
                f"{told} epochs {found.accepted_epoch}/{found.current_epoch}, "
                f"after it had promised {accepted}/{current}",
            )
        history = History(found.delivered, found.tail)
        vouched = self._vouched.get(member, GENESIS)
        if vouched not in history:
            self.fail(
                "D8",
                f"{told} up to {history.last.zxid!r}, after it had acknowledged {vouched.zxid!r}",
            )

    # --- what it says ----------------------------------------------------------------------------

    def _loads(self, who: "Incarnation", *, always: bool = False) -> RecoveredState | None:
        """What a restart would load, if this is a moment to look; None if it is not."""
        if self.audit is None or who.member in self.damaged:
            return None
        if not (self._closer.pop(who.member, False) or always or self.audit.due):
            return None
        found = self.audit(who.member)
        if isinstance(found, StorageError):
            self.fail("D11", f"{who} would not start again: {found}")
            return None
        if found.damaged:
            self.fail("D11", f"{who} would take its own disk for damaged")
        return found

    def _assures(self, who: "Incarnation", message: Message) -> None:
        """Nobody says anything that rests on a disk of which it knows that it has failed (D7)."""
        if who.member in self._failed and isinstance(message, _ASSURANCES):
            self.fail("D7", f"{who} sends {message} after its disk has failed")

    def _require_own_share(
        self, who: "Incarnation", zxid: Zxid, acks: Mapping[MemberId, int]
    ) -> None:
        """A leader that commits counts itself only for what its own disk holds (D2)."""
        others = [member for member, acked in acks.items() if acked >= zxid]
        chain = who.history.chain_at(zxid)
        if chain is None or self.quorum.contains([m for m in others if m != who.member]):
            return
        if not self.durable[who.member].holds(LogPosition(zxid, chain)):
            self.fail("D2", f"{who} commits {zxid!r} with itself, where it is not yet durable")

    def _require_durable(self, who: "Incarnation", position: LogPosition, check: str) -> None:
        """Everything up to `position` would be there after a crash, or `check` has failed."""
        durable = self.durable[who.member]
        if not durable.holds(position):
            self.fail(check, f"{who} acks {position.zxid!r}, which a crash could still lose")
        if (file := durable.unreachable(position)) is not None:
            self.fail(
                "D9", f"{who} acks {position.zxid!r}, in {file}, whose name a crash could lose"
            )
        found = self._loads(who, always=check == "D4")
        if found is not None and position not in History(found.delivered, found.tail):
            # The bytes are there: it is recovery that drops them.
            self.fail("D8", f"{who} acks {position.zxid!r}, which a restart would not load")

    def _require_reported(self, who: "Incarnation", position: LogPosition) -> None:
        """What it reports is the end of what a restart would load (D5)."""
        if position != who.history.last or not self.durable[who.member].holds(position):
            self.fail(
                "D5", f"{who} reports {position.zxid!r}; its history is {who.history.last.zxid!r}"
            )
        if who.cutting:
            self.fail("D5", f"{who} reports {position.zxid!r} while its log is being cut")
        found = self._loads(who)
        if found is not None and History(found.delivered, found.tail).last != position:
            self.fail("D5", f"{who} reports {position.zxid!r}; a restart differs")

    def voting(self, who: "Incarnation", vote: Notification) -> None:
        """A vote for itself speaks of what a restart would load (D5)."""
        if vote.state is not PeerState.LOOKING or vote.leader != who.member:
            return
        durable = self.durable[who.member]
        current = durable.epochs().current
        if vote.zxid != who.history.last.zxid or vote.epoch != current:
            self.fail(
                "D5",
                f"{who} votes at {Zxid(vote.zxid)!r} of epoch {vote.epoch}; durable are "
                f"{who.history.last.zxid!r} and {current}",
            )
        self._require_reported(who, who.history.last)

    def _promise(self, who: "Incarnation", accepted: Epoch, current: Epoch) -> None:
        durable = self.durable[who.member].epochs()
        if durable.accepted < accepted:
            self.fail("D3", f"{who} promises epoch {accepted}, durable is {durable.accepted}")
        found = self._loads(who)
        if found is not None and found.accepted_epoch < accepted:
            self.fail(
                "D10", f"{who} promises {accepted}, a restart would load {found.accepted_epoch}"
            )
        before = self._promised.get(who.member, (0, 0))
        self._promised[who.member] = (max(before[0], accepted), max(before[1], current))

    def _vouch(self, who: "Incarnation", position: LogPosition) -> None:
        if position.zxid > self._vouched.get(who.member, GENESIS).zxid:
            self._vouched[who.member] = position

    def _goes_back(self, member: MemberId, position: LogPosition) -> None:
        """From now on a crash may leave this member's history before or after the cut."""
        if self._vouched.get(member, GENESIS).zxid > position.zxid:
            self._vouched[member] = position
        for key, named in list(self._named.items()):
            if key[0] == member and named.zxid > position.zxid:
                self._named[key] = position

    def _require_chosen(self, who: "Incarnation", position: LogPosition) -> None:
        """What a leader commits is durable on a quorum (D6)."""
        holders = [m for m, log in self.durable.items() if log.holds(position)]
        holders += [log.member for log in self._lost if log.holds(position)]
        if not self.quorum.contains(holders):
            self.fail("D6", f"{who} commits {position.zxid!r}, durable only on members {holders}")

    # --- what the disk tells ---------------------------------------------------------------------

    def _require_growth(self, member: MemberId) -> Epochs:
        """The epochs that have become durable are no less than those before (D10)."""
        epochs = self.durable[member].epochs()
        before = self._saved.get(member, Epochs(0, 0))
        self._saved[member] = epochs
        if member in self.damaged:
            return epochs  # what is salvaged may be less
        if epochs.accepted < before.accepted or epochs.current < before.current:
            self.fail(
                "D10",
                f"member {member} has epochs {epochs.accepted}/{epochs.current} durable "
                f"after {before.accepted}/{before.current}",
            )
        return epochs

    def _require_history_first(self, member: MemberId, current: Epoch) -> LogPosition | None:
        """The history that an epoch stands for is durable before the epoch is (D4)."""
        named = self._named.get((member, current))
        if named is not None and not self.durable[member].holds(named):
            self.fail("D4", f"member {member} has epoch {current} durable before {named.zxid!r}")
        return named
