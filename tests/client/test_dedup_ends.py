"""How calls of the dedup recipe end when something is refused, lost or cancelled: no stuck key."""

import asyncio
import dataclasses
import json
import logging
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.client.dedup_world import (
    KEY,
    PARENT,
    begins,
    commits,
    die_in_the_middle,
    events_of,
    locks,
    nodes,
    returns,
)
from tests.client.fast_loop import LATENCY, FastLoop, run, wait_until
from tests.client.scripted_server import LOSE_REPLY, LOSE_REQUEST, PASS, SWALLOW, ScriptedEnsemble

from zabd.client import SessionState, connect
from zabd.client.recipes.bound import RESENDS_MAX
from zabd.client.recipes.dedup import (
    AcquireTimeoutError,
    Attempt,
    Completed,
    Dedup,
    FencedError,
    KeyState,
    PermanentError,
    Previous,
    ReplayedFailureError,
    ResultTooLargeError,
    SessionLostError,
)
from zabd.client.recipes.dedup.options import TTL_MS_MAX
from zabd.client.recipes.dedup.records import Started
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import (
    ConnectionLossError,
    KeeperError,
    LocalProtocolError,
    NoAuthError,
    QuotaExceededError,
    ThrottledOpError,
)
from zabd.model.ops import (
    Check,
    CloseSession,
    Create,
    Create2,
    CreateMode,
    CreateTtl,
    Delete,
    Multi,
    Op,
    OpCode,
    SetData,
)
from zabd.model.results import MultiPart
from zabd.model.session import ConnectRequest

UNSAYABLE = b"report-\xff.pdf".decode(errors="surrogateescape")


def refuse(
    ensemble: ScriptedEnsemble, matches: Callable[[Op], bool], kind: type[KeeperError]
) -> None:
    """Let the ensemble refuse every write with an op like this."""
    commit = ensemble.commit

    def refusing(session: int, ops: list[Op]) -> list[MultiPart]:
        for index, op in enumerate(ops):
            if matches(op):
                error = kind()
                error.op_index = index
                raise error
        return commit(session, ops)

    ensemble.commit = refusing  # type: ignore[method-assign]


def records(op: Op) -> bool:
    """Whether an op makes the record of an outcome."""
    return isinstance(op, CreateTtl) and op.path.endswith("/result")


# An outcome that cannot be written.


def test_a_value_that_utf8_cannot_hold_is_left_out_but_that_it_happened_is_kept() -> None:
    """A file's name from os.fsdecode, say: run once, told to the caller, replayed as omitted."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        runs: list[int] = []
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(UnicodeEncodeError) as caught:
                await Dedup(zk).run(KEY, returns(UNSAYABLE, runs=runs))
            assert "recorded without the value" in caught.value.__notes__[0]
            assert nodes(ensemble) == ["result"]
            again = await Dedup(zk).run(KEY, returns(2, runs=runs))
            assert (again.value, again.replayed, again.record.omitted) == (None, True, True)
            assert len(runs) == 1

    run(main)


def test_a_block_whose_value_cannot_be_kept_does_not_run_again() -> None:
    """With `hold` the error of `complete` must not look like one of the work, which frees it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        charged = 0
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(UnicodeEncodeError):
                async with Dedup(zk).hold(KEY) as ctx:
                    charged += 1
                    await ctx.complete({"file": UNSAYABLE}, result_ref=UNSAYABLE)
            async with Dedup(zk).hold(KEY) as ctx:
                assert ctx.replay is not None
                assert ctx.replay.record.result_ref == "report-\\udcff.pdf"
            assert charged == 1

    run(main)


def test_a_codec_that_fails_costs_the_value_and_not_the_record() -> None:
    """Whatever it raises."""

    class Broken:
        name = "broken"

        def encode(self, value: object) -> object:
            raise RuntimeError(f"cannot encode {value}")

        def decode(self, stored: object) -> object:
            return stored

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(RuntimeError, match="cannot encode 1"):
                await Dedup(zk, codec=Broken()).run(KEY, returns(1))
            assert (await Dedup(zk).run(KEY, returns(2))).replayed

    run(main)


