"""A writer that remembers what was acknowledged, and reads it all back.

    W1  A write is `acknowledged` only once its reply has come; one whose reply was lost is
        `unknown`: it may be there or not, and is never sent again.

The demo, the benchmarks and the tests judge an ensemble by it: what was acknowledged must be there.
"""

import asyncio
import bisect
import itertools
import time
from typing import Final

from zabd.client import Client, connect
from zabd.model.errors import (
    ConnectionLossError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)

READ_BATCH: Final = 256  # reads in flight
_UNKNOWN = (ConnectionLossError, OperationTimeoutError, SessionExpiredError, SessionMovedError)


class Writer:
    """Creates one znode after the other below `root`, with one request in flight."""

    def __init__(
        self, hosts: str, root: str, *, session_timeout_s: float = 10.0, pause_s: float = 0.0
    ) -> None:
        self.root = root
        self.acknowledged: dict[str, bytes] = {}
        self.unknown: list[str] = []
        # Monotonic seconds, rising: when each acknowledged write was begun, when its reply came.
        self.begun_at: list[float] = []
        self.acknowledged_at: list[float] = []
        self._hosts = hosts
        self._session_timeout_s = session_timeout_s
        self._pause_s = pause_s
        self._stopping = False
        self._acknowledged = asyncio.Event()

    async def run(self) -> None:
        """Write until `stop` is called."""
        async with connect(
            self._hosts, timeout=self._session_timeout_s, connect_timeout=60.0
        ) as client:
            await client.ensure_path(self.root)
            for number in itertools.count(1):
                if self._stopping:
                    return
                await self._write(client, f"{self.root}/{number:08d}", b"value %d" % number)
                if self._pause_s:
                    await asyncio.sleep(self._pause_s)

    def stop(self) -> None:
        """End `run` after the write that is under way."""
        self._stopping = True

    def first_acknowledged_after(self, moment: float) -> float | None:
        """Seconds from a moment (monotonic) to the first acknowledgement of a write begun after it.

        What was under way at that moment does not count: its reply may have been on the wire.
        """
        at = bisect.bisect_right(self.begun_at, moment)
        return self.acknowledged_at[at] - moment if at < len(self.acknowledged_at) else None

    async def acknowledged_after(self, moment: float) -> float:
        """As `first_acknowledged_after`, but wait for it."""
        while (seconds := self.first_acknowledged_after(moment)) is None:
            self._acknowledged.clear()
            await self._acknowledged.wait()
        return seconds

    async def _write(self, client: Client, path: str, data: bytes) -> None:
        begun_at = time.monotonic()
        try:
            await client.create(path, data)
        except _UNKNOWN:
            self.unknown.append(path)
            return
        self.acknowledged[path] = data
        self.begun_at.append(begun_at)
        self.acknowledged_at.append(time.monotonic())
        self._acknowledged.set()


async def missing(hosts: str, written: dict[str, bytes]) -> list[str]:
    """The paths that are not there with the data that was acknowledged, as these members see it."""
    paths = sorted(written)
    lost: list[str] = []
    async with connect(hosts, connect_timeout=60.0) as client:
        await client.sync("/")
        for start in range(0, len(paths), READ_BATCH):
            batch = paths[start : start + READ_BATCH]
            answers = await asyncio.gather(
                *(client.get(path) for path in batch), return_exceptions=True
            )
            for path, answer in zip(batch, answers, strict=True):
                if isinstance(answer, BaseException) or answer.data != written[path]:
                    lost.append(path)
    return lost
