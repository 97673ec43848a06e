"""The fault table of the dedup recipe, row by row; docs/reference/dedup-faults.md has the rows.

Virtual time on scripted servers, but for row F3, which needs real ones, in the simulator.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from functools import partial
from random import Random

import pytest
from tests.client.dedup_world import (
    KEY,
    PARENT,
    begins,
    commits,
    cost,
    die_in_the_middle,
    events_of,
    figures,
    locks,
    locks_ever,
    nodes,
    outcomes_ever,
    returns,
)
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import (
    LOSE_REPLY,
    LOSE_REQUEST,
    PASS,
    Connection,
    ScriptedEnsemble,
)

from zabd.client import Client, connect
from zabd.client.clock import Clock
from zabd.client.events import Watcher
from zabd.client.identity import Identity
from zabd.client.metrics import (
    DEDUP_CLEANUP_PENDING,
    DEDUP_CONTAINER_RETRIES,
    DEDUP_LOST_REPLIES,
    EVENT_LOOP_LAG,
    SESSION_EXPIRED,
    WATCH_NOTIFICATIONS,
)
from zabd.client.recipes.bound import Bound
from zabd.client.recipes.dedup import (
    AcquireTimeoutError,
    AlreadyInProgressError,
    Attempt,
    ContainerChurnError,
    Dedup,
    KeyState,
    LockRevokedError,
    ResultTooLargeError,
    SessionLostError,
)
from zabd.client.watches import Table
from zabd.cluster_sim import Scenario, simulate
from zabd.model.errors import NoAuthError, SessionExpiredError
from zabd.model.ids import SessionId
from zabd.model.ops import (
    Create,
    Create2,
    Delete,
    GetEphemerals,
    Multi,
    Op,
    OpCode,
)
from zabd.model.results import Result
from zabd.replica.replica import Replica


@contextlib.contextmanager
def told(caplog: pytest.LogCaptureFixture) -> Iterator[list[object]]:
    """The recipe's log records of a block."""
    with caplog.at_level(logging.INFO, "zabd.dedup"):
        yield caplog.records  # type: ignore[misc]


# F1 to F7: lost replies, cancellations and deadlines on the way in.


