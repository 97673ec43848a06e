"""Members as processes, forked by a nursery that this process starts once.

One `ProcessLauncher` serves all ensembles of a test run. Its methods may be called by any thread.
"""

import contextlib
import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final

from zabd.cli.members import MemberError, clean_environment

ANSWER_TIMEOUT_S: Final = 30.0
"""A nursery answers in milliseconds once it has imported zabd, which a busy machine makes long."""

VANISHED: Final = -SIGKILL
"""The status of what was still running when the nursery itself was ended by somebody."""


class ProcessLauncher:
    """Starts members, and relays between them; both end with this process, however it ends."""

    def __init__(self) -> None:
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "zabd.testing.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=clean_environment(),
        )
        self._numbers = itertools.count(1)
        self._lock = threading.Condition()
        self._answers: dict[int, Any] = {}
        self._forks: dict[int, _Fork] = {}
        self._ended_early: dict[int, int] = {}
        self._gone = False
        self._reader = threading.Thread(target=self._read, name="zabd-nursery", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The nursery's process id."""
        return self._nursery.pid

    def launch(self, config: Path, member_id: int, log: Path) -> "_Fork":
        """Start a member that appends what it prints to `log`."""
        arguments = ["--config", str(config), "--id", str(member_id)]
        pid: int = self._ask(launch=arguments, log=str(log))
        fork = _Fork(pid, self)
        with self._lock:
            self._forks[pid] = fork
            if pid in self._ended_early:
                fork.end(self._ended_early.pop(pid))
        return fork

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to what was launched, if it has not ended."""
        self._ask(signal=[pid, number])

    def open_relays(self, targets: dict[str, int]) -> dict[str, int]:
        """Open a relay for each name and target port; the ports to call in their place."""
        ports: dict[str, int] = self._ask(open=targets)
        return ports

    def act(self, action: str, names: list[str]) -> None:
        """``cut``, ``heal``, ``drop`` or ``close`` these relays."""
        self._ask(**{action: names})

    def close(self) -> None:
        """End everything that was launched."""
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it may have ended before
            self._nursery.stdin.close()
        self._nursery.wait()
        self._reader.join()
        self._nursery.stdout.close()

    def _ask(self, **request: object) -> Any:  # noqa: ANN401 - what the nursery answers to this
        number = next(self._numbers)
        line = json.dumps({"id": number, **request}).encode() + b"\n"
        assert self._nursery.stdin is not None
        with self._lock:
            try:
                self._nursery.stdin.write(line)
                self._nursery.stdin.flush()
            except (OSError, ValueError) as error:
                raise MemberError(f"the nursery of the members is gone: {error}") from error
            self._lock.wait_for(lambda: number in self._answers or self._gone, ANSWER_TIMEOUT_S)
            if number not in self._answers:
                raise MemberError(f"the nursery of the members has not answered to {request}")
            return self._answers.pop(number)

    def _read(self) -> None:
        assert self._nursery.stdout is not None
        for line in self._nursery.stdout:
            message = json.loads(line)
            with self._lock:
                self._hear(message)
                self._lock.notify_all()
        with self._lock:
            self._gone = True
            for fork in self._forks.values():
                fork.end(VANISHED)
            self._lock.notify_all()

    def _hear(self, message: dict[str, Any]) -> None:
        match message:
            case {"ended": pid, "status": status}:
                fork = self._forks.pop(pid, None)
                if fork is None:  # it was over before `launch` returned
                    self._ended_early[pid] = status
                else:
                    fork.end(status)
            case _:
                self._answers[message["id"]] = message["ok"]


class _Fork:
    """One member, as `zabd.cli.members` wants to see a process."""

    def __init__(self, pid: int, launcher: ProcessLauncher) -> None:
        self.pid = pid
        self._launcher = launcher
        self._status: int | None = None
        self._ended = threading.Event()

    def poll(self) -> int | None:
        """Its exit status, None while it lives."""
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(["zabd"], timeout or 0.0)
        assert self._status is not None, "an end has a status"
        return self._status

    def send_signal(self, sig: int, /) -> None:
        """Send a signal to it, if it has not ended."""
        if self._status is None:
            self._launcher.signal(self.pid, sig)

    def end(self, status: int) -> None:
        """The nursery has said that it ended."""
        if self._status is None:
            self._status = status
            self._ended.set()
