"""The core level: a whole ensemble of bare peers and real storages, without asyncio.

A run has two phases (TigerBeetle's): first faults of the kinds that the seed chose, while safety is
checked at every step; then the faults stop, a quorum is made whole, and it has to commit
something within a bound and to agree.

One seed gives one run: everything is drawn from the schedule's streams, and nothing else moves it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from zabd.cluster_sim.audit import Auditor
from zabd.cluster_sim.connections import Mark
from zabd.cluster_sim.core_member import CoreMember
from zabd.cluster_sim.core_process import CoreProcess
from zabd.cluster_sim.disk_image import Losses, Survival
from zabd.cluster_sim.faults import Nemesis
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.network import Host, Network
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.cluster_sim.shape import NOTHING_FIXED, Shape, draw_shape
from zabd.cluster_sim.strategies import STRATEGIES, apply_strategy, make_schedule
from zabd.cluster_sim.trace import Trace, describe_bytes
from zabd.cluster_sim.vigil import Vigil
from zabd.cluster_sim.zab_checks import ZabChecker
from zabd.model.errors import StorageError
from zabd.model.ids import MemberId, SessionId
from zabd.model.zxid import COUNTER_MAX
from zabd.storage.config import OnDamage, StorageConfig
from zabd.storage.storage import Storage
from zabd.zab import broadcast
from zabd.zab import effects as fx
from zabd.zab.config import COUNTER_MARGIN, EnsembleConfig
from zabd.zab.log import TAIL_BYTES_MAX, LogTail
from zabd.zab.messages import PeerState, Propose
from zabd.zab.peer import Peer

# After the faults stop, an election may fail a few times before it succeeds (a slow disk, a member
# that still hangs in an old attempt), and each attempt may last initLimit ticks.
ATTEMPTS: Final = 10

EVENTS_MAX: Final = 400_000
"""A run that handles more than this does not end by itself: a storm, which is a failure (L5)."""


@dataclass(slots=True)
class Outcome:
    """What one run came to. `failure` is None when every check held."""

    seed: int
    level: str
    digest: str
    events: int
    virtual_ms: int
    committed: int
    elections: int
    faults: dict[str, int]
    failure: InvariantError | None = None
    tail: list[str] = field(default_factory=list)
    shape: str = ""
    strategy: str = STRATEGIES[0]
    cpu_s: float = field(default=0.0, compare=False)
    coverage: dict[str, dict[str, int]] | None = field(default=None, compare=False)


class CoreLevel:
    """One run. `run` carries it through; `peer_class` and `storage_class` may be mutants."""

    name = "zab"
    tells_time = False  # whether anything here asks a wall clock
    process_class: type[CoreProcess] = CoreProcess
    peer_class: type[Peer] = Peer
    storage_class: type[Storage] = Storage

    def __init__(
        self,
        seed: int,
        shape: Shape | None = None,
        *,
        fixed: Mapping[str, Any] = NOTHING_FIXED,
        strategy: str = STRATEGIES[0],
    ) -> None:
        """Take `shape`, or draw one from the seed in which what `fixed` names is as it says."""
        self.strategy = strategy
        self.schedule = schedule = make_schedule(strategy, seed)
        drawn = apply_strategy(strategy, draw_shape(self.schedule.stream))
        self.shape = shape or replace(drawn, **fixed)
        self.trace = Trace(lambda: schedule.now_us)  # what outlives the run still tells it
        self.network = Network(
            self.schedule, self.trace, latency=self.shape.latency, describe=describe_message
        )
        self.network.datagram_faults = self.shape.datagrams
        self.voters = tuple(range(1, self.shape.voters + 1))
        observers = range(self.shape.voters + 1, self.shape.voters + self.shape.observers + 1)
        self.observers = tuple(observers)
        self.checker = self.make_checker()
        self.checker.audit = Auditor(self)
        self.checker.clock_us = lambda: self.schedule.now_us
        self.events = 0
        self.elections = 0
        self.disk_rng = self.schedule.stream("disks")
        self.crash_rng = self.schedule.stream("crashes")
        self._work_rng = self.schedule.stream("workload")
        self._lives = 0
        self._tokens = 0
        self._submitted = 0
        self._faulty = True
        self._core: list[MemberId] = []  # who goes on when the faults have stopped
        self.violation: InvariantError | None = None
        self._idle = False
        self.members: dict[MemberId, CoreMember] = {
            member: CoreMember(self, member, self.network.add_host(f"m{member}"))
            for member in (*self.voters, *self.observers)
        }
        self.nemesis = Nemesis(self)

    def make_checker(self) -> ZabChecker:
        """Who watches this run."""
        return ZabChecker(self.voters)

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Both phases. Never raises InvariantError: it becomes the outcome's failure."""
        failure = None
        try:
            with short_tails(self.shape.tail_batches):
                self._run()
        except InvariantError as error:
            failure = error
            self.trace.record("checker", str(error))
        self.end()
        return Outcome(
            seed=self.schedule.seed,
            level=self.name,
            digest=self.trace.digest(),
            events=self.events or self.trace.recorded,
            virtual_ms=self.schedule.now_ms,
            committed=len(self.checker.ledger),
            elections=self.elections,
            faults=self.nemesis.happened,
            failure=failure,
            tail=self.trace.tail(60) if failure else [],
            shape=str(self.shape),
            strategy=self.strategy,
        )

    def _run(self) -> None:
        for member in self.members.values():
            member.start()
        self.schedule.open_window(self.shape.tick_ms)
        self.begin_work()
        self.nemesis.begin()
        Vigil(self).begin()
        self._run_until(self.shape.faults_ms)
        self._require_progress()

    def _run_until(self, at_ms: int) -> None:
        schedule, end_us = self.schedule, at_ms * US_PER_MS
        while schedule.step(end_us):
            if self.violation is not None:
                raise self.violation
            if self.trace.recorded > EVENTS_MAX:
                raise InvariantError("L5", f"{EVENTS_MAX} events by {schedule.now_ms} ms")
        schedule.now_us = max(schedule.now_us, end_us)

    def report(self, error: InvariantError) -> None:
        """End the run by this failure once the step in hand is done; the first one counts."""
        if self.violation is None:
            self.violation = error

    def end(self) -> None:
        """Let go of what the run needed."""

    def forget(self) -> None:
        """Let go of everything, also for those who still hold on to this run.

        At the whole level these are coroutines that never end (see `virtual_loop`): what they can
        reach stays for good, so the largest things are emptied.
        """
        self.trace.forget()
        self.schedule.forget()
        for member in self.members.values():
            for image in member.images:
                image.wipe()
        vars(self.checker).clear()
        vars(self).clear()

    # --- liveness --------------------------------------------------------------------------------

    def _require_progress(self) -> None:
        """Mend everything, start a quorum (and whoever chance adds), and demand a commit."""
        self.nemesis.stop()
        self._faulty = False
        for member_id in self.checker.rotten:
            self.members[member_id].crash(power=False)  # it is repaired when it starts again
        rng = self.schedule.stream("core")
        core = self._draw_core(rng)
        core += [member for member in self.members if member not in core and rng.getrandbits(1)]
        self._core = core
        self.trace.record("faults", f"stop; {sorted(core)} go on")
        for member_id, member in self.members.items():
            if member_id in core:
                self.schedule.after(rng.randrange(1, 50_000), member.start)
            else:
                self._stop_for_good(member)
        shape = self.shape
        bound_ms = ATTEMPTS * (shape.init_limit + shape.sync_limit) * shape.tick_ms
        begun_ms, committed = self.schedule.now_ms, len(self.checker.ledger)
        led, slice_ms = self.checker.leaderships, shape.tick_ms
        while len(self.checker.ledger) <= committed + 2 or not self._all_serving(core):
            if self.schedule.now_ms > begun_ms + bound_ms:
                raise self._no_progress(core, committed, led, bound_ms)
            self._run_until(self.schedule.now_ms + slice_ms)
        self.end_work()
        self._require_agreement(core)
        self.require_more(core)

    def _no_progress(
        self, core: list[MemberId], before: int, led_before: int, bound_ms: int
    ) -> InvariantError:
        """L1 if nothing is served, L5 if that is because one attempt to lead follows another.

        L6 if only some do not come in step with the others.
        """
        behind = [member for member in sorted(core) if not self._all_serving([member])]
        if len(self.checker.ledger) > before + 2 and len(behind) < len(core):
            return InvariantError("L6", f"members {behind} do not come in step in {bound_ms} ms")
        attempts = self.checker.leaderships - led_before
        if attempts >= ATTEMPTS:
            return InvariantError("L5", f"{attempts} attempts to lead, and nobody serves")
        return InvariantError("L1", f"members {sorted(core)} have not served within {bound_ms} ms")

    def _draw_core(self, rng: Random) -> list[MemberId]:
        """A quorum that must be able to go on: blank members do not vote once there is a cluster.

        While a founding is under way, every voter is needed (decision 6).
        """
        settled = [member for member in self.voters if self.members[member].remembers]
        if len(settled) < self.checker.quorum.size:
            return list(self.voters)
        return rng.sample(settled, self.checker.quorum.size)

    def require_more(self, core: list[MemberId]) -> None:
        """What else must hold at the end of a run."""

    def _stop_for_good(self, member: CoreMember) -> None:
        member.crash(power=True)

    def _all_serving(self, core: list[MemberId]) -> bool:
        processes = [self.members[member].process for member in core]
        return all(p is not None and p.peer is not None and p.peer.serving for p in processes)

    def _require_agreement(self, core: list[MemberId]) -> None:
        """All come to where the ledger ends now, within a few ticks."""
        shape, end = self.shape, len(self.checker.ledger)
        end_ms = self.schedule.now_ms + 2 * shape.sync_limit * shape.tick_ms
        while (behind := self._behind(core, end)) and self.schedule.now_ms < end_ms:
            self._run_until(self.schedule.now_ms + shape.tick_ms)
        if behind:
            raise InvariantError("L3", behind)

    def _behind(self, core: list[MemberId], end: int) -> str:
        for member in core:
            process = self.members[member].process
            assert process is not None, "nothing crashes once the faults have stopped"
            assert process.seen is not None, "it has served"
            if process.seen.position < end and not process.seen.unjudged:
                return f"{process} stands at batch {process.seen.position} of {end}"
        return ""

    # --- the workload ----------------------------------------------------------------------------

    def begin_work(self) -> None:
        """Start what asks the ensemble to do something."""
        self._submit_next()

    def end_work(self) -> None:
        """Ask nothing more."""
        self._idle = True

    def _submit_next(self) -> None:
        wait_ms = self._work_rng.expovariate(1 / self.shape.submit_every_ms)
        self.schedule.after(int(wait_ms * US_PER_MS) + 1, self._submit)

    def _submit(self) -> None:
        if self._idle:
            return
        rng = self._work_rng
        for member in self.members.values():
            process = member.process
            if process is not None and process.peer is not None and process.peer.can_submit:
                count = min(rng.choice(self.shape.batch_counts), broadcast.BATCH_COUNT_MAX)
                self._submitted += 1
                payload = b"%d " % self._submitted
                payload += rng.randbytes(rng.randrange(self.shape.payload_bytes_max))
                process.enter(lambda p=process, n=count, b=payload: p.submit(n, b))  # type: ignore[misc]
                if not rng.randrange(8):
                    self._tokens += 1
                    process.enter(lambda p=process, t=self._tokens: p.confirm(t))  # type: ignore[misc]
        self._submit_next()

    # --- what members need of the run ------------------------------------------------------------

    @property
    def calm(self) -> bool:
        """Whether faults have stopped."""
        return not self._faulty

    def next_life(self) -> int:
        """A number for a life that begins."""
        self._lives += 1
        return self._lives

    def others(self, member: MemberId) -> list[MemberId]:
        """The voters besides this member."""
        return [voter for voter in self.voters if voter != member]

    def ensemble_config(self, member: MemberId) -> EnsembleConfig:
        """What a member knows of its ensemble."""
        shape = self.shape
        handover = shape.counter_handover
        return EnsembleConfig(
            me=member,
            voters=self.voters,
            observers=self.observers,
            tick_ms=shape.tick_ms,
            init_limit=shape.init_limit,
            sync_limit=shape.sync_limit,
            counter_handover=COUNTER_MAX - COUNTER_MARGIN if handover is None else handover,
        )

    def propose_now(self, process: CoreProcess) -> None:
        """Let a leader propose something at once, where the run itself asks for proposals."""
        process.enter(lambda: process.submit(1, b"now"))

    def storage_config(self, member: MemberId) -> StorageConfig:
        """How the storage of a member is configured."""
        return StorageConfig(
            segment_bytes=self.shape.segment_bytes,
            space_floor_bytes=0,
            on_damage=OnDamage.REPAIR if self.others(member) else OnDamage.REFUSE,
        )

    def users(self) -> list[Host]:
        """The machines of those who use the ensemble; bare peers have no clients."""
        return []

    def sessions_of(self, _host: Host) -> list[SessionId]:
        """The sessions of a user's machine that are connected."""
        return []

    def is_closed(self, _session_id: SessionId) -> bool:
        """Whether a session is over."""
        return False

    def crash(self, member: CoreMember, *, power: bool, survival: Survival | None = None) -> Losses:
        """A member goes down, and comes back after a while if the faults have not stopped then.

        Without `survival`, chance decides what a power cut leaves of what was not synced.
        """
        if member.process is None:
            return Losses()
        losses = member.crash(power=power, survival=survival)
        try:
            self.checker.crashed(member.id)
        except InvariantError as error:
            self.report(error)  # a crash may fall into the midst of the code under test
        down_ms = self.crash_rng.random() ** 2 * self.shape.down_ms_max
        self.schedule.after(int(down_ms * US_PER_MS) + 1, lambda: self._restart(member))
        return losses

    def lose_disk(self, member: CoreMember) -> bool:
        """A member's disks are replaced by empty ones, unless that were one too many."""
        if not self._can_spare(member):
            return False
        self.crash(member, power=True)
        member.lose_disks()
        return True

    def may_damage(self, member: CoreMember) -> bool:
        """Whether the others have all that they had, so that no damage here is one too many."""
        return member.id not in self.checker.damaged and self._can_spare(member)

    def damage_disk(self, member: CoreMember, kind: str, rng: Random) -> bool:
        """A member loses its power, and its disks come back damaged (damage.DAMAGES), or not."""
        self.crash(member, power=True)
        done = member.damage_disks(kind, rng)
        self.trace.record(member.host.name, f"damaged: {done or 'nothing'}")
        return bool(done)

    def rot_disk(self, member: CoreMember, rng: Random) -> bool:
        """The same while the member runs; what it reads again it must not believe unseen."""
        # Not while it recovers: what has been read of a file by then is what the restart found.
        if not self.may_damage(member) or member.process is None or member.process.peer is None:
            return False
        done = member.rot_disks(rng)
        self.trace.record(member.host.name, f"rots: {done or 'nothing'}")
        return bool(done)

    def _can_spare(self, member: CoreMember) -> bool:
        """Whether a quorum of the others belongs to the cluster, and has all that it had."""
        others = [self.members[m] for m in self.voters if self.members[m] is not member]
        return sum(other.remembers for other in others) >= self.checker.quorum.size

    def _restart(self, member: CoreMember) -> None:
        # A disk may say only after the faults have stopped that it has failed.
        if self._faulty or member.id in self._core:
            member.start()

    def storage_failed(self, member: CoreMember, error: StorageError) -> None:
        """The storage has given up (S9): the process ends, as the server's does."""
        excused = member.process is not None and member.process.disturbed
        if not excused and member.id not in self.checker.rotten:
            raise InvariantError("X6", f"member {member.id}: {error}")
        self.trace.record(member.host.name, f"storage failed: {error}")
        self.crash(member, power=False)

    def fault_happened(self, kind: str) -> None:
        """A prepared fault has gone off."""
        self.nemesis.note(kind)

    def note_became(self, _member: CoreMember, news: fx.Became) -> None:
        """Count elections."""
        if news.state is PeerState.LEADING and news.serving:
            self.elections += 1

    def a_leader(self) -> CoreMember | None:
        """The first member that leads, if one does."""
        for member in self.members.values():
            process = member.process
            if (
                process is not None
                and process.peer is not None
                and process.peer.state is PeerState.LEADING
            ):
                return member
        return None


@contextmanager
def short_tails(batches: int) -> Iterator[None]:
    """Let peers keep only so many batches in memory, so that the disk has to serve the rest."""
    before = LogTail.trim.__defaults__
    LogTail.trim.__defaults__ = (TAIL_BYTES_MAX, batches)
    try:
        yield
    finally:
        LogTail.trim.__defaults__ = before


def describe_message(payload: object) -> str:
    """A message as the trace names it: equal messages give equal lines."""
    if isinstance(payload, bytes):  # all there is at the whole level
        return describe_bytes(payload)
    if isinstance(payload, Propose):
        return f"Propose {int(payload.first):x}+{payload.count} {payload.record[44:52].hex()}"
    if isinstance(payload, Mark):
        return payload.value
    return repr(payload)
