"""Claims about the dedup recipe, on scripted servers in virtual time."""

import asyncio
import json
import logging

import pytest
from tests.client.dedup_world import (
    KEY,
    PARENT,
    begins,
    cost,
    die_in_the_middle,
    locks,
    nodes,
    returns,
)
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import LOSE_REPLY, LOSE_REQUEST, ScriptedEnsemble

from zabd.client import Client, connect
from zabd.client.recipes.dedup import (
    AcquireTimeoutError,
    AlreadyInProgressError,
    Attempt,
    Completed,
    Dedup,
    DuplicateError,
    ExecutionTimeoutError,
    FencedError,
    InDoubtError,
    KeyState,
    MissingOutcomeError,
    NotExecuted,
    PayloadMismatchError,
    PermanentError,
    Previous,
    ReplayedFailureError,
    SessionLostError,
    TooManyContendersError,
)
from zabd.client.recipes.dedup.keys import znode_name
from zabd.model.ops import (
    Create,
    Delete,
    Multi,
    OpCode,
    SetData,
)

# The main path.


def test_a_key_runs_once_and_every_later_caller_gets_the_recorded_value() -> None:
    """P2 and P3: one outcome, replayed to all."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        runs: list[int] = []
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            first = await Dedup(one).run(KEY, returns({"id": 7}, runs=runs), payload=b"body")
            again = await Dedup(two).run(KEY, returns({"id": 8}, runs=runs), payload=b"body")
            assert (first.value, first.replayed, first.attempt) == ({"id": 7}, False, 1)
            assert (again.value, again.replayed) == ({"id": 7}, True)
            assert again.fencing_token == first.fencing_token == runs[0]
            assert len(runs) == 1
            assert nodes(ensemble) == ["result"]

    run(main)


def test_many_callers_at_once_execute_once() -> None:
    """Acceptance 4: fifty clients, one execution, forty-nine replays, then reads only."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        runs: list[int] = []
        clients = [connect(ensemble.hosts) for _ in range(50)]
        await asyncio.gather(*(zk.start() for zk in clients))

        async def call(zk: Client) -> bool:
            outcome = await Dedup(zk).run(KEY, returns(1, after=2, runs=runs), payload=b"x")
            assert outcome.value == 1
            return outcome.replayed

        replayed = await asyncio.gather(*(call(zk) for zk in clients))
        assert len(runs) == 1
        assert replayed.count(False) == 1
        await wait_until(lambda: nodes(ensemble) == ["result"])
        before = len(ensemble.requests)
        assert all(await asyncio.gather(*(call(zk) for zk in clients)))
        assert cost(ensemble, before) == (100, 0)
        await asyncio.gather(*(zk.close() for zk in clients))

    run(main)


def test_what_each_case_costs() -> None:
    """The budget of section 14 is a promise to whoever pays for the ensemble."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            dedup = Dedup(one)
            await one.ensure_path("/dedup")
            start = len(ensemble.requests)
            await dedup.run(KEY, returns(1))
            assert cost(ensemble, start) == (2, 2)  # new key, nobody else

            start = len(ensemble.requests)
            await dedup.run(KEY, returns(1))
            assert cost(ensemble, start) == (2, 0)  # duplicate

            await dedup.forget(KEY)
            await one.create(PARENT)
            start = len(ensemble.requests)
            await dedup.run(KEY, returns(1))
            assert cost(ensemble, start) == (3, 3)  # new key, its parent exists

            await one.delete(f"{PARENT}/result")
            start = len(ensemble.requests)
            await dedup.run(KEY, returns(1), journal=False)
            assert cost(ensemble, start) == (3, 2)  # without the journal

            await one.delete(f"{PARENT}/result")
            holder = asyncio.ensure_future(dedup.run(KEY, returns(1, after=5)))
            await asyncio.sleep(1)
            start = len(ensemble.requests)
            waiter = asyncio.ensure_future(Dedup(two).run(KEY, returns(1)))
            await asyncio.sleep(1)
            assert cost(ensemble, start) == (4, 1)  # a waiter joins: fast path, list, watch
            start = len(ensemble.requests)
            await asyncio.gather(holder, waiter)
            await wait_until(lambda: not locks(ensemble))
            # One commit by the holder; the waiter reads list and record, deletes its znode.
            assert cost(ensemble, start) == (1, 2)

    run(main)


def test_another_payload_is_an_error_and_never_a_replay() -> None:
    """P4: the same key for another request is a client's mistake that must be heard."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk)
            await dedup.run(KEY, returns(1), payload={"amount": 1, "to": "bob"})
            same = await dedup.run(KEY, returns(2), payload={"to": "bob", "amount": 1})
            assert same.replayed
            with pytest.raises(PayloadMismatchError) as caught:
                await dedup.run(KEY, returns(2), payload={"amount": 2, "to": "bob"})
            assert (caught.value.key, caught.value.znode_path) == (KEY, PARENT)
            with pytest.raises(PayloadMismatchError, match="digested") as caught:
                await dedup.run(KEY, returns(2), payload=b"x", hmac_key=b"k")
            assert caught.value.reason == "alg"
            assert (await dedup.run(KEY, returns(2))).replayed  # no payload, no check

    run(main)


