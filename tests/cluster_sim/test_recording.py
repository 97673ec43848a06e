"""A record shows what happened, and recording changes nothing of it."""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from zabd.client import connect
from zabd.client.recipes.lock import Lock
from zabd.cluster_sim import Scenario, simulate
from zabd.cluster_sim.plan import Plan
from zabd.cluster_sim.record import NOBODY, Record
from zabd.cluster_sim.replay import carry_out
from zabd.cluster_sim.trace import Trace

pytestmark = pytest.mark.sim


def record_of(plan: Plan) -> Record:
    """A run, recorded."""
    record = carry_out(plan, picture=True)[2]
    assert record is not None
    return record


@pytest.mark.parametrize("plan", [Plan(5, "zab"), Plan(5, "core"), Plan(7, "whole")], ids=str)
def test_recording_changes_nothing(plan: Plan) -> None:
    """The trace of a recorded run is that of the same run without; afterwards nothing is left."""
    before = Trace.record
    plain, _, _ = carry_out(plan)
    recorded, _, record = carry_out(plan, picture=True)
    assert recorded == plain
    assert Trace.record is before
    assert record is not None
    assert len(record.events) >= len(plain.lines)


@pytest.mark.parametrize("plan", [Plan(5, "core"), Plan(7, "whole")], ids=str)
def test_an_event_has_a_cause_that_happened_before_it(plan: Plan) -> None:
    """Messages come from the lane that sent them; what was sent was sent before it arrived."""
    events = record_of(plan).events
    messages = 0
    for number, event in enumerate(events):
        if event.cause == NOBODY:
            continue
        cause = events[event.cause]
        assert cause.at_us <= event.at_us
        if cause.kind != "fault":  # which the trace names after what it did
            assert event.cause < number
        if event.sent_us != NOBODY:
            assert cause.at_us <= event.sent_us <= event.at_us
            messages += cause.lane != event.lane
    assert messages > 100


def test_all_that_a_reader_looks_for_is_there() -> None:
    """Members' lives, elections, disks, commits; clients' requests, replies, watches, sessions."""
    kinds = Counter(event.kind for event in record_of(Plan(5, "core")).events)
    wanted = {"life", "vote", "role", "message", "fsync", "commit", "deliver", "fault", "timer"}
    assert wanted | {"ask", "reply", "session"} <= set(kinds)
    whole = record_of(Plan(7, "whole"))
    kinds = Counter(event.kind for event in whole.events)
    assert wanted | {"ask", "reply", "session", "lock", "fence"} <= set(kinds)
    spans = {span.kind.partition(" ")[0] for span in whole.spans}
    assert {"down", "session", "lock"} <= spans


def test_a_member_s_state_is_known_at_every_event() -> None:
    """Folded together, the changes give what the member was at the end."""
    record = record_of(Plan(5, "core"))
    state: dict[str, object] = {}
    log: list[str] = []
    lane = record.lanes.index("m1")
    for _, where, change in record.states:
        if where == lane:
            state.update(change)
            log = change.get("log", log) + change.get("log+", [])
    assert state["role"] in {"leading", "following"}
    assert log[-1] == state["logged"] == state["durable"] == state["delivered"]


def test_a_broken_invariant_is_the_last_event_and_has_a_cause() -> None:
    """What was going on when the check failed."""
    record = record_of(Plan(3, "zab", "ack-before-fsync"))
    last = record.events[-1]
    assert last.kind == "violation"
    assert "Propose 1:1" in record.events[last.cause].label
    told = record.as_object()
    assert told["failure"]["id"] == "D1"
    assert len(told["at"]) == len(told["kind"]) == len(record.events)


def drawn_record(page: Path) -> Any:  # noqa: ANN401 - JSON
    """The record in a page."""
    found = re.search(r'id="record">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_an_experiment_is_drawn_with_its_programs(tmp_path: Path) -> None:
    """Each process has a lane, with its requests, its session and the lock it holds."""

    async def experiment(scenario: Scenario) -> None:
        async def program() -> None:
            async with connect(scenario.hosts) as client, Lock(client, "/locks/one"):
                await client.create("/a", b"")

        await scenario.spawn("worker", program).result()

    simulate(experiment, seed=7, html=tmp_path / "run.html")
    told = drawn_record(tmp_path / "run.html")
    lane = told["lanes"].index("worker")
    labels = {
        what for where, what in zip(told["lane"], told["label"], strict=True) if where == lane
    }
    assert "create /a" in labels
    assert any(label.startswith("holds /locks/one, token ") for label in labels)
    assert {span[3].partition(" ")[0] for span in told["spans"] if span[0] == lane} == {
        "session",
        "lock",
    }
    assert told["failure"] is None


def test_a_stopped_and_a_killed_program_are_shown(tmp_path: Path) -> None:
    """A lock holder that sleeps through its session's end, say."""

    async def experiment(scenario: Scenario) -> None:
        async def program() -> None:
            await asyncio.sleep(100)

        first, second = (scenario.spawn(name, program) for name in ("first", "second"))
        scenario.spawn("third", program)
        await asyncio.sleep(1)
        first.pause()
        second.kill()
        await asyncio.sleep(1)
        first.resume()
        await asyncio.sleep(1)

    simulate(experiment, seed=7, html=tmp_path / "run.html")
    told = drawn_record(tmp_path / "run.html")
    stopped = {(told["lanes"][span[0]], span[3]) for span in told["spans"] if span[2] > span[1]}
    assert stopped == {("first", "paused"), ("second", "down")}
    assert told["label"].count("killed") == 1


def test_an_experiment_that_fails_is_drawn_too(tmp_path: Path) -> None:
    """The page says what it raised."""

    async def experiment(scenario: Scenario) -> None:
        await asyncio.sleep(1)
        raise AssertionError("two of them had the lock")

    with pytest.raises(AssertionError):
        simulate(experiment, seed=7, html=tmp_path / "run.html")
    told = drawn_record(tmp_path / "run.html")
    assert told["failure"]["detail"] == "two of them had the lock"
