"""Connections of the simulated network: two pipes, two ends, and how they break.

A connection carries whatever its owners put in: bytes for the transports of a `VirtualLoop`,
message values at the core level.

Invariants
    N1  What one end sends arrives in the order it was sent, each piece once, or not at all (unless
        a lesson asks for a path that is `unordered`, to show why).
    N2  What arrives of a connection that breaks is a prefix of what was sent. Each end learns of
        the break at its own time, after that prefix; an end may never learn of it (half-open)
        until it sends and the other machine answers with a reset.
    N3  A path that is cut off holds what is under way; it moves on when the path is back. A reset
        needs the path like everything else.
    N4  Chance (how long, how much of it, reset or end of file) is drawn when something is sent or
        broken, from the network's stream, and from nowhere else.

Links of peers are such connections too: Zab assumes channels that are FIFO while they last.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Final, NamedTuple, Protocol

from zabd.cluster_sim.schedule import US_PER_S, Appointment, Schedule
from zabd.cluster_sim.trace import describe_bytes

# What a sender's kernel takes before the sender's own buffer fills (Linux starts near this).
WINDOW_BYTES: Final = 65_536

# Why a pipe does not move; each bit is one reason, and it moves when none is left.
HELD_PATH: Final = 1  # the path is cut off (partition)
HELD_STALL: Final = 2  # a fault holds this one pipe
HELD_READER: Final = 4  # the receiver does not read
HELD_SLOW: Final = 8  # a fault keeps the receiver from reading


class Mark(Enum):
    """What travels in a pipe besides payload."""

    CONNECTED = "connected"
    FINISHED = "finished"  # an orderly end of this direction (FIN)
    RESET = "reset"


class Latency(NamedTuple):
    """How long one delivery takes: `min_us` and up to `spread_us` more, mostly little of it."""

    min_us: int = 80
    spread_us: int = 1_200

    def draw(self, rng: Random) -> int:
        """One delivery's time."""
        chance = rng.random()
        return self.min_us + int(self.spread_us * chance * chance * chance)


ORDINARY: Final = Latency()
SAME_MACHINE: Final = Latency(15, 60)


class Receiver(Protocol):
    """The owner of one end: whom the network tells what happens to it."""

    def received(self, payload: object) -> None:
        """A payload arrived."""

    def finished(self) -> None:
        """The other side has sent everything it will ever send."""

    def lost(self, error: OSError) -> None:
        """The connection is broken; nothing else will be told."""

    def drained(self) -> None:
        """Something that was sent has arrived: `End.unsent_bytes` may be smaller."""


class Wires(Protocol):
    """What a connection needs of the network that it lies in."""

    schedule: Schedule
    rng: Random
    connections: dict[int, "Connection"]

    def latency_between(self, source: "Machine", target: "Machine") -> Latency:
        """How long deliveries take."""

    def is_blocked(self, source: "Machine", target: "Machine") -> bool:
        """Whether the path is cut off."""

    def is_unordered(self, source: "Machine", target: "Machine") -> bool:
        """Whether pieces overtake each other, which no link of Zab's may do."""

    def note_delivery(self, pipe: "Pipe", payload: object) -> None:
        """Put a delivery into the trace."""


