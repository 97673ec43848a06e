"""Connections break the way Zab's model says, and no other way."""

import asyncio
import random

from tests.cluster_sim.worlds import World, connect, later

from zabd.cluster_sim.connections import Latency
from zabd.cluster_sim.network import DatagramFaults


def test_a_cut_delivers_a_prefix_and_then_a_reset_to_each_side() -> None:
    """What arrives of a broken connection is a prefix of what was sent (N2)."""
    prefixes: set[int] = set()
    apart = 0
    for seed in range(40):
        world = World(seed)
        server, client = world.process(), world.process()
        served, dialler = connect(world, server, client)
        sent = bytes(random.Random(seed).randbytes(2_000))
        for start in range(0, 2_000, 100):
            dialler.transport.write(sent[start : start + 100])
        [connection] = world.network.connections.values()
        connection.cut()
        dialler.transport.write(b"after the cut")
        later(world, 5)
        apart += ("lost" in served.heard) != ("lost" in dialler.heard)
        later(world, 5_000)

        assert sent.startswith(bytes(served.data))
        assert served.heard[-1] == dialler.heard[-1] == "lost"
        assert isinstance(served.error, ConnectionResetError)
        assert not world.network.connections
        prefixes.add(len(served.data))
    assert len(prefixes) > 10, "chance decides how long the prefix is"
    assert any(size % 100 for size in prefixes), "a piece may be split"
    assert apart > 5, "one side may know long before the other"


def test_a_half_open_side_learns_of_the_break_when_it_sends() -> None:
    """One side is reset; the other waits in vain until it says something."""
    world = World()
    server, client = world.process(), world.process()
    served, dialler = connect(world, server, client)
    [connection] = world.network.connections.values()
    connection.break_one_side(dialler=True)
    later(world, 60_000)
    assert dialler.heard[-1] == "lost"
    assert served.heard == ["made"]
    served.transport.write(b"still there?")
    later(world)
    assert served.heard == ["made", "lost"]


def test_a_partition_holds_what_is_under_way_and_healing_lets_it_go_on() -> None:
    """Nothing is lost and nothing overtakes by a path that was cut for a while (N1, N3)."""
    world = World()
    server, client = world.process(), world.process()
    served, dialler = connect(world, server, client)
    a, b = server.stack.host, client.stack.host
    world.network.block(b, a)
    dialler.transport.write(b"one ")
    served.transport.write(b"the other way is open")
    later(world, 30_000)
    assert bytes(served.data) == b""
    assert bytes(dialler.data) == b"the other way is open"
    dialler.transport.write(b"two")
    world.network.unblock(b, a)
    later(world)
    assert bytes(served.data) == b"one two"


def test_a_partition_leaves_those_on_the_same_side_alone() -> None:
    """Only paths between groups are cut; a host in no group reaches everybody."""
    world = World()
    hosts = [world.network.add_host(name) for name in "abcd"]
    a, b, c, d = hosts
    world.network.partition([[a, b], [c]])
    blocked = {(x.name, y.name) for x in hosts for y in hosts if world.network.is_blocked(x, y)}
    assert blocked == {("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")}
    assert not world.network.is_blocked(d, c)
    world.network.heal()
    assert not world.network.is_blocked(a, c)


def test_a_stalled_connection_moves_on_after_the_stall() -> None:
    """A stall tells nobody anything."""
    world = World()
    server, client = world.process(), world.process()
    served, dialler = connect(world, server, client)
    [connection] = world.network.connections.values()
    connection.stall()
    dialler.transport.write(b"held")
    later(world, 10_000)
    assert served.heard == ["made"]
    connection.resume()
    later(world)
    assert bytes(served.data) == b"held"


def test_a_slow_path_is_slow_in_its_direction_only() -> None:
    """Latency is a property of one direction between two machines."""
    world = World()
    server, client = world.process(), world.process()
    served, dialler = connect(world, server, client)
    world.network.set_latency(client.stack.host, server.stack.host, Latency(5_000_000, 0))
    dialler.transport.write(b"slow")
    served.transport.write(b"quick")
    later(world, 4_900)
    assert bytes(dialler.data) == b"quick"
    assert bytes(served.data) == b""
    later(world, 200)
    assert bytes(served.data) == b"slow"


