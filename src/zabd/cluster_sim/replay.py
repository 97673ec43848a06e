"""A run on file, and the run again: the same trace, or where the two part.

At the levels `zab` and `core` a run is the same under any Python; at `whole`, under any hash seed
and one minor version, since asyncio itself is part of it.
"""

import json
import sys
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final
from zlib import compress, decompress

from zabd.cluster_sim.core_level import EVENTS_MAX, Outcome
from zabd.cluster_sim.plan import Plan
from zabd.cluster_sim.record import Record
from zabd.cluster_sim.recording import recording

FORMAT: Final = "zabd run"
VERSION: Final = 1
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"

_CONTEXT: Final = 3  # lines before the first that differs


@dataclass(frozen=True, slots=True)
class Saved:
    """One run on file: its plan, what it came to, and every line of its trace."""

    plan: Plan
    digest: str
    events: int
    failure: tuple[str, str] | None  # check and detail
    python: str
    lines: tuple[str, ...]

    def write(self, file: Path) -> None:
        """Put it into `file`."""
        told = {
            "format": FORMAT,
            "version": VERSION,
            **self.plan.as_object(),
            "python": self.python,
            "digest": self.digest,
            "events": self.events,
            "failure": None
            if self.failure is None
            else {"check": self.failure[0], "detail": self.failure[1]},
            "trace": b64encode(compress("\n".join(self.lines).encode())).decode(),
        }
        file.write_text(json.dumps(told, indent=1) + "\n")

    @classmethod
    def read(cls, file: Path) -> "Saved":
        """Take it from `file`. Raises ValueError if that is not a run that this version knows."""
        told = json.loads(file.read_text())
        if not isinstance(told, Mapping) or told.get("format") != FORMAT:
            raise ValueError(f"{file} does not hold a run: `zabctl sim run --save` writes one")
        if told["version"] != VERSION:
            raise ValueError(f"{file} is of version {told['version']}, this is {VERSION}")
        return cls(
            plan=Plan.from_object(told),
            digest=told["digest"],
            events=told["events"],
            failure=_failure(told["failure"]),
            python=told["python"],
            lines=tuple(decompress(b64decode(told["trace"])).decode().split("\n")),
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two traces part: the number of the first line that differs, and both lines."""

    number: int
    before: tuple[str, ...]
    expected: str | None  # None: the trace on file ends here
    came: str | None  # None: the new trace ends here


def carry_out(plan: Plan, *, picture: bool = False) -> tuple[Saved, Outcome, Record | None]:
    """Run a plan and keep all of its trace; with `picture`, also what a page can show of it."""
    with plan.made() as level:
        level.trace.lines = deque(maxlen=EVENTS_MAX)
        if picture:
            with recording(level) as record:
                outcome = level.run()
        else:
            record, outcome = None, level.run()
        lines = tuple(level.trace.lines)
    if record is not None:
        record.close(plan, outcome)
    failure = outcome.failure
    saved = Saved(
        plan=plan,
        digest=outcome.digest,
        events=outcome.events,
        failure=None if failure is None else (failure.id, failure.detail),
        python=PYTHON,
        lines=lines,
    )
    return saved, outcome, record


def first_difference(expected: Saved, came: Saved) -> Difference | None:
    """Where the two part; None if they are one run."""
    if expected.digest == came.digest:
        return None
    for number, (old, new) in enumerate(zip_longest(expected.lines, came.lines)):
        if old != new:
            before = expected.lines[max(0, number - _CONTEXT) : number]
            return Difference(number + 1, before, old, new)
    # Equal lines and another digest: the file's lines are not those that its digest was made of.
    return Difference(len(came.lines), (), f"digest {expected.digest}", f"digest {came.digest}")


def _failure(told: Mapping[str, Any] | None) -> tuple[str, str] | None:
    return None if told is None else (told["check"], told["detail"])
