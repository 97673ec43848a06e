"""Users' programs run unchanged in a simulated world, and experiments are a few lines."""

import asyncio
import gc
from contextlib import suppress

import pytest

from zabd.client import SessionState, connect
from zabd.client.recipes.lock import Lock
from zabd.cluster_sim import InvariantError, ProcessKilledError, Scenario, simulate
from zabd.model.errors import ConnectionLossError, KeeperError, NoNodeError
from zabd.znode_tree.znode import Znode

pytestmark = pytest.mark.sim


def test_a_program_survives_the_loss_of_the_leader() -> None:
    """The first thing that anybody wants to see."""

    async def program(hosts: str) -> list[int]:
        versions: list[int] = []
        async with connect(hosts, timeout=4) as zk:
            await zk.create("/counter", b"0")
            while len(versions) < 50:
                try:
                    versions.append((await zk.set("/counter", b"%d" % len(versions))).version)
                except ConnectionLossError:
                    continue
                await asyncio.sleep(0.1)
        return versions

    async def experiment(scenario: Scenario) -> tuple[list[int], float]:
        worker = scenario.spawn("worker", lambda: program(scenario.hosts))
        await asyncio.sleep(3)
        (await scenario.leader()).kill()
        versions = await worker.result()
        return versions, scenario.loop.time()

    versions, took = simulate(experiment, seed=7)

    assert versions == sorted(set(versions))
    assert took < 20


def test_an_ephemeral_goes_when_its_program_is_killed() -> None:
    """A killed process says nothing: its session has to time out."""

    async def hold(hosts: str) -> None:
        async with connect(hosts, timeout=2) as zk:
            await zk.create("/me", ephemeral=True)
            await asyncio.sleep(1_000)

    async def experiment(scenario: Scenario) -> tuple[bool, bool]:
        holder = scenario.spawn("holder", lambda: hold(scenario.hosts))
        async with connect(scenario.hosts) as zk:
            await asyncio.sleep(5)
            assert await zk.exists("/me") is not None
            holder.kill()
            await asyncio.sleep(1)
            early = await zk.exists("/me") is not None
            await asyncio.sleep(3)
            late = await zk.exists("/me") is not None
        with pytest.raises(ProcessKilledError):
            await holder.result()
        return early, late

    assert simulate(experiment) == (True, False)


def test_a_paused_holder_finds_that_it_has_lost_the_lock() -> None:
    """SIGSTOP past the session's timeout: another one holds it, and the first one knows at once."""
    log: list[str] = []

    async def worker(hosts: str, name: str, seconds: float) -> None:
        async with connect(hosts, timeout=2) as zk, Lock(zk, "/lock") as lock:
            log.append(f"{name} {lock.fencing_token}")
            await asyncio.sleep(seconds)
            log.append(f"{name} {'holds' if lock.held else 'lost'} it")

    async def experiment(scenario: Scenario) -> None:
        first = scenario.spawn("first", lambda: worker(scenario.hosts, "first", 5))
        await asyncio.sleep(3)
        second = scenario.spawn("second", lambda: worker(scenario.hosts, "second", 1))
        await asyncio.sleep(1)
        first.pause()
        await second.result()
        first.resume()
        await first.result()

    simulate(experiment)
    tokens = [int(line.split()[1]) for line in log if line.split()[1].isdigit()]
    assert len(tokens) == 2
    assert tokens[0] < tokens[1]
    assert "first lost it" in log
    assert "second holds it" in log


def test_a_minority_cannot_write_and_a_majority_can() -> None:
    """The experiment cuts, and sees both sides."""

    async def experiment(scenario: Scenario) -> tuple[str, bytes | None]:
        leader = await scenario.leader()
        others = [member for member in scenario.members.values() if member is not leader]
        async with connect(scenario.hosts, timeout=4) as zk:
            await zk.create("/a", b"before")
        scenario.partition([leader], others)
        async with connect(f"{others[0].host.name}:2181", timeout=4, connect_timeout=60) as zk:
            await zk.set("/a", b"by the majority")
        try:
            async with connect(f"{leader.host.name}:2181", timeout=4, connect_timeout=5):
                alone = "served"
        except TimeoutError:
            alone = "not served"
        except Exception as error:  # noqa: BLE001 - its name is the result
            alone = type(error).__name__
        scenario.heal()
        async with connect(f"{leader.host.name}:2181", timeout=4, connect_timeout=60) as zk:
            await zk.sync("/a")
            return alone, (await zk.get("/a")).data

    assert simulate(experiment) == ("OperationTimeoutError", b"by the majority")


