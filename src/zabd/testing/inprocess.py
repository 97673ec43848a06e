"""Members inside the test run's own process: each a `Server` on a thread and loop of its own.

For where no process may be started, and for a debugger that is to stop inside a member. They run
the same code on the same sockets and files; what differs is that they share one interpreter with
the test, and that a kill is the end of the server, not of a process.
"""

import asyncio
import itertools
import random
import signal
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TextIO

from zabd.cli.members import MemberError
from zabd.model.errors import ConfigError, StorageError
from zabd.server.app import Post, Server
from zabd.server.clock import SystemClock
from zabd.server.driver import MemberStoppedError
from zabd.server.identity import Identity
from zabd.server.logging import EventLog, Trace
from zabd.server.resolution import Sources, resolve
from zabd.storage import OsDisk
from zabd.testing.relay import Switchboard

STOP_TIMEOUT_S: Final = 30.0
FAILED: Final = 70


class KilledError(MemberStoppedError):
    """The test said so."""


class InProcessLauncher:
    """Starts members as threads, and relays between them on one more."""

    def __init__(self) -> None:
        self._members: list[_Thread] = []
        self._numbers = itertools.count(1)
        self._switchboard = Switchboard()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._relay, name="zabd-relays", daemon=True)
        self._thread.start()

    def launch(self, config: Path, member_id: int, log: Path) -> "_Thread":
        """Start a member that appends its log to `log`."""
        member = _Thread(next(self._numbers), config, member_id, log)
        self._members = [other for other in self._members if other.poll() is None]
        self._members.append(member)
        return member

    def open_relays(self, targets: dict[str, int]) -> dict[str, int]:
        """Open a relay for each name and target port; the ports to call in their place."""
        opening = self._switchboard.open(targets)
        return asyncio.run_coroutine_threadsafe(opening, self._loop).result()

    def act(self, action: str, names: list[str]) -> None:
        """``cut``, ``heal``, ``drop`` or ``close`` these relays."""
        done: Future[None] = Future()

        def act() -> None:
            try:
                self._switchboard.act(action, names)
            except BaseException as error:  # noqa: BLE001 - raised where it was asked for
                done.set_exception(error)
            else:
                done.set_result(None)

        self._loop.call_soon_threadsafe(act)
        done.result()

    def close(self) -> None:
        """End everything that was launched."""
        for member in self._members:
            member.send_signal(signal.SIGKILL)
            member.wait(STOP_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _relay(self) -> None:
        self._loop.run_forever()
        self._loop.close()


class _Thread:
    """One member, as `zabd.cli.members` wants to see a process."""

    def __init__(self, number: int, config: Path, member_id: int, log: Path) -> None:
        self.pid = number  # there is no process; the number tells one life of a member from another
        self._sources = Sources(
            file_name=str(config), file_text=config.read_text("utf-8"), member_id=member_id
        )
        self._log = log
        self._status: int | None = None
        self._frozen = threading.Event()
        self._thawed = threading.Event()
        self._disks: list[OsDisk] = []
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self._killed = False
        self._thread = threading.Thread(target=self._run, name=f"zabd-{member_id}", daemon=True)
        self._thread.start()

    def poll(self) -> int | None:
        """Its exit status, None while it lives."""
        return None if self._thread.is_alive() else self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        self._thread.join(timeout)
        if self._thread.is_alive() or self._status is None:
            raise subprocess.TimeoutExpired(["zabd"], timeout or 0.0)
        return self._status

    def send_signal(self, sig: int, /) -> None:
        """Do to it what this signal does to a process."""
        match sig:
            case signal.SIGSTOP:
                self._thawed.clear()
                self._call(self._freeze)
                self._frozen.wait(STOP_TIMEOUT_S)
            case signal.SIGCONT:
                self._thawed.set()
            case signal.SIGKILL:
                self._call(self._kill)
                self._thawed.set()
            case signal.SIGTERM:
                self._call(self._stop)
            case _:
                raise MemberError(f"signal {sig}: a member in this process knows no such thing")

    def _call(self, what: Any) -> None:  # noqa: ANN401 - a callback
        if self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(what)
            except RuntimeError:  # it has ended just now
                return

    def _freeze(self) -> None:
        self._frozen.set()
        self._thawed.wait()  # the loop stands still, with its sockets open: that is the point
        self._frozen.clear()

    def _kill(self) -> None:
        self._killed = True
        if self._server is not None:
            self._server.fail(KilledError("killed by a test"))

    def _stop(self) -> None:
        assert self._server is not None
        self._stopping = self._loop.create_task(self._server.stop())

    def _run(self) -> None:
        with (
            self._log.open("a", encoding="utf-8") as stream,
            asyncio.Runner(loop_factory=lambda: self._loop) as runner,
        ):
            self._status = runner.run(self._live(stream))
        for disk in self._disks:  # a process would end with its threads, and its lock with it
            disk.wait_closed()

    def _open_disk(self, root: str, post: Post, trace: Trace) -> OsDisk:
        self._disks.append(OsDisk(root, post, trace))
        return self._disks[-1]

    async def _live(self, stream: TextIO) -> int:
        try:
            config = resolve(self._sources, lambda _directory: None).config
            log = EventLog(stream, SystemClock(), member=config.member_id)
            server = Server(
                config,
                disk_factory=lambda root, post: self._open_disk(root, post, log.trace),
                clock=SystemClock(),
                identity=Identity.of_this_process(),
                rng=random.SystemRandom(),
                trace=log.trace,
            )
            await server.start()
            self._server = server
            log.standing = lambda: server.standing
            if self._killed:
                self._kill()
            await server.serve()
        except KilledError:
            return -signal.SIGKILL
        except (ConfigError, StorageError, MemberStoppedError) as error:
            stream.write(f"{error}\n")
            return FAILED
        return 0
