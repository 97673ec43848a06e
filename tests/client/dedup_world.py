"""What tests of the dedup recipe share: a key, functions to run, and looks at the servers."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.client.scripted_server import ScriptedEnsemble

from zabd.client import Client, connect
from zabd.client.metrics import MemoryMetrics
from zabd.client.recipes.dedup import Attempt, Dedup, SessionLostError
from zabd.model.ops import (
    READ_OPCODES,
    WRITE_OPCODES,
    Create,
    Create2,
    CreateTtl,
    Multi,
    Op,
    OpCode,
    SetData,
)

KEY = "req-42"
PARENT = f"/dedup/{KEY}"
READS = READ_OPCODES | {OpCode.SYNC}

Work = Callable[[Attempt], Awaitable[object]]


def returns(value: object, *, after: float = 0.0, runs: list[int] | None = None) -> Work:
    """A function that counts its runs and returns a value after a while."""

    async def work(ctx: Attempt) -> object:
        if runs is not None:
            runs.append(ctx.fencing_token)
        await asyncio.sleep(after)
        return value

    return work


def nodes(ensemble: ScriptedEnsemble) -> list[str]:
    """The children of the key's znode, as the leader has them."""
    node = ensemble.leader.nodes.get(PARENT)
    return sorted(node.children) if node else []


def locks(ensemble: ScriptedEnsemble) -> list[str]:
    """The lock znodes among them."""
    return [name for name in nodes(ensemble) if name.startswith("lock-")]


def locks_ever(ensemble: ScriptedEnsemble) -> int:
    """How many lock znodes of the key were made, by the servers' log."""
    return sum(
        isinstance(op, Create | Create2) and op.path == f"{PARENT}/lock-"
        for _, _, _, ops in ensemble.log
        for op in ops
    )


def outcomes_ever(ensemble: ScriptedEnsemble) -> int:
    """How many outcomes of the key were recorded, by the servers' log."""
    return sum(
        isinstance(op, Create | CreateTtl) and op.path == f"{PARENT}/result"
        for _, _, _, ops in ensemble.log
        for op in ops
    )


def commits(op: Op) -> bool:
    """Whether a request is a multi that records an outcome."""
    return isinstance(op, Multi) and any(
        isinstance(part, Create | CreateTtl) and part.path.endswith("/result") for part in op.ops
    )


def begins(op: Op) -> bool:
    """Whether a request writes a journal."""
    return isinstance(op, Multi) and any(
        isinstance(part, Create | CreateTtl | SetData) and part.path.endswith("/started")
        for part in op.ops
    )


def cost(ensemble: ScriptedEnsemble, since: int) -> tuple[int, int]:
    """Reads and writes that arrived since then."""
    opcodes = [getattr(op, "opcode", OpCode.PING) for _, _, op in ensemble.requests[since:]]
    reads = [opcode for opcode in opcodes if opcode in READS]
    writes = [opcode for opcode in opcodes if opcode in WRITE_OPCODES]
    return len(reads), len(writes)


def figures(zk: Client) -> MemoryMetrics:
    """The client's figures."""
    assert isinstance(zk.metrics, MemoryMetrics)
    return zk.metrics


def events_of(records: list[object], logger: str, field: str) -> list[str]:
    """The events that a logger of the recipe told, in order."""
    told = [vars(record) for record in records]
    return [fields[field] for fields in told if fields["name"] == logger and field in fields]


async def die_in_the_middle(ensemble: ScriptedEnsemble) -> int:
    """Leave an attempt in doubt behind, as a killed process does; return its token."""
    token = 0

    async def work(ctx: Attempt) -> None:
        nonlocal token
        token = ctx.fencing_token
        await asyncio.sleep(100)

    async with connect(ensemble.hosts) as zk:
        call = asyncio.ensure_future(Dedup(zk).run(KEY, work, payload=b"x"))
        await asyncio.sleep(1)
        ensemble.expire(zk.session_id)
        with pytest.raises(SessionLostError):
            await call
    return token
