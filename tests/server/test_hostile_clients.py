"""A thousand hostile connections cost the well-behaved client nothing but a little time."""

import asyncio
import gc
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.server.helpers import Trail, until
from tests.server.test_app import Session, alone, open_session, running, server_of
from tests.wire.plain import VECTORS

from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.ops import Create, Delete, Multi, MultiOp, Op, OpCode, SetData
from zabd.model.session import PASSWORD_SIZE, ConnectRequest
from zabd.server.app import Server
from zabd.wire import encode_connect

RANDOM_CONNECTIONS = 250
RANDOM_BYTES = 10 * 2**20 // RANDOM_CONNECTIONS
TRUNCATED_CONNECTIONS = 250
CONNECTIONS = 1_000
AT_ONCE = 50
ANSWER_WITHIN_S = 0.1
RSS_GROWTH_MAX = 20 * 2**20
SERVED_WITHIN_S = 5.0
STATM = Path("/proc/self/statm")
PAGE = 4096

HANDSHAKE = encode_connect(ConnectRequest(0, 0, 10_000, 0, bytes(PASSWORD_SIZE), read_only=False))
REQUESTS = [
    (vector["kind"] == "connect", bytes.fromhex(vector["request_hex"]))
    for vector in VECTORS
    if vector["request_hex"]
]