class Machine:
    """Where a connection ends: something with a name that may be without power."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True


class Pipe:
    """One direction of a connection."""

    __slots__ = (
        "_appointment",
        "_last_due_us",
        "_network",
        "_queue",
        "closed_by",
        "holds",
        "in_flight_bytes",
        "label",
        "latency",
        "receiver",
        "sender",
        "source",
        "target",
        "unordered",
    )

    def __init__(self, network: Wires, source: Machine, target: Machine, label: str) -> None:
        self.source = source
        self.target = target
        self.label = label
        self.latency = network.latency_between(source, target)
        self.holds = HELD_PATH if network.is_blocked(source, target) else 0
        self.in_flight_bytes = 0
        self.closed_by: Mark | None = None
        self.unordered = network.is_unordered(source, target)
        self.sender: End
        self.receiver: End
        self._network = network
        self._queue: deque[tuple[int, object, int]] = deque()
        self._last_due_us = 0
        self._appointment: Appointment | None = None

    def send(self, payload: object, size_bytes: int) -> None:
        """Put one piece on its way, behind everything sent before (N1)."""
        if self.closed_by is not None:
            return
        network = self._network
        due_us = network.schedule.now_us + self.latency.draw(network.rng)
        self._last_due_us = due_us = max(due_us, self._last_due_us)
        self._queue.append((due_us, payload, size_bytes))
        self.in_flight_bytes += size_bytes
        if self._appointment is None and not self.holds:
            self._appointment = network.schedule.at(due_us, self._deliver, self)

    def overtake(self) -> None:
        """Let the newest piece arrive in the place of the one before, by chance: against N1."""
        queue = self._queue
        if len(queue) > 1 and self._network.rng.getrandbits(1):
            (due, first, size), (later, second, other) = queue[-2], queue[-1]
            if not (isinstance(first, Mark) or isinstance(second, Mark)):
                queue[-2], queue[-1] = (due, second, other), (later, first, size)

    def finish(self) -> None:
        """An orderly end: everything sent so far arrives, then the end of file."""
        self.send(Mark.FINISHED, 0)
        self.closed_by = self.closed_by or Mark.FINISHED

    def cut(self, *, keep_bytes: int | None = None, delay_us: int = 0) -> None:
        """Break this direction: a prefix of what is under way arrives, then a reset (N2).

        `keep_bytes` says how long the prefix is; without it, chance does.
        """
        if self.closed_by is Mark.RESET:
            return
        self.shorten(keep_bytes)
        self.closed_by = None
        self._last_due_us = max(self._last_due_us, self._network.schedule.now_us + delay_us)
        self.send(Mark.RESET, 0)
        self.closed_by = Mark.RESET

    def close_quietly(self) -> None:
        """Take nothing more: the sender knows that the connection is broken."""
        self.closed_by = self.closed_by or Mark.FINISHED

    @property
    def over(self) -> bool:
        """Whether nothing is under way and nothing will be."""
        return self.closed_by is not None and not self._queue

    def vanish(self) -> None:
        """Lose this direction without a word: a prefix arrives, and nothing after it."""
        if self.closed_by is None:
            self.shorten(None)
            self.closed_by = Mark.FINISHED

    def shorten(self, keep_bytes: int | None) -> None:
        """Keep a prefix of what is under way; pieces of bytes may be split."""
        rng = self._network.rng
        queue = self._queue
        if keep_bytes is None:
            keep = rng.randrange(len(queue) + 1)
            partial = rng.random()
        else:
            keep, kept_bytes = 0, 0
            while keep < len(queue) and kept_bytes + queue[keep][2] <= keep_bytes:
                kept_bytes += queue[keep][2]
                keep += 1
            partial = (keep_bytes - kept_bytes) / queue[keep][2] if keep < len(queue) else 0.0
        dropped = [queue.pop() for _ in range(len(queue) - keep)]
        for _, _, size_bytes in dropped:
            self.in_flight_bytes -= size_bytes
        first = dropped[-1] if dropped else None
        if first and isinstance(first[1], bytes) and (head := first[1][: int(first[2] * partial)]):
            queue.append((first[0], head, len(head)))
            self.in_flight_bytes += len(head)
        if queue:
            self._last_due_us = min(self._last_due_us, queue[-1][0])

    def hold(self, reason: int) -> None:
        """Stop moving for `reason` (one of the HELD_ bits)."""
        self.holds |= reason

    def release(self, reason: int) -> None:
        """Take back one reason; when it was the last, what is under way moves on."""
        if not self.holds & reason:
            return
        self.holds &= ~reason
        if not self.holds and self._queue and self._appointment is None:
            network = self._network
            due_us = max(self._queue[0][0], network.schedule.now_us)
            self._appointment = network.schedule.at(due_us, self._deliver, self)

    def _deliver(self) -> None:
        self._appointment = None
        queue = self._queue
        if self.holds or not queue:
            return
        schedule = self._network.schedule
        if queue[0][0] > schedule.now_us:  # the piece this was made for has been cut off
            self._appointment = schedule.at(queue[0][0], self._deliver, self)
            return
        _, payload, size_bytes = queue.popleft()
        self.in_flight_bytes -= size_bytes
        if queue:
            self._appointment = schedule.at(queue[0][0], self._deliver, self)
        self._network.note_delivery(self, payload)
        self.receiver.arrived(payload)
        if size_bytes:
            self.sender.drained()
        if self.over:
            self.receiver.connection.forget_if_over()


class End:
    """One end of a connection, in the hands of its owner.

    After `close`, `abort` or the loss of the connection, sending does nothing.
    """

    __slots__ = (
        "_gone",
        "_on_gone",
        "connection",
        "host",
        "incoming",
        "local",
        "outgoing",
        "receiver",
        "remote",
    )

    def __init__(
        self,
        connection: "Connection",
        host: Machine,
        *,
        on_gone: Callable[[int], object],
        outgoing: Pipe,
        incoming: Pipe,
        local: tuple[str, int],
        remote: tuple[str, int],
    ) -> None:
        self.connection = connection
        self.host = host
        self._on_gone = on_gone
        self.outgoing = outgoing
        self.incoming = incoming
        self.local = local
        self.remote = remote
        self.receiver: Receiver | None = None
        self._gone = False
        outgoing.sender = self
        incoming.receiver = self

    @property
    def gone(self) -> bool:
        """Whether its owner has let go of it: what arrives then reaches nobody."""
        return self._gone

    @property
    def unsent_bytes(self) -> int:
        """How much of what was sent does not fit into the kernel's window."""
        return max(0, self.outgoing.in_flight_bytes - WINDOW_BYTES)

    def send(self, payload: object, size_bytes: int = 0) -> None:
        """Send one payload; bytes are split or joined by nobody but a cut."""
        self.outgoing.send(payload, size_bytes)
        if self.outgoing.unordered:
            self.outgoing.overtake()

    def finish(self) -> None:
        """Say that nothing more will be sent; go on receiving."""
        self.outgoing.finish()

    def close(self) -> None:
        """Send what there is, then end; whatever still arrives is answered with a reset."""
        self.outgoing.finish()
        self._leave()

    def abort(self) -> None:
        """Break the connection: the other side gets a prefix and a reset."""
        self.outgoing.cut()
        self._leave()

    def hold_reading(self) -> None:
        """Leave what arrives with the network, which in time fills the sender's window."""
        self.incoming.hold(HELD_READER)

    def resume_reading(self) -> None:
        """Take again what arrives."""
        self.incoming.release(HELD_READER)

    def arrived(self, payload: object) -> None:
        """Hand on what the pipe brings. For the network only."""
        if self._gone:
            self._answer_for_a_closed_port(payload)
            return
        receiver = self.receiver
        assert receiver is not None, "a connection is accepted before anything arrives on it"
        if payload is Mark.RESET:
            self.outgoing.close_quietly()
            self._leave()
            receiver.lost(ConnectionResetError(104, "connection reset by the other side"))
        elif payload is Mark.FINISHED:
            receiver.finished()
        else:
            receiver.received(payload)

    def drained(self) -> None:
        """Pass on that something arrived at the other end. For the network only."""
        if self.receiver is not None:
            self.receiver.drained()

    def kill(self, rng: Random) -> None:
        """The owner's process died: what its kernel had taken is sent, then an end or a reset."""
        if not self._gone:
            self.outgoing.shorten(WINDOW_BYTES)
            if rng.getrandbits(1):
                self.outgoing.finish()
            else:
                self.outgoing.cut()
        self.receiver = None
        self._leave()

    def power_off(self) -> None:
        """The owner's machine lost its power: the other side hears nothing more."""
        self.outgoing.vanish()
        self.receiver = None
        self._leave()

    def _leave(self) -> None:
        self._gone = True
        self.incoming.release(HELD_READER)
        self._on_gone(self.connection.id)
        self.connection.forget_if_over()

    def _answer_for_a_closed_port(self, payload: object) -> None:
        if payload is Mark.RESET:
            self.outgoing.close_quietly()
            if self.receiver is not None:
                self.receiver.lost(ConnectionResetError(104, "connection reset by the other side"))
        elif payload is not Mark.FINISHED and self.host.up:
            self.outgoing.cut(keep_bytes=0)


