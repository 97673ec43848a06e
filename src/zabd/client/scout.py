"""Asks servers whether they have a quorum, for a client that is at one without.

``isro`` is a word of four letters on a connection of its own, answered with ``ro`` or ``rw``.
"""

import asyncio
import logging
from collections.abc import Sequence
from ssl import SSLContext
from typing import TypedDict, cast

from zabd.client.hosts import Host

log = logging.getLogger("zabd.client")

# The first look comes soon, since elections are short; then twice as long each time, up to a
# minute, since a partition is not.
FIRST_PAUSE_S = 0.1
PAUSE_S_MAX = 60.0
ANSWER_S = 1.0
ANSWER_BYTES_MAX = 16


class Tls(TypedDict, total=False):
    """What `create_connection` is told of TLS."""

    ssl: SSLContext


def tls(context: SSLContext | None) -> Tls:
    """The options of a connection: none without TLS, which not every loop knows."""
    return {} if context is None else {"ssl": context}


class Scout:
    """Looks for a server that has a quorum."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ssl: SSLContext | None) -> None:
        self._loop = loop
        self._ssl = ssl

    async def find(self, hosts: Sequence[Host]) -> Host:
        """Return the first of these that says that it has one, when one does."""
        pause = FIRST_PAUSE_S
        while True:
            await asyncio.sleep(pause)
            for host in hosts:
                if await self._asks(host) == b"rw":
                    return host
            pause = min(PAUSE_S_MAX, 2 * pause)

    async def _asks(self, host: Host) -> bytes:
        question = _Question()
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._loop.create_connection(
                    lambda: question, host.name, host.port, **tls(self._ssl)
                )
                return await question.answer
        except (OSError, TimeoutError, UnicodeError) as error:
            log.debug("%s does not say whether it has a quorum: %s", host, error)
            return b""
        finally:
            question.end()


class _Question(asyncio.Protocol):
    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is none by inheritance.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(b"isro")

    def data_received(self, data: bytes) -> None:
        self._said += data[:ANSWER_BYTES_MAX]
        if len(self._said) >= len(b"rw"):
            self._tell()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - any answer will do
        self._tell()

    def _tell(self) -> None:
        if not self.answer.done():
            self.answer.set_result(self._said[: len(b"rw")])

    def end(self) -> None:
        """Close the connection, and wait for no answer."""
        if self._transport is not None:
            self._transport.abort()
        self.answer.cancel()
