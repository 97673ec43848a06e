"""Claims: a request that cannot be sent fails at once for who asks for it, and for nobody else."""

import asyncio

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import ScriptedEnsemble

from zabd.client import SessionState, connect
from zabd.client.recipes import Queue
from zabd.client.requests import QUEUED_MAX
from zabd.client.session import Session
from zabd.model.errors import LocalProtocolError
from zabd.model.ops import Exists, SetData
from zabd.model.session import ConnectRequest, ConnectResponse
from zabd.wire.frames import REQUEST_BYTES_MAX
from zabd.wire.replies import encode_connect_response

OVERHEAD = 8 + (4 + len("/app/a")) + 4 + 4  # of a set: header, path, length of the data, version
TEXT: bytes = "text"  # type: ignore[assignment]  # a mistake that is easily made


def test_what_cannot_be_encoded_raises_at_once_and_costs_no_reply_of_another() -> None:
    """It used to raise when its turn came, in the middle of the replies that others wait for."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 1)
        [server] = ensemble.servers
        async with connect(ensemble.hosts) as zk:
            await zk.create("/a", b"0")
            ensemble.shut(server)
            await wait_until(lambda: not zk.connected)
            before = asyncio.ensure_future(zk.get("/a"))
            await asyncio.sleep(0)
            with pytest.raises(TypeError):
                await zk.set("/a", TEXT)
            with pytest.raises(LocalProtocolError, match="does not fit"):
                await zk.set("/a", b"", version=2**31)
            after = asyncio.ensure_future(zk.get("/a"))
            ensemble.open(server)
            assert (await before).data == (await after).data == b"0"
            assert zk.state is SessionState.CONNECTED

    run(main)


def test_one_mistake_among_thousands_that_wait_leaves_none_unanswered() -> None:
    """More wait than a server reads, so most are sent as the first answers come."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 1)
        async with connect(ensemble.hosts) as zk:
            await zk.create("/a", b"0")
            outcomes = await asyncio.gather(
                *(zk.set("/a", TEXT if n == 1200 else b"x", timeout=None) for n in range(2000)),
                return_exceptions=True,
            )
            wrong = [n for n, each in enumerate(outcomes) if isinstance(each, BaseException)]
            assert wrong == [1200]

    run(main)


def test_credentials_that_cannot_be_encoded_raise_where_they_are_given() -> None:
    """Not at each connection, which would then never be established."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 1)
        zk = connect(ensemble.hosts, auth=[("digest", TEXT)])
        with pytest.raises(TypeError):
            await zk.start()
        await zk.close()
        with pytest.raises(TypeError, match="sasl: expected a user and a password"):
            connect(ensemble.hosts, sasl=("user", b"secret"))  # type: ignore[arg-type]
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(TypeError):
                await zk.add_auth("digest", 5)  # type: ignore[arg-type]
            with pytest.raises(LocalProtocolError, match="add_auth: a request of"):
                await zk.add_auth("digest", bytes(REQUEST_BYTES_MAX))
            ensemble.cut()
            assert await zk.exists("/a") is None

    run(main)


def test_a_request_larger_than_servers_take_raises_and_says_what_to_do() -> None:
    """A server closes the connection without an answer, under the requests of everybody else."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 1)
        async with connect(ensemble.hosts + "/app") as zk:
            await zk.ensure_path("/a")
            with pytest.raises(LocalProtocolError, match=r"set_data /a: .*1048576 .*1048575.*jute"):
                await zk.set("/a", bytes(REQUEST_BYTES_MAX - OVERHEAD + 1))
            await zk.set("/a", bytes(REQUEST_BYTES_MAX - OVERHEAD))
            with pytest.raises(LocalProtocolError, match="multi"):
                await Queue(zk, "/q").put(bytes(1_100_000))
            assert len(ensemble.seen(ConnectRequest)) == 1

    run(main)


def test_the_limit_is_that_of_the_servers() -> None:
    """An operator may have raised jute.maxbuffer, or lowered it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 1)
        ensemble.request_bytes_max = 4 * REQUEST_BYTES_MAX
        async with connect(ensemble.hosts, request_bytes_max=4 * REQUEST_BYTES_MAX) as zk:
            await zk.create("/a", bytes(2 * REQUEST_BYTES_MAX))
            with pytest.raises(LocalProtocolError, match=r"create2? /b"):
                await zk.create("/b", bytes(4 * REQUEST_BYTES_MAX))
        with pytest.raises(ValueError, match="request_bytes_max=0"):
            connect(ensemble.hosts, request_bytes_max=0)

    run(main)


def test_a_session_is_closed_behind_whatever_number_of_requests() -> None:
    """A full queue refuses more work, not the end."""
    session = Session(30_000)
    session.opened(0)
    greeting = ConnectResponse(0, 30_000, 0x77, bytes(16), read_only=False)
    session.receive(encode_connect_response(greeting), 0)
    session.closed(1)
    for _ in range(QUEUED_MAX):
        session.submit(Exists("/a", watch=False), None, 1)
    with pytest.raises(LocalProtocolError, match="wait already"):
        session.submit(SetData("/a", b"", -1), None, 1)
    session.close(None, 1)
    session.abandon(1)
    assert session.state is SessionState.CLOSED
