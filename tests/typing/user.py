"""What a type checker tells the user of the public names: read by `make check`, never run.

`assert_type` says what a call gives. Where an `ignore` names an error, that error has to be there:
a call which stopped being refused makes the comment itself an error.
"""

import random
from typing import assert_type

from zabd.client import Client, RetryPolicy, SessionState, SyncClient, Transaction, connect
from zabd.client.recipes import Dedup, Lock
from zabd.client.recipes.dedup import Attempt
from zabd.cluster_sim import Scenario, VirtualLoop, simulate
from zabd.model import ConnectionLossError, KeeperError, MultiPart, NoNodeError, Stat, Zxid
from zabd.server import Server, ServerConfig
from zabd.zab import Effect, EnsembleConfig, Event, Peer, RecoveredState
from zabd.zab.events import Elapsed, Start
from zabd.znode_tree import Applied, Preparer, ZnodeTree, txns


async def reads_and_writes(hosts: str) -> None:
    """The operations of every day."""
    async with connect(hosts, retry=RetryPolicy(attempts=3)) as client:
        assert_type(client, Client)
        assert_type(client.state, SessionState)
        assert_type(await client.create("/a", b"1", ephemeral=True), str)
        data, stat = await client.get("/a")
        assert_type(data, bytes | None)
        assert_type(stat, Stat)
        assert_type(await client.exists("/b"), Stat | None)
        await client.create("/a", "text")  # type: ignore[arg-type]
        await client.create("/a", b"", None)  # type: ignore[call-arg]


async def several_at_once(client: Client) -> tuple[MultiPart, ...] | None:
    """A transaction, and what its failure says."""
    try:
        async with client.transaction() as change:
            assert_type(change, Transaction)
            change.check("/a", version=3).set("/b", b"2")
        return change.results
    except NoNodeError as error:
        assert_type(error.maybe_applied, bool)
        raise KeeperError from error
    except ConnectionLossError:
        return None


async def charge(attempt: Attempt) -> int:
    """A function of the user's."""
    return attempt.fencing_token


async def recipes(client: Client) -> None:
    """What a recipe gives is what the function gave."""
    outcome = await Dedup(client).run("key", charge)
    assert_type(outcome.value, int)
    assert_type(outcome.replayed, bool)
    lock = Lock(client, "/lock")
    async with lock:
        pass
    Lock(client)  # type: ignore[call-arg]


def threads(hosts: str) -> None:
    """The same names, blocking."""
    with SyncClient(hosts) as client:
        assert_type(client.create("/a"), str)
        assert_type(client.exists("/a"), Stat | None)


async def experiment(scenario: Scenario) -> str:
    """A program of the user's under a fault."""
    worker = scenario.spawn("worker", lambda: several_at_once(connect(scenario.hosts)))
    (await scenario.leader()).kill()
    assert_type(await worker.result(), tuple[MultiPart, ...] | None)
    return "done"


def simulated() -> None:
    """An experiment's result comes back."""
    assert_type(simulate(experiment, seed=7), str)
    assert_type(simulate(experiment, faults=["kill"]), str)
    simulate(experiment, 7)  # type: ignore[call-arg]


def consensus(config: EnsembleConfig) -> list[Effect]:
    """An engine in the hands of a host of the user's."""
    peer = Peer(config, RecoveredState(), random.Random(1))
    events: list[Event] = [Start(), Elapsed()]
    return [effect for event in events for effect in peer.step(event, 0)]


def tree() -> Preparer:
    """The replicated state by itself."""
    state = ZnodeTree()
    assert_type(state.apply(Zxid.of(1, 1), 0, 0, txns.set_data("/", b"", 1)), Applied)
    return Preparer(state)


def hosts_of(server: Server, loop: VirtualLoop) -> tuple[ServerConfig, float]:
    """What runs a member, and where it may run."""
    return server.config, loop.time()
