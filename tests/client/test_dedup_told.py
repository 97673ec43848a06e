"""What the dedup recipe tells: its log, its metrics, its spans (its section 13)."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from tests.client.dedup_world import KEY, PARENT, die_in_the_middle, events_of, figures, returns
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import ScriptedEnsemble

from zabd.client import Client, connect
from zabd.client.metrics import (
    DEDUP_CLEANUP_PENDING,
    DEDUP_HOLD,
    DEDUP_RELEASES,
    DEDUP_REQUESTS,
    DEDUP_WAIT,
    EPHEMERAL_NODES,
    SESSION_EXPIRED,
    MemoryMetrics,
)
from zabd.client.recipes.dedup import (
    AcquireTimeoutError,
    AlreadyInProgressError,
    Attempt,
    Dedup,
    InDoubtError,
    PayloadMismatchError,
    SessionLostError,
)
from zabd.client.recipes.dedup.meter import Census


def test_a_waiter_that_replays_and_is_closed_at_once_logs_released(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its znode goes with the session that it ends itself: nothing has expired."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one:
            call = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=2)))
            await asyncio.sleep(1)
            async with connect(ensemble.hosts) as two:
                assert (await Dedup(two).run(KEY, returns(2))).replayed
            assert figures(two).value(SESSION_EXPIRED) == 0
            await call
            await wait_until(lambda: len(ensemble.sessions) == 1)

    with caplog.at_level(logging.INFO, "zabd.dedup"):
        run(main)
    events = events_of(list(caplog.records), "zabd.dedup.lock", "event")
    assert events.count("released") == 2
    assert "session_expired" not in events
    outcomes = events_of(list(caplog.records), "zabd.dedup.lock", "outcome")
    assert sorted(outcomes) == ["completed", "replay"]


def test_calls_are_counted_by_how_they_end() -> None:
    """Once each, whatever else happened on the way."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            dedup = Dedup(one)
            await dedup.run(KEY, returns(1), payload=b"x")
            await dedup.run(KEY, returns(1), payload=b"x")
            with pytest.raises(PayloadMismatchError):
                await dedup.run(KEY, returns(1), payload=b"y")
            holding = asyncio.ensure_future(Dedup(two).run("busy", returns(1, after=9)))
            await asyncio.sleep(1)
            with pytest.raises(AlreadyInProgressError):
                await dedup.run("busy", returns(1), on_conflict="fail")
            with pytest.raises(AcquireTimeoutError):
                await dedup.run("busy", returns(1), acquire_timeout=1)
            lost = asyncio.ensure_future(dedup.run("busy", returns(1)))
            await asyncio.sleep(1)
            ensemble.expire(one.session_id)
            with pytest.raises(SessionLostError):
                await lost
            await holding
            assert figures(one).values(DEDUP_REQUESTS) == {
                ("executed",): 1,
                ("replayed",): 1,
                ("mismatch",): 1,
                ("conflict",): 1,
                ("timeout",): 1,
                ("lost",): 1,
            }
            assert figures(one).value(DEDUP_CLEANUP_PENDING) == 0
            assert figures(two).values(DEDUP_REQUESTS) == {("executed",): 1}
            assert figures(two).histogram(DEDUP_HOLD).sum == pytest.approx(9000, abs=20)
            assert figures(one).value(DEDUP_RELEASES) == 4  # a replay and a mismatch need no lock
            assert figures(two).value(DEDUP_RELEASES) == 1

    run(main)


