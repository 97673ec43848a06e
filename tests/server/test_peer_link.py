"""Claims about quorum links, between two real ends on loopback."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from tests.server.helpers import Trail, config_of, members, run, until

from zabd.model.ids import LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.server import peer_link
from zabd.server.peer_link import PeerLink, QuorumChannel
from zabd.zab.codec import encode
from zabd.zab.log import GENESIS, GENESIS_CHAIN, frame_record
from zabd.zab.messages import Ack, Carried, FollowerInfo, Message, Ping, Propose, Standing

HELLO = FollowerInfo(1, None, 2, False, 0, GENESIS, Standing.BLANK)


class Owner:
    def __init__(self) -> None:
        self.dialled_links: list[tuple[LinkId, MemberId]] = []
        self.failed: list[MemberId] = []
        self.received: list[tuple[LinkId, Message]] = []
        self.lost: list[LinkId] = []

    def dialled(self, link: LinkId, member: MemberId) -> None:
        self.dialled_links.append((link, member))

    def dial_failed(self, member: MemberId) -> None:
        self.failed.append(member)

    def link_received(self, link: PeerLink, messages: list[Message]) -> None:
        self.received += [(link.id, message) for message in messages]

    def link_lost(self, link: PeerLink) -> None:
        self.lost.append(link.id)


class End:
    def __init__(self, channel: QuorumChannel, owner: Owner, trail: Trail) -> None:
        self.channel = channel
        self.owner = owner
        self.trail = trail

    @property
    def messages(self) -> list[Message]:
        return [message for _, message in self.owner.received]


@asynccontextmanager
async def two_ends() -> AsyncIterator[tuple[End, End]]:
    """Member 1 listens; member 2 may dial it."""
    ensemble = members(2)
    ends = []
    for number in (1, 2):
        owner, trail = Owner(), Trail()
        config = config_of(number, ensemble)
        channel = QuorumChannel(asyncio.get_running_loop(), config, owner, trail)
        await channel.listen()
        ends.append(End(channel, owner, trail))
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.channel.close()
        await until(lambda: not any(end.channel._links for end in ends))


async def connected(leader: End, learner: End) -> tuple[LinkId, LinkId]:
    """Dial and introduce; the link's number at each end."""
    learner.channel.dial(1)
    await until(lambda: learner.owner.dialled_links)
    [(link, member)] = learner.owner.dialled_links
    assert member == 1
    learner.channel.send(link, HELLO)
    learner.channel.flush()
    await until(lambda: leader.owner.received)
    [(accepted, hello)] = leader.owner.received
    assert hello == HELLO
    leader.owner.received.clear()
    return accepted, link


async def connect_raw(end: End) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stranger on the quorum port."""
    port = end.channel._config.me.quorum_port
    return await asyncio.open_connection("127.0.0.1", port)  # noqa: TID251  (the stranger's end)


def test_messages_arrive_in_order_both_ways() -> None:
    """Zab rests on FIFO links; several messages of one turn are one write."""

    async def scenario() -> None:
        async with two_ends() as (leader, learner):
            at_leader, at_learner = await connected(leader, learner)
            proposal = Propose(
                Zxid.of(1, 1), 1, frame_record(Zxid.of(1, 1), 1, b"x" * 300_000, GENESIS_CHAIN)
            )
            sent: list[Message] = [proposal, *(Ping(n) for n in range(100)), Carried(b"")]
            for message in sent:
                leader.channel.send(at_leader, message)
            leader.channel.flush()
            learner.channel.send(at_learner, Ack(Zxid.of(1, 1)))
            learner.channel.flush()

            await until(lambda: len(learner.owner.received) == len(sent) and leader.owner.received)

            assert learner.messages == sent
            assert leader.messages == [Ack(Zxid.of(1, 1))]

    run(scenario)


def test_the_end_of_a_process_is_noticed_at_once() -> None:
    """A closed connection is news before any timeout is."""

    async def scenario() -> None:
        async with two_ends() as (leader, learner):
            at_leader, _ = await connected(leader, learner)
            learner.channel.close()

            await until(lambda: leader.owner.lost)

            assert leader.owner.lost == [at_leader]

    run(scenario)


def test_what_was_sent_before_a_hang_up_arrives() -> None:
    """A leader says why it refuses a learner, and hangs up."""

    async def scenario() -> None:
        async with two_ends() as (leader, learner):
            at_leader, at_learner = await connected(leader, learner)
            leader.channel.send(at_leader, Ping(7))
            leader.channel.hang_up(at_leader)
            leader.channel.send(at_leader, Ping(8))

            await until(lambda: learner.owner.lost and leader.owner.lost)

            assert learner.owner.received == [(at_learner, Ping(7))]
            assert learner.owner.lost == [at_learner]
            assert leader.owner.lost == [at_leader]

    run(scenario)


def test_a_message_may_come_when_the_end_is_on_its_way() -> None:
    """A transport is closed a turn before its protocol hears of it; loops differ in what then."""

    async def scenario() -> None:
        async with two_ends() as (leader, learner):
            at_leader, _ = await connected(leader, learner)
            link = leader.channel.link(at_leader)
            assert link is not None
            assert link._transport is not None
            link._transport.abort()
            leader.channel.send(at_leader, Ping(1))
            leader.channel.flush()
            leader.channel.hang_up(at_leader)

            await until(lambda: leader.owner.lost)

    run(scenario)


def test_a_dial_that_fails_says_so_once() -> None:
    """The core waits for an answer to each dial, and for one answer only."""

    async def scenario() -> None:
        async with two_ends() as (leader, learner):
            leader.channel.close()
            learner.channel.dial(1)
            learner.channel.dial(1)

            await until(lambda: learner.owner.failed)

            assert learner.owner.failed == [1]
            assert learner.owner.dialled_links == []

    run(scenario)


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"\xff\xff\xff\xff",
        b"\x40\x00\x00\x00",
        b"\x00\x00\x00\x01\xc1",
        b"\x00\x10\x00\x00" + bytes(5_000),
    ],
)
def test_noise_costs_only_its_own_link(noise: bytes) -> None:
    """Scanners find every port; the members between which a link stands do not notice (P22)."""

    async def scenario() -> None:
        async with two_ends() as (leader, learner):
            at_leader, _ = await connected(leader, learner)
            reader, writer = await connect_raw(leader)
            writer.write(noise)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
            leader.channel.send(at_leader, Ping(1))
            leader.channel.flush()

            await until(lambda: learner.owner.received)

            assert at_leader not in leader.owner.lost
            assert leader.owner.received == []

    run(scenario)


def test_a_caller_that_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each silent connection holds a place that a member may need."""
    monkeypatch.setattr(peer_link, "HELLO_TIMEOUT_MS", 50)

    async def scenario() -> None:
        async with two_ends() as (leader, learner):
            await connected(leader, learner)
            reader, writer = await connect_raw(leader)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()

            assert len(leader.channel._links) == 1

    run(scenario)