def test_an_ordinary_exception_frees_the_key() -> None:
    """The next call runs again, with a larger token."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk)
            tokens: list[int] = []

            async def breaks(ctx: Attempt) -> None:
                tokens.append(ctx.fencing_token)
                raise OSError("no route")

            with pytest.raises(OSError, match="no route"):
                await dedup.run(KEY, breaks)
            assert nodes(ensemble) == []
            outcome = await dedup.run(KEY, returns(1, runs=tokens))
            assert (outcome.attempt, outcome.replayed) == (1, False)
            assert tokens == sorted(set(tokens))

    run(main)


def test_a_permanent_failure_is_recorded_and_replayed() -> None:
    """A refusal that would come again need not be asked for again."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk)

            async def refuses(ctx: Attempt) -> None:
                raise PermanentError("card expired", data={"code": 54})

            with pytest.raises(PermanentError):
                await dedup.run(KEY, refuses)
            with pytest.raises(ReplayedFailureError, match="card expired") as caught:
                await dedup.run(KEY, returns(1))
            assert caught.value.failure["data"] == {"code": 54}
            outcome = await dedup.run(KEY, returns(2), reuse="rerun_failed")
            assert (outcome.value, outcome.replayed) == (2, False)
            assert (await dedup.run(KEY, returns(3))).value == 2

    run(main)


def test_reuse_reject_raises_for_a_duplicate() -> None:
    """Some callers want to know rather than to be served."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await Dedup(zk).run(KEY, returns(1))
            with pytest.raises(DuplicateError):
                await Dedup(zk).run(KEY, returns(1), reuse="reject")

    run(main)


def test_on_conflict_fail_answers_at_once_and_leaves_no_znode() -> None:
    """A web request may rather say 409 than wait, also behind a caller of the same process."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            work = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=5)))
            await asyncio.sleep(1)
            for zk in (one, two):
                with pytest.raises(AlreadyInProgressError):
                    await Dedup(zk, on_conflict="fail").run(KEY, returns(2))
            await asyncio.sleep(0.1)
            assert len(locks(ensemble)) == 1
            assert (await work).value == 1

    run(main)


def test_local_callers_share_one_place_in_the_queue() -> None:
    """5.0: the search after a lost create relies on one lock znode for a session and key."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            runs: list[int] = []
            calls = [
                asyncio.ensure_future(
                    Dedup(zk).run(KEY, returns(1, after=3, runs=runs), payload=payload)
                )
                for payload in (b"x", b"x", b"y", b"x")
            ]
            await asyncio.sleep(1)
            assert len(locks(ensemble)) == 1
            first, second, other, fourth = await asyncio.gather(*calls, return_exceptions=True)
            assert len(runs) == 1
            assert isinstance(other, PayloadMismatchError)
            assert [o.replayed for o in (first, second, fourth)] == [False, True, True]
            assert len(ensemble.seen(Multi)) == 3  # base path missing, all, commit

    run(main)


def test_a_local_caller_goes_on_when_the_one_before_it_ended_without_a_record() -> None:
    """It becomes an ordinary contender."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            first = asyncio.ensure_future(Dedup(zk).run(KEY, returns(1, after=3)))
            await asyncio.sleep(1)
            second = asyncio.ensure_future(Dedup(zk).run(KEY, returns(2)))
            third = asyncio.ensure_future(Dedup(zk).run(KEY, returns(3)))
            await asyncio.sleep(0.1)
            first.cancel()
            assert (await second).value == 2
            assert (await third).value == 2
            assert first.cancelled()

    run(main)


