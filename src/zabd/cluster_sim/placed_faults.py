"""Faults with a place: next to what matters, and states from which a mistake is one step away.

Chance alone rarely cuts a leader off with one proposal that nobody else has, or makes three leaders
follow one another. Each kind here prepares such a state in a run that is otherwise like any other.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.fault_group import FaultGroup
from zabd.cluster_sim.network import Host
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.zab import effects as fx
from zabd.zab import events as ev
from zabd.zab.messages import PeerState

if TYPE_CHECKING:
    from zabd.cluster_sim.faults import Nemesis

TURNS: Final = (
    "Append",
    "PersistEpochs",
    "Truncate",
    "InstallSnapshot",
    "Deliver",
    "Became",
    "LeaderInfo",
    "AckEpoch",
    "NewLeader",
    "AckNewLeader",
    "UpToDate",
    "Ack",
    "Commit",
)
"""Effects, and messages sent, around which the order of things matters."""

_NEAR_EFFECTS: Final = 4
_NAMINGS: Final = 8


def turn_of(effect: object) -> str:
    """What an effect is called in `TURNS`."""
    told = effect.message if isinstance(effect, fx.Send) else effect
    return type(told).__name__


class PlacedFaults(FaultGroup):
    """What happens at a chosen place."""

    noted_later = frozenset({"crash at a turn"})

    def __init__(self, nemesis: "Nemesis") -> None:
        super().__init__(nemesis)
        self.kinds = {
            "crash at a turn": self._crash_at_a_turn,
            "lonely proposal": self._lonely_proposal,
            "forced succession": self._forced_succession,
        }

    def stop(self) -> None:
        """Nobody is about to crash."""
        for member in self.level.members.values():
            if member.process is not None:
                member.process.turn = None

    def _crash_at_a_turn(self) -> bool:
        """At most a few effects after the next one of a chosen kind."""
        victim = self.victim()
        if victim is None or victim.process is None or victim.process.turn is not None:
            return False
        near, power = self.rng.randrange(_NEAR_EFFECTS), bool(self.rng.getrandbits(1))
        victim.process.turn = (self.rng.choice(TURNS), near, power)
        return True

    def _lonely_proposal(self) -> bool:
        """A leader proposes one thing more, to a minority at most, and then may be gone."""
        level, leader = self.level, self.level.a_leader()
        if leader is None or leader.process is None:
            return False
        others = [host for host in self.nemesis.hosts() if host is not leader.host]
        company = self.rng.randrange(max(1, level.checker.quorum.size - 1))
        minority, rest = [leader.host, *others[:company]], others[company:]
        level.network.partition([minority, rest])
        level.propose_now(leader.process)
        tick_us = level.shape.tick_ms * US_PER_MS
        process, power = leader.process, bool(self.rng.getrandbits(1))

        def crash() -> None:
            if leader.process is process and not self.nemesis.over:
                level.crash(leader, power=power)

        if self.rng.getrandbits(1):
            level.schedule.after(self.rng.randrange(tick_us), crash)
        ticks = self.rng.choice((1, level.shape.sync_limit, 2 * level.shape.init_limit))
        level.schedule.after(tick_us * ticks, lambda: self._mend(minority, rest))
        return bool(rest)

    def _mend(self, one: list[Host], other: list[Host]) -> None:
        for a in one:
            for b in other:
                self.level.network.unblock(a, b)
                self.level.network.unblock(b, a)

    def _forced_succession(self) -> bool:
        """The leader goes, and chance names the next one to everybody who looks."""
        level, leader = self.level, self.level.a_leader()
        if leader is None or leader.process is None:
            return False
        process = leader.process
        if self.rng.getrandbits(1):
            process.enter(lambda: process.step(ev.Abdicate("another one is to lead")))
        else:
            level.crash(leader, power=False)
        named = self.rng.choice(level.voters)
        step_us = level.shape.tick_ms * US_PER_MS // _NAMINGS
        for number in range(1, _NAMINGS + 1):
            level.schedule.after(number * step_us, self._naming(named))
        return True

    def _naming(self, named: int) -> Callable[[], None]:
        def name() -> None:
            if self.nemesis.over:
                return
            for member in self.level.members.values():
                process = member.process
                if (
                    process is not None
                    and process.peer is not None
                    and process.peer.state is PeerState.LOOKING
                ):
                    process.enter(lambda process=process: process.name_leader(named))  # type: ignore[misc]

        return name
