"""Experiments in a few lines, and users' own programs under faults.

    async def experiment(scenario: Scenario) -> None:
        worker = scenario.spawn("worker", lambda: my_program(scenario.hosts))
        await asyncio.sleep(5)
        (await scenario.leader()).kill()
        assert await worker.result() == "done"

    simulate(experiment, seed=7)

The servers, the clients, the program and the experiment itself run in virtual time, each on a
machine of its own, all from one seed; the invariants are checked at every step. A program finds in
`zabd.client` the same things as in production: `connect`, the recipes, asyncio's own tools.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from os import PathLike
from random import Random
from typing import Any, Final, Generic, TypeVar

from zabd.client import client as client_module
from zabd.client.identity import Identity
from zabd.cluster_sim.core_member import CoreMember
from zabd.cluster_sim.failure_notes import notes
from zabd.cluster_sim.fault_kinds import FAULT_KINDS
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.network import Host
from zabd.cluster_sim.picture import drawing
from zabd.cluster_sim.schedule import US_PER_S
from zabd.cluster_sim.shape import Shape, plain_shape
from zabd.cluster_sim.virtual_loop import VirtualLoop
from zabd.cluster_sim.whole_client import Program
from zabd.cluster_sim.whole_level import WholeLevel
from zabd.model.errors import ZabdError
from zabd.model.ids import MemberId
from zabd.zab.peer import Peer

T = TypeVar("T")

DEADLINE_S: Final = 3_600.0

LOOK_EVERY_S: Final = 50e-6
"""How often `Scenario.until` looks: no delivery between machines takes less than 80 us."""

WITHIN_S: Final = 10.0
"""How long `Scenario.until` waits: longer than an election takes."""


class ProcessKilledError(ZabdError):
    """The process whose result was awaited was killed before it had one."""


class _Level(WholeLevel):
    """The ensemble of a scenario; its programs are the user's."""

    name = "scenario"

    def __init__(self, seed: int, shape: Shape) -> None:
        super().__init__(seed, shape)
        self.processes: list[Process[Any]] = []

    def make_programs(self) -> list[Program]:
        """None: `Scenario.spawn` starts them."""
        return []

    def unfinished(self) -> list[tuple[str, asyncio.Task[Any]]]:
        """The programs that have neither ended nor been killed, by name."""
        return [(each.name, each.task) for each in self.processes if each.task and each.alive]

    def users(self) -> list[Host]:
        """The machines of processes that live."""
        return [process.host for process in self.processes if process.alive and not process.done]


class Process(Generic[T]):
    """A program on a machine of its own."""

    def __init__(
        self, scenario: "Scenario", name: str, program: Callable[[], Awaitable[T]]
    ) -> None:
        self.name = name
        self._scenario = scenario
        self.host: Host = scenario.level.network.add_host(name)
        self.loop = scenario.make_loop(self.host)
        self._task: asyncio.Task[T] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.loop.call_soon(self._begin, program)

    def _begin(self, program: Callable[[], Awaitable[T]]) -> None:
        self._task = asyncio.ensure_future(program())
        assert self._task is not None, "a coroutine makes a task"
        self._task.add_done_callback(self._ended)

    def _ended(self, _task: object) -> None:
        for waiter in self._waiters:
            waiter.get_loop().call_soon(_wake, waiter)

    @property
    def task(self) -> asyncio.Task[T] | None:
        """What runs the program, while it does."""
        return None if self.done else self._task

    @property
    def done(self) -> bool:
        """Whether the program has returned or raised."""
        return self._task is not None and self._task.done()

    @property
    def alive(self) -> bool:
        """Whether the process was not killed."""
        return self.loop.alive

    async def result(self) -> T:
        """Wait for the program's end: what it returned, or what it raised.

        Raises:
            ProcessKilledError: it was killed before.
        """
        while not self.done:
            if not self.alive:
                raise ProcessKilledError(f"{self.name} was killed before it was done")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        assert self._task is not None, "what is done has begun"
        return self._task.result()

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more, no `finally` either."""
        self.loop.kill()
        self._ended(None)

    def pause(self) -> None:
        """SIGSTOP."""
        self.loop.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self.loop.resume()

    async def expire(self) -> None:
        """Let it hear from no member until its sessions are over; return when they are.

        It learns of it when it has connected again.
        """
        level = self._scenario.level
        sessions = level.sessions_of(self.host)
        others = [member.host for member in level.members.values()]
        level.network.partition([[self.host], others])
        while True:
            if all(level.is_closed(session_id) for session_id in sessions):
                break
            await asyncio.sleep(level.shape.tick_ms / 1000)
        for host in others:
            level.network.unblock(self.host, host)
            level.network.unblock(host, self.host)

    def fault(self, kind: str) -> bool:
        """Let a fault of this kind begin here: one of clients, of paths or of connections.

        False if there is nothing that it could hurt now.
        """
        return self._scenario.inflict(kind, self.host)


class MemberControl:
    """One member of the ensemble, in the hands of an experiment."""

    def __init__(self, scenario: "Scenario", member: CoreMember) -> None:
        self._scenario = scenario
        self._member = member
        self.id = member.id
        self.host = member.host

    @property
    def up(self) -> bool:
        """Whether its process runs."""
        return self._member.process is not None

    @property
    def leading(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self._scenario.level.a_leader() is self._member

    @property
    def peer(self) -> Peer | None:
        """Its part in the protocol, with its epochs and zxids, to look at; None while it is down.

        What a process does with it is the process's own: nobody else steps it.
        """
        return self._member.process.peer if self._member.process is not None else None

    def kill(self) -> None:
        """SIGKILL. It stays down until `start`."""
        self._member.crash(power=False)

    def power_off(self) -> None:
        """Take its machine's power: what was not synced is lost, and nobody is told."""
        self._member.crash(power=True)

    def start(self) -> None:
        """Start it on what its disk holds, if it is down."""
        self._member.start()

    def pause(self) -> None:
        """SIGSTOP."""
        if self._member.process is not None:
            self._member.process.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self._member.process is not None:
            self._member.process.resume()

    def slow_down(self, seconds: float) -> None:
        """Let its process be busy for so long after each of its turns (0: as usual)."""
        if self._member.process is not None:
            self._member.process.slow_down(int(seconds * US_PER_S))

    def stall_disks(self) -> None:
        """Let no operation of its disks complete, until `resume_disks`."""
        for disk in self._member.process.disks if self._member.process is not None else ():
            disk.stall()

    def resume_disks(self) -> None:
        """Let them go on."""
        for disk in self._member.process.disks if self._member.process is not None else ():
            disk.resume()

    def step_clock(self, seconds: float) -> None:
        """Let its wall clock jump; what measures time must not care."""
        self._member.wall_clock.step_ms += int(seconds * 1000)

    def set_clock_rate(self, rate: float) -> None:
        """Let its monotonic clock run so much faster than time (1: as usual)."""
        self._member.set_rate(rate)

    def fault(self, kind: str) -> bool:
        """Let a fault of this kind (docs/reference/simulator.md) begin here, and end by itself.

        False if there is nothing that it could hurt now. A member that goes down by it comes back
        by itself.
        """
        return self._scenario.inflict(kind, self._member)


