"""The small evaluator computes what Prometheus does, where the shipped alerts depend on it."""

import math
from collections.abc import Sequence

import pytest
from tests.monitoring.promql import Parser, Store, Vector, evaluate, names_in


def stored(*pages: str | None, every_s: float = 10.0) -> Store:
    """A target's pages, one after the other."""
    store = Store()
    for number, page in enumerate(pages):
        store.scrape(number * every_s, "zabd", "1", page)
    return store


def value(store: Store, text: str, now_s: float) -> float | None:
    """The value of an expression with one result, None without any."""
    vector = evaluate(store, Parser(text).parse(), now_s)
    assert isinstance(vector, dict)
    assert len(vector) <= 1
    return next(iter(vector.values()), None)


def counter(*values: float) -> Sequence[str]:
    """Pages with a counter."""
    return [f"# TYPE a_total counter\na_total {value}\n" for value in values]


@pytest.mark.parametrize(
    ("values", "increase"),
    [
        ([100, 110, 120], 20 * 30 / 20),  # half a step on either side
        ([0, 10, 20], 20 * 25 / 20),  # it was not below zero before
        ([100, 5, 15], 15 * 30 / 20),  # 100 was before a reset, and 5 came after it
        ([7, 7, 7], 0),
        ([7], None),
    ],
)
def test_an_increase_is_extrapolated_within_reason(
    values: list[float], increase: float | None
) -> None:
    """By half of a step beyond the first and the last sample, and never below zero."""
    now_s = 10.0 * (len(values) - 1) + 40

    assert value(stored(*counter(*values)), "increase(a_total[5m])", now_s) == increase
    if increase is not None:
        rate = value(stored(*counter(*values)), "rate(a_total[5m])", now_s)
        assert rate == pytest.approx(increase / 300)


def test_a_quantile_lies_between_the_bounds_of_its_bucket() -> None:
    """In proportion to its rank; beyond the last bound there is only that."""
    page = "".join(
        f'# TYPE b histogram\nb_bucket{{le="{le}"}} {count}\n'
        if le == "1"
        else f'b_bucket{{le="{le}"}} {count}\n'
        for le, count in (("1", 50), ("10", 90), ("+Inf", 100))
    )
    store = stored(page + "b_sum 1\nb_count 100\n")

    assert value(store, "histogram_quantile(0.5, b_bucket)", 0) == 1
    assert value(store, "histogram_quantile(0.7, b_bucket)", 0) == pytest.approx(1 + 9 * 20 / 40)
    assert value(store, "histogram_quantile(0.99, b_bucket)", 0) == 10


def test_what_is_gone_is_absent_at_once() -> None:
    """A target that cannot be scraped says nothing, and not what it said before."""
    store = stored("c 3\n", "c 4\n", None)

    assert value(store, "c", 10) == 4
    assert value(store, "c", 20) is None
    assert value(store, 'absent(c{job="zabd"})', 20) == 1
    assert value(store, 'c > 4 or absent(c{job="none"})', 10) == 1


def test_operators_have_their_ranks_and_labels_their_matches() -> None:
    """As in arithmetic; a comparison keeps what it holds for."""
    store = stored('d{x="a"} 3\nd{x="b"} 5\nd{y="c"} 7\n')

    def values(text: str) -> list[float]:
        vector: Vector | float = evaluate(store, Parser(text).parse(), 0)
        assert isinstance(vector, dict)
        return sorted(vector.values())

    assert values("d * 2 + 1 > 7") == [11, 15]
    assert values('d{x=~"a|b"}') == [3, 5]
    assert values('d{x!="a"}') == [5, 7]
    assert values("sum by (x) (d)") == [3, 5, 7]
    assert values('max(d) < floor(sum(d{x!=""}) / 3) + 6') == [7]
    assert values('d > 3 and d < 7 or d{y="c"}') == [5, 7]
    [nothing] = values('d{x="a"} / (d{x="a"} - d{x="a"})')
    assert math.isinf(nothing)
    assert names_in(Parser("sum(rate(a[5m])) / max by (x) (b) > 1").parse()) == {"a", "b"}


@pytest.mark.parametrize("text", ["a offset 5m", "topk(1, a)", "a b", "(a", "a{b}", "quantile(a)"])
def test_what_is_not_in_the_subset_is_refused(text: str) -> None:
    """Rather than evaluated as something else."""
    with pytest.raises((ValueError, IndexError)):
        evaluate(stored("a 1\n"), Parser(text).parse(), 0)
