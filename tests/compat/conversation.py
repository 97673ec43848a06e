"""A program on the command line, spoken to line by line.

Answers are waited for in no order: results and watch events come from different threads of such a
program, on different channels.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Self

PATIENCE_S = 20.0
AGAIN_AFTER_S = 2.0
POLL_INTERVAL_S = 0.02


class Conversation:
    """What is said goes to the program's input; what it prints, on either channel, is heard."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._heard = ""
        self._from = 0  # what came before was an answer to something else
        self._program = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,  # a script and what it has started end together
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._program.pid, signal.SIGKILL)
        self._program.wait()
        self._listener.join()
        for stream in (self._program.stdin, self._program.stdout):
            assert stream is not None
            stream.close()

    def ask(self, line: str, *answers: str) -> str:
        """Say a line and wait until all of these are heard; what was heard."""
        self._from = len(self._heard)
        stdin = self._program.stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()
        return self.hear(*answers)

    def ask_until(self, line: str, answer: str) -> str:
        """Say the same again and again until it brings this answer, as a person would."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.ask(line)
                return self._heard_within(AGAIN_AFTER_S, answer)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise

    def hear(self, *answers: str) -> str:
        """Wait until all of these are heard; what was heard since the question."""
        return self._heard_within(PATIENCE_S, *answers)

    def end(self, line: str) -> int:
        """Say good-bye; the exit code."""
        self.ask(line)
        return self._program.wait(PATIENCE_S)

    def _heard_within(self, seconds: float, *answers: str) -> str:
        deadline = time.monotonic() + seconds
        while True:
            heard = self._heard[self._from :]
            missing = [answer for answer in answers if answer not in heard]
            if not missing:
                return heard
            if time.monotonic() > deadline or self._program.poll() is not None:
                raise AssertionError(f"expected {missing!r}, heard: {self._heard}")
            time.sleep(POLL_INTERVAL_S)

    def _listen(self) -> None:
        assert self._program.stdout is not None
        while chunk := self._program.stdout.readline():
            self._heard += chunk
