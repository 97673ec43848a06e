"""Claims about whole members: real storage on real directories, real sockets, one loop."""

import asyncio
import errno
import random
import shutil
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.server.helpers import Trail, config_of, members, run, until

from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import StorageError
from zabd.model.ops import Auth, Create, GetData, Op, SetData, Sync
from zabd.model.results import CreateResult, GetDataResult
from zabd.model.session import ConnectRequest, ConnectResponse
from zabd.model.zxid import ZXID_ZERO
from zabd.replica import replica as replica_module
from zabd.server.app import CannotListenError, Post, Server
from zabd.server.clock import SystemClock
from zabd.server.config import ServerConfig
from zabd.server.driver import Driver, MemberStoppedError
from zabd.server.four_letter import NOT_SERVING
from zabd.server.identity import Identity
from zabd.storage import OsDisk
from zabd.storage import disk as disk_ops
from zabd.storage.disk import Disk, DiskFault, DiskOp, DiskOutcome, Lane
from zabd.storage.epochs import decode_identity
from zabd.wire.connection import ClientConnection, ClientItem, Reply
from zabd.zab.messages import Notification, PeerState, Standing


class Session:
    """A client that waits for each answer."""

    def __init__(self) -> None:
        self.wire = ClientConnection()
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.items: list[ClientItem] = []

    @classmethod
    async def open(cls, port: int, timeout_ms: int = 10_000) -> "Session":
        session = cls()
        session.reader, session.writer = await asyncio.open_connection("127.0.0.1", port)  # noqa: TID251
        session.writer.write(
            session.wire.connect(ConnectRequest(0, 0, timeout_ms, 0, bytes(16), False))
        )
        try:
            response = await session.next()
        except ConnectionResetError:
            session.close()
            raise
        assert isinstance(response, ConnectResponse)
        assert not response.refused
        return session

    async def next(self) -> ClientItem:
        while not self.items:
            data = await self.reader.read(2**16)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self.items += self.wire.receive(data)
        return self.items.pop(0)

    async def ask(self, op: Op) -> Reply:
        _, frame = self.wire.send(op)
        self.writer.write(frame)
        reply = await self.next()
        assert isinstance(reply, Reply)
        return reply

    async def create(self, path: str, data: bytes = b"") -> None:
        reply = await self.ask(Create(path, data, OPEN_ACL_UNSAFE, 0))
        assert reply.result == CreateResult(path), reply

    async def get(self, path: str) -> bytes | None:
        reply = await self.ask(GetData(path, False))
        assert isinstance(reply.result, GetDataResult), reply
        return reply.result.data

    def close(self) -> None:
        self.writer.close()


async def open_session(server: Server) -> Session:
    """A session, once the member serves."""
    while True:
        with suppress(ConnectionResetError):
            return await Session.open(server.driver.clients.port)
        await asyncio.sleep(0.01)


async def ask_word(port: int, word: bytes, *, half_close: bool = False) -> str:
    """What `echo word | nc` prints."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)  # noqa: TID251
    writer.write(word + b"\n")
    if half_close:
        writer.write_eof()
    text = await reader.read()
    writer.close()
    return text.decode()


def server_of(
    config: ServerConfig,
    trail: Trail | None = None,
    disk_factory: Callable[[str, Post], Disk] = OsDisk,
    kind: type[Server] = Server,
    seed: int | None = None,
) -> Server:
    """A member on the machine's own disk."""
    return kind(
        config,
        disk_factory=disk_factory,
        clock=SystemClock(),
        identity=Identity("host", 1),
        rng=random.Random(config.member_id if seed is None else seed),
        trace=trail or Trail(),
    )


@asynccontextmanager
async def running(*servers: Server) -> AsyncIterator[None]:
    """Started at the beginning, stopped at the end."""
    try:
        for server in servers:
            await server.start()
        yield
    finally:
        for server in servers:
            await server.stop()
        await until(lambda: not any(server._driver and server.driver.clients for server in servers))
        await asyncio.sleep(0.01)  # connections of clients are closed a turn after they close


