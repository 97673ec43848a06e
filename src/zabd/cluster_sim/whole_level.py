"""The whole level: servers and clients as they are shipped, each process on a loop of its own.

It shares the core level's shapes, faults, phases and checks. What it adds is everything between the
replica and the outside: sockets, framing, drivers, timers, the client, its recipes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.core_member import CoreMember
from zabd.cluster_sim.core_process import CoreProcess
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.network import Host
from zabd.cluster_sim.replica_checks import ReplicaChecker
from zabd.cluster_sim.replica_member import sessions_of
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.cluster_sim.shape import NOTHING_FIXED, Shape
from zabd.cluster_sim.strategies import STRATEGIES
from zabd.cluster_sim.watched_peer import Watcher
from zabd.cluster_sim.whole_client import Program, Resource, programs
from zabd.cluster_sim.whole_member import WholeProcess, server_config
from zabd.model.ids import MemberId, SessionId
from zabd.server.config import ServerConfig
from zabd.zab import effects as fx

TURN_US: Final = 50  # a turn of a busy process; also what keeps a spinning one from stopping time


class WholeLevel(CoreLevel):
    """One run of servers with programs that use them."""

    name = "whole"
    process_class = WholeProcess  # type: ignore[assignment]  # what faults need, it has
    checker: ReplicaChecker
    turn_us = TURN_US
    tells_time = True

    def __init__(
        self,
        seed: int,
        shape: Shape | None = None,
        *,
        fixed: Mapping[str, Any] = NOTHING_FIXED,
        strategy: str = STRATEGIES[0],
    ) -> None:
        super().__init__(seed, shape, fixed=fixed, strategy=strategy)
        self.watcher = Watcher(self.checker)
        self.resource = Resource()
        self.accounts: dict[str, Resource] = {}
        self.charges: dict[str, str] = {}
        self.programs = self.make_programs()

    def make_checker(self) -> ReplicaChecker:
        """Who watches this run."""
        # A recipe may name one znode after another that is sequential: LockingQueue does.
        return ReplicaChecker(self.voters, names_tell=False)

    def propose_now(self, process: CoreProcess) -> None:
        """The programs ask."""

    def make_programs(self) -> list[Program]:
        """What uses the ensemble."""
        return programs(self)

    def users(self) -> list[Host]:
        """The machines of programs that live."""
        return [program.loop.stack.host for program in self.programs if program.alive]

    def sessions_of(self, host: Host) -> list[SessionId]:
        """The sessions of a program that are connected."""
        return sessions_of(host, self.members.values())

    def is_closed(self, session_id: SessionId) -> bool:
        """Whether a session is over."""
        return session_id in self.checker.closed

    def server_config(self, member: MemberId) -> ServerConfig:
        """How a member is configured."""
        shape = self.shape
        return server_config(
            member,
            self.voters,
            self.observers,
            log_disk=shape.log_disk,
            tick_ms=shape.tick_ms,
            init_limit=shape.init_limit,
            sync_limit=shape.sync_limit,
            session_timeout_ms_min=2 * shape.tick_ms,
            session_timeout_ms_max=20 * shape.tick_ms,
            snapshot_txns=shape.snapshot_every,
            segment_bytes=shape.segment_bytes,
        )

    @property
    def idle(self) -> bool:
        """Whether programs should end."""
        return self._idle

    def begin_work(self) -> None:
        """Start the programs, and let some of them die."""
        rng = self.schedule.stream("programs that die")
        for program in self.programs:
            program.start()
            if not rng.randrange(5) and program is not self.programs[0]:
                at_ms = rng.randrange(self.shape.faults_ms)
                self.schedule.after(at_ms * US_PER_MS, program.kill)

    def require_more(self, core: list[MemberId]) -> None:
        """Every program comes to its end, and the sessions of the dead are gone."""
        self._run_until(self.schedule.now_ms + 90 * self.shape.tick_ms)
        for program in self.programs:
            if program.alive and not program.finished:
                raise InvariantError("L2", f"program {program.name} does not come to its end")
        if self.checker.tree.sessions:
            raise InvariantError(
                "S8", f"sessions are left of nobody: {list(self.checker.tree.sessions)}"
            )
        self.checker.require_owned()
        self._require_agreement(core)

    def end(self) -> None:
        """Stop every process."""
        for member in self.members.values():
            if member.process is not None:
                member.process.die(power=True)
        for program in self.programs:
            program.kill()

    # --- what checks report ----------------------------------------------------------------------

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """A check made within a process must not be caught by the code under test."""
        try:
            yield
        except InvariantError as error:
            self.report(error)

    def note_effects(self, member: CoreMember, effects: list[fx.Effect]) -> None:
        """Count elections."""
        for effect in effects:
            if isinstance(effect, fx.Became):
                self.note_became(member, effect)

    def server_failed(self, process: WholeProcess, error: Exception) -> None:
        """A server has ended by itself: it may, if its disk was made to fail."""
        if not process.disturbed and process.member.id not in self.checker.rotten:
            self.report(InvariantError("X6", f"{process}: {error}"))
        self.trace.record(process.member.host.name, f"server failed: {error}")
        if process.member.process is process:  # type: ignore[comparison-overlap]
            self.schedule.after(0, lambda: self.crash(process.member, power=False))
