"""A journal of seeds that are done: one line each, so that a sweep can be broken off and go on.

The first line says what is run. A line is written when its run is over; what a crash leaves of a
line in the middle is dropped, and its seed is run again.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from zabd.cluster_sim.core_level import Outcome
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.sweep import seed_command
from zabd.cluster_sim.totals import Totals, outcome_as_entry

FORMAT: Final = "zabd journal"
VERSION: Final = 1


class JournalError(ValueError):
    """The file is no journal, or one of another sweep."""


class Journal:
    """What is done of one sweep, on file.

    `sweep` says what is run (level, strategy, mutant, ...): what JSON can hold.
    A journal that is there already has to be of that sweep; JournalError if it is not.
    """

    def __init__(self, path: Path, sweep: Mapping[str, Any]) -> None:
        self.path = path
        self.head = dict(sweep)
        self.totals = Totals()
        self.failed: list[dict[str, Any]] = []
        self.done: set[int] = set()
        if path.exists() and path.stat().st_size:
            self._go_on(sweep)
        else:
            path.write_text(_line({"format": FORMAT, "version": VERSION, **sweep}))
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _go_on(self, sweep: Mapping[str, Any]) -> None:
        head = read_head(self.path)
        differs = [key for key, value in sweep.items() if head.get(key) != value]
        if differs:
            told = ", ".join(f"{key} {head.get(key)!r}, not {sweep[key]!r}" for key in differs)
            raise JournalError(f"{self.path} is the journal of another sweep: {told}")
        for entry in _entries(self.path):
            self._count(entry)

    def add(self, outcome: Outcome) -> dict[str, Any]:
        """A seed is done; its line, which is on its way to the disk."""
        entry = outcome_as_entry(outcome)
        self._file.write(_line(entry))
        self._file.flush()
        self._count(entry)
        return entry

    def _count(self, entry: dict[str, Any]) -> None:
        if entry["seed"] in self.done:
            return
        self.done.add(entry["seed"])
        self.totals.add(entry)
        if entry["failure"] is not None:
            self.failed.append(entry)

    def replay_command(self, seed: int) -> str:
        """What to type to see one of its seeds again."""
        head = self.head
        return seed_command(seed, head["level"], head.get("mutant"), strategy=head["strategy"])

    def explain(self, entry: Mapping[str, Any]) -> list[str]:
        """A failed seed: the check, the end of its trace, its shape, and the command."""
        failure = InvariantError(entry["failure"]["check"], entry["failure"]["detail"])
        return [
            str(failure),
            *entry["tail"],
            f"shape: {entry['shape']}",
            f"again: {self.replay_command(entry['seed'])}",
        ]

    def left(self, seeds: range) -> Iterator[int]:
        """Those of these seeds that are not done."""
        return (seed for seed in seeds if seed not in self.done)


def read_head(path: Path) -> dict[str, Any]:
    """What a journal is of; JournalError if the file is none, or of a later version."""
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
    try:
        head = json.loads(first)
    except ValueError as error:
        raise JournalError(f"{path} is no journal of seeds") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise JournalError(f"{path} is no journal of seeds")
    if head["version"] != VERSION:
        raise JournalError(f"{path} is of version {head['version']}, this is {VERSION}")
    return head


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal after its first; the file is cut behind the last whole one."""
    with path.open("rb+") as file:
        file.readline()
        while line := file.readline():
            if not line.endswith(b"\n"):
                file.truncate(file.tell() - len(line))
                return
            yield json.loads(line)


def _line(told: Mapping[str, Any]) -> str:
    return json.dumps(told, separators=(",", ":")) + "\n"
