"""One worker of the demo: takes deliveries of requests, executes each request once through `Dedup`.

    python -m zabd.cli.demo.worker HOSTS LEDGER_PORT SESSION_TIMEOUT_MS

A line of JSON on standard input is a delivery; lines of JSON on standard output tell what becomes
of it. The work of a request is to think for a while and then to have its effect on the ledger, with
the fencing token of the attempt. A worker acts within the function that `Dedup` runs and nowhere
else: what it does after a lost session is what the recipe lets it do.
"""

import asyncio
import json
import logging
import os
import sys

from zabd.cli.ports import LOOPBACK
from zabd.client import Client, connect
from zabd.client.recipes.dedup import Attempt, Completed, Dedup, NotExecuted, Previous
from zabd.model.errors import ZabdError

ACQUIRE_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 30.0


class LineStream(asyncio.Protocol):
    """Lines that come in over a pipe or a connection, one awaited at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport | None = None
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Cut into lines."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._lines.put_nowait(line)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of the lines."""
        del exc
        self._lines.put_nowait(None)

    async def next(self) -> bytes | None:
        """The next line; None at the end."""
        return await self._lines.get()


class RemoteLedger:
    """The ledger as a worker sees it: a service elsewhere."""

    def __init__(self, stream: LineStream) -> None:
        self._stream = stream
        self._asked = 0

    async def apply(self, key: str, token: int) -> int | None:
        """Have the effect; the receipt, or None when the token is stale."""
        return await self._ask("apply", key, token)

    async def find(self, key: str, token: int) -> int | None:
        """The receipt of the effect that this key has had, if any."""
        return await self._ask("find", key, token)

    async def _ask(self, do: str, key: str, token: int) -> int | None:
        assert isinstance(self._stream.transport, asyncio.WriteTransport)
        self._asked = number = self._asked + 1
        request = {"id": number, "do": do, "key": key, "token": token, "worker": os.getpid()}
        self._stream.transport.write(json.dumps(request).encode() + b"\n")
        while (line := await self._stream.next()) is not None:
            answer = json.loads(line)
            # An earlier question may have been given up before its answer came.
            if answer["id"] == number:
                receipt: int | None = answer["receipt"]
                return receipt
        raise ConnectionError("the ledger hung up")


class Worker:
    """Executes requests; tells the demo about it on standard output."""

    def __init__(self, client: Client, ledger: RemoteLedger) -> None:
        self._client = client
        self._ledger = ledger
        self._dedup = Dedup(
            client,
            acquire_timeout=ACQUIRE_TIMEOUT_S,
            on_in_doubt="recover",
            recover=self._did_it_happen,
        )

    async def deliver(self, key: str, work_ms: int) -> None:
        """Take one delivery of a request to its end."""

        async def execute(attempt: Attempt) -> int:
            tell("holding", key=key, token=attempt.fencing_token, session=self._client.session_id)
            await asyncio.sleep(work_ms / 1000)
            receipt = await self._ledger.apply(key, attempt.fencing_token)
            if receipt is None:
                raise StaleTokenError(f"the ledger has seen a later token for {key}")
            return receipt

        try:
            outcome = await self._dedup.run(key, execute, payload={"request": key})
        except (ZabdError, StaleTokenError) as error:
            tell("failed", error=f"{type(error).__name__}: {error}")
            return
        tell(
            "done",
            replayed=outcome.replayed,
            receipt=outcome.value,
            token=outcome.fencing_token,
            attempt=outcome.attempt,
        )

    async def _did_it_happen(self, attempt: Attempt, _: Previous) -> object:
        """An earlier attempt was cut short: the ledger knows whether it had its effect."""
        receipt = await self._ledger.find(attempt.key, attempt.fencing_token)
        return NotExecuted() if receipt is None else Completed(receipt)


class StaleTokenError(Exception):
    """The ledger refused the effect: somebody else holds the key by now."""


def tell(event: str, **fields: object) -> None:
    """One line to the demo."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


async def work(hosts: str, ledger_port: int, session_timeout_ms: int) -> None:
    """Take deliveries from standard input until it ends."""
    loop = asyncio.get_running_loop()
    deliveries, ledger = LineStream(), LineStream()
    await loop.connect_read_pipe(lambda: deliveries, sys.stdin)
    await loop.create_connection(lambda: ledger, LOOPBACK, ledger_port)
    async with connect(
        hosts, timeout=session_timeout_ms / 1000, connect_timeout=CONNECT_TIMEOUT_S
    ) as client:
        worker = Worker(client, RemoteLedger(ledger))
        while (line := await deliveries.next()) is not None:
            delivery = json.loads(line)
            await worker.deliver(delivery["key"], delivery["work_ms"])


def main() -> None:
    """Entry point of the process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    hosts, ledger_port, session_timeout_ms = sys.argv[1:]
    asyncio.run(work(hosts, int(ledger_port), int(session_timeout_ms)))


if __name__ == "__main__":
    main()
