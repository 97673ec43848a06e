"""Exhaustive search: every schedule of a small ensemble within bounds, shortest first.

Where a seed is one schedule out of very many, this goes through all of them, breadth first: every
order of deliveries and disk completions, every crash with everything it may leave behind, every
election. The peers are those of production; states that cannot be told apart are visited once.
What it finds broken, it tells as the shortest schedule that leads there. What it does not find is
not there, within the bounds and in the world of `search_world`.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.search_world import Action, Bounds, State, World
from zabd.model.ids import MemberId
from zabd.model.zxid import Zxid
from zabd.zab import effects as fx
from zabd.zab.log import Batch, LogPosition
from zabd.zab.messages import Propose

STATES_MAX: Final = 1_000_000
"""About a gigabyte of memory."""

_PROGRESS_EVERY: Final = 2_000  # states between two words of progress


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is."""

    states: int
    frontier: int  # states that were reached and not gone on from
    depth: int
    cpu_s: float

    @property
    def rate(self) -> float:
        """States a second of CPU."""
        return self.states / max(self.cpu_s, 0.001)


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to. `violation` is None if no check failed."""

    bounds: Bounds
    complete: bool  # every schedule within the bounds was gone through
    progress: Progress
    transitions: int
    violation: InvariantError | None = None
    schedule: tuple[str, ...] = ()

    def as_object(self) -> dict[str, Any]:
        """What JSON can hold."""
        failure = self.violation
        return {
            "bounds": self.bounds._asdict(),
            "complete": self.complete,
            "states": self.progress.states,
            "transitions": self.transitions,
            "frontier": self.progress.frontier,
            "depth": self.progress.depth,
            "cpu_s": round(self.progress.cpu_s, 2),
            "violation": None
            if failure is None
            else {"check": failure.id, "detail": failure.detail},
            "schedule": list(self.schedule),
        }


def search(
    bounds: Bounds = Bounds(),  # noqa: B008 - it cannot be changed
    *,
    states_max: int = STATES_MAX,
    off: frozenset[str] = frozenset(),
    tell: Callable[[Progress], object] = lambda _progress: None,
) -> Found:
    """Go through all schedules within `bounds`, from an established leader on.

    Ends with the first check that fails (of those that are not `off`), when everything has been
    gone through, or when `states_max` states are known. `tell` hears how it goes.
    """
    return _Search(World(bounds, off), states_max, tell).run()


class _Search:
    def __init__(self, world: World, states_max: int, tell: Callable[[Progress], object]) -> None:
        self._world = world
        self._states_max = states_max
        self._tell = tell
        self._begun_s = time.process_time()
        self._came_from: dict[State, tuple[State, Action] | None] = {}
        self._waiting: deque[tuple[State, int]] = deque()
        self._transitions = 0
        self._depth = 0
        self._broken: tuple[State, Action]

    def run(self) -> Found:
        """Breadth first: the first schedule that breaks something is one of the shortest."""
        try:
            first = self._establish()
        except InvariantError as error:
            return self._end(violation=error, schedule=self._tell_schedule())
        self._came_from = {first: None}
        self._waiting.append((first, 0))
        while self._waiting and len(self._came_from) < self._states_max:
            state, self._depth = self._waiting.popleft()
            for action in self._world.actions(state):
                try:
                    self._reach(state, action, self._world.do(state, action))
                except InvariantError as error:
                    self._broken = (state, action)
                    return self._end(violation=error, schedule=self._tell_schedule())
        return self._end()

    def _establish(self) -> State:
        """Where all schedules begin; whoever breaks a check on the way there is found too."""
        state = self._world.begin()
        self._came_from[state] = None
        prelude = self._world.prelude(state)
        action = next(prelude, None)
        while action is not None:
            self._broken = (state, action)
            before, state = state, self._world.do(state, action)
            self._came_from[state] = (before, action)
            try:
                action = prelude.send(state)
            except StopIteration:
                action = None
        return state

    def _reach(self, state: State, action: Action, reached: State) -> None:
        self._transitions += 1
        if reached in self._came_from:
            return
        self._came_from[reached] = (state, action)
        self._waiting.append((reached, self._depth + 1))
        if not len(self._came_from) % _PROGRESS_EVERY:
            self._tell(self._progress())

    def _progress(self) -> Progress:
        cpu_s = time.process_time() - self._begun_s
        return Progress(len(self._came_from), len(self._waiting), self._depth, cpu_s)

    def _end(
        self, violation: InvariantError | None = None, schedule: tuple[str, ...] = ()
    ) -> Found:
        complete = violation is None and not self._waiting
        return Found(
            self._world.bounds, complete, self._progress(), self._transitions, violation, schedule
        )

    # --- the schedule that was found --------------------------------------------------------------

    def _tell_schedule(self) -> tuple[str, ...]:
        steps = [self._broken]
        while (came_from := self._came_from[steps[-1][0]]) is not None:
            steps.append(came_from)
        return tuple(
            line
            for number, step in enumerate(reversed(steps), 1)
            for line in _tell_step(self._world, number, *step)
        )


def _tell_step(world: World, number: int, state: State, action: Action) -> Iterator[str]:
    """One line for what happens, and one for each thing worth knowing that comes of it."""
    yield f"{number:3}. {_tell_action(world, state, action)}"
    try:
        reached = world.do(state, action)
    except InvariantError as error:
        yield f"     {error}"
        return
    for member in world.voters:
        before, after = _tell_member(world, state, member), _tell_member(world, reached, member)
        if before != after:
            yield f"     member {member}: {after}"


def _tell_member(world: World, state: State, member: MemberId) -> str:
    peer = world.peer(state, member)
    if peer is None:
        return "down"
    told = f"{peer.state.name.lower()}, {peer.phase.name.lower()}, epoch {peer.epoch}"
    if peer.state.name == "FOLLOWING":
        told += f" of {peer.leader}"
    return told + (f", delivered {peer.delivered_zxid!r}" if peer.delivered_zxid else "")


def _tell_action(world: World, state: State, action: Action) -> str:
    match action:
        case Action("deliver", member, link_id):
            link = next(link for link in state.links if link.id == link_id)
            sender = link.learner if member == link.leader else link.leader
            queue = link.up if member == link.leader else link.down
            return f"{sender} -> {member}: {_tell_message(world.message(queue[0]))}"
        case Action("lose", member, link_id):
            link = next(link for link in state.links if link.id == link_id)
            other = link.learner if member == link.leader else link.leader
            return f"member {member} finds its connection with {other} broken"
        case Action("persist", member, lane):
            request = world.request(state.disks[2 * member - 2 + lane][0])
            return f"disk of {member}: {_tell_request(request)} is durable"
        case Action("crash", member, kept, also):
            left = len(state.disks[2 * member - 2]) + len(state.disks[2 * member - 1])
            told = f", and {kept + also} of {left} disk requests under way survive" if left else ""
            return f"member {member} crashes{told}"
        case Action("submit", member):
            return f"a client gives leader {member} a transaction"
        case Action("elect", member):
            return f"member {member} believes that it is elected"
        case Action("follow", member, other):
            return f"member {member} decides to follow {other}, and dials"
        case Action("give up", member):
            return f"leader {member}, whom nobody follows, gives up"
        case Action("cut", _, link_id):
            link = next(link for link in state.links if link.id == link_id)
            return f"the connection of {link.learner} with leader {link.leader} breaks"
        case _:
            return f"member {action.member} restarts"


def _tell_message(message: object) -> str:
    if isinstance(message, Propose):
        return f"Propose({Batch.of(message.record).last!r})"
    fields = [
        f"{name}={_tell_value(getattr(message, name))}"
        for name in type(message).__dataclass_fields__  # type: ignore[attr-defined]  # they all are
        if name not in {"format", "cluster_id", "standing", "observer"}
    ]
    return f"{type(message).__name__}({', '.join(fields)})"


def _tell_value(value: object) -> str:
    return repr(value.zxid if isinstance(value, LogPosition) else value)


def _tell_request(request: fx.Append | fx.Truncate | fx.PersistEpochs) -> str:
    match request:
        case fx.Append(_, record):
            return f"record {Batch.of(record).last!r}"
        case fx.Truncate(_, position):
            return f"the cut back to {Zxid(position.zxid)!r}"
        case fx.PersistEpochs(_, accepted, current):
            return f"accepted epoch {accepted}, current epoch {current}"