class Scenario:
    """What an experiment has in its hands."""

    def __init__(self, level: _Level, loop: VirtualLoop) -> None:
        self.level = level
        self.loop = loop
        self.members: dict[MemberId, MemberControl] = {
            number: MemberControl(self, member) for number, member in level.members.items()
        }

    @property
    def processes(self) -> list[Process[Any]]:
        """What `spawn` has started."""
        return self.level.processes

    @property
    def hosts(self) -> str:
        """The connect string of the whole ensemble."""
        return ",".join(f"{member.host.name}:2181" for member in self.members.values())

    @property
    def rng(self) -> Random:
        """Chance of the experiment's own, from the seed."""
        return self.loop.rng

    def spawn(self, name: str, program: Callable[[], Awaitable[T]]) -> Process[T]:
        """Run `program()` as a process on a machine called `name`."""
        process = Process(self, name, program)
        self.processes.append(process)
        return process

    async def leader(self) -> MemberControl:
        """The member that leads and serves; waits until there is one."""
        while True:
            for control in self.members.values():
                if control.leading and control.peer is not None and control.peer.serving:
                    return control
            await asyncio.sleep(self.level.shape.tick_ms / 1000)

    async def until(
        self,
        condition: Callable[[], object],
        *,
        within: float = WITHIN_S,
        every: float = LOOK_EVERY_S,
    ) -> None:
        """Wait until something holds, looking once every so many virtual seconds.

        By default that is less than any message takes, so what is done next comes between two steps
        of the protocol: after an fsync, say, and before the acknowledgement of it arrives.

        Raises:
            TimeoutError: it does not hold `within` so many seconds.
        """
        end = self.level.schedule.now_us + within * US_PER_S
        while not condition():
            if self.level.schedule.now_us > end:
                raise TimeoutError(f"what was waited for does not hold within {within:g} s")
            await asyncio.sleep(every)

    def block(
        self, source: MemberControl | Process[Any], target: MemberControl | Process[Any]
    ) -> None:
        """Hold all that goes from one to the other, one way; the other way stays open."""
        self.level.network.block(source.host, target.host)

    def unblock(
        self, source: MemberControl | Process[Any], target: MemberControl | Process[Any]
    ) -> None:
        """Let it go on, what was held first."""
        self.level.network.unblock(source.host, target.host)

    def partition(self, *groups: Sequence[MemberControl | Process[Any]]) -> None:
        """Cut the paths between the groups; who is in none of them is untouched."""
        self.level.network.partition([[one.host for one in group] for group in groups])

    def fault(self, kind: str) -> bool:
        """Let a fault of this kind begin, of whom it may be; False if it could hurt nobody now."""
        return self.inflict(kind, None)

    def inflict(self, kind: str, victim: CoreMember | Host | None) -> bool:
        """As `fault`, with a chosen victim."""
        require_kinds([kind])
        nemesis = self.level.nemesis
        return nemesis.inflict(kind) if victim is None else nemesis.inflict_on(kind, victim)

    @property
    def faults(self) -> Mapping[str, int]:
        """How often a fault of each kind has really happened so far."""
        return self.level.nemesis.happened

    def heal(self) -> None:
        """Open every path."""
        self.level.network.heal()

    def cut(self, one: MemberControl | Process[Any]) -> None:
        """Break every connection of one machine: each side gets a prefix, then a reset."""
        for connection in list(self.level.network.connections.values()):
            if one.host in {connection.forward.source, connection.forward.target}:
                connection.cut()

    def make_loop(self, host: Host) -> VirtualLoop:
        """The loop of a process that starts on this machine."""
        level = self.level
        stack = level.network.open_stack(host)
        loop = VirtualLoop(level.schedule, stack, level.trace, turn_us=level.turn_us)
        loop.rng = level.schedule.stream(f"process {host.name}")
        return loop