def alone(directory: Path, **more: object) -> ServerConfig:
    """A standalone member's configuration."""
    return config_of(1, members(1), data_dir=str(directory), **more)


def three(directory: Path) -> list[Server]:
    """Three members, each on its own directory."""
    ensemble = members(3)
    return [
        server_of(config_of(number, ensemble, data_dir=str(directory / str(number))))
        for number in (1, 2, 3)
    ]


def leader_of(servers: Sequence[Server]) -> Server | None:
    """The one that serves as leader, if one does."""
    for server in servers:
        replica = server.driver.replica
        if replica.peer.state is PeerState.LEADING and replica.serving:
            return server
    return None


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Path]:
    """Each loop that a test runs on gets a directory of its own."""
    count = iter(range(10))
    return lambda: tmp_path / str(next(count))


def test_a_standalone_member_serves_and_remembers(fresh: Callable[[], Path]) -> None:
    """What was acknowledged before a stop is there after the next start."""

    async def scenario() -> None:
        config = alone(fresh())
        server = server_of(config)
        async with running(server):
            session = await open_session(server)
            await session.create("/a", b"x")
            assert await session.get("/a") == b"x"
            session.close()

        again = server_of(config)
        async with running(again):
            session = await open_session(again)
            assert await session.get("/a") == b"x"
            session.close()

    run(scenario)


def test_three_members_agree_and_survive_their_leader(fresh: Callable[[], Path]) -> None:
    """A write through any member is read at any other, also by those that elect a new leader."""

    async def scenario() -> None:
        servers = three(fresh())
        async with running(*servers):
            await until(
                lambda: leader_of(servers) and all(s.driver.replica.serving for s in servers)
            )
            leader = leader_of(servers)
            assert leader is not None
            follower, other = (server for server in servers if server is not leader)
            session = await open_session(follower)
            await session.create("/a", b"x")
            await leader.stop()
            session.close()
            survivors = [follower, other]
            await until(lambda: leader_of(survivors))

            session = await open_session(other)
            await session.ask(Sync("/a"))
            assert await session.get("/a") == b"x"
            await session.create("/b")
            session.close()

    run(scenario)


def test_a_damaged_member_says_so_until_the_others_have_repaired_it(
    fresh: Callable[[], Path],
) -> None:
    """S20: it waits for a leader elected without it, and serves nobody meanwhile."""

    async def scenario() -> None:
        directory = fresh()
        servers = three(directory)
        async with running(*servers):
            await until(lambda: all(s.driver.replica.serving for s in servers))
            session = await open_session(servers[0])
            await session.create("/a", b"x")
            session.close()
        (directory / "2" / "epochs").write_bytes(b"rot")
        one, two, three_ = (server_of(server.config) for server in servers)
        async with running(two):
            port = two.config.client_port
            first, second, _ = (await ask_word(port, b"srvr")).split("\n")
            assert "not currently serving" in first
            assert "damaged" in second
            assert "epochs" in second
            async with running(one, three_):
                await until(lambda: two.driver.replica.serving)
                assert "zk_zabd_standing\tvoter" in await ask_word(port, b"mntr")
                session = await open_session(two)
                assert await session.get("/a") == b"x"
                session.close()

    run(scenario)


def test_only_the_cluster_that_is_named_is_given_up_for_a_new_one(
    fresh: Callable[[], Path],
) -> None:
    """S21: `--found-anew` refuses a directory of no cluster, or a damaged one; it works once."""

    async def scenario() -> None:
        directory = fresh()
        with pytest.raises(StorageError, match="belongs to no cluster"):
            await server_of(alone(directory, found_anew=b"other")).start()
        trail = Trail()
        await serve_once(server_of(alone(directory), trail))
        first = cluster_of(directory)
        await serve_once(server_of(alone(directory, found_anew=b"other"), trail))
        assert trail.of("founds_nothing")
        assert cluster_of(directory) == first

        await serve_once(server_of(alone(directory, found_anew=first), seed=7))
        second = cluster_of(directory)
        assert second != first
        await serve_once(server_of(alone(directory, found_anew=first)))
        assert cluster_of(directory) == second

        (directory / "distrust").write_bytes(b"no note")
        config = config_of(1, members(3), data_dir=str(directory), found_anew=second)
        with pytest.raises(StorageError, match="this directory is damaged"):
            await server_of(config).start()

    run(scenario)


