"""The simulated network: machines, the sockets of processes, and what lies between machines.

Connections, and how they break, are in `connections`. Election notifications, which the protocol
allows to be lost, doubled and reordered, go as datagrams.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from zabd.cluster_sim.connections import (
    HELD_PATH,
    HELD_SLOW,
    HELD_STALL,
    ORDINARY,
    SAME_MACHINE,
    Connection,
    End,
    Latency,
    Machine,
    Mark,
    Pipe,
    Receiver,
    describe_payload,
)
from zabd.cluster_sim.schedule import US_PER_S, Action, Schedule
from zabd.cluster_sim.trace import Trace

# A dial that hears nothing tries again, each time after twice as long, as TCP does: 1 s, 2 s, 4 s,
# ... and gives up after 127 s.
DIAL_RETRY_US: Final = US_PER_S
DIAL_GIVE_UP_US: Final = 127 * US_PER_S

_FIRST_EPHEMERAL_PORT: Final = 32_768
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARD: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - names of "all", nothing is bound


class DatagramFaults(NamedTuple):
    """What may happen to a datagram: the chances that it is lost, arrives twice, or is late."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0  # by up to a second, so that others overtake it


class Host(Machine):
    """A machine: a name, an address, the ports somebody listens at."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name)
        self.address = address
        self.listeners: dict[int, Listener] = {}
        self._next_port = _FIRST_EPHEMERAL_PORT

    def free_port(self) -> int:
        """A port nobody has had before on this machine."""
        self._next_port += 1
        return self._next_port

    def is_mine(self, address: str) -> bool:
        """Whether a process here that names `address` means this machine."""
        return address in {self.name, self.address} or address in LOOPBACK


class Listener:
    """A port with a process behind it. `accept` gives each new connection its receiver."""

    def __init__(
        self, stack: "Stack", address: str, port: int, accept: Callable[["End"], Receiver]
    ) -> None:
        self.stack = stack
        self.address = address
        self.port = port
        self.accept = accept

    def close(self) -> None:
        """Refuse whoever dials from now on; what is connected stays."""
        listeners = self.stack.host.listeners
        if listeners.get(self.port) is self:
            del listeners[self.port]

    def hears(self, address: str) -> bool:
        """Whether one who dials `address` reaches this listener."""
        if self.address in WILDCARD:
            return True
        return (self.address in LOOPBACK) == (address in LOOPBACK)


class Stack:
    """The sockets of one process on one machine."""

    def __init__(self, network: "Network", host: Host) -> None:
        self.network = network
        self.host = host
        self.ends: dict[int, End] = {}
        self.alive = True
        self.before_send: Callable[[], object] | None = None
        self._listeners: list[Listener] = []

    def listen(self, address: str, port: int, accept: Callable[[End], Receiver]) -> Listener:
        """Accept connections at a port of this machine (0 picks one).

        Raises OSError when the port is taken or the address is another machine's.
        """
        if not (address in WILDCARD or self.host.is_mine(address)):
            raise OSError(99, f"cannot listen at {address}: this machine is {self.host.address}")
        port = port or self.host.free_port()
        if port in self.host.listeners:
            raise OSError(98, f"cannot listen at {address}:{port}: the port is in use")
        listener = Listener(self, address, port, accept)
        self.host.listeners[port] = listener
        self._listeners.append(listener)
        return listener

    def dial(
        self,
        address: str,
        port: int,
        *,
        connected: Callable[[End], Receiver],
        failed: Callable[[OSError], object],
    ) -> "Dial":
        """Begin to connect. One of the two callbacks follows, unless the dial is cancelled."""
        return Dial(self, address, port, connected, failed)

    def kill(self) -> None:
        """The process is gone: listeners close, each connection ends as its kernel ends it."""
        self._stop_listening()
        for end in list(self.ends.values()):
            end.kill(self.network.rng)

    def power_off(self) -> None:
        """The machine is gone: nobody is told anything."""
        self._stop_listening()
        for end in list(self.ends.values()):
            end.power_off()

    def forget(self, connection_id: int) -> None:
        """A connection is not this process's any more. For its end only."""
        self.ends.pop(connection_id, None)

    def _stop_listening(self) -> None:
        self.alive = False
        for listener in self._listeners:
            listener.close()


