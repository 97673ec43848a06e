"""Recording a run for its picture: who is watched, and by which wrapper.

The trace (each of its lines is an event), pipes and datagrams (who sent what arrives), disks (who
submitted what completes), the paths between machines, and the ends of processes. What members and
clients say of themselves is in `record_members` and `record_clients`.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from zabd.cluster_sim.connections import Connection, Mark, Pipe
from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.core_member import CoreMember
from zabd.cluster_sim.decisions import Listed
from zabd.cluster_sim.disk_image import Losses, Survival
from zabd.cluster_sim.disks import SimDisk
from zabd.cluster_sim.faults import Nemesis
from zabd.cluster_sim.network import Host, Network
from zabd.cluster_sim.record import NOBODY, Record
from zabd.cluster_sim.record_clients import watch_clients
from zabd.cluster_sim.record_members import watch_members
from zabd.cluster_sim.recorder import Recorder, Wrapping
from zabd.cluster_sim.schedule import Action
from zabd.cluster_sim.trace import Trace
from zabd.storage.disk import Lane


@contextmanager
def recording(level: CoreLevel) -> Iterator[Record]:
    """Record one run, from before it begins until this is closed."""
    with ExitStack() as stack:
        recorder, wrapping = Recorder(level), Wrapping(stack)
        _watch_trace(recorder, wrapping)
        _watch_pipes(recorder, wrapping)
        _watch_disks(recorder, wrapping)
        _watch_lives(recorder, wrapping)
        _watch_paths(recorder, wrapping)
        _watch_faults(recorder, wrapping)
        watch_members(recorder, wrapping)
        watch_clients(recorder, wrapping)
        try:
            yield recorder.record
        finally:
            recorder.close()


def _watch_trace(recorder: Recorder, wrapping: Wrapping) -> None:
    def wrap(record: Any) -> Any:
        def noted(self: Trace, who: str, what: str) -> None:
            record(self, who, what)
            recorder.line(who, what)

        return noted

    wrapping.around(Trace, "record", wrap)


def _watch_pipes(recorder: Recorder, wrapping: Wrapping) -> None:  # noqa: PLR0915 - many wraps
    """Beside each pipe's queue lies one of who sent what, shortened as the queue is."""
    sent: defaultdict[Pipe, deque[tuple[int, int, str]]] = defaultdict(deque)
    events = recorder.record.events

    def wrap_send(send: Any) -> Any:
        def noted(self: Pipe, payload: object, size_bytes: int) -> None:
            before = len(self._queue)
            send(self, payload, size_bytes)
            if len(self._queue) > before:
                sender = recorder.now.get(recorder.lane(self.source.name), NOBODY)
                said = "" if isinstance(payload, Mark) else recorder.saying
                if not said and sender >= 0 and events[sender].kind == "ask":
                    said = events[sender].label  # bytes that a program has just asked for
                sent[self].append((sender, recorder.level.schedule.now_us, said))

        return noted

    def wrap_overtake(overtake: Any) -> Any:
        def noted(self: Pipe) -> None:
            newest = self._queue[-1] if self._queue else None
            overtake(self)
            if self._queue and self._queue[-1] is not newest:
                beside = sent[self]
                beside[-2], beside[-1] = beside[-1], beside[-2]

        return noted

    def wrap_shorten(shorten: Any) -> Any:
        def noted(self: Pipe, keep_bytes: int | None) -> None:
            shorten(self, keep_bytes)
            beside = sent[self]
            while len(beside) > len(self._queue):
                beside.pop()

        return noted

    def wrap_delivery(note_delivery: Any) -> Any:
        def noted(self: Network, pipe: Pipe, payload: object) -> None:
            note_delivery(self, pipe, payload)
            event = events[-1]
            sender, sent_us, said = sent[pipe].popleft()
            event.cause, event.sent_us = sender, sent_us
            event.kind = "link" if isinstance(payload, Mark) else "message"
            what = said or event.label.partition(" ")[2]
            event.label = f"from {pipe.source.name}: {what}"
            if pipe.receiver.gone:
                event.kind, event.label = "link", f"{event.label}, but nobody is there any more"

        return noted

    def wrap_datagram(datagram: Any) -> Any:
        def noted(self: Network, source: Host, target: Host, arrive: Action) -> None:
            sender = recorder.now.get(recorder.lane(source.name), NOBODY)
            sent_us = recorder.level.schedule.now_us

            def arrives() -> None:
                before = len(events)
                arrive()
                if len(events) > before:
                    event = events[before]
                    event.kind, event.cause, event.sent_us = "vote", sender, sent_us

            datagram(self, source, target, arrives)

        return noted

    wrapping.around(Pipe, "send", wrap_send)
    wrapping.around(Pipe, "overtake", wrap_overtake)
    wrapping.around(Pipe, "shorten", wrap_shorten)
    wrapping.around(Network, "note_delivery", wrap_delivery)
    wrapping.around(Network, "datagram", wrap_datagram)