def test_more_contenders_than_allowed_are_turned_away() -> None:
    """A runaway caller must not fill the key's parent."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            work = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=3)))
            await asyncio.sleep(1)
            with pytest.raises(TooManyContendersError):
                await Dedup(two, max_contenders=1).run(KEY, returns(2))
            await work

    run(main)


# Lost replies.


@pytest.mark.parametrize("action", [LOSE_REPLY, LOSE_REQUEST])
def test_a_lost_begin_is_settled_by_the_attempts_id(action: str) -> None:
    """6.3: begun once, whatever the network did."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as zk:
            await zk.ensure_path(PARENT)
            ensemble.once(begins, action)
            runs: list[int] = []
            outcome = await Dedup(zk).run(KEY, returns(1, runs=runs))
            assert (outcome.attempt, len(runs)) == (1, 1)

    run(main)


# Suspended and lost.


def test_the_function_takes_no_step_while_suspended_and_goes_on_after() -> None:
    """Section 7: SUSPENDED pauses, it aborts nothing."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            steps: list[float] = []

            async def work(ctx: Attempt) -> int:
                for _ in range(10):
                    await asyncio.sleep(1)
                    steps.append(loop.time())
                return len(steps)

            start = loop.time()
            call = asyncio.ensure_future(Dedup(zk).run(KEY, work))
            await asyncio.sleep(2.5)
            ensemble.shut(ensemble.servers[0])
            await asyncio.sleep(5)
            assert len(steps) == 2
            ensemble.open(ensemble.servers[0])
            assert (await call).value == 10
            assert not [at for at in steps if start + 2.51 < at < start + 7.5]

    run(main)


def test_a_lost_session_cancels_the_function_and_writes_nothing() -> None:
    """Section 7: LOST aborts; the outcome of a later attempt must be the only one."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            trace: list[str] = []

            async def work(ctx: Attempt) -> None:
                try:
                    await asyncio.sleep(100)
                    trace.append("went on")
                except asyncio.CancelledError:
                    trace.append("cancelled")
                    assert ctx.lost.is_set()
                    raise

            call = asyncio.ensure_future(Dedup(zk).run(KEY, work))
            await asyncio.sleep(1)
            writes = len(ensemble.seen(Multi, Delete, SetData))
            ensemble.expire(zk.session_id)
            with pytest.raises(SessionLostError) as caught:
                await call
            assert caught.value.committed is False
            await asyncio.sleep(1)
            assert trace == ["cancelled"]
            assert len(ensemble.seen(Multi, Delete, SetData)) == writes
            assert nodes(ensemble) == ["started"]

    run(main)


def test_a_zombies_commit_is_refused_by_the_ensemble() -> None:
    """P2: even a holder that notices nothing cannot record, its session is over."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            with pytest.raises(FencedError):  # once at the commit, once more at the block's end
                async with Dedup(one).hold(KEY) as ctx:
                    await one.delete(ctx.znode_path)  # the ensemble's view: the lock is gone
                    second = await Dedup(two).run(KEY, returns("second"))
                    assert second.attempt == 2
                    with pytest.raises(FencedError):
                        await ctx.complete("first")
            assert (await Dedup(one).run(KEY, returns(0))).value == "second"

    run(main)


def test_retry_on_lost_starts_again_with_a_new_session() -> None:
    """A fresh check decides, not what the old session believed."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            work = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=5)))
            await asyncio.sleep(1)
            waiting = asyncio.ensure_future(Dedup(two).run(KEY, returns(2), retry_on_lost=True))
            await asyncio.sleep(1)
            ensemble.expire(two.session_id)
            assert (await waiting).value == (await work).value == 1

    run(main)


# In doubt.


def test_on_in_doubt_fail_leaves_the_question_open() -> None:
    """For payments without a way to ask whether they happened."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        await die_in_the_middle(ensemble)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, on_in_doubt="fail")
            for _ in range(2):
                with pytest.raises(InDoubtError) as caught:
                    await dedup.run(KEY, returns(1), payload=b"x")
                assert caught.value.previous.attempt == 1
            await asyncio.sleep(0.1)
            assert nodes(ensemble) == ["started"]
            assert (await dedup.status(KEY)).state is KeyState.IN_DOUBT
            await dedup.resolve(KEY, Completed("by hand"))
            assert (await dedup.run(KEY, returns(1), payload=b"x")).value == "by hand"

    run(main)


def test_resolving_as_not_executed_frees_the_key() -> None:
    """The operator has looked: nothing happened."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        await die_in_the_middle(ensemble)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, on_in_doubt="fail")
            await dedup.resolve(KEY, NotExecuted)
            assert nodes(ensemble) == []
            assert (await dedup.run(KEY, returns(1), payload=b"x")).attempt == 1

    run(main)