def test_a_failures_data_that_is_no_json_is_left_out_of_its_record() -> None:
    """The failure itself is recorded, and its caller gets it, with a note of what is missing."""

    async def declined(ctx: Attempt) -> None:
        raise PermanentError(f"declined {UNSAYABLE}", data={"at": object()})

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(PermanentError) as caught:
                await Dedup(zk).run(KEY, declined)
            assert "not JSON serializable" in caught.value.__notes__[0]
            assert nodes(ensemble) == ["result"]
            with pytest.raises(ReplayedFailureError) as replayed:
                await Dedup(zk).run(KEY, returns(1))
            assert replayed.value.failure == {
                "type": "PermanentError",
                "message": "declined report-\\udcff.pdf",
                "data": None,
            }

    run(main)


def test_a_failure_is_bounded_as_values_are() -> None:
    """Type and text are cut to `max_inline`, data above it is left out; who says it hears of it."""

    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, max_inline=100)
            with pytest.raises(ResultTooLargeError, match="the failure has"):
                async with dedup.hold(KEY) as ctx:
                    await ctx.fail(PermanentError("é" * 99, data="y" * 500), kind="k" * 999)
            record = (await dedup.status(KEY)).record
            assert record is not None
            assert record.omitted
            assert record.error == {"type": "k" * 255, "message": "é" * 50, "data": None}
            async with dedup.hold("silent") as ctx:
                await ctx.fail(SilentError())
            record = (await dedup.status("silent")).record
            assert record is not None
            assert record.error is not None
            assert record.error["message"] == "(RuntimeError from its __str__)"

    run(main)


@pytest.mark.parametrize("kind", [QuotaExceededError, NoAuthError])
def test_an_outcome_that_the_ensemble_refuses_leaves_doubt_and_no_lock(
    kind: type[KeeperError],
) -> None:
    """P5: the key waits for nobody, on this client or another; P6: the next one is told."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        refuse(ensemble, records, kind)
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            dedup = Dedup(zk, acquire_timeout=5)
            with pytest.raises(kind) as caught:
                await dedup.run(KEY, returns(1))
            assert "stays in doubt" in caught.value.__notes__[0]
            assert nodes(ensemble) == ["started"]
            assert (await dedup.status(KEY)).state is KeyState.IN_DOUBT
            for each in (zk, other):
                async with Dedup(each, acquire_timeout=5).hold(KEY) as ctx:
                    assert ctx.previous is not None
                    with pytest.raises(kind):
                        await ctx.complete(1)
            assert not locks(ensemble)

    run(main)


def test_an_overflowed_parent_that_cannot_be_deleted_is_no_failure_of_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Housekeeping after a recorded outcome is told to the log alone."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.ensure_path(PARENT)
            for server in [ensemble.leader, *(each.tree for each in ensemble.servers)]:
                server.nodes[PARENT].created = -1_073_741_819
            refuse(ensemble, lambda op: op.opcode == 2 and op.path == PARENT, NoAuthError)  # type: ignore[union-attr]
            assert (await Dedup(zk).run(KEY, returns(1))).value == 1
            assert "whose sequence overflowed" in caplog.text

    run(main)


@pytest.mark.parametrize("name", ["result_ttl", "started_ttl"])
def test_a_time_to_live_that_no_server_takes_is_refused_at_once(name: str) -> None:
    """40 bits of milliseconds: not after the work is done."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            for seconds in (1.2e9, float("inf"), 0.0):
                with pytest.raises(ValueError, match=name):
                    Dedup(zk, **{name: seconds})
            assert Dedup(zk, result_ttl=1.0e9).options.result_ttl_ms <= TTL_MS_MAX

    run(main)


# The local queue of a key.


def test_a_session_lost_while_recover_asks_does_not_keep_the_key_busy_here() -> None:
    """The next caller of this client goes on, with the new session, and asks again."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        await die_in_the_middle(ensemble)
        asked = 0

        async def recover(ctx: Attempt, previous: Previous) -> Completed[str]:
            nonlocal asked
            asked += 1
            if asked == 1:
                ensemble.expire(zk.session_id)
                await asyncio.sleep(3)
            return Completed("paid")

        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, on_in_doubt="recover", recover=recover, acquire_timeout=20)
            with pytest.raises(SessionLostError):
                await dedup.run(KEY, returns(0))
            assert (await dedup.run(KEY, returns(0))).value == "paid"
            assert asked == 2
            assert nodes(ensemble) == ["result"]

    run(main)


def test_a_lease_that_is_found_over_at_the_end_does_not_keep_the_key_busy_here() -> None:
    """The function returned after a stall: `complete` is the first to compare the lease."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)

        async def stalls(ctx: Attempt) -> None:
            loop.sleep_machine(60)

        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, acquire_timeout=30)
            with pytest.raises(SessionLostError):
                await dedup.run(KEY, stalls)
            assert (await dedup.run(KEY, returns(1))).value == 1
            with pytest.raises(SessionLostError):
                async with dedup.hold("b") as ctx:
                    loop.sleep_machine(60)
                    await ctx.release()
            assert (await dedup.run("b", returns(2))).value == 2

    run(main)


