"""Claims about servers without a quorum, on scripted servers in virtual time."""

import asyncio

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import ScriptedEnsemble
from tests.client.test_session import states

from zabd.client import SessionState, connect
from zabd.model.errors import NotReadOnlyError, OperationTimeoutError
from zabd.model.ops import Create
from zabd.model.session import ConnectRequest


def test_a_client_that_asked_for_it_reads_without_a_quorum_and_writes_with_one() -> None:
    """It looks for a server that has one, and begins a session there that the ensemble knows."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        ensemble.commit(1, [Create("/a", b"1", ())])
        for server in ensemble.servers:
            server.read_only = True
        async with connect(ensemble.hosts, timeout=12.0, read_only=True) as zk:
            assert zk.state is SessionState.READ_ONLY
            assert not zk.connected
            assert (await zk.get("/a")).data == b"1"
            with pytest.raises(NotReadOnlyError):
                await zk.set("/a", b"2")
            await asyncio.sleep(30)  # no lease runs out: nobody but this server knows the session
            assert zk.state is SessionState.READ_ONLY
            seen = states(zk)
            other = next(s for s in ensemble.servers if s.name != zk.server)
            other.read_only = False
            await zk.wait_connected(timeout=70)
            assert seen == [SessionState.SUSPENDED, SessionState.CONNECTED]
            assert zk.server == other.name
            await zk.set("/a", b"2")
            [request] = ensemble.seen(ConnectRequest)[-1:]
            assert isinstance(request, ConnectRequest)
            assert request.session_id == 0

    run(main)


def test_a_session_of_the_ensembles_survives_a_time_without_quorum() -> None:
    """As long as its lease: what the lone server says renews nothing."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        [server] = ensemble.servers
        async with connect(ensemble.hosts, timeout=12.0, read_only=True) as zk:
            await zk.create("/mine", ephemeral=True)
            session = zk.session_id
            for outage in (5, 14):
                server.read_only = True
                ensemble.cut()
                await wait_until(lambda: zk.state is SessionState.READ_ONLY)
                assert zk.session_id == session
                await zk.exists("/mine")
                if outage == 5:
                    await asyncio.sleep(outage)
                    server.read_only = False
                    ensemble.cut()
                    await zk.wait_connected(timeout=5)
                    assert zk.session_id == session
            seen = states(zk)
            await asyncio.sleep(12)
            assert SessionState.LOST in seen

    run(main)


def test_a_client_that_did_not_ask_waits_for_a_quorum() -> None:
    """Old data must not be taken for current."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        ensemble.servers[0].read_only = True
        with pytest.raises(OperationTimeoutError):
            async with connect(ensemble.hosts, connect_timeout=5):
                pass

    run(main)
