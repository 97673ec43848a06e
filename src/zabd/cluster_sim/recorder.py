"""The recorder: fills a record of one run, told by wrappers around methods of the room.

An ordinary run knows nothing of this and pays nothing for it. A recorder only watches: a recorded
run has the trace of one that is not.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.plan import clients_of
from zabd.cluster_sim.record import NOBODY, RUN_LANE, Event, Record, Span

_LIFE: Final = frozenset({"starts", "killed", "power cut"})
_RUN: Final = {"faults": "fault", "fault": "fault", "checker": "violation", "lesson": "note"}


class Recorder:
    """Fills a record; `now` on a lane is the event that the lane is at."""

    def __init__(self, level: CoreLevel) -> None:
        self.level = level
        self.record = Record()
        self.now: dict[int, int] = {}
        self.on_event: Callable[[int], object] | None = None
        self.saying = ""  # what the bytes that are being sent mean
        self._lane_of: dict[str, int] = {}
        self._open: dict[tuple[int, str], tuple[int, str]] = {}
        self.add_lane(RUN_LANE, "run")
        for number, member in level.members.items():
            self.add_lane(member.host.name, "member" if number in level.voters else "observer")
        for client in clients_of(level):
            self.add_lane(client.name, "client")

    # --- lanes, events, spans --------------------------------------------------------------------

    def add_lane(self, name: str, kind: str) -> int:
        """A lane of its own for somebody."""
        self._lane_of[name] = lane = len(self.record.lanes)
        self.record.lanes.append(name)
        self.record.kinds.append(kind)
        return lane

    def lane(self, name: str) -> int:
        """The lane of a machine, or of one of its disks (`m1/log`)."""
        lane = self._lane_of.get(name)
        if lane is None:
            machine = name.partition("/")[0]
            known = self._lane_of.get(machine)
            lane = self._lane_of[name] = (
                known if known is not None else self.add_lane(machine, "client")
            )
        return lane

    def add(self, lane: int, kind: str, label: str, cause: int | None = None) -> int:
        """Something happens; without a `cause`, because of what the lane is at."""
        self.sample()
        number = len(self.record.events)
        if cause is None:
            cause = self.now.get(lane, NOBODY)
        at_us = self.level.schedule.now_us
        self.record.events.append(Event(at_us, lane, kind, label, cause))
        self.now[lane] = number
        return number

    def killed(self, lane: int) -> None:
        """A client's process is gone, and with it what it had."""
        self.add(lane, "life", "killed", NOBODY)
        for where, kind in list(self._open):
            if where == lane:
                self.end_span(lane, kind)
        self.begin_span(lane, "down", "killed")

    def sample(self) -> None:
        """See what the last event has changed, before there is another one."""
        if self.on_event is not None and self.record.events:
            self.on_event(len(self.record.events) - 1)

    def begin_span(self, lane: int, kind: str, label: str) -> None:
        """Something lasts on a lane, until `end_span`."""
        self._open.setdefault((lane, kind), (self.level.schedule.now_us, label))

    def end_span(self, lane: int, kind: str) -> None:
        """It does not last any longer."""
        begun = self._open.pop((lane, kind), None)
        if begun is not None:
            now_us = self.level.schedule.now_us
            self.record.spans.append(Span(lane, begun[0], now_us, kind, begun[1]))

    def close(self) -> None:
        """The run is over: what lasted, lasted until here."""
        self.sample()
        events, now_us = self.record.events, self.level.schedule.now_us
        # The end of a run ends its programs, which is no event of the run.
        while events and (events[-1].label, events[-1].at_us) == ("killed", now_us):
            events.pop()
        for (lane, kind), (begun_us, _) in list(self._open.items()):
            if begun_us < now_us:
                self.end_span(lane, kind)

    # --- the trace -------------------------------------------------------------------------------

    def line(self, who: str, what: str) -> None:
        """The trace has one line more."""
        if who in _RUN:
            # A check fails, and a lesson speaks, within what was going on.
            last = len(self.record.events) - 1
            self.add(0, _RUN[who], what, last if who in {"checker", "lesson"} else NOBODY)
            return
        lane = self.lane(who)
        if "/" in who:
            held = self.now.get(lane, NOBODY)
            self.add(lane, "fsync" if what.startswith("Sync") else "disk", what)
            if what == "free":  # asked for behind a sync, and never why anything happens
                self.now[lane] = held
        elif what in _LIFE:
            self.add(lane, "life", what)
        else:
            self.add(lane, "timer" if what == "timer" else "says", what)


class Wrapping:
    """Puts wrappers around methods, and takes them off again."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def around(self, owner: type, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by what `wrap` makes of it; nothing where it is inherited."""
        before = owner.__dict__.get(name)
        if before is None:
            return
        setattr(owner, name, wrap(before))
        self._stack.callback(setattr, owner, name, before)