@pytest.mark.parametrize("happened", [True, False])
def test_recover_asks_the_downstream(*, happened: bool) -> None:
    """It is asked under the lock, and its answer is recorded or the function runs."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        await die_in_the_middle(ensemble)
        async with connect(ensemble.hosts) as zk:

            async def recover(ctx: Attempt, previous: Previous) -> object:
                assert locks(ensemble)
                return Completed("found") if happened else NotExecuted()

            dedup = Dedup(zk, on_in_doubt="recover", recover=recover)
            outcome = await dedup.run(KEY, returns("ran"), payload=b"x")
            assert outcome.value == ("found" if happened else "ran")
            assert nodes(ensemble) == ["result"]

    run(main)


def test_a_poison_request_is_given_up_after_max_attempts() -> None:
    """What kills every process that tries it must stop being tried."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        await die_in_the_middle(ensemble)
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(ReplayedFailureError, match="MaxAttempts"):
                await Dedup(zk, max_attempts=1).run(KEY, returns(1), payload=b"x")

    run(main)


def test_an_execution_timeout_leaves_the_attempt_in_doubt() -> None:
    """The function was cancelled, but who knows what its last request did."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(ExecutionTimeoutError):
                await Dedup(zk, execution_timeout=2).run(KEY, returns(1, after=9))
            assert nodes(ensemble) == ["started"]
            assert (await Dedup(zk).run(KEY, returns(1))).attempt == 2

    run(main)


def test_a_cancelled_caller_leaves_the_attempt_in_doubt() -> None:
    """5.7: as an execution timeout, and the cancellation goes on unchanged."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            call = asyncio.ensure_future(Dedup(zk).run(KEY, returns(1, after=9)))
            await asyncio.sleep(1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert nodes(ensemble) == ["started"]

    run(main)


def test_the_grace_to_clean_up_begins_when_a_step_may_be_taken() -> None:
    """Suspended, it takes none: with the grace over by then it would work on without the lock."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            held: list[list[str]] = []

            async def work(ctx: Attempt) -> None:
                try:
                    await asyncio.sleep(9)
                finally:
                    await asyncio.sleep(0.5)
                    held.append(locks(ensemble))

            call = asyncio.ensure_future(Dedup(zk, abort_grace=1.0).run(KEY, work))
            await asyncio.sleep(1)
            ensemble.shut(ensemble.servers[0])
            await asyncio.sleep(0.1)
            call.cancel()
            await asyncio.sleep(3)
            ensemble.open(ensemble.servers[0])
            with pytest.raises(asyncio.CancelledError):
                await call
            assert held == [["lock-0000000000"]]
            assert nodes(ensemble) == ["started"]

    run(main)


def test_a_checkpoint_is_handed_to_the_next_attempt() -> None:
    """A function of several steps can go on where it was."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:

            async def dies(ctx: Attempt) -> None:
                await ctx.checkpoint("charged", {"id": 3})
                await asyncio.sleep(100)

            with pytest.raises(ExecutionTimeoutError):
                await Dedup(zk, execution_timeout=1).run(KEY, dies)

            async def goes_on(ctx: Attempt) -> object:
                assert ctx.previous is not None
                return [ctx.previous.recovery_point, ctx.previous.recovery_data]

            assert (await Dedup(zk).run(KEY, goes_on)).value == ["charged", {"id": 3}]

    run(main)


# The block form.


def test_a_block_completes_replays_and_fails_as_it_says() -> None:
    """`hold` is `run` for code that is already there."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk)
            async with dedup.hold(KEY, payload=b"x") as ctx:
                assert ctx.replay is None
                await ctx.verify()
                await ctx.multi([Create("/effect", b"1", zk.default_acl)])
                await ctx.complete({"id": 7})
            async with dedup.hold(KEY, payload=b"x") as ctx:
                assert ctx.replay.value == {"id": 7}
                assert ctx.replay.replayed
            async with dedup.hold("b") as ctx:
                await ctx.release()
            assert (await dedup.status("b")).state is KeyState.FREE
            async with dedup.hold("c") as ctx:
                await ctx.fail(PermanentError("no"))
            assert (await dedup.status("c")).state is KeyState.FAILED

    run(main)


def test_a_block_left_without_a_word_is_an_error_and_in_doubt() -> None:
    """A forgotten call must not look like "did not run"."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(MissingOutcomeError):
                async with Dedup(zk).hold(KEY):
                    pass
            assert nodes(ensemble) == ["started"]

    run(main)


def test_a_block_is_cancelled_when_the_session_is_lost() -> None:
    """It ends with SessionLostError, not with a cancellation that nobody asked for."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(SessionLostError):
                async with Dedup(zk).hold(KEY):
                    loop.call_later(1, ensemble.expire, zk.session_id)
                    await asyncio.sleep(100)
            await asyncio.sleep(1)  # and the task can go on as usual
            assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    run(main)


def test_the_gate_of_a_block_waits_while_suspended_and_raises_when_lost() -> None:
    """The block's own task is not driven; it asks."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            async with Dedup(zk).hold(KEY) as ctx:
                await ctx.gate()
                ensemble.shut(ensemble.servers[0])
                await asyncio.sleep(0.1)
                loop.call_later(3, ensemble.open, ensemble.servers[0])
                start = loop.time()
                await ctx.gate()
                assert loop.time() - start >= 3
                await ctx.complete()
            with pytest.raises(SessionLostError):
                async with Dedup(zk).hold("b") as ctx:
                    loop.sleep_machine(20)
                    await ctx.gate()

    run(main)


def test_the_decorator_takes_key_and_payload_from_the_arguments() -> None:
    """A handler stays a handler."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk)

            @dedup.idempotent(key=lambda req: req["id"], payload=lambda req: req["body"])
            async def handler(req: dict[str, str], ctx: Attempt) -> list[object]:
                return [req["body"], ctx.attempt]

            assert await handler({"id": "k", "body": "x"}) == ["x", 1]
            assert await handler({"id": "k", "body": "x"}) == ["x", 1]
            with pytest.raises(PayloadMismatchError):
                await handler({"id": "k", "body": "y"})

    run(main)


# Records, keys, logs.


def test_an_old_record_counts_as_expired_by_the_ensembles_own_stamps() -> None:
    """Section 11: no client's clock decides, and what cannot be told yet is kept."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        ensemble.unimplemented |= {OpCode.CREATE_TTL}
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, result_ttl=100.0)
            await dedup.run(KEY, returns(1))
            await asyncio.sleep(99)
            assert (await dedup.run(KEY, returns(2))).value == 1
            await asyncio.sleep(2)
            outcome = await dedup.run(KEY, returns(3))
            assert (outcome.value, outcome.replayed, outcome.attempt) == (3, False, 1)
            assert (await dedup.run(KEY, returns(4))).value == 3

    run(main)


