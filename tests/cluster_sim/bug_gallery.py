"""The records of the gallery, and its page: ``python -m tests.cluster_sim.bug_gallery``.

For each mutant a record says by which seed it is found, by which check first, after how many seeds
and how much processor time, and how small that run could be made. The records of a group of mutants
are one file, `gallery/<group>.toml`; they and `zabd.cluster_sim.mutants` make the page,
docs/reference/bug-gallery.md.

    NAME ...      hunt these from seed 1 on, write their records and the page
    --missing     the same for those without a record
    --stale       the same for those whose seed finds nothing any more
    --all         the same for all
    (nothing)     write the page only: after a merge conflict in it, for instance
"""

import json
import os
import statistics
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from zabd.cluster_sim.hunt import SEEDS_MAX, Hunt, hunts
from zabd.cluster_sim.mutants import GROUPS, IMPOSSIBLE, MUTANTS, Mutant
from zabd.cluster_sim.sweep import run_seed

RECORDS = Path(__file__).with_name("gallery")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "bug-gallery.md"
COMMAND = "python -m tests.cluster_sim.bug_gallery"

TITLES = {
    "durability": "Durability and epochs",
    "durability_late": "Synchronisation and late writes",
    "elections": "Election and leadership",
    "data": "Preparation and the tree",
    "snapshots": "Snapshots and replay",
    "disks": "Damaged storage",
    "sessions": "Sessions, reads and watches",
    "recipes": "Recipes",
}

_INTRODUCTION = """\
Each of these is a mistake that another system has made once, or that every system of this kind
can make. [The simulator](simulator.md) plants it into the code that is shipped, for one run, and
has to find it from seed 1 on. `zabctl sim bug NAME` repeats a hunt; `zabctl sim bugs NAME` tells
of one mistake. The tables say which check fired first, by which seed, and how much processor time
all seeds up to that one took. The same seed without the mistake passes every check. The smallest
run is what shrinking made of it; `-` is one that was not shrunk (`zabctl sim bug NAME --save FILE`,
then `zabctl sim shrink FILE`).
"""

Record = dict[str, Any]
"""seed, check, tried, cpu_s; and members, faults, requests of the shrunk run where there is one."""


def read(group: str) -> dict[str, Record]:
    """The records of a group, by the mutants' names."""
    file = RECORDS / f"{group}.toml"
    return tomllib.loads(file.read_text("utf-8")) if file.exists() else {}


def read_all() -> dict[str, Record]:
    """All records; those of mutants that are gone are left out."""
    return {
        name: record for group in GROUPS for name, record in read(group).items() if name in MUTANTS
    }


def write(group: str, records: dict[str, Record]) -> None:
    """Write the records of a group, in the order of the gallery."""
    lines = [f"# Written by `{COMMAND}`; processor seconds are of the machine that hunted.\n"]
    for mutant in GROUPS[group]:
        if mutant.name in records:
            lines.append(f"\n[{mutant.name}]\n")
            lines += [f"{key} = {json.dumps(of)}\n" for key, of in records[mutant.name].items()]
    (RECORDS / f"{group}.toml").write_text("".join(lines), "utf-8")


def as_record(found: Hunt) -> Record:
    """What is kept of a hunt that has found something."""
    record: Record = {
        "seed": found.seed,
        "check": found.check,
        "tried": found.tried,
        "cpu_s": round(found.cpu_s, 2),
    }
    if found.shrunk is not None:
        record["members"] = found.shrunk.members
        record["faults"] = found.shrunk.faults
        record["requests"] = found.shrunk.requests
    return record


# --- the page ------------------------------------------------------------------------------------


def page() -> str:
    """docs/reference/bug-gallery.md."""
    return "".join(f"{line}\n" for line in _page(read_all()))


def _page(records: dict[str, Record]) -> Iterator[str]:
    yield "# The bug gallery"
    yield ""
    yield f"Written by `{COMMAND}` from the mutants and the records of their hunts."
    yield ""
    yield from _INTRODUCTION.splitlines()
    yield ""
    yield from _summary(records)
    for group, mutants in GROUPS.items():
        if mutants:
            yield from _section(TITLES[group], mutants, records)
    if IMPOSSIBLE:
        yield from ("", "## What cannot be planted", "", "| gallery | mistake | why not |")
        yield "| --- | --- | --- |"
        for each in sorted(IMPOSSIBLE, key=lambda each: each.bug):
            yield f"| {each.bug} | {each.what} | {each.reason} |"


