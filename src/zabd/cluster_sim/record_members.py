"""What a picture shows of members: what they deliver, their roles, and their state at each event.

States are sampled, not computed: after each event the member is looked at, and what has changed
since the last look is noted.
"""

from collections.abc import Sequence
from dataclasses import fields
from enum import IntEnum
from typing import Any, Final

from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.core_member import CoreMember
from zabd.cluster_sim.core_process import CoreProcess, describe_vote
from zabd.cluster_sim.ghosts import History
from zabd.cluster_sim.record import NOBODY
from zabd.cluster_sim.recorder import Recorder, Wrapping
from zabd.cluster_sim.schedule import Action
from zabd.cluster_sim.virtual_loop import VirtualLoop
from zabd.cluster_sim.whole_member import WholeProcess
from zabd.cluster_sim.zab_checks import Incarnation, ZabChecker
from zabd.model.zxid import Zxid
from zabd.zab import events as ev
from zabd.zab.effects import Became, Send
from zabd.zab.log import Batch, LogPosition
from zabd.zab.messages import Message, Ping, Pong, Propose

# More cells than this do not fit into a row; of a longer history the newest are kept.
CELLS_MAX: Final = 120


def watch_members(recorder: Recorder, wrapping: Wrapping) -> None:
    """Record what members do and are."""
    recorder.on_event = _States(recorder).look
    _watch_deliveries(recorder, wrapping)
    _watch_turns(recorder, wrapping)
    _watch_pauses(recorder, wrapping)
    _watch_heard(recorder, wrapping)


def in_words(message: Message) -> str:
    """A message by its name and what a reader wants to know of it: zxids, epochs, positions."""
    if isinstance(message, Propose):
        return f"Propose {message.first!r}" + (f" +{message.count - 1}" * (message.count > 1))
    told = [_field(field.name, getattr(message, field.name)) for field in fields(message)]
    return " ".join([type(message).__name__, *filter(None, told)])


def _field(name: str, value: object) -> str:
    match value:
        case LogPosition(zxid):
            return f"{name} {zxid!r}"
        case bytes():
            return ""
        case IntEnum():
            return value.name.lower()
        case bool() | int():
            return f"{name.replace('_', ' ')} {value!r}"
        case _:
            return ""


class _States:
    """The last look at each member, and what the next one adds to the record."""

    def __init__(self, recorder: Recorder) -> None:
        self._record = recorder.record
        self._members = {
            recorder.lane(member.host.name): member for member in recorder.level.members.values()
        }
        self._known: dict[int, dict[str, Any]] = {}
        self._logs: dict[int, tuple[Zxid, Zxid]] = {}  # lane: base and end of the log at last look

    def look(self, event: int) -> None:
        """Note what this event has changed of the member on whose lane it is."""
        lane = self._record.events[event].lane
        member = self._members.get(lane)
        if member is None:
            return
        known = self._known.setdefault(lane, {})
        changed = {key: value for key, value in _facts(member).items() if known.get(key) != value}
        known.update(changed)
        changed.update(self._log(lane, member))
        if changed:
            self._record.states.append((event, lane, changed))

    def _log(self, lane: int, member: CoreMember) -> dict[str, Any]:
        process = member.process
        if process is None or process.seen is None:
            return {}
        history = process.seen.history
        base, end = history.base.zxid, history.last.zxid
        before = self._logs.get(lane)
        if before == (base, end):
            return {}
        self._logs[lane] = (base, end)
        if before is not None and before[0] == base and _has(history, before[1]):
            return {"log+": _cells(history, before[1])}
        return {"base": repr(base), "log": _cells(history, base)}


def _has(history: History, zxid: Zxid) -> bool:
    return zxid == history.base.zxid or history.chain_at(zxid) is not None


def _cells(history: History, after: Zxid) -> list[str]:
    """The ends of its batches after `after`, oldest first."""
    cells: list[str] = []
    for zxid in reversed(history.ends):
        if zxid <= after or len(cells) == CELLS_MAX:
            break
        cells.append(repr(zxid))
    return cells[::-1]


def _facts(member: CoreMember) -> dict[str, Any]:
    """What a member is, as far as it can be said in a word or a number."""
    process = member.process
    if process is None:
        return {"role": "down", "phase": "", "leader": None, "serving": False}
    peer = process.peer
    if peer is None:
        return {"role": "recovering", "phase": "", "leader": None, "serving": False}
    facts: dict[str, Any] = {
        "role": peer.state.name.lower(),
        "phase": peer.phase.name.lower(),
        "leader": peer.leader,
        "serving": peer.serving,
        "accepted": peer.accepted_epoch,
        "current": peer.current_epoch,
        "logged": repr(peer.logged_zxid),
        "durable": repr(peer.durable_zxid),
        "committed": repr(peer.committed_zxid),
        "delivered": repr(peer.delivered_zxid),
    }
    replica = getattr(process, "replica", None)
    if replica is not None:
        tree = replica.tree
        facts["nodes"], facts["sessions"] = len(tree.nodes), len(tree.sessions)
        facts["digest"] = f"{tree.digest:016x}"
    return facts


