"""Metrics: what is measured, the small interface it goes through, and a registry in memory.

Whoever measures says `add`, `set` or `observe` of a `Metric` from a catalogue; where the figures go
is the choice of whoever runs the program: `MemoryMetrics` is the default, and adapters to other
systems implement `Metrics`. Nothing here does I/O, and nothing depends on a library for metrics.

The contract of `Metrics`
    C1  `declare` is called with each metric before it is used, perhaps more than once with the same
        one. A declared metric belongs on the page even while nothing was measured.
    C2  Labels are given as values, in the order of `Metric.labels`, one for each. Their number is
        bounded by whoever measures: a path is cut to a prefix, a key is never a label.
    C3  Counters only rise (`add` of 0 or more). Gauges take `set`, and `add` of either sign, which
        is how several clients share one. `forget` ends a gauge's labels that mean nothing more.
    C4  Histograms take `observe`; `Metric.buckets` are the upper bounds, without the infinite one.
    C5  Calls come from the loop's own thread, in the middle of its work: they must not block, and
        must not raise. An adapter that exports does so elsewhere.

`OnSpan` is the tracing hook: called with a name and attributes when a span begins, it returns a
context manager that is entered then and left, with the exception if there was one, at its end.
`nullcontext` will do, and so will the ``start_as_current_span`` of a tracer.

The dedup recipe, section 13, has the names, the types and the rules for alerts.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from zabd.model.ops import OpCode

Labels: TypeAlias = tuple[str, ...]
OnSpan: TypeAlias = Callable[[str, Mapping[str, object]], AbstractContextManager[object]]

LATENCY_BUCKETS_MS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0)
"""For answers of a server; an alert at 200 ms has a bound of its own."""
PATIENCE_BUCKETS_MS: Final = (*LATENCY_BUCKETS_MS, 10_000.0, 30_000.0, 60_000.0, 300_000.0)
"""For what waits for a person's work to end."""


class MetricKind(StrEnum):
    """The type of a metric, as the text exposition names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric: its name, its type, what it says, its labels' names, a histogram's bounds."""

    name: str
    kind: MetricKind
    help: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()


