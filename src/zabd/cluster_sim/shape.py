"""The shape of a run, drawn from its seed: who takes part, what is done, what goes wrong.

A seed draws which kinds of faults are on at all ("swarm testing": Groce et al., ISSTA 2012), since
a fault that is always on hides what only happens without it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random
from types import MappingProxyType
from typing import Any, Final, TypeVar

from zabd.cluster_sim.connections import ORDINARY, Latency
from zabd.cluster_sim.disks import ORDINARY_SPEED, DiskSpeed
from zabd.cluster_sim.fault_kinds import FAULT_KINDS
from zabd.cluster_sim.network import DatagramFaults

T = TypeVar("T")

_KIND_CHANCE: Final = 0.25  # of each kind to be on: 12 of 47 on average


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
    log_disk: bool = False  # the log has a device of its own
    batch_counts: tuple[int, ...] = (1, 1, 1, 2, 7)  # what is submitted at once
    counter_handover: int | None = None  # where a leader asks for a new epoch, if not near its end
    tail_batches: int = 4_096  # the recent history that peers keep in memory
    programs: tuple[str, ...] = ()  # what runs at the whole level, unless chance decides

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


NOTHING_FIXED: Final[Mapping[str, Any]] = MappingProxyType({})
"""A shape of which the seed decides everything."""


def draw_shape(stream: Callable[[str], Random]) -> Shape:
    """A run's shape. Each number has a stream of its own, so that a new one changes no other."""

    def draw(name: str, choices: Sequence[T]) -> T:
        return stream(f"shape {name}").choice(choices)

    tick_ms = draw("tick", (50, 100, 200, 500))
    submits_per_tick = draw("submit every", (1, 4, 16))
    # An epoch of a dozen ticks: a learner that takes longer to come in step would never do so.
    handover = draw("handover", (None, None, None, None, 30 * submits_per_tick))
    return Shape(
        voters=draw("voters", (1, 2, 3, 3, 3, 3, 3, 4, 5, 5)),
        observers=draw("observers", (0, 0, 0, 1)),
        tick_ms=tick_ms,
        init_limit=draw("init limit", (5, 10)),
        sync_limit=draw("sync limit", (2, 5)),
        faults_ms=tick_ms * draw("length", (20, 50, 100)),
        fault_every_ms=tick_ms * draw("fault every", (1, 2, 5)),
        kinds=_draw_kinds(stream),
        submit_every_ms=tick_ms / submits_per_tick,
        payload_bytes_max=draw("payload", (40, 600, 3_000)),
        snapshot_every=draw("snapshot every", (5, 20, 1_000)),
        segment_bytes=draw("segment", (8 << 10, 64 << 10)),
        down_ms_max=tick_ms * draw("down", (1, 5, 20)),
        latency=Latency(
            draw("latency least", (50, 500)), tick_ms * draw("latency spread", (5, 50, 500))
        ),
        datagrams=DatagramFaults(
            lost=draw("votes lost", (0.0, 0.05, 0.3)), doubled=draw("votes doubled", (0.0, 0.1))
        ),
        disk_speed=DiskSpeed(
            write_us=(20, 200), sync_us=(200, tick_ms * draw("sync", (10, 50, 200)))
        ),
        drift_ppm_max=draw("drift", (0, 100, 50_000)),
        log_disk=draw("log disk", (False, False, True)),
        counter_handover=handover,
        tail_batches=draw("tail", (4_096, 8)),
    )


def plain_shape(voters: int, observers: int = 0, tick_ms: int = 200) -> Shape:
    """One of which nothing is left to the seed, and in which nothing goes wrong."""
    return Shape(
        voters=voters,
        observers=observers,
        tick_ms=tick_ms,
        init_limit=10,
        sync_limit=5,
        faults_ms=0,
        fault_every_ms=tick_ms,
        kinds=(),
        submit_every_ms=tick_ms,
        payload_bytes_max=100,
        snapshot_every=1_000,
        segment_bytes=64 << 10,
        down_ms_max=10 * tick_ms,
        latency=ORDINARY,
        datagrams=DatagramFaults(),
        disk_speed=ORDINARY_SPEED,
        drift_ppm_max=0,
    )


def _draw_kinds(stream: Callable[[str], Random]) -> tuple[str, ...]:
    if not stream("shape peace").randrange(20):
        return ()
    return tuple(kind for kind in FAULT_KINDS if stream(f"shape {kind}").random() < _KIND_CHANCE)