@pytest.mark.parametrize("way", ["forget", "sweep"])
def test_an_operator_that_is_cancelled_at_any_moment_leaves_the_key_to_the_next(way: str) -> None:
    """Also while it gives the lock back."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        ensemble.unimplemented |= {OpCode.CREATE_TTL}
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, result_ttl=1.0, acquire_timeout=5)
            for step in range(1, 40):
                await dedup.run(KEY, returns(1))
                await asyncio.sleep(2)
                with suppress(TimeoutError):
                    async with asyncio.timeout(step * LATENCY / 2):
                        await (dedup.forget(KEY) if way == "forget" else dedup.sweep())
                assert (await dedup.run(KEY, returns(2))).value == 2
                assert not locks(ensemble)

    run(main)


def test_a_journal_that_cannot_be_undone_does_not_keep_the_lock() -> None:
    """A caller that gives up after it began: the lock goes, and the journal is doubt."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        refuse(ensemble, lambda op: isinstance(op, Delete) and "started" in op.path, NoAuthError)
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            dedup = Dedup(zk, acquire_timeout=5)
            cancelled = 0
            for step in range(1, 40):
                key = f"{KEY}-{step}"
                call = asyncio.ensure_future(dedup.run(key, returns(1, after=9)))
                await asyncio.sleep(step * LATENCY / 2)
                call.cancel()
                with suppress(asyncio.CancelledError):
                    await call
                cancelled += bool(ensemble.leader.nodes.get(f"/dedup/{key}/started"))
                async with Dedup(other, acquire_timeout=1).hold(key) as ctx:
                    await ctx.leave_in_doubt()
            assert cancelled

    run(main)


# A server that says no for now, or for good.


def _set_quorum(ensemble: ScriptedEnsemble, *, there: bool) -> None:
    for server in ensemble.servers:
        server.read_only = not there
    ensemble.cut()


def test_a_server_without_a_quorum_suspends_an_attempt_and_does_not_end_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its session lives on: the function takes no step meanwhile, and commits with the quorum."""
    caplog.set_level(logging.INFO, "zabd.dedup.record")

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 2)
        steps: list[float] = []

        async def work(ctx: Attempt) -> str:
            for _ in range(50):
                steps.append(loop.time())
                await asyncio.sleep(0.1)
            return "done"

        async with connect(ensemble.hosts, read_only=True) as zk:
            call = asyncio.ensure_future(Dedup(zk).run(KEY, work))
            await asyncio.sleep(1)
            _set_quorum(ensemble, there=False)
            await wait_until(lambda: zk.state is SessionState.READ_ONLY)
            before = len(steps)
            await asyncio.sleep(2)
            assert len(steps) == before
            _set_quorum(ensemble, there=True)
            assert (await call).value == "done"
            assert not ensemble.expired
            assert nodes(ensemble) == ["result"]

    run(main)
    told = events_of(list(caplog.records), "zabd.dedup.record", "record_event")
    assert told == ["begun", "suspended", "resumed", "committed"]


def test_a_commit_at_a_server_without_a_quorum_waits_for_one() -> None:
    """As a commit whose reply was lost: it is not an outcome that the ensemble refuses."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 2)
        async with connect(ensemble.hosts, read_only=True) as zk:
            async with Dedup(zk).hold(KEY) as ctx:
                _set_quorum(ensemble, there=False)
                await wait_until(lambda: zk.state is SessionState.READ_ONLY)
                loop.call_later(3, lambda: _set_quorum(ensemble, there=True))
                await ctx.complete("kept")
            assert loop.time() > 3
            assert (await Dedup(zk).run(KEY, returns(0))).value == "kept"

    run(main)


