"""Claims about what is tried again, and about the events a user is told of."""

import asyncio
import logging
from random import Random

import pytest
from tests.client.fast_loop import FastLoop, run
from tests.client.scripted_server import (
    LOSE_REPLY,
    LOSE_REQUEST,
    PASS,
    Connection,
    ScriptedEnsemble,
)

from zabd.client import EventStream, RetryPolicy, connect
from zabd.client.clock import BootClock, clock_of
from zabd.client.events import STREAM_LENGTH_MAX, CallbackQueue
from zabd.client.requests import OUTSTANDING_BYTES_MAX
from zabd.model.errors import (
    ConnectionLossError,
    LocalProtocolError,
    NoNodeError,
    OperationTimeoutError,
)
from zabd.model.ops import Create, GetData, Op, SetData, SetWatches
from zabd.model.session import ConnectRequest
from zabd.model.watch_events import WatchEvent


def lost(*, maybe: bool) -> ConnectionLossError:
    """A lost reply, or a request that was never sent."""
    error = ConnectionLossError("gone")
    error.maybe_applied = maybe
    return error


@pytest.mark.parametrize(
    ("maybe", "idempotent", "calls"),
    [(True, True, 3), (True, False, 1), (False, False, 3), (False, True, 3)],
)
def test_what_may_have_happened_is_repeated_only_if_twice_is_once(
    *, maybe: bool, idempotent: bool, calls: int
) -> None:
    """The caller says what is idempotent; the policy never guesses."""

    async def main(loop: FastLoop) -> None:
        made = 0

        async def call() -> None:
            nonlocal made
            made += 1
            raise lost(maybe=maybe)

        with pytest.raises(ConnectionLossError):
            await RetryPolicy(attempts=3).run(call, Random(1), idempotent=idempotent)
        assert made == calls

    run(main)


def test_an_answer_of_the_service_is_not_tried_again() -> None:
    """NoNode is an answer; asking again would only be slower."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(NoNodeError):
                await zk.retry(lambda: zk.get("/a"), idempotent=True)
            assert len(ensemble.seen(GetData)) == 1
            ensemble.once(SetData, LOSE_REPLY)
            await zk.create("/a")
            await zk.retry(lambda: zk.set("/a", b"1"), idempotent=True)
            assert (await zk.get("/a")).stat.version == 2

    run(main)


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    """When it is made, not when it is needed."""
    with pytest.raises(ValueError, match="attempts"):
        RetryPolicy(attempts=0)


def test_a_request_that_kills_its_connections_is_given_up() -> None:
    """Even a read, which may be repeated, must not be repeated for ever."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        ensemble.faults.append(
            lambda _, op: LOSE_REQUEST if isinstance(op, GetData) else PASS  # poison
        )
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(ConnectionLossError):
                await zk.get("/a")
            assert len(ensemble.seen(GetData)) == 5

    run(main)


def test_a_server_that_drops_us_again_and_again_is_not_hammered() -> None:
    """Watches that a server cannot take would otherwise make a loop without a pause."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)

        def refuse(_: Connection, op: Op) -> str:
            return LOSE_REQUEST if isinstance(op, SetWatches) else PASS

        async with connect(ensemble.hosts) as zk:
            await zk.exists("/a", watch=print)
            ensemble.faults.append(refuse)
            ensemble.cut()
            await asyncio.sleep(10)
            assert len(ensemble.seen(ConnectRequest)) < 40
            ensemble.faults.clear()
            await zk.exists("/b")

    run(main)


def test_large_values_do_not_pile_up_in_the_output() -> None:
    """What a server cannot take yet waits as an op, and can still be withdrawn."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            value = b"x" * 1_000_000
            writes = [asyncio.ensure_future(zk.create(f"/{n}", value)) for n in range(40)]
            await asyncio.sleep(0)
            sent = sum(len(data) for data in zk._session._requests.output)
            assert sent <= OUTSTANDING_BYTES_MAX + len(value) + 1000
            await asyncio.gather(*writes)
            assert len(ensemble.seen(Create)) == 40

    run(main)


