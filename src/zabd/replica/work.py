"""Work: how much of one turn the reads of all clients may take.

Most reads cost their clients as much as the member. A few make it look at a large part of the tree
for a few bytes; these are answered as long as the turn has work left, and else in a later one, so
that everybody else is served in between. Work is counted, since the core knows no clock.

Invariants
    A1  A turn begins at most one such read after `WORK_MAX` is spent.
    A2  Who has waited comes before who asks in the next turn.
"""

from __future__ import annotations

from typing import Final

from zabd.model.errors import ZabdError
from zabd.model.ops import OpCode

WORK_MAX: Final = 20_000
"""Znodes looked at in one turn, at 0.2 us each: 4 ms, and then what the last read still takes."""

SLOW_READS: Final = frozenset(
    (OpCode.GET_ALL_CHILDREN_NUMBER, OpCode.GET_EPHEMERALS, OpCode.MULTI_READ)
)
"""Those whose work is out of proportion to their requests and replies. Writes behind one of them
are not handed on before it is answered: it may have to wait, and would see them (C2)."""


class TurnIsOverError(ZabdError):
    """This turn has no work left for the request: ask again in a later one."""


class Work:
    """What is left of this turn."""

    __slots__ = ("_kept", "_short", "left")

    def __init__(self) -> None:
        self.left = WORK_MAX
        self._kept = 0  # for those who have waited
        self._short = False  # somebody has to wait

    def require(self) -> None:
        """Begin something that takes work, unless it has to wait: TurnIsOverError."""
        if self.left <= 0:
            self._short = True
            raise TurnIsOverError

    def spend(self, count: int) -> None:
        """So many znodes were looked at."""
        self.left -= count

    def serve_the_waiting(self) -> None:
        """Those who have waited ask again."""
        self.left += self._kept
        self._kept = 0

    def end_turn(self) -> None:
        """What comes now is of the next turn."""
        self.left, self._kept = (0, WORK_MAX) if self._short else (WORK_MAX, 0)
        self._short = False