def test_a_start_tells_how_far_its_directory_reaches(fresh: Callable[[], Path]) -> None:
    """Who has to choose between copies needs more than what is known to be committed there."""

    async def scenario() -> None:
        directory, copy = fresh(), fresh() / "copy"
        server = server_of(alone(directory))
        async with running(server):
            await until(lambda: server.driver.replica.serving)
            session = await open_session(server)
            await session.create("/acknowledged")
            zxid = server.driver.replica.tree.zxid
            shutil.copytree(directory, copy)  # as a power cut would leave it
            session.close()
        trail = Trail()
        await serve_once(server_of(alone(copy), trail))

        [told] = trail.of("recovered")
        assert told["logged"] == zxid
        assert told["delivered"] < told["logged"]
        assert told["epoch"] == 1

    run(scenario)


async def serve_once(server: Server) -> None:
    """Start it, wait until it serves, stop it."""
    async with running(server):
        await until(lambda: server.driver.replica.serving)


def cluster_of(directory: Path) -> bytes | None:
    """Which cluster a directory belongs to."""
    return decode_identity((directory / "identity").read_bytes()).cluster_id


def test_a_member_whose_tree_differs_is_rebuilt_by_its_next_start(
    fresh: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S17, F29: a flipped bit in memory stops it, and what it has on disk is not believed."""
    monkeypatch.setattr(replica_module, "DIGEST_INTERVAL_TXNS", 4)

    async def scenario() -> None:
        servers = three(fresh())
        async with running(*servers):
            await until(lambda: all(s.driver.replica.serving for s in servers))
            leader = leader_of(servers)
            follower = next(server for server in servers if server is not leader)
            follower.driver.replica.tree._sum ^= 1
            session = await open_session(follower if leader is None else leader)
            for number in range(8):
                await session.create(f"/{number}", b"x")
            with pytest.raises(MemberStoppedError, match="differs from that of most members"):
                await follower.serve()

            again = server_of(follower.config)
            async with running(again):
                await until(lambda: again.driver.replica.serving)
                assert again.driver.replica.tree.get("/7") is not None
                await until(lambda: again.driver.replica.peer.standing is Standing.VOTER)
                session.close()

    run(scenario)


def test_a_vote_may_come_while_the_ports_are_being_taken(fresh: Callable[[], Path]) -> None:
    """Peers that look for a leader do not wait until a member that starts is ready for them."""

    class Hurried(Server):
        async def _listen(self, driver: Driver) -> None:
            await super()._listen(driver)
            driver.notified(
                Notification(
                    sender=2,
                    cluster_id=None,
                    round=1,
                    leader=2,
                    zxid=ZXID_ZERO,
                    epoch=0,
                    state=PeerState.LOOKING,
                    standing=Standing.BLANK,
                    history_empty=True,
                )
            )
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def scenario() -> None:
        config = config_of(1, members(3), data_dir=str(fresh()))
        server = server_of(config, kind=Hurried)
        async with running(server):
            assert await ask_word(server.driver.clients.port, b"ruok") == "imok"

    run(scenario)


def test_a_member_alone_of_three_says_that_it_does_not_serve(fresh: Callable[[], Path]) -> None:
    """Words are answered; sessions are not, and the client goes elsewhere."""

    async def scenario() -> None:
        server = three(fresh())[0]
        async with running(server):
            port = server.driver.clients.port
            assert await ask_word(port, b"srvr") == NOT_SERVING
            assert await ask_word(port, b"isro") == "null"
            assert await ask_word(port, b"ruok") == "imok"
            with pytest.raises(ConnectionResetError):
                await Session.open(port)

    run(scenario)


@pytest.mark.parametrize("half_close", [False, True])
def test_words_are_answered_with_or_without_a_half_close(
    fresh: Callable[[], Path],
    half_close: bool,  # noqa: FBT001
) -> None:
    """`echo stat | nc host port | grep Received` works with either common nc."""

    async def scenario() -> None:
        server = server_of(alone(fresh()))
        async with running(server):
            session = await open_session(server)
            port = server.driver.clients.port
            text = await ask_word(port, b"stat", half_close=half_close)

            assert "\nReceived: " in text
            assert "\nMode: standalone\n" in text
            for word in (b"mntr", b"cons", b"conf", b"dump", b"dirs", b"envi", b"wchs", b"hash"):
                assert await ask_word(port, word, half_close=half_close)
            session.close()
            # A word's connection is no client that stays.
            await until(lambda: not server.driver.replica.clients.connections)

    run(scenario)


def test_a_busy_port_is_one_sentence(fresh: Callable[[], Path]) -> None:
    """It names the port, and the directory is free again for the next attempt."""

    async def scenario() -> None:
        config = alone(fresh())
        first = server_of(config)
        async with running(first):
            second = server_of(replace(config, data_dir=str(fresh())))
            with pytest.raises(CannotListenError) as refusal:
                await second.start()
            assert str(refusal.value) == (
                f"cannot listen on the client port 127.0.0.1:{config.client_port}:"
                " Address already in use"
            )

    for _ in (1,):
        asyncio.run(scenario())


def test_a_directory_has_one_member_at_a_time(fresh: Callable[[], Path]) -> None:
    """Neither a second process nor another member may use it (S22)."""

    async def scenario() -> None:
        ensemble = members(2)
        config = config_of(1, ensemble, data_dir=str(fresh()))
        first = server_of(config)
        async with running(first):
            with pytest.raises(StorageError):
                await server_of(alone(Path(config.data_dir))).start()
        with pytest.raises(StorageError, match="member 1"):
            await server_of(config_of(2, ensemble, data_dir=config.data_dir)).start()

    run(scenario)


class FailingDisk:
    """The machine's disk, until it is told to fail every sync."""

    def __init__(self, root: str, post: Post) -> None:
        self._disk = OsDisk(root, post)
        self._post = post
        self.broken = self.hangs = False

    def submit(
        self, ops: Sequence[DiskOp], done: Callable[[DiskOutcome], None], lane: Lane = Lane.LOG
    ) -> None:
        syncs = [op for op in ops if isinstance(op, disk_ops.Sync)]
        if self.hangs and syncs:
            return
        if self.broken and syncs:
            outcome = DiskOutcome([], DiskFault(syncs[0], errno.EIO, "Input/output error"))
            self._post(lambda: done(outcome))
        else:
            self._disk.submit(ops, done, lane)

    def close(self) -> None:
        assert not self.hangs, "this would wait for ever"
        self._disk.close()

    def close_soon(self) -> None:
        self._disk.close_soon()


def test_a_failed_sync_ends_the_member_without_an_answer(fresh: Callable[[], Path]) -> None:
    """Nothing is acknowledged after it, and the error says what to look at (S9)."""

    async def scenario() -> None:
        disks: list[FailingDisk] = []

        def factory(root: str, post: Post) -> Disk:
            disks.append(FailingDisk(root, post))
            return disks[0]

        trail = Trail()
        server = server_of(alone(fresh()), trail, factory)
        await server.start()
        session = await open_session(server)
        await session.create("/a")
        disks[0].broken = True
        with pytest.raises(ConnectionResetError):
            await session.create("/b")
        with pytest.raises(StorageError, match="Input/output error"):
            await server.serve()
        session.close()

        assert trail.of("failed")
        await server.stop()

    run(scenario)


@pytest.mark.parametrize("fails", [True, False])
def test_a_disk_that_does_not_answer_does_not_keep_the_member_from_ending(
    fresh: Callable[[], Path],
    fails: bool,  # noqa: FBT001
) -> None:
    """By its own decision (S12), or because it is told to stop: nothing waits for that disk."""

    async def scenario() -> None:
        disks: list[FailingDisk] = []

        def factory(root: str, post: Post) -> Disk:
            disks.append(FailingDisk(root, post))
            return disks[0]

        trail = Trail()
        server = server_of(replace(alone(fresh()), tick_ms=20), trail, factory)
        await server.start()
        session = await open_session(server)
        disks[0].hangs = True
        with suppress(TimeoutError, ConnectionResetError):
            async with asyncio.timeout(0.05):
                await session.create("/b")
        if fails:
            server.fail(StorageError("the disk is gone"))
            with pytest.raises(StorageError):
                await server.serve()
        else:
            await server.stop()
            await server.serve()
            [told] = trail.of("stop_not_in_order")
            assert told["why"] == "the disk does not answer"
        session.close()

    run(scenario)


def test_peers_notice_a_failed_disk_at_once(fresh: Callable[[], Path]) -> None:
    """The leader cuts its links, so that the others elect before any timeout (S9)."""

    async def scenario() -> None:
        servers = three(fresh())
        async with running(*servers):
            # A member that has not been synchronised yet is blank, and does not vote.
            await until(
                lambda: leader_of(servers) and all(s.driver.replica.serving for s in servers)
            )
            leader = leader_of(servers)
            assert leader is not None
            leader.fail(StorageError("the disk is gone"))
            survivors = [server for server in servers if server is not leader]

            await until(lambda: leader_of(survivors))
            with pytest.raises(StorageError):
                await leader.serve()

    run(scenario)


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x00\x00\x00",
        b"\x00\x00\x00\x00",
        b"\x7f\xff\xff\xff" + bytes(100),
        b"\x00\x00\x00\x04\x00\x00\x00\x00",
        b"quit",
        bytes(random.Random(1).randbytes(4_000)),
    ],
)
def test_noise_on_the_client_port_is_closed_and_costs_nobody_else(
    fresh: Callable[[], Path], noise: bytes
) -> None:
    """A well-behaved client beside it does not notice (P1, P4)."""

    async def scenario() -> None:
        server = server_of(alone(fresh()))
        async with running(server):
            session = await open_session(server)
            reader, writer = await asyncio.open_connection(  # noqa: TID251
                "127.0.0.1", server.driver.clients.port
            )
            writer.write(noise)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()

            await session.create("/a", b"x")
            assert await session.get("/a") == b"x"
            session.close()

    run(scenario)


