"""Claims: closing a client ends all of it, whatever becomes of whoever closes it."""

import asyncio

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import SWALLOW, Connection, ScriptedEnsemble

from zabd.client import Client, SessionState, StateChange, connect
from zabd.model.ops import CloseSession, Op


async def with_work(ensemble: ScriptedEnsemble) -> tuple[Client, "asyncio.Task[None]"]:
    """A client with work that does not look at its session, at servers that are gone."""
    zk = connect(ensemble.hosts)
    await zk.start()
    work = zk.spawn(forever())
    ensemble.shut(ensemble.servers[0])
    await wait_until(lambda: not zk.connected)
    return zk, work


async def forever() -> None:
    """Work that only a cancellation ends."""
    await asyncio.Event().wait()


def test_a_close_that_is_cancelled_still_stops_everything() -> None:
    """It used to stop nothing, and a second close returned at once."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        before = asyncio.all_tasks()
        zk, work = await with_work(ensemble)
        closing = asyncio.ensure_future(zk.close(timeout=10.0))
        await asyncio.sleep(1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert zk.state is SessionState.CLOSED
        await asyncio.sleep(0)
        assert work.cancelled()
        await asyncio.sleep(0.1)
        assert asyncio.all_tasks() == before
        await zk.close()
        await zk.close()

    run(main)


def test_whoever_closes_again_waits_for_the_end_too() -> None:
    """And may have less patience, which ends it for both."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        zk, work = await with_work(ensemble)
        first = asyncio.ensure_future(zk.close(timeout=20.0))
        await asyncio.sleep(1)
        start = loop.time()
        await zk.close(timeout=3.0)
        assert loop.time() - start == pytest.approx(4.5, abs=0.1)  # and a grace for the work
        await first
        assert work.cancelled()
        assert loop.time() - start == pytest.approx(4.5, abs=0.1)

    run(main)


def test_a_client_that_was_closed_may_be_closed_on_another_loop() -> None:
    """There is nothing left to do."""
    clients = []

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            clients.append(zk)

    run(main)
    asyncio.run(clients[0].close())


def test_hooks_hear_of_the_states_in_their_order_even_if_one_of_them_finds_the_end() -> None:
    """A hook that compares the lease must not tell the next one of LOST before CONNECTED."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            stalls = [60]
            found: list[object] = []
            heard: list[tuple[int, SessionState]] = []

            def stalls_and_looks(change: StateChange) -> None:
                if change.state is SessionState.CONNECTED and stalls:
                    loop.sleep_machine(stalls.pop())
                    found.extend((zk.check_lease(), zk.state))

            zk.on_transition(stalls_and_looks)
            zk.on_transition(lambda change: heard.append((change.session_id, change.state)))
            first = zk.session_id
            ensemble.cut()
            await wait_until(lambda: len(heard) == 4, limit=120)
            assert found == [False, SessionState.LOST]
            assert heard[:3] == [
                (first, SessionState.SUSPENDED),
                (first, SessionState.CONNECTED),
                (first, SessionState.LOST),
            ]
            assert heard[3] == (zk.session_id, SessionState.CONNECTED)

    run(main)


def test_a_close_that_nobody_answers_is_given_up() -> None:
    """The session is left for the ensemble to expire."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)

        def deaf(connection: Connection, op: Op) -> str:
            return SWALLOW if isinstance(op, CloseSession) else "pass"

        zk = connect(ensemble.hosts)
        await zk.start()
        ensemble.faults.append(deaf)
        start = loop.time()
        await zk.close(timeout=2.0)
        assert loop.time() - start == pytest.approx(2.0, abs=0.1)
        assert zk.state is SessionState.CLOSED

    run(main)
