"""The records of the dedup recipe: what keeps them, phases, doubt, sweeps, operators' wishes."""

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Coroutine
from functools import partial

import pytest
from tests.client.dedup_world import KEY, PARENT, die_in_the_middle, nodes, returns
from tests.client.fast_loop import FastLoop, run
from tests.client.real_port import real_port
from tests.client.scripted_server import LOSE_REPLY, LOSE_REQUEST, ScriptedEnsemble

from zabd.client import Client, ForkedClientError, SyncClient, connect
from zabd.client.recipes import SyncDedup
from zabd.client.recipes.dedup import (
    AcquireTimeoutError,
    Attempt,
    Completed,
    Dedup,
    Fingerprint,
    InDoubtError,
    KeyState,
    NotExecuted,
    PayloadMismatchError,
    RecordUnreadableError,
    ReplayedFailureError,
    SessionLostError,
)
from zabd.client.recipes.dedup.records import JsonCodec
from zabd.model.errors import NodeExistsError
from zabd.model.ops import Create, CreateContainer, CreateTtl, Delete, Multi, Op, OpCode, SetData

OVERFLOWED = -1_073_741_819  # ten digits, and a number of changes that an int still holds


def checkpoints(op: Op) -> bool:
    """Whether a request notes how far the work has come."""
    return isinstance(op, Multi) and any(
        isinstance(part, SetData) and b'"phase":1' in (part.data or b"") for part in op.ops
    )


# Containers and TTLs.


def test_parents_are_containers_and_records_have_a_time_to_live() -> None:
    """So that the ensemble itself clears up, when it may: the base stays."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, result_ttl=100.0, started_ttl=50.0)
            await dedup.run(KEY, returns(1))
            async with connect(ensemble.hosts) as two:
                call = asyncio.ensure_future(
                    Dedup(two, started_ttl=50.0).run("b", returns(1, after=99))
                )
                await asyncio.sleep(1)
                call.cancel()
                await asyncio.wait([call])
            parts = [part for op in ensemble.seen(Multi) for part in op.ops]  # type: ignore[union-attr]
            assert sum(isinstance(part, CreateContainer) for part in parts) >= 2
            ttls = {part.path: part.ttl for part in parts if isinstance(part, CreateTtl)}
            assert ttls[f"{PARENT}/result"] == 100_000
            assert ttls["/dedup/b/started"] == 50_000
            await asyncio.sleep(60)
            ensemble.collect()
            assert (await dedup.run(KEY, returns(2))).replayed
            assert (await dedup.status("b")).state is KeyState.FREE
            await asyncio.sleep(60)
            ensemble.collect()
            ensemble.collect()
            assert sorted(ensemble.leader.nodes) == ["/", "/dedup"]

    run(main)


def test_a_record_that_is_still_there_counts_where_the_ensemble_ends_it() -> None:
    """Retention is at least the TTL: no client takes a TTL znode for over."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, result_ttl=10.0)
            await dedup.run(KEY, returns(1))
            await asyncio.sleep(100)
            assert (await dedup.run(KEY, returns(2))).value == 1

    run(main)


def test_a_journal_is_kept_alive_while_its_owner_works() -> None:
    """Three touches within its time: it cannot be collected under a living owner."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:

            async def work(ctx: Attempt) -> int:
                for second in range(100):
                    await asyncio.sleep(1)
                    if second == 50:
                        await ctx.checkpoint("half")
                    ensemble.collect()
                    assert "started" in nodes(ensemble)
                return 1

            assert (await Dedup(zk, started_ttl=6.0).run(KEY, work)).value == 1
            await asyncio.sleep(10)
            assert nodes(ensemble) == ["result"]
            sets = [op for op in ensemble.seen(Multi) if isinstance(op.ops[-1], SetData)]  # type: ignore[union-attr]
            assert 45 <= len(sets) <= 51

    run(main)


def test_a_journal_that_ran_out_does_not_stop_the_commit() -> None:
    """5.7: the outcome is recorded without the op that would end it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            async with Dedup(zk).hold(KEY) as ctx:
                await zk.delete(f"{PARENT}/started")
                await ctx.complete("late")
            assert (await Dedup(zk).run(KEY, returns(1))).value == "late"

    run(main)


