"""The runner of many seeds: it goes on where it was stopped, and forgets no finding."""

import math
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.client import recipe_campaigns
from tests.client.recipe_campaigns import campaigns, recorded, run_all, table

from zabd.model.errors import ZabdError


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """Seeds go in turns, so that whenever it is stopped each recipe has had its share."""
    record, ran = tmp_path / "record.jsonl", list[tuple[str, int]]()

    def stopped(seed: int) -> None:
        if seed == 1:
            raise KeyboardInterrupt
        ran.append(("b", seed))

    chosen = {"a": lambda seed: ran.append(("a", seed)), "b": stopped}
    with pytest.raises(KeyboardInterrupt):
        run_all(chosen, range(3), record)
    run_all(chosen | {"b": lambda seed: ran.append(("b", seed))}, range(3), record)

    assert ran == [(name, seed) for seed in range(3) for name in "ab"]


def test_a_finding_stays_on_record_and_stops_nothing(tmp_path: Path) -> None:
    """Otherwise the next run, which skips the seed, would look clean."""

    def wrong(seed: int) -> None:
        if seed == 1:
            raise ZabdError("two holders")

    record = tmp_path / "record.jsonl"
    run_all({"a": wrong}, range(3), record)

    again = run_all({"a": wrong}, range(3), record)
    assert [run.found for run in again] == ["", "ZabdError: two holders", ""]
    assert table(again).splitlines()[1].split()[3:] == ["1", "[1]"]


def test_cpu_time_may_be_limited(tmp_path: Path) -> None:
    """The machine may be wanted for something else."""
    runs = run_all({"a": lambda _: None}, range(3), tmp_path / "record.jsonl", cpu_s_max=0.0)
    assert runs == recorded(tmp_path / "record.jsonl") == []


def test_a_long_run_is_divided_among_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other: what the killed processes of a run leave behind goes with them."""
    pools = Mock(wraps=ProcessPoolExecutor)
    monkeypatch.setattr(recipe_campaigns, "ProcessPoolExecutor", pools)
    monkeypatch.setattr(recipe_campaigns, "RUNS_PER_PROCESS", 2)
    record = tmp_path / "record.jsonl"

    runs = recipe_campaigns.run_in_processes(["barrier"], range(3), record, cpu_s_max=math.inf)

    assert [(run.recipe, run.seed, run.found) for run in runs] == [
        ("barrier", seed, "") for seed in range(3)
    ]
    assert pools.call_count == 2


def test_every_recipe_has_a_campaign() -> None:
    """By the table in the docs: whoever adds a recipe there adds a campaign here."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "recipes.md").read_text("utf-8")
    named = text.partition("| campaign |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1].strip(" `") for line in named.splitlines()[2:]]
    assert sorted(rows) == sorted(campaigns())
