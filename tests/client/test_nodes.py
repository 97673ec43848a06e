"""Claims about watches, persistent nodes, parties and caches, on scripted servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from tests.client.fast_loop import FastLoop, run, wait_until
from tests.client.scripted_server import (
    LOSE_REPLY,
    LOSE_REQUEST,
    PASS,
    SWALLOW,
    ScriptedEnsemble,
)

from zabd.client import connect
from zabd.client.recipes import (
    ChangeKind,
    ChildrenWatch,
    DataWatch,
    Party,
    PersistentNode,
    TreeCache,
    TreeChange,
    Value,
)
from zabd.model.errors import LocalProtocolError
from zabd.model.ops import Create, Delete, GetData, OpCode, SetData


def test_a_data_watch_tells_every_state_that_lasts() -> None:
    """From there being nothing, across cuts and the loss of the session, to nothing again."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        seen: list[bytes | None] = []

        def note(value: Value | None) -> None:
            seen.append(None if value is None else value.data)

        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            task = DataWatch(zk, "/a").start(note)
            for step in (b"1", b"2"):
                await asyncio.sleep(1)
                await (other.set("/a", step) if step == b"2" else other.create("/a", step))
            await asyncio.sleep(1)
            ensemble.cut()
            ensemble.commit(other.session_id, [SetData("/a", b"3", -1)])
            await asyncio.sleep(1)
            ensemble.expire(zk.session_id)
            await other.set("/a", b"4")
            await asyncio.sleep(3)
            await other.delete("/a")
            await asyncio.sleep(1)
            assert seen == [None, b"1", b"2", b"3", b"4", None]
            requests = len(ensemble.requests)
            await asyncio.sleep(1)
            assert len(ensemble.requests) == requests
        await asyncio.wait([task])

    run(main)


def test_a_children_watch_is_an_iterator_that_ends() -> None:
    """When it is closed, or its client is; a callback that returns False ends it too."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            watch = ChildrenWatch(zk, "/a")
            assert await anext(watch) is None
            await zk.create("/a")
            assert await anext(watch) == []
            await zk.create("/a/b")
            assert await anext(watch) == ["b"]
            watch.close()
            assert [names async for names in watch] == []

            async def stop(_: list[str] | None) -> bool:
                return False

            await ChildrenWatch(zk, "/a").start(stop)
            last = ChildrenWatch(zk, "/a")
            await anext(last)
            waiting = asyncio.ensure_future(_rest(last))
            await asyncio.sleep(0.1)
        assert await waiting == []

    run(main)


async def _rest(watch: AsyncIterator[object]) -> list[object]:
    return [value async for value in watch]


@pytest.mark.parametrize("action", [None, LOSE_REPLY, LOSE_REQUEST])
def test_a_persistent_node_stands_whatever_happens_to_it(action: str | None) -> None:
    """A lost reply, a deletion, the loss of its session; with its latest data."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)

        def data() -> bytes | None:
            node = ensemble.leader.nodes.get("/s/a")
            return node.data if node else None

        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            await zk.ensure_path("/s")
            if action is not None:
                ensemble.once(Create, action)
            async with PersistentNode(zk, "/s/a", b"1") as node:
                await node.wait_present(timeout=5)
                assert node.present
                token = node.fencing_token
                await node.set(b"2")
                await node.set(b"3")
                await asyncio.sleep(0.5)
                assert data() == b"3"
                await other.delete("/s/a")
                await wait_until(lambda: node.present and data() == b"3")
                assert node.fencing_token > token
                ensemble.expire(zk.session_id)
                await wait_until(lambda: node.present and data() == b"3")
                assert ensemble.leader.nodes["/s/a"].owner == zk.session_id
            assert data() is None

    run(main)


def test_a_persistent_node_waits_for_the_dying_one() -> None:
    """It must not be taken for ours, and not be deleted: it may be somebody else's."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            await other.create("/a", b"theirs", ephemeral=True)
            async with PersistentNode(zk, "/a", b"ours") as node:
                await asyncio.sleep(1)
                assert not node.present
                await other.delete("/a")
                await node.wait_present(timeout=1)
                assert (await other.get("/a")).data == b"ours"

    run(main)


def test_closing_a_node_whose_create_is_in_doubt_leaves_nothing() -> None:
    """Nobody else would remove it before the session ends."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            node = PersistentNode(zk, "/a")
            ensemble.once(Create, LOSE_REPLY)
            closing: list[asyncio.Task[None]] = []
            ensemble.on_fault = lambda: closing.append(asyncio.ensure_future(node.close()))
            await node.start()
            await wait_until(lambda: closing)
            await closing[0]
            assert "/a" not in ensemble.leader.nodes

    run(main)


