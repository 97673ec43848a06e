"""Many seeds: run them, over as many processes as there are, and gather what they came to."""

import logging
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from itertools import islice
from multiprocessing import get_context
from types import FrameType
from typing import Final, NoReturn, TypeAlias

from zabd.cluster_sim.core_level import CoreLevel, Outcome
from zabd.cluster_sim.coverage import gathering
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.mutants import MUTANTS
from zabd.cluster_sim.replica_level import ReplicaLevel
from zabd.cluster_sim.shape import Shape
from zabd.cluster_sim.strategies import STRATEGIES
from zabd.cluster_sim.whole_level import WholeLevel

# What clients tell their logs (that they were stopped for a while, say) is for who runs them.
logging.getLogger("zabd").addHandler(logging.NullHandler())

LEVELS: Final[dict[str, type[CoreLevel]]] = {
    level.name: level for level in (CoreLevel, ReplicaLevel, WholeLevel)
}

RUN_CPU_S_MAX: Final = 600.0
"""A run takes about a second of CPU; one that takes ten minutes hangs."""

# Killed processes leave their suspended coroutines behind for good (see `virtual_loop`): a third of
# a megabyte a run at the whole level. Worker processes are replaced after this many runs each.
_RUNS_PER_WORKER: Final = 50

# Handed out ahead per worker: enough to keep it busy, little enough to stop soon.
_AHEAD: Final = 4

_TURN: Final = threading.Lock()

Run: TypeAlias = Callable[[int], Outcome]


def make_level(
    seed: int,
    level: str,
    mutant: str | None = None,
    shape: Shape | None = None,
    strategy: str = STRATEGIES[0],
) -> CoreLevel:
    """The run of a seed; a mutant may fix a part of the shape, and switch checks off."""
    if mutant is None:
        return LEVELS[level](seed, shape, strategy=strategy)
    run = LEVELS[level](seed, shape, fixed=MUTANTS[mutant].shape, strategy=strategy)
    run.checker.off = MUTANTS[mutant].without
    return run


def run_seed(
    seed: int,
    level: str = "core",
    mutant: str | None = None,
    *,
    strategy: str = STRATEGIES[0],
    coverage: bool = False,
) -> Outcome:
    """One run, with a mistake of `mutants.MUTANTS` planted if one is named.

    Within a process runs take turns, whatever its threads ask for: mistakes are planted in the code
    that all of them share.
    """
    with _TURN:
        begun_s = time.thread_time()
        with ExitStack() as stack:
            if mutant is not None:
                stack.enter_context(MUTANTS[mutant].planted())
            gathered = stack.enter_context(gathering()) if coverage else None
            run = make_level(seed, level, mutant, strategy=strategy)
            outcome = run.run()
        run.forget()
        if gathered is not None:
            gathered.counts["faults"].update(outcome.faults)
            outcome.coverage = gathered.as_object()
        outcome.cpu_s = time.thread_time() - begun_s
    return outcome


def attempt_seed(
    seed: int,
    level: str = "core",
    mutant: str | None = None,
    *,
    strategy: str = STRATEGIES[0],
    coverage: bool = False,
) -> Outcome:
    """One run, whatever becomes of it: for sweeps that must not end because one seed does.

    What the simulator itself raises is a failure of that seed (X6), and so is a run that does not
    end by itself (L5); that bound holds in the main thread of a process only.
    """
    broken = partial(_broken, seed, level, strategy)
    try:
        with _bounded():
            return run_seed(seed, level, mutant, strategy=strategy, coverage=coverage)
    except EndlessRunError:
        return broken("L5", f"no end within {RUN_CPU_S_MAX:.0f} s of CPU")
    except Exception as error:  # noqa: BLE001 - it is told, as a failure of this seed
        return broken("X6", f"outside of any member: {error!r}")


def _broken(seed: int, level: str, strategy: str, check: str, detail: str) -> Outcome:
    """A run without an end of its own; where it was is the tail. For use where that is caught."""
    lines = traceback.format_exc().splitlines()
    failure = InvariantError(check, detail)
    return Outcome(seed, level, "", 0, 0, 0, 0, {}, failure, lines, strategy=strategy)


