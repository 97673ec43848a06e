"""What a run of kazoo's suite is worth: its verdicts against what is on record in `open.toml`."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = 493  # in all; a run with fewer is no run
OUTCOMES = ("passed", "skipped", "failed", "not run")
RECORD = Path(__file__).with_name("open.toml")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one test ended."""

    test: str
    outcome: str
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """A run, measured against what is known."""

    counts: Mapping[str, int]  # of each outcome
    unexpected: tuple[str, ...]  # neither passed, nor on record as open
    closed: tuple[str, ...]  # passed, though on record as open: the record is out of date

    @property
    def acceptable(self) -> bool:
        """Whether nothing is unaccounted for."""
        return not self.unexpected and not self.closed


def judge(server: str, verdicts: Iterable[Verdict]) -> Judgement:
    """Compare a run with the record."""
    verdicts = list(verdicts)
    excused = known(server)
    not_passed = {verdict.test for verdict in verdicts if verdict.outcome != "passed"}
    passed = {verdict.test for verdict in verdicts} - not_passed
    return Judgement(
        Counter(verdict.outcome for verdict in verdicts),
        unexpected=tuple(sorted(not_passed - excused.keys())),
        closed=tuple(sorted(passed & excused.keys())),
    )


def known(server: str) -> Mapping[str, str]:
    """The tests that need not pass on this kind of server, each with its reason."""
    tables = _record()
    reference = tables["reference"]
    return reference if server == "java" else reference | tables["open"] | tables["not_run"]


def not_run(server: str) -> Mapping[str, str]:
    """The tests that are not even tried on this kind of server, each with its reason."""
    return {} if server == "java" else _record()["not_run"]


def _record() -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = tomllib.loads(RECORD.read_text(encoding="utf-8"))
    return tables


def table(
    server: str, judgement: Judgement, verdicts: Sequence[Verdict], alone: Mapping[str, str]
) -> str:
    """The result for people; `alone` is how the unexpected ones ended when run by themselves."""
    seconds = sum(verdict.seconds for verdict in verdicts)
    excused = known(server)
    figures = "".join(f"{judgement.counts[outcome]:9}" for outcome in OUTCOMES)
    lines = [
        "",
        f"{'server':8}{''.join(f'{outcome:>9}' for outcome in OUTCOMES)}{'seconds':>9}",
        f"{server:8}{figures}{seconds:9.0f}",
        *(
            f"  NOT EXPECTED {test}; by itself: {alone.get(test, 'not tried')}"
            for test in judgement.unexpected
        ),
        *(f"  PASSES NOW, strike it from open.toml: {test}" for test in judgement.closed),
        *(
            f"  open: {verdict.test} ({excused[verdict.test]})"
            for verdict in verdicts
            if verdict.outcome != "passed" and verdict.test in excused
        ),
    ]
    return "\n".join(lines)
