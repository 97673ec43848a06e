"""`zabctl sim`: run the ensemble's own code under faults, thousands of times, from seeds."""

import sys
from pathlib import Path

import click

from zabd.cli.commands.sim_bugs import bugs
from zabd.cli.commands.sim_campaign import campaign
from zabd.cli.commands.sim_determinism import determinism
from zabd.cli.commands.sim_files import FILE, keep, replay, shrink
from zabd.cli.commands.sim_lessons import lesson, lessons
from zabd.cli.commands.sim_play import play
from zabd.cli.commands.sim_run import run
from zabd.cli.commands.sim_search import search


@click.group()
def sim() -> None:
    """Simulate ensembles under faults; every run is repeatable from its seed."""


@sim.command()
@click.argument("name")
@click.option("--seeds", default=200, show_default=True, help="How many seeds to try.")
@click.option("--start", default=1, show_default=True, help="The first seed.")
@click.option("--save", type=FILE, help="Write the run that finds it to FILE.")
@click.option("--html", type=FILE, help="Draw the run that finds it to FILE.")
def bug(*, name: str, seeds: int, start: int, save: Path | None, html: Path | None) -> None:
    """Hunt one planted mistake; exit 1 if no check finds it."""
    from zabd.cluster_sim.mutants import MUTANTS
    from zabd.cluster_sim.sweep import replay_command, run_seeds

    if name not in MUTANTS:
        raise click.BadParameter(f"{name} is not one of {', '.join(MUTANTS)}", param_hint="name")
    mutant = MUTANTS[name]
    click.echo(str(mutant))
    for tried, outcome in enumerate(run_seeds(range(start, start + seeds), mutant.level, name), 1):
        if outcome.failure is not None:
            click.echo(f"found by seed {outcome.seed}, the {tried}. that was tried")
            click.echo(str(outcome.failure))
            click.echo(f"again: {replay_command(outcome, name)}")
            if save or html:
                keep(outcome.seed, mutant.level, name, save=save, html=html)
            return
    click.echo(f"not found within {seeds} seeds", err=True)
    sys.exit(1)


sim.add_command(run)
sim.add_command(campaign)
sim.add_command(determinism)
sim.add_command(search)
sim.add_command(bugs)
sim.add_command(replay)
sim.add_command(shrink)
sim.add_command(play)
sim.add_command(lessons)
sim.add_command(lesson)