def test_an_abort_resets_the_other_side() -> None:
    """abort() loses what was under way, or part of it."""
    world = World()
    server, client = world.process(), world.process()
    served, dialler = connect(world, server, client)
    dialler.transport.write(b"z" * 1_000)
    dialler.transport.abort()
    later(world)
    assert dialler.heard == ["made", "lost"]
    assert dialler.error is None
    assert served.heard[-1] == "lost"
    assert isinstance(served.error, ConnectionResetError)


def test_writing_to_a_side_that_closed_is_answered_by_a_reset() -> None:
    """A half-closed connection still carries data the other way; a closed one resets."""
    world = World()
    server, client = world.process(), world.process()
    served, dialler = connect(world, server, client)
    served.eof_received = lambda: True  # type: ignore[method-assign]
    dialler.transport.write_eof()
    later(world)
    served.transport.write(b"still heard")
    later(world)
    assert bytes(dialler.data) == b"still heard"
    dialler.transport.close()
    served.transport.write(b"too late")
    later(world)
    assert served.heard[-1] == "lost"


def test_a_killed_sender_delivers_a_prefix() -> None:
    """What a killed process had handed to its kernel may arrive, in order, and nothing else."""
    ends: set[str] = set()
    for seed in range(20):
        world = World(seed)
        server, client = world.process(), world.process()
        served, dialler = connect(world, server, client)
        sent = bytes(random.Random(seed).randbytes(100_000))
        dialler.transport.write(sent[:50_000])
        dialler.transport.write(sent[50_000:])
        client.kill()
        later(world, 5_000)
        assert sent.startswith(bytes(served.data))
        assert len(served.data) <= 65_536
        assert served.heard[-1] == "lost"
        ends.add(type(served.error).__name__)
    assert ends == {"NoneType", "ConnectionResetError"}, "an end of file or a reset"


def test_datagrams_are_lost_doubled_and_reordered() -> None:
    """The election channel promises nothing."""
    world = World()
    a, b = world.network.add_host("a"), world.network.add_host("b")
    world.network.datagram_faults = DatagramFaults(lost=0.2, doubled=0.2)
    seen: list[int] = []
    for number in range(500):
        world.network.datagram(a, b, lambda number=number: seen.append(number))
    later(world, 5_000)
    assert 300 < len(set(seen)) < 450
    assert len(seen) > len(set(seen))
    assert seen != sorted(seen)
    world.network.block(a, b)
    seen.clear()
    world.network.datagram(a, b, lambda: seen.append(0))
    later(world)
    assert seen == []


def test_a_cancelled_dial_resets_the_side_that_accepted() -> None:
    """Giving up while the answer is under way leaves no connection behind."""
    world = World()
    server, client = world.process(), world.process()
    accepted: list[asyncio.Protocol] = []

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(self)

        def connection_lost(self, exc: Exception | None) -> None:
            accepted.remove(self)

    server.run_until_complete(server.create_server(Accepted, "", 5))
    world.network.block(server.stack.host, client.stack.host)
    dial = client.create_task(client.create_connection(Accepted, server.stack.host.name, 5))
    later(world)
    assert len(accepted) == 1
    dial.cancel()
    later(world)
    assert accepted == []
    world.network.heal()
    later(world, 10_000)
    assert accepted == []


def test_a_path_in_disorder_changes_the_order_and_nothing_else() -> None:
    """Each piece arrives once; the other direction, and other paths, keep theirs (N1)."""
    world = World()
    server, client = world.process(), world.process()
    served, dialler = connect(world, server, client)
    world.network.disorder(client.stack.host, server.stack.host)
    pieces = [bytes([number]) * 3 for number in range(40)]
    for piece in pieces:
        dialler.transport.write(piece)
        served.transport.write(piece)
    later(world)
    assert bytes(dialler.data) == b"".join(pieces)
    came = [bytes(served.data[at : at + 3]) for at in range(0, len(served.data), 3)]
    assert came != pieces
    assert sorted(came) == pieces
