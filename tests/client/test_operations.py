"""Claims about the operations as methods: what is asked for, and what comes back."""

import asyncio
import inspect
import json
import logging
import sys

import pytest
from tests.client.fast_loop import FastLoop, run
from tests.client.scripted_server import LOSE_REPLY, ScriptedEnsemble

from zabd.client import Client, EventStream, connect
from zabd.client.recipes import Dedup
from zabd.client.recipes.dedup.log import JsonFormatter
from zabd.model.acl import READ_ACL_UNSAFE
from zabd.model.errors import BadArgumentsError, NodeExistsError, NoNodeError
from zabd.model.ops import (
    Check,
    Create,
    CreateContainer,
    CreateMode,
    CreateTtl,
    Delete,
    GetChildren,
    GetData,
    Multi,
    SetData,
)
from zabd.model.results import ChildrenResult, CreateResult, ErrorResult, GetDataResult
from zabd.model.watch_events import EventType, WatcherType, WatchEvent


def test_every_kind_of_znode_is_asked_for_by_its_own_op() -> None:
    """The server takes the kind from op and flags together."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.create("/c", container=True)
            await zk.create("/t", ttl=1.5)
            await zk.create("/t-", ttl=1.5, sequential=True)
            created = await zk.create_with_stat("/e/f-", b"x", ephemeral=True, sequential=True,
                                                make_parents=True)  # fmt: skip
            assert created.path == "/e/f-0000000000"
            assert created.stat.ephemeral_owner == zk.session_id
            [container] = ensemble.seen(CreateContainer)
            assert container.flags == CreateMode.CONTAINER
            assert [(op.flags, op.ttl) for op in ensemble.seen(CreateTtl)] == [
                (CreateMode.PERSISTENT_WITH_TTL, 1500),
                (CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL, 1500),
            ]
            with pytest.raises(BadArgumentsError):
                await zk.create("/x", container=True, ephemeral=True)
            with pytest.raises(BadArgumentsError):
                await zk.create("/x", ttl=1, ephemeral=True)

    run(main)


def test_reads_return_what_they_promise() -> None:
    """Sorted names, whole Stats, None for what is not there."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(f"{ensemble.hosts}/app") as zk:
            await zk.ensure_path("/")
            for name in ("b", "c", "a"):
                await zk.create(f"/{name}", name.encode(), ephemeral=name == "c")
            assert await zk.get_children("/") == ["a", "b", "c"]
            names, stat = await zk.get_children_with_stat("/")
            assert (names, stat.num_children) == (["a", "b", "c"], 3)
            assert await zk.get_ephemerals() == ["/c"]
            assert await zk.count_descendants("/") == 3
            await zk.set_acl("/a", READ_ACL_UNSAFE)
            assert (await zk.get_acl("/a")).acl == READ_ACL_UNSAFE
            data, children, missing = await zk.multi_read(
                [GetData("/a"), GetChildren("/"), GetData("/nope")]
            )
            assert isinstance(data, GetDataResult)
            assert data.data == b"a"
            assert isinstance(children, ChildrenResult)
            assert isinstance(missing, ErrorResult)
            await zk.add_auth("digest", "bob:x")
            assert [info.scheme for info in await zk.who_am_i()] == ["digest"]

    run(main)


def test_a_recursive_delete_and_ensure_path_do_not_mind_who_was_there_first() -> None:
    """Both say what should be, not what to do."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.ensure_path("/a/b/c")
            await zk.ensure_path("/a/b/c")
            await zk.ensure_path("/a/b/d")
            await zk.delete("/a", recursive=True)
            assert await zk.get_children("/") == []
            ensemble.once(Create, LOSE_REPLY)
            await zk.ensure_path("/x")
            assert await zk.exists("/x") is not None

    run(main)


def test_a_recursive_delete_goes_deeper_than_the_stack_of_python() -> None:
    """Depth is limited by the length of a path alone."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            await zk.ensure_path("/d" * 200)
            await zk.delete("/d", recursive=True)
            assert await zk.get_children("/") == []

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 150)
    try:
        run(main)
    finally:
        sys.setrecursionlimit(limit)


