"""Claims about one session against scripted servers, in virtual time."""

import asyncio
import gc
import struct
from collections.abc import Callable
from contextvars import Context

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import LOSE_REPLY, LOSE_REQUEST, ScriptedEnsemble

from zabd.client import Client, EventStream, SessionState, StateChange, connect
from zabd.client.effects import Became, Failed, Replied
from zabd.client.requests import OUTSTANDING_MAX
from zabd.client.session import Session
from zabd.client.watches import REARM_BYTES_MAX
from zabd.model.errors import (
    AuthFailedError,
    ConnectionLossError,
    ErrorCode,
    LocalProtocolError,
    OperationTimeoutError,
    SessionExpiredError,
)
from zabd.model.ops import (
    AddWatch,
    Auth,
    CloseSession,
    Create,
    GetData,
    Multi,
    Op,
    Ping,
    SetData,
    SetWatches,
    SetWatches2,
)
from zabd.model.session import ConnectRequest, ConnectResponse
from zabd.model.watch_events import EventType, WatchEvent
from zabd.wire.frames import frame
from zabd.wire.replies import encode_connect_response, reply


def states(client: Client) -> list[SessionState]:
    """Collect the client's state changes as they happen."""
    seen: list[SessionState] = []
    client.on_transition(lambda change: seen.append(change.state))
    return seen


def test_the_first_ping_comes_after_a_third_of_the_timeout_without_traffic() -> None:
    """Early enough to find a dead server in time, late enough to cost nothing on a busy session."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0):
            start = loop.time()
            await asyncio.sleep(11.9)
            pings = [at - start for at, _, op in ensemble.requests if isinstance(op, Ping)]
            assert pings == [pytest.approx(4.0, abs=0.01), pytest.approx(8.0, abs=0.02)]

    run(main)


def test_a_timer_that_is_due_at_once_may_be_an_ordinary_handle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As uvloop's are: the session must not stand still for want of a time in it."""
    call_at = FastLoop.call_at

    def as_uvloop(
        loop: FastLoop, when: float, callback: Callable[..., object], *args: object, **more: Context
    ) -> asyncio.Handle:
        if when - loop.time() < 0.0005:
            return loop.call_soon(callback, *args, **more)
        return call_at(loop, when, callback, *args, **more)

    monkeypatch.setattr(FastLoop, "call_at", as_uvloop)

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            seen: list[SessionState] = []

            def stalls(change: StateChange) -> None:
                seen.append(change.state)
                if change.state is SessionState.SUSPENDED:
                    loop.sleep_machine(20)

            zk.on_transition(stalls)
            loop.black_hole = True
            await wait_until(lambda: len(seen) == 2)
            assert seen == [SessionState.SUSPENDED, SessionState.LOST]
            await zk.close(timeout=0)

    run(main)


def test_traffic_puts_off_the_ping() -> None:
    """A request tells the server as much as a ping would."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            for _ in range(10):
                await asyncio.sleep(3)
                await zk.exists("/a")
            assert not ensemble.seen(Ping)

    run(main)


def test_a_silent_server_is_left_after_two_thirds_and_the_session_lives_on_elsewhere() -> None:
    """A third of the timeout remains to find another server before the ensemble expires us."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            await zk.create("/mine", ephemeral=True)
            before = zk.session_id
            seen = states(zk)
            first = next(s for s in ensemble.servers if s.name == zk.server)
            first.silent = True
            start = loop.time()
            await asyncio.sleep(7.9)
            assert not seen
            await asyncio.sleep(0.2)
            assert loop.time() - start == pytest.approx(8.1)
            assert seen == [SessionState.SUSPENDED, SessionState.CONNECTED]
            assert zk.session_id == before
            assert zk.server != first.name
            assert await zk.exists("/mine") is not None

    run(main)


def test_a_closed_connection_is_replaced_at_once_with_the_same_session() -> None:
    """The normal sign that a server cannot serve is a close, and the next server may."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts) as zk:
            session = zk.session_id
            start = loop.time()
            ensemble.cut()
            await zk.exists("/a")
            assert loop.time() - start < 0.1
            assert zk.session_id == session
            assert len(ensemble.sessions) == 1

    run(main)


def test_a_read_is_repeated_after_a_lost_connection() -> None:
    """Reading twice is the same as reading once."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.create("/a", b"1")
            ensemble.once(GetData, LOSE_REPLY)
            assert (await zk.get("/a")).data == b"1"
            assert len(ensemble.seen(GetData)) == 2

    run(main)


