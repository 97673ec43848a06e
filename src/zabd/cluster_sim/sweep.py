"""Many seeds: run them, over as many processes as there are, and gather what they came to."""

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from itertools import islice
from multiprocessing import get_context
from typing import Final

from zabd.cluster_sim.core_level import CoreLevel, Outcome
from zabd.cluster_sim.mutants import MUTANTS
from zabd.cluster_sim.replica_level import ReplicaLevel
from zabd.cluster_sim.shape import Shape
from zabd.cluster_sim.whole_level import WholeLevel

LEVELS: Final[dict[str, type[CoreLevel]]] = {
    level.name: level for level in (CoreLevel, ReplicaLevel, WholeLevel)
}

# Killed processes leave their suspended coroutines behind for good (see `virtual_loop`): about a
# megabyte a run at the whole level. A worker process is replaced after this many runs.
_RUNS_PER_WORKER: Final = 50

# Handed out ahead per worker: enough to keep it busy, little enough to stop soon.
_AHEAD: Final = 4


def make_level(
    seed: int, level: str, mutant: str | None = None, shape: Shape | None = None
) -> CoreLevel:
    """The run of a seed; a mutant may fix a part of the shape, and switch checks off."""
    if mutant is None:
        return LEVELS[level](seed, shape)
    run = LEVELS[level](seed, shape, fixed=MUTANTS[mutant].shape)
    run.checker.off = MUTANTS[mutant].without
    return run


def run_seed(seed: int, level: str = "core", mutant: str | None = None) -> Outcome:
    """One run, with a mistake of `mutants.MUTANTS` planted if one is named."""
    with MUTANTS[mutant].planted() if mutant is not None else nullcontext():
        run = make_level(seed, level, mutant)
        outcome = run.run()
    run.forget()
    return outcome


def sweep(
    seeds: Iterable[int],
    level: str = "core",
    mutant: str | None = None,
    *,
    executor: Executor | None = None,
    workers: int = 1,
) -> Iterator[Outcome]:
    """The outcomes of all seeds, as they come.

    With one worker everything happens here. Any Executor may be passed in place of the processes
    that are started otherwise: one of a cluster, for instance.
    """
    if executor is None and workers <= 1:
        for seed in seeds:
            yield run_seed(seed, level, mutant)
    elif executor is None:
        with ProcessPoolExecutor(
            workers, mp_context=get_context("forkserver"), max_tasks_per_child=_RUNS_PER_WORKER
        ) as pool:
            yield from _spread(seeds, level, mutant, pool, workers)
    else:
        yield from _spread(seeds, level, mutant, executor, workers)


def _spread(
    seeds: Iterable[int], level: str, mutant: str | None, executor: Executor, workers: int
) -> Iterator[Outcome]:
    left = iter(seeds)
    running: set[Future[Outcome]] = set()
    try:
        while True:
            for seed in islice(left, _AHEAD * workers - len(running)):
                running.add(executor.submit(run_seed, seed, level, mutant))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    finally:
        for future in running:
            future.cancel()


def replay_command(outcome: Outcome, mutant: str | None = None) -> str:
    """What to type to see the same run again."""
    planted = f" --mutant {mutant}" if mutant else ""
    return f"zabctl sim run --level {outcome.level} --start {outcome.seed} --seeds 1{planted}"