def run_seeds(
    seeds: Iterable[int],
    level: str = "core",
    mutant: str | None = None,
    *,
    strategy: str = STRATEGIES[0],
    coverage: bool = False,
    executor: Executor | None = None,
    workers: int = 1,
) -> Iterator[Outcome]:
    """The outcomes of all seeds, as they come, in any order.

    `level`: zab, core or whole. `mutant` and `strategy`: names of the reference of the simulator.
    With `coverage`, each outcome says what its run has been through.
    With one worker everything happens here. Any Executor may be passed in place of the processes
    that are started otherwise, one of a cluster for instance; `workers` then says how many runs it
    carries out at a time. Within one process runs take turns, so that more threads gain nothing.

    A run that fails is an outcome with a `failure`, also if the simulator itself raises or the
    process dies that it ran in; nothing that happens to one seed ends the others.
    """
    run = partial(attempt_seed, level=level, mutant=mutant, strategy=strategy, coverage=coverage)
    if executor is not None:
        yield from _spread(seeds, run, executor, workers)
    elif workers <= 1:
        yield from map(run, seeds)
    else:
        yield from _spread_over_processes(seeds, run, workers)


def _spread_over_processes(
    seeds: Iterable[int], run: "partial[Outcome]", workers: int
) -> Iterator[Outcome]:
    """Some seeds to a pool of processes, then a new pool.

    Not `max_tasks_per_child`: with it, a pool may wait for ever for a worker that was not replaced
    (CPython issue 115634).
    """
    left = iter(seeds)
    while piece := dict.fromkeys(islice(left, _RUNS_PER_WORKER * workers)):
        try:
            with _pool(workers) as pool:
                for outcome in _spread(piece.copy(), run, pool, workers):
                    del piece[outcome.seed]
                    yield outcome
        except BrokenProcessPool:
            yield from (_run_alone(seed, run) for seed in piece)


def _run_alone(seed: int, run: "partial[Outcome]") -> Outcome:
    """A process has died, and it may have been this seed's fault: find out."""
    try:
        with _pool(1) as pool:
            return pool.submit(run, seed).result()
    except BrokenProcessPool as error:
        told = run.keywords
        detail = f"the process that ran it has died: {error}"
        return _broken(seed, told["level"], told["strategy"], "X6", detail)


def _pool(workers: int) -> ProcessPoolExecutor:
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])  # so that a new pool imports nothing
    # Ctrl-C reaches every process of the terminal; the parent ends its workers in its own time.
    return ProcessPoolExecutor(
        workers,
        mp_context=context,
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )


def _spread(seeds: Iterable[int], run: Run, executor: Executor, workers: int) -> Iterator[Outcome]:
    left = iter(seeds)
    running: set[Future[Outcome]] = set()
    try:
        while True:
            for seed in islice(left, _AHEAD * workers - len(running)):
                running.add(executor.submit(run, seed))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    finally:
        for future in running:
            future.cancel()


def replay_command(outcome: Outcome, mutant: str | None = None) -> str:
    """What to type to see the same run again."""
    return seed_command(outcome.seed, outcome.level, mutant, strategy=outcome.strategy)


def seed_command(
    seed: int, level: str, mutant: str | None = None, *, strategy: str = STRATEGIES[0]
) -> str:
    """What to type to have this run."""
    more = f" --mutant {mutant}" if mutant else ""
    if strategy != STRATEGIES[0]:
        more += f" --strategy {strategy}"
    return f"zabctl sim run --level {level} --start {seed} --seeds 1{more}"


class EndlessRunError(BaseException):
    """A run has used up its time. Not an Exception: code under test may not catch it."""


class _bounded:  # noqa: N801 - used like a function
    """A context in which CPU time is bounded, if this is the main thread."""

    def __enter__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGVTALRM, _give_up)
            # Once more each second: a task that is hit keeps the exception to itself.
            signal.setitimer(signal.ITIMER_VIRTUAL, RUN_CPU_S_MAX, 1.0)

    def __exit__(self, *_raised: object) -> None:
        if self._main:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, self._before)


def _give_up(_number: int, _frame: FrameType | None) -> NoReturn:
    raise EndlessRunError