@pytest.mark.parametrize(("action", "made"), [(LOSE_REPLY, True), (LOSE_REQUEST, False)])
def test_a_lost_write_is_reported_as_maybe_applied_and_never_repeated(
    action: str, *, made: bool
) -> None:
    """The client cannot tell the two cases apart, so it must not act as if it could."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            ensemble.once(Create, action)
            with pytest.raises(ConnectionLossError) as caught:
                await zk.create("/a")
            assert caught.value.maybe_applied
            assert (caught.value.operation, caught.value.path) == ("create", "/a")
            assert caught.value.session_id == zk.session_id
            assert (await zk.exists("/a") is not None) is made
            assert len(ensemble.seen(Create)) == 1

    run(main)


def test_what_waits_while_suspended_is_sent_after_the_reconnect_in_order() -> None:
    """A short outage costs time, not an error, for what was never sent."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.create("/a")
            [server] = ensemble.servers
            ensemble.shut(server)
            await asyncio.sleep(0.1)
            assert zk.state is SessionState.SUSPENDED
            writes = [asyncio.ensure_future(zk.set("/a", b"%d" % n)) for n in range(3)]
            await asyncio.sleep(1)
            ensemble.open(server)
            assert [stat.version for stat in await asyncio.gather(*writes)] == [1, 2, 3]

    run(main)


def test_an_expired_session_is_lost_and_nothing_of_it_crosses_to_the_next() -> None:
    """A write queued under one session may rest on locks that the next one does not hold."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=6.0) as zk:
            await zk.create("/a")
            old = zk.session_id
            seen = states(zk)
            [server] = ensemble.servers
            ensemble.shut(server)
            await asyncio.sleep(0.1)
            queued = asyncio.ensure_future(zk.set("/a", b"late"))
            ensemble.expire(old)
            await asyncio.sleep(0.1)
            ensemble.open(server)
            with pytest.raises(SessionExpiredError) as caught:
                await queued
            assert not caught.value.maybe_applied
            await zk.wait_connected(timeout=5)
            assert seen == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
            assert zk.session_id != old
            assert (await zk.get("/a")).data == b""

    run(main)


def test_a_request_bound_to_a_session_does_not_go_to_another() -> None:
    """A guard that names a path is only as good as the session it was made for."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=6.0) as zk:
            old = zk.session_id
            ensemble.expire(old)
            await asyncio.sleep(1)
            assert zk.connected
            with pytest.raises(SessionExpiredError, match="bound to session"):
                await zk.call(SetData("/a", b""), session_id=old)
            assert not ensemble.seen(SetData)

    run(main)


def test_without_any_network_the_session_is_lost_by_the_local_lease() -> None:
    """A partitioned holder must know by itself, before the ensemble gives its lock to another."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            await zk.exists("/a")
            seen: list[tuple[SessionState, float]] = []
            start = loop.time()
            zk.on_transition(lambda c: seen.append((c.state, loop.time() - start)))
            loop.black_hole = True
            await asyncio.sleep(15)
            lost_at = dict(seen)[SessionState.LOST]
            # 12 s less the margin of 5 %, counted from when the last answered request was sent.
            assert lost_at == pytest.approx(11.4, abs=0.05)
            [expired] = ensemble.expired
            assert ensemble.sessions.get(expired) is None
            await zk.close(timeout=0)

    run(main)


def test_after_a_stall_the_lease_is_compared_before_any_timer_ran() -> None:
    """After SIGCONT the user's code may be scheduled before the timer that would warn it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            loop.sleep_machine(20)
            assert zk.state is SessionState.LOST
            assert zk.lease_remaining == 0

    run(main)


