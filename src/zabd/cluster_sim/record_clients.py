"""What a picture shows of those who use the ensemble: requests, replies, watches, sessions, locks.

At the core level they are the simulator's own clients, at the whole level programs.
"""

import asyncio
from typing import Any

from zabd.client.effects import Fired
from zabd.client.recipes.place import Place
from zabd.client.session import Session
from zabd.cluster_sim.core_client import CoreClient
from zabd.cluster_sim.record import NOBODY
from zabd.cluster_sim.recorder import Recorder, Wrapping
from zabd.cluster_sim.resource import Resource
from zabd.cluster_sim.virtual_loop import VirtualLoop
from zabd.model.errors import ErrorCode
from zabd.model.ids import format_session
from zabd.model.ops import Multi, Op, Ping
from zabd.model.watch_events import WatchEvent
from zabd.model.zxid import Zxid
from zabd.wire.connection import Reply

_WORDS_MAX = 4  # operations of one packet that a label names


def watch_clients(recorder: Recorder, wrapping: Wrapping) -> None:
    """Record what clients ask, hear and hold."""
    _watch_core_asking(recorder, wrapping)
    _watch_core_hearing(recorder, wrapping)
    _watch_kills(recorder, wrapping)
    _watch_sessions(recorder, wrapping)
    _watch_locks(recorder, wrapping)


def describe_op(op: Op) -> str:
    """An operation in a few words."""
    name = type(op).__name__
    if isinstance(op, Multi):
        return f"multi of {len(op.ops)}"
    path = getattr(op, "path", "")
    watch = " and watch" if getattr(op, "watch", False) else ""
    return f"{name[0].lower()}{name[1:]} {path}{watch}".rstrip()


def describe_answer(code: int, zxid: int) -> str:
    """How an operation ended."""
    if not code:
        return f"done at {Zxid(zxid)!r}"
    try:
        name = ErrorCode(code).name.lower().replace("_", " ")
    except ValueError:
        name = f"error {code}"
    return f"{name} at {Zxid(zxid)!r}"


def _watch_core_asking(recorder: Recorder, wrapping: Wrapping) -> None:
    def wrap_ask(ask: Any) -> Any:
        def noted(self: CoreClient, *ops: Op) -> None:
            words = [describe_op(op) for op in ops[:_WORDS_MAX]]
            more = f" and {len(ops) - _WORDS_MAX} more" if len(ops) > _WORDS_MAX else ""
            recorder.saying = "; ".join(words) + more
            if not all(isinstance(op, Ping) for op in ops):
                recorder.add(recorder.lane(self.name), "ask", recorder.saying)
            try:
                ask(self, *ops)
            finally:
                recorder.saying = ""

        return noted

    wrapping.around(CoreClient, "_ask", wrap_ask)


def _watch_core_hearing(recorder: Recorder, wrapping: Wrapping) -> None:
    events = recorder.record.events

    def tell(client: CoreClient, kind: str, label: str) -> None:
        """Put what a packet says in the place of its length and checksum."""
        lane = recorder.lane(client.name)
        event = events[recorder.now[lane]] if recorder.now.get(lane, NOBODY) >= 0 else None
        if event is not None and event.kind == "message" and event.lane == lane:
            event.kind, event.label = kind, f"{event.label.partition(':')[0]}: {label}"
        else:
            recorder.add(lane, kind, label)

    def wrap_answered(answered: Any) -> Any:
        def noted(self: CoreClient, reply: Reply) -> None:
            if self._asked and self._asked[0].xid == reply.xid:
                op = describe_op(self._asked[0].op)
                tell(self, "reply", f"{op}: {describe_answer(reply.error, reply.zxid)}")
            answered(self, reply)

        return noted

    def wrap_notified(notified: Any) -> Any:
        def noted(self: CoreClient, zxid: int, event: WatchEvent) -> None:
            changed = event.type.name.lower().replace("_", " ")
            tell(self, "watch", f"{event.path} {changed} at {Zxid(zxid)!r}")
            notified(self, zxid, event)

        return noted

    def wrap_greeted(greeted: Any) -> Any:
        def noted(self: CoreClient, response: Any) -> None:
            lane = recorder.lane(self.name)
            if response.refused:
                tell(self, "session", "its session is over")
            else:
                name = format_session(response.session_id)
                tell(self, "session", f"has session {name}")
                recorder.begin_span(lane, "session", f"session {name}")
            greeted(self, response)

        return noted

    def wrap_forget(forget: Any) -> Any:
        def noted(self: CoreClient) -> None:
            recorder.end_span(recorder.lane(self.name), "session")
            forget(self)

        return noted

    def wrap_kill(kill: Any) -> Any:
        def noted(self: CoreClient) -> None:
            lane = recorder.lane(self.name)
            recorder.killed(lane)
            kill(self)

        return noted

    wrapping.around(CoreClient, "_answered", wrap_answered)
    wrapping.around(CoreClient, "_notified", wrap_notified)
    wrapping.around(CoreClient, "_greeted", wrap_greeted)
    wrapping.around(CoreClient, "_forget_session", wrap_forget)
    wrapping.around(CoreClient, "kill", wrap_kill)


