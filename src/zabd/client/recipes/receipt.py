"""Writes that are done exactly once though their replies get lost.

A write that leaves no trace of its author (a new version, a deleted znode, a sequential one) cannot
be told from somebody else's after its reply was lost. So it goes in one transaction with a receipt:
an ephemeral znode of this session, which holds the number of the last write that went this way.

Invariants
    I1  A write and its receipt happen together or not at all; one write of a receipt is under way
        at a time, so the receipt answers whether the last one was done.
    I2  Nothing is promised beyond the session: when it ends before the answer, the error says so
        (`maybe_applied`), and the receipt is gone.
    I3  What breaks every connection that it is sent on is sent a bounded number of times
        (`Resends`); then it was not done, and those behind it have their turn.

Cost: none for a write but that it travels in a multi; one znode for each client and parent, made
with the first write.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from zabd.client.client import Client
from zabd.client.recipes.bound import Bound, Resends
from zabd.client.recipes.parents import ensure_path
from zabd.model.acl import Acl
from zabd.model.errors import ConnectionLossError, NoNodeError, SessionExpiredError
from zabd.model.ids import SessionId
from zabd.model.ops import Create, CreateMode, GetData, MultiOp, SetData
from zabd.model.paths import join
from zabd.model.results import GetDataResult

_ID_BITS = 128


@dataclass(slots=True)
class _State:
    """What is known of one receipt. It must not hold the client, which it would keep alive."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    session_id: SessionId = 0
    path: str = ""
    made: bool = False
    number: int = 0


_states: WeakKeyDictionary[Client, dict[str, _State]] = WeakKeyDictionary()


class Receipt:
    """The receipt of one client under one parent, whichever object asks for it."""

    def __init__(self, client: Client, parent: str, acl: tuple[Acl, ...] | None = None) -> None:
        self._client = client
        self._acl = client.default_acl if acl is None else acl
        self._parent = parent
        self._state = _states.setdefault(client, {}).setdefault(parent, _State())

    async def write(self, ops: Sequence[MultiOp]) -> None:
        """Do `ops` all together, exactly once; a cancelled caller does not stop what was begun.

        Raises:
            KeeperError: what the ensemble said, and nothing was done; `op_index` is that of `ops`.
            SessionExpiredError: the session ended; with `maybe_applied`, perhaps behind it.
            ConnectionLossError: it broke each connection it was sent on, and was not done (I3).
            LocalProtocolError: it is larger than a request may be, and was not sent.
        """
        await asyncio.shield(self._client.spawn(self._write(list(ops))))

    async def _write(self, ops: list[MultiOp]) -> None:
        async with self._state.turn:
            bound = await self._bind()
            self._state.number += 1
            resends = Resends()
            while True:
                try:
                    await bound.multi([*ops, self._sign()])
                except ConnectionLossError as error:
                    if await self._done(bound):
                        return
                    error.maybe_applied = False  # that is settled now
                    await resends.pause(error)
                except NoNodeError as error:
                    if error.op_index != len(ops):
                        raise
                    if self._state.made:
                        # With the receipt, all that we know of the parent may be out of date.
                        self._state.made = False
                        raise
                    await ensure_path(bound, self._parent, self._acl)
                else:
                    self._state.made = True
                    return

    async def _bind(self) -> Bound:
        """Begin anew for a new session."""
        bound = await Bound.now(self._client)
        if self._state.session_id != bound.session_id:
            self._state.session_id = bound.session_id
            self._state.path = join(self._parent, f"{self._client.rng.getrandbits(_ID_BITS):032x}")
            self._state.made = False
        return bound

    def _sign(self) -> MultiOp:
        data = str(self._state.number).encode()
        if self._state.made:
            return SetData(self._state.path, data, -1)
        return Create(self._state.path, data, self._acl, CreateMode.EPHEMERAL)

    async def _done(self, bound: Bound) -> bool:
        """Whether the write in doubt was done; from here on nothing of it can still arrive."""
        try:
            await bound.sync(self._parent)
            # A few bytes, that break no connection: they are asked for until there is an answer.
            found = await bound.insist(
                GetData(self._state.path, False), resends=Resends(limit=None)
            )
        except NoNodeError:
            self._state.made = False
            return False
        except SessionExpiredError as error:
            error.maybe_applied = True
            raise
        assert isinstance(found, GetDataResult)
        self._state.made = True
        return found.data == str(self._state.number).encode()