class Hostile(asyncio.Protocol):
    """Sends what it has at once, and listens until it is hung up on or has waited enough."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self.data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set_result(None)


def random_bytes(rng: random.Random) -> Iterator[bytes]:
    """As they are, behind a handshake, and as the bodies of frames that look like requests."""
    opcodes = list(OpCode)
    for number in range(RANDOM_CONNECTIONS):
        noise = rng.randbytes(RANDOM_BYTES)
        if number % 3 == 0:
            yield noise
        elif number % 3 == 1:
            yield HANDSHAKE + noise
        else:
            frames = [HANDSHAKE]
            while noise:
                size = rng.randrange(8, 400)
                body, noise = noise[:size], noise[size:]
                opcode = rng.choice(opcodes).to_bytes(4, "big", signed=True)
                frames.append((len(body) + 8).to_bytes(4, "big") + bytes(4) + opcode + body)
            yield b"".join(frames)


def truncated(rng: random.Random) -> Iterator[bytes]:
    """A recorded request of which the end is missing, nothing behind it."""
    for _ in range(TRUNCATED_CONNECTIONS):
        connects, request = rng.choice(REQUESTS)
        cut = request[: rng.randrange(len(request))]
        yield cut if connects else HANDSHAKE + cut


def flipped(rng: random.Random) -> Iterator[bytes]:
    """Every recorded request with one byte changed; one byte of its length in every eighth."""
    for connects, request in REQUESTS:
        at = rng.randrange(4) if rng.randrange(8) == 0 else rng.randrange(4, len(request))
        changed = bytearray(request)
        changed[at] ^= rng.randrange(1, 256)
        yield bytes(changed) if connects else HANDSHAKE + bytes(changed)


async def attack(port: int, data: bytes, slots: asyncio.Semaphore) -> None:
    """One hostile connection, from beginning to end."""
    async with slots:
        loop = asyncio.get_running_loop()
        transport, hostile = await loop.create_connection(partial(Hostile, data), "127.0.0.1", port)
        await asyncio.wait([hostile.over], timeout=ANSWER_WITHIN_S)
        transport.abort()
        await hostile.over


async def behave(session: Session, stop: asyncio.Event) -> list[float]:
    """Write and read back for as long as the others rage; how long each pair took, in seconds."""
    loop = asyncio.get_running_loop()
    took_s = []
    while not stop.is_set():
        began_s = loop.time()
        text = str(len(took_s)).encode()
        assert (await session.ask(SetData("/good", text, -1))).error == 0
        assert await session.get("/good") == text
        took_s.append(loop.time() - began_s)
    return took_s


def rss_bytes() -> int:
    """What this process has in memory, both the member and its clients."""
    gc.collect()
    return int(STATM.read_text("ascii").split()[1]) * PAGE


async def rage(server: Server, data: list[bytes]) -> list[float]:
    """All of these connections, some at once, beside a client that behaves."""
    session = await open_session(server)
    stop = asyncio.Event()
    good = asyncio.ensure_future(behave(session, stop))
    slots = asyncio.Semaphore(AT_ONCE)
    port = server.driver.clients.port
    end = asyncio.ensure_future(server.serve())
    attacks = asyncio.gather(*(attack(port, chunk, slots) for chunk in data))
    await asyncio.wait([end, attacks, good], return_when=asyncio.FIRST_COMPLETED)
    assert not end.done(), end.exception()
    await attacks
    await until(lambda: len(server.driver.clients) == 1)
    stop.set()
    took_s = await good
    session.close()
    end.cancel()
    return took_s


@pytest.mark.skipif(not STATM.exists(), reason="tells its memory otherwise")
def test_hostile_connections_hurt_nobody_else(tmp_path: Path) -> None:
    """10 MB of noise, cut requests, flipped bytes: no crash, no lasting memory, no lost service.

    And what they wrote all the same is there after a restart, with the same digest.
    """
    rng = random.Random(7)
    config = alone(tmp_path, connections_per_address_max=0, tick_ms=2000)
    trail = Trail()
    before = 0
    data = [*random_bytes(rng), *truncated(rng), *flipped(rng)]
    assert sum(map(len, data)) > 10 * 2**20
    assert len(data) >= CONNECTIONS
    rng.shuffle(data)

    async def hostile() -> int:
        nonlocal before
        server = server_of(config, trail)
        async with running(server):
            session = await open_session(server)
            await session.create("/good")
            session.close()
            await rage(server, data[:AT_ONCE])
            before = rss_bytes()

            took_s = await rage(server, data)

            assert rss_bytes() - before < RSS_GROWTH_MAX
            assert len(took_s) > 10
            assert max(took_s) < SERVED_WITHIN_S
        return server.driver.replica.tree.digest

    async def again() -> int:
        server = server_of(config)
        async with running(server):
            await until(lambda: server.driver.replica.serving)
            return server.driver.replica.tree.digest

    digest = asyncio.run(hostile())
    assert not trail.of("failed")
    assert asyncio.run(again()) == digest


QUOTA_PATHS = [
    f"/zookeeper/quota{subject}{name}"
    for subject in ("", "/good", "/good/in", "/zookeeper", "/zookeeper/quota", "/nowhere")
    for name in ("", "/zookeeper_limits", "/zookeeper_stats", "/zookeeper_limits/zookeeper_limits")
]
QUOTA_TEXTS = [
    b"",
    b"count=3,bytes=20",
    b"count=-1,bytes=-1=;byteHardLimit=20;countHardLimit=3",
    b"count=" + b"9" * 400,
    b"=;=,count,bytes=;",
    bytes(range(256)),
]


def quota_garbage(rng: random.Random) -> Iterator[Op]:
    """Creates, writes and deletes in any order, alone and in multis, some kept by a session."""
    paths = [*QUOTA_PATHS, "/good/in", "/good/in/a", "/nowhere"]
    for _ in range(1_000):
        ops: list[MultiOp] = []
        for _ in range(rng.choice((1, 1, 1, 3))):
            path, text = rng.choice(paths), rng.choice(QUOTA_TEXTS)
            flags = rng.choice((0, 0, 0, 1))
            made = Create(path, text, OPEN_ACL_UNSAFE, flags)
            ops.append(rng.choice((made, made, SetData(path, text, -1), Delete(path, -1))))
        yield ops[0] if len(ops) == 1 else Multi(tuple(ops))


def test_garbage_below_quota_does_not_stop_the_next_start(tmp_path: Path) -> None:
    """CVE-2026-100300: a member starts from snapshot and log, with the same tree, and serves."""
    rng = random.Random(7)
    config = alone(tmp_path, tick_ms=2000, enforce_quota=True, snapshot_txns=150)

    async def live() -> int:
        server = server_of(config)
        async with running(server):
            session = await open_session(server)
            await session.create("/good")
            accepted = sum([(await session.ask(op)).error == 0 for op in quota_garbage(rng)])
            assert accepted > 100
            session.close()
        return server.driver.replica.tree.digest

    digests = [asyncio.run(live())]

    async def again() -> None:
        server = server_of(config)
        async with running(server):
            await until(lambda: server.driver.replica.serving)
            digests.append(server.driver.replica.tree.digest)
            session = await open_session(server)
            await session.ask(SetData("/good", b"1", -1))
            await session.ask(Delete("/good/in/a", -1))
            session.close()

    asyncio.run(again())
    assert digests[0] == digests[1]
