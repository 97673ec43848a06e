"""`zabctl sim lessons` and `zabctl sim lesson`: runs to learn from, listed, told and drawn."""

import inspect
import json
import logging
import runpy
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from zabd.cli.commands.sim_files import FILE

if TYPE_CHECKING:
    from zabd.cluster_sim.lessons import Lesson

_WIDTH: Final = 78


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each lesson.")
def lessons(*, as_json: bool) -> None:
    """List the lessons, in the order in which they are best read."""
    from zabd.cluster_sim.lessons import LESSONS

    width = max(map(len, LESSONS))
    for number, (name, told) in enumerate(LESSONS.items(), 1):
        if as_json:
            found = {"number": number, "name": name, "title": told.title, "question": told.question}
            click.echo(json.dumps(found))
        else:
            click.echo(f"{number:>2} {name:<{width}}  {told.title}")


@click.command()
@click.argument("name")
@click.option("--html", type=FILE, help="Draw its runs: the first one to FILE, a second beside it.")
@click.option("--source", is_flag=True, help="Print its code instead, to save and to change.")
def lesson(*, name: str, html: Path | None, source: bool) -> None:
    """Run one lesson: its question, and what happened.

    NAME is one of `zabctl sim lessons`, or a file: what --source printed, as you have changed it.
    Everything that a lesson tells it has asserted; exit 1 if something is not so.
    """
    from zabd.cluster_sim.lessons import Stage

    chosen = _chosen(name)
    if source:
        click.echo(_source(name, chosen), nl=False)
        return
    logging.getLogger("zabd").addHandler(logging.NullHandler())  # what clients complain of is told
    stage = Stage(html)
    click.echo(textwrap.fill(f"{chosen.title}. {chosen.question}", _WIDTH))
    click.echo()
    try:
        chosen.run(stage)
    except AssertionError as error:
        click.echo("\n".join(stage.lines))
        raise SystemExit(_told(error)) from error
    click.echo("\n".join(stage.lines))
    for file in stage.pictures:
        click.echo(f"the picture is in {file}: open it in a browser", err=True)


def _chosen(name: str) -> "Lesson":
    from zabd.cluster_sim.lessons import LESSONS, Lesson

    if name.endswith(".py"):
        try:
            found = runpy.run_path(name).get("LESSON")
        except OSError as error:
            raise click.BadParameter(str(error), param_hint="name") from error
        if not isinstance(found, Lesson):
            raise click.BadParameter(f"{name} has no LESSON", param_hint="name")
        return found
    if name not in LESSONS:
        raise click.BadParameter(f"{name} is not one of {', '.join(LESSONS)}", param_hint="name")
    return LESSONS[name]


def _source(name: str, chosen: "Lesson") -> str:
    if name.endswith(".py"):
        return Path(name).read_text(encoding="utf-8")
    return inspect.getsource(sys.modules[chosen.run.__module__])


def _told(error: AssertionError) -> str:
    import traceback

    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"not so: {str(error) or where.line} ({Path(where.filename).name}:{where.lineno})"
