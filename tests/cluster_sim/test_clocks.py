"""Clocks go wrong: the wall clock steps and runs at another rate (F25), a machine sleeps (F26)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from zabd.client import Client, connect
from zabd.cluster_sim import Scenario, simulate
from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.replica_level import ReplicaLevel
from zabd.cluster_sim.shape import plain_shape
from zabd.model.errors import ConnectionLossError
from zabd.zab.messages import PeerState

pytestmark = pytest.mark.sim

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS

TIMEOUT_S = 4
TTL_S = 70


@asynccontextmanager
async def holding(scenario: Scenario) -> AsyncIterator[Client]:
    """A session with an ephemeral, and a znode with a time to live."""
    async with connect(scenario.hosts, timeout=TIMEOUT_S) as zk:
        await zk.create("/held", ephemeral=True)
        await zk.create("/perishable", ttl=TTL_S)
        yield zk


def step_all(scenario: Scenario, step_ms: float) -> None:
    """Let the wall clock of every member jump."""
    for member in scenario.members.values():
        member.step_clock(step_ms / 1_000)


async def is_there(zk: Client, path: str) -> bool:
    """Whether the znode exists, asked until somebody answers."""
    while True:
        try:
            return await zk.exists(path) is not None
        except ConnectionLossError:
            continue


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, 10 * YEAR_MS, -10 * YEAR_MS])
def test_f25_a_step_of_the_wall_clock_shows_in_ctime_and_nowhere_else(step_ms: int) -> None:
    """No session ends, nobody is elected, nothing perishes early, and all is over in its time."""

    async def experiment(scenario: Scenario) -> None:
        async with holding(scenario) as zk:
            elections = scenario.level.elections
            before = (await zk.create_with_stat("/before")).stat
            begun_s = asyncio.get_running_loop().time()

            step_all(scenario, step_ms)
            await asyncio.sleep(5 * TIMEOUT_S)

            after = (await zk.create_with_stat("/after")).stat
            passed_ms = after.ctime - before.ctime
            assert passed_ms == pytest.approx(5_000 * TIMEOUT_S, abs=1_000)
            assert await is_there(zk, "/held")
            assert await is_there(zk, "/perishable")
            assert not scenario.level.checker.closed
            assert scenario.level.elections == elections
            while await is_there(zk, "/perishable"):  # noqa: ASYNC110 - told by nobody
                await asyncio.sleep(5)
            lived_s = asyncio.get_running_loop().time() - begun_s
            assert TTL_S <= lived_s < TTL_S + 90  # a leader looks for them once a minute

    simulate(experiment, seed=3)


@pytest.mark.parametrize("rate", [0.5, 2])
def test_f25_a_wall_clock_that_runs_wrong_ends_no_session_early_or_late(rate: float) -> None:
    """A silent client is gone after its timeout, a living one is not, whatever the clock says."""

    async def experiment(scenario: Scenario) -> float:
        async def let_go() -> None:
            async with holding(scenario):
                await asyncio.sleep(3_600)

        owner = scenario.spawn("owner", let_go)
        async with connect(scenario.hosts, timeout=TIMEOUT_S) as zk:
            while not await is_there(zk, "/perishable"):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.2)
            for _ in range(40):
                await asyncio.sleep(0.5)
                step_all(scenario, 500 * (rate - 1))
            assert await is_there(zk, "/held")
            owner.kill()
            killed_s = asyncio.get_running_loop().time()
            while await is_there(zk, "/held"):
                await asyncio.sleep(0.1)
                step_all(scenario, 100 * (rate - 1))
            return asyncio.get_running_loop().time() - killed_s

    # It may have been heard of just before; deadlines are rounded up to a tick of 200 ms at most.
    assert TIMEOUT_S * 2 / 3 - 0.5 < simulate(experiment, seed=3) < TIMEOUT_S + 1


def test_f25_a_leader_whose_clock_is_behind_goes_on_from_the_last_time() -> None:
    """Times never go back, whoever leads."""

    async def experiment(scenario: Scenario) -> tuple[int, int]:
        async with connect(scenario.hosts, timeout=TIMEOUT_S) as zk:
            before = (await zk.create_with_stat("/before")).stat
            step_all(scenario, -HOUR_MS)
            (await scenario.leader()).kill()
            await asyncio.sleep(2)
            while True:
                try:
                    after = (await zk.create_with_stat("/after")).stat
                except ConnectionLossError:
                    continue
                return before.ctime, after.ctime

    before, after = simulate(experiment, seed=3)
    assert before <= after < before + HOUR_MS


class Ensemble(ReplicaLevel):
    """Members and clients that live; nothing goes wrong by itself."""

    def __init__(self, voters: int = 3) -> None:
        quiet = replace(ReplicaLevel(7).shape, kinds=(), observers=0, tick_ms=200)
        shape = replace(quiet, voters=voters)
        super().__init__(7, replace(shape, submit_every_ms=50))
        for member in self.members.values():
            member.start()
        for client in self.clients:
            client.stays = True
            client.start()
        self.run_until(self._all_there)

    def _all_there(self) -> bool:
        return self._all_serving([*self.voters]) and all(c.connected for c in self.clients)

    def run_for(self, ms: int) -> None:
        """Let this much time pass."""
        self._run_until(self.schedule.now_ms + ms)

    def run_until(self, condition: Callable[[], object], ms: int = 20_000) -> None:
        """Until the condition holds."""
        end_ms = self.schedule.now_ms + ms
        while not condition():
            assert self.schedule.now_ms < end_ms, self.trace.tail(30)
            self.run_for(10)

    def part_clients(self) -> None:
        """Let no client reach a member, and what is under way arrive."""
        machines = [member.host for member in self.members.values()]
        self.network.partition([machines, [client.host for client in self.clients]])
        self.run_for(20)

    def sessions(self) -> list[int]:
        """Whom the clients are."""
        return [client.session_id for client in self.clients]

    def must_go_on(self) -> None:
        """Every client is served again, in its old session, and nothing has expired."""
        before = self.sessions()
        self.run_until(self._all_there)
        committed = len(self.checker.ledger)
        self.run_for(20 * self.shape.tick_ms + 2_000)  # longer than any session's timeout
        assert not self.checker.closed
        assert self.sessions() == before
        assert len(self.checker.ledger) > committed


@pytest.mark.parametrize("sleep_ms", [60_000, 600_000])
@pytest.mark.parametrize("voters", [1, 3])
def test_f26_when_all_machines_sleep_every_session_gets_a_whole_timeout_again(
    voters: int, sleep_ms: int
) -> None:
    """Nobody could be heard meanwhile: nobody is taken for silent.

    One that is alone goes on leading when it wakes: no election starts its deadlines anew.
    """
    ensemble = Ensemble(voters)
    elections = ensemble.elections
    ensemble.part_clients()  # so that nothing lies in a socket that could be heard on waking up
    processes = [member.process for member in ensemble.members.values()]
    for process in processes:
        assert process is not None
        process.pause()
    ensemble.run_for(sleep_ms)
    for process in processes:
        assert process is not None
        process.resume()
    ensemble.run_for(1)
    ensemble.network.heal()

    ensemble.must_go_on()
    assert ensemble.elections == elections + (voters > 1)


def test_f26_a_leader_that_sleeps_is_replaced_and_no_session_ends() -> None:
    """A pause of the leader counts as its loss; the next one gives everybody a whole timeout."""
    ensemble = Ensemble()
    leader, elections = ensemble.a_leader(), ensemble.elections
    assert leader is not None
    assert leader.process is not None
    sleeping = leader.process
    sleeping.pause()
    ensemble.run_until(lambda: ensemble.elections > elections)
    ensemble.run_for(20_000)
    sleeping.resume()

    ensemble.must_go_on()
    assert ensemble.elections == elections + 1


def test_what_passed_is_known_of_each_clock_however_it_ran() -> None:
    """A leader waits for a quorum by its own clock, so that is the one to judge it by (L4)."""
    level = CoreLevel(1, plain_shape(voters=3))
    member, schedule = level.members[1], level.schedule
    schedule.now_us = 1_000_000
    member.set_rate(0.5)
    schedule.now_us = 3_000_000
    member.set_rate(2.0)
    schedule.now_us = 4_000_000

    assert member.ms_since(4_000_000) == 0
    assert member.ms_since(3_500_000) == 1_000
    assert member.ms_since(2_000_000) == 2_000 + 500
    assert member.ms_since(0) == 2_000 + 1_000 + 1_000
    assert member.now_ms() - member.boot_ms == 4_000


def test_a_follower_that_stood_still_does_not_take_old_pings_for_news() -> None:
    """C8: what waits in its sockets is of any age, so the clock is looked at first."""
    level = CoreLevel(3, plain_shape(voters=3))
    for member in level.members.values():
        member.start()
    level._run_until(5_000)
    leader = level.a_leader()
    assert leader is not None
    follower = next(member for member in level.members.values() if member is not leader)
    process = follower.process
    assert process is not None
    assert process.peer is not None
    assert process.peer.serving

    process.pause()
    level._run_until(level.schedule.now_ms + 400)
    level.network.block(leader.host, follower.host)  # nobody tells it that the leader has gone
    level._run_until(level.schedule.now_ms + 60_000)
    process.resume()

    assert process.peer.state is PeerState.LOOKING
