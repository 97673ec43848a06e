"""The downstream of the demo: a ledger outside of the ensemble that is protected by fencing tokens.

It knows nothing of ZooKeeper. It keeps, per key, the highest token it has ever seen, and applies an
effect only if its token is not lower: that is all that fencing asks of a resource. It is asked over
TCP, one JSON document a line, as a database or a payment service would be.

    L1  An effect with a token below the highest one seen for its key is refused and counted.
    L2  Asking about a key raises its fence as an effect does, so that whatever an earlier holder
        has still under way is refused after the answer "not applied".
"""

import asyncio
import json
from dataclasses import dataclass, field

REQUEST_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect that reached the ledger, and what became of it."""

    key: str
    token: int
    worker: int  # process id of who sent it
    receipt: int | None  # None: refused as stale


@dataclass(slots=True)
class Ledger:
    """What was done, by whom, and what was refused."""

    effects: list[Effect] = field(default_factory=list)
    _highest: dict[str, int] = field(default_factory=dict)
    _receipts: int = 0

    @property
    def accepted(self) -> list[Effect]:
        """The effects that were applied, in order."""
        return [effect for effect in self.effects if effect.receipt is not None]

    @property
    def refused(self) -> list[Effect]:
        """The effects that were refused by their token."""
        return [effect for effect in self.effects if effect.receipt is None]

    def apply(self, key: str, token: int, worker: int) -> Effect:
        """Apply the effect, or refuse it as stale (L1)."""
        receipt = None
        if self._admit(key, token):
            self._receipts += 1
            receipt = self._receipts
        effect = Effect(key, token, worker, receipt)
        self.effects.append(effect)
        return effect

    def find(self, key: str, token: int) -> Effect | None:
        """The effect that was applied for this key, if there was one; raises the fence (L2)."""
        self._admit(key, token)
        return next((effect for effect in self.accepted if effect.key == key), None)

    def _admit(self, key: str, token: int) -> bool:
        if token < self._highest.get(key, 0):
            return False
        self._highest[key] = token
        return True


class LedgerConnection(asyncio.Protocol):
    """One worker's connection: a line asks, a line answers."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._transport: asyncio.Transport | None = None
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every whole line."""
        assert self._transport is not None
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._transport.write(self._answer(line) + b"\n")
        if len(self._pending) > REQUEST_BYTES_MAX:
            self._transport.abort()

    def _answer(self, line: bytes) -> bytes:
        request = json.loads(line)
        key, token = request["key"], request["token"]
        if request["do"] == "apply":
            found: Effect | None = self._ledger.apply(key, token, request["worker"])
        else:
            found = self._ledger.find(key, token)
        receipt = found.receipt if found else None
        return json.dumps({"id": request["id"], "receipt": receipt}).encode()


async def serve_ledger(ledger: Ledger, host: str) -> tuple[asyncio.Server, int]:
    """Listen on a free port; the server and the port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: LedgerConnection(ledger), host, 0)
    port: int = server.sockets[0].getsockname()[1]
    return server, port