def _summary(records: dict[str, Record]) -> Iterator[str]:
    if records:
        times = sorted(record["cpu_s"] for record in records.values())
        most = times[min(len(times) - 1, round(0.9 * len(times)))]
        yield (
            f"{len(records)} of {len(MUTANTS)} are found; half of them within "
            f"{statistics.median(times):.1f} s of processor time, nine of ten within {most:.1f} s."
        )


def _section(title: str, mutants: tuple[Mutant, ...], records: dict[str, Record]) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""
    yield "| gallery | name | level | what is wrong | check | seed | CPU s | smallest run |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for mutant in mutants:
        record = records.get(mutant.name)
        told = (
            f"{record['check']} | {record['seed']} | {record['cpu_s']}" if record else "- | - | -"
        )
        yield (
            f"| {mutant.bug} | `{mutant.name}` | {mutant.level} | {mutant.what}{_blindly(mutant)} "
            f"| {told} | {_smallest(record or {})} |"
        )
    yield ""
    for mutant in mutants:
        yield f"- **{mutant.bug}** `{mutant.name}`: {mutant.history} ({mutant.reference})"


def _blindly(mutant: Mutant) -> str:
    return f"; hunted{mutant.blindly}" if mutant.without else ""


def _smallest(record: Record) -> str:
    if "members" not in record:
        return "-"
    parts = (("members", "member"), ("faults", "fault"), ("requests", "request"))
    return ", ".join(f"{record[key]} {one}{'s' * (record[key] != 1)}" for key, one in parts)


# --- the command ---------------------------------------------------------------------------------


def is_stale(name: str, record: Record) -> bool:
    """Whether a record's seed does not find its mutant any more, or by another check."""
    failure = run_seed(record["seed"], MUTANTS[name].level, name).failure
    return failure is None or failure.id != record["check"]


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(MUTANTS)))
@click.option("--all", "hunt_all", is_flag=True, help="Hunt every mutant.")
@click.option("--group", type=click.Choice(sorted(GROUPS)), help="Hunt those of a group.")
@click.option("--missing", is_flag=True, help="Hunt those that have no record.")
@click.option("--stale", is_flag=True, help="Hunt those whose seed finds nothing any more.")
@click.option("--seeds", default=SEEDS_MAX, show_default=True, help="How many to try of each.")
@click.option("--shrink", default=0.0, help="Seconds to look for a smaller run of each.")
@click.option("--workers", default=os.cpu_count() or 1, help="Processes to use.")
def main(
    *,
    names: tuple[str, ...],
    hunt_all: bool,
    group: str | None,
    missing: bool,
    stale: bool,
    seeds: int,
    shrink: float,
    workers: int,
) -> None:
    """Hunt mutants, write their records, and write the page of the gallery."""
    records = read_all()
    chosen = dict.fromkeys(names)
    if hunt_all or group:
        chosen |= dict.fromkeys(m.name for m in (GROUPS[group] if group else MUTANTS.values()))
    if missing:
        chosen |= dict.fromkeys(name for name in MUTANTS if name not in records)
    if stale:
        chosen |= dict.fromkeys(name for name, record in records.items() if is_stale(name, record))
    failed = 0
    for found in hunts(chosen, seeds=seeds, shrink_s=shrink, workers=workers):
        click.echo(
            f"{found.mutant}: seed {found.seed}, {found.check}, {found.cpu_s:.1f} s"
            if found.seed is not None
            else f"{found.mutant}: not found within {found.tried} seeds ({found.cpu_s:.1f} s)"
        )
        if found.meant:
            keep(found)
        else:
            failed += 1
            click.echo(
                f"  no record: it is to be found by {sorted(MUTANTS[found.mutant].found_by)}"
            )
            if found.detail:
                click.echo(f"  {found.detail}")
    PAGE.write_text(page(), "utf-8")
    sys.exit(1 if failed else 0)


def keep(found: Hunt) -> None:
    """Put a hunt into the records of its group; a shrunk run of the same seed stays."""
    group = next(group for group, mutants in GROUPS.items() if MUTANTS[found.mutant] in mutants)
    records = read(group)
    before = records.get(found.mutant, {})
    record = as_record(found)
    if "members" not in record and before.get("seed") == record["seed"]:
        record |= {key: before[key] for key in ("members", "faults", "requests") if key in before}
    records[found.mutant] = record
    write(group, records)


if __name__ == "__main__":
    main()
