"""Claims about time on links: two real ends, each on a loop of its own, in the simulator's time."""

import asyncio
import random
import socket
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.cluster_sim.worlds import Recorder, World, later
from tests.replica.harness import Ensemble
from tests.server.helpers import Trail, config_of, members
from tests.server.test_client_link import Owner as ClientOwner
from tests.server.test_election_link import vote
from tests.server.test_peer_link import HELLO
from tests.server.test_peer_link import Owner as PeerOwner

from zabd.cluster_sim.connections import HELD_SLOW, Latency
from zabd.cluster_sim.transports import SimTransport
from zabd.cluster_sim.virtual_loop import VirtualLoop
from zabd.model.ops import SetData
from zabd.replica.throttle import OUTSTANDING_BYTES_MAX
from zabd.server import client_link, election_link, peer_link
from zabd.server.client_link import OUTPUT_HIGH_WATER_BYTES, ClientChannel, ClientLink
from zabd.server.election_link import ElectionChannel
from zabd.server.peer_link import PeerLink, QuorumChannel
from zabd.zab.codec import encode
from zabd.zab.messages import Carried, Message, Notification, Ping

TICK_MS = 200
SYNC_LIMIT_MS = 5 * TICK_MS
MIB = 2**20


class Peers:
    """Member 1, which listens, and member 2, each with a loop of its own."""

    def __init__(self) -> None:
        self.world = World()
        self.loops = [self.world.process(f"m{number}") for number in (1, 2)]
        ensemble = tuple(
            replace(member, host=f"m{member.id}", quorum_port=2888, election_port=3888)
            for member in members(2)
        )
        self.configs = [config_of(number, ensemble, tick_ms=TICK_MS) for number in (1, 2)]
        self.owners = [PeerOwner(), PeerOwner()]
        self.trails = [Trail(), Trail()]
        self.quorum = [
            QuorumChannel(loop, config, owner, trail)  # type: ignore[arg-type]
            for loop, config, owner, trail in zip(
                self.loops, self.configs, self.owners, self.trails, strict=True
            )
        ]
        self.loops[0].run_until_complete(self.quorum[0].listen())

    def link(self) -> tuple[PeerLink, PeerLink]:
        """Member 2 has dialled and introduced itself; the ends of member 1 and of member 2."""
        self.loops[1].call_soon(self.quorum[1].dial, 1)
        later(self.world, 50)
        [(number, _)] = self.owners[1].dialled_links
        dialler = self.quorum[1].link(number)
        assert dialler is not None
        self.loops[1].call_soon(say, dialler, encode(HELLO))
        later(self.world, 50)
        [(number, _)] = self.owners[0].received
        accepted = self.quorum[0].link(number)
        assert accepted is not None
        return accepted, dialler

    def stranger(self, port: int = 2888) -> Recorder:
        """A connection of member 2's machine to a port of member 1's that is none of ours."""

        async def dial() -> Recorder:
            _, protocol = await self.loops[1].create_connection(Recorder, "m1", port)
            assert isinstance(protocol, Recorder)
            return protocol

        stranger = self.loops[1].run_until_complete(dial())
        later(self.world, 10)
        return stranger


def say(link: PeerLink, frame: bytes) -> None:
    """Send one frame."""
    link.send(frame)
    link.flush()


def far_away(transport: asyncio.Transport | None) -> None:
    """What is sent from here is under way for 100 ms, so that much of it is not taken yet."""
    assert isinstance(transport, SimTransport)
    transport._end.outgoing.latency = Latency(100_000, 0)


def keep_busy(loop: VirtualLoop, write: Callable[[], None], queued: Callable[[], int]) -> None:
    """Never let the queue become empty."""

    async def fill() -> None:
        while True:
            if queued() < 4 * MIB:
                write()
            await asyncio.sleep(0.005)

    loop.create_task(fill())


# --- quorum links --------------------------------------------------------------------------------


