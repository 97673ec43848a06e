"""Many seeds of the recipes' campaigns: in turns, with a record by which a later run goes on.

    python -m tests.client.recipe_campaigns --seeds 2000 [--recipe lock] [--cpu-minutes 10]

The record has one line for each seed that was run: recipe, seed, CPU seconds, what it found, and a
digest of the code. Seeds of other code are not counted. Whoever has several machines, or cores,
gives each its recipes or its seeds (`--first`), and a record of its own.
"""

import argparse
import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import click
from tests.client import test_campaigns, test_node_campaigns

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "build" / "recipe-campaigns.jsonl"
CODE = ("src/zabd/**/*.py", "tests/client/*campaign*.py")
PROGRESS_CPU_S = 10.0
RUNS_PER_PROCESS = 1_000  # each leaves a third of a megabyte behind for good (see `virtual_loop`)
PREFIX = "test_"

Campaign = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Run:
    """One seed of one recipe; `found` is empty if everything held."""

    recipe: str
    seed: int
    cpu_s: float
    found: str
    code: str


def campaigns() -> dict[str, Campaign]:
    """All there are, by the names of their recipes."""
    modules = (test_campaigns, test_node_campaigns)
    return {
        name.removeprefix(PREFIX): value
        for module in modules
        for name, value in vars(module).items()
        if name.startswith(PREFIX) and value.__module__ == module.__name__
    }


@functools.cache
def code() -> str:
    """A digest of all that decides how a seed runs."""
    paths = sorted(path for pattern in CODE for path in ROOT.glob(pattern))
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def recorded(record: Path) -> list[Run]:
    """The runs of this code so far."""
    if not record.exists():
        return []
    lines = record.read_text("utf-8").splitlines()
    runs = [Run(**json.loads(line)) for line in lines]
    return [run for run in runs if run.code == code()]


def run_all(
    chosen: Mapping[str, Campaign],
    seeds: Sequence[int],
    record: Path,
    *,
    cpu_s_max: float = float("inf"),
    runs_max: int | None = None,
) -> list[Run]:
    """Run what the record does not have, seed by seed; return all of them that it has then."""
    runs = [run for run in recorded(record) if run.recipe in chosen and run.seed in seeds]
    done = {(run.recipe, run.seed) for run in runs}
    open_ = [(name, seed) for seed in seeds for name in chosen if (name, seed) not in done]
    record.parent.mkdir(parents=True, exist_ok=True)
    began = told = time.process_time()
    with record.open("a", encoding="utf-8") as file:
        for name, seed in open_[:runs_max]:
            if time.process_time() - began >= cpu_s_max:
                break
            runs.append(run_one(name, chosen[name], seed))
            file.write(json.dumps(asdict(runs[-1])) + "\n")
            file.flush()
            if runs[-1].found:
                click.echo(f"FOUND {name} seed {seed}: {runs[-1].found}")
            if time.process_time() - told >= PROGRESS_CPU_S:
                told = time.process_time()
                click.echo(f"{len(runs)} of {len(open_) + len(done)}, now at seed {seed}")
    return runs


def run_in_processes(
    names: Sequence[str], seeds: Sequence[int], record: Path, *, cpu_s_max: float
) -> list[Run]:
    """The same, in one process after the other."""
    before = sum(run.cpu_s for run in recorded(record))
    while True:
        used_s = sum(run.cpu_s for run in recorded(record)) - before
        with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
            task = (names, seeds, record, cpu_s_max - used_s, RUNS_PER_PROCESS)
            runs = pool.submit(_run_some, *task).result()
        if len(runs) == len(names) * len(seeds) or used_s >= cpu_s_max:
            return runs


def _run_some(
    names: Sequence[str], seeds: Sequence[int], record: Path, cpu_s_max: float, runs_max: int
) -> list[Run]:
    chosen = {name: campaign for name, campaign in campaigns().items() if name in names}
    return run_all(chosen, seeds, record, cpu_s_max=cpu_s_max, runs_max=runs_max)


def run_one(name: str, campaign: Campaign, seed: int) -> Run:
    """Run one seed."""
    began, found = time.process_time(), ""
    try:
        campaign(seed)
    except Exception as error:  # noqa: BLE001 - whatever ends a seed is what it found
        found = f"{type(error).__name__}: {error}"
    return Run(name, seed, round(time.process_time() - began, 3), found, code())


def table(runs: Sequence[Run]) -> str:
    """Seeds, CPU seconds a seed and findings of each recipe."""
    lines = [f"{'recipe':18}{'seeds':>7}{'CPU s/seed':>12}{'found':>7}"]
    for name in dict.fromkeys(run.recipe for run in runs):
        mine = [run for run in runs if run.recipe == name]
        cost = sum(run.cpu_s for run in mine) / len(mine)
        found = [run.seed for run in mine if run.found]
        lines.append(f"{name:18}{len(mine):7}{cost:12.2f}{len(found):7}  {found or ''}".rstrip())
    lines.append(f"{'all':18}{len(runs):7}{sum(run.cpu_s for run in runs):12.0f} s of CPU")
    return "\n".join(lines)


def main() -> int:
    """Run, tell, and say with the exit code whether anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="of each recipe")
    parser.add_argument("--first", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--recipe", action="append", choices=sorted(campaigns()), default=[])
    parser.add_argument("--cpu-minutes", type=float, default=float("inf"))
    parser.add_argument("--record", type=Path, default=RECORD)
    given = parser.parse_args()
    chosen = given.recipe or list(campaigns())
    seeds = range(given.first, given.first + given.seeds)
    runs = run_in_processes(chosen, seeds, given.record, cpu_s_max=60 * given.cpu_minutes)
    click.echo(table(runs))
    if len(runs) < given.seeds * len(chosen):
        click.echo("stopped by --cpu-minutes; the same command goes on from here")
    return 1 if any(run.found for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
