"""The shape of a run, drawn from its seed: who takes part, what is done, what goes wrong.

A seed draws which kinds of faults are on at all ("swarm testing": Groce et al., ISSTA 2012), since
a fault that is always on hides what only happens without it.
"""

from dataclasses import dataclass, fields
from random import Random
from typing import Final

from zabd.cluster_sim.connections import Latency
from zabd.cluster_sim.disks import DiskSpeed
from zabd.cluster_sim.network import DatagramFaults

FAULT_KINDS: Final = (
    "kill",  # a process dies; its machine keeps the page cache
    "power cut",  # a machine loses power: memory, connections and what was not synced
    "power cut of all",
    "crash between effects",  # as one of the two, before a chosen effect of a later step
    "crash at the disk",  # as one of the two, at a chosen disk operation
    "pause",
    "partition",
    "one-way partition",
    "bridge",  # two halves that only one member reaches
    "isolate the leader",
    "cut",  # a connection breaks: a prefix, then a reset to each side
    "half-open",
    "stall",  # a connection moves nothing for a while
    "slow path",
    "disk stall",
    "sync error",
    "abdicate",
    "named leader",  # the election says what chance says
    "snapshot",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """One run's numbers. Times are virtual milliseconds unless the name says otherwise."""

    voters: int
    observers: int
    tick_ms: int
    init_limit: int
    sync_limit: int
    faults_ms: int  # how long faults go on
    fault_every_ms: int  # on average
    kinds: tuple[str, ...]
    submit_every_ms: float  # on average
    payload_bytes_max: int
    snapshot_every: int  # batches
    segment_bytes: int
    down_ms_max: int
    latency: Latency
    datagrams: DatagramFaults
    disk_speed: DiskSpeed
    drift_ppm_max: int

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def draw_shape(rng: Random) -> Shape:
    """A run's shape."""
    tick_ms = rng.choice((50, 100, 200, 500))
    kinds = tuple(kind for kind in FAULT_KINDS if rng.random() < 0.4)  # noqa: PLR2004 - 8 of 19
    if rng.random() < 0.05:  # noqa: PLR2004 - one in twenty stays in peace
        kinds = ()
    return Shape(
        voters=rng.choice((1, 2, 3, 3, 3, 3, 3, 4, 5, 5)),
        observers=rng.choice((0, 0, 0, 1)),
        tick_ms=tick_ms,
        init_limit=rng.choice((5, 10)),
        sync_limit=rng.choice((2, 5)),
        faults_ms=tick_ms * rng.choice((20, 50, 100)),
        fault_every_ms=tick_ms * rng.choice((1, 2, 5)),
        kinds=kinds,
        submit_every_ms=tick_ms / rng.choice((1, 4, 16)),
        payload_bytes_max=rng.choice((40, 600, 3_000)),
        snapshot_every=rng.choice((5, 20, 1_000)),
        segment_bytes=rng.choice((8 << 10, 64 << 10)),
        down_ms_max=tick_ms * rng.choice((1, 5, 20)),
        latency=Latency(rng.choice((50, 500)), tick_ms * rng.choice((5, 50, 500))),
        datagrams=DatagramFaults(lost=rng.choice((0.0, 0.05, 0.3)), doubled=rng.choice((0.0, 0.1))),
        disk_speed=DiskSpeed(
            write_us=(20, 200), sync_us=(200, tick_ms * rng.choice((10, 50, 200)))
        ),
        drift_ppm_max=rng.choice((0, 100, 50_000)),
    )
