"""A client's figures and spans for OpenTelemetry (extra `opentelemetry`).

``connect(hosts, metrics=OpenTelemetryMetrics(), on_span=span_hook())`` sends them wherever the
program's providers send theirs.

Names stay those of the reference, so that alerts and dashboards fit whichever way the figures took;
a counter goes without its `_total`, which exporters for Prometheus add. Instruments have no unit:
the names end in it, and those exporters would add it once more.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from threading import Lock
from typing import TypeAlias

from opentelemetry.metrics import (
    CallbackOptions,
    Counter,
    Histogram,
    Meter,
    MeterProvider,
    Observation,
    get_meter,
)
from opentelemetry.trace import TracerProvider, get_tracer
from opentelemetry.util.types import Attributes, AttributeValue

from zabd.client.metrics import OnSpan
from zabd.model.metrics import Labels, Metric, MetricKind

__all__ = ["OpenTelemetryMetrics", "span_hook"]

NAME = "zabd"
_PLAIN = (str, bool, int, float)
Observe: TypeAlias = Callable[[CallbackOptions], Iterable[Observation]]


class OpenTelemetryMetrics:
    """`zabd.client.metrics.Metrics` for one provider, the program's own unless another is given.

    Clients share one of these: a provider that is given two of them gets each gauge twice.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self._meter: Meter = get_meter(NAME, meter_provider=provider)
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        # An instrument cannot forget, so gauges are kept here, and read when they are exported.
        self._gauges: dict[str, dict[Labels, float]] = {}
        self._lock = Lock()

    def declare(self, metrics: Iterable[Metric]) -> None:
        """Make these metrics known; one without labels begins at 0."""
        with self._lock:
            for metric in metrics:
                match metric.kind:
                    case MetricKind.COUNTER if metric.name not in self._counters:
                        self._declare_counter(metric)
                    case MetricKind.GAUGE if metric.name not in self._gauges:
                        self._declare_gauge(metric)
                    case MetricKind.HISTOGRAM if metric.name not in self._histograms:
                        self._histograms[metric.name] = self._meter.create_histogram(
                            metric.name,
                            description=metric.help,
                            explicit_bucket_boundaries_advisory=metric.buckets,
                        )
                    case _:
                        pass  # another client has declared it

    def _declare_counter(self, metric: Metric) -> None:
        name = metric.name.removesuffix("_total")
        counter = self._meter.create_counter(name, description=metric.help)
        self._counters[metric.name] = counter
        if not metric.labels:
            counter.add(0)

    def _declare_gauge(self, metric: Metric) -> None:
        values: dict[Labels, float] = {} if metric.labels else {(): 0}
        self._gauges[metric.name] = values
        self._meter.create_observable_gauge(
            metric.name, callbacks=[self._observer(metric, values)], description=metric.help
        )

    def _observer(self, metric: Metric, values: dict[Labels, float]) -> Observe:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            with self._lock:
                now = dict(values)
            return [
                Observation(value, _attributes(metric, labels)) for labels, value in now.items()
            ]

        return observe

    def add(self, metric: Metric, amount: float = 1, labels: Labels = ()) -> None:
        """Add to a counter or a gauge."""
        if metric.kind is MetricKind.COUNTER:
            self._counters[metric.name].add(amount, _attributes(metric, labels))
            return
        with self._lock:
            values = self._gauges[metric.name]
            values[labels] = values.get(labels, 0) + amount

    def set(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Set a gauge."""
        with self._lock:
            self._gauges[metric.name][labels] = value

    def forget(self, metric: Metric, labels: Labels = ()) -> None:
        """Drop one of a gauge's values: it is exported no more."""
        with self._lock:
            self._gauges[metric.name].pop(labels, None)

    def observe(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Count a value in a histogram."""
        self._histograms[metric.name].record(value, _attributes(metric, labels))


def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))


def span_hook(provider: TracerProvider | None = None) -> OnSpan:
    """The hook `on_span` for a provider's tracer: a span around each piece of work.

    It is the current one meanwhile, and has the exception that ended the work, if one did.
    Attributes that a span cannot hold are told as text.
    """
    tracer = get_tracer(NAME, tracer_provider=provider)

    def begin(name: str, attrs: Mapping[str, object]) -> AbstractContextManager[object]:
        return tracer.start_as_current_span(name, attributes=_plain(attrs))

    return begin


def _plain(attrs: Mapping[str, object]) -> Attributes:
    plain: dict[str, AttributeValue] = {}
    for key, value in attrs.items():
        plain[key] = value if isinstance(value, _PLAIN) else str(value)
    return plain