# Phases.


@pytest.mark.parametrize("action", ["pass", LOSE_REPLY, LOSE_REQUEST])
def test_a_checkpoint_with_ops_happens_once_whatever_is_lost(action: str) -> None:
    """The ops would fail the second time; the next phase follows."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:

            async def work(ctx: Attempt) -> int:
                if action != "pass":
                    ensemble.once(checkpoints, action)
                await ctx.checkpoint("one", 1, [Create("/once", b"", zk.default_acl)])
                await ctx.checkpoint("two", 2)
                with pytest.raises(NodeExistsError):
                    await ctx.checkpoint("three", 3, [Create("/once", b"", zk.default_acl)])
                started = (await Dedup(zk).status(KEY)).started
                assert started is not None
                assert (started.recovery_point, started.phase) == ("two", 2)
                return 1

            assert (await Dedup(zk).run(KEY, work)).value == 1

    run(main)


# Doubt.


def test_a_clean_failure_does_not_hide_an_earlier_doubt() -> None:
    """Attempt 2 did nothing; attempt 1 may have: the next one is told of that one still."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        token = await die_in_the_middle(ensemble)
        async with connect(ensemble.hosts) as zk:

            async def breaks(ctx: Attempt) -> None:
                assert ctx.attempt == 2
                raise OSError("no route")

            for _ in range(3):
                with pytest.raises(OSError, match="no route"):
                    await Dedup(zk, max_attempts=3).run(KEY, breaks, payload=b"x")
            with pytest.raises(InDoubtError) as caught:
                await Dedup(zk, on_in_doubt="fail").run(KEY, returns(1), payload=b"x")
            assert (caught.value.previous.attempt, caught.value.previous.fencing_token) == (
                1,
                token,
            )
            assert await Dedup(zk).resolve(KEY, Completed("by hand"))
            assert not await Dedup(zk).resolve(KEY, Completed("twice"))

    run(main)


def test_resolve_takes_only_a_verdict_and_settles_only_doubt() -> None:
    """A key that nobody has used stays unused."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(TypeError, match="expected Completed"):
                await Dedup(zk).resolve(KEY, "done")  # type: ignore[arg-type]
            assert not await Dedup(zk).resolve(KEY, Completed(1))
            assert not await Dedup(zk).forget(KEY)
            assert (await Dedup(zk).status(KEY, strict=True)).state is KeyState.FREE
            assert "/dedup" not in ensemble.leader.nodes

    run(main)


def test_an_operator_waits_like_anybody_else() -> None:
    """And hears by the recipe's own names that it was in vain, or that its session is over."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            call = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=30)))
            await asyncio.sleep(1)
            with pytest.raises(AcquireTimeoutError):
                await Dedup(two, acquire_timeout=2).forget(KEY)
            forgetting = asyncio.ensure_future(Dedup(two).forget(KEY))
            await asyncio.sleep(1)
            ensemble.expire(two.session_id)
            with pytest.raises(SessionLostError):
                await forgetting
            await call
            assert await Dedup(two).forget(KEY)

    run(main)


# Sweeps.


async def _old_keys(ensemble: ScriptedEnsemble, zk: Client) -> Dedup:
    """What a server without containers and TTLs has after a while."""
    ensemble.unimplemented |= {OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL}
    dedup = Dedup(zk, result_ttl=50.0)
    for number in range(5):
        await dedup.run(f"old-{number}", returns(1))
    await zk.create("/dedup/empty")
    await zk.create("/dedup/foreign/result", b"not a record", make_parents=True)
    call = asyncio.ensure_future(dedup.run("doubt", returns(1, after=9)))
    await asyncio.sleep(1)
    call.cancel()
    await asyncio.wait([call])
    await asyncio.sleep(60)
    await dedup.run("new", returns(1))
    return dedup


