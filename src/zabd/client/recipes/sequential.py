"""Ephemeral sequential znodes: making one, and finding one's own after the reply was lost."""

import asyncio

from zabd.client.recipes.bound import Bound
from zabd.client.recipes.contenders import Rule, contenders_among
from zabd.model.acl import Acl
from zabd.model.errors import ConnectionLossError, NoNodeError, UnimplementedError
from zabd.model.ops import Create, Create2, CreateMode, OpCode
from zabd.model.paths import join
from zabd.model.results import Create2Result, CreateResult
from zabd.model.stat import Stat


async def create(bound: Bound, path: str, data: bytes, acl: tuple[Acl, ...]) -> tuple[str, Stat]:
    """Create one, once; return its path, with the number, and its Stat.

    Raises:
        NoNodeError: there is no parent.
        ConnectionLossError: it may have been created; see `find_own`.
    """
    op = Create2(path, data, acl, CreateMode.EPHEMERAL_SEQUENTIAL)
    known = bound.client.fallbacks
    if known.knows(OpCode.CREATE2):
        try:
            result = await bound.once(op)
        except UnimplementedError:
            known.forget(OpCode.CREATE2)
            await bound.outlast_refusal()
        else:
            assert isinstance(result, Create2Result)
            return result.path, result.stat
    return await _create_then_stat(bound, op)


async def _create_then_stat(bound: Bound, op: Create2) -> tuple[str, Stat]:
    """For servers before 3.5, which create without saying when."""
    result = await bound.once(Create(*op))
    assert isinstance(result, CreateResult)
    stat = await bound.stat(result.path)
    if stat is None:
        raise ConnectionLossError("the new znode is gone already", path=result.path)
    return result.path, stat


async def find_own(bound: Bound, parent: str, prefix: str, rule: Rule) -> list[tuple[str, Stat]]:
    """The contenders of this session, lowest first, by all that the leader knows.

    They are found by their owner: a znode of an earlier session is dying. The `sync` is not
    optional: a server that lags would show nothing.
    """
    await bound.sync(parent)
    names = [name for name in await _candidates(bound, parent) if name.startswith(prefix)]
    stats = await asyncio.gather(*(bound.stat(join(parent, name)) for name in names))
    return [
        (contender.name, stat)
        for contender in contenders_among(names, rule.contends)
        if (stat := stats[names.index(contender.name)]) is not None
        and stat.ephemeral_owner == bound.session_id
    ]


async def _candidates(bound: Bound, parent: str) -> list[str]:
    """Znodes that may be ours: those of the session, where the server can tell, else all."""
    names = await bound.ephemerals(parent)
    if names is not None:
        return names
    try:
        return await bound.children(parent)
    except NoNodeError:
        return []
