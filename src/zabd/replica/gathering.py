"""Gathering: how long a leader lets requests wait, so that they share a batch.

Every batch costs the members about two milliseconds of CPU, whoever is in it, so its size decides
what a request costs. Requests gather while the batch before theirs is undecided. When it is
committed, its clients are answered and ask again within a moment: the requests that have gathered
wait for them, or else the two halves of the clients would take turns for ever, in batches of half
the size.

Invariants
    W1  Nothing waits longer than `GATHER_MS_MAX` for one reason.
    W2  Behind a commit nothing waits longer than that commit took, and nothing at all where fewer
        than `CROWD_MIN` requests are about.
"""

from __future__ import annotations

GATHER_MS_MAX = 5
"""How long requests wait for the batch before them to be committed, so that they share the next one
and it leaves with that commit. An idle leader waits for nothing, and disks that take longer than
this get several batches to write at once. Measured, 8 connections with 16 requests each, as CPU of
three members per request: 58 us where proposing at once took 67 us; with one read in ten a write,
32 us where that took 36 us."""

CROWD_MIN = 6
"""Requests that were answered or wait; with fewer of them latency counts more than CPU."""

CROWD_SHARE = 3 / 4
"""Of those that were answered or waited at the commit; the rest is not waited for. Measured on a
busy machine, as the mean CPU of three members per request: with 8 connections of 16 requests 46 us
where not waiting took 52 us, with 64 of one request 110 us for 120 us, creates 66 us for 74 us."""


class Gathering:
    """The leader's patience; belongs to one leadership."""

    __slots__ = ("_crowd", "_crowd_until_ms", "_proposed_ms", "until_ms")

    def __init__(self) -> None:
        self.until_ms: int | None = None
        """Until when what has gathered waits, None if it does not."""
        self._proposed_ms = 0
        self._crowd = 0.0  # how many requests have to be here, before `_crowd_until_ms`
        self._crowd_until_ms = 0

    def proposed(self, now_ms: int) -> None:
        """A batch leaves."""
        self._proposed_ms = now_ms

    def answered(self, count: int, waiting: int, now_ms: int) -> None:
        """A batch of so many is committed, and so many requests wait already."""
        about = count + waiting
        if about < CROWD_MIN:
            self._crowd_until_ms = 0
            return
        took_ms = now_ms - self._proposed_ms
        self._crowd = about * CROWD_SHARE
        self._crowd_until_ms = now_ms + min(took_ms, GATHER_MS_MAX)

    def waits(self, waiting: int, undecided_since_ms: int | None, now_ms: int) -> bool:
        """Whether these requests wait for more of them, because of an undecided batch or behind it.

        If so, `until_ms` says for how long at the most.
        """
        if undecided_since_ms is not None:
            until_ms = undecided_since_ms + GATHER_MS_MAX
        elif waiting < self._crowd:
            until_ms = self._crowd_until_ms
        else:
            until_ms = 0
        self.until_ms = until_ms if now_ms < until_ms else None
        return self.until_ms is not None