class Connection:
    """Two pipes, and the faults that hit both."""

    def __init__(
        self, network: Wires, connection_id: int, dialler: Machine, target: Machine
    ) -> None:
        self.id = connection_id
        self.forward = Pipe(network, dialler, target, f"c{connection_id}>")
        self.backward = Pipe(network, target, dialler, f"c{connection_id}<")
        self._network = network

    def cut(self) -> None:
        """Break both directions; each side learns of it at its own time (N2)."""
        rng = self._network.rng
        # Up to 2 s apart: longer than a tick, so that one side acts while the other still hopes.
        for pipe in (self.forward, self.backward):
            pipe.cut(delay_us=int(rng.random() ** 3 * 2 * US_PER_S))

    def break_one_side(self, *, dialler: bool) -> None:
        """Reset only one side; the other finds out when it sends (half-open)."""
        told, untold = (self.backward, self.forward) if dialler else (self.forward, self.backward)
        untold.vanish()
        told.cut()
        told.closed_by = None  # the untold side may go on sending, into a closed port

    def stall(self) -> None:
        """Let nothing move in either direction, and tell nobody."""
        self.forward.hold(HELD_STALL)
        self.backward.hold(HELD_STALL)

    def resume(self) -> None:
        """Take the stall back."""
        self.forward.release(HELD_STALL)
        self.backward.release(HELD_STALL)

    def touches(self, machine: Machine) -> bool:
        """Whether one of its ends is there."""
        return machine in {self.forward.source, self.forward.target}

    def forget_if_over(self) -> None:
        """Leave the network's list once nothing is under way and nobody can send any more."""
        if self.forward.over and self.backward.over:
            self._network.connections.pop(self.id, None)


def describe_payload(payload: object) -> str:
    """A payload as the trace names it: bytes by length and checksum, marks by their word."""
    if isinstance(payload, bytes):
        return describe_bytes(payload)
    if isinstance(payload, Mark):
        return payload.value
    return type(payload).__name__
