"""Claims about a member's page for Prometheus."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.scrape import Sample, fetch, read_page, value_of
from tests.server.helpers import run, until
from tests.server.test_app import (
    Session,
    alone,
    ask_word,
    leader_of,
    open_session,
    running,
    server_of,
)
from tests.server.test_app import three as three_members

from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.ops import Create, GetChildren, SetData
from zabd.server import census
from zabd.server.app import CannotListenError, Server
from zabd.server.census import EphemeralCensus
from zabd.server.http_link import HttpChannel
from zabd.server.monitored import HELP, OMITTED, monitored
from zabd.znode_tree import ZnodeTree, txns

EPHEMERAL = 1
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Path]:
    """Each loop that a test runs on gets a directory of its own."""
    count = iter(range(10))
    return lambda: tmp_path / str(next(count))


async def scrape(server: Server) -> list[Sample]:
    """The member's page, fetched by a thread that knows nothing of this loop."""
    port = server.metrics_port
    assert port is not None
    return read_page(await asyncio.get_running_loop().run_in_executor(None, fetch, port))


async def ephemeral(session: Session, path: str) -> None:
    """Make one."""
    reply = await session.ask(Create(path, b"", OPEN_ACL_UNSAFE, EPHEMERAL))
    assert reply.error == 0


def test_the_page_has_the_gauges_of_mntr_and_more(fresh: Callable[[], Path]) -> None:
    """Each key of mntr is there under its name, with its value, but for the two that cannot be."""

    async def scenario() -> None:
        server = server_of(alone(fresh(), metrics_port=0))
        async with running(server):
            session = await open_session(server)
            await session.create("/dedup")
            for key in ("a", "b"):
                await session.create(f"/dedup/{key}")
                await ephemeral(session, f"/dedup/{key}/lock-1")
            await ephemeral(session, "/dedup/a/lock-2")
            await ephemeral(session, "/alone")
            words = await ask_word(server.config.client_port, b"mntr")
            page = await scrape(server)

            lines = dict(line.split("\t") for line in words.splitlines())
            names = {sample.name for sample in page}
            assert {f"zk_{key}" for key in OMITTED} & lines.keys()
            assert lines.keys() - {f"zk_{key}" for key in OMITTED} <= names
            for key in ("znode_count", "ephemerals_count", "global_sessions", "zabd_epoch"):
                assert value_of(page, f"zk_{key}") == int(lines[f"zk_{key}"])
            assert value_of(page, "zk_server_state", state="standalone") == 1
            ephemerals = {
                s.labels["prefix"]: s.value for s in page if s.name == "zk_ephemeral_nodes_total"
            }
            assert ephemerals == {"/": 4, "/dedup": 3, "/dedup/a": 2, "/dedup/b": 1}
            assert value_of(page, "zk_quorum_size") == value_of(page, "zk_ensemble_size") == 1
            session.close()

    run(scenario)


def test_latencies_and_events_are_counted_on_the_way(fresh: Callable[[], Path]) -> None:
    """Each write and each event; reads by what their chunk ended in."""

    async def scenario() -> None:
        server = server_of(alone(fresh(), metrics_port=0))
        async with running(server):
            session = await open_session(server)
            await session.create("/app")
            await session.get("/app")
            watcher = await open_session(server)
            await watcher.ask(GetChildren("/app", watch=True))
            for number in range(3):
                await session.create(f"/app/{number}")
            await watcher.next()
            watcher.close()
            await session.ask(SetData("/app", b"x", -1))
            page = await scrape(server)

            def count(op: str) -> float | None:
                return value_of(page, "zk_operation_latency_ms_count", op=op)

            assert (count("create"), count("setData")) == (4, 1)
            assert (count("getData"), count("getChildren")) == (1, 1)
            assert value_of(page, "zk_operation_latency_ms_bucket", op="getData", le="1") == 1
            labels = {"prefix": "/app", "type": "children_changed"}
            assert value_of(page, "zk_watch_notifications_total", **labels) == 1

            await ask_word(server.config.client_port, b"srst")
            again = await scrape(server)
            assert value_of(again, "zk_operation_latency_ms_count", op="create") == 4
            assert value_of(again, "zk_max_latency") == 0
            session.close()

    run(scenario)


