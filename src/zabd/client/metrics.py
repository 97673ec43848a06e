"""What a client measures, and how: give ``connect(hosts, metrics=...)`` a place for the figures.

The default is a `MemoryMetrics` of the client's own, in `Client.metrics`; ``exposition`` makes the
text page of it. Clients on one loop may share one. The interface and its contract are those of
`zabd.model.metrics`, which servers use too; `on_span` is the tracing hook.

The dedup recipe, section 13.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from zabd.model.metrics import (
    ENSEMBLE_SIZE,
    EPHEMERAL_NODES,
    EXPOSITION_TYPE,
    LATENCY_BUCKETS_MS,
    OPERATION_LATENCY,
    PATIENCE_BUCKETS_MS,
    PREFIX_COMPONENTS,
    QUORUM_SIZE,
    WATCH_NOTIFICATIONS,
    BoundedPrefixes,
    Histogram,
    Labels,
    MemoryMetrics,
    Metric,
    MetricKind,
    Metrics,
    OnSpan,
    exposition,
    operation_name,
)

__all__ = [
    "CLIENT_METRICS",
    "DEDUP_CLEANUP_PENDING",
    "DEDUP_CONTAINER_RETRIES",
    "DEDUP_HOLD",
    "DEDUP_LOST_REPLIES",
    "DEDUP_RELEASES",
    "DEDUP_REQUESTS",
    "DEDUP_WAIT",
    "ENSEMBLE_SIZE",
    "EPHEMERAL_NODES",
    "EVENT_LOOP_LAG",
    "EXPOSITION_TYPE",
    "LATENCY_BUCKETS_MS",
    "OPERATION_LATENCY",
    "PATIENCE_BUCKETS_MS",
    "QUORUM_SIZE",
    "SESSION_EXPIRED",
    "WATCH_NOTIFICATIONS",
    "Histogram",
    "Labels",
    "MemoryMetrics",
    "Meter",
    "Metric",
    "MetricKind",
    "Metrics",
    "OnSpan",
    "exposition",
]

SESSION_EXPIRED: Final = Metric(
    "zk_session_expired_total",
    MetricKind.COUNTER,
    "Sessions that this client has lost, by the ensemble's word or by the local lease.",
)
EVENT_LOOP_LAG: Final = Metric(
    "zk_event_loop_lag_ms",
    MetricKind.HISTOGRAM,
    "How late the event loop was, whenever that was more than a third of the session timeout.",
    buckets=LATENCY_BUCKETS_MS,
)
DEDUP_REQUESTS: Final = Metric(
    "dedup_requests_total",
    MetricKind.COUNTER,
    "Calls of the dedup recipe by how they ended.",
    ("outcome",),
)
DEDUP_WAIT: Final = Metric(
    "dedup_wait_ms",
    MetricKind.HISTOGRAM,
    "Milliseconds from a lock znode's creation to its being the lowest.",
    buckets=PATIENCE_BUCKETS_MS,
)
DEDUP_HOLD: Final = Metric(
    "dedup_hold_ms",
    MetricKind.HISTOGRAM,
    "Milliseconds for which a lock znode was the lowest.",
    buckets=PATIENCE_BUCKETS_MS,
)
DEDUP_RELEASES: Final = Metric(
    "dedup_releases_total",
    MetricKind.COUNTER,
    "Lock znodes of this client that are gone, by a release or with their session.",
)
DEDUP_LOST_REPLIES: Final = Metric(
    "dedup_lost_replies_total",
    MetricKind.COUNTER,
    "Writes whose reply was lost, and what became of them: adopted, resent or gone.",
    ("op", "resolution"),
)
DEDUP_CONTAINER_RETRIES: Final = Metric(
    "dedup_container_retries_total",
    MetricKind.COUNTER,
    "Times that a key's parent had to be made again, as it was collected in between.",
)
DEDUP_CLEANUP_PENDING: Final = Metric(
    "dedup_cleanup_pending",
    MetricKind.GAUGE,
    "Lock znodes that wait to be removed in the background; 0 when idle.",
)

CLIENT_METRICS: Final = (
    SESSION_EXPIRED,
    WATCH_NOTIFICATIONS,
    EPHEMERAL_NODES,
    OPERATION_LATENCY,
    EVENT_LOOP_LAG,
    DEDUP_REQUESTS,
    DEDUP_WAIT,
    DEDUP_HOLD,
    DEDUP_RELEASES,
    DEDUP_LOST_REPLIES,
    DEDUP_CONTAINER_RETRIES,
    DEDUP_CLEANUP_PENDING,
)
"""All that a client declares."""


class Meter:
    """One client's way to its figures: what has happened goes in, metrics come out."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        on_span: OnSpan | None = None,
        prefix_components: int = PREFIX_COMPONENTS,
    ) -> None:
        self.metrics = metrics
        self._on_span = on_span
        self._prefixes = BoundedPrefixes(prefix_components)
        self._ops: dict[int, Labels] = {}
        metrics.declare(CLIENT_METRICS)

    def answered(self, opcode: int, latency_ms: int) -> None:
        """A server has answered a request."""
        labels = self._ops.get(opcode)
        if labels is None:
            labels = self._ops[opcode] = (operation_name(opcode),)
        self.metrics.observe(OPERATION_LATENCY, latency_ms, labels)

    def notified(self, path: str, kind: str) -> None:
        """A watch event came, however many watchers it concerns."""
        labels = (self._prefixes.label(path), kind)
        self.metrics.add(WATCH_NOTIFICATIONS, 1, labels)

    def session_lost(self) -> None:
        """A session is over, and the client has not ended it itself."""
        self.metrics.add(SESSION_EXPIRED)

    def lagged(self, late_ms: float) -> None:
        """The event loop was held up for longer than a session can bear often."""
        self.metrics.observe(EVENT_LOOP_LAG, late_ms)

    def span(self, name: str, attrs: Mapping[str, object]) -> AbstractContextManager[object]:
        """What goes around a piece of work that somebody may want to trace."""
        return nullcontext() if self._on_span is None else self._on_span(name, attrs)