def test_a_sweep_removes_what_is_over_page_by_page() -> None:
    """Records by the ensemble's stamps, empty parents; what somebody works on stays."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as two:
            dedup = await _old_keys(ensemble, zk)
            other = Dedup(two, result_ttl=50.0)
            assert (await other.run("new", returns(2))).replayed  # which shows what time it is
            busy = asyncio.ensure_future(other.run("old-3", returns(2, after=30)))
            await asyncio.sleep(1)
            start = loop.time()
            first = await dedup.sweep(limit=3, rate=10.0)
            assert (first.keys, first.records, first.parents) == (3, 1, 2)
            assert first.after == "foreign"
            rest = await dedup.sweep(limit=100, rate=10.0, after=first.after)
            assert (rest.keys, rest.records, rest.parents, rest.after) == (6, 4, 4, None)
            assert loop.time() - start == pytest.approx(0.9, abs=0.2)
            left = sorted(ensemble.leader.nodes["/dedup"].children)
            assert left == ["foreign", "new", "old-3"]
            assert (await busy).value == 2
            with pytest.raises(ValueError, match="limit=0"):
                await dedup.sweep(limit=0)

    run(main)


def test_a_sweep_leaves_alone_what_the_ensemble_ends_itself() -> None:
    """Containers and TTL znodes, however old."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, result_ttl=5.0)
            assert (await dedup.sweep()).keys == 0
            await dedup.run(KEY, returns(1))
            await asyncio.sleep(60)
            swept = await dedup.sweep()
            assert (swept.keys, swept.records, swept.parents) == (1, 0, 0)
            assert nodes(ensemble) == ["result"]

    run(main)


# Choices.


def test_a_token_epoch_makes_the_token_a_pair() -> None:
    """For a resource whose ensemble was made anew: pairs compare as they should."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            async with Dedup(zk).hold("a") as before:
                await before.complete()
            async with Dedup(zk, token_epoch=2).hold("b") as after:
                await after.complete()
            assert before.fence == (0, before.fencing_token)
            assert after.fence == (2, after.fencing_token)
            assert before.fence < after.fence
            record = (await Dedup(zk).status("b")).record
            assert record is not None
            assert record.token_epoch == 2

    run(main)


def test_a_fingerprint_of_ones_own_is_compared_by_its_algorithm_too() -> None:
    """Section 3: the function is configurable."""

    def md5(payload: object) -> Fingerprint:
        digest = hashlib.md5(str(payload).encode(), usedforsecurity=False)
        return Fingerprint(digest.hexdigest(), "md5")

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            dedup = Dedup(zk, fingerprint=md5)
            await dedup.run(KEY, returns(1), payload=7)
            assert (await dedup.run(KEY, returns(1), payload=7)).record.alg == "md5"
            with pytest.raises(PayloadMismatchError):
                await dedup.run(KEY, returns(1), payload=8)
            with pytest.raises(PayloadMismatchError) as caught:
                await Dedup(zk).run(KEY, returns(1), payload=7)
            assert caught.value.reason == "alg"

    run(main)


class Reversing(JsonCodec):
    """A codec of somebody's own."""

    name = "reversing"

    def encode(self, value: object) -> object:
        return str(value)[::-1]

    def decode(self, stored: object) -> object:
        return str(stored)[::-1]


def test_a_value_is_read_by_the_codec_that_wrote_it_or_not_at_all() -> None:
    """Another codec would make another value of it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await Dedup(zk, codec=Reversing()).run(KEY, returns("abc"))
            data, _ = await zk.get(f"{PARENT}/result")
            assert json.loads(data or b"")["value"] == "cba"
            assert (await Dedup(zk, codec=Reversing()).run(KEY, returns(1))).value == "abc"
            with pytest.raises(RecordUnreadableError, match="codec reversing"):
                await Dedup(zk).run(KEY, returns(1))

    run(main)


def test_the_owner_of_a_record_is_named_by_session_client_host_and_process() -> None:
    """Section 3.1: for people who ask who it was."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            outcomes = [await Dedup(zk).run(key, returns(1)) for key in ("a", "b")]
            owners = [outcome.record.owner for outcome in outcomes]
            assert owners[0] == owners[1]
            assert set(owners[0]) == {"session", "client_id", "host", "pid"}
            assert [o.record.attempt_id[14] for o in outcomes] == ["4", "4"]  # uuids, version 4

    run(main)


