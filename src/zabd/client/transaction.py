"""Writes and checks gathered into one multi: all of them happen, at one zxid, or none does."""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from zabd.model.acl import Acl
from zabd.model.errors import LocalProtocolError
from zabd.model.ops import Check, Create, CreateMode, Delete, MultiOp, SetData
from zabd.model.results import MultiPart


class _Multi(Protocol):
    default_acl: tuple[Acl, ...]

    async def multi(self, ops: Sequence[MultiOp]) -> tuple[MultiPart, ...]: ...


class Transaction:
    """Made by `Client.transaction`.

    ``results = await tx.commit()``, or ``async with zk.transaction() as tx:`` which commits at the
    end of a block that raised nothing and leaves the results in `tx.results`. If an op fails,
    nothing is done and its error raises, with `op_index` saying which one it was.
    """

    def __init__(self, client: _Multi) -> None:
        self.ops: list[MultiOp] = []
        self.results: tuple[MultiPart, ...] | None = None
        self._client = client
        self._committed = False

    def create(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        acl: tuple[Acl, ...] | None = None,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> "Transaction":
        """Create a znode."""
        flags = (CreateMode.EPHEMERAL if ephemeral else 0) | (
            CreateMode.PERSISTENT_SEQUENTIAL if sequential else 0
        )
        entries = self._client.default_acl if acl is None else acl
        return self.add(Create(path, data, entries, flags))

    def delete(self, path: str, *, version: int = -1) -> "Transaction":
        """Delete a znode; -1 is any version."""
        return self.add(Delete(path, version))

    def set(self, path: str, data: bytes | None, *, version: int = -1) -> "Transaction":
        """Replace a znode's data; -1 is any version."""
        return self.add(SetData(path, data, version))

    def check(self, path: str, *, version: int = -1) -> "Transaction":
        """Let nothing happen unless the znode exists and has this version (-1: any)."""
        return self.add(Check(path, version))

    def add(self, op: MultiOp) -> "Transaction":
        """Add an op of any kind that a multi takes."""
        if self._committed:
            raise LocalProtocolError("this transaction was committed already; make a new one")
        self.ops.append(op)
        return self

    async def commit(self) -> tuple[MultiPart, ...]:
        """Send it; return one result for each op, in their order."""
        if self._committed:
            raise LocalProtocolError("this transaction was committed already; make a new one")
        self._committed = True
        self.results = await self._client.multi(self.ops)
        return self.results

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._committed:
            await self.commit()