@pytest.mark.parametrize("kind", [ThrottledOpError, NoAuthError])
def test_a_lock_is_confirmed_sooner_or_later_or_the_attempt_ends(kind: type[KeeperError]) -> None:
    """After a reconnect: what is refused for now is asked again, what is refused for good fails."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            call = asyncio.ensure_future(Dedup(zk).run(KEY, returns(1, after=2)))
            await asyncio.sleep(1)
            commit = ensemble.commit
            refuse(ensemble, lambda op: isinstance(op, Check), kind)
            loop.call_later(3, setattr, ensemble, "commit", commit)
            ensemble.cut()
            if kind is ThrottledOpError:
                assert (await call).value == 1
                return
            with pytest.raises(FencedError, match="cannot be confirmed"):
                await call
            assert loop.time() < 3
            await wait_until(lambda: nodes(ensemble) == ["started"])

    run(main)


# An attempt that has ended, and a later one whose lock has the same name.


def _touches(op: Op) -> bool:
    return isinstance(op, Multi) and isinstance(op.ops[-1], SetData)


def test_a_touch_under_way_when_its_attempt_ends_is_the_last() -> None:
    """Its reply must not wake the timer again: a later journal would be overwritten."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        touched = asyncio.Event()

        def notice(connection: object, op: Op) -> str:
            if _touches(op):
                touched.set()
            return PASS

        async def until_touched(ctx: Attempt) -> None:
            await touched.wait()

        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, started_ttl=3.0)
            ensemble.faults.append(notice)
            await dedup.run(KEY, until_touched)
            ensemble.faults.clear()
            await dedup.forget(KEY)
            before = len(ensemble.requests)
            async with dedup.hold(KEY) as ctx:
                await asyncio.sleep(4.5)
                started = (await dedup.status(KEY)).started
                assert started is not None
                assert started.attempt_id == ctx.attempt_id
                await ctx.release()
            later = [op for _, _, op in ensemble.requests[before:] if _touches(op)]  # type: ignore[arg-type]
            assert len(later) == 4

    run(main)


def test_a_touch_that_is_refused_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """Two more come before the journal may be collected under its living owner."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk, Dedup(zk, started_ttl=3.0).hold(KEY) as ctx:
            commit = ensemble.commit
            refuse(ensemble, lambda op: isinstance(op, SetData), QuotaExceededError)
            await asyncio.sleep(1.5)
            ensemble.commit = commit  # type: ignore[method-assign]
            for _ in range(10):
                await asyncio.sleep(1)
                ensemble.collect()
            assert "started" in nodes(ensemble)
            await ctx.complete()
        assert caplog.text.count("cannot touch") == 1

    run(main)


@pytest.mark.parametrize("step", ["checkpoint", "complete"])
def test_a_write_sent_again_spares_who_has_a_lock_of_our_name(step: str) -> None:
    """The key's znode was made anew while a reply was missing: numbers began at 0 again."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            lock = f"{PARENT}/lock-"

            def replace_key() -> None:
                for child in nodes(ensemble):
                    ensemble.commit(0, [Delete(f"{PARENT}/{child}")])
                ensemble.commit(0, [Delete(PARENT)])
                ensemble.commit(0, [Create(PARENT, b"", OPEN_ACL_UNSAFE)])
                flags = CreateMode.EPHEMERAL_SEQUENTIAL
                ensemble.commit(other.session_id, [Create2(lock, b"", OPEN_ACL_UNSAFE, flags)])
                started = Started.decode(ensemble_started)
                data = dataclasses.replace(started, attempt_id="theirs").encode()
                ensemble.commit(0, [Create(f"{PARENT}/started", data, OPEN_ACL_UNSAFE)])

            with pytest.raises(FencedError):
                async with Dedup(zk).hold(KEY) as ctx:
                    ensemble_started = ensemble.leader.nodes[f"{PARENT}/started"].data
                    ensemble.once(Multi, LOSE_REQUEST)
                    ensemble.on_fault = replace_key
                    await (ctx.complete(1) if step == "complete" else ctx.checkpoint("half"))
            assert nodes(ensemble) == ["lock-0000000000", "started"]
            left = Started.decode(ensemble.leader.nodes[f"{PARENT}/started"].data)
            assert (left.attempt_id, left.recovery_point) == ("theirs", None)

    run(main)


