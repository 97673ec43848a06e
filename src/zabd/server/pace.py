"""Pace: work that can wait, done in pieces, takes a bounded share of a member's time.

Invariants
    Q1  While others ask for something, pieces take at most `BUSY_SHARE` of the time, each at most
        as long as it is; with nobody there they follow each other at once.
    Q2  After `stop` no piece is done any more.
"""

from collections.abc import Callable
from typing import Final

from zabd.server.loop import Handle, Loop

BUSY_SHARE: Final = 0.07
"""Of a member's time while requests come. A snapshot of a million znodes takes 1.6 s of it, hence
23 s; all members take theirs at the same time, and together they cost an ensemble this share of
its throughput, with what the disk has to do besides less than a tenth."""

_REST: Final = 1 / BUSY_SHARE - 1


class Pace:
    """Does pieces of work one after the other, with rests between them while a member is busy.

    `heard` is a number that has changed when somebody has asked for something; one that does not
    change says that this work comes first.
    """

    def __init__(self, loop: Loop, heard: Callable[[], int]) -> None:
        self._loop = loop
        self._heard = heard
        self._heard_before = -1
        self._began_s = self._ended_s = 0.0
        self._waiting: Handle | None = None
        self._over = False

    def __call__(self, piece: Callable[[], None]) -> None:
        """Do this piece, now or when its time has come; one at a time."""
        if self._over:
            return
        due_s = self._ended_s + (self._ended_s - self._began_s) * _REST
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