def test_a_transaction_does_all_or_nothing_and_names_the_culprit() -> None:
    """With `op_index`, its path and the class that a single call would have raised."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(f"{ensemble.hosts}/app") as zk:
            await zk.ensure_path("/")
            async with zk.transaction() as tx:
                tx.create("/a", b"1").create("/s-", sequential=True).check("/a", version=0)
                tx.set("/a", b"2").delete("/a").add(Create("/b", b"", zk.default_acl))
            assert tx.results is not None
            assert tx.results[1] == CreateResult("/s-0000000001")
            with pytest.raises(NoNodeError) as caught:
                await zk.multi([Delete("/b"), Check("/nope"), SetData("/b", b"")])
            assert (caught.value.op_index, caught.value.path) == (1, "/nope")
            assert await zk.exists("/b") is not None
            sent = len(ensemble.seen(Multi))
            with pytest.raises(ZeroDivisionError):
                async with zk.transaction() as tx:
                    tx.delete("/b")
                    _ = 1 // 0
            assert len(ensemble.seen(Multi)) == sent
            with pytest.raises(NodeExistsError):
                await zk.create("/b")

    run(main)


def test_watches_can_be_persistent_and_removed() -> None:
    """A persistent watch hears of every change until it is removed."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            stream: EventStream[WatchEvent] = EventStream()
            await zk.create("/a")
            await zk.add_watch("/", stream, recursive=True)
            await zk.create("/a/b")
            await zk.set("/a", b"1")
            await zk.delete("/a/b")
            got = [await anext(stream) for _ in range(3)]
            assert [(e.type, e.path) for e in got] == [
                (EventType.CREATED, "/a/b"),
                (EventType.DATA_CHANGED, "/a"),
                (EventType.DELETED, "/a/b"),
            ]
            await zk.remove_watches("/")
            await zk.set("/a", b"2")
            await asyncio.sleep(0.1)
            stream.close()
            told = [(event.type, event.path) async for event in stream]
            assert told == [(EventType.PERSISTENT_WATCH_REMOVED, "/")]
            assert len(zk._session.watches) == 0

    run(main)


def test_the_client_says_what_it_is_connected_to() -> None:
    """For logs and status lines."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        zk: Client = connect(f"{ensemble.hosts}/app")
        assert (zk.server, zk.chroot) == ("", "/app")
        assert not zk.check_lease()
        async with zk:
            assert zk.server == "zk:2181"
            assert zk.connected
            assert zk.last_zxid >= 0
            assert zk.identity.pid > 0

    run(main)


def test_log_records_can_be_json(caplog: pytest.LogCaptureFixture) -> None:
    """One object a line, with the four fields that the runbook looks for."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            async with Dedup(zk).hold("k") as ctx:
                await ctx.complete()
            async with Dedup(zk, log_key="hash").hold("secret") as ctx:
                await ctx.complete()

    with caplog.at_level(logging.INFO, "zabd.dedup"):
        run(main)
    lines = [json.loads(JsonFormatter().format(r)) for r in caplog.records if "dedup" in r.name]
    assert all({"idempotency_key", "znode_path", "session_id"} <= set(line) for line in lines)
    assert [line["event"] for line in lines if "event" in line][:3] == [
        "created",
        "acquired",
        "released",
    ]
    assert not any("secret" in json.dumps(line) for line in lines)
    plain = logging.LogRecord("x", logging.INFO, "", 0, "hello", (), None)
    assert json.loads(JsonFormatter().format(plain))["message"] == "hello"


def test_watches_of_one_kind_are_removed_and_do_not_come_back() -> None:
    """What is left is set again at the next reconnect, and nothing else."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts + "/app") as zk:
            await zk.ensure_path("/a")
            heard: list[tuple[str, EventType, str]] = []
            for name in ("data", "child", "stays"):

                def watcher(event: WatchEvent, name: str = name) -> None:
                    heard.append((name, EventType(event.type), event.path))

                match name:
                    case "data":
                        await zk.get("/a", watch=watcher)
                    case "child":
                        await zk.get_children("/a", watch=watcher)
                    case _:
                        await zk.add_watch("/a", watcher)
            await zk.remove_watches("/a", WatcherType.DATA)
            await asyncio.sleep(0.1)
            assert heard == [("data", EventType.DATA_WATCH_REMOVED, "/a")]
            ensemble.cut(ensemble.servers[0])
            await asyncio.sleep(2)
            await zk.create("/a/b")
            await asyncio.sleep(0.1)
            assert {name for name, *_ in heard[1:]} == {"child", "stays"}

    run(main)
