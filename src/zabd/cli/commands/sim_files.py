"""`zabctl sim` and files: runs that are saved, replayed and drawn."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from zabd.cluster_sim.record import Record
    from zabd.cluster_sim.replay import Difference, Saved

FILE: Final = click.Path(dir_okay=False, path_type=Path)
EXISTING: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


def keep(
    seed: int, level: str, mutant: str | None, *, save: Path | None, html: Path | None
) -> None:
    """Run a seed once more, and write down what was asked for."""
    from zabd.cluster_sim.plan import Plan
    from zabd.cluster_sim.replay import carry_out

    saved, _, record = carry_out(Plan(seed, level, mutant), picture=html is not None)
    if save is not None:
        saved.write(save)
        click.echo(f"seed {seed} is in {save}: zabctl sim replay {save}", err=True)
    draw(record, html)


def draw(record: "Record | None", html: Path | None) -> None:
    """Write a recorded run as a page."""
    from zabd.cluster_sim.picture import draw as draw_page

    if record is not None and html is not None:
        draw_page(record, html)
        click.echo(f"the picture is in {html}: open it in a browser", err=True)


def read(file: Path) -> "Saved":
    """The run in a file; a usage error if there is none."""
    from zabd.cluster_sim.replay import Saved

    try:
        return Saved.read(file)
    except (ValueError, KeyError, TypeError) as error:
        raise click.BadParameter(f"{file} cannot be read as a run: {error}") from error


@click.command()
@click.argument("file", type=EXISTING)
@click.option("--html", type=FILE, help="Draw the run as one page.")
def replay(*, file: Path, html: Path | None) -> None:
    """Have a saved run again; exit 1 if it is not the same, and say where it differs."""
    from zabd.cluster_sim.replay import carry_out, first_difference

    saved = read(file)
    came, outcome, record = carry_out(saved.plan, picture=html is not None)
    draw(record, html)
    click.echo(f"seed {saved.plan.seed}, level {saved.plan.level}: {came.events:,} events")
    click.echo(str(outcome.failure) if outcome.failure is not None else "every check held")
    difference = first_difference(saved, came)
    if difference is None:
        click.echo(f"the same trace: {came.digest}")
        return
    _tell(difference, saved, came)
    sys.exit(1)


def _tell(difference: "Difference", saved: "Saved", came: "Saved") -> None:
    click.echo(f"another trace, from line {difference.number} on:", err=True)
    for line in difference.before:
        click.echo(f"  {line}", err=True)
    for sign, which in (("-", difference.expected), ("+", difference.came)):
        click.echo(f"{sign} {which if which is not None else '(the run is over)'}", err=True)
    if saved.python != came.python:
        click.echo(
            f"it was saved under Python {saved.python}, this is {came.python}"
            + (": level whole needs the same" if saved.plan.level == "whole" else ""),
            err=True,
        )
