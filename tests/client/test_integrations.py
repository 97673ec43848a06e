"""Claims about a client's figures and spans in other people's libraries, the real ones."""

import asyncio
import math
from collections.abc import Iterator, Mapping

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    InMemoryMetricReader,
    NumberDataPoint,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry, Counter, generate_latest
from tests.client.fast_loop import FastLoop, run
from tests.client.scripted_server import ScriptedEnsemble
from tests.scrape import Sample, read_page, value_of

from zabd.client import connect
from zabd.client.integrations.opentelemetry import OpenTelemetryMetrics, span_hook
from zabd.client.integrations.prometheus import PrometheusMetrics
from zabd.client.metrics import (
    CLIENT_METRICS,
    DEDUP_CLEANUP_PENDING,
    DEDUP_REQUESTS,
    EPHEMERAL_NODES,
    OPERATION_LATENCY,
    SESSION_EXPIRED,
    MemoryMetrics,
    Metrics,
    exposition,
)
from zabd.client.recipes.dedup import Attempt, Dedup


def measure(metrics: Metrics) -> None:
    """A little of everything that the contract has."""
    metrics.declare(CLIENT_METRICS)
    metrics.declare(CLIENT_METRICS)
    metrics.add(SESSION_EXPIRED)
    metrics.add(DEDUP_REQUESTS, 2, ("executed",))
    metrics.add(DEDUP_CLEANUP_PENDING, 3)
    metrics.add(DEDUP_CLEANUP_PENDING, -1)
    metrics.set(EPHEMERAL_NODES, 7, ("/dedup/a",))
    metrics.set(EPHEMERAL_NODES, 8, ("/dedup/b",))
    metrics.forget(EPHEMERAL_NODES, ("/dedup/b",))
    metrics.forget(EPHEMERAL_NODES, ("/dedup/never",))
    for value in (0.5, 2, 2.5, 7000):
        metrics.observe(OPERATION_LATENCY, value, ("create",))


def shown(text: str) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
    """The samples of a page, with bounds as numbers, without the times that libraries add."""
    return {_comparable(sample) for sample in read_page(text) if "_created" not in sample.name}


def _comparable(sample: Sample) -> tuple[str, frozenset[tuple[str, str]], float]:
    labels = dict(sample.labels)
    if "le" in labels:
        labels["le"] = str(float(labels["le"]))
    return sample.name, frozenset(labels.items()), sample.value


def test_prometheus_shows_what_the_memory_shows() -> None:
    """One script into both, and the two pages agree on every sample."""
    memory, registry = MemoryMetrics(), CollectorRegistry()
    measure(memory)
    measure(PrometheusMetrics(registry))

    ours, theirs = shown(exposition(memory)), shown(generate_latest(registry).decode())
    assert ours <= theirs
    assert {value for *_, value in theirs - ours} <= {0.0}  # histograms that nobody has filled


def test_clients_add_up_in_one_registry() -> None:
    """Each with an adapter of its own, as two parts of a program would have."""
    registry = CollectorRegistry()
    for _ in range(2):
        measure(PrometheusMetrics(registry))
    page = read_page(generate_latest(registry).decode())

    assert value_of(page, "dedup_requests_total", outcome="executed") == 4
    assert value_of(page, "zk_operation_latency_ms_count", op="create") == 8


def test_a_name_that_the_program_has_taken_is_an_error_at_once() -> None:
    """Two things under one name would be found out on a dashboard, too late."""
    registry = CollectorRegistry()
    Counter("zk_session_expired", "Somebody else's.", registry=registry)

    with pytest.raises(ValueError, match="Duplicated"):
        connect("zk:2181", metrics=PrometheusMetrics(registry))


def points(reader: InMemoryMetricReader) -> Iterator[tuple[str, Mapping[str, object], object]]:
    """What the SDK would export: name, attributes, data point."""
    data = reader.get_metrics_data()
    assert data is not None
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    yield metric.name, dict(point.attributes or {}), point


def test_opentelemetry_exports_what_the_memory_shows() -> None:
    """One script into both; names are ours but for the `_total` that exporters add."""
    memory, reader = MemoryMetrics(), InMemoryMetricReader()
    measure(memory)
    measure(OpenTelemetryMetrics(MeterProvider([reader])))
    exported = list(points(reader))

    for metric in CLIENT_METRICS:
        name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
        numbers = {
            tuple(str(attributes[label]) for label in metric.labels): point.value
            for exported_name, attributes, point in exported
            if exported_name == name and isinstance(point, NumberDataPoint)
        }
        assert numbers == memory.values(metric)
    [histogram] = [point for _, _, point in exported if isinstance(point, HistogramDataPoint)]
    ours = memory.histogram(OPERATION_LATENCY, ("create",))
    assert list(histogram.bucket_counts) == ours.counts
    assert tuple(histogram.explicit_bounds) == ours.buckets
    assert math.isclose(histogram.sum, ours.sum)
    assert histogram.attributes == {"op": "create"}


def test_a_client_measures_into_either() -> None:
    """A real client, a real session, and the figures arrive where the program keeps its own."""

    async def main(loop: FastLoop) -> None:
        ensemble = ScriptedEnsemble(loop)
        registry, reader = CollectorRegistry(), InMemoryMetricReader()
        into: list[Metrics] = [
            PrometheusMetrics(registry),
            OpenTelemetryMetrics(MeterProvider([reader])),
        ]
        for metrics in into:
            async with connect(ensemble.hosts, metrics=metrics) as zk:
                await zk.exists("/a")
        page = read_page(generate_latest(registry).decode())
        assert value_of(page, "zk_operation_latency_ms_count", op="exists") == 1
        assert any(
            isinstance(point, HistogramDataPoint) and attributes == {"op": "exists"}
            for _, attributes, point in points(reader)
        )

    run(main)


def test_spans_are_nested_and_say_how_they_ended() -> None:
    """As a tracer's own; an attribute that a span cannot hold is text."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    hook = span_hook(provider)

    async def work() -> None:
        attributes = {"idempotency_key": "k", "fencing_token": 7, "owner": {"pid": 1}}
        with (
            hook("dedup.run", attributes),
            pytest.raises(LookupError),
            hook("dedup.execute", {}),
        ):
            raise LookupError("nothing there")

    asyncio.run(work())
    inner, outer = exporter.get_finished_spans()
    assert (inner.name, outer.name) == ("dedup.execute", "dedup.run")
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id
    assert inner.status.status_code is StatusCode.ERROR
    assert dict(outer.attributes or {}) == {
        "idempotency_key": "k",
        "fencing_token": 7,
        "owner": "{'pid': 1}",
    }


def test_a_deduplicated_call_is_one_trace() -> None:
    """Waiting, executing and recording are parts of the call, also where another task does them."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def main(loop: FastLoop) -> None:
        async def work(_ctx: Attempt) -> int:
            return 1

        hosts = ScriptedEnsemble(loop, 3).hosts
        async with connect(hosts, on_span=span_hook(provider)) as zk:
            await Dedup(zk).run("req-42", work)

    run(main)
    spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span.name for span in spans}
    parents = {span.name: span.parent and by_id[span.parent.span_id] for span in spans}
    assert parents == {
        "dedup.run": None,
        "dedup.wait": "dedup.run",
        "dedup.execute": "dedup.run",
        "dedup.commit": "dedup.run",
    }
    assert {span.attributes["idempotency_key"] for span in spans if span.attributes} == {"req-42"}