def _watch_kills(recorder: Recorder, wrapping: Wrapping) -> None:
    """Members' ends are told by their machines; a program's process is its loop."""

    def wrap(kill: Any) -> Any:
        def noted(self: VirtualLoop) -> None:
            lane, alive = recorder.lane(self.name), self.alive
            kill(self)
            if alive and recorder.record.kinds[lane] == "client":
                recorder.killed(lane)

        return noted

    wrapping.around(VirtualLoop, "kill", wrap)


def _own_lane(recorder: Recorder) -> int:
    """The lane of the process whose code is running."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "programs of a simulation run on its loops"
    return recorder.lane(loop.name)


def _watch_sessions(recorder: Recorder, wrapping: Wrapping) -> None:
    def wrap_submit(submit: Any) -> Any:
        def noted(self: Session, op: Op, *args: Any, **options: Any) -> None:
            recorder.add(_own_lane(recorder), "ask", describe_op(op))
            submit(self, op, *args, **options)

        return noted

    def wrap_answered(answered: Any) -> Any:
        def noted(self: Session, xid: int, code: int, *more: Any) -> None:
            outstanding = self._requests.outstanding
            if outstanding and outstanding[0].xid == xid:
                op = describe_op(outstanding[0].op)
                label = f"{op}: {describe_answer(code, self.last_zxid)}"
                recorder.add(_own_lane(recorder), "reply", label)
            answered(self, xid, code, *more)

        return noted

    def wrap_become(become: Any) -> Any:
        def noted(self: Session, state: Any, reason: str) -> Any:
            before = self.state
            effects = become(self, state, reason)
            if state is not before:
                lane, word = _own_lane(recorder), state.name.lower()
                recorder.add(lane, "session", f"{word}: {reason}")
                recorder.end_span(lane, "session")
                name = format_session(self.session_id)
                if word not in {"lost", "closed"}:
                    recorder.begin_span(lane, "session", f"{word}, session {name}")
            return effects

        return noted

    def wrap_take(answered: Any) -> Any:
        def noted(self: Session, frame: bytes, effects: list[Any]) -> None:
            before = len(effects)
            answered(self, frame, effects)
            for effect in effects[before:]:
                if isinstance(effect, Fired):
                    what = effect.event.type.name.lower().replace("_", " ")
                    recorder.add(_own_lane(recorder), "watch", f"{effect.event.path} {what}")

        return noted

    wrapping.around(Session, "submit", wrap_submit)
    wrapping.around(Session, "_request_answered", wrap_answered)
    wrapping.around(Session, "_become", wrap_become)
    wrapping.around(Session, "_answered", wrap_take)


def _watch_locks(recorder: Recorder, wrapping: Wrapping) -> None:
    def wrap_acquired(acquired: Any) -> Any:
        def noted(self: Place) -> None:
            acquired(self)
            lane, kind = _own_lane(recorder), f"lock {self.path}"
            parent = self.path.rpartition("/")[0]
            label = f"holds {parent}, token {Zxid(self.token)!r}"
            recorder.add(lane, "lock", label)
            recorder.begin_span(lane, kind, label)
            self.when_ended(lambda: recorder.end_span(lane, kind))

        return noted

    def wrap_write(write: Any) -> Any:
        def noted(self: Resource, token: int) -> bool:
            late = token < self.token
            accepted = bool(write(self, token))
            word = "refuses" if not accepted else "takes late" if late else "accepts"
            recorder.add(_own_lane(recorder), "fence", f"the resource {word} token {Zxid(token)!r}")
            return accepted

        return noted

    wrapping.around(Place, "acquired", wrap_acquired)
    wrapping.around(Resource, "write", wrap_write)