def test_doubt_is_counted_and_waits_are_measured() -> None:
    """A cancelled run leaves doubt, and one that refuses to run in doubt counts as that."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            call = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=9)))
            await asyncio.sleep(1)
            waiting = asyncio.ensure_future(Dedup(two, on_in_doubt="fail").run(KEY, returns(2)))
            await asyncio.sleep(1)
            call.cancel()
            with pytest.raises(InDoubtError):
                await waiting
            assert figures(one).values(DEDUP_REQUESTS) == {("in_doubt",): 1}
            assert figures(two).values(DEDUP_REQUESTS) == {("in_doubt",): 1}
            waits = figures(two).histogram(DEDUP_WAIT)
            assert (waits.count, waits.sum) == (1, pytest.approx(1000, abs=20))

    run(main)


def test_lock_znodes_are_counted_by_key_and_in_total() -> None:
    """What this client sees of them; 0 when it looks at none."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            calls = [
                asyncio.ensure_future(Dedup(zk).run(key, returns(1, after=5)))
                for zk, key in ((one, KEY), (two, KEY), (two, "other"))
            ]
            await asyncio.sleep(1)
            assert figures(two).values(EPHEMERAL_NODES) == {
                (PARENT,): 2,
                ("/dedup/other",): 1,
                ("/dedup",): 3,
            }
            await asyncio.gather(*calls)
            await asyncio.sleep(1)
            assert figures(two).values(EPHEMERAL_NODES) == {("/dedup",): 0}

    run(main)


def test_only_the_largest_keys_have_a_gauge_of_their_own() -> None:
    """The number of labels is bounded, the total counts all."""
    metrics = MemoryMetrics()
    metrics.declare([EPHEMERAL_NODES])
    census = Census(metrics, shown_max=2)
    for number, count in enumerate([3, 1, 2, 5]):
        census.update(f"/dedup/k{number}", count)
    assert metrics.values(EPHEMERAL_NODES) == {
        ("/dedup",): 11,
        ("/dedup/k0",): 3,
        ("/dedup/k3",): 5,
    }
    census.update("/dedup/k3", 0)
    census.update("/dedup/k1", 4)
    assert metrics.values(EPHEMERAL_NODES)[("/dedup/k1",)] == 4
    assert metrics.values(EPHEMERAL_NODES)[("/dedup",)] == 9


def test_spans_are_around_run_wait_execute_and_commit() -> None:
    """One inside of the other, with the key; a key that is hidden in the log is hidden here."""
    told: list[str] = []
    keys: set[object] = set()

    @contextmanager
    def on_span(name: str, attrs: Mapping[str, object]) -> Iterator[None]:
        told.append(f"+{name}")
        keys.add(attrs["idempotency_key"])
        try:
            yield
        finally:
            told.append(f"-{name}")

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, on_span=on_span) as zk:
            await Dedup(zk).run(KEY, returns(1))
            assert told == [
                "+dedup.run",
                "+dedup.wait",
                "-dedup.wait",
                "+dedup.execute",
                "-dedup.execute",
                "+dedup.commit",
                "-dedup.commit",
                "-dedup.run",
            ]
            assert keys == {KEY}
            await Dedup(zk, log_key="hash").run(KEY, returns(1))
            assert len(keys) == 2

    run(main)


def test_the_attempt_is_a_field_of_the_log_from_its_begin_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And the journal's begin is an event."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        await die_in_the_middle(ensemble)
        caplog.clear()
        async with connect(ensemble.hosts) as zk:
            await Dedup(zk).run(KEY, returns(1), payload=b"x")

    with caplog.at_level(logging.INFO, "zabd.dedup"):
        run(main)
    records = list(caplog.records)
    told = events_of(records, "zabd.dedup.record", "record_event")
    assert told == ["in_doubt", "begun", "committed"]
    [released] = [vars(r) for r in records if getattr(r, "event", "") == "released"]
    assert released["attempt"] == 2
    assert released["held_ms"] >= 0


def test_without_a_sync_another_member_may_not_show_it() -> None:
    """A3: who looks from outside asks for a sync first."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 2)
        one, two = (server.name for server in ensemble.servers)
        async with connect(one) as holder, connect(two) as observer:
            ensemble.servers[1].lagging = True
            async with Dedup(holder).hold(KEY, payload=b"x") as ctx:
                assert await _shows(observer, ctx) is False
                await observer.sync(PARENT)
                assert await _shows(observer, ctx) is True
                await ctx.complete()

    run(main)


async def _shows(observer: Client, ctx: Attempt) -> bool:
    return await observer.exists(ctx.znode_path) is not None
