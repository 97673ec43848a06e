"""`zabctl sim run`: many seeds, with progress, a journal to go on from, and reports."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import click

from zabd.cli.commands.sim_files import FILE, keep
from zabd.cli.output import ExitStatus, say

if TYPE_CHECKING:
    from zabd.cluster_sim.core_level import Outcome
    from zabd.cluster_sim.coverage import Coverage
    from zabd.cluster_sim.journal import Journal

# Bare peers on real storages; members without sockets, and clients; servers and client programs.
LEVELS: Final = ("zab", "core", "whole")
STRATEGIES: Final = ("swarm", "random", "pct")

_EPILOG: Final = """\b
Exit status:
  0   every check held in every seed
  1   a check failed
  2   wrong usage
  130 interrupted; with --resume the same command goes on
"""


@click.command(epilog=_EPILOG)
@click.option("--seeds", default=100, show_default=True, help="How many seeds to run.")
@click.option("--start", type=int, help="The first seed; without it, one that nobody has run.")
@click.option(
    "--level", type=click.Choice(LEVELS), default="core", show_default=True, help="What runs."
)
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    default=STRATEGIES[0],
    show_default=True,
    help="How chance chooses faults and orders.",
)
@click.option("--mutant", help="Plant this mistake first (see `zabctl sim bugs`).")
@click.option("--workers", type=int, help="Processes to use; all cores without it.")
@click.option(
    "--resume", type=FILE, help="Keep a journal of done seeds in FILE, and go on from it."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per seed, then the totals.")
@click.option("--junit", type=FILE, help="Write the results to FILE as JUnit XML.")
@click.option(
    "--coverage", is_flag=True, help="Say what was reached of the protocol, and what not."
)
@click.option("--save", type=FILE, help="Write the first failing seed, or the only one, to FILE.")
@click.option("--html", type=FILE, help="Draw the first failing seed, or the only one, to FILE.")
def run(
    *,
    seeds: int,
    start: int | None,
    level: str,
    strategy: str,
    mutant: str | None,
    workers: int | None,
    resume: Path | None,
    as_json: bool,
    junit: Path | None,
    coverage: bool,
    save: Path | None,
    html: Path | None,
) -> None:
    """Run fresh seeds; exit 1 if any check fails in any of them."""
    from zabd.cluster_sim.mutants import MUTANTS
    from zabd.cluster_sim.sweep import run_seeds

    if mutant is not None and mutant not in MUTANTS:
        raise click.BadParameter(
            f"{mutant} is not one of {', '.join(MUTANTS)}", param_hint="mutant"
        )
    if coverage and resume is not None:
        raise click.UsageError("--coverage is of one session; a journal does not keep it")
    what = {"level": level, "strategy": strategy, "mutant": mutant}
    first = _first_seed(start, resume)
    with ExitStack() as stack:
        journal = stack.enter_context(_open_journal(resume, {**what, "start": first}))
        report = stack.enter_context(_Report(journal, seeds, as_json=as_json, coverage=coverage))
        left = list(journal.left(range(first, first + seeds)))
        outcomes = run_seeds(
            left,
            level,
            mutant,
            strategy=strategy,
            coverage=coverage,
            workers=max(1, min(len(left), workers or os.cpu_count() or 1)),
        )
        try:
            for outcome in outcomes:
                report.add(outcome)
        except KeyboardInterrupt:
            report.close(first)
            _say_how_to_go_on(resume, len(journal.done), seeds)
            sys.exit(ExitStatus.INTERRUPTED)
        report.close(first)
    if junit is not None:
        from zabd.cluster_sim.junit import write_junit

        write_junit(junit, journal, range(first, first + seeds))
    if (save or html) and (journal.failed or seeds == 1):
        chosen = journal.failed[0]["seed"] if journal.failed else first
        keep(chosen, level, mutant, save=save, html=html, strategy=strategy)
    sys.exit(1 if journal.failed else 0)


def _first_seed(start: int | None, resume: Path | None) -> int:
    from zabd.cluster_sim.journal import JournalError, read_head

    if start is None and resume is not None and resume.exists() and resume.stat().st_size:
        try:
            return int(read_head(resume)["start"])
        except JournalError as error:
            raise click.BadParameter(str(error), param_hint="resume") from error
    return start if start is not None else int(time.time() * 1000) % 1_000_000_000


def _open_journal(resume: Path | None, what: dict[str, Any]) -> "Journal":
    from zabd.cluster_sim.journal import Journal, JournalError

    try:
        return Journal(resume or Path(os.devnull), what)
    except JournalError as error:
        raise click.BadParameter(str(error), param_hint="resume") from error


def _say_how_to_go_on(resume: Path | None, done: int, seeds: int) -> None:
    say(f"interrupted: {done} of {seeds} seeds are done")
    if resume is None:
        say("a sweep with --resume FILE can be gone on with")
    else:
        say(f"the same command goes on where this ended: its journal is {resume}")


class _Report:
    """Shows how a sweep goes, and says at its end what it came to, in all its sessions."""

    def __init__(self, journal: "Journal", seeds: int, *, as_json: bool, coverage: bool) -> None:
        from zabd.cluster_sim.coverage import Coverage

        self._coverage = Coverage() if coverage else None
        self._journal = journal
        self._as_json = as_json
        self._begun = time.monotonic()
        self._before = len(journal.done)
        self._events_before = journal.totals.events
        self._bar = click.progressbar(
            length=seeds,
            label="seeds",
            file=sys.stderr,
            show_pos=True,
            show_eta=True,
            hidden=as_json,
            item_show_func=lambda rate: rate,
        )

    def __enter__(self) -> Self:
        self._bar.__enter__()
        self._bar.update(self._before)
        return self

    def __exit__(self, *_raised: object) -> None:
        self._bar.__exit__(None, None, None)

    def add(self, outcome: "Outcome") -> None:
        """One seed is done."""
        from zabd.cluster_sim.totals import outcome_as_object

        self._journal.add(outcome)
        if self._coverage is not None and outcome.coverage is not None:
            self._coverage.add(outcome.coverage)
        if self._as_json:
            click.echo(json.dumps(outcome_as_object(outcome)))
        failed = f", {len(self._journal.failed)} failed" if self._journal.failed else ""
        rate = (len(self._journal.done) - self._before) / self._took_s()
        self._bar.update(1, f"{rate:.1f}/s{failed}")

    def _took_s(self) -> float:
        return max(time.monotonic() - self._begun, 0.001)

    def close(self, first: int) -> None:
        """All are done, or as many as there was time for."""
        totals = self._journal.totals
        self._bar.__exit__(None, None, None)
        if self._as_json:
            click.echo(json.dumps({"totals": totals.as_object(), **self._coverage_as_object()}))
            return
        for line in _failures(self._journal):
            click.echo(line)
        took_s = self._took_s()
        click.echo(
            f"seeds from {first} on: {totals.failed} of {totals.seeds:,} failed; "
            f"{totals.events:,} events "
            f"({(totals.events - self._events_before) / took_s:,.0f}/s), "
            f"{totals.faults.total():,} faults, {totals.virtual_ms / 1000:,.0f} s of virtual time; "
            f"{totals.cpu_s:,.1f} s of CPU, {took_s:.1f} s now"
        )
        if self._coverage is not None:
            _show_coverage(self._coverage)

    def _coverage_as_object(self) -> dict[str, Any]:
        coverage = self._coverage
        if coverage is None:
            return {}
        return {"coverage": coverage.as_object(), "never_reached": coverage.missing()}


def _show_coverage(coverage: "Coverage") -> None:
    for kind, counted in coverage.as_object().items():
        click.echo(f"\n{kind}")
        for name, count in counted.items():
            click.echo(f"  {name:<60} {count:>12,}")
    for kind, names in coverage.missing().items():
        click.echo(f"\n{kind} never reached: {', '.join(names) or 'none'}")


def _failures(journal: "Journal") -> Iterator[str]:
    for entry in journal.failed:
        first, *more = journal.explain(entry)
        yield f"\nseed {entry['seed']}: {first}"
        yield from more