def test_forget_deletes_the_records_and_the_empty_key() -> None:
    """An operator's answer to "let it run again"."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk)
            await dedup.run(KEY, returns(1))
            assert await dedup.forget(KEY)
            assert PARENT not in ensemble.leader.nodes
            assert not await dedup.forget(KEY)
            assert (await dedup.run(KEY, returns(2))).value == 2

    run(main)


def test_status_names_state_holder_and_contenders() -> None:
    """What `zabctl dedup --status` draws."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            dedup = Dedup(one)
            assert (await dedup.status(KEY)).state is KeyState.FREE
            calls = [
                asyncio.ensure_future(Dedup(zk).run(KEY, returns(1, after=3), payload=b"x"))
                for zk in (one, two)
            ]
            await asyncio.sleep(1)
            status = await Dedup(two).status(KEY, strict=True)
            assert status.state is KeyState.IN_PROGRESS
            assert {node.session_id for node in status.contenders} == {
                one.session_id,
                two.session_id,
            }
            assert status.holder == status.contenders[0]
            await asyncio.gather(*calls)
            assert (await dedup.status(KEY)).state is KeyState.COMPLETED

    run(main)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("req-42", "req-42"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("a/b c", "a%2Fb%20c"),
        ("ü", "%C3%BC"),
        ("~x_.-", "~x_.-"),
    ],
)
def test_keys_become_names_that_a_path_may_have(key: str, name: str) -> None:
    """Section 3: percent-encoded outside of the unreserved characters."""
    assert znode_name(key) == name