def test_a_session_given_up_locally_is_closed_at_the_next_contact() -> None:
    """Its ephemerals should go at once, not when the ensemble gets around to expiring it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        # The ensemble is slower to expire than it promised, as after a change of leader.
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            await zk.create("/mine", ephemeral=True)
            old = zk.session_id
            ensemble.sessions[old].timeout_ms = 3_600_000
            ensemble.touch(old)
            loop.sleep_machine(20)
            assert not zk.check_lease()
            await zk.wait_connected(timeout=5)
            await asyncio.sleep(0.5)
            assert old not in ensemble.sessions
            assert await zk.exists("/mine") is None
            assert ensemble.seen(CloseSession)

    run(main)


def test_an_ensemble_that_was_put_back_gets_a_new_session_of_ours() -> None:
    """Its servers are behind what we have seen, and close each handshake for that."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            for name in ("/a", "/b", "/c"):
                await zk.create(name)
            seen = zk.last_zxid
            for server in ensemble.servers:
                ensemble.shut(server)
            founded = ScriptedEnsemble(loop, 3)
            start = loop.time()
            await wait_until(lambda: zk.state is SessionState.LOST)
            await zk.wait_connected(timeout=60)
            assert loop.time() - start < 2 * 12 + 2  # the old session's end, then as long again
            assert await zk.exists("/a") is None
            assert zk.last_zxid < seen
            assert founded.sessions

    run(main)


def test_a_new_session_does_not_go_back_in_time_because_of_a_server_that_lags() -> None:
    """It waits for one that has what the last session has seen, as long as there may be one."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 2)
        lagging, other = ensemble.servers
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            await zk.create("/a")
            ensemble.catch_up(lagging)
            lagging.lagging = True
            ensemble.shut(lagging)
            await wait_until(lambda: zk.connected and zk.server == other.name)
            await zk.create("/b")
            await zk.exists("/b")
            ensemble.shut(other)
            loop.sleep_machine(20)
            assert zk.state is SessionState.LOST
            ensemble.open(lagging)
            loop.call_later(10.0, ensemble.open, other)
            await zk.wait_connected(timeout=30)
            assert zk.server == other.name

    run(main)


def test_suspended_is_told_before_the_requests_of_the_dead_connection_fail() -> None:
    """A gate has to be closed before anybody can act on a failure."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            order: list[str] = []
            zk.on_transition(lambda c: order.append(c.state))
            ensemble.once(Create, LOSE_REPLY)
            write = asyncio.ensure_future(zk.create("/a"))
            write.add_done_callback(lambda _: order.append("failed"))
            await asyncio.wait([write])
            await zk.exists("/a")
            assert isinstance(write.exception(), ConnectionLossError)
            assert order == ["SUSPENDED", "failed", "CONNECTED"]

    run(main)


def test_watches_are_set_again_after_a_reconnect_and_tell_what_was_missed() -> None:
    """A watcher must not care which server holds its watch, nor when it moved."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 2)
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            await zk.create("/a", b"1")
            stream = EventStream[WatchEvent]()
            await zk.get("/a", watch=stream)
            await zk.exists("/b", watch=stream)
            await zk.get_children("/a", watch=stream)
            for server in ensemble.servers:
                ensemble.shut(server)
            await asyncio.sleep(0.01)
            ensemble.open(ensemble.servers[0])
            await other.set("/a", b"2")
            await zk.wait_connected(timeout=5)
            await other.create("/b")
            await other.create("/a/child")
            got = [await anext(stream) for _ in range(3)]
            assert [(e.type, e.path) for e in got] == [
                (EventType.DATA_CHANGED, "/a"),
                (EventType.CREATED, "/b"),
                (EventType.CHILDREN_CHANGED, "/a"),
            ]
            [rearm] = ensemble.seen(SetWatches)
            assert rearm[1:] == (("/a",), ("/b",), ("/a",))

    run(main)


def test_set_watches_is_split_under_the_frame_limit() -> None:
    """A client with many watches must not send a packet that closes every connection it gets."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            paths = [f"/{'x' * 300}{n}" for n in range(1000)]
            seen: list[WatchEvent] = []
            await asyncio.gather(*(zk.exists(path, watch=seen.append) for path in paths))
            ensemble.cut()
            await zk.exists("/a")
            rearms = ensemble.seen(SetWatches)
            assert [path for op in rearms for path in op.exist] == paths
            assert len(rearms) == 300_000 // REARM_BYTES_MAX + 1

    run(main)