@pytest.mark.parametrize("parent_exists", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_row_f01_a_create_that_was_applied_is_adopted(
    caplog: pytest.LogCaptureFixture, *, parent_exists: bool, old: bool
) -> None:
    """One lock znode was ever made; servers without getEphemerals are searched by list."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        if old:
            ensemble.unimplemented |= {OpCode.GET_EPHEMERALS}
        async with connect(ensemble.hosts) as zk:
            await zk.ensure_path(PARENT if parent_exists else "/dedup")
            await zk.ensure_path(f"{PARENT}2/lock-0000000000")  # a neighbour with our prefix
            ensemble.once(Create2 if parent_exists else Multi, LOSE_REPLY)
            assert (await Dedup(zk).run(KEY, returns(1))).value == 1
            assert locks_ever(ensemble) == 1
            assert figures(zk).values(DEDUP_LOST_REPLIES) == {("create", "adopted"): 1}
            assert len(ensemble.seen(GetEphemerals)) == 1

    with told(caplog) as records:
        run(main)
    assert events_of(records, "zabd.dedup.record", "record_event").count("adopted") == 1


async def _lost_create_beside_laggards(loop: FastLoop) -> int:
    """A create is applied, its reply lost, and the other servers do not know of it yet."""
    ensemble = ScriptedEnsemble(loop, 3)
    async with connect(ensemble.hosts) as zk:
        await zk.ensure_path(PARENT)
        for server in ensemble.servers:
            server.lagging = True
        ensemble.once(Create2, LOSE_REPLY)
        seen: list[list[str]] = []

        async def work(ctx: Attempt) -> int:
            seen.append(locks(ensemble))
            return 1

        await Dedup(zk).run(KEY, work)
        assert [len(names) for names in seen] == [1]
    return locks_ever(ensemble)


def test_row_f02_the_search_after_a_lost_create_is_behind_a_sync() -> None:
    """A follower that lags would show nothing, and a second znode would be made."""
    assert run(_lost_create_beside_laggards) == 1


def test_row_f02_without_the_sync_a_second_znode_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake that existing clients make: this test would see it."""

    async def no_sync(self: Bound, path: str) -> None:
        """The mutation."""

    monkeypatch.setattr(Bound, "sync", no_sync)
    with pytest.raises(AcquireTimeoutError):  # it waits for the znode that it does not know of
        run(_lost_create_beside_laggards)


def test_row_f03_a_create_that_arrives_late_on_the_old_connection_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bytes wait in a cut path while the session moves on, then the path is back."""
    once, receive = Bound.once, Replica.receive
    facts: dict[str, object] = {}
    reached: list[int] = []

    async def experiment(scenario: Scenario) -> None:
        await scenario.leader()

        async def cut_then_send(self: Bound, op: Op, *, watch: Watcher | None = None) -> Result:
            if isinstance(op, Create2) and "cut" not in facts:
                facts["cut"] = at = scenario.hosts.split(",").index(self.client.server) + 1
                scenario.partition([worker], [scenario.members[at]])
            return await once(self, op, watch=watch)

        def note_create(self: Replica, connection: int, chunk: bytes, now_ms: int) -> None:
            if f"{PARENT}/lock-".encode() in bytes(chunk):
                reached.append(id(self))
            receive(self, connection, chunk, now_ms)

        async def program(hosts: str) -> int:
            async with connect(hosts, timeout=2.0, connect_timeout=60) as zk:
                await zk.ensure_path(PARENT)

                async def work(ctx: Attempt) -> int:
                    scenario.heal()
                    await asyncio.sleep(4)  # what waited in the path has arrived by then
                    return ctx.sequence

                outcome = await Dedup(zk).run(KEY, work)
                facts["lost"] = figures(zk).values(DEDUP_LOST_REPLIES)
                return int(str(outcome.value))

        monkeypatch.setattr(Bound, "once", cut_then_send)
        monkeypatch.setattr(Replica, "receive", note_create)
        worker = scenario.spawn("worker", partial(program, scenario.hosts))
        assert await worker.result() == 0
        await asyncio.sleep(1)
        made = [path for path in scenario.level.checker._paths if path.startswith(f"{PARENT}/lock")]
        assert made == [f"{PARENT}/lock-0000000000"]
        assert len(set(reached)) == 2, "the late create has reached its server"

    simulate(experiment, seed=3)
    assert facts["lost"] == {("create", "resent"): 1}


@pytest.mark.parametrize("parent_exists", [False, True])
def test_row_f04_a_create_that_was_not_applied_is_sent_again(*, parent_exists: bool) -> None:
    """Created once."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as zk:
            await zk.ensure_path(PARENT if parent_exists else "/dedup")
            ensemble.once(Create2 if parent_exists else Multi, LOSE_REQUEST)
            assert (await Dedup(zk).run(KEY, returns(1))).value == 1
            assert locks_ever(ensemble) == 1
            assert figures(zk).value(DEDUP_LOST_REPLIES, ("create", "resent")) == 1
            assert nodes(ensemble) == ["result"]

    run(main)


def test_row_f05_cancelling_during_a_lost_create_leaves_no_znode() -> None:
    """F5: the next local caller proceeds once the rest is cleared away."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.ensure_path("/dedup")
            ensemble.once(Multi, LOSE_REPLY)
            ensemble.on_fault = lambda: ensemble.shut(ensemble.servers[0])
            call = asyncio.ensure_future(Dedup(zk).run(KEY, returns(1)))
            await wait_until(lambda: nodes(ensemble))
            call.cancel()
            await asyncio.sleep(0.1)
            assert call.cancelled()
            assert nodes(ensemble) == ["lock-0000000000", "started"]
            following = asyncio.ensure_future(Dedup(zk).run(KEY, returns(2)))
            await asyncio.sleep(0.1)
            ensemble.open(ensemble.servers[0])
            outcome = await following
            assert (outcome.value, outcome.attempt) == (2, 1)
            assert nodes(ensemble) == ["result"]

    run(main)


def test_row_f06_a_deadline_holds_while_suspended_and_leaves_no_znode() -> None:
    """F6: also while suspended, to within 100 ms."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            work = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=8)))
            await asyncio.sleep(1)
            start = loop.time()
            waiting = asyncio.ensure_future(Dedup(two).run(KEY, returns(2), acquire_timeout=3))
            await asyncio.sleep(1)
            ensemble.shut(ensemble.servers[0])
            with pytest.raises(AcquireTimeoutError):
                await waiting
            assert loop.time() - start == pytest.approx(3, abs=0.1)
            ensemble.open(ensemble.servers[0])
            await wait_until(lambda: len(locks(ensemble)) == 1)
            assert (await work).value == 1

    run(main)


def test_row_f07_a_lost_release_is_repeated() -> None:
    """F7: a lock znode that stays would block the key for a session's life."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            work = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=3)))
            await asyncio.sleep(1)
            ensemble.once(Delete, LOSE_REQUEST)
            with pytest.raises(AlreadyInProgressError):
                await Dedup(two, on_conflict="fail").run(KEY, returns(2))
            await wait_until(lambda: len(locks(ensemble)) == 1, 2)
            await work

    run(main)


# F8 to F15: sessions that end, holders that stop or die, commits without an answer.


def test_row_f08_a_waiter_is_told_when_its_own_session_ends() -> None:
    """F8: with no network as well."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        one, two = connect(ensemble.hosts), connect(ensemble.hosts)
        await one.start()
        await two.start()
        work = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=100)))
        await asyncio.sleep(1)
        waiting = asyncio.ensure_future(Dedup(two).run(KEY, returns(2)))
        await asyncio.sleep(1)
        start = loop.time()
        loop.black_hole = True
        for call in (work, waiting):
            with pytest.raises(SessionLostError):
                await call
        assert loop.time() - start < 12
        await one.close(timeout=0)
        await two.close(timeout=0)

    run(main)