class Dial:
    """An attempt to connect, until it is answered or given up."""

    def __init__(
        self,
        stack: Stack,
        address: str,
        port: int,
        connected: Callable[[End], Receiver],
        failed: Callable[[OSError], object],
    ) -> None:
        self._stack = stack
        self._network = stack.network
        self._address = address
        self._port = port
        self._connected = connected
        self._failed = failed
        self._retry_us = DIAL_RETRY_US
        self._over = False
        self._end: End | None = None
        self._local = (stack.host.address, stack.host.free_port())
        schedule = self._network.schedule
        self._give_up = schedule.after(DIAL_GIVE_UP_US, self._time_out)
        self._try()

    def cancel(self) -> None:
        """Give up; nothing will be called. An end that is already accepted is reset."""
        self._over = True
        self._give_up.cancel()
        if self._end is not None:
            self._end.abort()

    def _try(self) -> None:
        if self._over or not self._stack.alive or self._end is not None:
            return
        network, source = self._network, self._stack.host
        target = network.resolve(self._address, source)
        if target is None:
            self._fail(OSError(113, f"no machine has the address {self._address}"))
            return
        delay_us = network.latency_between(source, target).draw(network.rng)
        if not target.up or network.is_blocked(source, target):
            network.schedule.after(self._retry_us, self._try)
            self._retry_us *= 2
        else:
            network.schedule.after(delay_us, lambda: self._arrive(target))

    def _arrive(self, target: Host) -> None:
        if self._over or not self._stack.alive:
            return
        listener = target.listeners.get(self._port)
        network, source = self._network, self._stack.host
        if listener is None or not listener.hears(self._address) or not target.up:
            back_us = network.latency_between(target, source).draw(network.rng)
            network.schedule.after(back_us, self._refused)
            return
        local = self._local
        if self._address in LOOPBACK:
            local = ("127.0.0.1", local[1])
        remote = (local[0] if self._address in LOOPBACK else target.address, self._port)
        connection = network.connect(source, target)
        server_end = End(
            connection,
            target,
            on_gone=listener.stack.forget,
            outgoing=connection.backward,
            incoming=connection.forward,
            local=remote,
            remote=local,
        )
        client_end = self._end = End(
            connection,
            source,
            on_gone=self._stack.forget,
            outgoing=connection.forward,
            incoming=connection.backward,
            local=local,
            remote=remote,
        )
        client_end.receiver = _Dialling(self, client_end)
        self._stack.ends[connection.id] = client_end
        listener.stack.ends[connection.id] = server_end
        server_end.send(Mark.CONNECTED)
        server_end.receiver = listener.accept(server_end)

    def answered(self, end: End) -> None:
        """The other side accepted. For the network only."""
        self._give_up.cancel()
        if not self._over:
            self._over = True
            end.receiver = self._connected(end)

    def _refused(self) -> None:
        self._fail(ConnectionRefusedError(111, f"nobody listens at {self._address}:{self._port}"))

    def _time_out(self) -> None:
        if self._end is not None:
            self._end.abort()
        self._fail(TimeoutError(110, f"no answer from {self._address}:{self._port}"))

    def broken(self, error: OSError) -> None:
        """The connection broke before the answer came. For the network only."""
        self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._give_up.cancel()
        if not self._over and self._stack.alive:
            self._over = True
            self._failed(error)


class _Dialling:
    """The receiver of a dialler's end until the other side's answer arrives."""

    def __init__(self, dial: Dial, end: End) -> None:
        self._dial = dial
        self._end = end

    def received(self, payload: object) -> None:
        assert payload is Mark.CONNECTED, "N1: the answer to a dial comes first"
        self._dial.answered(self._end)

    def finished(self) -> None:
        raise AssertionError("N1: the answer to a dial comes before the end of file")

    def lost(self, error: OSError) -> None:
        self._dial.broken(error)

    def drained(self) -> None:
        """Nothing is sent before the answer."""