def test_strangers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one stranger too many the oldest goes, and members that are connected stay."""
    monkeypatch.setattr(peer_link, "STRANGERS_MAX", 2)

    async def scenario() -> None:
        async with two_ends() as (leader, learner):
            await connected(leader, learner)
            strangers = [await connect_raw(leader) for _ in range(3)]

            await until(lambda: leader.trail.of("link_dropped"))
            with suppress(ConnectionResetError):
                assert await strangers[0][0].read() == b""
            await until(lambda: len(leader.channel._links) == 3)

            assert "have not said who they are" in str(leader.trail.of("link_dropped")[0]["why"])
            for _, writer in strangers:
                writer.close()

    run(scenario)


def test_a_peer_that_takes_nothing_is_dropped_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader's memory stays flat, and the quorum does not wait (P21)."""
    monkeypatch.setattr(peer_link, "PEER_OUTPUT_BYTES_MAX", 8 * 2**20)

    async def scenario() -> None:
        async with two_ends() as (leader, learner):
            at_leader, at_learner = await connected(leader, learner)
            link = learner.channel.link(at_learner)
            assert link is not None
            link.pause_reading()
            for _ in range(64):
                leader.channel.send(at_leader, Carried(bytes(2**20)))
                leader.channel.flush()

            await until(lambda: leader.owner.lost)

            assert leader.owner.lost == [at_leader]
            assert "has not taken" in str(leader.trail.of("link_dropped")[0]["why"])

    run(scenario)


def test_a_peer_that_stops_reading_is_dropped_in_time() -> None:
    """A few megabytes that nobody takes for the sync limit are enough to give a peer up."""

    async def scenario() -> None:
        async with two_ends() as (leader, learner):
            at_leader, at_learner = await connected(leader, learner)
            leader.channel.silence_ms = 50
            link = learner.channel.link(at_learner)
            assert link is not None
            link.pause_reading()
            for _ in range(16):
                leader.channel.send(at_leader, Carried(bytes(2**20)))
            leader.channel.flush()

            await until(lambda: leader.owner.lost)

            assert "took nothing" in str(leader.trail.of("link_dropped")[0]["why"])

    run(scenario)


def test_a_stream_waits_for_room_and_goes_on() -> None:
    """Records and snapshots leave the disk no faster than the peer takes them."""

    async def scenario() -> None:
        async with two_ends() as (leader, learner):
            at_leader, at_learner = await connected(leader, learner)
            link = leader.channel.link(at_leader)
            other_end = learner.channel.link(at_learner)
            assert link is not None
            assert other_end is not None
            other_end.pause_reading()
            sent = 0
            most_buffered = 0

            def pump() -> None:
                nonlocal sent, most_buffered
                if sent < 100:
                    sent += 1
                    link.send(encode(Carried(bytes(2**18))))
                    link.flush()
                    assert link._transport is not None
                    most_buffered = max(most_buffered, link._transport.get_write_buffer_size())
                    link.when_writable(pump)

            pump()
            waiting = sent
            other_end.resume_reading()
            await until(lambda: len(learner.owner.received) == 100)

            assert waiting < 100
            assert most_buffered < 2 * peer_link.PEER_HIGH_WATER_BYTES

    run(scenario)


def test_small_frames_leave_at_once() -> None:
    """Without TCP_NODELAY an acknowledgement waits for the one before it to be acknowledged."""

    async def scenario() -> None:
        async with two_ends() as (leader, learner):
            at_leader, _ = await connected(leader, learner)
            link = leader.channel.link(at_leader)
            assert link is not None
            assert link._transport is not None
            connection = link._transport.get_extra_info("socket")

            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    run(scenario)