def test_row_f09_a_stopped_holder_takes_no_further_step_and_cannot_commit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A waiter was promoted meanwhile; the first step of the old holder is a cancellation."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as one, connect(ensemble.hosts) as two:
            steps: list[float] = []
            frozen: list[Attempt] = []

            async def work(ctx: Attempt) -> None:
                frozen.append(ctx)
                while True:
                    steps.append(loop.time())
                    await asyncio.sleep(1)

            call = asyncio.ensure_future(Dedup(one).run(KEY, work))
            await asyncio.sleep(2.5)
            waiting = asyncio.ensure_future(Dedup(two).run(KEY, returns("second")))
            await asyncio.sleep(0.1)
            before, session = len(steps), one.session_id
            _freeze(loop, one, 15)
            ensemble.expire(session)
            assert (await waiting).value == "second"
            with pytest.raises(SessionLostError):
                await call
            assert len(steps) == before
            with pytest.raises(SessionExpiredError):
                await frozen[0]._ledger.guarded(
                    [Create(f"{PARENT}/result", b"late", one.default_acl)]
                )
            assert outcomes_ever(ensemble) == 1
            assert figures(one).value(SESSION_EXPIRED) == 1

    with told(caplog) as records:
        run(main)
    events = events_of(records, "zabd.dedup.lock", "event")
    assert events.count("session_expired") == 1


def _freeze(loop: FastLoop, zk: Client, seconds: float) -> None:
    """Let the client see time pass of which nobody else knows: it was stopped for so long."""
    clock = zk._clock
    assert clock is not None
    zk._clock = zk._driver._clock = _Shifted(clock, int(seconds * 1000), 0)  # type: ignore[union-attr]


