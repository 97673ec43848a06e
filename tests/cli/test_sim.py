"""`zabctl sim`: seeds run, failures replay, planted mistakes are found."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from zabd.cli.commands.sim import sim

pytestmark = pytest.mark.sim


def run(*arguments: str) -> Result:
    """The command's result."""
    return CliRunner().invoke(sim, arguments, catch_exceptions=False)


def test_seeds_that_hold_end_with_figures_and_exit_code_0() -> None:
    """What `make sim` shows."""
    result = run("run", "--level", "zab", "--start", "1", "--seeds", "2", "--workers", "1")
    assert result.exit_code == 0
    assert "seeds from 1 on: 0 of 2 failed" in result.output
    assert "events" in result.output


def test_a_failing_seed_prints_the_command_that_repeats_it() -> None:
    """And the last lines of its trace, and the exit code is 1."""
    planted = ("--mutant", "ack-before-fsync")
    result = run("run", "--level", "zab", "--start", "3", "--seeds", "1", *planted)
    assert result.exit_code == 1
    assert "DurableBeforeAck" in result.output
    again = "zabctl sim run --level zab --start 3 --seeds 1 --mutant ack-before-fsync"
    assert f"again: {again}" in result.output
    assert run(*again.split()[2:]).exit_code == 1


def test_json_gives_one_object_for_each_seed_and_the_totals() -> None:
    """For programs; equal seeds give equal digests."""
    lines = [
        run("run", "--level", "core", "--start", "5", "--seeds", "1", "--json").output.splitlines()
        for _ in range(2)
    ]
    first, second = (json.loads(line) for line, _ in lines)
    assert first == second
    totals = json.loads(lines[0][1])["totals"]
    assert totals["seeds"] == 1
    assert totals["events"] == first["events"]
    assert first["seed"] == 5
    assert first["failure"] is None
    assert first["events"] > 100


def test_bugs_are_listed_and_hunted() -> None:
    """Each has a name, what it is, and the seed that finds it."""
    listed = run("bugs")
    assert "trunc-skipped" in listed.output
    assert all(json.loads(line)["bug"] for line in run("bugs", "--json").output.splitlines())
    hunt = run("bug", "epoch-not-persisted")
    assert hunt.exit_code == 0
    assert "found by seed 1" in hunt.output


def test_an_unknown_mistake_is_refused() -> None:
    """With the names that there are."""
    for arguments in (("bug", "gremlins"), ("run", "--mutant", "gremlins")):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "ack-before-fsync" in result.output


def test_a_failing_seed_is_saved_replayed_and_drawn(tmp_path: Path) -> None:
    """The file gives the same trace; a page of it needs nothing else."""
    saved, picture = tmp_path / "run.json", tmp_path / "run.html"
    planted = ("--mutant", "ack-before-fsync", "--workers", "1")
    result = run(
        *("run", "--level", "zab", "--start", "1", "--seeds", "3", *planted),
        *("--save", str(saved), "--html", str(picture)),
    )
    assert result.exit_code == 1
    drawn = picture.read_text()
    assert "ack-before-fsync" in drawn
    again = run("replay", str(saved), "--html", str(picture))
    assert again.exit_code == 0
    assert "the same trace" in again.output
    assert picture.read_text() == drawn


def test_a_replay_that_differs_says_where(tmp_path: Path) -> None:
    """With both lines, and exit code 1."""
    saved = tmp_path / "run.json"
    result = run("run", "--level", "zab", "--start", "17", "--seeds", "1", "--save", str(saved))
    assert result.exit_code == 0
    told = json.loads(saved.read_text())
    saved.write_text(json.dumps({**told, "seed": 31, "python": "3.99"}))
    differs = run("replay", str(saved))
    assert differs.exit_code == 1
    assert "another trace, from line" in differs.output
    assert "saved under Python 3.99" in differs.output


def test_a_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    """As a mistake of the caller's."""
    file = tmp_path / "something"
    file.write_text("{}")
    result = run("replay", str(file))
    assert result.exit_code == 2
    assert "does not hold a run" in result.output


def test_a_saved_failure_is_shrunk(tmp_path: Path) -> None:
    """Into a file of its own, which replays, and a picture."""
    saved = tmp_path / "run.json"
    planted = ("--mutant", "ack-before-fsync", "--workers", "1")
    run("run", "--level", "zab", "--start", "2", "--seeds", "1", *planted, "--save", str(saved))
    page = tmp_path / "small.html"
    result = run("shrink", str(saved), "--html", str(page), "--seconds", "5")
    assert result.exit_code == 0
    assert "after:  2 members, 0 faults, 1 request," in result.output
    assert "D1 DurableBeforeAck" in page.read_text()
    again = run("replay", str(tmp_path / "run.small.json"))
    assert "the same trace" in again.output


def test_what_does_not_fail_is_not_shrunk(tmp_path: Path) -> None:
    """As a mistake of the caller's."""
    saved = tmp_path / "run.json"
    run("run", "--level", "zab", "--start", "17", "--seeds", "1", "--save", str(saved))
    result = run("shrink", str(saved))
    assert result.exit_code == 2
    assert "every check holds" in result.output
