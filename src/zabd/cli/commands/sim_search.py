"""`zabctl sim search`: every schedule of a small ensemble, instead of some of a large one."""

import json
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from zabd.cli.output import ExitStatus

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from zabd.cluster_sim.search import Found, Progress

_PEERS = "zabd.zab"


@click.command()
@click.option("--members", type=click.IntRange(1, 5), default=3, help="Voters.")
@click.option("--txns", type=click.IntRange(0), default=1, help="Transactions.")
@click.option("--crashes", type=click.IntRange(0), default=1, help="Crashes.")
@click.option("--epochs", type=click.IntRange(1), default=2, help="Epochs, the first included.")
@click.option("--cuts", type=click.IntRange(0), default=0, help="Connections that break.")
@click.option(
    "--from",
    "begins",
    type=click.Choice(["established", "left behind"]),
    default="established",
    help="Where schedules begin: all in step with one leader, or with one that was left behind.",
)
@click.option("--states", type=click.IntRange(1), default=1_000_000, help="Stop at so many.")
@click.option("--mutant", help="Plant this mistake first (see `zabctl sim bugs`).")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def search(
    *,
    members: int,
    txns: int,
    crashes: int,
    epochs: int,
    cuts: int,
    begins: str,
    states: int,
    mutant: str | None,
    as_json: bool,
) -> None:
    """Go through every schedule of bare peers within bounds, shortest first.

    All orders of messages and disk completions, all crashes and what they may leave behind, all
    elections, from an established leader on; or, with --from "left behind", from where that one
    has crashed with a transaction that nobody else has, and the others have gone on. Exit status
    0: every check holds, in all of them; 1: a check failed, and the shortest schedule is shown;
    75: none failed before --states was reached.
    """
    from zabd.cluster_sim.search import search as search_all
    from zabd.cluster_sim.search_world import Beginning, Bounds

    bounds = Bounds(members, txns, crashes, epochs, cuts, Beginning(begins))
    with _planted(mutant):
        found = search_all(bounds, states_max=states, tell=_show_progress)
    if sys.stderr.isatty():
        click.echo(err=True)
    if as_json:
        click.echo(json.dumps(found.as_object()))
    else:
        _tell(found)
    if found.violation is not None:
        sys.exit(1)
    sys.exit(ExitStatus.OK if found.complete else ExitStatus.TRY_AGAIN)


def _planted(mutant: str | None) -> "AbstractContextManager[None]":
    from zabd.cluster_sim.mutants import MUTANTS

    if mutant is None:
        return nullcontext()
    if mutant not in MUTANTS:
        raise click.BadParameter(
            f"{mutant} is not one of {', '.join(MUTANTS)}", param_hint="mutant"
        )
    owners = [owner for owner, _, _ in MUTANTS[mutant].patches()]
    if not any(getattr(owner, "__module__", owner.__name__).startswith(_PEERS) for owner in owners):
        raise click.BadParameter(
            f"{mutant} is not a mistake of peers; a search has no storage, replicas or clients",
            param_hint="mutant",
        )
    return MUTANTS[mutant].planted()


def _show_progress(progress: "Progress") -> None:
    if sys.stderr.isatty():
        line = (
            f"\rdepth {progress.depth}: {progress.states:,} states ({progress.rate:,.0f}/s), "
            f"{progress.frontier:,} to go on from"
        )
        click.echo(line.ljust(79), nl=False, err=True)


def _tell(found: "Found") -> None:
    progress, bounds = found.progress, found.bounds
    for line in found.schedule:
        click.echo(line)
    seen = (
        f"{progress.states:,} states, {found.transitions:,} transitions, depth {progress.depth}, "
        f"{progress.cpu_s:.1f} s of CPU ({progress.rate:,.0f} states/s)"
    )
    counts = {what: n for what, n in bounds._asdict().items() if what != "begins"}
    within = ", ".join(f"{count} {what}" for what, count in counts.items())
    within += f", from {bounds.begins} on"
    if found.violation is not None:
        click.echo(f"broken, by a schedule that has no shorter one: {seen}")
    elif found.complete:
        click.echo(f"every check holds in every schedule within {within}: {seen}")
    else:
        click.echo(
            f"not complete: every check holds so far, {progress.frontier:,} states are to be gone "
            f"on from within {within}: {seen}"
        )