def test_a_lost_reply_to_a_delete_does_not_delete_who_came_next() -> None:
    """Sent again, it would take down the znode of another session."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            mine, another = PersistentNode(zk, "/a"), PersistentNode(other, "/a")
            await mine.start()
            await mine.wait_present(timeout=5)
            await another.start()
            await asyncio.sleep(1)
            ensemble.once(Delete, LOSE_REPLY)
            await mine.close()
            await another.wait_present(timeout=5)
            await asyncio.sleep(1)
            assert another.present
            assert len(ensemble.seen(Delete)) == 1

    run(main)


@pytest.mark.parametrize("shallow", [False, True])
def test_members_of_a_party_see_each_other_come_and_go(shallow: bool) -> None:  # noqa: FBT001
    """And stay members when a session is lost."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        hosts = ensemble.hosts
        async with connect(hosts) as one, connect(hosts) as two:
            watcher = Party(one, "/p", shallow=shallow)
            changes = watcher.watch()
            assert await anext(changes) == []
            async with Party(one, "/p", identifier="a", shallow=shallow) as first:
                assert first.joined
                assert await anext(changes) == ["a"]
                async with Party(two, "/p", identifier="b", shallow=shallow):
                    assert await anext(changes) == ["a", "b"]
                    assert await first.members() == ["a", "b"]
                    ensemble.expire(two.session_id)
                    assert await anext(changes) == ["a"]
                    assert await anext(changes) == ["a", "b"]
            assert await watcher.members() == []
            await changes.aclose()

    run(main)


@pytest.mark.parametrize("ephemeral", [True, False])
def test_closing_outlasts_the_loss_of_the_session(ephemeral: bool) -> None:  # noqa: FBT001
    """What does not go with it is deleted by the next one; what does is not waited for longer."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            node = PersistentNode(zk, "/a", b"1", ephemeral=ephemeral)
            await node.start()
            await node.wait_present()
            loop.black_hole = True
            start = loop.time()
            closing = asyncio.ensure_future(node.close())
            await asyncio.sleep(100)
            assert closing.done() == ephemeral
            loop.black_hole = False
            await closing
            assert loop.time() - start < 200
            assert "/a" not in ensemble.leader.nodes

    run(main)


def test_a_node_that_is_started_behind_a_close_waits_for_it() -> None:
    """What takes the old znode away must not take the new one."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            node = PersistentNode(zk, "/a", b"1")
            for _ in range(3):
                await node.start()
                await node.wait_present()
                node.close_soon()
            await node.start()
            await node.wait_present()
            await asyncio.sleep(1)
            assert node.present
            assert len(ensemble.seen(Create)) == 4
            await node.close()
            assert "/a" not in ensemble.leader.nodes

    run(main)


def test_a_node_that_can_never_stand_says_so() -> None:
    """Rather than let others wait for it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            node = PersistentNode(zk, "/a", b"x" * 2_000_000)
            await node.start()
            with pytest.raises(LocalProtocolError, match="the servers take"):
                await node.wait_present()
            async with PersistentNode(zk, "/a", b"x") as other:
                await other.wait_present()
                with pytest.raises(LocalProtocolError, match="the servers take"):
                    await other.set(b"x" * 2_000_000)
                assert other.data == b"x"
            late = PersistentNode(zk, "/b")
            await late.start()
            with pytest.raises(LocalProtocolError, match="it was closed"):
                await asyncio.gather(late.wait_present(), late.close())
            await node.set(b"y")
            await node.wait_present(timeout=2)
            await node.close()
            loop.black_hole = True
            await asyncio.sleep(30)
            await late.start()
            waiting = asyncio.ensure_future(late.wait_present())
            await asyncio.sleep(1)
        with pytest.raises(LocalProtocolError, match="client is closed"):
            await waiting

    run(main)


def test_a_znode_that_breaks_each_connection_does_not_do_so_for_ever() -> None:
    """Those of all the rest of the client would go with it."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        ensemble.faults.append(lambda _, op: LOSE_REQUEST if isinstance(op, Create) else PASS)
        async with connect(ensemble.hosts) as zk, PersistentNode(zk, "/a"):
            await asyncio.sleep(100)
            assert len(ensemble.seen(Create)) < 40
            ensemble.faults.clear()
            await wait_until(lambda: "/a" in ensemble.leader.nodes, limit=100)

    run(main)


