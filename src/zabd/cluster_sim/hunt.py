"""The hunt for a planted mistake: one seed after the other until a check fires, and what that took.

A mutant that fixes a part of the shape is hunted in runs of that shape, and so is its innocence
judged: `acquit` has the run of the same seed and shape without the mistake.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from typing import Final

from zabd.cluster_sim.core_level import Outcome
from zabd.cluster_sim.mutants import MUTANTS
from zabd.cluster_sim.plan import Plan
from zabd.cluster_sim.shrink import Shrinker
from zabd.cluster_sim.sweep import LEVELS, run_seed

SEEDS_MAX: Final = 500
"""How many seeds a hunt tries unless it is told otherwise."""

_HUNTS_PER_WORKER: Final = 4  # a worker keeps what killed coroutines leave behind (see `sweep`)


@dataclass(frozen=True, slots=True)
class Shrunk:
    """How small the run became that finds a mistake: what a reader has to understand of it."""

    members: int
    faults: int
    requests: int


@dataclass(frozen=True, slots=True)
class Hunt:
    """What came of one hunt. `seed` and `check` are None if nothing fired."""

    mutant: str
    tried: int  # seeds
    cpu_s: float  # of this process, over all of them
    seed: int | None = None
    check: str | None = None
    detail: str = ""
    shrunk: Shrunk | None = None

    @property
    def meant(self) -> bool:
        """Whether it was found, and by a check that is meant to find it."""
        return self.check in MUTANTS[self.mutant].found_by


def hunt(name: str, first: int = 1, seeds: int = SEEDS_MAX, *, shrink_s: float = 0.0) -> Hunt:
    """Run seed after seed with a mistake planted, until a check fires, whichever it is.

    `shrink_s` is how many seconds to look for a smaller run that breaks the same invariant.
    """
    begun = time.process_time()
    for tried, seed in enumerate(range(first, first + seeds), 1):
        failure = run_seed(seed, MUTANTS[name].level, name).failure
        if failure is not None:
            cpu_s = time.process_time() - begun
            shrunk = _shrink(name, seed, shrink_s) if shrink_s else None
            return Hunt(name, tried, cpu_s, seed, failure.id, failure.detail, shrunk)
    return Hunt(name, seeds, time.process_time() - begun)


def hunts(
    names: Iterable[str],
    first: int = 1,
    seeds: int = SEEDS_MAX,
    *,
    shrink_s: float = 0.0,
    workers: int = 1,
) -> Iterator[Hunt]:
    """Hunt each of these mistakes, over so many processes, and give each hunt as it ends."""
    if workers <= 1:
        for name in names:
            yield hunt(name, first, seeds, shrink_s=shrink_s)
        return
    left = iter(names)
    while piece := list(islice(left, _HUNTS_PER_WORKER * workers)):  # see `sweep` for why not all
        with ProcessPoolExecutor(workers, mp_context=get_context("forkserver")) as pool:
            running: list[Future[Hunt]] = [
                pool.submit(hunt, name, first, seeds, shrink_s=shrink_s) for name in piece
            ]
            try:
                yield from (each.result() for each in as_completed(running))
            finally:
                for each in running:
                    each.cancel()


def acquit(name: str, seed: int) -> Outcome:
    """The run of this seed in the shape that a mutant fixes, without the mutant: nothing fires."""
    mutant = MUTANTS[name]
    run = LEVELS[mutant.level](seed, fixed=mutant.shape)
    outcome = run.run()
    run.forget()
    return outcome


def _shrink(name: str, seed: int, seconds: float) -> Shrunk:
    until: Callable[[], bool] = _deadline(seconds)
    shrinker = Shrinker(Plan(seed, MUTANTS[name].level, name), until)
    shrinker.shrink()
    size = shrinker.size
    return Shrunk(size.members, size.faults, size.requests)


def _deadline(seconds: float) -> Callable[[], bool]:
    end = time.process_time() + seconds
    return lambda: time.process_time() > end
