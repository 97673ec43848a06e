"""`VirtualLoop`: an asyncio event loop whose time, sockets and fate belong to the simulator.

One loop stands for one process. The schedule steps it: whatever becomes ready is run in the next
*turn*, in the order in which it became ready, and a turn takes `turn_us` of virtual time. So a
process can be slow (`turn_us`), paused, or have a clock of its own that runs fast or slow.

Invariants
    L1  Within a process callbacks run first in, first out; no chance is drawn in here.
    L2  `time()` never goes back, and a timer never runs before its time by `time()`.
    L3  Once a loop is killed, nothing of it runs: no handle, no timer, no `except`, no `finally`.
        What is still on the stack when it is killed runs to its end, with no effect outside.

What works is what the asyncio documentation promises of a loop, except: threads, subprocesses,
signals, TLS and raw sockets, which raise NotImplementedError with a sentence.
"""

import asyncio
import ctypes
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from random import Random
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, TypeVarTuple, cast

from zabd.cluster_sim.connections import End, Receiver
from zabd.cluster_sim.network import LOOPBACK, WILDCARD, Stack
from zabd.cluster_sim.refusals import Refusals
from zabd.cluster_sim.schedule import US_PER_S, Appointment, Schedule
from zabd.cluster_sim.trace import Trace
from zabd.cluster_sim.transports import SimServer, SimTransport

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ExceptionHandler: TypeAlias = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]

# What one turn of an idle machine's process costs. It is never nothing, so that a task which
# spins on `sleep(0)` moves the clock on instead of stopping it.
TURN_US: Final = 10

# The documented door for loops.
_get_running_loop, _set_running_loop = asyncio._get_running_loop, asyncio._set_running_loop  # noqa: SLF001

# Suspended coroutines of killed processes. Were they collected, Python would run their `finally`
# blocks, which no killed process does (L3). So the list is never collected, not even when the
# interpreter ends: it has one reference more than anybody holds.
_GRAVEYARD: list[object] = []
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_GRAVEYARD))


def _bury(task: asyncio.Task[Any]) -> None:
    # Not an error of the code under test: it is what being killed looks like.
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
    _GRAVEYARD.append(task)


class _Timer(asyncio.TimerHandle):
    __slots__ = ("appointment",)

    appointment: Appointment | None