class _Shifted:
    """A clock that is ahead of another."""

    def __init__(self, clock: Clock, boot_ms: int, wall_ms: int) -> None:
        self._clock = clock
        self._boot_ms = boot_ms
        self._wall_ms = wall_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._boot_ms

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self._wall_ms


def test_row_f10_without_network_the_function_is_cancelled_by_the_lease() -> None:
    """F10: a partitioned holder stops before the ensemble gives the key to another."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        zk = connect(ensemble.hosts, timeout=12.0)
        await zk.start()
        call = asyncio.ensure_future(Dedup(zk).run(KEY, returns(1, after=100)))
        await asyncio.sleep(1)
        loop.black_hole = True
        with pytest.raises(SessionLostError):
            await call
        assert not ensemble.expired
        await zk.close(timeout=0)

    run(main)


def test_row_f11_a_holder_that_dies_before_it_begins_leaves_the_key_free() -> None:
    """Nothing was begun, so nothing is in doubt: attempt 1."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            await one.ensure_path(PARENT)
            ensemble.once(begins, LOSE_REQUEST)
            ensemble.on_fault = lambda: ensemble.expire(one.session_id)
            with pytest.raises(SessionLostError):
                await Dedup(one).run(KEY, returns(1))
            assert (await Dedup(two).status(KEY)).state is KeyState.FREE
            outcome = await Dedup(two).run(KEY, returns(2))
            assert (outcome.value, outcome.attempt) == (2, 1)

    run(main)


def test_row_f12_the_next_owner_is_told_of_an_attempt_in_doubt() -> None:
    """F12 and P6: number, token, host and start time of who may have done it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        token = await die_in_the_middle(ensemble)
        async with connect(ensemble.hosts) as zk:

            async def work(ctx: Attempt) -> int:
                assert ctx.previous is not None
                assert (ctx.previous.attempt, ctx.previous.fencing_token) == (1, token)
                assert ctx.previous.owner["pid"]
                assert ctx.fencing_token > token
                return ctx.attempt

            outcome = await Dedup(zk).run(KEY, work, payload=b"x")
            assert (outcome.value, outcome.attempt) == (2, 2)

    run(main)


@pytest.mark.parametrize("action", [LOSE_REPLY, LOSE_REQUEST])
def test_row_f13_a_lost_commit_is_one_result_and_a_success(action: str) -> None:
    """F13: the caller hears of success, and nobody runs it again."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as zk:
            ensemble.once(commits, action)
            outcome = await Dedup(zk).run(KEY, returns(1))
            assert (outcome.value, outcome.replayed) == (1, False)
            assert nodes(ensemble) == ["result"]

    run(main)