class Network:
    """All machines of a run and what lies between them."""

    def __init__(
        self,
        schedule: Schedule,
        trace: Trace,
        *,
        latency: Latency = ORDINARY,
        describe: Callable[[object], str] | None = None,
    ) -> None:
        self.schedule = schedule
        self.rng = schedule.stream("network")
        self.hosts: dict[str, Host] = {}
        self.connections: dict[int, Connection] = {}
        self.datagram_faults = DatagramFaults()
        self.hurts_votes = False  # a fault hurts datagrams more than the run's shape does
        self.on_datagram_hurt: dict[str, Action] = {}  # by field of DatagramFaults: told once
        self._trace = trace
        self._describe = describe or describe_payload
        self._latency = latency
        self._latencies: dict[tuple[str, str], Latency] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._unordered: set[tuple[str, str]] = set()
        self._by_address: dict[str, Host] = {}
        self._next_connection = 0
        self._sent = 0  # datagrams that may be late
        self._arrived: dict[tuple[str, str], int] = {}  # the last of them that came by a path

    def add_host(self, name: str, address: str | None = None) -> Host:
        """A new machine; without an address it gets the next of 10.0.0.0/8."""
        number = len(self.hosts) + 1
        host = Host(name, address or f"10.0.{number >> 8}.{number & 255}")
        assert name not in self.hosts, f"two machines cannot both be called {name}"
        assert host.address not in self._by_address, f"{host.address} is taken"
        self.hosts[name] = host
        self._by_address[host.address] = host
        return host

    def open_stack(self, host: Host) -> Stack:
        """The sockets of a new process on a machine."""
        return Stack(self, host)

    def resolve(self, address: str, asker: Host) -> Host | None:
        """The machine that `asker` reaches under a name or address, or None."""
        if asker.is_mine(address):
            return asker
        return self.hosts.get(address) or self._by_address.get(address)

    def connect(self, source: Host, target: Host) -> Connection:
        """A fresh connection without ends. For `Dial`, and for links at the core level."""
        self._next_connection += 1
        connection = Connection(self, self._next_connection, source, target)
        self.connections[connection.id] = connection
        return connection

    # --- what lies between two machines -----------------------------------------------------

    def latency_between(self, source: Machine, target: Machine) -> Latency:
        """How long deliveries take from one machine to the other, now."""
        if source is target:
            return SAME_MACHINE
        return self._latencies.get((source.name, target.name), self._latency)

    def set_latency(self, source: Machine, target: Machine, latency: Latency | None) -> None:
        """Change one direction between two machines (None: back to the ordinary)."""
        if latency is None:
            self._latencies.pop((source.name, target.name), None)
        else:
            self._latencies[source.name, target.name] = latency
        for pipe in self._pipes(source, target):
            pipe.latency = self.latency_between(source, target)

    def is_blocked(self, source: Machine, target: Machine) -> bool:
        """Whether nothing gets from one machine to the other."""
        return (source.name, target.name) in self._blocked

    def is_unordered(self, source: Machine, target: Machine) -> bool:
        """Whether what goes one way may arrive in another order than it was sent."""
        return (source.name, target.name) in self._unordered

    def disorder(self, source: Host, target: Host) -> None:
        """Let pieces overtake each other one way, by chance, from now on (against N1).

        Zab assumes that no link does so, and neither does TCP: no fault of this kind is drawn.
        """
        self._unordered.add((source.name, target.name))
        for pipe in self._pipes(source, target):
            pipe.unordered = True

    def block(self, source: Host, target: Host) -> None:
        """Hold everything that goes one way (N3); call it twice for both ways."""
        if source is not target:
            self._blocked.add((source.name, target.name))
            for pipe in self._pipes(source, target):
                pipe.hold(HELD_PATH)

    def unblock(self, source: Host, target: Host) -> None:
        """Let one way go on."""
        self._blocked.discard((source.name, target.name))
        for pipe in self._pipes(source, target):
            pipe.release(HELD_PATH)

    def partition(self, groups: Iterable[Iterable[Host]]) -> None:
        """Cut the paths between the groups, both ways; a machine in no group is untouched."""
        listed = [list(group) for group in groups]
        for group in listed:
            for other in listed:
                if group is not other:
                    for source in group:
                        for target in other:
                            self.block(source, target)

    def heal(self) -> None:
        """Open every path and forget every special latency."""
        self._blocked.clear()
        self._latencies.clear()
        for connection in list(self.connections.values()):
            for pipe in (connection.forward, connection.backward):
                pipe.latency = self.latency_between(pipe.source, pipe.target)
                for reason in (HELD_PATH, HELD_STALL, HELD_SLOW):
                    pipe.release(reason)

    def datagram(self, source: Host, target: Host, arrive: Action) -> None:
        """Send something that may be lost, doubled or overtaken."""
        if not (source.up and target.up) or self.is_blocked(source, target):
            return
        rng, latency = self.rng, self.latency_between(source, target)
        chance = rng.random()
        lost, doubled, late = self.datagram_faults
        if chance < lost:
            self._tell_hurt("lost")
            return
        delay_us, lane = latency.draw(rng), (source.name, target.name)
        if late:
            arrive = self._numbered(source, target, arrive)
            if rng.random() < late:
                delay_us += int(rng.random() ** 2 * US_PER_S)
        self.schedule.after(delay_us, arrive, lane)
        if chance > 1.0 - doubled:
            self._tell_hurt("doubled")
            # The second copy may come much later, in another round or epoch.
            self.schedule.after(latency.draw(rng) + int(rng.random() ** 4 * US_PER_S), arrive)

    def _numbered(self, source: Host, target: Host, arrive: Action) -> Action:
        """The same arrival, which tells when one that was sent later has come before it."""
        path = (source.name, target.name)
        self._sent += 1
        number = self._sent

        def arrives() -> None:
            if number < self._arrived.get(path, 0):
                self._tell_hurt("late")
            self._arrived[path] = max(number, self._arrived.get(path, 0))
            arrive()

        return arrives

    def _tell_hurt(self, field: str) -> None:
        told = self.on_datagram_hurt.pop(field, None)
        if told is not None:
            told()

    def note_delivery(self, pipe: Pipe, payload: object) -> None:
        """Put a delivery into the trace. For the pipes only."""
        self._trace.record(pipe.target.name, f"{pipe.label} {self._describe(payload)}")

    def _pipes(self, source: Machine, target: Machine) -> list[Pipe]:
        return [
            pipe
            for connection in self.connections.values()
            for pipe in (connection.forward, connection.backward)
            if pipe.source is source and pipe.target is target
        ]
