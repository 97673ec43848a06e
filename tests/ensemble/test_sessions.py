"""How long a session lives when its client falls silent, by the clock on the wall."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.ensemble.harness import kazoo, serving, wait_until

from zabd.cli.members import Ensemble
from zabd.cli.ports import LOOPBACK
from zabd.client import SessionState, connect

pytestmark = pytest.mark.ensemble

HOLDER = """
import sys
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1], timeout=float(sys.argv[2]))
client.start()
client.create("/held", ephemeral=True)
print(client._session_timeout, flush=True)
for _ in sys.stdin:
    client.exists("/held")
    print("heard", flush=True)
"""


@contextmanager
def holder(hosts: str, timeout_s: float) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with a kazoo client that owns /held; the process and the granted timeout in ms."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, hosts, str(timeout_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    try:
        assert process.stdout is not None
        yield process, int(float(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def seconds_until_gone(hosts: str, process: subprocess.Popen[str]) -> float:
    """Stop the process right after it was heard of; how long its ephemeral stays."""
    with kazoo(hosts) as client:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("say something\n")
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        wait_until(lambda: client.exists("/held") is None, "the ephemeral to go", 40)
        return time.monotonic() - stopped


@pytest.mark.slow
def test_twelve_seconds_are_granted_and_kept(ensemble: Ensemble) -> None:
    """The runbook's timeout at default settings: gone 12 to 15 s after SIGSTOP."""
    with holder(ensemble.hosts, 12.0) as (process, granted_ms):
        silent = seconds_until_gone(ensemble.hosts, process)

    assert granted_ms == 12_000
    assert 11.9 <= silent <= 15.0


def test_a_short_session_is_kept_to_its_timeout(tmp_path: Path) -> None:
    """The same with ticks of 200 ms."""
    with (
        serving(tmp_path, settings={"tickTime": "200", "syncLimit": "25"}) as ensemble,
        holder(ensemble.hosts, 2.0) as (process, granted_ms),
    ):
        silent = seconds_until_gone(ensemble.hosts, process)

    assert granted_ms == 2_000
    assert 1.9 <= silent <= 3.5


class Relay:
    """Stands before a member, and can fall silent without closing anything."""

    def __init__(self, port: int) -> None:
        self.sent_at: list[float] = []  # when the client sent something
        self.silent = False
        self.heard = asyncio.Event()
        self._port = port
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen; the address to give to a client."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _End(self, None), LOOPBACK, 0)
        return f"{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Listen no more."""
        assert self._server is not None
        self._server.close()

    def note(self) -> None:
        """The client sent something."""
        self.sent_at.append(time.monotonic())
        self.heard.set()

    async def dial(self, client_end: "_End") -> "_End":
        """Connect to the member on behalf of a client."""
        _, end = await asyncio.get_running_loop().create_connection(
            lambda: _End(self, client_end), LOOPBACK, self._port
        )
        return end


class _End(asyncio.Protocol):
    """One end of a relayed connection; the client's end dials the member."""

    def __init__(self, relay: Relay, other: "_End | None") -> None:
        self._relay = relay
        self._other = other
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._dialling: asyncio.Task[None] | None = None
        self._is_client = other is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._is_client:
            self._dialling = asyncio.get_running_loop().create_task(self._dial())

    async def _dial(self) -> None:
        self._other = await self._relay.dial(self)
        for data in self._early:
            self._other.write(data)

    def data_received(self, data: bytes) -> None:
        if self._is_client:
            self._relay.note()
        if self._relay.silent:
            return
        if self._other is None:
            self._early.append(data)
        else:
            self._other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.abort()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def test_our_client_pings_after_a_third_of_its_timeout(ensemble: Ensemble) -> None:
    """An idle client's first word comes then, not earlier and not much later."""

    async def measure() -> float:
        relay = Relay(ensemble.member(1).client_port)
        async with connect(await relay.start(), timeout=6.0) as client:
            await client.exists("/")
            last = relay.sent_at[-1]
            relay.heard.clear()
            async with asyncio.timeout(6.0):
                await relay.heard.wait()
            ping = relay.sent_at[-1] - last
        relay.close()
        return ping

    assert 1.9 <= asyncio.run(measure()) <= 2.9


def test_our_client_leaves_a_silent_server_and_keeps_its_session(ensemble: Ensemble) -> None:
    """After two thirds of the timeout it goes to another member; its ephemerals never noticed."""

    async def measure() -> tuple[float, bool, bool, bool]:
        relays = [Relay(member.client_port) for member in ensemble.members[:2]]
        addresses = [await relay.start() for relay in relays]
        changes: asyncio.Queue[tuple[float, SessionState]] = asyncio.Queue()
        async with connect(",".join(addresses), timeout=6.0) as client:
            client.on_transition(lambda c: changes.put_nowait((time.monotonic(), c.state)))
            await client.create("/mine", ephemeral=True)
            session = client.session_id
            [relay] = [each for each in relays if each.sent_at]
            [other] = [each for each in relays if not each.sent_at]
            relay.silent = True
            silent_since = time.monotonic()
            async with asyncio.timeout(10.0):
                left_at, first = await changes.get()
                _, second = await changes.get()
            assert [first, second] == [SessionState.SUSPENDED, SessionState.CONNECTED]
            there = await client.exists("/mine") is not None
            same = client.session_id == session
        for each in relays:
            each.close()
        return left_at - silent_since, same, there, bool(other.sent_at)

    seconds, same_session, ephemeral_there, elsewhere = asyncio.run(measure())
    assert 3.8 <= seconds <= 4.9
    assert same_session
    assert ephemeral_there
    assert elsewhere