def test_the_same_seed_is_the_same_run() -> None:
    """Also for users' code: the client's chance and identity come from the seed."""

    async def experiment(scenario: Scenario) -> str:
        async with connect(scenario.hosts) as zk:
            await zk.create("/x", b"1")
            await asyncio.sleep(30)
            (await scenario.leader()).pause()
            await asyncio.sleep(30)
            await zk.set("/x", b"2")
        return scenario.level.trace.digest()

    first, second = simulate(experiment, seed=3), simulate(experiment, seed=3)
    assert first == second
    assert simulate(experiment, seed=4) != first


def test_faults_may_go_on_all_the_while() -> None:
    """Kinds are named as in the swarm; an unknown one is refused."""

    async def experiment(scenario: Scenario) -> int:
        done = 0
        async with connect(scenario.hosts, timeout=4) as zk:
            for _ in range(30):
                try:
                    await zk.create("/n", b"", ephemeral=True)
                    await zk.delete("/n")
                    done += 1
                except Exception:  # noqa: BLE001, S110 - the point is that the ensemble holds
                    pass
                await asyncio.sleep(1)
        return done

    assert simulate(experiment, faults=["kill", "partition", "cut"], fault_every=3) > 10
    with pytest.raises(ValueError, match="not a kind of fault"):
        simulate(experiment, faults=["gremlins"])


def test_what_goes_wrong_is_told_with_its_seed() -> None:
    """The experiment's own errors, and those that nobody handled, come out of simulate."""

    async def experiment(scenario: Scenario) -> None:
        async with connect(scenario.hosts) as zk:
            await zk.delete("/nothing")

    with pytest.raises(NoNodeError) as raised:
        simulate(experiment, seed=5)
    assert "seed 5" in raised.value.__notes__[0]

    async def forgotten(scenario: Scenario) -> None:
        process = scenario.spawn("careless", lambda: asyncio.sleep(9))
        process.loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        simulate(forgotten)

    async def endless(_scenario: Scenario) -> None:
        await asyncio.sleep(10_000)

    with pytest.raises(TimeoutError):
        simulate(endless, deadline=60)
    assert issubclass(InvariantError, Exception)


def test_an_experiment_chooses_a_fault_and_whom_it_hits() -> None:
    """Every kind can be asked for; what has really happened is counted."""

    async def write(hosts: str) -> None:
        async with connect(hosts, timeout=4) as zk:
            await zk.create("/n")
            while True:
                with suppress(KeeperError):
                    await zk.set("/n", b"x" * 2_000)
                await asyncio.sleep(0.2)

    async def experiment(scenario: Scenario) -> dict[str, int]:
        writer = scenario.spawn("writer", lambda: write(scenario.hosts))
        await asyncio.sleep(3)
        for _ in range(20):  # which sectors survive is left to chance
            leader = await scenario.leader()
            assert leader.fault("torn write")
            await asyncio.sleep(1)
            await asyncio.sleep(5)
            if "torn write" in scenario.faults:
                break
        for kind in ("bit flip", "slow sync", "clock drift", "clock step", "slow member", "cut"):
            assert (await scenario.leader()).fault(kind), kind
            await asyncio.sleep(5)
        for kind in ("session expiry", "slow reader", "reconnect storm", "half-open"):
            assert writer.fault(kind), kind
            await asyncio.sleep(8)
        assert scenario.fault("isolate the leader")
        with pytest.raises(ValueError, match="gremlins"):
            scenario.fault("gremlins")
        return dict(scenario.faults)

    faults = simulate(experiment, seed=1)
    assert faults.keys() >= {"torn write", "bit flip", "slow sync", "clock drift", "session expiry"}


def test_a_fault_without_a_victim_is_none() -> None:
    """Nobody leads with a member that is down, and no client has a session yet."""

    async def experiment(scenario: Scenario) -> list[bool]:
        scenario.members[1].kill()
        idle = scenario.spawn("idle", lambda: asyncio.sleep(9))
        kinds = ("kill", "pause", "sync error", "abdicate")
        return [*(scenario.members[1].fault(kind) for kind in kinds), idle.fault("session expiry")]

    assert simulate(experiment) == [False] * 5