def test_the_leader_knows_how_many_serve(fresh: Callable[[], Path]) -> None:
    """Three of three, two of three when one is gone, and nobody serves when two are."""

    async def scenario() -> None:
        servers = [
            server_of(replace(server.config, metrics_port=0)) for server in three_members(fresh())
        ]
        async with running(*servers):
            await until(lambda: all(s.driver.replica.serving for s in servers))
            leader = leader_of(servers)
            assert leader is not None
            others = [server for server in servers if server is not leader]
            await until(lambda: leader.driver.replica.peer.synced_followers == 2)
            assert value_of(await scrape(leader), "zk_quorum_size") == 3
            for other in others:
                page = await scrape(other)
                assert value_of(page, "zk_quorum_size") == 2  # what it knows is that there is one
                assert value_of(page, "zk_ensemble_size") == 3
            await others[0].stop()
            await until(lambda: leader.driver.replica.peer.synced_followers == 1)
            assert value_of(await scrape(leader), "zk_quorum_size") == 2
            await others[1].stop()
            await until(lambda: not leader.driver.replica.serving)
            page = await scrape(leader)
            assert value_of(page, "zk_quorum_size") == 0
            assert value_of(page, "zk_server_state", state="looking") == 1

    run(scenario)


def test_a_port_that_is_taken_is_an_error_that_names_it(fresh: Callable[[], Path]) -> None:
    """Rather than a member that nobody can look at."""

    async def scenario() -> None:
        taken = HttpChannel(asyncio.get_running_loop(), {}, lambda _event, _fields: None)
        await taken.listen("127.0.0.1", 0)
        server = server_of(alone(fresh(), metrics_port=taken.port))
        with pytest.raises(CannotListenError, match="metrics port"):
            await server.start()
        taken.close()

    run(scenario)


def test_ephemerals_are_counted_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest keys are named; what goes meanwhile does no harm."""
    monkeypatch.setattr(census, "SLICE", 3)
    tree = ZnodeTree()
    owners = (5, 6)
    zxid = 0

    def apply(session_id: int, txn: tuple[object, ...]) -> None:
        nonlocal zxid
        zxid += 1
        assert tree.apply(zxid, 1, session_id, txn).error == 0  # type: ignore[arg-type]

    for owner in owners:
        apply(owner, txns.create_session(1000))
    apply(5, txns.create("/k", b"", OPEN_ACL_UNSAFE, 0, 1))
    for number, count in enumerate((1, 4, 2)):
        apply(5, txns.create(f"/k/{number}", b"", OPEN_ACL_UNSAFE, 0, number + 1))
        for child in range(count):
            path, owner = f"/k/{number}/{child}", owners[child % 2]
            apply(owner, txns.create(path, b"", OPEN_ACL_UNSAFE, owner, child + 1))
    counting = EphemeralCensus(tree, keys_max=2)
    slices = 1
    while counting.step():
        slices += 1
    assert slices == 4  # seven ephemerals, one component, three keys
    assert counting.result() == {"/": 7, "/k": 7, "/k/1": 4, "/k/2": 2}

    counting = EphemeralCensus(tree, keys_max=2)
    assert counting.step()
    apply(6, txns.close_session(tuple(tree.ephemerals[6])))
    while counting.step():
        pass
    assert counting.result()["/"] == 4  # what was of the other session


def test_every_key_has_a_sentence_and_stands_in_the_reference() -> None:
    """Who builds a dashboard reads the page, then the reference."""
    page = REFERENCE.read_text("utf-8")
    documented = set(re.findall(r"^\| `(zk_\w+)`", page, re.MULTILINE))

    assert {monitored(key).name for key in HELP} <= documented
