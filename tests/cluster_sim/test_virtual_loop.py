"""A VirtualLoop is an asyncio loop whose time and fate belong to the simulator."""

import asyncio
import gc
import logging
import warnings
from collections.abc import Awaitable, Callable

import pytest
from tests.cluster_sim.worlds import Recorder, World, connect, later

from zabd.cluster_sim.virtual_loop import VirtualLoop


@pytest.fixture
def world() -> World:
    """A fresh world."""
    return World()


# --- time and order ----------------------------------------------------------------------------


def test_hours_pass_in_no_time(world: World) -> None:
    """Session timeouts of hours are simulated in milliseconds."""
    loop = world.process()

    async def main() -> float:
        await asyncio.sleep(3_600)
        return loop.time()

    assert loop.run_until_complete(main()) == pytest.approx(3_600, abs=0.001)


def test_ready_callbacks_run_first_in_first_out(world: World) -> None:
    """Chance never decides between callbacks of one process (L1)."""
    loop = world.process()
    seen: list[int] = []
    for number in range(5):
        loop.call_soon(seen.append, number)
    loop.call_soon_threadsafe(seen.append, 5)

    later(world)

    assert seen == [0, 1, 2, 3, 4, 5]


def test_a_timer_never_runs_before_its_time(world: World) -> None:
    """Rounding between seconds and microseconds must not let a deadline pass early (L2)."""
    loop = world.process(drift_ppm=137)
    early: list[float] = []
    for step in range(1, 500):
        when = step * 0.0123456789
        loop.call_at(when, lambda when=when: early.append(when) if loop.time() < when else None)

    later(world, 10_000)

    assert early == []


def test_processes_have_clocks_of_their_own(world: World) -> None:
    """A member's clock may run fast or slow; its timers follow its own clock."""
    fast, slow = world.process(drift_ppm=10_000), world.process(drift_ppm=-10_000)
    order: list[str] = []
    slow.call_later(100, order.append, "slow")
    fast.call_later(101, order.append, "fast")

    later(world, 200_000)

    assert order == ["fast", "slow"]
    assert fast.time() == pytest.approx(202)
    fast.set_drift(0)
    later(world, 1_000)
    assert fast.time() == pytest.approx(203)


def test_a_spinning_task_moves_the_clock_on(world: World) -> None:
    """A loop of sleep(0) would otherwise stop the world."""
    loop = world.process()

    async def spin() -> None:
        while loop.time() < 0.01:  # noqa: ASYNC110 - the very thing that is tried
            await asyncio.sleep(0)

    loop.run_until_complete(spin())


def test_cancelled_timers_do_not_run(world: World) -> None:
    """call_later gives a handle that works."""
    loop = world.process()
    seen: list[str] = []
    loop.call_later(1, seen.append, "no").cancel()
    loop.call_later(2, seen.append, "yes")
    later(world, 3_000)
    assert seen == ["yes"]


def test_waiting_for_what_will_never_happen_is_an_error(world: World) -> None:
    """A deadlock under simulation is reported, not waited for."""
    loop = world.process()

    async def hang() -> None:
        await loop.create_future()

    with pytest.raises(RuntimeError, match="never happen"):
        loop.run_until_complete(hang())


# --- asyncio's own tools -------------------------------------------------------------------------


async def _use_timeout() -> str:
    try:
        async with asyncio.timeout(5):
            await asyncio.sleep(50)
    except TimeoutError:
        return "timed out"
    return "no"


async def _use_task_group() -> str:
    results: list[int] = []

    async def work(number: int) -> None:
        await asyncio.sleep(1 / number)
        results.append(number)

    async with asyncio.TaskGroup() as group:
        for number in (1, 2, 3):
            group.create_task(work(number))
    return str(results)


async def _use_queue_and_event() -> str:
    queue: asyncio.Queue[int] = asyncio.Queue(1)
    done = asyncio.Event()

    async def produce() -> None:
        for number in range(3):
            await queue.put(number)
        done.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        got = [await queue.get() for _ in range(3)]
        await done.wait()
    return str(got)