def test_no_checkpoint_is_begun_behind_the_end() -> None:
    """One that waited for its turn is refused."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk, Dedup(zk).hold(KEY) as ctx:
            first = asyncio.ensure_future(ctx.checkpoint("one"))
            second = asyncio.ensure_future(ctx.checkpoint("two"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await ctx.complete("done")
            await first
            with pytest.raises(LocalProtocolError, match="has ended"):
                await second

    run(main)


# More than the servers take: a stock server closes the connection without an answer.


def _break_above(ensemble: ScriptedEnsemble, limit: int) -> None:
    def fault(connection: object, op: Op) -> str:
        parts = op.ops if isinstance(op, Multi) else ()
        large = any(len(getattr(part, "data", None) or b"") > limit for part in parts)
        return LOSE_REQUEST if large else PASS

    ensemble.faults.append(fault)


@pytest.mark.parametrize("fails", [False, True])
def test_an_outcome_that_breaks_every_connection_is_recorded_without_its_value(
    *, fails: bool
) -> None:
    """After a bounded number of tries: suppression is kept, and the client has its peace again."""

    async def work(ctx: Attempt) -> str:
        if fails:
            raise PermanentError("x" * 5000)
        return "x" * 5000

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        _break_above(ensemble, 2000)
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(PermanentError if fails else ResultTooLargeError) as caught:
                await Dedup(zk, max_inline=10_000).run(KEY, work)
            assert "recorded without" in str(caught.value.__notes__ if fails else caught.value)
            assert nodes(ensemble) == ["result"]
            assert len(ensemble.seen(ConnectRequest)) <= RESENDS_MAX + 2
            record = (await Dedup(zk).status(KEY)).record
            assert record is not None
            assert record.omitted
            assert record.digest
            assert record.status == ("FAILED" if fails else "COMPLETED")

    run(main)


def test_a_checkpoint_that_breaks_every_connection_is_an_error_after_a_while() -> None:
    """And the attempt can end: its journal is what it was."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        _break_above(ensemble, 2000)
        async with connect(ensemble.hosts) as zk:
            async with Dedup(zk).hold(KEY) as ctx:
                with pytest.raises(ConnectionLossError, match="broke each of the"):
                    await ctx.checkpoint("half", "x" * 5000)
                await ctx.checkpoint("half", "x")
                await ctx.complete("done")
            assert len(ensemble.seen(ConnectRequest)) <= RESENDS_MAX + 2
            assert nodes(ensemble) == ["result"]

    run(main)


# A commit that a slow server holds while the lease runs out.


@pytest.mark.parametrize(
    ("old_session", "committed"), [("closed", False), ("lives", None), ("commits", True)]
)
def test_that_nothing_is_recorded_is_said_only_when_nothing_can_be(
    old_session: str, *, committed: bool | None
) -> None:
    """A session that only we have given up lives until it is closed: its commit may still land."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        held: list[Op] = []

        def hold_back(connection: object, op: Op) -> str:
            if commits(op):
                assert isinstance(op, Multi)
                held.extend(op.ops)
                return SWALLOW
            return SWALLOW if isinstance(op, CloseSession) and old_session != "closed" else PASS

        async def live(session: int) -> None:
            while True:
                ensemble.touch(session)
                await asyncio.sleep(1)

        async with connect(ensemble.hosts) as zk:
            old = zk.session_id
            ensemble.faults.append(hold_back)
            completing = asyncio.ensure_future(Dedup(zk).run(KEY, returns("late")))
            await wait_until(lambda: held)
            loop.sleep_machine(60)
            living = asyncio.ensure_future(live(old)) if old_session != "closed" else None
            ensemble.touch(old)
            if old_session == "commits":
                loop.call_later(3, ensemble.commit, old, held)
            if committed:
                await completing
            else:
                with pytest.raises(SessionLostError) as caught:
                    await completing
                assert caught.value.committed is committed
            assert (zk.session_id == old) is False
            ensemble.faults.clear()
            if living is not None:
                living.cancel()
            if old_session == "lives":
                ensemble.commit(old, held)
                assert (await Dedup(zk).run(KEY, returns(0))).value == "late"

    run(main)


# What the ensemble ends by itself: a Stat does not show it, so the records say it.


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("action", [PASS, LOSE_REPLY])
@pytest.mark.parametrize("old", [True, False])
def test_a_journal_says_how_it_was_made_whoever_writes_it_again(
    action: str, *, ends: bool, old: bool
) -> None:
    """At its creation, a touch, a checkpoint, by the next attempt: it counts while it is there."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        if not ends:
            ensemble.unimplemented |= {OpCode.CREATE_TTL}

        async def says(ctx: Attempt) -> bool:
            started = (await Dedup(zk).status(KEY)).started
            assert started is not None
            assert started.attempt_id == ctx.attempt_id
            return started.server_ttl

        async with connect(ensemble.hosts) as zk:
            await zk.ensure_path(PARENT if old else "/dedup")
            ensemble.once(begins, action)
            for number in (1, 2):
                async with Dedup(zk, started_ttl=30.0).hold(KEY) as ctx:
                    assert ctx.attempt == number
                    assert await says(ctx) is ends
                    await asyncio.sleep(11)
                    assert await says(ctx) is ends
                    await ctx.checkpoint("half")
                    assert await says(ctx) is ends
                    await ctx.leave_in_doubt()
            await asyncio.sleep(60)
            async with Dedup(zk).hold(KEY) as ctx:
                assert (ctx.previous is not None) is ends
                await ctx.complete(1)
            record = (await Dedup(zk).status(KEY)).record
            assert record is not None
            # A kind of request that may have cost its connection is left out on the next one.
            assert record.server_ttl is (ensemble.leader.nodes[f"{PARENT}/result"].kind != 0)

    run(main)


