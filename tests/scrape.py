"""Pages for Prometheus, fetched and read as it reads them."""

import urllib.request
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

PATIENCE_S = 10.0


class Sample(NamedTuple):
    """One line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_page(text: str) -> list[Sample]:
    """The samples of a page; an error for what Prometheus would not read."""
    return [
        Sample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def fetch(port: int, timeout_s: float = PATIENCE_S) -> str:
    """The text of a member's page; OSError if there is none."""
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        text: str = answer.read().decode()
    return text


def value_of(samples: Iterable[Sample], name: str, **labels: str) -> float | None:
    """The value of the one sample with this name and these labels, if it is there."""
    for sample in samples:
        if sample.name == name and labels.items() <= sample.labels.items():
            return sample.value
    return None
