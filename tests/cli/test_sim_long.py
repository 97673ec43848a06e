"""Long sweeps: broken off and gone on with, compared between interpreters, and summed up."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from zabd.cli.commands.sim import sim
from zabd.zab.quorum import MajorityQuorum

pytestmark = pytest.mark.sim


@pytest.fixture(autouse=True)
def as_nice_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A campaign makes its process nice for good; here that would be the tests' own."""
    monkeypatch.setattr(os, "nice", lambda _more: 0)


def run(*arguments: str) -> Result:
    """The command's result."""
    return CliRunner().invoke(sim, arguments, catch_exceptions=False)


QUICK = ("--level", "zab", "--workers", "1")


def test_a_sweep_goes_on_from_its_journal(tmp_path: Path) -> None:
    """The totals are those of both sessions, and the seeds follow from where they began."""
    journal = tmp_path / "journal"
    resume = ("--resume", str(journal))
    first = run("run", *QUICK, "--start", "16", "--seeds", "1", *resume)
    assert "0 of 1 failed" in first.output
    both = run("run", *QUICK, "--seeds", "2", *resume, "--json")
    *lines, totals = map(json.loads, both.output.splitlines())
    assert [line["seed"] for line in lines] == [17]
    assert totals["totals"]["seeds"] == 2
    done = journal.read_text()
    assert run("run", *QUICK, "--seeds", "2", *resume).exit_code == 0
    assert journal.read_text() == done


def test_a_journal_of_another_level_is_refused(tmp_path: Path) -> None:
    """Before anything is run or written."""
    journal = tmp_path / "journal"
    run("run", *QUICK, "--start", "17", "--seeds", "1", "--resume", str(journal))
    result = run("run", "--level", "core", "--seeds", "1", "--resume", str(journal))
    assert result.exit_code == 2
    assert "level 'zab', not 'core'" in result.output


def test_an_interrupted_sweep_says_how_to_go_on(tmp_path: Path) -> None:
    """Ctrl-C: exit status 130, and what was done is kept."""
    journal = tmp_path / "journal"
    started = subprocess.Popen(
        [
            *(sys.executable, "-c", "from zabd.cli.ctl import main; main()", "sim", "run"),
            *("--level", "zab", "--start", "13", "--seeds", "100000", "--workers", "1"),
            *("--resume", str(journal), "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    first = json.loads(started.stdout.readline())
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate()
    assert started.returncode == 130
    assert "the same command goes on" in errors
    assert json.loads(journal.read_text().splitlines()[1])["digest"] == first["digest"]


def test_failures_reach_the_build_server(tmp_path: Path) -> None:
    """As JUnit XML, with the command."""
    file = tmp_path / "junit.xml"
    planted = ("--mutant", "ack-before-fsync")
    result = run("run", *QUICK, "--start", "3", "--seeds", "1", *planted, "--junit", str(file))
    assert result.exit_code == 1
    assert "zabctl sim run --level zab --start 3 --seeds 1 --mutant ack-before-fsync" in (
        file.read_text()
    )


@pytest.mark.parametrize("level", ["zab", "core"])
def test_hash_seeds_and_order_do_not_matter(level: str) -> None:
    """X1, in small: `make sim-determinism` does it with thousands."""
    result = run("determinism", "--level", level, "--start", "16", "--seeds", "2")
    assert result.exit_code == 0
    assert f"{level}: 0 of 2 seeds differ over 2 runs of each" in result.output


def test_a_trace_that_differs_is_shown(tmp_path: Path) -> None:
    """A Python whose traces differ: each seed, both digests, and exit code 1."""
    other = tmp_path / "python"
    other.write_text(
        "#!/bin/sh\nfor seed in 17 16; do echo $seed 00000000000000000000000000000000 -; done\n"
    )
    other.chmod(0o755)
    result = run(
        *("determinism", "--level", "zab", "--start", "16", "--seeds", "2", "--python", str(other))
    )
    assert result.exit_code == 1
    assert "zab: 2 of 2 seeds differ over 3 runs of each" in result.output
    assert f"seed 16: 00000000000000000000000000000000 under {other}" in result.output


def test_a_campaign_goes_on_and_sums_up(tmp_path: Path) -> None:
    """All levels, in pieces, into one table; a second start finds nothing left to do."""
    arguments = ("campaign", str(tmp_path), "--seeds", "20", "--start", "13", "--workers", "1")
    stopped = run(*arguments, "--minutes", "0")
    assert stopped.exit_code == 75
    done = (tmp_path / "zab.jsonl").read_text().splitlines()
    assert len(done) == 2
    result = run(*arguments)
    assert result.exit_code == 0
    summary = (tmp_path / "summary.md").read_text()
    assert "| `zab` | 10 |" in summary
    assert "| `core` | 9 |" in summary
    assert "| `whole` | 1 |" in summary
    assert "| all | 20 |" in summary
    assert (tmp_path / "failures.md").read_text() == "# 0 seeds failed\n"
    assert (tmp_path / "zab.jsonl").read_text().splitlines()[:2] == done
    assert run(*arguments).exit_code == 0
    assert (tmp_path / "summary.md").read_text() == summary


def test_a_search_says_whether_it_was_complete() -> None:
    """Exit code 0 if it was, 75 if not: then nothing is known of the rest."""
    small = ("search", "--txns", "1", "--crashes", "0", "--epochs", "1")
    result = run(*small)
    assert result.exit_code == 0
    assert "every check holds in every schedule within 3 members, 1 txns" in result.output
    cut = run(*small, "--states", "20", "--json")
    assert cut.exit_code == 75
    told = json.loads(cut.output)
    assert not told["complete"]
    assert told["violation"] is None
    assert told["frontier"] > 0


def test_a_search_tells_the_schedule_that_breaks_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """As sentences, and exit code 1."""
    monkeypatch.setattr(MajorityQuorum, "acked", lambda _self, values: max(values.values()))
    result = run("search", "--txns", "1", "--crashes", "0", "--epochs", "1")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == "  1. a client gives leader 1 a transaction"
    assert "Z15 Quorums" in lines[-2]
    assert "broken, by a schedule that has no shorter one" in lines[-1]


def test_a_mistake_outside_of_peers_is_not_searched_for() -> None:
    """It could not be found, and that would look like innocence."""
    result = run("search", "--mutant", "watch-after-reply")
    assert result.exit_code == 2
    assert "not a mistake of peers" in result.output
