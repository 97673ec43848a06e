"""Ends what a process started, once that process is gone, however it went.

`Reaper` starts this module as a program and tells it, line by line, which process groups to look
after (``+pid``) and which not any more (``-pid``). Its standard input ends when the process that
started it ends, even by SIGKILL; whatever is still on the list is killed then, at once or after a
time of grace behind a SIGTERM.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Self

POLL_S = 0.05


class Reaper:
    """Leads a list of process groups that must not outlive this process.

    With `grace_s` they are sent SIGTERM first, and woken to take it.
    """

    def __init__(self, grace_s: float = 0.0) -> None:
        # A session of its own: Ctrl-C at the terminal must not take the reaper before the rest.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "zabd.cli.reaper", f"{grace_s}"],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
            bufsize=1,
        )
        assert self._process.stdin is not None, "a pipe was asked for"
        self._fileno = self._process.stdin.fileno()

    def watch(self, process_group: int) -> None:
        """Kill this group should the present process end without saying more."""
        self._say(f"+{process_group}\n")

    def watch_self(self) -> None:
        """As `watch`, called in a forked child that leads a group, before it becomes its program.

        So there is no moment at which the program runs and the reaper does not know of it. Nothing
        but system calls here: locks of the parent's threads may be held for ever.
        """
        os.write(self._fileno, b"+%d\n" % os.getpid())

    def forget(self, process_group: int) -> None:
        """The group has ended and its number may be given to somebody else."""
        self._say(f"-{process_group}\n")

    def close(self) -> None:
        """Kill what is left on the list, and end."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                stdin.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _say(self, line: str) -> None:
        if (stdin := self._process.stdin) is not None and not stdin.closed:
            stdin.write(line)
            stdin.flush()


def _remember(lines: Iterable[str]) -> dict[int, None]:
    groups: dict[int, None] = {}
    for line in lines:
        if line.startswith("+"):
            groups[int(line[1:])] = None
        else:
            groups.pop(int(line[1:]), None)
    return groups


def main() -> None:
    """Read the list until its author is gone, then kill what is on it."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups = _remember(sys.stdin)
    if groups and (grace_s := float(sys.argv[1])):
        _end_gently(groups, grace_s)
    for process_group in groups:
        _send(process_group, signal.SIGKILL)


def _end_gently(groups: Iterable[int], grace_s: float) -> None:
    deadline = time.monotonic() + grace_s
    for process_group in groups:
        _send(process_group, signal.SIGTERM)
        _send(process_group, signal.SIGCONT)
    while time.monotonic() < deadline and any(_send(group, 0) for group in groups):
        time.sleep(POLL_S)


def _send(process_group: int, number: int) -> bool:
    """Whether there is somebody to take it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process_group, number)
        return True
    return False


if __name__ == "__main__":
    main()
