"""The core level proper: whole members without asyncio, and clients that compare what they hear."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from zabd.cluster_sim.client_history import ClientHistory
from zabd.cluster_sim.connections import Pipe
from zabd.cluster_sim.core_client import CoreClient
from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.core_process import CoreProcess
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.network import Host
from zabd.cluster_sim.replica_checks import ReplicaChecker
from zabd.cluster_sim.replica_member import ReplicaProcess, sessions_of
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.cluster_sim.shape import NOTHING_FIXED, Shape
from zabd.cluster_sim.strategies import STRATEGIES
from zabd.model.ids import ConnectionId, MemberId, SessionId, format_session

RESTORE_EVERY = 3
RESTORES_MAX = 12
"""Every third snapshot is followed by a restoration, up to a dozen in a run: a few ms each."""


class ReplicaLevel(CoreLevel):
    """One run of an ensemble of replicas with clients."""

    name = "core"
    process_class = ReplicaProcess
    tells_time = True
    checker: ReplicaChecker

    def __init__(
        self,
        seed: int,
        shape: Shape | None = None,
        *,
        fixed: Mapping[str, Any] = NOTHING_FIXED,
        strategy: str = STRATEGIES[0],
    ) -> None:
        super().__init__(seed, shape, fixed=fixed, strategy=strategy)
        self.restore_rng = self.schedule.stream("restores")
        self._restores_left = RESTORES_MAX
        self.history = ClientHistory()
        self.marks: dict[Pipe, deque[int]] = {}  # of each message under way: see `ReplicaProcess`
        self.greetings: dict[ConnectionId, int] = {}  # what a client has seen that greets there
        count = self.schedule.stream("clients").choice((1, 2, 4))
        self.clients = [CoreClient(self, f"c{number}") for number in range(1, count + 1)]

    def users(self) -> list[Host]:
        """The machines of clients that live."""
        return [client.host for client in self.clients if client.alive]

    def sessions_of(self, host: Host) -> list[SessionId]:
        """Its client's session, if it has one now."""
        return sessions_of(host, self.members.values())

    def is_closed(self, session_id: SessionId) -> bool:
        """Whether a session is over."""
        return session_id in self.checker.closed

    def make_checker(self) -> ReplicaChecker:
        """Who watches this run, its clients included."""
        return ReplicaChecker(
            self.voters,
            lambda: self.schedule.now_us,
            tick_ms=self.shape.tick_ms,
            sync_limit=self.shape.sync_limit,
        )

    def restores_now(self) -> bool:
        """Whether a tree should be made again now, to see whether that gives the same (R2)."""
        if not self._restores_left or self.restore_rng.randrange(RESTORE_EVERY):
            return False
        self._restores_left -= 1
        return True

    def propose_now(self, process: CoreProcess) -> None:
        """The clients ask, and always have something in flight."""

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
        # A client whose random choice is a dead machine waits for most of its session's time.
        end_ms = self.schedule.now_ms + 400 * self.shape.tick_ms
        while (unsettled := self._unsettled()) and self.schedule.now_ms < end_ms:
            self._run_until(self.schedule.now_ms + self.shape.tick_ms)
        if unsettled:
            raise unsettled
        self.checker.require_owned()
        self._require_agreement(core)
        if "C1" not in self.checker.off:
            self.history.judge(self.checker.txns)

    def _unsettled(self) -> InvariantError | None:
        for client in self.clients:
            if client.alive and not client.connected:
                return InvariantError("L2", f"client {client.name} is not connected")
            if client.alive and client.waiting:
                return InvariantError("L2", f"{client.name} waits for {client.waiting} answers")
        owned = {client.session_id for client in self.clients if client.alive}
        # Of clients that died, and those whose opening nobody has heard of.
        for session_id in self.checker.tree.sessions:
            if session_id not in owned:
                return InvariantError("S8", f"{format_session(session_id)} of nobody is open")
        return None
