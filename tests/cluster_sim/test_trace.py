"""One seed, one trace, under any hash seed."""

import os
import subprocess
import sys

from zabd.cluster_sim.trace import Trace, describe_bytes

# Talks over a connection that is cut, works a disk through a power cut, and prints the digest.
RUN = """
import asyncio, random, sys
from tests.cluster_sim.worlds import World, connect, later
from zabd.cluster_sim.disk_image import DiskImage
from zabd.cluster_sim.disks import SimDisk
from zabd.storage.disk import Create, Sync, WriteAt

world = World(int(sys.argv[1]))
server, client = world.process("s"), world.process("c")
served, dialler = connect(world, server, client)
image = DiskImage()
disk = SimDisk(world.schedule, image, world.trace, name="d", rng=world.schedule.stream("disks"))
names = {"a", "b", "c", "d", "e"}

async def talk():
    for name in sorted(names):
        dialler.transport.write(name.encode() * 1_000)
        disk.submit([Create(name), WriteAt(name, 0, b"x" * 5_000), Sync(name)], lambda o: None)
        await asyncio.sleep(random.Random(name).random())

client.create_task(talk())
later(world, 1_500)
[connection] = world.network.connections.values()
connection.cut()
disk.kill()
image.lose_power(world.schedule.stream("crash"))
later(world, 10_000)
print(world.trace.digest(), world.trace.recorded)
"""


def run(seed: int, hash_seed: str) -> str:
    """The digest of the run above in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_one_seed_gives_one_trace_under_any_hash_seed() -> None:
    """X1: the digest is the run."""
    digests = [run(5, "1"), run(5, "2"), run(6, "1")]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]
    assert int(digests[0].split()[1]) > 20


def test_the_digest_covers_lines_that_are_no_longer_kept() -> None:
    """A long run keeps its last lines only; its digest stands for all of them."""
    digests = []
    for first in ("one", "another"):
        trace = Trace(lambda: 7, lines_max=2)
        for what in (first, "b", "c"):
            trace.record("m1", what)
        assert trace.tail(5) == ["[        7] m1 b", "[        7] m1 c"]
        assert trace.recorded == 3
        digests.append(trace.digest())
    assert digests[0] != digests[1]


def test_bytes_are_named_by_length_and_checksum() -> None:
    """Two different payloads of one length are two different lines."""
    assert describe_bytes(b"ab") != describe_bytes(b"ba")
    assert describe_bytes(b"ab").startswith("2B#")
