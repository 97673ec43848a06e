"""`zabctl sim bugs`: the gallery of mistakes that can be planted, listed, told and hunted."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from zabd.cluster_sim.hunt import Hunt
    from zabd.cluster_sim.mutants import Mutant

_BUG_WIDTH: Final = 5
_LEVEL_WIDTH: Final = 6
_WHAT_WIDTH_MIN: Final = 30


@click.command()
@click.argument("names", nargs=-1)
@click.option("--group", help="Only those of a group (see `--groups`).")
@click.option("--groups", is_flag=True, help="List the groups.")
@click.option("--hunt", "hunting", is_flag=True, help="Hunt them, from seed 1 on.")
@click.option("--seeds", type=int, help="How many seeds a hunt tries; 500 without it.")
@click.option("--workers", type=int, help="Processes that hunt; all cores without it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each mistake.")
def bugs(
    *,
    names: tuple[str, ...],
    group: str | None,
    groups: bool,
    hunting: bool,
    seeds: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """List the mistakes that can be planted, or tell all about those that are named.

    With --hunt each is planted and hunted; exit 1 if one is not found by a check that is meant to.
    """
    from zabd.cluster_sim.mutants import GROUPS

    if groups:
        for name, mutants in GROUPS.items():
            click.echo(f"{name:<16} {len(mutants):>3}")
        return
    chosen = _chosen(names, group)
    if hunting:
        sys.exit(0 if _hunt(chosen, seeds, workers, as_json=as_json) else 1)
    if as_json:
        for mutant in chosen:
            click.echo(json.dumps(_bug_as_object(mutant)))
    elif names:
        click.echo("\n\n".join(map(_told, chosen)))
    else:
        _list(chosen)


def _chosen(names: tuple[str, ...], group: str | None) -> list["Mutant"]:
    """The mutants of these names (or ids of the gallery), or of a group, or all."""
    from zabd.cluster_sim.mutants import GROUPS, MUTANTS

    if group is not None and group not in GROUPS:
        raise click.BadParameter(f"{group} is not one of {', '.join(GROUPS)}", param_hint="group")
    among = MUTANTS.values() if group is None else GROUPS[group]
    for name in names:
        if not any(name in (mutant.name, mutant.bug) for mutant in among):
            raise click.BadParameter(
                f"{name} is not one of {', '.join(mutant.name for mutant in among)}",
                param_hint="name",
            )
    return [m for m in among if not names or m.name in names or m.bug in names]


def _list(mutants: Sequence["Mutant"]) -> None:
    name_width = max((len(mutant.name) for mutant in mutants), default=0)
    before = " " * (_BUG_WIDTH + 1 + name_width + 1 + _LEVEL_WIDTH + 1)
    for mutant in mutants:
        head = f"{mutant.bug:<{_BUG_WIDTH}} {mutant.name:<{name_width}} "
        lines = textwrap.wrap(mutant.what, max(_WHAT_WIDTH_MIN, _columns() - len(before)))
        click.echo(f"{head}{mutant.level:<{_LEVEL_WIDTH}} " + f"\n{before}".join(lines))


def _told(mutant: "Mutant") -> str:
    return "\n".join(
        textwrap.fill(line, _columns(), subsequent_indent="  ") for line in str(mutant).splitlines()
    )


def _columns() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def _hunt(
    mutants: Sequence["Mutant"], seeds: int | None, workers: int | None, *, as_json: bool
) -> bool:
    """Hunt them all; whether each was found by a check that is meant to find it."""
    from zabd.cluster_sim.hunt import SEEDS_MAX, hunts

    workers = min(len(mutants), workers or os.cpu_count() or 1)
    names = [mutant.name for mutant in mutants]
    done: list[Hunt] = []
    with click.progressbar(
        length=len(names), label="hunts", file=sys.stderr, show_pos=True, hidden=as_json
    ) as bar:
        for found in hunts(names, seeds=seeds or SEEDS_MAX, workers=workers):
            done.append(found)
            if as_json:
                click.echo(json.dumps(_hunt_as_object(found)))
            bar.update(1)
    if not as_json:
        _table(sorted(done, key=lambda found: names.index(found.mutant)))
    return all(found.meant for found in done)


def _table(found: Iterable["Hunt"]) -> None:
    from zabd.cluster_sim.mutants import MUTANTS

    found = list(found)
    width = max((len(each.mutant) for each in found), default=0)
    click.echo(f"{'':<{_BUG_WIDTH}} {'mistake':<{width}} {'check':<6} {'seed':>5} {'CPU s':>7}")
    for each in found:
        told = f"{each.check or 'none':<6} {each.seed or '-':>5} {each.cpu_s:>7.1f}"
        remark = "" if each.meant or each.check is None else "  (not the check that is meant to)"
        click.echo(
            f"{MUTANTS[each.mutant].bug:<{_BUG_WIDTH}} {each.mutant:<{width}} {told}{remark}"
        )
    click.echo(f"{sum(each.meant for each in found)} of {len(found)} found")


def _bug_as_object(mutant: "Mutant") -> dict[str, object]:
    names = ("name", "bug", "level", "what", "history", "reference")
    told: dict[str, object] = {name: getattr(mutant, name) for name in names}
    return {**told, "found_by": sorted(mutant.found_by)}


def _hunt_as_object(found: "Hunt") -> dict[str, object]:
    return {
        "name": found.mutant,
        "check": found.check,
        "meant": found.meant,
        "seed": found.seed,
        "tried": found.tried,
        "cpu_s": round(found.cpu_s, 3),
        "detail": found.detail,
    }