class VirtualLoop(Refusals):
    """The event loop of one simulated process.

    `stack` holds its sockets; `on_exception` is told of what no code handled (by default it is
    kept in `failures`, for the run to report).
    """

    def __init__(
        self,
        schedule: Schedule,
        stack: Stack,
        trace: Trace,
        *,
        name: str = "",
        turn_us: int = TURN_US,
        drift_ppm: int = 0,
    ) -> None:
        self.name = name or stack.host.name
        self.stack = stack
        self.turn_us = turn_us
        self.rng = Random(self.name)  # who makes the process gives it a stream of its run's seed
        self.failures: list[dict[str, Any]] = []
        self._schedule = schedule
        self._trace = trace
        self._ready: deque[asyncio.Handle] = deque()
        self._turn: Appointment | None = None
        self._in_turn = False
        self._free_at_us = 0
        self._paused = False
        self._dead = False
        self._stopping = False
        self._origin_us = schedule.now_us
        self._origin_time = 0.0
        self._rate = 1.0 + drift_ppm / 1e6
        self._exception_handler: ExceptionHandler | None = None
        self._task_factory: Callable[..., asyncio.Future[Any]] | None = None
        self._debug = False

    def __repr__(self) -> str:
        return f"<VirtualLoop {self.name} at {self.time():.6f}>"

    # --- the simulator's side -----------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the process has not been killed."""
        return not self._dead

    @property
    def paused(self) -> bool:
        """Whether the process is stopped (as by SIGSTOP)."""
        return self._paused

    def pause(self) -> None:
        """Stop the process. Timers and arrivals become ready, and wait."""
        self._paused = True

    def resume(self) -> None:
        """Let a stopped process go on: everything that became ready runs in one turn."""
        if self._paused:
            self._paused = False
            if self._ready:
                self._request_turn()

    def set_drift(self, drift_ppm: int) -> None:
        """Let this process's clock run faster or slower from now on, by parts per million."""
        self._origin_time = self.time()
        self._origin_us = self._schedule.now_us
        self._rate = 1.0 + drift_ppm / 1e6

    def kill(self) -> None:
        """End the process as SIGKILL does: its sockets are closed by the kernel (L3)."""
        if not self._dead:
            self._discard()
            self.stack.kill()

    def power_off(self) -> None:
        """End the process with its machine's power: nobody is told."""
        if not self._dead:
            self._discard()
            self.stack.power_off()

    def _discard(self) -> None:
        self._dead = True
        for task in asyncio.all_tasks(self):
            _bury(task)
        _GRAVEYARD.append(self._ready)
        self._ready = deque()
        if self._turn is not None:
            self._turn.cancel()

    # --- turns -----------------------------------------------------------------------------

    def _request_turn(self) -> None:
        at_us = max(self._schedule.now_us, self._free_at_us)
        self._turn = self._schedule.at(at_us, self._take_turn, self)

    def _take_turn(self) -> None:
        self._turn = None
        if self._paused or self._dead:
            return
        outer = _get_running_loop()
        _set_running_loop(self)
        self._in_turn = True
        ready = self._ready
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:  # noqa: SLF001 - without a call
                    handle._run()  # noqa: SLF001
                if self._stopped():
                    break
        finally:
            self._in_turn = False
            _set_running_loop(outer)
        self._free_at_us = self._schedule.now_us + self.turn_us
        if self._ready and not self._stopped():
            self._request_turn()

    def _stopped(self) -> bool:
        return self._dead or self._paused

    # --- ready callbacks and timers -------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run `callback` in the next turn, after everything that is ready already (L1)."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self._dead:
            self._ready.append(handle)
            if self._turn is None and not self._in_turn and not self._paused:
                self._request_turn()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """The same as `call_soon`: there are no threads in here."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `callback` after `delay` seconds of this process's clock."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `callback` when `time()` has reached `when` (L2)."""
        timer = _Timer(when, callback, args, self, context)
        timer.appointment = None
        if not self._dead and math.isfinite(when):
            due_us = self._origin_us + math.ceil((when - self._origin_time) / self._rate * US_PER_S)
            timer.appointment = self._schedule.at(due_us, partial(self._fire, timer))
        return timer

    def _fire(self, timer: _Timer) -> None:
        if self._dead:
            return
        if self.time() < timer.when():  # rounding, or the clock was slowed meanwhile
            left_us = math.ceil((timer.when() - self.time()) / self._rate * US_PER_S)
            timer.appointment = self._schedule.after(max(1, left_us), partial(self._fire, timer))
            return
        self._trace.record(self.name, "timer")
        self._ready.append(timer)
        if self._turn is None and not self._in_turn and not self._paused:
            self._request_turn()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        appointment = cast("_Timer", handle).appointment
        if appointment is not None:
            appointment.cancel()

    def time(self) -> float:
        """This process's monotonic clock, in seconds since the process began."""
        elapsed_us = self._schedule.now_us - self._origin_us
        return self._origin_time + elapsed_us * self._rate / US_PER_S

    def boot_time_ms(self) -> int:
        """Milliseconds since this machine started: what a client measures its lease on."""
        return int(self.time() * 1000)

    # --- futures and tasks -----------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        """A task of this loop; its first step is taken in the next turn."""
        if self._task_factory is not None:
            task = self._task_factory(self, coro, context=context, **options)
            if name is not None and isinstance(task, asyncio.Task):
                task.set_name(name)
            return cast("asyncio.Task[T]", task)
        made = asyncio.Task(
            cast("Coroutine[Any, Any, T]", coro), loop=self, name=name, context=context, **options
        )
        if self._dead:
            # What was on the stack of a process when it was killed runs on, and nothing comes of it
            # (L3): Python would complain of a coroutine that nobody has ever awaited.
            _bury(made)
        return made

    def set_task_factory(self, factory: Callable[..., asyncio.Future[Any]] | None) -> None:
        """Make tasks by `factory(loop, coro, context=...)`; None for ordinary ones."""
        self._task_factory = factory

    def get_task_factory(self) -> Callable[..., asyncio.Future[Any]] | None:
        """What `set_task_factory` set."""
        return self._task_factory

    # --- running ---------------------------------------------------------------------------

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Step the whole schedule, every process of it, until `future` is done; its result.

        Raises RuntimeError when nothing is left to happen before it is.
        """
        if self._dead:
            raise RuntimeError(f"{self.name} was killed")
        task = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        while not task.done():
            if self._dead:
                raise RuntimeError(f"{self.name} was killed before it was done")
            if not self._schedule.step():
                raise RuntimeError(f"{self.name} waits for something that will never happen")
        return task.result()

    def run_forever(self) -> None:
        """Step the whole schedule until `stop` is called or nothing is left to happen."""
        self._stopping = False
        while not self._stopping and not self._dead and self._schedule.step():
            pass

    def stop(self) -> None:
        """Make `run_forever` return."""
        self._stopping = True

    def is_running(self) -> bool:
        """Whether one of this process's turns is being taken."""
        return self._in_turn

    def is_closed(self) -> bool:
        """Whether the process has ended."""
        return self._dead

    def close(self) -> None:
        """End the process."""
        self.kill()

    async def shutdown_asyncgens(self) -> None:
        """Asynchronous generators end with their process."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """There is no executor."""

    # --- sockets ---------------------------------------------------------------------------

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - asyncio's name
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Resolve the name of a simulated machine."""
        import socket  # noqa: PLC0415 - its constants and its error, no socket

        name = host.decode() if isinstance(host, bytes) else host or "0.0.0.0"  # noqa: S104
        if name in WILDCARD or name in LOOPBACK:
            address = "0.0.0.0" if name in WILDCARD else "127.0.0.1"  # noqa: S104
        else:
            found = self.stack.network.resolve(name, self.stack.host)
            if found is None:
                raise socket.gaierror(socket.EAI_NONAME, f"no machine is called {name}")
            address = found.address
        return [(socket.AF_INET, type or socket.SOCK_STREAM, 6, "", (address, int(port or 0)))]

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        """The name of a simulated machine."""
        found = self.stack.network.resolve(sockaddr[0], self.stack.host)
        return (found.name if found else str(sockaddr[0]), str(sockaddr[1]))

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        **unused: object,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a simulated machine.

        Raises ConnectionRefusedError from a port nobody listens at, TimeoutError when nothing
        answers for 127 s (a cut path is tried again meanwhile), as TCP does.
        """
        _require_plain(ssl, sock)
        assert host is not None, "a connection needs the host it goes to"
        assert port is not None, "a connection needs the port it goes to"
        done: asyncio.Future[tuple[asyncio.Transport, asyncio.BaseProtocol]]
        done = self.create_future()

        def connected(end: End) -> Receiver:
            transport = SimTransport(self, end)
            self.call_soon(transport.open, protocol_factory, done)
            return transport

        def failed(error: OSError) -> None:
            self.call_soon(_fail, done, error)

        dial = self.stack.dial(host, int(port), connected=connected, failed=failed)
        try:
            return await done
        except asyncio.CancelledError:
            if done.done() and not done.cancelled() and done.exception() is None:
                done.result()[0].close()  # the protocol knows it already, and hears of its end
            else:
                dial.cancel()
            raise

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | list[str] | tuple[str, ...] | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        start_serving: bool = True,
        **unused: object,
    ) -> SimServer:
        """Listen at a port of this process's machine. Raises OSError as a real bind does."""
        _require_plain(ssl, sock)
        hosts = [host] if isinstance(host, str) or host is None else list(host)
        # A second address of the same machine shares the port: one simulated machine has one.
        address = "" if len(hosts) > 1 else hosts[0] or ""
        server = SimServer(self, protocol_factory, address, int(port or 0))
        if start_serving:
            await server.start_serving()
        return server

    # --- what no code handled -----------------------------------------------------------------

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell the exception handler; a killed process tells nobody."""
        if self._dead:
            return
        if self._exception_handler is None:
            self._keep_failure(context)
        else:
            self._exception_handler(self, context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep `context` in `failures`."""
        self._keep_failure(context)

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        """Call `handler` in place of keeping failures; None for keeping them."""
        self._exception_handler = handler

    def get_exception_handler(self) -> ExceptionHandler | None:
        """What `set_exception_handler` set."""
        return self._exception_handler

    def _keep_failure(self, context: dict[str, Any]) -> None:
        self.failures.append(context)
        what = context.get("exception") or context.get("message")
        self._trace.record(self.name, f"unhandled {what!r}")

    def get_debug(self) -> bool:
        """Asyncio's debug mode: off unless it was set."""
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        """Switch asyncio's debug mode."""
        self._debug = enabled

    # --- what a simulated process cannot do ------------------------------------------------------

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:
        """Refused."""
        raise NotImplementedError(
            "a VirtualLoop has no threads: submit disk work to the Disk, wait with timers"
        )

    def set_default_executor(self, executor: object) -> NoReturn:
        """Refused."""
        self.run_in_executor(executor, None)

    def add_signal_handler(
        self, sig: int, callback: Callable[[*Ts], object], *args: *Ts
    ) -> NoReturn:
        """Refused, as on a platform without signals."""
        raise NotImplementedError("a simulated process gets no signals: kill or pause its loop")

    def remove_signal_handler(self, sig: int) -> bool:
        """There is none."""
        return False


def _require_plain(ssl: object, sock: object) -> None:
    if ssl is not None:
        raise NotImplementedError("the simulated network has no TLS: pass ssl=None")
    if sock is not None:
        raise NotImplementedError("the simulated network has no raw sockets: pass host and port")


def _fail(future: asyncio.Future[Any], error: OSError) -> None:
    if not future.done():
        future.set_exception(error)
