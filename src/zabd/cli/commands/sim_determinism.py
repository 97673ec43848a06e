"""`zabctl sim determinism`: the same seeds in several interpreters have to give the same traces."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import click

from zabd.cli.commands.sim_run import LEVELS, STRATEGIES

_PIECE: Final = 25
"""Seeds for one interpreter. What one run leaves behind in it may show in the others."""

_ANY_PYTHON: Final = ("zab", "core")
"""Levels whose traces do not depend on the version of Python; asyncio is part of the third."""


class Variant(NamedTuple):
    """One way to run seeds, which must not matter."""

    python: str
    hash_seed: int
    backwards: bool

    def __str__(self) -> str:
        order = "backwards" if self.backwards else "forwards"
        return f"{self.python}, hash seed {self.hash_seed}, {order}"


class Finding(NamedTuple):
    """What one variant says of one seed."""

    seed: int
    digest: str
    check: str


def variants(level: str, pythons: Sequence[str]) -> list[Variant]:
    """Two hash seeds and two orders under this Python, and each other one if it may not matter."""
    others = pythons if level in _ANY_PYTHON else ()
    return [
        Variant(sys.executable, 1, backwards=False),
        Variant(sys.executable, 2, backwards=True),
        *(Variant(python, 3, backwards=False) for python in others),
    ]


@click.command()
@click.option("--seeds", default=100, show_default=True, help="How many seeds, of each level.")
@click.option("--start", default=1, show_default=True, help="The first seed.")
@click.option(
    "--level", "levels", multiple=True, type=click.Choice(LEVELS), help="Only this one; repeatable."
)
@click.option("--strategy", type=click.Choice(STRATEGIES), default=STRATEGIES[0], show_default=True)
@click.option("--python", "pythons", multiple=True, help="Another interpreter; repeatable.")
@click.option("--workers", type=int, help="Interpreters at a time; all cores without it.")
def determinism(
    *,
    seeds: int,
    start: int,
    levels: tuple[str, ...],
    strategy: str,
    pythons: tuple[str, ...],
    workers: int | None,
) -> None:
    """Run seeds twice and compare their traces; exit 1 if any differs.

    Once in order, once backwards under another hash seed; and under each other Python at the
    levels zab and core. Other interpreters use the packages of this one.
    """
    begun, different = time.monotonic(), 0
    workers = workers or os.cpu_count() or 1
    for level in levels or LEVELS:
        runs = variants(level, pythons)
        found = _run_all(range(start, start + seeds), level, strategy, runs, workers)
        different += _tell(level, seeds, runs, found)
    click.echo(f"{different} seeds differ; {time.monotonic() - begun:.0f} s")
    sys.exit(1 if different else 0)


def _run_all(
    seeds: range, level: str, strategy: str, runs: Sequence[Variant], workers: int
) -> list[dict[int, Finding]]:
    """What each variant says of each seed."""
    found: list[dict[int, Finding]] = [{} for _ in runs]
    pieces = [seeds[at : at + _PIECE] for at in range(0, len(seeds), _PIECE)]
    jobs = [(number, piece) for piece in pieces for number in range(len(runs))]
    with (
        click.progressbar(
            length=len(jobs) * _PIECE, label=level, file=sys.stderr, show_eta=True
        ) as bar,
        ThreadPoolExecutor(workers) as pool,
    ):
        came = pool.map(lambda job: list(_run(runs[job[0]], level, strategy, job[1])), jobs)
        for (number, _), findings in zip(jobs, came, strict=True):
            found[number].update((finding.seed, finding) for finding in findings)
            bar.update(_PIECE)
    return found


def _run(variant: Variant, level: str, strategy: str, seeds: range) -> Iterator[Finding]:
    """Start an interpreter for some seeds. Raises ClickException if it ends in an error."""
    order = reversed(seeds) if variant.backwards else seeds
    done = subprocess.run(
        [
            *(variant.python, "-m", "zabd.cluster_sim.digests"),
            *(level, strategy, *map(str, order)),
        ],
        env={**os.environ, "PYTHONPATH": _our_packages(), "PYTHONHASHSEED": str(variant.hash_seed)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise click.ClickException(f"{variant} ended with {done.returncode}: {done.stderr[-2000:]}")
    for line in done.stdout.splitlines():
        seed, digest, check = line.split()
        yield Finding(int(seed), digest, check)


def _our_packages() -> str:
    """Where zabd and what it needs are, for interpreters that were not installed with it."""
    import msgpack
    import sortedcontainers

    import zabd

    files = [package.__file__ for package in (zabd, msgpack, sortedcontainers)]
    places = [Path(file).parent.parent for file in files if file is not None]
    return os.pathsep.join(dict.fromkeys(map(str, places)))


def _tell(
    level: str, seeds: int, runs: Sequence[Variant], found: Sequence[dict[int, Finding]]
) -> int:
    first, *others = found
    different = [seed for seed in first if any(other[seed] != first[seed] for other in others)]
    failed = sum(finding.check != "-" for finding in first.values())
    click.echo(
        f"{level}: {len(different)} of {seeds} seeds differ over {len(runs)} runs of each"
        + (f"; {failed} fail a check" if failed else "")
    )
    for seed in different[:10]:
        for variant, findings in zip(runs, found, strict=True):
            click.echo(f"  seed {seed}: {findings[seed].digest} under {variant}")
    return len(different)
