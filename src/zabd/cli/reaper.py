"""Ends what a process started, once that process is gone, however it went.

`Reaper` starts this module as a program and tells it, line by line, which process groups to look
after (``+pid``) and which not any more (``-pid``). Its standard input ends when the process that
started it ends, even by SIGKILL; whatever is still on the list is killed then.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Self


class Reaper:
    """Leads a list of process groups that must not outlive this process."""

    def __init__(self) -> None:
        # A session of its own: Ctrl-C at the terminal must not take the reaper before the rest.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "zabd.cli.reaper"],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
            bufsize=1,
        )

    def watch(self, process_group: int) -> None:
        """Kill this group should the present process end without saying more."""
        self._say(f"+{process_group}\n")

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
    for process_group in _remember(sys.stdin):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process_group, signal.SIGKILL)


if __name__ == "__main__":
    main()
