"""Claims about what a client measures of itself."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import ScriptedEnsemble

from zabd.client import EventStream, SessionState, StateChange, connect
from zabd.client.metrics import (
    EVENT_LOOP_LAG,
    OPERATION_LATENCY,
    SESSION_EXPIRED,
    WATCH_NOTIFICATIONS,
    MemoryMetrics,
)
from zabd.model.watch_events import WatchEvent


def test_each_answer_and_each_event_is_measured() -> None:
    """One notification counts once, however many watchers it has; paths are the user's."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        metrics = MemoryMetrics()
        async with connect(f"{ensemble.hosts}/app", metrics=metrics) as zk:
            await zk.ensure_path("/a/b")
            await zk.exists("/a/b")
            for _ in range(2):
                await zk.get("/a/b", watch=lambda _: None)
            await zk.set("/a/b", b"x")
            await zk.sync("/")
            assert metrics.values(WATCH_NOTIFICATIONS) == {("/a", "data_changed"): 1}
            histogram = metrics.histogram(OPERATION_LATENCY, ("getData",))
            assert (histogram.count, histogram.sum) == (2, 4)  # 1 ms there, 1 ms back
            assert metrics.histogram(OPERATION_LATENCY, ("setData",)).count == 1
        assert zk.metrics is metrics

    run(main)


def test_a_lost_session_counts_once() -> None:
    """The lease says LOST first; that the ensemble says so later is no second loss."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        metrics = MemoryMetrics()
        async with connect(ensemble.hosts, metrics=metrics) as zk:
            moves: EventStream[StateChange] = EventStream()
            zk.on_transition(moves)
            loop.sleep_machine(100)
            assert not zk.check_lease()
            while (await anext(moves)).state is not SessionState.CONNECTED:
                pass
            assert metrics.value(SESSION_EXPIRED) == 1
            ensemble.expire(zk.session_id)
            await wait_until(lambda: metrics.value(SESSION_EXPIRED) == 2)
        assert metrics.value(SESSION_EXPIRED) == 2

    run(main)


def test_a_loop_that_is_held_up_is_measured() -> None:
    """F23: half a timeout keeps the session, and shows."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        metrics = MemoryMetrics()
        async with connect(ensemble.hosts, timeout=12.0, metrics=metrics) as zk:
            session = zk.session_id
            events: EventStream[WatchEvent] = EventStream()
            await zk.exists("/x", watch=events)
            loop.sleep_machine(11)
            await zk.sync("/")
            assert zk.session_id == session
            lag = metrics.histogram(EVENT_LOOP_LAG)
            assert (lag.count, lag.sum) == (1, pytest.approx(7000, abs=100))

    run(main)


def test_the_hook_for_tracing_is_entered_and_left() -> None:
    """Whatever makes context managers of a name and attributes will do."""
    told: list[object] = []

    @contextmanager
    def on_span(name: str, attrs: Mapping[str, object]) -> Iterator[None]:
        told.append((name, attrs))
        yield
        told.append("left")

    zk = connect("zk:2181", on_span=on_span)
    with zk.meter.span("wait", {"key": 1}):
        told.append("inside")
    assert told == [("wait", {"key": 1}), "inside", "left"]
    with connect("zk:2181").meter.span("wait", {}):
        pass


def test_prefixes_that_become_labels_are_bounded() -> None:
    """Whoever may make znodes could otherwise fill the memory of whoever stores the figures."""
    metrics = MemoryMetrics()
    meter = connect("zk:2181", metrics=metrics).meter
    for number in range(1000):
        meter.notified(f"/{number}/x", "created")

    values = metrics.values(WATCH_NOTIFICATIONS)
    assert len(values) == 101
    assert values["other", "created"] == 900