def simulate(
    experiment: Callable[[Scenario], Awaitable[T]],
    *,
    seed: int = 0,
    members: int = 3,
    observers: int = 0,
    tick_ms: int = 200,
    faults: Sequence[str] = (),
    fault_every: float = 5.0,
    deadline: float = DEADLINE_S,
    html: str | PathLike[str] | None = None,
) -> T:
    """Run `experiment(scenario)` in virtual time, and return what it returns.

    `members` voters and `observers` are started before. `faults` are kinds (`fault_kinds`) that
    happen all the while, one every `fault_every` virtual seconds on average. `html` is a file
    to which the run is drawn, also when it fails (docs/how-to/read-the-picture.md).

    Raises:
        InvariantError: the ensemble broke one of its promises.
        TimeoutError: the experiment took longer than `deadline` virtual seconds.
    """
    require_kinds(faults)
    shape = replace(
        plain_shape(members, observers, tick_ms),
        fault_every_ms=int(fault_every * 1000),
        kinds=tuple(faults),
    )
    level = _Level(seed, shape)
    try:
        with _seams(), nullcontext() if html is None else drawing(level, html):
            return _run(level, experiment, deadline)
    except Exception as error:
        name = getattr(experiment, "__name__", "experiment")
        for note in notes(seed, name, level.unfinished(), level.trace.tail(20)):
            error.add_note(note)
        raise
    finally:
        level.end()
        level.forget()


def require_kinds(kinds: Iterable[str]) -> None:
    """Raise ValueError if one of them is no kind of fault."""
    for kind in kinds:
        if kind not in FAULT_KINDS:
            raise ValueError(f"{kind!r} is not a kind of fault; there are {', '.join(FAULT_KINDS)}")


def _run(level: _Level, experiment: Callable[[Scenario], Awaitable[T]], deadline: float) -> T:
    host = level.network.add_host("experiment")
    loop = VirtualLoop(level.schedule, level.network.open_stack(host), level.trace)
    loop.rng = level.schedule.stream("process experiment")
    scenario = Scenario(level, loop)
    for member in level.members.values():
        member.start()
    level.nemesis.begin()
    task: asyncio.Future[T] = asyncio.ensure_future(_begin(experiment, scenario), loop=loop)
    end_us = int(deadline * US_PER_S)
    while not task.done():
        if not level.schedule.step() or level.schedule.now_us > end_us:
            raise TimeoutError(f"the experiment was not over after {end_us / US_PER_S:g} s")
        if level.violation is not None:
            raise level.violation
    for process in scenario.processes:
        if process.loop.failures:
            raise _failure(process)
        process.loop.kill()
    return task.result()


async def _begin(experiment: Callable[[Scenario], Awaitable[T]], scenario: Scenario) -> T:
    return await experiment(scenario)


def _failure(process: Process[Any]) -> Exception:
    context = process.loop.failures[0]
    error = context.get("exception")
    if isinstance(error, Exception):
        error.add_note(f"nobody in process {process.name} handled it")
        return error
    return InvariantError("X6", f"process {process.name}: {context.get('message')}")


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


@contextmanager
def _seams() -> Iterator[None]:
    """Where a client would ask the machine who it is, or for chance, let it ask its loop."""
    module = sys.modules[client_module.__name__]
    before = {name: getattr(module, name) for name in ("SystemRandom", "own_identity")}
    vars(module).update(SystemRandom=_chance, own_identity=_identity)
    try:
        yield
    finally:
        vars(module).update(before)


def _own_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "within a simulation all code runs on its loops"
    return loop


def _chance() -> Random:
    return _own_loop().rng


def _identity() -> Identity:
    return Identity(_own_loop().name, 1)
