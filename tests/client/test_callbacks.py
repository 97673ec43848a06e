"""Claims: a callback that fails, whatever way it does, costs neither the others nor the end."""

import asyncio
import logging
import threading

import pytest
from tests.client.fast_loop import FastLoop, run
from tests.client.real_port import real_port
from tests.client.scripted_server import ScriptedEnsemble

from zabd.client import StateChange, SyncClient, connect, events, sync
from zabd.model.watch_events import WatchEvent


def test_a_callback_that_ends_cancelled_is_one_that_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It awaited work of its own that was cancelled; the next event is told all the same."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.create("/a")
            job = asyncio.ensure_future(asyncio.sleep(1000))
            job.cancel()

            async def waits_for_cancelled_work(event: WatchEvent) -> None:
                await job

            heard: list[WatchEvent] = []
            await zk.get("/a", watch=waits_for_cancelled_work)
            await zk.get("/a", watch=heard.append)
            await zk.set("/a", b"1")
            await asyncio.sleep(1)
            assert len(heard) == 1
        assert "waits_for_cancelled_work" in caplog.text

    run(main)


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_callback_that_never_returns_does_not_hold_up_the_end_for_ever(
    stubborn: bool,  # noqa: FBT001 - a parameter
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is cancelled after a grace, and left where it is if it does not care."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        zk = connect(ensemble.hosts)
        await zk.start()
        over = asyncio.Event()

        async def hangs(change: StateChange) -> None:
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    if not stubborn:
                        raise

        zk.add_listener(hangs)
        ensemble.cut()
        await asyncio.sleep(1)
        start = loop.time()
        await zk.close()
        assert loop.time() - start < 2 * events.DRAIN_GRACE + 1
        assert "has not returned" in caplog.text
        over.set()

    run(main)


def test_a_callback_has_time_to_tidy_up_when_the_client_is_closed() -> None:
    """What was put before the end is told before `close` returns."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        tidied = []

        async def tidies_up(change: StateChange) -> None:
            await asyncio.sleep(events.DRAIN_GRACE / 2)
            tidied.append(str(change.state))

        async with connect(ensemble.hosts) as zk:
            zk.add_listener(tidies_up)
        assert tidied == ["CLOSED"]

    run(main)


def test_the_blocking_client_outlives_its_callbacks_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an exit in a callback's thread nor one that hangs there stops anybody else."""
    monkeypatch.setattr(sync, "DRAIN_GRACE", 0.1)
    over = threading.Event()
    heard = threading.Event()
    returned = threading.Event()

    def leaves(event: WatchEvent) -> None:
        raise SystemExit

    def tells(event: WatchEvent) -> None:
        heard.set()
        over.wait(30)
        returned.set()

    with caplog.at_level(logging.ERROR), real_port() as port:
        zk = SyncClient(port.hosts)
        zk.start()
        zk.create("/a")
        zk.get("/a", watch=leaves)
        zk.get("/a", watch=tells)
        zk.set("/a", b"1")
        assert heard.wait(10)
        zk.close()
        assert not returned.is_set()
        over.set()
    assert "failed" in caplog.text
    assert "has not returned" in caplog.text