def test_a_record_of_an_earlier_version_is_told_old_by_the_ensembles_stamps() -> None:
    """It does not say how it was made; and an earlier version reads ours, as its own."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, result_ttl=30.0)
            await dedup.run(KEY, returns(1))
            data = json.loads((await zk.get(f"{PARENT}/result")).data or b"")
            assert data.pop("server_ttl") is True
            assert (data["v"], data["ttl_ms"]) == (1, 30_000)
            await zk.set(f"{PARENT}/result", json.dumps(data).encode())
            await asyncio.sleep(20)
            assert (await dedup.run(KEY, returns(2))).value == 1
            await asyncio.sleep(20)
            assert (await dedup.run(KEY, returns(2))).value == 2

    run(main)


def test_who_gives_up_behind_another_caller_leaves_no_hook_behind() -> None:
    """One for each call that ran out of time would add up for the life of the client."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, acquire_timeout=1)
            async with dedup.hold(KEY) as ctx:
                hooks = len(zk._hooks)
                with pytest.raises(AcquireTimeoutError):
                    await dedup.forget(KEY)
                assert len(zk._hooks) == hooks
                await ctx.complete(1)

    run(main)


@pytest.mark.parametrize("moment", range(6))
def test_forget_has_one_deadline_from_its_first_request_on(moment: int) -> None:
    """Out of reach of the ensemble, whatever it was about to ask; nothing stays behind."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, acquire_timeout=5)
            await dedup.run(KEY, returns(1))
            await asyncio.sleep(1)
            start = loop.time()
            forgetting = asyncio.ensure_future(dedup.forget(KEY))
            await asyncio.sleep(moment * LATENCY)
            ensemble.shut(ensemble.servers[0])
            with pytest.raises(AcquireTimeoutError):
                await forgetting
            assert loop.time() - start == pytest.approx(5, abs=0.1)
            ensemble.open(ensemble.servers[0])
            assert (await dedup.run(KEY, returns(2), acquire_timeout=30)).value == 1
            await wait_until(lambda: not locks(ensemble))

    run(main)


def test_what_the_client_refuses_to_send_costs_the_value_and_no_connection() -> None:
    """Above `request_bytes_max` nothing is sent: the record goes without its value, at once."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, request_bytes_max=3000) as zk:
            dedup = Dedup(zk, max_inline=10_000)
            with pytest.raises(ResultTooLargeError, match="larger than the servers take"):
                await dedup.run(KEY, returns("x" * 5000))
            assert nodes(ensemble) == ["result"]
            assert (await dedup.run(KEY, returns(1))).record.omitted
            async with dedup.hold("b") as ctx:
                with pytest.raises(LocalProtocolError, match="a request of"):
                    await ctx.checkpoint("half", "x" * 5000)
                await ctx.complete("done")
            assert (await dedup.run("b", returns(1))).value == "done"
            assert len(ensemble.seen(ConnectRequest)) == 1

    run(main)