async def _use_lock_and_gather() -> str:
    lock = asyncio.Lock()
    order: list[int] = []

    async def hold(number: int) -> None:
        async with lock:
            await asyncio.sleep(0.01)
            order.append(number)

    await asyncio.gather(*(hold(number) for number in range(3)))
    return str(order)


async def _use_generator() -> str:
    async def count():  # noqa: ANN202 - an asynchronous generator
        for number in range(3):
            yield number
            await asyncio.sleep(1)

    return str([number async for number in count()])


async def _use_shield_and_condition() -> str:
    condition = asyncio.Condition()

    async def waker() -> None:
        async with condition:
            condition.notify_all()

    async with condition:
        task = asyncio.create_task(waker())
        await condition.wait()
    await asyncio.shield(task)
    return "woken"


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (_use_timeout, "timed out"),
        (_use_task_group, "[3, 2, 1]"),
        (_use_queue_and_event, "[0, 1, 2]"),
        (_use_lock_and_gather, "[0, 1, 2]"),
        (_use_generator, "[0, 1, 2]"),
        (_use_shield_and_condition, "woken"),
    ],
)
def test_asyncios_tools_work_in_it(
    world: World, use: Callable[[], Awaitable[str]], expected: str
) -> None:
    """Code written on asyncio runs unchanged."""
    assert world.process().run_until_complete(use()) == expected


def test_an_unhandled_failure_is_kept(world: World) -> None:
    """An exception nobody handles must fail the run that it happened in, not vanish in a log."""
    loop = world.process()
    loop.call_soon(lambda: 1 / 0)
    later(world)
    [failure] = loop.failures
    assert isinstance(failure["exception"], ZeroDivisionError)


def test_threads_and_signals_are_refused(world: World) -> None:
    """What has no meaning in virtual time says so."""
    loop = world.process()
    with pytest.raises(NotImplementedError, match="no threads"):
        loop.run_in_executor(None, print)
    with pytest.raises(NotImplementedError, match="no signals"):
        loop.add_signal_handler(15, print)
    with pytest.raises(NotImplementedError, match="TLS"):
        loop.run_until_complete(loop.create_connection(Recorder, "m1", 1, ssl=True))


# --- the fate of a process -----------------------------------------------------------------------


def test_a_paused_process_does_nothing_and_then_catches_up(world: World) -> None:
    """SIGSTOP: timers fall due meanwhile and all run when it goes on."""
    loop = world.process()
    seen: list[float] = []
    for second in (1, 2, 3):
        loop.call_later(second, lambda: seen.append(loop.time()))
    later(world, 1_500)
    loop.pause()
    later(world, 8_500)
    assert len(seen) == 1
    loop.resume()
    later(world, 1)
    assert [round(at) for at in seen] == [1, 10, 10]


def test_a_slow_process_takes_its_time(world: World) -> None:
    """Each turn of a slow member costs what the simulator says."""
    loop = world.process()
    loop.turn_us = 250_000

    async def ten_turns() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    loop.run_until_complete(ten_turns())
    assert 2.0 <= loop.time() <= 3.0


