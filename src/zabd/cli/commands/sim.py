"""`zabctl sim`: run the ensemble's own code under faults, thousands of times, from seeds."""

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zabd.cli.commands.sim_bugs import bugs
from zabd.cli.commands.sim_files import FILE, keep, replay, shrink
from zabd.cli.commands.sim_play import play

if TYPE_CHECKING:
    from zabd.cluster_sim.core_level import Outcome

# Bare peers on real storages; members without sockets, and clients; servers and client programs.
_LEVELS = ("zab", "core", "whole")


@click.group()
def sim() -> None:
    """Simulate ensembles under faults; every run is repeatable from its seed."""


@sim.command()
@click.option("--seeds", default=100, show_default=True, help="How many seeds to run.")
@click.option("--start", type=int, help="The first seed; without it, one that nobody has run.")
@click.option(
    "--level", type=click.Choice(_LEVELS), default="core", show_default=True, help="What runs."
)
@click.option("--mutant", help="Plant this mistake first (see `zabctl sim bugs`).")
@click.option("--workers", type=int, help="Processes to use; all cores without it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each seed.")
@click.option("--save", type=FILE, help="Write the first failing seed, or the only one, to FILE.")
@click.option("--html", type=FILE, help="Draw the first failing seed, or the only one, to FILE.")
def run(
    *,
    seeds: int,
    start: int | None,
    level: str,
    mutant: str | None,
    workers: int | None,
    as_json: bool,
    save: Path | None,
    html: Path | None,
) -> None:
    """Run fresh seeds; exit 1 if any check fails in any of them."""
    from zabd.cluster_sim.mutants import MUTANTS
    from zabd.cluster_sim.sweep import sweep

    if mutant is not None and mutant not in MUTANTS:
        raise click.BadParameter(
            f"{mutant} is not one of {', '.join(MUTANTS)}", param_hint="mutant"
        )
    first = start if start is not None else int(time.time() * 1000) % 1_000_000_000
    workers = min(seeds, workers or os.cpu_count() or 1)
    report = _Report(seeds, mutant, as_json=as_json)
    for outcome in sweep(range(first, first + seeds), level, mutant, workers=workers):
        report.add(outcome)
    report.close(first)
    if (save or html) and (report.failed or seeds == 1):
        chosen = report.failed[0].seed if report.failed else first
        keep(chosen, level, mutant, save=save, html=html)
    sys.exit(1 if report.failed else 0)


@sim.command()
@click.argument("name")
@click.option("--seeds", default=200, show_default=True, help="How many seeds to try.")
@click.option("--start", default=1, show_default=True, help="The first seed.")
@click.option("--save", type=FILE, help="Write the run that finds it to FILE.")
@click.option("--html", type=FILE, help="Draw the run that finds it to FILE.")
def bug(*, name: str, seeds: int, start: int, save: Path | None, html: Path | None) -> None:
    """Hunt one planted mistake; exit 1 if no check finds it."""
    from zabd.cluster_sim.mutants import MUTANTS
    from zabd.cluster_sim.sweep import replay_command, sweep

    if name not in MUTANTS:
        raise click.BadParameter(f"{name} is not one of {', '.join(MUTANTS)}", param_hint="name")
    mutant = MUTANTS[name]
    click.echo(str(mutant))
    for tried, outcome in enumerate(sweep(range(start, start + seeds), mutant.level, name), 1):
        if outcome.failure is not None:
            click.echo(f"found by seed {outcome.seed}, the {tried}. that was tried")
            click.echo(str(outcome.failure))
            click.echo(f"again: {replay_command(outcome, name)}")
            if save or html:
                keep(outcome.seed, mutant.level, name, save=save, html=html)
            return
    click.echo(f"not found within {seeds} seeds", err=True)
    sys.exit(1)


sim.add_command(bugs)
sim.add_command(replay)
sim.add_command(shrink)
sim.add_command(play)


class _Report:
    """Shows how a sweep goes, and says at its end what it came to."""

    def __init__(self, seeds: int, mutant: str | None, *, as_json: bool) -> None:
        self.failed: list[Outcome] = []
        self._mutant = mutant
        self._as_json = as_json
        self._events = 0
        self._virtual_ms = 0
        self._faults = 0
        self._begun = time.monotonic()
        self._bar = click.progressbar(
            length=seeds, label="seeds", file=sys.stderr, show_pos=True, hidden=as_json
        )
        self._bar.__enter__()

    def add(self, outcome: "Outcome") -> None:
        """One seed is done."""
        self._events += outcome.events
        self._virtual_ms += outcome.virtual_ms
        self._faults += sum(outcome.faults.values())
        if outcome.failure is not None:
            self.failed.append(outcome)
        if self._as_json:
            click.echo(json.dumps(_as_object(outcome)))
        self._bar.update(1)

    def close(self, first: int) -> None:
        """All are done."""
        from zabd.cluster_sim.sweep import replay_command

        self._bar.__exit__(None, None, None)
        if self._as_json:
            return
        for outcome in self.failed:
            click.echo(f"\nseed {outcome.seed}: {outcome.failure}")
            click.echo("\n".join(outcome.tail[-20:]))
            click.echo(f"shape: {outcome.shape}")
            click.echo(f"again: {replay_command(outcome, self._mutant)}")
        took_s = max(time.monotonic() - self._begun, 0.001)
        click.echo(
            f"seeds from {first} on: {len(self.failed)} failed; {self._events:,} events "
            f"({self._events / took_s:,.0f}/s), {self._faults:,} faults, "
            f"{self._virtual_ms / 1000:,.0f} s of virtual time in {took_s:.1f} s"
        )


def _as_object(outcome: "Outcome") -> dict[str, object]:
    failure = outcome.failure
    return {
        "seed": outcome.seed,
        "level": outcome.level,
        "digest": outcome.digest,
        "events": outcome.events,
        "virtual_ms": outcome.virtual_ms,
        "committed": outcome.committed,
        "elections": outcome.elections,
        "faults": outcome.faults,
        "failure": None if failure is None else {"check": failure.id, "detail": failure.detail},
    }
