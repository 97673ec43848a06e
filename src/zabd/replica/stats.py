"""What a member counts about its clients, for the four-letter words and the metrics.

Counting must not be seen in what a request costs. Answers to requests that waited are counted in
runs of equal ones, which is what a batch of writes comes to; what is answered at once is counted
by the chunk in which it came. `fold` then sorts both into histograms: every half tick, and
whenever somebody looks.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from zabd.model.metrics import (
    LATENCY_BUCKETS_MS,
    PREFIX_COMPONENTS,
    BoundedPrefixes,
    Histogram,
    operation_name,
)
from zabd.model.watch_events import EventType

OTHER_OPCODE: Final = 0
"""Stands for what is not one operation: a chunk of reads that ends in something else."""


class ClientStats:
    """Counters since the start or the last reset; latencies in milliseconds.

    What the metrics are made of is never reset: the histograms, the notifications by prefix and
    type, and the sessions that have expired here.
    """

    __slots__ = (
        "_answered_here",
        "_histograms",
        "_latency_max_ms",
        "_latency_min_ms",
        "_latency_total_ms",
        "_prefixes",
        "_tally",
        "_waited",
        "answered_at_once",
        "at_once",
        "auth_failed",
        "notified",
        "outstanding",
        "received",
        "response_last_bytes",
        "response_max_bytes",
        "response_min_bytes",
        "run_count",
        "run_ms",
        "run_opcode",
        "sent",
        "sessions_expired",
    )

    def __init__(
        self,
        answered_here: AbstractSet[int] = frozenset(),
        prefix_components: int = PREFIX_COMPONENTS,
    ) -> None:
        self._answered_here = answered_here  # the operations that need no leader
        self.outstanding = 0
        self.sessions_expired = 0
        self.notified: dict[tuple[str, str], int] = {}
        self._prefixes = BoundedPrefixes(prefix_components)
        self._histograms: dict[str, Histogram] = {}
        # The run that goes on: so many answers to requests of this kind, after this time each.
        self.run_opcode = OTHER_OPCODE
        self.run_ms = self.run_count = 0
        self._tally: dict[tuple[int, int], int] = {}
        # Requests that were answered at once, by the operation that came last in their chunk.
        self.at_once: dict[int, int] = {}
        self._begin()

    def reset(self) -> None:
        """Start counting anew, as the word `srst` asks; what is outstanding stays."""
        self.fold()
        self._begin()

    def _begin(self) -> None:
        self.received = 0
        self.sent = 0
        self.auth_failed = 0
        self.response_last_bytes = self.response_min_bytes = self.response_max_bytes = -1
        self.answered_at_once = 0
        self._waited = 0
        self._latency_total_ms = 0
        self._latency_max_ms = 0
        self._latency_min_ms = 0

    def note_responses(self, output: list[bytes]) -> None:
        """These frames leave for a client; -1 stands for a size as long as none has."""
        if len(output) == 1:  # an event for each of many watchers, or who has one thing to ask
            self._note_response(len(output[0]))
            return
        sizes = [len(frame) for frame in output]
        self.sent += len(sizes)
        self.response_last_bytes = sizes[-1]
        self.response_max_bytes = max(self.response_max_bytes, *sizes)
        least = min(sizes)
        if not 0 <= self.response_min_bytes <= least:
            self.response_min_bytes = least

    def _note_response(self, size: int) -> None:
        self.sent += 1
        self.response_last_bytes = size
        if size > self.response_max_bytes:  # noqa: PLR1730  (a fifth of what `max` costs)
            self.response_max_bytes = size
        if not 0 <= self.response_min_bytes <= size:
            self.response_min_bytes = size

    def begin_run(self, opcode: int, latency_ms: int) -> None:
        """A request that had to wait was answered, and it is not like the one before it."""
        self._end_run()
        self.run_opcode, self.run_ms, self.run_count = opcode, latency_ms, 1

    def note_event(self, path: str, kind: EventType, count: int) -> None:
        """So many connections are told of one event."""
        key = (self._prefixes.label(path), kind.name.lower())
        self.notified[key] = self.notified.get(key, 0) + count

    # Looking.

    @property
    def histograms(self) -> dict[str, Histogram]:
        """The latencies by the name of the operation; what is answered at once counts as 0 ms."""
        self.fold()
        return self._histograms

    @property
    def latency_min_ms(self) -> int:
        """The least since the last reset."""
        self.fold()
        return self._latency_min_ms

    @property
    def latency_max_ms(self) -> int:
        """The greatest since the last reset."""
        self.fold()
        return self._latency_max_ms

    @property
    def latency_avg_ms(self) -> float:
        """The mean over all answered requests; what is answered at once counts as 0 ms."""
        self.fold()
        answered = self._waited + self.answered_at_once
        return self._latency_total_ms / answered if answered else 0.0

    def fold(self) -> None:
        """Sort what was counted into the histograms and the extremes."""
        self._end_run()
        tally, self._tally = self._tally, {}
        for (opcode, latency_ms), count in tally.items():
            self._histogram(opcode).observe(latency_ms, count)
            self._note_extremes(latency_ms, count)
        at_once, self.at_once = self.at_once, {}
        for opcode, count in at_once.items():
            known = opcode if opcode in self._answered_here else OTHER_OPCODE
            self._histogram(known).observe(0, count)

    def _end_run(self) -> None:
        if count := self.run_count:
            key = (self.run_opcode, self.run_ms)
            self._tally[key] = self._tally.get(key, 0) + count
            self.run_count = 0

    def _note_extremes(self, latency_ms: int, count: int) -> None:
        first = not self._waited and not self.answered_at_once
        self._latency_min_ms = latency_ms if first else min(self._latency_min_ms, latency_ms)
        self._latency_max_ms = max(self._latency_max_ms, latency_ms)
        self._latency_total_ms += latency_ms * count
        self._waited += count

    def _histogram(self, opcode: int) -> Histogram:
        name = operation_name(opcode)
        if name not in self._histograms:
            self._histograms[name] = Histogram(LATENCY_BUCKETS_MS)
        return self._histograms[name]
