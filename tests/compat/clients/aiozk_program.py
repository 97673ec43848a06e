"""The scenario on aiozk, a client for asyncio that was written apart from all the others.

That client makes neither containers that go by themselves nor znodes with a time to live.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiozk
from aiozk import ACL, WatchEvent, exc, protocol
from aiozk.states import States

sys.path.insert(0, str(Path(__file__).parent))
from telling import PATIENCE_S, done, expect, fail, lose_member

SESSION_TIMEOUT_S = 10.0


async def connected(hosts: str) -> aiozk.ZKClient:
    """A client with a session."""
    client = aiozk.ZKClient(hosts, session_timeout=SESSION_TIMEOUT_S)
    async with asyncio.timeout(PATIENCE_S):
        await client.start()
    return client


async def refused(error: type[Exception], answer: Awaitable[object]) -> None:
    """Fail unless the answer is this error."""
    try:
        await answer
    except error:
        return
    fail(f"expected {error.__name__}")


async def stat(client: aiozk.ZKClient, path: str) -> protocol.stat.Stat:
    """The Stat of a znode, which this client's own `exists` keeps to itself."""
    return (await client.send(protocol.ExistsRequest(path=path, watch=False))).stat


async def kinds(client: aiozk.ZKClient, root: str) -> None:
    """Every kind of node, and what tells them apart."""
    session_id = client.session.session_id
    expect(await client.create(root), root)
    await refused(exc.NodeExists, client.create(root))
    await client.create(f"{root}/ephemeral", ephemeral=True)
    expect((await stat(client, f"{root}/ephemeral")).ephemeral_owner, session_id)
    await refused(exc.NoChildrenForEphemerals, client.create(f"{root}/ephemeral/child"))
    first = await client.create(f"{root}/s-", sequential=True)
    second = await client.create(f"{root}/s-", sequential=True, ephemeral=True)
    expect(int(second[-10:]) - int(first[-10:]), 1)
    expect((await stat(client, second)).ephemeral_owner, session_id)
    # It asks for containers in a way that makes persistent znodes on ZooKeeper, and here.
    expect(await client.create(f"{root}/container", container=True), f"{root}/container")


async def versions(client: aiozk.ZKClient, root: str) -> None:
    """A condition on the version decides."""
    path = f"{root}/versions"
    await client.create(path, "zero")
    expect((await client.set(path, "one", 0)).version, 1)
    await refused(exc.BadVersion, client.set(path, "two", 0))
    expect(await client.get_data(path), b"one")
    delete = protocol.DeleteRequest(path=path, version=0)
    await refused(exc.BadVersion, client.send(delete))
    await refused(exc.NotEmpty, client.delete(root, force=True))
    await client.send(protocol.DeleteRequest(path=path, version=1))
    await refused(exc.NoNode, client.get_data(path))


async def watches(client: aiozk.ZKClient, root: str) -> None:
    """Each of the four events."""
    path = f"{root}/w"

    async def seen(
        event: int, arm: Callable[[], Awaitable[object]], cause: Callable[[], Awaitable[object]]
    ) -> None:
        coming = client.wait_for_events([event], path)
        await arm()
        await cause()
        async with asyncio.timeout(PATIENCE_S):
            await coming

    def exists() -> Awaitable[object]:
        return client.exists(path, watch=True)

    await seen(WatchEvent.CREATED, exists, lambda: client.create(path))
    await seen(
        WatchEvent.DATA_CHANGED,
        lambda: client.get(path, watch=True),
        lambda: client.set_data(path, "x", force=True),
    )
    await seen(
        WatchEvent.CHILDREN_CHANGED,
        lambda: client.get_children(path, watch=True),
        lambda: client.create(f"{path}/child"),
    )
    await client.delete(f"{path}/child", force=True)
    await seen(WatchEvent.DELETED, exists, lambda: client.delete(path, force=True))


async def multi(client: aiozk.ZKClient, root: str) -> None:
    """All or nothing."""
    path = f"{root}/multi"
    transaction = client.begin_transaction()
    transaction.create(path, "")
    transaction.check_version(path, 0)
    transaction.set_data(path, "set", 0)
    result = await transaction.commit()
    expect((result.created, result.checked, result.updated), ({path}, {path}, {path}))
    expect(await client.get_data(path), b"set")

    transaction = client.begin_transaction()
    transaction.delete(path)
    transaction.check_version(f"{root}/absent", 0)
    expect(bool(await transaction.commit()), False)
    expect(await client.get_data(path), b"set")


async def acl(client: aiozk.ZKClient, root: str, hosts: str) -> None:
    """What only its creator may see."""
    path, mine = f"{root}/acl", [protocol.AUTHED_UNRESTRICTED]
    await refused(exc.InvalidACL, client.create(path, acl=mine))
    await client.send(protocol.AuthRequest(type=0, scheme="digest", auth="user:password"))
    await client.create(path, "secret", acl=mine)
    [given] = await client.get_acl(path)
    expect((given.perms, given.id.scheme), (31, "digest"))
    stranger = await connected(hosts)
    await refused(exc.NoAuth, stranger.get_data(path))
    await stranger.close()
    await client.set_acl(path, [ACL.make("world", "anyone", read=True)], force=True)
    expect(await client.get_data(path), b"secret")


async def reconnect(client: aiozk.ZKClient, root: str) -> None:
    """The session lives on at another member, with its ephemerals and its watches."""
    path, session_id = f"{root}/watched", client.session.session_id
    await client.create(path)
    changed = client.wait_for_events([WatchEvent.DATA_CHANGED], path)
    await client.get(path, watch=True)
    await asyncio.get_running_loop().run_in_executor(None, lose_member, session_id)
    async with asyncio.timeout(PATIENCE_S):
        await changed
        await client.session.state.wait_for(States.CONNECTED)
    expect(await client.get_data(path), b"changed meanwhile")
    expect(client.session.session_id, session_id)
    expect((await stat(client, f"{root}/ephemeral")).ephemeral_owner, session_id)


async def main(hosts: str, root: str) -> None:
    """All steps, in the order in which the test expects them."""
    client = await connected(hosts)
    done("connect")
    await kinds(client, root)
    done("kinds")
    await versions(client, root)
    done("versions")
    await watches(client, root)
    done("watches")
    await multi(client, root)
    done("multi")
    await acl(client, root, hosts)
    done("acl")
    await reconnect(client, root)
    done("reconnect")
    await client.close()
    done("close")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
