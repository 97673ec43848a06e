"""Writes that are done exactly once though their replies get lost.

A write that leaves no trace of its author (a new version, a deleted znode, a sequential one) cannot
be told from somebody else's after its reply was lost. So it goes in one transaction with a receipt:
an ephemeral znode of this session, which holds the number of the last write that went this way.

Invariants
    I1  A write and its receipt happen together or not at all; one write of a receipt is under way
        at a time, so the receipt answers whether the last one was done.
    I2  Nothing is promised beyond the session: when it ends before the answer, the error says so
        (`maybe_applied`), and the receipt is gone.

Cost: none for a write but that it travels in a multi; one znode for each client and parent, made
with the first write.
"""

import asyncio
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from zabd.client.client import Client
from zabd.client.recipes.bound import Bound
from zabd.client.recipes.parents import ensure_path
from zabd.model.acl import Acl
from zabd.model.errors import ConnectionLossError, NoNodeError, SessionExpiredError
from zabd.model.ids import SessionId
from zabd.model.ops import Create, CreateMode, MultiOp, SetData
from zabd.model.paths import join

_ID_BITS = 128
_receipts: WeakKeyDictionary[Client, dict[str, "Receipt"]] = WeakKeyDictionary()


class Receipt:
    """The receipt of one client under one parent; `Receipt.of` finds or makes it."""

    def __init__(self, client: Client, parent: str, acl: tuple[Acl, ...] | None) -> None:
        self._client = client
        self._acl = client.default_acl if acl is None else acl
        self._parent = parent
        self._turn = asyncio.Lock()
        self._session_id: SessionId = 0
        self._path = ""
        self._made = False
        self._number = 0

    @classmethod
    def of(cls, client: Client, parent: str, acl: tuple[Acl, ...] | None = None) -> "Receipt":
        """The receipt that this client has under `parent`."""
        known = _receipts.setdefault(client, {})
        if parent not in known:
            known[parent] = cls(client, parent, acl)
        return known[parent]

    async def write(self, ops: Sequence[MultiOp]) -> None:
        """Do `ops` all together, exactly once; a cancelled caller does not stop what was begun.

        Raises:
            KeeperError: what the ensemble said, and nothing was done; `op_index` is that of `ops`.
            SessionExpiredError: the session ended; with `maybe_applied`, perhaps behind it.
        """
        await asyncio.shield(self._client.spawn(self._write(list(ops))))

    async def _write(self, ops: list[MultiOp]) -> None:
        async with self._turn:
            bound = await self._bind()
            self._number += 1
            while True:
                try:
                    await bound.multi([*ops, self._sign()])
                except ConnectionLossError:
                    if await self._done(bound):
                        return
                except NoNodeError as error:
                    if error.op_index != len(ops):
                        raise
                    if self._made:
                        # With the receipt, all that we know of the parent may be out of date.
                        self._made = False
                        raise
                    await ensure_path(bound, self._parent, self._acl)
                else:
                    self._made = True
                    return

    async def _bind(self) -> Bound:
        """Begin anew for a new session."""
        bound = await Bound.now(self._client)
        if self._session_id != bound.session_id:
            self._session_id = bound.session_id
            self._path = join(self._parent, f"{self._client.rng.getrandbits(_ID_BITS):032x}")
            self._made = False
        return bound

    def _sign(self) -> MultiOp:
        data = str(self._number).encode()
        if self._made:
            return SetData(self._path, data, -1)
        return Create(self._path, data, self._acl, CreateMode.EPHEMERAL)

    async def _done(self, bound: Bound) -> bool:
        """Whether the write in doubt was done; from here on nothing of it can still arrive."""
        try:
            await bound.sync(self._parent)
            found = await bound.get(self._path)
        except SessionExpiredError as error:
            error.maybe_applied = True
            raise
        self._made = found is not None
        return found is not None and found.data == str(self._number).encode()
