"""Our client and kazoo on the same servers, in turns: requests a second, and the client's CPU time.

    python bench/clients.py [--rounds 9] [--members 3] [--requests 1000] [--window 200] [--check]

The blocking facade is compared with kazoo's blocking calls, one request after the other, and the
asyncio client with kazoo's ``*_async``, so many at a time. Each round measures both, one after the
other; the figures are medians over the rounds, and a ratio is the median of the rounds' own, so
that what else the machine does weighs on both sides. `--check` fails below 1 and 3 times kazoo.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kazoo.client import KazooClient

from zabd.cli.members import Ensemble
from zabd.client import SyncClient, connect

PATH = "/bench"
DATA = b"x" * 100
TARGETS = {"get": 1.0, "set": 1.0, "get, pipelined": 3.0, "set, pipelined": 3.0}


@dataclass(frozen=True)
class Cost:
    """What one side took for a round's requests."""

    wall_us: float  # a request
    cpu_us: float  # a request, of the client's process


@dataclass(frozen=True)
class Sides:
    """What both sides took, round by round."""

    name: str
    ours: list[Cost]
    theirs: list[Cost]

    @property
    def ratio(self) -> float:
        """How many times kazoo's requests a second ours are."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return statistics.median(theirs.wall_us / ours.wall_us for ours, theirs in pairs)

    @property
    def cpu_ratio(self) -> float:
        """How many times our CPU time kazoo's is."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return statistics.median(theirs.cpu_us / ours.cpu_us for ours, theirs in pairs)

    def row(self) -> str:
        """A line of the table."""
        figures = []
        for side in (self.ours, self.theirs):
            wall_us = statistics.median(cost.wall_us for cost in side)
            cpu_us = statistics.median(cost.cpu_us for cost in side)
            figures.append(f"{1e6 / wall_us:.0f}/s, {cpu_us:.0f} us")
        ours, theirs = figures
        return f"| {self.name} | {ours} | {theirs} | {self.ratio:.2f} | {self.cpu_ratio:.2f} |"


class Timer:
    """Wall and CPU time of a block, for each of so many requests."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self.costs: list[Cost] = []

    @contextmanager
    def round(self) -> Iterator[None]:
        """Measure the block."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.costs.append(Cost(wall / self._requests * 1e6, cpu / self._requests * 1e6))


def sequential(ours: SyncClient, theirs: KazooClient, rounds: int, count: int) -> Iterator[Sides]:
    """One request after the other."""
    calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "get": (lambda: ours.get(PATH), lambda: theirs.get(PATH)),
        "set": (lambda: ours.set(PATH, DATA), lambda: theirs.set(PATH, DATA)),
    }
    for name, sides in calls.items():
        timers = Timer(count), Timer(count)
        for _ in range(rounds):
            for call, timer in zip(sides, timers, strict=True):
                with timer.round():
                    for _ in range(count):
                        call()
        yield Sides(name, timers[0].costs, timers[1].costs)


async def pipelined(
    hosts: str, theirs: KazooClient, rounds: int, count: int, window: int
) -> list[Sides]:
    """So many requests at a time; kazoo's are awaited while the loop stands still."""

    def burst(call: Callable[[], object]) -> None:
        for _ in range(count // window):
            for result in [call() for _ in range(window)]:
                result.get()  # type: ignore[attr-defined]

    async def our_burst(call: Callable[[], Awaitable[object]]) -> None:
        for _ in range(count // window):
            await asyncio.gather(*(call() for _ in range(window)))

    async with connect(hosts, timeout=30.0) as ours:
        return [
            await _in_turns(
                "get, pipelined",
                lambda: our_burst(lambda: ours.get(PATH)),
                lambda: burst(lambda: theirs.get_async(PATH)),
                rounds,
                count,
            ),
            await _in_turns(
                "set, pipelined",
                lambda: our_burst(lambda: ours.set(PATH, DATA)),
                lambda: burst(lambda: theirs.set_async(PATH, DATA)),
                rounds,
                count,
            ),
        ]


async def _in_turns(
    name: str,
    ours: Callable[[], Awaitable[None]],
    theirs: Callable[[], None],
    rounds: int,
    count: int,
) -> Sides:
    timers = Timer(count), Timer(count)
    for _ in range(rounds):
        with timers[0].round():
            await ours()
        with timers[1].round():
            theirs()
    return Sides(name, timers[0].costs, timers[1].costs)


def measure(hosts: str, rounds: int, requests: int, window: int) -> list[Sides]:
    """All four comparisons, by clients of one process each at the same servers."""
    theirs = KazooClient(hosts, timeout=30.0)
    theirs.start()
    try:
        with SyncClient(hosts, timeout=30.0) as ours:
            ours.create(PATH, DATA)
            sides = list(sequential(ours, theirs, rounds, requests))
        many = requests // window * window
        return sides + asyncio.run(pipelined(hosts, theirs, rounds, many, window))
    finally:
        theirs.stop()
        theirs.close()


def main() -> int:
    """Start an ensemble, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1000, help="of each side in a round")
    parser.add_argument("--window", type=int, default=200, help="requests at a time, pipelined")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Ensemble(Path(folder), voters=given.members) as ensemble,
    ):
        ensemble.start()
        # One member for both, so that neither is lucky with the leader.
        host = ensemble.member(1).address
        sides = measure(host, given.rounds, given.requests, given.window)
    print("| request | zabd | kazoo | times as fast | times less CPU |")
    print("| --- | --- | --- | --- | --- |")
    for each in sides:
        print(each.row())
    slow = [each for each in sides if each.ratio < TARGETS[each.name]]
    for each in slow:
        print(f"{each.name}: {each.ratio:.2f}, expected {TARGETS[each.name]}", file=sys.stderr)
    return 1 if slow and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