def test_a_callback_that_raises_is_logged_and_the_next_one_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One user's mistake must not make another one deaf."""

    async def main(loop: FastLoop) -> None:
        heard: list[int] = []
        queue = CallbackQueue()

        async def slow(event: int) -> None:
            await asyncio.sleep(1)
            heard.append(event)

        def broken(event: int) -> None:
            raise ValueError(event)

        queue.put(slow, 1)
        queue.put(broken, 2)
        queue.put(heard.append, 3)
        await queue.drained()
        assert heard == [1, 3]
        queue.put(slow, 4)
        await asyncio.sleep(0)
        queue.cancel()
        await asyncio.sleep(2)
        assert heard == [1, 3]

    run(main)
    assert "ValueError: 2" in caplog.text


def test_a_backlog_is_warned_about_and_never_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """A listener that misses LOST is worse than one that hears of it late."""

    async def main(loop: FastLoop) -> None:
        heard: list[int] = []
        queue = CallbackQueue()
        for number in range(25_000):
            queue.put(heard.append, number)
        await queue.drained()
        assert heard == list(range(25_000))

    with caplog.at_level(logging.WARNING, "zabd.client"):
        run(main)
    assert len(caplog.records) == 2


def test_a_stream_ends_when_closed_and_fails_when_nobody_reads_it() -> None:
    """Missing events must not look like no events."""

    async def main(loop: FastLoop) -> None:
        stream: EventStream[int] = EventStream()
        stream(1)
        stream(2)
        loop.call_later(1, stream.close)
        assert [event async for event in stream] == [1, 2]
        stream(3)

        flood: EventStream[int] = EventStream()
        for number in range(STREAM_LENGTH_MAX + 1):
            flood(number)
        with pytest.raises(LocalProtocolError, match="nobody read"):
            async for _ in flood:
                pass

    run(main)


def test_unwatch_forgets_a_watcher() -> None:
    """A waiter that has gone must not be called."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            gone: list[WatchEvent] = []
            there: list[WatchEvent] = []
            await zk.exists("/a", watch=gone.append)
            await zk.exists("/a", watch=there.append)
            zk.unwatch("/a", gone.append)
            await zk.create("/a")
            await asyncio.sleep(0.1)
            assert (len(gone), len(there)) == (0, 1)

    run(main)


def test_misuse_is_told_at_once() -> None:
    """Not by a hang."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        zk = connect(ensemble.hosts)
        with pytest.raises(LocalProtocolError, match="not started"):
            await zk.get("/a")
        async with zk:
            with pytest.raises(LocalProtocolError, match="started once"):
                await zk.start()
            tx = zk.transaction().create("/a")
            await tx.commit()
            for again in (tx.commit, lambda: tx.add(Create("/b", b"", None))):
                with pytest.raises(LocalProtocolError, match="committed already"):
                    await again()  # type: ignore[misc]
        with pytest.raises(ValueError, match="timeout"):
            connect("a:1", timeout=0)

    run(main)


def test_a_deadline_after_the_request_was_sent_leaves_the_outcome_open() -> None:
    """The server may have done it, and answered somebody who has gone."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            ensemble.servers[0].silent = True
            with pytest.raises(OperationTimeoutError) as caught:
                await zk.create("/a", timeout=1)
            assert caught.value.maybe_applied
            ensemble.servers[0].silent = False
            ensemble.cut()
            await zk.exists("/a")

    run(main)


def test_the_machines_clock_counts_on() -> None:
    """Milliseconds, from the boot clock where there is one."""

    async def main() -> None:
        clock = clock_of(asyncio.get_running_loop())
        assert isinstance(clock, BootClock)
        first = clock.now_ms()
        assert 0 < first <= clock.now_ms()
        assert clock.wall_ms() > 1_600_000_000_000

    asyncio.run(main())