def test_persistent_watches_survive_a_reconnect_too() -> None:
    """They are told again by the newer packet, which only they make necessary."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            stream = EventStream[WatchEvent]()
            await zk.create("/a")
            await zk.add_watch("/a", stream, recursive=True)
            assert len(ensemble.seen(AddWatch)) == 1
            for name in ("one", "two"):
                ensemble.cut()
                await zk.create(f"/a/{name}") if await zk.exists("/a") else None
                event = await anext(stream)
                assert (event.type, event.path) == (EventType.CREATED, f"/a/{name}")
            assert ensemble.seen(SetWatches2)

    run(main)


def test_lost_tells_every_watcher_that_its_watch_is_gone() -> None:
    """Nobody may wait for an event that no server will send any more."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            stream = EventStream[WatchEvent]()
            await zk.exists("/a", watch=stream)
            ensemble.expire(zk.session_id)
            event = await anext(stream)
            assert (event.type, event.path) == (EventType.NONE, "/a")

    run(main)


def test_auth_packets_go_first_on_every_connection() -> None:
    """The identities belong to the connection, and what waits may depend on them."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, auth=[("digest", b"bob:secret")]) as zk:
            await zk.add_auth("digest", "eve:other")
            await zk.exists("/w", watch=print)
            ensemble.cut()
            await zk.exists("/a")
            names = [type(op).__name__ for _, _, op in ensemble.requests]
            again = names[names.index("ConnectRequest", 1) :]
            assert again == ["ConnectRequest", "Auth", "Auth", "SetWatches", "Exists"]

    run(main)


def test_refused_credentials_fail_the_caller_and_are_not_offered_again() -> None:
    """The server closes the connection of a failed auth packet: repeating it would never end."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            ensemble.refuse_auth = True
            with pytest.raises(AuthFailedError):
                await zk.add_auth("digest", "bob:wrong")
            ensemble.cut()
            await zk.exists("/a")
            assert len(ensemble.seen(Auth)) == 1

    run(main)


def test_credentials_that_the_first_server_refuses_fail_the_connect() -> None:
    """Else each request that lacks them would fail, and nothing would say why."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        ensemble.refuse_auth = ensemble.stock = True
        credentials = [("digest", b"bob:wrong"), ("digest", b"eve:wrong")]
        zk = connect(ensemble.hosts, auth=credentials)
        with pytest.raises(AuthFailedError, match="does not accept these digest credentials"):
            await zk.start()
        assert zk.closed

    run(main)


def test_credentials_that_a_later_server_refuses_are_told_as_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The session is of use without them, perhaps; its keeper should know."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, auth=[("digest", b"bob:secret")]) as zk:
            ensemble.refuse_auth = ensemble.stock = True
            ensemble.cut()
            await asyncio.sleep(1)
            assert await zk.exists("/a") is None
            assert len(ensemble.seen(Auth)) == 2
        [record] = [each for each in caplog.records if each.levelname == "ERROR"]
        assert "does not accept these digest credentials" in record.getMessage()

    run(main)


def test_a_connect_that_gives_up_leaves_no_credentials_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Their answer is of no interest any more, and no error of its own."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        ensemble.shut(ensemble.servers[0])
        zk = connect(ensemble.hosts, auth=[("digest", b"bob:secret")], connect_timeout=1.0)
        with pytest.raises(OperationTimeoutError, match="took the session"):
            await zk.start()

    run(main)
    gc.collect()
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_closing_ends_the_session_and_its_ephemerals_at_once() -> None:
    """A clean exit must not leave locks behind for a session timeout."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.create("/mine", ephemeral=True)
        assert not ensemble.sessions
        assert "/mine" not in ensemble.leader.nodes
        assert zk.state is SessionState.CLOSED
        with pytest.raises((LocalProtocolError, SessionExpiredError)):
            await zk.exists("/a")

    run(main)