def test_an_expired_session_is_learned_of_when_its_client_is_back() -> None:
    """The ephemeral is gone before; the client has a new session after."""

    async def hold(hosts: str) -> list[int]:
        lost, sessions = asyncio.Event(), []
        async with connect(hosts, timeout=2) as zk:
            zk.add_listener(lambda change: change.state is SessionState.LOST and lost.set())
            sessions.append(zk.session_id)
            await zk.create("/me", ephemeral=True)
            await lost.wait()
            await zk.wait_connected()
            sessions.append(zk.session_id)
        return sessions

    async def experiment(scenario: Scenario) -> tuple[bool, bool]:
        holder = scenario.spawn("holder", lambda: hold(scenario.hosts))
        async with connect(scenario.hosts) as zk:
            await asyncio.sleep(5)
            there = await zk.exists("/me") is not None
            await holder.expire()
            await zk.sync("/me")
            gone = await zk.exists("/me") is None
        first, second = await holder.result()
        assert first != second
        return there, gone

    assert simulate(experiment) == (True, True)


def test_clocks_are_bent_and_processes_are_slow() -> None:
    """Sessions live by how long it takes; neither wall clocks nor rates end one before."""

    async def experiment(scenario: Scenario) -> tuple[float, int]:
        async with connect(scenario.hosts, timeout=4) as zk:
            await zk.create("/n", ephemeral=True)
            created = (await zk.get("/n")).stat.ctime
            for member in scenario.members.values():
                member.step_clock(3_600)
                member.set_clock_rate(1.5)
            await asyncio.sleep(30)
            (await scenario.leader()).kill()
            stepped_ms = 0
            while not stepped_ms:
                with suppress(ConnectionLossError):
                    stepped_ms = (await zk.set("/n", b"")).mtime - created
            for member in scenario.members.values():
                member.set_clock_rate(1)
                member.slow_down(0.1)
            begun = scenario.loop.time()
            await zk.set("/n", b"1")
            return scenario.loop.time() - begun, stepped_ms

    took, stepped_ms = simulate(experiment)
    assert took > 0.2
    assert 3_600_000 <= stepped_ms < 3_660_000


def test_an_experiment_stops_between_two_steps_of_the_protocol() -> None:
    """One direction is held, disks hang, and both go on; what members have is looked at."""

    async def experiment(scenario: Scenario) -> list[bool]:
        leader = await scenario.leader()
        first, second = [m for m in scenario.members.values() if m is not leader]
        seen = []
        async with connect(f"{leader.host.name}:2181") as zk:
            await zk.create("/a")
            scenario.block(leader, first)
            await zk.set("/a", b"1")
            assert leader.peer is not None
            done = leader.peer.committed_zxid
            await scenario.until(lambda: second.peer and second.peer.durable_zxid >= done)
            seen.append(first.peer is not None and first.peer.durable_zxid < done)
            second.stall_disks()
            write = asyncio.create_task(zk.set("/a", b"2"))
            await asyncio.sleep(0.2)
            seen.append(not write.done())
            second.resume_disks()
            await write
            scenario.unblock(leader, first)
            await scenario.until(lambda: first.peer and first.peer.durable_zxid > done)
        with pytest.raises(TimeoutError, match="within 2 s"):
            await scenario.until(lambda: False, within=2, every=0.5)
        first.kill()
        return [*seen, first.peer is None]

    assert simulate(experiment) == [True] * 3


def test_nothing_large_of_a_run_is_left_behind() -> None:
    """Suspended coroutines of killed processes stay for good; what their servers held does not."""

    async def experiment(scenario: Scenario) -> int:
        (await scenario.leader()).kill()
        async with connect(scenario.hosts, timeout=4) as zk:
            for number in range(100):
                await zk.create(f"/n{number}")
        return _znodes()

    gc.collect()
    before = _znodes()
    assert simulate(experiment) >= before + 200, "a hundred on each of two members"
    gc.collect()
    assert _znodes() <= before


def _znodes() -> int:
    return sum(isinstance(each, Znode) for each in gc.get_objects())
