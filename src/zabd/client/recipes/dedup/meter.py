"""What the recipe counts: the names and rules of the dedup recipe, section 13.

One `DedupMeter` for each client; its figures go where the client's go.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakKeyDictionary

from zabd.client.client import Client
from zabd.client.metrics import (
    CLIENT_METRICS,
    DEDUP_CLEANUP_PENDING,
    DEDUP_CONTAINER_RETRIES,
    DEDUP_HOLD,
    DEDUP_LOST_REPLIES,
    DEDUP_RELEASES,
    DEDUP_REQUESTS,
    DEDUP_WAIT,
    EPHEMERAL_NODES,
    MemoryMetrics,
    Metrics,
)
from zabd.client.recipes.dedup.errors import (
    AcquireTimeoutError,
    AlreadyInProgressError,
    DuplicateError,
    ExecutionTimeoutError,
    FencedError,
    InDoubtError,
    LockRevokedError,
    MissingOutcomeError,
    PayloadMismatchError,
    ReplayedFailureError,
    SessionLostError,
    TooManyContendersError,
)
from zabd.model.paths import parent_of

KEYS_SHOWN_MAX: Final = 100
"""Keys that have a gauge of their own: those with the most lock znodes."""

_OUTCOMES: Final[dict[type[BaseException], str]] = {
    DuplicateError: "replayed",
    ReplayedFailureError: "replayed",
    PayloadMismatchError: "mismatch",
    AlreadyInProgressError: "conflict",
    TooManyContendersError: "conflict",
    InDoubtError: "in_doubt",
    ExecutionTimeoutError: "in_doubt",
    MissingOutcomeError: "in_doubt",
    SessionLostError: "lost",
    LockRevokedError: "lost",
    FencedError: "lost",
    AcquireTimeoutError: "timeout",
}


class DedupMeter:
    """Counts the calls, waits and lost replies of one client."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._census = Census(metrics)

    def ended(self, outcome: str) -> None:
        """A call has ended: executed, replayed, mismatch, conflict, in_doubt, lost, timeout."""
        self._metrics.add(DEDUP_REQUESTS, 1, (outcome,))

    def refused(self, error: BaseException) -> None:
        """A call has ended before it came to run anything."""
        self.ended(_OUTCOMES.get(type(error), "error"))

    def waited(self, wait_ms: int) -> None:
        """A lock znode is the lowest."""
        self._metrics.observe(DEDUP_WAIT, wait_ms)

    def held(self, hold_ms: int) -> None:
        """A lock znode that was the lowest is gone."""
        self._metrics.observe(DEDUP_HOLD, hold_ms)

    def released(self) -> None:
        """A lock znode is gone."""
        self._metrics.add(DEDUP_RELEASES)

    def lost_reply(self, op: str, resolution: str) -> None:
        """A write without an answer was settled: adopted, resent or gone."""
        self._metrics.add(DEDUP_LOST_REPLIES, 1, (op, resolution))

    def parent_missing(self) -> None:
        """The key's parent has to be made once more."""
        self._metrics.add(DEDUP_CONTAINER_RETRIES)

    @contextmanager
    def cleaning(self) -> Iterator[None]:
        """Something is to be removed, until the end of this block."""
        self._metrics.add(DEDUP_CLEANUP_PENDING, 1)
        try:
            yield
        finally:
            self._metrics.add(DEDUP_CLEANUP_PENDING, -1)

    def listed(self, parent: str, count: int) -> None:
        """So many lock znodes were seen below a key."""
        self._census.update(parent, count)

    def left(self, parent: str) -> None:
        """Nobody here looks at this key any more."""
        self._census.update(parent, 0)


class Census:
    """Lock znodes below each key that this client looks at; only the largest have a gauge."""

    def __init__(self, metrics: Metrics, shown_max: int = KEYS_SHOWN_MAX) -> None:
        self._metrics = metrics
        self._shown_max = shown_max
        self._counts: dict[str, int] = {}
        self._shown: dict[str, None] = {}

    def update(self, parent: str, count: int) -> None:
        """Take note; 0 ends it."""
        change = count - self._counts.pop(parent, 0)
        if count:
            self._counts[parent] = count
        if change:
            self._metrics.add(EPHEMERAL_NODES, change, (parent_of(parent),))
        self._show(parent, count)

    def _show(self, parent: str, count: int) -> None:
        if not count:
            self._hide(parent)
            return
        if parent not in self._shown and len(self._shown) >= self._shown_max:
            least = min(self._shown, key=self._counts.__getitem__)
            if self._counts[least] >= count:
                return
            self._hide(least)
        self._shown[parent] = None
        self._metrics.set(EPHEMERAL_NODES, count, (parent,))

    def _hide(self, parent: str) -> None:
        if parent in self._shown:
            del self._shown[parent]
            self._metrics.forget(EPHEMERAL_NODES, (parent,))


_meters: WeakKeyDictionary[Client, DedupMeter] = WeakKeyDictionary()


def meter_of(client: Client) -> DedupMeter:
    """The meter of a client, shared by every `Dedup` on it."""
    meter = _meters.get(client)
    if meter is None:
        meter = _meters[client] = DedupMeter(client.metrics)
    return meter


def unheard() -> DedupMeter:
    """A meter whose figures nobody sees: what an operator does is no call of the recipe's."""
    metrics = MemoryMetrics()
    metrics.declare(CLIENT_METRICS)
    return DedupMeter(metrics)