def test_keys_that_cannot_be_names_are_refused() -> None:
    """Before anything is written."""
    with pytest.raises(ValueError, match="empty"):
        znode_name("")
    with pytest.raises(ValueError, match="256 bytes"):
        znode_name("x" * 256)
    assert len(znode_name("x" * 256, hashed=True)) == 65


def test_every_transition_of_a_lock_znode_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Section 13: created, watch_fired*, acquired?, then one of released and session_expired."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            lost = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=100)))
            await asyncio.sleep(1)
            waiting = asyncio.ensure_future(Dedup(two).run(KEY, returns(2)))
            await asyncio.sleep(1)
            ensemble.expire(one.session_id)
            await asyncio.wait([lost, waiting])
            assert isinstance(lost.exception(), SessionLostError)

    with caplog.at_level(logging.INFO, "zabd.dedup"):
        run(main)
    by_node: dict[str, list[str]] = {}
    for record in caplog.records:
        if record.name == "zabd.dedup.lock":
            fields = vars(record)
            assert fields["idempotency_key"] == KEY
            assert fields["session_id"].startswith("0x")
            by_node.setdefault(fields["znode_path"], []).append(fields["event"])
    assert by_node == {
        f"{PARENT}/lock-0000000000": ["created", "acquired", "session_expired"],
        f"{PARENT}/lock-0000000002": ["created", "watch_fired", "acquired", "released"],
    }
    records = [vars(r).get("record_event") for r in caplog.records]
    assert "in_doubt" in records
    assert "committed" in records


def test_records_keep_fields_of_a_later_version_of_the_recipe() -> None:
    """Section 3.1: unknown fields are ignored when read and kept when rewritten."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        await die_in_the_middle(ensemble)
        async with connect(ensemble.hosts) as zk:
            data, _ = await zk.get(f"{PARENT}/started")
            record = json.loads(data or b"")
            assert record["v"] == 1
            assert set(record) >= {"attempt", "attempt_id", "payload_hash", "alg", "owner", "lock"}
            await zk.set(f"{PARENT}/started", json.dumps({**record, "new": 1}).encode())
            status = await Dedup(zk).status(KEY)
            assert status.started is not None
            assert json.loads(status.started.encode())["new"] == 1

    run(main)


def test_a_guarded_write_is_refused_once_the_lock_is_gone() -> None:
    """Section 8: inside of the ensemble the guard is the fence."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(FencedError):
                async with Dedup(zk).hold(KEY) as ctx:
                    await zk.delete(ctx.znode_path)
                    with pytest.raises(FencedError):
                        await ctx.multi([Create("/effect", b"", zk.default_acl)])
                    assert ctx.lost.is_set()
            assert await zk.exists("/effect") is None
            with pytest.raises(FencedError):
                async with Dedup(zk).hold("b") as ctx:
                    await zk.delete(ctx.znode_path)
                    await ctx.verify()

    run(main)


def test_nothing_is_left_in_the_client_when_all_calls_have_ended() -> None:
    """A service makes millions of calls on one client: a hook that stays is a leak."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            first = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=5)))
            await asyncio.sleep(1)
            for zk in (one, two):
                with pytest.raises(AlreadyInProgressError):
                    await Dedup(zk).run(KEY, returns(2), on_conflict="fail")
                with pytest.raises(AcquireTimeoutError):
                    await Dedup(zk).run(KEY, returns(2), acquire_timeout=1)
            waiting = asyncio.ensure_future(Dedup(one).run(KEY, returns(2)))
            await first
            assert (await waiting).replayed
            with pytest.raises(MissingOutcomeError):
                async with Dedup(one).hold("b"):
                    pass
            assert (await Dedup(two).run("b", returns(2))).attempt == 2
            await asyncio.sleep(1)
            for zk in (one, two):
                assert not zk._hooks
                assert not zk._background
                assert not len(zk._session.watches)

    run(main)


def test_callers_that_would_fail_at_once_do_not_fail_each_other_over_a_record() -> None:
    """Who only reads what is recorded works on nothing: all of them get it, at the same moment."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, on_conflict="fail")
            await dedup.run(KEY, returns(1), payload="a")
            outcomes = await asyncio.gather(
                *[dedup.run(KEY, returns(2), payload=payload) for payload in ("a", "a", "b")],
                return_exceptions=True,
            )
        assert [getattr(outcome, "value", None) for outcome in outcomes] == [1, 1, None]
        assert isinstance(outcomes[2], PayloadMismatchError)

    run(main)
