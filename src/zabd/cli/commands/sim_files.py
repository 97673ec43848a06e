"""`zabctl sim` and files: runs that are saved, replayed, shrunk and drawn."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from zabd.cluster_sim.record import Record
    from zabd.cluster_sim.replay import Difference, Saved
    from zabd.cluster_sim.shrink import Size

FILE: Final = click.Path(dir_okay=False, path_type=Path)
EXISTING: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


def keep(
    seed: int,
    level: str,
    mutant: str | None,
    *,
    save: Path | None,
    html: Path | None,
    strategy: str = "swarm",
) -> None:
    """Run a seed once more, and write down what was asked for."""
    from zabd.cluster_sim.plan import Plan
    from zabd.cluster_sim.replay import carry_out

    plan = Plan(seed, level, mutant, strategy=strategy)
    saved, _, record = carry_out(plan, picture=html is not None)
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


@click.command()
@click.argument("file", type=EXISTING)
@click.option("--out", type=FILE, help="Where the small run goes; FILE.small.json without it.")
@click.option("--seconds", default=30.0, show_default=True, help="How long to look for it.")
@click.option("--html", type=FILE, help="Draw the small run as one page.")
def shrink(*, file: Path, out: Path | None, seconds: float, html: Path | None) -> None:
    """Look for the smallest run that breaks the same invariant as a saved one."""
    from zabd.cluster_sim.replay import carry_out
    from zabd.cluster_sim.shrink import CannotShrinkError, Shrinker

    saved, begun = read(file), time.monotonic()
    progress = _Progress(begun)
    try:
        shrinker = Shrinker(
            saved.plan, lambda: time.monotonic() > begun + seconds, tell=progress.tell
        )
    except CannotShrinkError as error:
        raise click.UsageError(f"{file} cannot be shrunk: {error}") from error
    shrinker.shrink()
    progress.close()
    out = out or file.with_suffix(".small.json")
    small, outcome, record = carry_out(shrinker.plan, picture=html is not None)
    small.write(out)
    draw(record, html)
    click.echo(f"before: {shrinker.begun_with}")
    click.echo(f"after:  {shrinker.size} ({shrinker.runs} runs tried)")
    for decision in shrinker.plan.decisions or ():
        click.echo(f"  {decision}")
    click.echo(str(outcome.failure))
    click.echo(f"again: zabctl sim replay {out}")


class _Progress:
    """One line on the terminal that says how small it is by now."""

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self._shown = sys.stderr.isatty()

    def tell(self, size: "Size") -> None:
        """A smaller one was found."""
        if self._shown:
            took_s = time.monotonic() - self._begun
            click.echo(f"\r{took_s:5.1f} s: {size}".ljust(90), nl=False, err=True)

    def close(self) -> None:
        """It is over."""
        if self._shown:
            click.echo(err=True)


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
