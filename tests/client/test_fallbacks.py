"""Claims about servers that do not know everything, and processes that fork."""

import asyncio
import os
import ssl
from pathlib import Path

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.real_port import real_port
from tests.client.scripted_server import ScriptedEnsemble

from zabd.client import EventStream, ForkedClientError, SyncClient, connect
from zabd.client.recipes import Lock, SyncLock, TreeCache, sequential
from zabd.client.recipes.bound import Bound
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import OperationTimeoutError, UnimplementedError
from zabd.model.ops import (
    Create2,
    CreateContainer,
    CreateTtl,
    OpCode,
    Reconfig,
    SetWatches,
    SetWatches2,
)
from zabd.model.session import ConnectRequest
from zabd.model.watch_events import EventType, WatchEvent

TLS = Path(__file__).parent / "tls"


def test_what_a_server_does_not_know_is_found_out_once_an_hour() -> None:
    """A plain znode serves in place of a container, or of one with a TTL."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        ensemble.unimplemented |= {OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL, OpCode.CREATE2}
        async with connect(ensemble.hosts) as zk:
            for name in ("/a", "/b"):
                assert await zk.create(name, container=True) == name
                assert await zk.create(f"{name}-t", ttl=5) == f"{name}-t"
            created = await zk.create_with_stat("/s-", ephemeral=True, sequential=True)
            assert created.path == "/s-0000000004"
            assert created.stat.ephemeral_owner == zk.session_id
            assert len(ensemble.seen(CreateContainer)) == 1
            assert len(ensemble.seen(CreateTtl)) == 1
            ensemble.unimplemented.clear()
            for asked, later in ((1, 1800.0), (2, 1801.0)):
                await asyncio.sleep(later)
                ensemble.cut()
                await asyncio.sleep(0.5)
                await zk.create(f"/c-{asked}", container=True)
                assert len(ensemble.seen(CreateContainer)) == asked

    run(main)


def test_each_server_that_hangs_up_behind_its_refusal_does_so_once() -> None:
    """As ZooKeeper does: a lock on 3.4 used to cost a connection for each attempt, for ever."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        ensemble.stock = True
        ensemble.unimplemented |= {OpCode.CREATE2, OpCode.GET_EPHEMERALS, OpCode.MULTI_READ}
        async with connect(ensemble.hosts) as zk:
            for _ in range(20):
                async with Lock(zk, "/lock"):
                    ensemble.cut()
                    await wait_until(lambda: zk.connected)
            for server in ensemble.servers:
                asked = [
                    op.opcode
                    for _, name, op in ensemble.requests
                    if name == server.name and not isinstance(op, ConnectRequest)
                ]
                assert all(asked.count(each) <= 1 for each in ensemble.unimplemented)

    run(main)


def test_a_plain_create_is_not_sent_on_what_a_refusal_has_left_of_a_connection() -> None:
    """Its reply would be lost, and the caller told that nobody knows whether it happened."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 2)
        ensemble.stock = True
        ensemble.unimplemented |= {OpCode.CREATE_CONTAINER, OpCode.CREATE2}
        async with connect(ensemble.hosts) as zk:
            assert await zk.create("/a", container=True) == "/a"
            bound = await Bound.now(zk)
            await bound.multi([Create2("/b", b"", OPEN_ACL_UNSAFE, 0)])
            await sequential.create(bound, "/s-", b"", OPEN_ACL_UNSAFE)
            assert len(await zk.get_children("/")) == 3

    run(main)


def test_a_reconnect_to_an_old_server_keeps_the_watches_that_it_knows() -> None:
    """And tells those that it does not know that they are gone: silence would be a lie."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.create("/a")
            once: EventStream[WatchEvent] = EventStream()
            stays: EventStream[WatchEvent] = EventStream()
            await zk.get("/a", watch=once)
            await zk.add_watch("/a", stays, recursive=True)
            async with TreeCache(zk, "/a") as cache:
                ensemble.unimplemented |= {OpCode.ADD_WATCH, OpCode.SET_WATCHES2}
                ensemble.cut()
                assert (await anext(stays)).type is EventType.PERSISTENT_WATCH_REMOVED
                await asyncio.sleep(0.1)
                assert len(ensemble.seen(SetWatches2)) == 1
                assert len(ensemble.seen(SetWatches)) == 1
                await zk.set("/a", b"x")
                assert (await anext(once)).type is EventType.DATA_CHANGED
                await wait_until(lambda: cache.data("/a") == b"x")
                await zk.set("/a", b"y")
                await wait_until(lambda: cache.data("/a") == b"y")
                assert zk.connected

    run(main)


def test_reconfig_is_asked_for_and_its_refusal_told() -> None:
    """The configuration itself is read past any chroot."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        ensemble.unimplemented.add(OpCode.RECONFIG)
        async with connect(ensemble.hosts) as zk:
            await zk.create("/zookeeper/config", b"server.1=...", make_parents=True)
            await zk.ensure_path("/app")
            async with connect(f"{ensemble.hosts}/app") as inside:
                assert (await inside.get_config()).data == b"server.1=..."
                with pytest.raises(UnimplementedError):
                    await inside.reconfig(joining="server.4=h4:2888:3888;2181", from_config=7)
            [op] = ensemble.seen(Reconfig)
            assert op == Reconfig("server.4=h4:2888:3888;2181", None, None, 7)

    run(main)


def test_a_child_process_cannot_use_its_parents_client() -> None:
    """Two processes on one connection would answer each other's requests."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        lock = SyncLock(zk, "/lock")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # no test runner may go on here, whatever happens
            said = b"nothing"
            try:
                for ask in (lambda: zk.get("/"), lock.acquire, zk.close):
                    try:
                        ask()
                        said = b"it worked"
                        break
                    except ForkedClientError:
                        said = b"refused"
            finally:
                os.write(writing, said)
                os._exit(0)
        os.close(writing)
        assert os.read(reading, 100) == b"refused"
        os.close(reading)
        os.waitpid(child, 0)
        assert zk.exists("/nope") is None
        with lock:
            pass


def test_tls_is_a_context_of_the_callers() -> None:
    """With it the server is authenticated; without it nothing is said."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    trusting = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    with real_port(server) as port:
        with SyncClient(port.hosts, ssl_context=trusting) as zk:
            zk.create("/a", b"1")
            assert zk.get("/a").data == b"1"
        stranger = ssl.create_default_context()
        with pytest.raises(OperationTimeoutError):
            SyncClient(port.hosts, ssl_context=stranger, connect_timeout=1).start()