def test_an_over_long_request_ends_the_connection(fresh: Callable[[], Path]) -> None:
    """Its bytes are not waited for, nothing is answered, and the log says which it was (P1)."""

    async def scenario() -> None:
        trail = Trail()
        server = server_of(alone(fresh(), request_bytes_max=2_000), trail)
        async with running(server):
            session = await open_session(server)
            session.writer.write(struct.pack(">iii", 500_000, 7, 5) + bytes(100_000))
            with suppress(ConnectionResetError):  # our bytes were on the way
                assert await session.reader.read() == b""

            assert trail.of("request_refused")
            session.close()

    run(scenario)


def test_pipelined_requests_are_answered_in_order(fresh: Callable[[], Path]) -> None:
    """Reads behind writes wait for them; everything leaves in the order in which it came."""

    async def scenario() -> None:
        server = server_of(alone(fresh()))
        async with running(server):
            session = await open_session(server)
            await session.create("/a", b"0")
            frames = []
            for number in range(1, 200):
                frames.append(session.wire.send(SetData("/a", str(number).encode(), -1))[1])
                frames.append(session.wire.send(GetData("/a", False))[1])
            session.writer.write(b"".join(frames))
            seen = []
            for _ in range(1, 200):
                assert isinstance(await session.next(), Reply)
                reply = await session.next()
                assert isinstance(reply, Reply)
                assert isinstance(reply.result, GetDataResult)
                seen.append(reply.result.data)

            assert seen == [str(number).encode() for number in range(1, 200)]
            session.close()

    run(scenario)