@pytest.mark.parametrize(("action", "committed"), [(LOSE_REPLY, True), (LOSE_REQUEST, False)])
def test_row_f14_a_commit_lost_with_its_session_is_decided_by_the_record(
    action: str, *, committed: bool
) -> None:
    """F14: the commit may have landed before the session ended; only the record knows."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            ensemble.once(commits, action)
            ensemble.on_fault = lambda: ensemble.expire(zk.session_id)
            call = Dedup(zk).run(KEY, returns(1))
            if committed:
                assert (await call).value == 1
            else:
                with pytest.raises(SessionLostError) as caught:
                    await call
                assert caught.value.committed is False
                assert nodes(ensemble) == ["started"]

    run(main)


@pytest.mark.parametrize("tenths_ms", range(-25, 26, 5))
def test_row_f15_a_commit_that_races_with_the_expiry_wins_or_loses(tenths_ms: int) -> None:
    """Either the result is there, and the caller may know, or the next one is told of the doubt."""

    async def main(loop: FastLoop) -> tuple[bool, bool]:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            call = asyncio.ensure_future(Dedup(one).run(KEY, returns("first", after=5)))
            await asyncio.sleep(1)
            begun = next(at for at, _, op in ensemble.requests if isinstance(op, Multi))
            # The reply to the begin takes 1 ms, the function 5 s, the commit 1 ms to arrive.
            arrives = [at for at, _, op in ensemble.requests if isinstance(op, Multi)][-1] + 5.002
            assert arrives > begun
            expiry = arrives + tenths_ms / 10_000
            loop.call_at(expiry, ensemble.expire, one.session_id)
            await asyncio.wait([call])
            lost = call.exception()
            assert lost is None or (isinstance(lost, SessionLostError) and lost.committed is False)
            recorded = "result" in nodes(ensemble)
            following = await Dedup(two).run(KEY, returns("second"))
            assert following.replayed == recorded
            assert following.value == ("first" if recorded else "second")
            assert following.attempt == (1 if recorded else 2)
            assert outcomes_ever(ensemble) == 1
            return recorded, lost is None

    recorded, told_success = run(main)
    assert recorded == (tenths_ms > 0), "the expiry was before or behind the commit's arrival"
    if not recorded:
        assert not told_success


# F16 to F22: containers, dying waiters, operators, leaders, old servers, chroots.


@pytest.mark.parametrize("times", [1, 3, 100])
def test_row_f16_a_container_that_is_collected_in_between_is_made_again(times: int) -> None:
    """No error to the caller, unless it never ends."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        left = times

        def collect_first(connection: Connection, op: Op) -> str:
            nonlocal left
            if left and isinstance(op, Create2):
                left -= 1
                if PARENT in ensemble.leader.nodes:
                    ensemble.leader.nodes[PARENT].created = 1  # as if it had had a child
                ensemble.collect()
            return PASS

        async with connect(ensemble.hosts) as zk:
            await zk.create(PARENT, container=True, make_parents=True)
            ensemble.faults.append(collect_first)
            call = Dedup(zk).run(KEY, returns(1))
            if times > 16:
                with pytest.raises(ContainerChurnError):
                    await call
            else:
                assert (await call).value == 1
                assert figures(zk).value(DEDUP_CONTAINER_RETRIES) == times

    run(main)


def test_row_f17_the_waiter_in_the_middle_dies() -> None:
    """Its successor lists again, watches the next lower one, and does not own."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with (
            connect(ensemble.hosts) as one,
            connect(ensemble.hosts) as two,
            connect(ensemble.hosts) as three,
        ):
            runs: list[int] = []
            calls = []
            for zk in (one, two, three):
                work = returns(zk is one, after=8, runs=runs)
                calls.append(asyncio.ensure_future(Dedup(zk).run(KEY, work)))
                await asyncio.sleep(1)
            ensemble.expire(two.session_id)
            with pytest.raises(SessionLostError):
                await calls[1]
            await asyncio.sleep(0.5)
            assert len(runs) == 1
            assert not calls[2].done()
            [watched] = three._session.watches._tables[Table.DATA]
            assert watched == f"{PARENT}/{locks(ensemble)[0]}"
            assert (await calls[0]).value
            assert (await calls[2]).replayed
            assert sum(figures(three).values(WATCH_NOTIFICATIONS).values()) == 2

    run(main)


def test_row_f18_two_waiters_die_together_with_the_holder() -> None:
    """The one that is left owns, and has heard one event for each of its watches."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        fleet = [connect(ensemble.hosts) for _ in range(4)]
        for zk in fleet:
            await zk.start()
        calls = []
        for zk in fleet:
            work = returns(1, after=0 if zk is fleet[3] else 100)
            calls.append(asyncio.ensure_future(Dedup(zk, acquire_timeout=60).run(KEY, work)))
            await asyncio.sleep(1)
        for zk in fleet[:3]:
            ensemble.expire(zk.session_id)
        outcome = await calls[3]
        assert (outcome.value, outcome.replayed, outcome.attempt) == (1, False, 2)
        assert sum(figures(fleet[3]).values(WATCH_NOTIFICATIONS).values()) == 1
        await asyncio.wait(calls)
        assert all(isinstance(call.exception(), SessionLostError) for call in calls[:3])
        await asyncio.gather(*(zk.close() for zk in fleet))

    run(main)