def test_a_parent_whose_counter_overflowed_is_made_anew_when_it_is_empty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Section 3: the log says so at level error."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        ensemble.unimplemented |= {OpCode.CREATE_CONTAINER}
        async with connect(ensemble.hosts) as zk:
            await zk.create(PARENT, make_parents=True)
            for tree in (ensemble.leader, ensemble.servers[0].tree):
                tree.nodes[PARENT].created = OVERFLOWED
            async with Dedup(zk).hold(KEY) as ctx:
                assert ctx.sequence == OVERFLOWED
                await ctx.release()
            assert PARENT not in ensemble.leader.nodes
            async with Dedup(zk).hold(KEY) as ctx:
                assert ctx.sequence == 0
                await ctx.complete()

    run(main)
    assert "overflowed" in caplog.text


def test_a_failure_is_replayed_by_its_type_and_data() -> None:
    """`fail` takes any exception; its name is the type."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            async with Dedup(zk).hold(KEY) as ctx:
                await ctx.fail(KeyError("x"))
            with pytest.raises(ReplayedFailureError, match="KeyError"):
                await Dedup(zk).run(KEY, returns(1))

    run(main)


def test_a_forked_child_is_refused_at_once() -> None:
    """Even where the parent's call holds the key: the child must not wait in its queue."""
    with real_port() as port, SyncClient(port.hosts) as zk:
        dedup = SyncDedup(zk)
        asynchronous = dedup._dedup
        with dedup.hold(KEY) as ctx:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:  # no test runner may go on here, whatever happens
                said = [_asked(partial(_ran, ask)) for ask in _questions(asynchronous)]
                os.write(writing, ",".join([*said, _asked(partial(dedup.status, KEY))]).encode())
                os._exit(0)
            os.close(writing)
            assert os.read(reading, 100) == b"refused,refused,refused,refused,refused,refused"
            os.close(reading)
            os.waitpid(child, 0)
            ctx.complete()


def _questions(dedup: Dedup) -> list[Callable[[], Coroutine[object, object, object]]]:
    return [
        partial(dedup.run, KEY, returns(1)),
        partial(dedup.status, KEY),
        partial(dedup.forget, KEY),
        partial(dedup.resolve, KEY, Completed(1)),
        partial(dedup.sweep),
    ]


def _ran(ask: Callable[[], Coroutine[object, object, object]]) -> None:
    asyncio.run(ask())


def _asked(ask: Callable[[], object]) -> str:
    try:
        ask()
    except ForkedClientError:
        return "refused"
    except BaseException as error:  # noqa: BLE001 - told to the parent
        return repr(error)
    return "it worked"


def test_a_lost_reply_to_the_end_does_not_end_who_came_next() -> None:
    """With the key's znode collected and made again, its lock has the name that ours had."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            await zk.ensure_path("/dedup")

            async def not_done(_: Attempt) -> None:
                raise NotExecuted

            def next_one_comes() -> None:
                ensemble.collect()
                assert PARENT not in ensemble.leader.nodes
                takes_all = ensemble.seen(Multi)[0]
                ensemble.commit(other.session_id, list(takes_all.ops))

            def ends(op: Op) -> bool:
                return isinstance(op, Multi) and isinstance(op.ops[-1], Delete)

            ensemble.on_fault = next_one_comes
            ensemble.once(ends, LOSE_REPLY)
            with pytest.raises(NotExecuted):
                await Dedup(zk).run(KEY, not_done)
            assert nodes(ensemble) == ["lock-0000000000", "started"]

    run(main)