def test_every_line_knows_where_the_member_stands(fresh: Callable[[], Path]) -> None:
    """State, epoch and zxid are asked for line by line."""

    async def scenario() -> None:
        server = server_of(alone(fresh()))
        assert server.standing == {}
        async with running(server):
            session = await open_session(server)
            assert server.standing["state"] == "leading"
            assert repr(server.standing["zxid"]).startswith("1:")
            session.close()

    run(scenario)


def test_large_reads_wait_until_the_client_takes_them(fresh: Callable[[], Path]) -> None:
    """A small packet may ask for gigabytes; what is not taken is not made (P18)."""

    async def scenario() -> None:
        server = server_of(alone(fresh()))
        async with running(server):
            session = await open_session(server)
            await session.create("/a", bytes(500_000))
            count = 60
            frames = [session.wire.send(GetData("/a", False))[1] for _ in range(count)]
            session.writer.write(b"".join(frames))
            [link] = server.driver.clients.links()
            [connection] = server.driver.replica.clients.connections.values()
            await until(lambda: connection.received > count)

            for _ in range(count):
                assert link.queued_bytes + connection.output_bytes < 4 * 2**20
                reply = await session.next()
                assert isinstance(reply, Reply)
                assert isinstance(reply.result, GetDataResult)
            assert await session.get("/a") == bytes(500_000)
            session.close()

    run(scenario)


