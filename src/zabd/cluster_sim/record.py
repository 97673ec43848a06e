"""What a picture of a run is made of: events on lanes, what caused each, and members' states.

A record is filled by `recorder` while a run goes on, and read by `picture`. Times are virtual
microseconds. An event's `cause` is the one that directly led to it: the event in which a message
was sent, a disk operation submitted, a timer set. With the order of events on each lane that is
Lamport's "happened before".
"""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from zabd.cluster_sim.core_level import Outcome
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.plan import Plan

NOBODY: Final = -1
"""The cause of what nothing within the run led to."""

RUN_LANE: Final = "run"
"""Where faults and the words of the checker stand."""


class Span(NamedTuple):
    """A stretch of time on a lane: down, paused, a session, a lock that is held."""

    lane: int
    begun_us: int
    ended_us: int
    kind: str
    label: str


@dataclass(slots=True)
class Event:
    """Something that happened on a lane; `sent_us` is when the message it received was sent."""

    at_us: int
    lane: int
    kind: str
    label: str
    cause: int = NOBODY
    sent_us: int = NOBODY


@dataclass(slots=True)
class Record:
    """One run, as a page can show it."""

    lanes: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)  # of each lane: member, observer, client, run
    events: list[Event] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    # (event, lane, what has changed of that member by the end of that event)
    states: list[tuple[int, int, dict[str, Any]]] = field(default_factory=list)
    run: dict[str, Any] = field(default_factory=dict)  # which one it is, and its figures
    failure: dict[str, str] | None = None

    def close(self, plan: Plan, outcome: Outcome) -> None:
        """The run is over."""
        self.run = {
            "seed": plan.seed,
            "level": plan.level,
            "mutant": plan.mutant,
            "digest": outcome.digest,
            "events": outcome.events,
            "virtual_ms": outcome.virtual_ms,
            "faults": outcome.faults,
            "shape": outcome.shape,
        }
        if outcome.failure is not None:
            self.fail(outcome.failure)

    def fail(self, error: BaseException) -> None:
        """The run ended by this: a check that did not hold, or an experiment that raised."""
        if isinstance(error, InvariantError):
            told = {"id": error.id, "name": error.name, "rule": error.rule, "detail": error.detail}
        else:
            rule = "the experiment raised it"
            told = {"id": "", "name": type(error).__name__, "rule": rule, "detail": str(error)}
        self.failure = told

    def as_object(self) -> dict[str, Any]:
        """Columns rather than rows: a third of the size, and what the page draws from."""
        return {
            "lanes": self.lanes,
            "laneKinds": self.kinds,
            "at": [event.at_us for event in self.events],
            "lane": [event.lane for event in self.events],
            "kind": [event.kind for event in self.events],
            "label": [event.label for event in self.events],
            "cause": [event.cause for event in self.events],
            "sent": [event.sent_us for event in self.events],
            "spans": [list(span) for span in self.spans],
            "states": [list(state) for state in self.states],
            "run": self.run,
            "failure": self.failure,
        }
