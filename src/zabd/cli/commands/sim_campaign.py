"""`zabctl sim campaign`: very many seeds at every level, in pieces, over days if need be.

A directory holds all of it: one journal for each level, `summary.md` for the documentation, and
`failures.md` with the command for each seed that failed. Ctrl-C, a crash and a power cut cost the
seeds under way; the same command goes on.
"""

import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from zabd.cli.commands.sim_run import LEVELS, STRATEGIES
from zabd.cli.output import ExitStatus, say

if TYPE_CHECKING:
    from zabd.cluster_sim.journal import Journal
    from zabd.cluster_sim.totals import Totals

_SHARES: Final = {"zab": 50, "core": 45, "whole": 5}
"""Of a hundred seeds. A run of the third level takes as much CPU as six of the others."""

_PIECE: Final = {"zab": 400, "core": 400, "whole": 60}
"""About a minute of CPU each."""

_NICE: Final = 19
_S_PER_HOUR: Final = 3600.0


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--seeds", default=100_000, show_default=True, help="How many, over all levels.")
@click.option("--start", default=1_000_000, show_default=True, help="The first seed of each level.")
@click.option("--strategy", type=click.Choice(STRATEGIES), default=STRATEGIES[0], show_default=True)
@click.option("--minutes", type=float, help="Stop after so long; the same command goes on.")
@click.option("--workers", type=int, help="Processes to use; all cores without it.")
def campaign(
    *,
    directory: Path,
    seeds: int,
    start: int,
    strategy: str,
    minutes: float | None,
    workers: int | None,
) -> None:
    """Run very many seeds at all levels, in pieces, at the lowest priority.

    What is done is kept in DIRECTORY, with a summary; the same command goes on from there. Exit
    status 0: all are done and every check held; 1: a check failed; 75: time was up before the end.
    """
    from zabd.cluster_sim.journal import Journal, JournalError

    os.nice(_NICE)
    directory.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + minutes * 60 if minutes is not None else None
    goals = {level: seeds * share // 100 for level, share in _SHARES.items()}
    with ExitStack() as stack:
        try:
            journals = {
                level: stack.enter_context(
                    Journal(
                        directory / f"{level}.jsonl",
                        {"level": level, "strategy": strategy, "mutant": None, "start": start},
                    )
                )
                for level in LEVELS
            }
        except JournalError as error:
            raise click.BadParameter(str(error), param_hint="directory") from error
        run = _Campaign(directory, goals, start, strategy, journals)
        try:
            run.go_on(end, workers or os.cpu_count() or 1)
        except KeyboardInterrupt:
            say("interrupted; the same command goes on")
            sys.exit(ExitStatus.INTERRUPTED)
        finally:
            run.write()
    click.echo((directory / "summary.md").read_text("utf-8"), nl=False)
    if any(journal.failed for journal in journals.values()):
        sys.exit(1)
    sys.exit(ExitStatus.TRY_AGAIN if run.next_level() else ExitStatus.OK)


class _Campaign:
    """All levels, a piece of one after a piece of another, so that each keeps its share."""

    def __init__(
        self,
        directory: Path,
        goals: Mapping[str, int],
        start: int,
        strategy: str,
        journals: "Mapping[str, Journal]",
    ) -> None:
        self._directory = directory
        self._goals = goals
        self._start = start
        self._strategy = strategy
        self._journals = journals

    def _seeds(self, level: str) -> range:
        return range(self._start, self._start + self._goals[level])

    def next_level(self) -> str | None:
        """The level that is furthest from its goal, or None when all are there."""
        parts = {
            level: len(self._journals[level].done) / goal
            for level, goal in self._goals.items()
            if next(self._journals[level].left(self._seeds(level)), None) is not None
        }
        return min(parts, key=lambda level: parts[level], default=None)

    def go_on(self, end: float | None, workers: int) -> None:
        """Until all is done, or until `end` of the monotonic clock."""
        done = sum(len(journal.done) for journal in self._journals.values())
        with click.progressbar(
            length=sum(self._goals.values()), label="seeds", file=sys.stderr, show_pos=True
        ) as bar:
            bar.update(min(done, bar.length or 0))
            while (level := self.next_level()) is not None:
                for _ in self._piece(level, workers):
                    bar.update(1)
                    if end is not None and time.monotonic() > end:
                        return
                self.write()

    def _piece(self, level: str, workers: int) -> Iterator[None]:
        from zabd.cluster_sim.sweep import run_seeds

        journal = self._journals[level]
        seeds = list(islice(journal.left(self._seeds(level)), _PIECE[level]))
        outcomes = run_seeds(seeds, level, strategy=self._strategy, workers=workers)
        with closing(outcomes):  # type: ignore[type-var]  # a generator, whatever it is declared as
            for outcome in outcomes:
                journal.add(outcome)
                yield

    # --- what is left to read -------------------------------------------------------------------

    def write(self) -> None:
        """Bring summary and failures up to date; each is whole at any time."""
        _replace(self._directory / "summary.md", "\n".join(self._summary()) + "\n")
        _replace(self._directory / "failures.md", "\n".join(self._failures()) + "\n")

    def _summary(self) -> Iterator[str]:
        from zabd.cluster_sim.totals import Totals

        total = Totals()
        yield "| level | seeds | events | faults | elections | virtual hours | CPU hours | failed |"
        yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
        for level, journal in self._journals.items():
            yield _row(f"`{level}`", journal.totals)
            total += journal.totals
        yield _row("all", total)
        yield ""
        yield (
            f"Strategy `{self._strategy}`, seeds from {self._start} on, "
            f"{platform.python_implementation()} {platform.python_version()}."
        )
        yield ""
        yield "Faults: " + ", ".join(
            f"{kind} {count:,}" for kind, count in sorted(total.faults.items())
        )
        for journal in self._journals.values():
            for entry in journal.failed:
                command = journal.replay_command(entry["seed"])
                yield f"Failed: {entry['failure']['check']}, `{command}`"

    def _failures(self) -> Iterator[str]:
        yield f"# {sum(len(journal.failed) for journal in self._journals.values())} seeds failed"
        for journal in self._journals.values():
            for entry in journal.failed:
                yield f"\n## {journal.head['level']}, seed {entry['seed']}\n\n```text"
                yield from journal.explain(entry)
                yield "```"


def _row(name: str, totals: "Totals") -> str:
    cells = (
        name,
        f"{totals.seeds:,}",
        f"{totals.events:,}",
        f"{totals.faults.total():,}",
        f"{totals.elections:,}",
        f"{totals.virtual_ms / 1000 / _S_PER_HOUR:,.1f}",
        f"{totals.cpu_s / _S_PER_HOUR:,.2f}",
        str(totals.failed),
    )
    return f"| {' | '.join(cells)} |"


def _replace(path: Path, text: str) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(text, "utf-8")
    aside.replace(path)
