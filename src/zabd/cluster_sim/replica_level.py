"""The core level proper: whole members without asyncio, and clients that compare what they hear."""

from zabd.cluster_sim.core_client import CoreClient
from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.replica_checks import ReplicaChecker
from zabd.cluster_sim.replica_member import ReplicaProcess
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.cluster_sim.shape import Shape
from zabd.model.ids import MemberId, format_session

WALL_MS = 1_700_000_000_000
"""Wall time at the beginning of every run: late in 2023."""


class WallClock:
    """One wall clock for all; what depends on it may be wrong, but never unsafe."""

    def __init__(self, level: "ReplicaLevel") -> None:
        self._level = level
        self.step_ms = 0

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return WALL_MS + self.step_ms + self._level.schedule.now_ms


class ReplicaLevel(CoreLevel):
    """One run of an ensemble of replicas with clients."""

    name = "core"
    process_class = ReplicaProcess
    checker: ReplicaChecker

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        super().__init__(seed, shape)
        self.wall_clock = WallClock(self)
        count = self.schedule.stream("clients").choice((1, 2, 4))
        self.clients = [CoreClient(self, f"c{number}") for number in range(1, count + 1)]

    def make_checker(self) -> ReplicaChecker:
        """Who watches this run, its clients included."""
        return ReplicaChecker(self.voters)

    @property
    def idle(self) -> bool:
        """Whether clients should ask for nothing more."""
        return self._idle

    def begin_work(self) -> None:
        """Let the clients work, and some of them die."""
        for client in self.clients:
            client.start()
        rng = self.schedule.stream("clients that die")
        for client in self.clients:
            if not rng.randrange(4) and client is not self.clients[0]:
                at_ms = rng.randrange(self.shape.faults_ms)
                self.schedule.after(at_ms * US_PER_MS, client.kill)

    def require_more(self, core: list[MemberId]) -> None:
        """Nothing is left unanswered, and the sessions of the dead are gone with what they had."""
        self._run_until(self.schedule.now_ms + 30 * self.shape.tick_ms)
        for client in self.clients:
            if client.alive and not client.connected:
                raise InvariantError("L2", f"client {client.name} is not connected")
            if client.alive and client.waiting:
                raise InvariantError(
                    "L2", f"client {client.name} waits for {client.waiting} answers"
                )
            if not client.alive and client.session_id in self.checker.tree.sessions:
                raise InvariantError(
                    "S8",
                    f"{format_session(client.session_id)} of the dead client {client.name} is "
                    "still open",
                )
        self.checker.require_owned()
        self._require_agreement(core)
