"""How fast the simulator is, and how small it makes a run that fails: docs/reference/simulator.md.

    python bench/simulator.py [--only STEP] [--quick] [--sample N] [--seconds S]

    levels      events for each second of processor time of one core, at each level
    real-time   three members and a client that writes 20 times a second, for 10 virtual minutes
    shrinking   mistakes of the gallery, spread over its groups: what their runs are shrunk to
    gallery     how long the hunts of the gallery took, from its records

All checks are on. Times are processor time, so another program on the machine costs little; still,
one that shares the core's caches does: write down whether there was one.
"""

import argparse
import asyncio
import statistics
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.kit import Figure, options, run_steps, say

from zabd.client import connect
from zabd.cluster_sim import Scenario, simulate
from zabd.cluster_sim.mutants import GROUPS, MUTANTS
from zabd.cluster_sim.plan import Plan
from zabd.cluster_sim.shrink import CannotShrinkError, Shrinker, Size
from zabd.cluster_sim.sweep import LEVELS, run_seed

GALLERY: Final = Path(__file__).parent.parent / "tests" / "cluster_sim" / "gallery"
SEEDS: Final = {"zab": 60, "core": 60, "whole": 30}
FIRST_SEED: Final = 3_000_000
VIRTUAL_S: Final = 600
WRITES_PER_S: Final = 20
QUICK: Final = 10  # so many times less


def levels(given: argparse.Namespace) -> Iterator[Figure]:
    """What `zabctl sim run --workers 1` does, a level at a time."""
    for level in LEVELS:
        seeds = max(1, SEEDS[level] // QUICK) if given.quick else SEEDS[level]
        run_seed(FIRST_SEED - 1, level)  # which imports what is left to import
        outcomes = [run_seed(FIRST_SEED + number, level) for number in range(seeds)]
        failed = [outcome.seed for outcome in outcomes if outcome.failure is not None]
        assert not failed, f"seeds {failed} of level {level} fail a check"
        events, cpu_s = sum(o.events for o in outcomes), sum(o.cpu_s for o in outcomes)
        yield Figure(f"level {level}", events / cpu_s, "events/CPU s", f"{seeds} seeds")


def real_time(given: argparse.Namespace) -> Iterator[Figure]:
    """Servers, a client and its event loop as they are shipped, and nothing goes wrong."""
    seconds = VIRTUAL_S // QUICK if given.quick else VIRTUAL_S
    begun_s = time.process_time()
    events = simulate(lambda scenario: _write_for(scenario, seconds), seed=1, tick_ms=2_000)
    cpu_s = time.process_time() - begun_s
    told = f"{WRITES_PER_S} writes/s, {seconds} virtual seconds"
    yield Figure("whole, 3 members", seconds / cpu_s, "times real time", told)
    yield Figure("whole, 3 members", events / cpu_s, "events/CPU s", told)


async def _write_for(scenario: Scenario, seconds: int) -> int:
    return await scenario.spawn("writer", lambda: _write(scenario, seconds)).result()


async def _write(scenario: Scenario, seconds: int) -> int:
    async with connect(scenario.hosts) as client:
        await client.create("/x", b"")
        loop = asyncio.get_running_loop()
        begun_s, before = loop.time(), scenario.level.trace.recorded
        for number in range(1, WRITES_PER_S * seconds + 1):
            await client.set("/x", b"%d" % number)
            await asyncio.sleep(max(0.0, begun_s + number / WRITES_PER_S - loop.time()))
        _, stat = await client.get("/x")
        assert stat.version == WRITES_PER_S * seconds, "each write counts once"
        return scenario.level.trace.recorded - before


def shrinking(given: argparse.Namespace) -> Iterator[Figure]:
    """The run that found each mistake first, made as small as the time allows."""
    sizes: list[Size] = []
    times: list[float] = []
    for name, seed in _spread(QUICK if given.quick else given.sample):
        found = _shrink(name, seed, given.seconds)
        if found is not None:
            begun_with, size, cpu_s = found
            sizes.append(size)
            times.append(cpu_s)
            say(f"  {name}, {seed}: {begun_with} -> {size}, {cpu_s:.1f} s")
    what = f"of {len(sizes)} mistakes"
    for part, values in (
        ("decisions kept", [size.decisions for size in sizes]),
        ("faults kept", [size.faults for size in sizes]),
        ("CPU time", times),
    ):
        unit = "s" if values is times else ""
        yield Figure(f"{part}, median", statistics.median(values), unit, what)
        yield Figure(f"{part}, 90 %", _most(values), unit, what)


def _spread(count: int) -> Iterator[tuple[str, int]]:
    """So many mistakes and their seeds: of each group in turn one, from all over the group."""
    groups = [list(_records(group).items()) for group in GROUPS]
    total = sum(map(len, groups))
    chosen = [mine[:: max(1, round(total / count))] for mine in groups]
    for each in [one for one in chain.from_iterable(zip_longest(*chosen)) if one][:count]:
        name, record = each
        yield name, record["seed"]


def _records(group: str) -> dict[str, Any]:
    return tomllib.loads((GALLERY / f"{group}.toml").read_text("utf-8"))


def _shrink(name: str, seed: int, seconds: float) -> tuple[Size, Size, float] | None:
    begun_s = time.process_time()
    try:
        plan = Plan(seed, MUTANTS[name].level, name)
        shrinker = Shrinker(plan, lambda: time.process_time() > begun_s + seconds)
    except CannotShrinkError:
        say(f"  {name}: seed {seed} does not find it any more")
        return None
    shrinker.shrink()
    return shrinker.begun_with, shrinker.size, time.process_time() - begun_s


def gallery(_given: argparse.Namespace) -> Iterator[Figure]:
    """From the records: nothing is run."""
    times = [record["cpu_s"] for group in GROUPS for record in _records(group).values()]
    what = f"{len(times)} of {len(MUTANTS)} mistakes found"
    yield Figure("found within, median", statistics.median(times), "CPU s", what)
    yield Figure("found within, 90 %", _most(times), "CPU s", what)


def _most(values: Sequence[float]) -> float:
    """What nine of ten do not exceed."""
    return sorted(values)[-(-len(values) * 9 // 10) - 1]


STEPS: Final = {
    "levels": levels,
    "real-time": real_time,
    "shrinking": shrinking,
    "gallery": gallery,
}


def main() -> int:
    """Measure."""
    parser = options(__doc__)
    parser.add_argument("--sample", type=int, default=32, help="mistakes to shrink (32)")
    parser.add_argument("--seconds", type=float, default=30, help="for each of them (30)")
    return run_steps("simulator", STEPS, parser)


if __name__ == "__main__":
    sys.exit(main())
