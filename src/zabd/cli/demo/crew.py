"""The worker processes, as the demo sees them: deliveries in, events out, signals."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from zabd.cli.demo.deliveries import Deliveries, Delivery, Failure, Outcome
from zabd.cli.members import clean_environment
from zabd.cli.reaper import Reaper
from zabd.model.errors import ZabdError

LAST_WORDS_S = 5.0  # for a worker to close its session
LOG_TAIL_BYTES = 2000


class WorkerError(ZabdError):
    """A worker process ended by itself; the message ends with its log."""


class Worker:
    """One process that has at most one delivery at a time."""

    def __init__(self, number: int, folder: Path, reaper: Reaper) -> None:
        self.number = number
        self.held: dict[str, int] = {}  # key -> token, for executions that have begun
        self.session_id = 0
        self.stopped = False
        self._log = folder / f"worker-{number}.log"
        self._reaper = reaper
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, "the worker was started"
        return self._process.pid

    async def start(self, hosts: str, ledger_port: int, session_timeout_ms: int) -> None:
        """Start the process; its session opens in its own time."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "zabd.cli.demo.worker",
                hosts,
                str(ledger_port),
                str(session_timeout_ms),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=clean_environment(),
            )
        self._reaper.watch(self.pid)

    async def work(self, deliveries: Deliveries) -> None:
        """Take deliveries until all have ended well."""
        while (delivery := await deliveries.take()) is not None:
            await deliveries.ended(await self._deliver(delivery, deliveries))

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        self.stopped = False

    async def dismiss(self) -> None:
        """Let the process close its session and end."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await process.wait()
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL, if it still runs."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        self._reaper.forget(process.pid)

    async def _deliver(self, delivery: Delivery, deliveries: Deliveries) -> Outcome | Failure:
        assert self._process is not None
        assert self._process.stdin is not None
        message = {"key": delivery.key, "work_ms": delivery.work_ms}
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()
        while True:
            event = await self._event()
            match event["event"]:
                case "holding":
                    self.held[delivery.key] = _integer(event, "token")
                    self.session_id = _integer(event, "session")
                    await deliveries.changed()
                case "done":
                    self.held.pop(delivery.key, None)
                    return Outcome(
                        delivery,
                        self.pid,
                        bool(event["replayed"]),
                        _integer(event, "receipt"),
                        _integer(event, "token"),
                        _integer(event, "attempt"),
                    )
                case "failed":
                    self.held.pop(delivery.key, None)
                    return Failure(delivery, self.pid, str(event["error"]))
                case other:
                    raise WorkerError(f"worker {self.number} said {other!r}, which means nothing")

    async def _event(self) -> Mapping[str, object]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            status = await self._process.wait()
            raise WorkerError(f"worker {self.number} ended with status {status}\n{self._tail()}")
        event: Mapping[str, object] = json.loads(line)
        return event

    def _tail(self) -> str:
        return self._log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")


def _integer(event: Mapping[str, object], name: str) -> int:
    value = event[name]
    assert isinstance(value, int), f"{name} of {event} is a number"
    return value