def test_connecting_to_nobody_fails_after_the_connect_timeout_and_leaves_nothing() -> None:
    """A wrong address should be an error, not a hang."""

    async def main(loop: FastLoop) -> None:
        start = loop.time()
        with pytest.raises(OperationTimeoutError, match="nowhere:1"):
            await connect("nowhere:1", connect_timeout=3).start()
        assert loop.time() - start == pytest.approx(3.0, abs=0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_a_deadline_also_runs_while_suspended_and_says_that_nothing_was_sent() -> None:
    """`timeout` means this long, whatever the connection does."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            ensemble.shut(ensemble.servers[0])
            await asyncio.sleep(0.1)
            start = loop.time()
            with pytest.raises(OperationTimeoutError) as caught:
                await zk.create("/a", timeout=2)
            assert loop.time() - start == pytest.approx(2.0)
            assert not caught.value.maybe_applied
            ensemble.open(ensemble.servers[0])
            assert await zk.exists("/a") is None
            assert not ensemble.seen(Create)

    run(main)


def test_a_cancelled_call_that_was_not_sent_is_withdrawn() -> None:
    """A caller who has gone must not cause a write later."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            ensemble.shut(ensemble.servers[0])
            await asyncio.sleep(0.1)
            write = asyncio.ensure_future(zk.create("/a"))
            await asyncio.sleep(0.1)
            write.cancel()
            await asyncio.sleep(0.1)
            ensemble.open(ensemble.servers[0])
            await zk.exists("/b")
            assert not ensemble.seen(Create)

    run(main)


def test_more_requests_than_may_be_outstanding_wait_their_turn() -> None:
    """Pipelining has no limit the user has to know, up to one that protects the memory."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.create("/a", b"1")
            results = await asyncio.gather(*(zk.get("/a") for _ in range(3 * OUTSTANDING_MAX)))
            assert len(results) == 3 * OUTSTANDING_MAX

    run(main)


def test_a_reply_out_of_order_costs_the_connection_and_not_more() -> None:
    """After it no reply can be told from another, but the session is not to blame."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            session = zk.session_id
            [connection] = ensemble.servers[0].connections
            connection.send(reply(77, ensemble.zxid))
            await asyncio.sleep(0.1)
            assert zk.session_id == session
            assert zk.connected
            assert len(ensemble.seen(ConnectRequest)) == 2

    run(main)


def test_listeners_hear_every_change_in_order_and_may_use_the_client() -> None:
    """A listener that awaits the client must not be what the client waits for."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        heard: list[SessionState] = []

        async def listener(change: StateChange) -> None:
            if change.state is SessionState.CONNECTED:
                await zk.exists("/a")
            heard.append(change.state)

        zk = connect(ensemble.hosts)
        zk.add_listener(listener)
        async with zk:
            ensemble.cut()
            await asyncio.sleep(0.5)
        assert heard == ["CONNECTED", "SUSPENDED", "CONNECTED", "CLOSED"]

    run(main)


def test_the_client_sees_through_its_chroot() -> None:
    """Paths go out with it and come back without it, in results, events and errors."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(f"{ensemble.hosts}/app/one") as zk:
            await zk.ensure_path("/")
            stream = EventStream[WatchEvent]()
            await zk.exists("/n-0000000000", watch=stream)
            assert await zk.create("/n-", sequential=True) == "/n-0000000000"
            assert (await anext(stream)).path == "/n-0000000000"
            assert "/app/one/n-0000000000" in ensemble.leader.nodes
            ensemble.once(SetData, LOSE_REPLY)
            with pytest.raises(ConnectionLossError, match=r"set_data /n: ") as caught:
                await zk.set("/n", b"")
            assert caught.value.path == "/n"

    run(main)


def test_a_negotiated_timeout_is_the_one_that_counts() -> None:
    """Pings and lease follow what the server granted, not what was asked."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, timeout_max_ms=6000)
        async with connect(ensemble.hosts, timeout=60.0) as zk:
            assert zk.session_timeout == 6.0
            assert zk.lease_remaining == pytest.approx(5.7, abs=0.01)
            await asyncio.sleep(30)
            assert zk.connected
            assert not ensemble.expired

    run(main)


def test_a_server_that_grants_a_shorter_timeout_ends_the_longer_lease() -> None:
    """The ensemble expires the session by what it granted last, and members may differ in that."""
    session = Session(30_000)

    def greet(timeout_ms: int, now_ms: int) -> None:
        response = ConnectResponse(0, timeout_ms, 0x77, bytes(16), read_only=False)
        session.opened(now_ms)
        session.receive(encode_connect_response(response), now_ms)

    greet(30_000, 0)
    assert session.lease_deadline_ms == 28_500
    session.closed(1_000)
    greet(10_000, 1_000)
    assert session.lease_deadline_ms == 10_500
    session.closed(1_500)
    assert not session.elapsed(10_499)
    assert Became(SessionState.LOST, "the local lease ran out") in session.elapsed(10_500)


def test_a_session_without_id_has_no_lease() -> None:
    """There is nothing to lose before the first server has answered."""
    session = Session(12_000)
    assert session.lease_deadline_ms is None
    assert session.deadline_ms is None
    assert session.check_lease(10**9) == []


def established(now_ms: int = 0) -> Session:
    """A session that a server has taken."""
    session = Session(12_000)
    session.opened(now_ms)
    response = ConnectResponse(0, 12_000, 7, bytes(16), False)
    session.receive(encode_connect_response(response), now_ms)
    assert session.state is SessionState.CONNECTED
    return session


@given(st.binary(max_size=200), st.lists(st.sampled_from([GetData("/a"), Create("/a", b"", ())])))
def test_no_bytes_make_the_session_raise(garbage: bytes, ops: list[Op]) -> None:
    """What a broken or hostile server sends costs its connection, and nothing else."""
    session = established()
    for number, op in enumerate(ops):
        session.submit(op, number, 1)
    effects = session.receive(garbage, 2)
    effects += session.closed(3)
    failed = [effect.token for effect in effects if isinstance(effect, Failed | Replied)]
    assert sorted(failed) == list(range(len(ops)))  # each hears of its end, once


@given(
    xid=st.integers(-8, 3),
    code=st.one_of(st.integers(-130, 0), st.integers(-(2**31), 2**31 - 1)),
    body=st.binary(max_size=120),
)
def test_no_reply_makes_the_session_raise(xid: int, code: int, body: bytes) -> None:
    """The same for frames that look like replies."""
    session = established()
    session.submit(GetData("/a"), "get", 1)
    session.submit(Multi((Create("/a", b"", ()),)), "multi", 1)
    session.add_auth("digest", b"x", "auth", 1)
    effects = session.receive(frame(struct.pack(">iqi", xid, 5, code) + body), 2)
    effects += session.abandon(3)
    told = [effect.token for effect in effects if isinstance(effect, Failed | Replied)]
    assert sorted(told) == ["auth", "get", "multi"]  # type: ignore[type-var]


def test_an_expired_answer_is_the_end_of_the_session() -> None:
    """The server says it in a reply before it says it to the next connection."""
    session = established()
    session.submit(GetData("/a"), "get", 1)
    effects = session.receive(reply(1, 5, ErrorCode.SESSION_EXPIRED), 2)
    assert session.state is SessionState.LOST
    assert session.refused
    kinds = [type(effect).__name__ for effect in effects]
    assert kinds == ["Hangup", "Became", "Failed"]


def test_a_loop_that_is_held_up_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """F23: work that blocks the loop for long costs the session in the end."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts, timeout=12.0) as zk:
            await asyncio.sleep(3)
            loop.sleep_machine(6)
            await zk.exists("/a")
            assert zk.connected

    run(main)
    assert "held up for" in caplog.text


@pytest.mark.parametrize("ends", ["cancelled", "timed out"])
def test_a_read_that_is_given_up_leaves_no_watcher_behind(ends: str) -> None:
    """Its answer comes after the caller has removed its watchers, and each would stay for ever."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.create("/a")
            for _ in range(10):
                heard: list[WatchEvent] = []
                if ends == "cancelled":
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.001):
                            await zk.get("/a", watch=heard.append)
                else:
                    with pytest.raises(OperationTimeoutError):
                        await zk.get("/a", watch=heard.append, timeout=0.001)
                zk.unwatch("/a", heard.append)
            await zk.exists("/a")
            ensemble.cut()
            await zk.exists("/a")
            assert not ensemble.seen(SetWatches)

    run(main)
