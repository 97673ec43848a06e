"""Sweeps lose no seed: whatever a run does to its process, and wherever they are broken off."""

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from zabd.cluster_sim import run_seeds
from zabd.cluster_sim.journal import Journal, JournalError
from zabd.cluster_sim.junit import write_junit
from zabd.cluster_sim.sweep import (
    _spread_over_processes,
    attempt_seed,
    make_level,
    run_seed,
    seed_command,
)
from zabd.cluster_sim.totals import Totals, outcome_as_entry

pytestmark = pytest.mark.sim

QUICK = (13, 16, 17)  # of all seeds these take the least time

WHAT = {"level": "zab", "strategy": "swarm", "mutant": None, "start": 1}


def test_an_executor_of_any_kind_gives_the_same_outcomes() -> None:
    """Threads take turns, since a planted mistake is there for all of them."""
    expected = {seed: run_seed(seed, "zab").digest for seed in QUICK}
    for executor in (
        ThreadPoolExecutor(3),
        ProcessPoolExecutor(2, mp_context=get_context("forkserver")),
    ):
        with executor:
            outcomes = list(run_seeds(QUICK, "zab", executor=executor, workers=3))
        assert {each.seed: each.digest for each in outcomes} == expected


def test_what_the_simulator_itself_raises_is_a_failure_of_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other seeds go on."""

    def run(seed: int, *_level: object, **_more: object) -> object:
        return run_seed(seed, "zab") if seed != 16 else 1 // 0

    monkeypatch.setattr("zabd.cluster_sim.sweep.run_seed", run)
    outcomes = list(run_seeds(QUICK, "zab"))
    assert [each.failure is None for each in outcomes] == [True, False, True]
    assert "ZeroDivisionError" in str(outcomes[1].failure)
    assert any("1 // 0" in line for line in outcomes[1].tail)


def test_a_run_without_an_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the CPU time it takes; its processor is needed for the others."""

    def spin(*_seed: object, **_more: object) -> None:
        while True:
            pass

    monkeypatch.setattr("zabd.cluster_sim.sweep.run_seed", spin)
    monkeypatch.setattr("zabd.cluster_sim.sweep.RUN_CPU_S_MAX", 0.05)
    before_s = time.process_time()
    failure = attempt_seed(1, "zab").failure
    assert failure is not None
    assert failure.id == "L5"
    assert time.process_time() - before_s < 5


def die(seed: int, *, level: str, strategy: str) -> object:
    """What a process does that runs out of memory."""
    if seed == 16:
        os._exit(9)
    return run_seed(seed, level, strategy=strategy)


def test_a_process_that_dies_costs_the_seed_that_it_ran() -> None:
    """The others are run again in new ones."""
    dying: Callable[..., object] = partial(die, level="zab", strategy="swarm")
    outcomes = {each.seed: each for each in _spread_over_processes(QUICK, dying, 2)}  # type: ignore[arg-type]
    assert {seed: each.failure is None for seed, each in outcomes.items()} == {
        13: True,
        16: False,
        17: True,
    }
    assert "has died" in str(outcomes[16].failure)


def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    """Its totals are those of all sessions; half a line is no line."""
    path = tmp_path / "journal"
    with Journal(path, WHAT) as journal:
        for outcome in run_seeds((13, 16), "zab"):
            journal.add(outcome)
    with path.open("a") as file:
        file.write('{"seed": 17, "lev')
    with Journal(path, WHAT) as journal:
        assert journal.done == {13, 16}
        assert list(journal.left(range(13, 18))) == [14, 15, 17]
        journal.add(run_seed(17, "zab"))
    expected = Totals()
    for outcome in run_seeds(QUICK, "zab"):
        expected.add(outcome_as_entry(outcome))
    with Journal(path, WHAT) as journal:
        for name in ("seeds", "failed", "events", "virtual_ms", "committed", "faults"):
            assert getattr(journal.totals, name) == getattr(expected, name)


def test_a_journal_of_another_sweep_is_refused(tmp_path: Path) -> None:
    """Two levels in one sum are no sum; and no other file is appended to."""
    path = tmp_path / "journal"
    Journal(path, WHAT).__exit__(None, None, None)
    with pytest.raises(JournalError, match="level 'zab', not 'core'"):
        Journal(path, {**WHAT, "level": "core"})
    path.write_text("# Notes\n")
    with pytest.raises(JournalError, match="no journal"):
        Journal(path, WHAT)
    assert path.read_text() == "# Notes\n"


def test_failures_are_cases_of_their_own_for_build_servers(tmp_path: Path) -> None:
    """With the check, the sentence and the command; many seeds share a case else."""
    planted = {**WHAT, "mutant": "ack-before-fsync"}
    with Journal(tmp_path / "journal", planted) as journal:
        journal.add(run_seed(3, "zab", "ack-before-fsync"))
        write_junit(tmp_path / "few.xml", journal, range(3, 5))
        write_junit(tmp_path / "many.xml", journal, range(3, 2_003))
    few = ET.parse(tmp_path / "few.xml").getroot()  # noqa: S314 - it was written here
    assert few.attrib["failures"] == "1"
    assert few.attrib["skipped"] == "1"
    [told] = few.iter("failure")
    assert told.attrib["type"] == "D1"
    assert "DurableBeforeAck" in told.attrib["message"]
    assert seed_command(3, "zab", "ack-before-fsync") in (told.text or "")
    many = ET.parse(tmp_path / "many.xml").getroot()  # noqa: S314 - as above
    assert len(many) == 21


def test_a_seed_gives_one_line_wherever_it_runs() -> None:
    """But for the time it took."""
    lines = [outcome_as_entry(run_seed(17, "zab")) for _ in range(2)]
    for line in lines:
        assert line.pop("cpu_s") > 0
    assert json.dumps(lines[0]) == json.dumps(lines[1])


def test_a_run_that_is_over_keeps_nothing_large() -> None:
    """Some hold on to it for good: coroutines of killed processes, at the whole level."""
    level = make_level(17, "zab")
    trace, schedule, checker = level.trace, level.schedule, level.checker
    images = [image for member in level.members.values() for image in member.images]
    outcome = level.run()
    assert trace.lines
    assert any(image.names for image in images)
    level.forget()
    assert not trace.lines
    assert not len(schedule)
    assert not any(image.names for image in images)
    assert not vars(checker)
    assert outcome.digest == trace.digest() == run_seed(17, "zab").digest