def test_a_leader_that_stood_still_answers_nobody_before_it_knows(
    fresh: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What clients sent to a paused leader must not be answered from its past when it wakes."""

    async def scenario() -> None:
        servers = three(fresh())
        async with running(*servers):
            await until(
                lambda: leader_of(servers) and all(s.driver.replica.serving for s in servers)
            )
            leader = leader_of(servers)
            assert leader is not None
            session = await open_session(leader)
            await session.create("/a", b"x")
            driver, clock = leader.driver, leader.driver.now_ms
            monkeypatch.setattr(driver, "now_ms", lambda: clock() + 60_000)
            with pytest.raises(ConnectionResetError):
                await session.get("/a")
            session.close()

    run(scenario)


MONITORED = {
    *[
        "version",
        "server_state",
        "peer_state",
        "avg_latency",
        "max_latency",
        "min_latency",
        "packets_received",
    ],
    *[
        "packets_sent",
        "num_alive_connections",
        "outstanding_requests",
        "znode_count",
        "watch_count",
    ],
    *["ephemerals_count", "approximate_data_size", "global_sessions", "local_sessions", "uptime"],
    *["open_file_descriptor_count", "max_file_descriptor_count", "connection_drop_probability"],
    *["last_client_response_size", "max_client_response_size", "min_client_response_size"],
    *["outstanding_tls_handshake", "auth_failed_count", "non_mtls_remote_conn_count"],
    *[
        "non_mtls_local_conn_count",
        "quorum_size",
        "learners",
        "synced_followers",
        "synced_observers",
    ],
    *["synced_non_voting_followers", "pending_syncs", "leader_uptime", "last_proposal_size"],
    *["max_proposal_size", "min_proposal_size"],
}
"""The gauges that monitoring programs read at a leader (CLIENT_PROTOCOL section 21)."""


def test_mntr_of_a_leader_has_every_gauge_and_they_move(fresh: Callable[[], Path]) -> None:
    """Dashboards made for ZooKeeper find their numbers, and the numbers mean something."""

    async def monitored(server: Server) -> dict[str, str]:
        text = await ask_word(server.driver.clients.port, b"mntr")
        return dict(line.removeprefix("zk_").split("\t", 1) for line in text.splitlines())

    async def scenario() -> None:
        servers = three(fresh())
        async with running(*servers):
            await until(
                lambda: leader_of(servers) and all(s.driver.replica.serving for s in servers)
            )
            leader = leader_of(servers)
            assert leader is not None
            session = await open_session(leader)
            await session.create("/a", bytes(500))
            await session.get("/a")
            before = await monitored(leader)
            assert set(before) >= MONITORED
            assert int(before["last_client_response_size"]) > 500
            assert 0 < int(before["min_client_response_size"]) < 100
            assert before["synced_followers"] == "2"
            refused = await session.ask(Auth(0, "nonsense", b""))
            assert refused.error
            session.close()
            after = await monitored(leader)
            assert (before["auth_failed_count"], after["auth_failed_count"]) == ("0", "1")

    run(scenario)
