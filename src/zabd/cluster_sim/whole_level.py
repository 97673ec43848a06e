"""The whole level: servers and clients as they are shipped, each process on a loop of its own.

It shares the core level's shapes, faults, phases and checks. What it adds is everything between the
replica and the outside: sockets, framing, drivers, timers, the client, its recipes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.core_member import CoreMember
from zabd.cluster_sim.core_process import CoreProcess
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.network import Host
from zabd.cluster_sim.recipe_checks import RecipeChecks
from zabd.cluster_sim.replica_checks import ReplicaChecker
from zabd.cluster_sim.replica_member import sessions_of
from zabd.cluster_sim.resource import Resource
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.cluster_sim.shape import NOTHING_FIXED, Shape
from zabd.cluster_sim.strategies import STRATEGIES
from zabd.cluster_sim.watched_peer import Watcher
from zabd.cluster_sim.whole_client import Program, programs
from zabd.cluster_sim.whole_member import WholeProcess, server_config
from zabd.model.ids import MemberId, SessionId
from zabd.replica import Replica
from zabd.replica.connection import Connection
from zabd.server.config import ServerConfig
from zabd.zab import effects as fx

PAUSE_EVERY_TICKS: Final = 30

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
        self.programs = self.make_programs()
        self.lives: list[WholeProcess] = []

    def make_checker(self) -> ReplicaChecker:
        """Who watches this run."""
        # A recipe may name one znode after another that is sequential: LockingQueue does.
        return ReplicaChecker(
            self.voters,
            lambda: self.schedule.now_us,
            tick_ms=self.shape.tick_ms,
            sync_limit=self.shape.sync_limit,
            names_tell=False,
        )

    def propose_now(self, process: CoreProcess) -> None:
        """The programs ask."""

    def make_programs(self) -> list[Program]:
        """What uses the ensemble; of these it is known how they use it, so recipes are checked."""
        checker = self.checker
        checker.recipes = RecipeChecks(checker.tree, checker.fail, self._watchers)
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

    def _watchers(self, path: str) -> Iterator[SessionId]:
        for member in self.members.values():
            replica: Replica | None = member.process.replica if member.process else None  # type: ignore[attr-defined]
            if replica is not None:
                watches = replica.clients.watches._by_path  # noqa: SLF001 - all there are
                for watcher in watches.get(path, ()):
                    assert isinstance(watcher, Connection), "only connections are registered"
                    yield watcher.session_id

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
        self._pause_next(self.schedule.stream("programs that stand still"))

    def _pause_next(self, rng: Random) -> None:
        """Now and then a program is stopped, often for longer than its session lives."""
        wait_ms = rng.expovariate(1 / (PAUSE_EVERY_TICKS * self.shape.tick_ms))
        self.schedule.after(int(wait_ms * US_PER_MS) + 1, lambda: self._pause(rng))

    def _pause(self, rng: Random) -> None:
        if self._idle:
            return
        loop = rng.choice(self.programs).loop
        if loop.alive and not loop.paused:
            loop.pause()
            ticks = rng.choice((2, 8, 16)) * rng.random()
            self.schedule.after(int(ticks * self.shape.tick_ms * US_PER_MS) + 1, loop.resume)
        self._pause_next(rng)

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

    def forget(self) -> None:
        """Let go of everything; of each life's server too, which coroutines still hold."""
        lives = self.lives
        super().forget()
        for life in lives:
            life.forget()

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