def test_a_peer_that_takes_all_the_time_is_kept_though_its_queue_is_never_empty() -> None:
    """A busy leader has megabytes outstanding: what counts is whether the peer takes any of it."""
    peers = Peers()
    leaders, _ = peers.link()
    transport = leaders._transport
    assert transport is not None
    far_away(transport)
    frame = encode(Carried(bytes(MIB // 4)))
    keep_busy(peers.loops[0], lambda: say(leaders, frame), transport.get_write_buffer_size)

    later(peers.world, 10 * SYNC_LIMIT_MS)

    assert not leaders._writable, "its queue was not full, so this shows nothing"
    assert peers.owners[0].lost == []


def test_a_peer_that_takes_nothing_any_more_is_dropped_though_more_is_sent() -> None:
    """What is added to its queue must not look like what it took."""
    peers = Peers()
    leaders, learners = peers.link()
    frame = encode(Carried(bytes(MIB // 4)))
    peers.loops[1].call_soon(learners.pause_reading)
    for at in range(20):
        peers.loops[0].call_later(at * SYNC_LIMIT_MS / 4_000, say, leaders, frame)
        peers.loops[0].call_later(at * SYNC_LIMIT_MS / 4_000 + 0.1, say, leaders, frame)

    later(peers.world, 3 * SYNC_LIMIT_MS)

    assert peers.owners[0].lost == [leaders.id]
    assert "took nothing" in str(peers.trails[0].of("link_dropped")[0]["why"])


def test_a_link_that_was_hung_up_ends_in_time_though_its_peer_took_some() -> None:
    """Taking most of it must not stop the clock of the close."""
    peers = Peers()
    leaders, _ = peers.link()
    pieces = [encode(Carried(bytes(MIB // 8)))] * 16
    transport = leaders._transport
    assert isinstance(transport, SimTransport)

    def hang_up() -> None:
        for piece in pieces:
            say(leaders, piece)
        leaders.hang_up()

    peers.loops[0].call_soon(hang_up)
    while not leaders.closed or transport.get_write_buffer_size() > MIB // 5:
        peers.world.schedule.run_until(peers.world.schedule.now_us + 10)
    transport._end.outgoing.hold(HELD_SLOW)
    leaders.resume_writing()  # as asyncio's transport says when it is closing, too
    later(peers.world, peer_link.CLOSE_TIMEOUT_MS + 100)

    assert peers.owners[0].lost == [leaders.id]


def test_what_a_follower_accepts_of_its_clients_fits_into_its_link() -> None:
    """A leader that stands still for less than the sync limit must not cost it all its clients."""
    ensemble = Ensemble()
    follower = ensemble.followers[0]
    pipelines = [ensemble.connect(follower) for _ in range(12)]
    one_by_one = [ensemble.connect(follower) for _ in range(100)]
    value = bytes(1_000_000)
    forwarded_bytes = 0

    def forward(end: tuple[int, int], message: Message) -> None:
        nonlocal forwarded_bytes
        assert end[0] == ensemble.leader
        forwarded_bytes += len(encode(message))

    ensemble._arrive = forward  # type: ignore[assignment,method-assign]
    for _ in range(8):
        for client in pipelines:
            if not client.paused:
                client.send(SetData("/", value))
    for client in one_by_one:
        client.send(SetData("/", value))
    ensemble.settle()

    assert all(client.paused for client in pipelines)
    assert forwarded_bytes > OUTSTANDING_BYTES_MAX + len(one_by_one) * len(value)
    assert forwarded_bytes < peer_link.LEADER_OUTPUT_BYTES_MAX


def test_a_link_to_a_leader_holds_what_a_members_clients_asked_for() -> None:
    """All that is read of pipelines four times over; a leader's own links hold less."""
    assert 4 * OUTSTANDING_BYTES_MAX <= peer_link.LEADER_OUTPUT_BYTES_MAX
    peers = Peers()
    leaders, learners = peers.link()
    frame = encode(Carried(bytes(MIB)))

    def ask() -> None:
        for _ in range(4 * OUTSTANDING_BYTES_MAX // MIB):
            say(learners, frame)

    peers.loops[0].call_soon(leaders.pause_reading)
    peers.loops[1].call_soon(ask)
    later(peers.world, SYNC_LIMIT_MS // 2)
    peers.loops[0].call_soon(leaders.resume_reading)
    later(peers.world, SYNC_LIMIT_MS)

    assert peers.owners[1].lost == []
    assert len(peers.owners[0].received) == 1 + 4 * OUTSTANDING_BYTES_MAX // MIB


def test_strangers_do_not_keep_a_learner_out() -> None:
    """However many of them say nothing and come again: the oldest of them makes room."""
    peers = Peers()
    silent = [peers.stranger() for _ in range(peer_link.STRANGERS_MAX)]

    leaders, _ = peers.link()
    more = [peers.stranger() for _ in range(3)]

    assert peers.quorum[0].link(leaders.id) is leaders
    assert [s.heard[-1] for s in silent[:3]] == ["lost"] * 3
    assert [s.heard[-1] for s in silent[3:] + more] == ["made"] * peer_link.STRANGERS_MAX


def test_only_a_learner_that_says_who_it_is_has_introduced_itself() -> None:
    """Any other message would hold a place for ever, without limit of number (P22)."""
    peers = Peers()
    stranger = peers.stranger()
    peers.loops[1].call_soon(stranger.transport.write, encode(Ping(1)))

    later(peers.world, 10)

    assert stranger.heard == ["made", "lost"]
    assert peers.owners[0].received == []
    assert not peers.quorum[0]._links


# --- notifications -------------------------------------------------------------------------------


class Voters(Peers):
    """Member 1 listens on its election port too, and member 2 votes."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Notification] = []
        self.election = [
            ElectionChannel(loop, config, self, random.Random(1), trail)  # type: ignore[arg-type]
            for loop, config, trail in zip(self.loops, self.configs, self.trails, strict=True)
        ]
        self.loops[0].run_until_complete(self.election[0].listen())

    def notified(self, notification: Notification) -> None:
        self.heard.append(notification)

    def vote(self, election_round: int) -> None:
        """Member 2 tells member 1."""
        self.loops[1].call_soon(self.election[1].notify, 1, vote(2, election_round))
        later(self.world, 50)


def test_silent_connections_do_not_keep_a_member_out() -> None:
    """They go to make room, one for each that comes, and a member that was heard stays."""
    voters = Voters()
    places = voters.election[0]._receivers_max
    silent = [voters.stranger(3888) for _ in range(places)]

    voters.vote(1)
    more = [voters.stranger(3888) for _ in range(places)]
    voters.vote(2)

    assert voters.heard == [vote(2, 1), vote(2, 2)]
    assert len(voters.election[0]._receivers) == places
    assert [s.heard[-1] for s in silent] == ["lost"] * places
    assert [s.heard[-1] for s in more] == ["lost"] + ["made"] * (places - 1)
    assert len(voters.loops[0].stack.network.connections) == places


def test_a_silent_connection_to_the_election_port_ends_in_time() -> None:
    """Each holds a descriptor; a member says at once what it has to say, and is silent later."""
    voters = Voters()
    voters.vote(1)
    stranger = voters.stranger(3888)

    later(voters.world, election_link.HELLO_TIMEOUT_MS + 100)

    assert stranger.heard == ["made", "lost"]
    assert len(voters.election[0]._receivers) == 1


def test_connections_that_members_left_behind_make_room_too() -> None:
    """Of those that were heard once the oldest goes: nobody uses it any more, or dials anew."""
    voters = Voters()
    left = [voters.stranger(3888) for _ in range(voters.election[0]._receivers_max)]
    for one in left:
        voters.loops[1].call_soon(one.transport.write, encode(vote(2, 1)))
    later(voters.world, 10)

    voters.vote(2)

    assert voters.heard[-1] == vote(2, 2)
    assert left[0].heard[-1] == "lost"


# --- client connections --------------------------------------------------------------------------


class Clients:
    """A client port of one process, and clients in another."""

    def __init__(self, **config: object) -> None:
        self.world = World()
        self.loop, self.far = self.world.process("m1"), self.world.process("m2")
        self.owner, self.trail = ClientOwner(), Trail()
        settings = config_of(1, members(1), client_port=2181, client_host="m1", **config)
        self.channel = ClientChannel(self.loop, settings, self.owner, self.trail)  # type: ignore[arg-type]
        self.owner.channel = self.channel
        self.loop.run_until_complete(self.channel.listen())

    def connect(self) -> tuple[Recorder, ClientLink]:
        """A client, and the member's end of its connection."""

        async def dial() -> Recorder:
            _, protocol = await self.far.create_connection(Recorder, "m1", 2181)
            assert isinstance(protocol, Recorder)
            return protocol

        client = self.far.run_until_complete(dial())
        later(self.world, 10)
        return client, self.channel.links()[-1]


def test_a_client_that_reads_all_the_time_is_kept_though_its_queue_is_never_empty() -> None:
    """A subscriber of many events on a thin line is slow, and not gone."""
    clients = Clients(session_timeout_ms_max=500)
    _, link = clients.connect()
    far_away(link._transport)
    keep_busy(clients.loop, lambda: link.write(bytes(MIB // 4)), lambda: link.queued_bytes)

    later(clients.world, 5_000)

    assert not link.reading, "its queue was not full, so this shows nothing"
    assert clients.owner.closed == []


def test_a_client_that_reads_nothing_any_more_is_dropped_though_more_is_sent() -> None:
    """What is added to its queue must not look like what it read (P20)."""
    clients = Clients(session_timeout_ms_max=500)
    client, link = clients.connect()
    clients.far.call_soon(client.transport.pause_reading)
    for at in range(20):
        clients.loop.call_later(0.1 + at * 0.1, link.write, bytes(MIB // 4))

    later(clients.world, 1_600)

    assert clients.owner.closed == [link.id]
    assert "read nothing" in str(clients.trail.of("client_dropped")[0]["why"])


@pytest.mark.parametrize("finish", [False, True])
def test_a_client_that_ends_and_does_not_read_is_gone_in_time(finish: bool) -> None:  # noqa: FBT001
    """It holds a descriptor and a place, however little it is owed (K4)."""
    clients = Clients()
    client, link = clients.connect()
    assert link._transport is not None

    def end() -> None:
        client.transport.pause_reading()
        client.transport.write_eof()

    clients.loop.call_soon(link.write, bytes(OUTPUT_HIGH_WATER_BYTES // 2))
    clients.far.call_soon(end)
    later(clients.world, 50)
    assert link._transport.is_closing(), "the client's end was not noticed"
    if finish:  # the member ends it as well
        clients.loop.call_soon(link.finish)
    later(clients.world, 3 * client_link.LINGER_MS)

    assert len(clients.channel) == 0
    assert clients.owner.closed == ([] if finish else [link.id])


def test_a_client_that_takes_a_part_behind_its_end_is_gone_in_time_too() -> None:
    """Taking most of what it is owed must not stop the clock."""
    clients = Clients()
    client, link = clients.connect()
    clients.far.call_soon(client.transport.pause_reading)

    def answer_and_close() -> None:
        link.write(bytes(2 * OUTPUT_HIGH_WATER_BYTES))
        link.close()

    clients.loop.call_soon(answer_and_close)
    later(clients.world, 10)
    link.resume_writing()  # as asyncio's transport says when it is closing, too
    later(clients.world, 3 * client_link.LINGER_MS)

    assert clients.owner.closed == [link.id]


# --- names ---------------------------------------------------------------------------------------


class Resolver:
    """A resolver with a few threads: who waits for an answer that never comes holds one."""

    THREADS = 2

    def __init__(self, loop: VirtualLoop) -> None:
        self.hanging: set[str] = set()
        self.unknown: set[str] = set()
        self.asked: list[str] = []
        self._free = asyncio.Semaphore(self.THREADS)
        self._real = loop.getaddrinfo
        loop.getaddrinfo = self.getaddrinfo  # type: ignore[method-assign,assignment]

    async def getaddrinfo(self, host: str, port: int, **kind: int) -> list[object]:
        """As the system's; it cannot be taken back."""
        self.asked.append(host)
        return await asyncio.shield(asyncio.ensure_future(self._look_up(host, port, kind)))

    async def _look_up(self, host: str, port: int, kind: dict[str, int]) -> list[object]:
        async with self._free:
            await asyncio.sleep(30 if host in self.hanging else 0.001)
            if host in self.unknown | self.hanging:
                raise socket.gaierror(socket.EAI_NONAME, "no such name")
            return await self._real(host, port, **kind)


def three_names() -> tuple[Peers, Resolver]:
    """Member 2 also knows of a member 3, and asks a resolver for all names."""
    peers = Peers()
    members_ = (*peers.configs[1].members, replace(peers.configs[1].members[0], id=3, host="m3"))
    peers.world.network.add_host("m3")
    peers.quorum[1] = QuorumChannel(
        peers.loops[1],  # type: ignore[arg-type]
        replace(peers.configs[1], members=members_),
        peers.owners[1],
        peers.trails[1],
    )
    return peers, Resolver(peers.loops[1])


def test_a_name_that_hangs_delays_nobody_else() -> None:
    """One member's DNS entry is broken; the threads that look names up are few."""
    peers, resolver = three_names()
    resolver.hanging = {"m3"}
    dial = peers.quorum[1].dial
    for _ in range(20):
        peers.loops[1].call_soon(dial, 3)
        later(peers.world, 200)

    peers.loops[1].call_soon(dial, 1)
    later(peers.world, 100)

    assert resolver.asked == ["m3", "m1"]
    assert [member for _, member in peers.owners[1].dialled_links] == [1]
    assert peers.owners[1].failed == [3] * 20


@pytest.mark.parametrize("fate", ["hanging", "unknown"])
def test_a_member_that_was_found_once_is_dialled_though_its_name_is_not_found_now(
    fate: str,
) -> None:
    """A member must not be lost because its ensemble's DNS is (D2)."""
    peers, resolver = three_names()
    for _ in range(2):
        peers.loops[1].call_soon(peers.quorum[1].dial, 1)
        later(peers.world, 100)
        getattr(resolver, fate).add("m1")

    assert [member for _, member in peers.owners[1].dialled_links] == [1, 1]
    assert resolver.asked == ["m1", "m1"]


def test_a_member_that_has_moved_is_found() -> None:
    """A pod that starts anew has another address: the one known is no more than a last resort."""
    peers, _ = three_names()
    peers.quorum[1].names._known["m1"] = ["10.9.9.9"]

    peers.loops[1].call_soon(peers.quorum[1].dial, 1)
    later(peers.world, 100)

    assert [member for _, member in peers.owners[1].dialled_links] == [1]


def test_every_address_of_a_name_is_tried() -> None:
    """`localhost` is two, and a member may listen on one of them."""
    peers, _ = three_names()
    found = peers.loops[0].run_until_complete(peers.loops[0].getaddrinfo("m1", 0))

    async def two(host: str, port: int, **kind: int) -> list[object]:
        return [(*found[0][:4], ("127.0.0.1", 0)), *found]

    peers.loops[1].getaddrinfo = two  # type: ignore[method-assign,assignment]
    peers.loops[1].call_soon(peers.quorum[1].dial, 1)
    later(peers.world, 100)

    assert [member for _, member in peers.owners[1].dialled_links] == [1]


def test_what_is_no_name_at_all_is_a_dial_that_failed() -> None:
    """Whatever the configuration says, the core gets its answer."""
    peers, _ = three_names()

    async def refuse(host: str, port: int, **kind: int) -> list[object]:
        raise UnicodeError("label too long")

    peers.loops[1].getaddrinfo = refuse  # type: ignore[method-assign,assignment]
    peers.loops[1].call_soon(peers.quorum[1].dial, 1)
    later(peers.world, 100)

    assert peers.owners[1].failed == [1]
