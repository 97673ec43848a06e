"""What a run has been through: states of peers, transitions, messages, and checks that were made.

Gathered from outside, by wrapping methods while it lasts, and only when asked for: other runs pay
nothing. A check counts as made when the method that makes it has run; how often it could have
failed there is not told.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import CodeType, FunctionType
from typing import Any, Final

from zabd.cluster_sim.fault_kinds import FAULT_KINDS
from zabd.cluster_sim.invariants import INVARIANTS
from zabd.zab import events as ev
from zabd.zab import messages
from zabd.zab.effects import Phase
from zabd.zab.messages import PeerState
from zabd.zab.peer import TRANSITIONS, Peer

KINDS: Final = ("states", "transitions", "messages", "faults", "checks")

_LEARNING: Final = (Phase.DISCOVERY, Phase.SYNCHRONISATION, Phase.BROADCAST)
_NOT_FOR_PEERS: Final = {"Notification", "SnapshotChunk", "Carried"}  # other channels, and hosts


def _known() -> dict[str, tuple[str, ...]]:
    moving = (PeerState.FOLLOWING, PeerState.LEADING, PeerState.OBSERVING)
    names = {"FORMAT", "Message", "PeerState", "Standing", *_NOT_FOR_PEERS}
    return {
        "states": (
            _state(PeerState.LOOKING, Phase.ELECTION),
            *(_state(state, phase) for state in moving for phase in _LEARNING),
        ),
        "transitions": tuple(
            f"{role.__name__} --{cause.__name__}--> {to.__name__}"
            for (role, cause), to in TRANSITIONS.items()
        ),
        "messages": tuple(name for name in messages.__all__ if name not in names),
        "faults": tuple(FAULT_KINDS),
        "checks": tuple(INVARIANTS),
    }


def _state(state: PeerState, phase: Phase) -> str:
    return f"{state.name.lower()}/{phase.name.lower()}"


class Coverage:
    """How often each thing was reached. Details follow a name after a space: `Ack leading/...`."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}

    def add(self, counts: dict[str, dict[str, int]]) -> None:
        """What another run has been through."""
        for kind, counted in counts.items():
            self.counts[kind].update(counted)

    def as_object(self) -> dict[str, dict[str, int]]:
        """What JSON can hold, and what a worker process sends back."""
        return {kind: dict(sorted(counted.items())) for kind, counted in self.counts.items()}

    def missing(self) -> dict[str, list[str]]:
        """What is known to be there, and was never reached."""
        reached = {
            kind: {key if kind in {"transitions", "faults"} else key.split()[0] for key in counted}
            for kind, counted in self.counts.items()
        }
        return {
            kind: [name for name in names if name not in reached[kind]]
            for kind, names in _known().items()
        }


@contextmanager
def gathering() -> Iterator[Coverage]:
    """All runs of this process are looked at while this is open."""
    coverage = Coverage()
    before: list[tuple[type, str, object]] = []
    for owner, name, wrapper in (*_peer_wrappers(coverage), *_check_wrappers(coverage)):
        before.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, wrapper)
    try:
        yield coverage
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


# --- peers --------------------------------------------------------------------------------------


def _peer_wrappers(coverage: Coverage) -> Iterator[tuple[type, str, object]]:
    step, change = Peer.step, Peer._change  # noqa: SLF001 - looked at from outside
    states, heard = coverage.counts["states"], coverage.counts["messages"]
    transitions = coverage.counts["transitions"]

    def watched_step(self: Peer, event: ev.Event, now_ms: int) -> list[Any]:
        if isinstance(event, ev.Received):
            heard[f"{type(event.message).__name__} {_state(self.state, self.phase)}"] += 1
        effects = step(self, event, now_ms)
        role = "observer" if self._m.config.observer else "voter"
        states[f"{_state(self.state, self.phase)} {role} {self.standing.name.lower()}"] += 1
        return effects

    def watched_change(self: Peer) -> None:
        cause = self._m.transition
        if cause is not None:
            role = type(self._role)
            to = TRANSITIONS[role, type(cause)]
            transitions[f"{role.__name__} --{type(cause).__name__}--> {to.__name__}"] += 1
        change(self)

    yield Peer, "step", watched_step
    yield Peer, "_change", watched_change


# --- checks -------------------------------------------------------------------------------------


def _check_wrappers(coverage: Coverage) -> Iterator[tuple[type, str, object]]:
    """Every method of the simulator that names a check."""
    for owner in _classes():
        named = {
            name: (function, _ids_in(function.__code__))
            for name, function in vars(owner).items()
            if isinstance(function, FunctionType)
        }
        for name, (function, ids) in named.items():
            made = [*ids, *_told_by(function, named)]
            if made and not _tells(function):
                yield owner, name, _counting(function, made, coverage.counts["checks"])


def _tells(function: FunctionType) -> bool:
    """Whether it makes the error of a check that was made where it is called."""
    return "InvariantError" in str(function.__annotations__.get("return"))


def _told_by(
    function: FunctionType, named: dict[str, tuple[FunctionType, list[str]]]
) -> Iterator[str]:
    for name in function.__code__.co_names:
        if name in named and _tells(named[name][0]):
            yield from named[name][1]


def _classes() -> Iterator[type]:
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("zabd.cluster_sim."):
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == module_name:
                    yield value


def _ids_in(code: CodeType) -> list[str]:
    found: list[str] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _ids_in(constant)
        elif isinstance(constant, str) and constant in INVARIANTS:
            found.append(constant)
        elif isinstance(constant, tuple):
            found += [each for each in constant if isinstance(each, str) and each in INVARIANTS]
    return list(dict.fromkeys(found))


def _counting(
    function: Callable[..., object], ids: Iterable[str], counts: Counter[str]
) -> Callable[..., object]:
    ids = tuple(dict.fromkeys(ids))

    @wraps(function)
    def counted(*arguments: object, **named: object) -> object:
        for check in ids:
            counts[check] += 1
        return function(*arguments, **named)

    return counted