def _watch_disks(recorder: Recorder, wrapping: Wrapping) -> None:
    """Each lane of a disk does its lists in order: the first one's submitter is the first here."""
    submitted: defaultdict[int, deque[tuple[int, int]]] = defaultdict(deque)
    events = recorder.record.events

    def wrap_submit(submit: Any) -> Any:
        def noted(self: SimDisk, ops: Any, done: Any, lane: Lane = Lane.LOG) -> None:
            if not self._dead:
                sender = recorder.now.get(recorder.lane(self.name), NOBODY)
                now_us = recorder.level.schedule.now_us
                submitted[id(self._lanes[lane])].append((sender, now_us))
            submit(self, ops, done, lane)

        return noted

    def wrap_complete(complete: Any) -> Any:
        def noted(self: SimDisk, queue: Any, op: Any) -> None:
            before = len(events)
            sender, sent_us = submitted[id(queue)][0]
            lane = recorder.lane(self.name)
            held = recorder.now.get(lane, NOBODY)
            recorder.now[lane] = sender
            complete(self, queue, op)
            if len(events) > before:
                events[before].sent_us = sent_us
            else:
                recorder.now[lane] = held

        return noted

    def wrap_finish(finish: Any) -> Any:
        def noted(self: SimDisk, queue: Any, fault: Any) -> None:
            submitted[id(queue)].popleft()
            finish(self, queue, fault)

        return noted

    wrapping.around(SimDisk, "submit", wrap_submit)
    wrapping.around(SimDisk, "_complete", wrap_complete)
    wrapping.around(SimDisk, "_finish_list", wrap_finish)


def _watch_lives(recorder: Recorder, wrapping: Wrapping) -> None:
    def wrap_start(start: Any) -> Any:
        def noted(self: CoreMember) -> None:
            recorder.end_span(recorder.lane(self.host.name), "down")
            start(self)

        return noted

    def wrap_crash(crash: Any) -> Any:
        def noted(self: CoreMember, *, power: bool, survival: Survival | None = None) -> Losses:
            losses: Losses = crash(self, power=power, survival=survival)
            lane = recorder.lane(self.host.name)
            recorder.end_span(lane, "paused")
            recorder.begin_span(lane, "down", "without power" if power else "killed")
            return losses

        return noted

    wrapping.around(CoreMember, "start", wrap_start)
    wrapping.around(CoreMember, "crash", wrap_crash)


def _watch_paths(recorder: Recorder, wrapping: Wrapping) -> None:
    """What a machine does not reach is shown on its own lane."""

    def kind(target: str) -> str:
        return f"cut {target}"

    def wrap_block(block: Any) -> Any:
        def noted(self: Network, source: Host, target: Host) -> None:
            block(self, source, target)
            if source is not target:
                label = f"does not reach {target.name}"
                recorder.begin_span(recorder.lane(source.name), kind(target.name), label)

        return noted

    def wrap_unblock(unblock: Any) -> Any:
        def noted(self: Network, source: Host, target: Host) -> None:
            unblock(self, source, target)
            recorder.end_span(recorder.lane(source.name), kind(target.name))

        return noted

    def wrap_heal(heal: Any) -> Any:
        def noted(self: Network) -> None:
            for source, target in sorted(self._blocked):
                recorder.end_span(recorder.lane(source), kind(target))
            heal(self)

        return noted

    def wrap_cut(cut: Any) -> Any:
        def noted(self: Connection, *args: Any, **options: Any) -> None:
            cut(self, *args, **options)
            ends = f"{self.forward.source.name} and {self.forward.target.name}"
            recorder.add(0, "fault", f"the connection of {ends} breaks", NOBODY)

        return noted

    wrapping.around(Network, "block", wrap_block)
    wrapping.around(Network, "unblock", wrap_unblock)
    wrapping.around(Network, "heal", wrap_heal)
    wrapping.around(Connection, "cut", wrap_cut)
    wrapping.around(Connection, "break_one_side", wrap_cut)


def _watch_faults(recorder: Recorder, wrapping: Wrapping) -> None:
    """The trace names a fault after what it did: turn that around."""
    events = recorder.record.events

    def wrap(note: Any) -> Any:
        def noted(self: Nemesis | Listed, *args: Any) -> None:
            before = len(events)
            note(self, *args)
            if len(events) > before and events[-1].kind == "fault":
                fault = len(events) - 1
                for event in events[before:fault]:
                    if event.kind in {"life", "fault"}:
                        event.cause = fault

        return noted

    wrapping.around(Nemesis, "_break_something", wrap)
    wrapping.around(Listed, "_do", wrap)