def test_row_f19_somebody_deletes_the_holders_lock() -> None:
    """F19: with `watch_own` the holder hears of it at once, else when it reconnects or commits."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            call = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=9), watch_own=True))
            await asyncio.sleep(1)
            await two.delete(f"{PARENT}/lock-0000000000")
            start = loop.time()
            with pytest.raises(LockRevokedError):
                await call
            assert loop.time() - start < 0.1

            call = asyncio.ensure_future(Dedup(one).run("other", returns(1, after=9)))
            await asyncio.sleep(1)
            await two.delete("/dedup/other/lock-0000000000")
            ensemble.cut()
            with pytest.raises(LockRevokedError):
                await call

    run(main)


NEWER = [
    OpCode.CREATE_CONTAINER,
    OpCode.CREATE_TTL,
    OpCode.CREATE2,
    OpCode.MULTI_READ,
    OpCode.GET_EPHEMERALS,
]


@pytest.mark.parametrize("missing", [*([opcode] for opcode in NEWER), NEWER], ids=str)
def test_row_f21_a_server_without_the_newer_requests_will_do(missing: list[OpCode]) -> None:
    """Each of them is asked for once on a connection, and again on the next."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        ensemble.unimplemented |= set(missing)

        def asked() -> int:
            return sum(_mentions(op, missing) for _, _, op in ensemble.requests)

        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            for round_ in (1, 2):
                start = asked()
                for number in range(4):
                    key = f"{KEY}-{round_}-{number}"
                    if number % 2:
                        await one.ensure_path(f"/dedup/{key}")
                    first = asyncio.ensure_future(Dedup(one).run(key, returns(1, after=1)))
                    await asyncio.sleep(0.5)
                    assert (await Dedup(two).run(key, returns(2))).value == 1
                    assert not (await first).replayed
                assert asked() - start <= 2 * len(missing)  # two clients
                ensemble.cut()
                await asyncio.sleep(1)

    run(main)


def test_row_f21_a_server_that_closes_the_connection_is_not_asked_twice() -> None:
    """Very old servers do so when they cannot read a request."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        kinds = [OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL]

        def old(connection: Connection, op: Op) -> str:
            return LOSE_REQUEST if _mentions(op, kinds) else PASS

        ensemble.faults.append(old)
        async with connect(ensemble.hosts) as zk:
            await zk.ensure_path("/dedup")
            assert (await Dedup(zk).run(KEY, returns(1))).value == 1
            assert (await Dedup(zk).run(f"{KEY}-2", returns(1))).value == 1
            refused = [op for _, _, op in ensemble.requests if _mentions(op, kinds)]
            assert len(refused) == 1

    run(main)


def _mentions(op: object, opcodes: list[OpCode]) -> bool:
    parts = op.ops if isinstance(op, Multi) else (op,)
    return any(getattr(part, "opcode", None) in opcodes for part in parts)


def test_row_f22_a_chroot_is_not_seen_by_the_user_of_the_recipe() -> None:
    """F22: paths in errors and logs are the user's."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(f"{ensemble.hosts}/app") as zk:
            await zk.ensure_path("/")
            async with Dedup(zk).hold(KEY) as ctx:
                assert ctx.znode_path == f"{PARENT}/lock-0000000000"
                await ctx.complete()
            assert f"/app{PARENT}/result" in ensemble.leader.nodes

    run(main)


# F23 to F28: blocked loops, large results, many waiters, mixed fleets, ACLs, wrong clocks.


def test_row_f23_a_function_that_blocks_for_half_a_timeout_keeps_the_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And the lag is warned of and counted: it was above a third."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            session = zk.session_id

            async def work(ctx: Attempt) -> int:
                await asyncio.sleep(3.9)  # the next heartbeat is due just behind this
                loop.sleep_machine(6)
                await asyncio.sleep(0.1)
                await ctx.verify()
                return 1

            assert (await Dedup(zk).run(KEY, work)).value == 1
            assert zk.session_id == session
            assert figures(zk).histogram(EVENT_LOOP_LAG).count == 1

    with caplog.at_level(logging.WARNING, "zabd.client"):
        run(main)
    assert "the event loop was held up" in caplog.text


