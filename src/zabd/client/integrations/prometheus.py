"""A client's figures in a registry of prometheus-client (extra `metrics`).

``connect(hosts, metrics=PrometheusMetrics())`` puts them on the page that the program shows anyway.
"""

from collections.abc import Iterable
from contextlib import suppress
from threading import Lock
from typing import Final, TypeAlias, cast
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from zabd.model.metrics import Labels, Metric, MetricKind

__all__ = ["PrometheusMetrics"]

Collector: TypeAlias = Counter | Gauge | Histogram

# A registry takes each name once, while any number of clients may measure into it, on any threads.
_collectors: Final[WeakKeyDictionary[CollectorRegistry, dict[str, Collector]]] = WeakKeyDictionary()
_lock: Final = Lock()


class PrometheusMetrics:
    """`zabd.client.metrics.Metrics` for one registry, the library's own unless another is given.

    Clients may share one of these, or have one each for the same registry: the figures add up.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        with _lock:
            self._collectors = _collectors.setdefault(registry, {})

    def declare(self, metrics: Iterable[Metric]) -> None:
        """Make these metrics known; ValueError if the registry has one of the names already."""
        with _lock:
            for metric in metrics:
                if metric.name not in self._collectors:
                    self._collectors[metric.name] = self._register(metric)

    def _register(self, metric: Metric) -> Collector:
        name, registry = metric.name, self._registry
        match metric.kind:
            case MetricKind.COUNTER:
                return Counter(name, metric.help, metric.labels, registry=registry)
            case MetricKind.GAUGE:
                return Gauge(name, metric.help, metric.labels, registry=registry)
            case MetricKind.HISTOGRAM:
                buckets = metric.buckets
                return Histogram(
                    name, metric.help, metric.labels, registry=registry, buckets=buckets
                )

    def add(self, metric: Metric, amount: float = 1, labels: Labels = ()) -> None:
        """Add to a counter or a gauge."""
        cast("Counter | Gauge", self._of(metric, labels)).inc(amount)

    def set(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Set a gauge."""
        cast("Gauge", self._of(metric, labels)).set(value)

    def forget(self, metric: Metric, labels: Labels = ()) -> None:
        """Drop one of a gauge's values; a gauge without labels becomes 0."""
        if not labels:
            self.set(metric, 0)
            return
        with suppress(KeyError):
            self._collectors[metric.name].remove(*labels)

    def observe(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Count a value in a histogram."""
        cast("Histogram", self._of(metric, labels)).observe(value)

    def _of(self, metric: Metric, labels: Labels) -> Collector:
        collector = self._collectors[metric.name]
        return collector.labels(*labels) if labels else collector