def _watch_deliveries(recorder: Recorder, wrapping: Wrapping) -> None:
    level: CoreLevel = recorder.level

    def lane(who: Incarnation) -> int:
        return recorder.lane(level.members[who.member].host.name)

    def wrap_delivered(delivered: Any) -> Any:
        def noted(self: ZabChecker, who: Incarnation, batches: Sequence[Batch]) -> None:
            before = len(self.ledger)
            try:
                delivered(self, who, batches)
            finally:
                first = len(self.ledger) > before
                up_to = repr(batches[-1].last)
                label = f"commits up to {up_to}, the first to deliver it"
                if not first:
                    label = f"delivers up to {up_to}"
                recorder.add(lane(who), "commit" if first else "deliver", label)

        return noted

    def wrap_became(became: Any) -> Any:
        def noted(self: ZabChecker, who: Incarnation, news: Became) -> None:
            state, phase = news.state.name.lower(), news.phase.name.lower()
            serving = ", serving" if news.serving else ""
            recorder.add(lane(who), "role", f"{state}, {phase}, epoch {news.epoch}{serving}")
            became(self, who, news)

        return noted

    wrapping.around(ZabChecker, "delivered", wrap_delivered)
    wrapping.around(ZabChecker, "became", wrap_became)


def _watch_turns(recorder: Recorder, wrapping: Wrapping) -> None:
    """A process takes things one at a time: what it does then, it does because of that thing."""
    timers: dict[int, tuple[int, int]] = {}

    def wrap_enter(enter: Any) -> Any:
        def noted(self: CoreProcess, action: Action) -> None:
            lane = recorder.lane(self.member.host.name)
            cause = recorder.now.get(lane, NOBODY)

            def taken() -> None:
                recorder.now[lane] = cause
                action()

            enter(self, taken)

        return noted

    def wrap_set_timer(set_timer: Any) -> Any:
        def noted(self: CoreProcess) -> None:
            before = self._timer
            set_timer(self)
            if self._timer is not before:
                lane = recorder.lane(self.member.host.name)
                timers[lane] = (recorder.now.get(lane, NOBODY), recorder.level.schedule.now_us)

        return noted

    def wrap_elapsed(elapsed: Any) -> Any:
        def noted(self: CoreProcess) -> None:
            lane = recorder.lane(self.member.host.name)
            recorder.now[lane], sent_us = timers.get(lane, (NOBODY, NOBODY))
            number = len(recorder.record.events)
            elapsed(self)
            if len(recorder.record.events) > number:
                recorder.record.events[number].sent_us = sent_us

        return noted

    def wrap_send(send: Any) -> Any:
        def noted(self: CoreProcess, effect: Send) -> None:
            recorder.saying = in_words(effect.message)
            try:
                send(self, effect)
            finally:
                recorder.saying = ""

        return noted

    def wrap_submit(submit: Any) -> Any:
        def noted(self: CoreProcess, count: int, payload: bytes) -> None:
            recorder.add(recorder.lane(self.member.host.name), "ask", f"asked to propose {count}")
            submit(self, count, payload)

        return noted

    wrapping.around(CoreProcess, "submit", wrap_submit)
    wrapping.around(CoreProcess, "_send", wrap_send)
    wrapping.around(CoreProcess, "enter", wrap_enter)
    wrapping.around(CoreProcess, "_set_timer", wrap_set_timer)
    wrapping.around(CoreProcess, "_elapsed", wrap_elapsed)


def _watch_pauses(recorder: Recorder, wrapping: Wrapping) -> None:
    def name(stopped: CoreProcess | VirtualLoop) -> str:
        return stopped.name if isinstance(stopped, VirtualLoop) else stopped.member.host.name

    def wrap_pause(pause: Any) -> Any:
        def noted(self: CoreProcess | VirtualLoop) -> None:
            pause(self)
            recorder.begin_span(recorder.lane(name(self)), "paused", "stopped")

        return noted

    def wrap_resume(resume: Any) -> Any:
        def noted(self: CoreProcess | VirtualLoop) -> None:
            recorder.end_span(recorder.lane(name(self)), "paused")
            resume(self)

        return noted

    for owner in (CoreProcess, VirtualLoop):
        wrapping.around(owner, "pause", wrap_pause)
        wrapping.around(owner, "resume", wrap_resume)


def _watch_heard(recorder: Recorder, wrapping: Wrapping) -> None:
    """At the whole level messages are bytes; what they mean is known where the peer takes them."""

    def wrap(heard: Any) -> Any:
        def noted(self: WholeProcess, event: ev.Event) -> None:
            lane = recorder.lane(self.member.host.name)
            if isinstance(event, ev.Received) and not isinstance(event.message, Ping | Pong):
                recorder.add(lane, "hears", f"hears {in_words(event.message)}")
            elif isinstance(event, ev.Notified):
                recorder.add(lane, "vote", f"vote {describe_vote(event)}")
            heard(self, event)

        return noted

    wrapping.around(WholeProcess, "heard", wrap)