def test_nothing_of_a_killed_process_runs_any_more(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """No handle, no timer, no finally: what SIGKILL means (L3)."""
    caplog.set_level(logging.DEBUG)
    loop, watcher = world.process(), world.process()
    effects: list[str] = []

    async def hold() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            effects.append("finally")

    async def kill_itself() -> None:
        loop.kill()
        loop.call_soon(effects.append, "handle")
        await asyncio.sleep(0)
        effects.append("next step")

    task = loop.create_task(hold())
    loop.call_later(5, effects.append, "timer")
    later(world, 1_000)
    doomed = loop.create_task(kill_itself())
    later(world, 20_000)
    del task, doomed
    watcher.run_until_complete(asyncio.sleep(1))

    assert not loop.alive
    assert effects == []
    assert caplog.records == []


def test_a_killed_process_loses_its_connections(world: World) -> None:
    """The kernel closes what a killed process had open; the other side is told."""
    server, client = world.process(), world.process()
    served, dialler = connect(world, server, client)
    server.kill()
    later(world)
    assert dialler.heard[-1] == "lost"
    assert served.heard == ["made"]


def test_a_machine_without_power_tells_nobody(world: World) -> None:
    """The other side finds out when it sends and the machine is back (half-open)."""
    server, client = world.process(), world.process()
    _, dialler = connect(world, server, client)
    server.power_off()
    server.stack.host.up = False
    later(world, 60_000)
    dialler.transport.write(b"are you there?")
    later(world)
    assert dialler.heard == ["made"]
    server.stack.host.up = True
    dialler.transport.write(b"and now?")
    later(world)
    assert dialler.heard == ["made", "lost"]
    assert isinstance(dialler.error, ConnectionResetError)


# --- connections -------------------------------------------------------------------------------


def test_what_is_written_arrives_in_order(world: World) -> None:
    """A connection is a FIFO stream."""
    server, client = world.process(), world.process()
    served, dialler = connect(world, server, client)
    sent = b"".join(b"%d," % n for n in range(200))
    for number in range(200):
        dialler.transport.write(b"%d," % number)
    dialler.transport.writelines([b"the", b" end"])
    later(world)
    assert bytes(served.data) == sent + b"the end"
    assert served.transport.get_extra_info("peername") == dialler.transport.get_extra_info(
        "sockname"
    )


def test_a_closed_port_refuses(world: World) -> None:
    """A member that is down refuses at once; a name nobody has is unreachable."""
    _, client = world.process("server"), world.process()

    async def dial(name: str) -> None:
        await client.create_connection(Recorder, name, 99)

    with pytest.raises(ConnectionRefusedError):
        client.run_until_complete(dial("server"))
    with pytest.raises(OSError, match="no machine"):
        client.run_until_complete(dial("nowhere"))


def test_closing_sends_what_was_written_first(world: World) -> None:
    """close() flushes; both sides hear connection_lost(None), in T1's order."""
    server, client = world.process(), world.process()
    served, dialler = connect(world, server, client)
    dialler.transport.write(b"x" * 300_000)
    dialler.transport.close()
    dialler.transport.write(b"not this")
    later(world)
    assert len(served.data) == 300_000
    assert served.heard == ["made", "data", "eof", "lost"]
    assert dialler.heard == ["made", "pause", "lost"]
    assert served.error is None
    assert dialler.error is None


def test_a_slow_reader_pauses_the_writer(world: World) -> None:
    """Flow control reaches from the reader's pause to the writer's protocol, and back (T3)."""
    server, client = world.process(), world.process()
    served, dialler = connect(world, server, client)
    served.transport.pause_reading()
    for _ in range(5):
        dialler.transport.write(b"y" * 60_000)
    later(world, 10_000)
    assert dialler.heard == ["made", "pause"]
    assert served.heard == ["made"]
    served.transport.resume_reading()
    later(world)
    assert dialler.heard == ["made", "pause", "resume"]
    assert len(served.data) == 300_000


def test_a_failing_protocol_costs_its_connection_only(world: World) -> None:
    """As asyncio: the exception is reported, the connection is lost, the process lives."""
    server, client = world.process(), world.process()
    served, dialler = connect(world, server, client)
    served.data_received = lambda data: 1 / 0  # type: ignore[method-assign, return-value]
    dialler.transport.write(b"boom")
    later(world)
    assert isinstance(served.error, ZeroDivisionError)
    assert dialler.heard[-1] == "lost"
    assert [type(f["exception"]) for f in server.failures] == [ZeroDivisionError]


def test_a_dial_into_a_partition_waits_and_connects_when_it_heals(world: World) -> None:
    """A cut path holds the dial; a cancelled one leaves nothing behind."""
    server, client = world.process(), world.process()
    a, b = server.stack.host, client.stack.host
    accepted: list[Recorder] = []

    def factory() -> Recorder:
        accepted.append(Recorder())
        return accepted[-1]

    server.run_until_complete(server.create_server(factory, None, 2181))
    world.network.partition([[a], [b]])

    async def dial() -> str:
        try:
            async with asyncio.timeout(3):
                await client.create_connection(Recorder, a.address, 2181)
        except TimeoutError:
            world.network.heal()
            await client.create_connection(Recorder, a.address, 2181)
            return "connected later"
        return "connected"

    assert client.run_until_complete(dial()) == "connected later"
    later(world, 5_000)
    assert len(accepted) == 1


def test_a_dial_without_an_answer_times_out_as_tcp_does(world: World) -> None:
    """After 127 s of silence."""
    server, client = world.process(), world.process()
    server.stack.host.up = False

    async def dial() -> None:
        await client.create_connection(Recorder, server.stack.host.name, 1)

    with pytest.raises(TimeoutError):
        client.run_until_complete(dial())
    assert client.time() == pytest.approx(127, abs=1)


def test_a_dial_given_up_too_late_ends_the_connection_it_made(world: World) -> None:
    """The answer and the time limit come in one turn: the protocol hears of the end, as it must."""
    server, client = world.process(), world.process()
    accepted, dialled = Recorder(), Recorder()
    server.run_until_complete(
        server.create_server(lambda: accepted, server.stack.host.name, 2181)  # type: ignore[arg-type]
    )

    async def dial() -> None:
        async with asyncio.timeout(1):
            await client.create_connection(lambda: dialled, server.stack.host.name, 2181)

    dialling = client.create_task(dial())
    world.schedule.after(50, client.pause)
    world.schedule.after(5_000_000, client.resume)
    later(world, 10_000)

    assert isinstance(dialling.exception(), TimeoutError)
    assert dialled.heard == ["made", "lost"]
    assert accepted.heard == ["made", "eof", "lost"]


def test_a_server_stops_accepting_when_it_is_closed(world: World) -> None:
    """close() refuses new connections; wait_closed() waits for the ones there are."""
    server, client = world.process(), world.process()
    listener = server.run_until_complete(server.create_server(Recorder, "127.0.0.1", 0))
    [listening] = listener.sockets
    port = listening.getsockname()[1]

    async def dial(loop: VirtualLoop) -> asyncio.Transport:
        transport, _ = await loop.create_connection(Recorder, "127.0.0.1", port)
        return transport

    with pytest.raises(ConnectionRefusedError):
        client.run_until_complete(dial(client))
    transport = server.run_until_complete(dial(server))
    with pytest.raises(OSError, match="in use"):
        server.run_until_complete(server.create_server(Recorder, "127.0.0.1", port))
    listener.close()
    waiting = server.create_task(listener.wait_closed())
    later(world)
    assert not waiting.done()
    transport.close()
    server.run_until_complete(waiting)
    with pytest.raises(ConnectionRefusedError):
        server.run_until_complete(dial(server))


def test_streams_work_on_it(world: World) -> None:
    """Users' code may use asyncio's streams, which stand on the same transports."""
    server, client = world.process("server"), world.process()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    async def serve() -> None:
        await asyncio.start_server(echo, "server", 7)  # noqa: TID251 - users may

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection(  # noqa: TID251 - users may
            "server", 7
        )
        writer.write(b"hello\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    server.run_until_complete(serve())
    assert client.run_until_complete(ask()) == b"hello\n"


def test_what_a_killed_process_still_asks_for_is_passed_over_in_silence() -> None:
    """Its stack runs on to its end (L3); nobody complains of the tasks that it makes there."""
    world = World()
    process = world.process()
    ran: list[str] = []

    async def work() -> None:
        ran.append("work")

    def be_killed() -> None:
        process.kill()
        process.create_task(work())
        ran.append("end")

    process.call_soon(be_killed)
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        later(world)
        gc.collect()
    assert ran == ["end"]
    assert not complaints