def test_row_f24_a_value_too_large_is_left_out_but_suppression_is_kept() -> None:
    """F24: the caller hears of it after the commit."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            with pytest.raises(ResultTooLargeError):
                await Dedup(zk).run(KEY, returns("x" * 100_000))
            outcome = await Dedup(zk).run(KEY, returns(1))
            assert (outcome.value, outcome.replayed, outcome.record.omitted) == (None, True, True)
            with pytest.raises(TypeError):
                await Dedup(zk).run("b", returns(object()))
            assert (await Dedup(zk).run("b", returns(1))).replayed

    run(main)


def test_row_f25_two_hundred_waiters_replay_with_one_wake_each() -> None:
    """Requests grow with the waiters, not with their square, and no znode is left."""

    async def drain(loop: FastLoop, count: int) -> int:
        ensemble = ScriptedEnsemble(loop)
        fleet = [connect(ensemble.hosts, timeout=40.0) for _ in range(count + 1)]
        for zk in fleet:
            await zk.start()
        calls = []
        for zk in fleet:
            work = returns(1, after=30)
            calls.append(asyncio.ensure_future(Dedup(zk, acquire_timeout=300).run(KEY, work)))
            await asyncio.sleep(0.05)
        await wait_until(lambda: len(locks(ensemble)) == count + 1)
        start = len(ensemble.requests)
        outcomes = await asyncio.gather(*calls)
        await wait_until(lambda: nodes(ensemble) == ["result"])
        assert sum(outcome.replayed for outcome in outcomes) == count
        for zk in fleet[1:]:
            assert sum(figures(zk).values(WATCH_NOTIFICATIONS).values()) == 1
            assert figures(zk).value(DEDUP_CLEANUP_PENDING) == 0
        reads, writes = cost(ensemble, start)
        await asyncio.gather(*(zk.close() for zk in fleet))
        return reads + writes

    assert run(partial(drain, count=20)) == 2 * 20 + 1
    assert run(partial(drain, count=200)) == 2 * 200 + 1


def test_row_f26_a_hand_written_client_is_excluded_and_excludes() -> None:
    """F26: the runbook's raw calls and the recipe see each other's lock znodes."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as raw, connect(ensemble.hosts) as zk:
            mine = await raw.create(
                f"{PARENT}/lock-", b"hash", ephemeral=True, sequential=True, make_parents=True
            )
            call = asyncio.ensure_future(Dedup(zk).run(KEY, returns(1, after=2)))
            await asyncio.sleep(1)
            assert not call.done()
            await raw.delete(mine)
            again = await raw.create(f"{PARENT}/lock-", b"", ephemeral=True, sequential=True)
            await asyncio.sleep(1)
            assert min(await raw.get_children(PARENT)) != again.rpartition("/")[2]
            await call
            assert min(await raw.get_children(PARENT)) == again.rpartition("/")[2]

    run(main)