def test_joining_a_party_ends_at_its_deadline() -> None:
    """Connected or not; what it left behind does not disturb the next attempt."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with connect(ensemble.hosts) as zk:
            loop.black_hole = True
            await asyncio.sleep(30)
            party = Party(zk, "/p", identifier="me")
            start = loop.time()
            with pytest.raises(TimeoutError):
                await party.join(timeout=5)
            assert loop.time() - start < 5.1
            loop.black_hole = False
            await party.join(timeout=60)
            await asyncio.sleep(1)
            assert party.joined
            assert await party.members() == ["me"]
            await party.leave()
            assert await party.members() == []

    run(main)


def test_members_are_watched_across_a_partition_in_the_middle_of_a_look() -> None:
    """The read of a member's name fails then, and is made again."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        async with (
            connect(ensemble.hosts, operation_timeout=1) as zk,
            connect(ensemble.hosts) as other,
            aclosing(Party(zk, "/p").watch()) as changes,
        ):
            assert await anext(changes) == []
            await Party(other, "/p", identifier="one").join()
            ensemble.once(GetData, SWALLOW)
            assert await anext(changes) == ["one"]

    run(main)


def test_a_tree_cache_follows_one_watch() -> None:
    """One read for a change, none when idle, and all again after a reconnect."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop, 3)
        told: list[tuple[ChangeKind, str]] = []

        def note(change: TreeChange) -> None:
            told.append((change.kind, change.path))

        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            for path in ("/t", "/t/a", "/t/a/x", "/tt"):
                await other.create(path, path.encode())
            async with TreeCache(zk, "/t", on_change=note) as cache:
                assert cache.paths() == ["/t", "/t/a", "/t/a/x"]
                assert cache.data("/t/a/x") == b"/t/a/x"
                told.clear()
                count = len(ensemble.requests)
                await other.set("/t/a", b"new")
                await other.create("/t/b", b"b")
                await other.delete("/t/a/x")
                await asyncio.sleep(1)
                writes = len(ensemble.seen(Create, SetData, Delete))
                assert writes == 7
                assert len(ensemble.requests) - count == 3 + 2 + 1  # a deleted one is asked for too
                assert told == [
                    (ChangeKind.CHANGED, "/t/a"),
                    (ChangeKind.ADDED, "/t/b"),
                    (ChangeKind.REMOVED, "/t/a/x"),
                ]
                assert cache.children("/t") == ["a", "b"]
                assert cache.children("/t/a") == []
                for server in ensemble.servers:
                    ensemble.shut(server)
                ensemble.commit(other.session_id, [Delete("/t/b"), Create("/t/c", b"", ())])
                for server in ensemble.servers:
                    ensemble.open(server)
                await wait_until(lambda: cache.children("/t") == ["a", "c"])
                ensemble.expire(zk.session_id)
                await other.set("/t/c", b"c")
                await wait_until(lambda: cache.data("/t/c") == b"c")
                await other.delete("/t/c")
                await wait_until(lambda: "/t/c" not in cache)

    run(main)


def test_a_tree_cache_makes_do_without_recursive_watches() -> None:
    """Servers before 3.6 do not know them."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        ensemble.unimplemented.add(OpCode.ADD_WATCH)
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            cache = TreeCache(zk, "/t")
            async with cache:
                assert len(cache) == 0
                await other.create("/t/a/b", b"1", make_parents=True)
                await wait_until(lambda: cache.data("/t/a/b") == b"1")
                await other.set("/t/a/b", b"2")
                await wait_until(lambda: cache.data("/t/a/b") == b"2")
                await other.delete("/t/a", recursive=True)
                await wait_until(lambda: cache.paths() == ["/t"])

    run(main)


@pytest.mark.parametrize("recursive", [True, False])
def test_a_tree_cache_outlasts_a_backlog_of_events(
    recursive: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was too much to be kept is read anew, and what comes later is told again."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        if not recursive:
            ensemble.unimplemented.add(OpCode.ADD_WATCH)
        monkeypatch.setattr("zabd.client.events.STREAM_LENGTH_MAX", 10)
        async with connect(ensemble.hosts) as zk, connect(ensemble.hosts) as other:
            for number in range(20):
                await other.create(f"/t/{number}", make_parents=True)
            async with TreeCache(zk, "/t") as cache:
                await asyncio.gather(*(other.create(f"/t/{n}/x") for n in range(20)))
                for step in (b"1", b"2"):
                    await asyncio.gather(*(other.set(f"/t/{n}", step) for n in range(20)))
                    await asyncio.sleep(10)
                    assert len(cache) == 41
                    assert {cache.data(f"/t/{n}") for n in range(20)} == {step}
                await other.set("/t/0", b"3")
                await asyncio.sleep(1)
                assert cache.data("/t/0") == b"3"

    run(main)
