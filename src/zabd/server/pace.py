"""Pace: work that can wait, done in pieces, takes a bounded share of a member's time.

Invariants
    Q1  While others ask for something, pieces take at most `BUSY_SHARE` of the time, or
        `LATE_SHARE` once they are late; with nobody there they follow each other at once.
    Q2  After `stop` no piece is done any more.
"""

from collections.abc import Callable
from typing import Final

from zabd.server.loop import Handle, Loop

BUSY_SHARE: Final = 0.03
"""Of a member's time while requests come. A snapshot of a million znodes takes 1.6 s of it, hence
53 s. All members take theirs at the same time: three of them on two cores lose 5 % of what they
have, and the disk's part comes on top."""

LATE_SHARE: Final = 0.25
"""Of the time of a member whose log has become much longer than its tree is large. Taking all that
there is would halve what a start has to read once more, and stop the member's clients."""


class Pace:
    """Does pieces of work one after the other, with rests between them while a member is busy.

    `heard` is a number that has changed when somebody has asked for something, `is_late` says
    whether the work has to come to its end.
    """

    def __init__(
        self, loop: Loop, heard: Callable[[], int], is_late: Callable[[], bool] = lambda: False
    ) -> None:
        self._loop = loop
        self._heard = heard
        self._is_late = is_late
        self._heard_before = -1
        self._began_s = self._ended_s = 0.0
        self._waiting: Handle | None = None
        self._over = False

    def __call__(self, piece: Callable[[], None]) -> None:
        """Do this piece, now or when its time has come; one at a time."""
        if self._over:
            return
        share = LATE_SHARE if self._is_late() else BUSY_SHARE
        due_s = self._ended_s + (self._ended_s - self._began_s) * (1 / share - 1)
        if self._heard() == self._heard_before or self._loop.time() >= due_s:
            self._do(piece)
        else:
            self._waiting = self._loop.call_at(due_s, self._do, piece)

    def stop(self) -> None:
        """No more (Q2)."""
        self._over = True
        if self._waiting is not None:
            self._waiting.cancel()

    def _do(self, piece: Callable[[], None]) -> None:
        self._waiting = None
        self._heard_before = self._heard()
        self._began_s = self._loop.time()
        try:
            piece()
        finally:
            self._ended_s = self._loop.time()