def test_row_f27_a_result_that_may_not_be_read_is_an_error_and_nothing_runs() -> None:
    """To run again would be wrong if it holds an outcome, and nobody can tell."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        runs: list[int] = []
        async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
            await Dedup(one).run(KEY, returns(1))
            ensemble.unreadable.add(f"{PARENT}/result")
            with pytest.raises(NoAuthError):
                await Dedup(two).run(KEY, returns(2, runs=runs))

            # The same for a waiter, which finds it so only when the holder has gone.
            ensemble.unreadable.clear()
            await Dedup(one).forget(KEY)
            call = asyncio.ensure_future(Dedup(one).run(KEY, returns(1, after=3)))
            await asyncio.sleep(1)
            waiting = asyncio.ensure_future(Dedup(two).run(KEY, returns(2, runs=runs)))
            await asyncio.sleep(1)
            ensemble.unreadable.add(f"{PARENT}/result")
            await call
            with pytest.raises(NoAuthError):
                await waiting
            await wait_until(lambda: nodes(ensemble) == ["result"])
            assert not runs

    run(main)


DAY_MS = 86_400_000


@pytest.mark.parametrize("ttl_nodes", [True, False])
def test_row_f28_a_wall_clock_that_is_off_by_a_day_changes_nothing(*, ttl_nodes: bool) -> None:
    """Every request of every client is the same, but for the times that records show to people."""

    async def history(loop: FastLoop, shift_ms: int) -> list[object]:
        ensemble = ScriptedEnsemble(loop)
        if not ttl_nodes:
            ensemble.unimplemented |= {OpCode.CREATE_TTL}
        shown: list[object] = []
        clock = _Shifted(_LoopTime(loop), 0, shift_ms)
        identity = Identity("host", 1)
        rng = Random(7)
        async with connect(ensemble.hosts, clock=clock, identity=identity, rng=rng) as zk:
            dedup = Dedup(zk, result_ttl=100.0, started_ttl=60.0)
            shown.append((await dedup.run(KEY, returns(1))).replayed)
            await asyncio.sleep(90)
            shown.append((await dedup.run(KEY, returns(2))).replayed)
            await asyncio.sleep(20)
            ensemble.collect()
            shown.append((await dedup.run(KEY, returns(3))).value)
            for name in ("doubt", "doubt", "older"):
                with pytest.raises(asyncio.CancelledError):
                    await _cancelled(dedup, name)
            await asyncio.sleep(70)
            ensemble.collect()
            shown.append((await dedup.run("older", returns(4))).attempt)
            shown.append(str((await dedup.status(KEY)).state))
            shown.append((await dedup.sweep()).records)
        return [*shown, *(type(op).__name__ for _, _, op in ensemble.requests)]

    right = run(partial(history, shift_ms=0))
    assert right[:5] == [False, True, 3, 1, "COMPLETED"]
    assert run(partial(history, shift_ms=DAY_MS)) == right
    assert run(partial(history, shift_ms=-DAY_MS)) == right


async def _cancelled(dedup: Dedup, key: str) -> None:
    call = asyncio.ensure_future(dedup.run(key, returns(1, after=9)))
    await asyncio.sleep(1)
    call.cancel()
    await call


class _LoopTime:
    """The loop's own time, as a clock."""

    def __init__(self, loop: FastLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return self._loop.boot_time_ms()

    def wall_ms(self) -> int:
        return self._loop.boot_time_ms()


# Section 4: the guard is bound to the session.


async def _zombie_writes_through_a_later_owners_lock(loop: FastLoop) -> list[str]:
    """A key made anew numbers from 0 again, and the zombie's client has moved to a new session."""
    ensemble = ScriptedEnsemble(loop)
    async with connect(ensemble.hosts) as one, connect(ensemble.hosts) as two:
        with pytest.raises(SessionLostError):
            async with Dedup(one).hold(KEY) as zombie:
                ensemble.expire(one.session_id)
                await asyncio.sleep(100)
        await one.wait_connected()
        await two.delete(PARENT, recursive=True)
        async with Dedup(two).hold(KEY) as owner:
            assert owner.znode_path == zombie.znode_path
            ops = [Create(f"{PARENT}/result", b"stale", two.default_acl)]
            with contextlib.suppress(SessionExpiredError):
                await zombie._ledger.guarded(ops)
            seen = nodes(ensemble)
            await owner.release()
    return seen


def test_a_zombie_does_not_write_through_a_later_owners_lock_of_the_same_path() -> None:
    """P2: what was queued for one session never crosses to the next."""
    assert run(_zombie_writes_through_a_later_owners_lock) == ["lock-0000000000", "started"]


def test_without_the_session_binding_a_zombie_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation that the test above is there for."""
    call = Client.call

    async def unbound(
        self: Client, op: Op, *, session_id: SessionId | None = None, **options: object
    ) -> Result:
        return await call(self, op, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Client, "call", unbound)
    assert "result" in run(_zombie_writes_through_a_later_owners_lock)