class Metrics(Protocol):
    """Where figures go; the module's docstring has the contract."""

    def declare(self, metrics: Iterable[Metric]) -> None:
        """Make these metrics known, before they are used."""

    def add(self, metric: Metric, amount: float = 1, labels: Labels = ()) -> None:
        """Add to a counter or a gauge."""

    def set(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Set a gauge."""

    def forget(self, metric: Metric, labels: Labels = ()) -> None:
        """Drop one of a gauge's values; that there is none is no error."""

    def observe(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Count a value in a histogram."""


# What client and server both measure.

WATCH_NOTIFICATIONS: Final = Metric(
    "zk_watch_notifications_total",
    MetricKind.COUNTER,
    "Watch events that were delivered, by the first components of the path.",
    ("prefix", "type"),
)
EPHEMERAL_NODES: Final = Metric(
    "zk_ephemeral_nodes_total",
    MetricKind.GAUGE,
    "Ephemeral znodes below a path, for the paths that have most of them, and in total.",
    ("prefix",),
)
OPERATION_LATENCY: Final = Metric(
    "zk_operation_latency_ms",
    MetricKind.HISTOGRAM,
    "Milliseconds from a request to its answer; the variants of an operation count as one.",
    ("op",),
    LATENCY_BUCKETS_MS,
)
# What only a server knows.
QUORUM_SIZE: Final = Metric(
    "zk_quorum_size",
    MetricKind.GAUGE,
    "Voters that are known to serve in sync, the leader included.",
)
ENSEMBLE_SIZE: Final = Metric("zk_ensemble_size", MetricKind.GAUGE, "Voters that are configured.")

PREFIX_COMPONENTS: Final = 1
"""How much of a path is a prefix, unless somebody chooses otherwise."""
PREFIXES_MAX: Final = 100
"""How many prefixes have a label of their own."""
OTHER_PREFIX: Final = "other"
"""The label of all other prefixes; it is no path."""


def prefix_of(path: str, components: int = PREFIX_COMPONENTS) -> str:
    """The first components of a path, as the label `prefix`."""
    return "/".join(path.split("/", components + 1)[: components + 1]) or "/"


class BoundedPrefixes:
    """The label `prefix` of paths: the first so many prefixes that come, then one for the rest.

    Whoever can make znodes can make prefixes, and each label costs memory wherever it is stored.
    """

    def __init__(self, components: int = PREFIX_COMPONENTS, labels_max: int = PREFIXES_MAX) -> None:
        self._components = components
        self._labels_max = labels_max
        self._labels: dict[str, None] = {}

    def label(self, path: str) -> str:
        """The label of this path."""
        prefix = prefix_of(path, self._components)
        if prefix not in self._labels:
            if len(self._labels) >= self._labels_max:
                return OTHER_PREFIX
            self._labels[prefix] = None
        return prefix


def operation_name(opcode: int) -> str:
    """The label `op`: ZooKeeper's name of an operation, one for all of its variants."""
    if opcode not in _NAMES:
        return "other"
    return _NAMES[opcode]


def _name(opcode: OpCode) -> str:
    first, *rest = _VARIANTS.get(opcode, opcode).name.lower().split("_")
    return first + "".join(word.capitalize() for word in rest)


_VARIANTS: Final = {
    OpCode.CREATE2: OpCode.CREATE,
    OpCode.CREATE_CONTAINER: OpCode.CREATE,
    OpCode.CREATE_TTL: OpCode.CREATE,
    OpCode.GET_CHILDREN2: OpCode.GET_CHILDREN,
    OpCode.SET_WATCHES2: OpCode.SET_WATCHES,
}
_NAMES: Final[Mapping[int, str]] = {opcode: _name(opcode) for opcode in OpCode}


class Histogram:
    """Values by the smallest bound that is not below them; the last count has no bound."""

    __slots__ = ("buckets", "counts", "sum")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, or so many equal ones."""
        self.counts[bisect_left(self.buckets, value)] += times
        self.sum += value * times

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Each bound as text, and how many values are not above it."""
        total = 0
        for bound, count in zip((*self.buckets, None), self.counts, strict=True):
            total += count
            yield "+Inf" if bound is None else _number(bound), total


class MemoryMetrics:
    """A registry in memory, for one thread; `exposition` makes a page of it."""

    def __init__(self) -> None:
        self.declared: dict[str, Metric] = {}
        self._numbers: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}

    # Measuring: see `Metrics`.

    def declare(self, metrics: Iterable[Metric]) -> None:
        """Make these metrics known; one without labels is there, empty or 0, from now on."""
        for metric in metrics:
            known = self.declared.setdefault(metric.name, metric)
            assert known == metric, f"{metric.name} means two things: {known} and {metric}"
            if metric.kind is MetricKind.HISTOGRAM:
                histograms = self._histograms.setdefault(metric.name, {})
                if not metric.labels:
                    histograms.setdefault((), Histogram(metric.buckets))
            else:
                numbers = self._numbers.setdefault(metric.name, {})
                if not metric.labels:
                    numbers.setdefault((), 0)

    def add(self, metric: Metric, amount: float = 1, labels: Labels = ()) -> None:
        """Add to a counter or a gauge."""
        numbers = self._numbers[metric.name]
        numbers[labels] = numbers.get(labels, 0) + amount

    def set(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Set a gauge."""
        self._numbers[metric.name][labels] = value

    def forget(self, metric: Metric, labels: Labels = ()) -> None:
        """Drop one of a gauge's values."""
        self._numbers[metric.name].pop(labels, None)

    def observe(self, metric: Metric, value: float, labels: Labels = ()) -> None:
        """Count a value in a histogram."""
        histograms = self._histograms[metric.name]
        histogram = histograms.get(labels)
        if histogram is None:
            histogram = histograms[labels] = Histogram(metric.buckets)
        histogram.observe(value)

    def hold(self, metric: Metric, histogram: Histogram, labels: Labels = ()) -> None:
        """Show a histogram that somebody else fills."""
        self._histograms[metric.name][labels] = histogram

    # Looking.

    def value(self, metric: Metric, labels: Labels = ()) -> float:
        """A counter's or a gauge's value; 0 for what was never touched."""
        return self._numbers.get(metric.name, {}).get(labels, 0)

    def values(self, metric: Metric) -> dict[Labels, float]:
        """All of a counter's or a gauge's values."""
        return dict(self._numbers.get(metric.name, {}))

    def histogram(self, metric: Metric, labels: Labels = ()) -> Histogram:
        """A histogram; an empty one for what was never observed."""
        found = self._histograms.get(metric.name, {}).get(labels)
        return Histogram(metric.buckets) if found is None else found

    def histograms(self, metric: Metric) -> dict[Labels, Histogram]:
        """All of a metric's histograms."""
        return dict(self._histograms.get(metric.name, {}))


def exposition(metrics: MemoryMetrics) -> str:
    """The page as Prometheus reads it, version 0.0.4 of its text format."""
    return "".join(f"{line}\n" for line in _lines(metrics))


EXPOSITION_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of `exposition`."""


def _lines(metrics: MemoryMetrics) -> Iterator[str]:
    for metric in metrics.declared.values():
        yield f"# HELP {metric.name} {_escaped(metric.help)}"
        yield f"# TYPE {metric.name} {metric.kind}"
        for labels, number in metrics.values(metric).items():
            yield f"{metric.name}{_braces(metric.labels, labels)} {_number(number)}"
        for labels, histogram in metrics.histograms(metric).items():
            yield from _histogram_lines(metric, labels, histogram)


def _histogram_lines(metric: Metric, labels: Labels, histogram: Histogram) -> Iterator[str]:
    names = (*metric.labels, "le")
    for bound, count in histogram.cumulative():
        yield f"{metric.name}_bucket{_braces(names, (*labels, bound))} {count}"
    braces = _braces(metric.labels, labels)
    yield f"{metric.name}_sum{braces} {_number(histogram.sum)}"
    yield f"{metric.name}_count{braces} {histogram.count}"


def _braces(names: Labels, values: Labels) -> str:
    pairs = [f'{name}="{_quoted(value)}"' for name, value in zip(names, values, strict=True)]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', '\\"')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
