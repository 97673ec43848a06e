"""Claims about the registry in memory and its page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from zabd.model.metrics import (
    LATENCY_BUCKETS_MS,
    OPERATION_LATENCY,
    Histogram,
    MemoryMetrics,
    Metric,
    MetricKind,
    exposition,
    operation_name,
    prefix_of,
)
from zabd.model.ops import OpCode

SEEN = Metric("seen_total", MetricKind.COUNTER, 'How often; "odd" \\ help.', ("who",))
DEPTH = Metric("depth", MetricKind.GAUGE, "How deep.")
TOOK = Metric("took_ms", MetricKind.HISTOGRAM, "How long.", ("op",), (1.0, 2.5))


def page(metrics: MemoryMetrics) -> dict[str, tuple[str, dict[tuple[str, ...], float]]]:
    """Each family's type and samples, as Prometheus's own parser sees them."""
    return {
        family.name: (
            family.type,
            {(s.name, *s.labels.values()): s.value for s in family.samples},
        )
        for family in text_string_to_metric_families(exposition(metrics))
    }


def test_the_page_is_read_by_prometheus_with_types_and_values() -> None:
    """Names, types, labels with anything in them, and cumulative buckets."""
    metrics = MemoryMetrics()
    metrics.declare([SEEN, DEPTH, TOOK])
    metrics.add(SEEN, labels=('a "b"\\\n',))
    metrics.add(SEEN, 2, ('a "b"\\\n',))
    metrics.set(DEPTH, 1.5)
    for value in (0.5, 1, 2, 99):
        metrics.observe(TOOK, value, ("get",))

    assert page(metrics) == {
        "seen": ("counter", {("seen_total", 'a "b"\\\n'): 3}),
        "depth": ("gauge", {("depth",): 1.5}),
        "took_ms": (
            "histogram",
            {
                ("took_ms_bucket", "get", "1"): 2,
                ("took_ms_bucket", "get", "2.5"): 3,
                ("took_ms_bucket", "get", "+Inf"): 4,
                ("took_ms_sum", "get"): 102.5,
                ("took_ms_count", "get"): 4,
            },
        ),
    }


def test_what_was_declared_is_on_the_page_before_anything_was_measured() -> None:
    """An alert must be able to tell 0 from a metric that nobody has."""
    metrics = MemoryMetrics()
    metrics.declare([SEEN, DEPTH])
    metrics.declare([DEPTH, TOOK])

    kinds = {name: kind for name, (kind, _) in page(metrics).items()}
    assert kinds == {"seen": "counter", "depth": "gauge", "took_ms": "histogram"}
    assert page(metrics)["depth"][1] == {("depth",): 0}


def test_one_name_has_one_meaning() -> None:
    """Two metrics of one name on one page could not be told apart."""
    metrics = MemoryMetrics()
    metrics.declare([DEPTH])
    with pytest.raises(AssertionError, match="means two things"):
        metrics.declare([DEPTH._replace(kind=MetricKind.COUNTER)])


def test_a_gauge_is_shared_by_adding_and_ends_by_forgetting() -> None:
    """Several clients add to one; a label that means nothing any more goes."""
    metrics = MemoryMetrics()
    gauge = Metric("nodes", MetricKind.GAUGE, "Nodes.", ("prefix",))
    metrics.declare([gauge])
    metrics.add(gauge, 3, ("/a",))
    metrics.add(gauge, -1, ("/a",))
    assert metrics.value(gauge, ("/a",)) == 2
    metrics.forget(gauge, ("/a",))
    metrics.forget(gauge, ("/never",))
    assert metrics.values(gauge) == {}


@given(st.lists(st.floats(min_value=0, max_value=1e5, allow_nan=False)))
def test_a_histogram_counts_each_value_once(values: list[float]) -> None:
    """The cumulative counts are what a plain count says, bound by bound."""
    histogram = Histogram(LATENCY_BUCKETS_MS)
    for value in values:
        histogram.observe(value)
    expected = [sum(value <= bound for value in values) for bound in LATENCY_BUCKETS_MS]
    assert [count for _, count in histogram.cumulative()] == [*expected, len(values)]
    assert histogram.count == len(values)


@pytest.mark.parametrize(
    ("path", "components", "prefix"),
    [
        ("/dedup/req-42/lock-1", 1, "/dedup"),
        ("/dedup/req-42/lock-1", 2, "/dedup/req-42"),
        ("/dedup", 2, "/dedup"),
        ("/", 1, "/"),
        ("", 1, "/"),
    ],
)
def test_a_prefix_bounds_the_number_of_labels(path: str, components: int, prefix: str) -> None:
    """Every path has one, however long it is."""
    assert prefix_of(path, components) == prefix


def test_operations_have_zookeepers_names_and_variants_share_one() -> None:
    """The alert on create must see create2 as well."""
    names = {opcode: operation_name(opcode) for opcode in OpCode}
    assert names[OpCode.CREATE] == names[OpCode.CREATE2] == names[OpCode.CREATE_TTL] == "create"
    assert names[OpCode.GET_CHILDREN2] == "getChildren"
    assert names[OpCode.GET_DATA] == "getData"
    assert operation_name(4711) == "other"


def test_the_bounds_are_those_of_the_recipe() -> None:
    """Section 13: the alert at 200 ms needs a bound there."""
    assert OPERATION_LATENCY.buckets == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
