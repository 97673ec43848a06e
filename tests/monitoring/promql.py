"""As much of Prometheus as it takes to see an alert fire: scrapes, its expressions, `for`.

The subset of its language that the shipped alerts and panels use, evaluated over pages of real
members and clients. Where promtool is installed, a test has it judge the same samples.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tests.scrape import read_page

Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = dict[Labels, float]
Point: TypeAlias = tuple[float, float]

LOOKBACK_S: Final = 300.0
STALE: Final = math.inf * 0  # told apart by `is`

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*)|(?P<name>[A-Za-z_]\w*)|(?P<text>\"[^\"]*\")"
    r"|(?P<sign><=|>=|==|!=|=~|!~|[-+*/<>=(){}\[\],]))"
)
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_REDUCE: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "sum": sum,
    "max": max,
    "min": min,
}


class Store:
    """Samples by series, as scrapes have brought them."""

    def __init__(self) -> None:
        self.series: dict[str, dict[Labels, list[Point]]] = {}

    def scrape(self, now_s: float, job: str, instance: str, text: str | None) -> None:
        """Take in a target's page; None: it could not be fetched, and its series end."""
        target = frozenset({("job", job), ("instance", instance)})
        seen: set[tuple[str, Labels]] = set()
        for sample in [] if text is None else read_page(text):
            labels = frozenset(sample.labels.items()) | target
            self.series.setdefault(sample.name, {}).setdefault(labels, []).append(
                (now_s, sample.value)
            )
            seen.add((sample.name, labels))
        for name, by_labels in self.series.items():
            for labels, points in by_labels.items():
                if target <= labels and (name, labels) not in seen and points[-1][1] is not STALE:
                    points.append((now_s, STALE))

    def select(
        self, name: str, matchers: Sequence["Matcher"]
    ) -> Iterator[tuple[Labels, list[Point]]]:
        """The series that match."""
        for labels, points in self.series.get(name, {}).items():
            known = dict(labels)
            if all(matcher.matches(known.get(matcher.label, "")) for matcher in matchers):
                yield labels, points


@dataclass(frozen=True)
class Matcher:
    """What a label has to be."""

    label: str
    sign: str
    text: str

    def matches(self, value: str) -> bool:
        """Whether this value will do."""
        if self.sign in {"=", "!="}:
            return (value == self.text) == (self.sign == "=")
        return bool(re.fullmatch(self.text, value)) == (self.sign == "=~")


@dataclass(frozen=True)
class Node:
    """A part of an expression."""

    kind: str
    parts: tuple[Any, ...]


class Parser:
    """From the text of an expression to its parts; ValueError for what is not in the subset."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"{text[at:]!r} is not in the subset")
            assert match.lastgroup is not None
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()

    def parse(self) -> Node:
        """The whole expression."""
        node = self._or()
        if self._tokens:
            raise ValueError(f"{self._tokens} is left over")
        return node

    def _peek(self) -> str:
        return self._tokens[0][1] if self._tokens else ""

    def _take(self, *expected: str) -> str:
        if not self._tokens or (expected and self._peek() not in expected):
            raise ValueError(f"expected {expected}, there is {self._tokens[:3]}")
        return self._tokens.pop(0)[1]

    def _or(self) -> Node:
        node = self._and()
        while self._peek() == "or":
            self._take()
            node = Node("or", (node, self._and()))
        return node

    def _and(self) -> Node:
        node = self._compared()
        while self._peek() == "and":
            self._take()
            node = Node("and", (node, self._compared()))
        return node

    def _compared(self) -> Node:
        node = self._binary(("+", "-"), lambda: self._binary(("*", "/"), self._atom))
        if self._peek() in _COMPARE:
            sign = self._take()
            right = self._binary(("+", "-"), lambda: self._binary(("*", "/"), self._atom))
            return Node("compare", (sign, node, right))
        return node

    def _binary(self, signs: tuple[str, ...], operand: Callable[[], Node]) -> Node:
        node = operand()
        while self._peek() in signs:
            node = Node("arithmetic", (self._take(), node, operand()))
        return node

    def _atom(self) -> Node:
        kind, text = self._tokens[0]
        if kind == "number":
            self._take()
            return Node("number", (float(text),))
        if text == "(":
            self._take()
            node = self._or()
            self._take(")")
            return node
        if kind != "name":
            raise ValueError(f"{text!r} begins nothing that is in the subset")
        self._take()
        if text in _REDUCE:
            return self._aggregate(text)
        if self._peek() == "(":
            return Node("call", (text, tuple(self._arguments())))
        return self._selector(text)

    def _aggregate(self, name: str) -> Node:
        by: tuple[str, ...] = ()
        if self._peek() == "by":
            self._take()
            by = tuple(argument.parts[0] for argument in self._arguments())
        [of] = self._arguments()
        return Node("aggregate", (name, by, of))

    def _arguments(self) -> Iterator[Node]:
        arguments: list[Node] = []
        self._take("(")
        while self._peek() != ")":
            arguments.append(self._or())
            if self._peek() == ",":
                self._take()
        self._take(")")
        return iter(arguments)

    def _selector(self, name: str) -> Node:
        matchers: list[Matcher] = []
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                label, sign = self._take(), self._take("=", "!=", "=~", "!~")
                matchers.append(Matcher(label, sign, self._take()[1:-1]))
                if self._peek() == ",":
                    self._take()
            self._take("}")
        if self._peek() != "[":
            return Node("instant", (name, tuple(matchers)))
        self._take()
        window_s = float(self._take()) * _UNITS[self._take()]
        self._take("]")
        return Node("range", (name, tuple(matchers), window_s))


def names_in(node: Node) -> set[str]:
    """The metrics that an expression speaks of."""
    if node.kind in {"instant", "range"}:
        return {node.parts[0]}
    parts = [part for part in node.parts if isinstance(part, Node | tuple)]
    nodes = [n for part in parts for n in (part if isinstance(part, tuple) else (part,))]
    return set().union(*(names_in(n) for n in nodes if isinstance(n, Node)))


def evaluate(store: Store, node: Node, now_s: float) -> Vector | float:
    """The value of an expression at a time."""
    match node.kind, node.parts:
        case "number", (value,):
            return float(value)
        case "instant", (name, matchers):
            return _instant(store, name, matchers, now_s)
        case "aggregate", (name, by, of):
            return _aggregate(name, by, _vector(store, of, now_s))
        case "call", (name, arguments):
            return _call(store, name, arguments, now_s)
        case "or", (left, right):
            first = _vector(store, left, now_s)
            return {**_vector(store, right, now_s), **first}
        case "and", (left, right):
            others = _vector(store, right, now_s)
            return {k: v for k, v in _vector(store, left, now_s).items() if k in others}
        case "arithmetic" | "compare", (sign, left, right):
            pair = evaluate(store, left, now_s), evaluate(store, right, now_s)
            return _binary(node.kind, sign, *pair)
    raise ValueError(f"{node.kind} is not in the subset")


def _vector(store: Store, node: Node, now_s: float) -> Vector:
    value = evaluate(store, node, now_s)
    assert isinstance(value, dict)
    return value


def _instant(store: Store, name: str, matchers: Sequence[Matcher], now_s: float) -> Vector:
    vector: Vector = {}
    for labels, points in store.select(name, matchers):
        recent = [value for at, value in points if now_s - LOOKBACK_S < at <= now_s]
        if recent and recent[-1] is not STALE:
            vector[labels] = recent[-1]
    return vector


def _aggregate(name: str, by: Sequence[str], of: Vector) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for labels, value in of.items():
        kept = frozenset((label, text) for label, text in labels if label in by)
        groups.setdefault(kept, []).append(value)
    return {labels: _REDUCE[name](values) for labels, values in groups.items()}


def _call(store: Store, name: str, arguments: Sequence[Node], now_s: float) -> Vector:
    match name, arguments:
        case "rate" | "increase", [Node("range", (metric, matchers, window_s))]:
            vector: Vector = {}
            for labels, points in store.select(metric, matchers):
                increase = _increase(points, now_s - window_s, now_s)
                if increase is not None:
                    vector[labels] = increase / window_s if name == "rate" else increase
            return vector
        case "floor", [of]:
            return {labels: math.floor(v) for labels, v in _vector(store, of, now_s).items()}
        case "absent", [of]:
            return {} if _vector(store, of, now_s) else {_told(of): 1.0}
        case "histogram_quantile", [Node("number", (share,)), of]:
            return _quantiles(share, _vector(store, of, now_s))
    raise ValueError(f"{name} is not in the subset")


def _told(node: Node) -> Labels:
    """The labels that a selector says for certain: those that something absent has."""
    if node.kind != "instant":
        return frozenset()
    return frozenset((m.label, m.text) for m in node.parts[1] if m.sign == "=")


def _increase(points: Sequence[Point], since_s: float, until_s: float) -> float | None:
    """Prometheus' own: resets are added, and the ends of the window extrapolated within reason."""
    window = [(at, v) for at, v in points if since_s <= at <= until_s and v is not STALE]
    if len(window) < 2:
        return None
    (first_s, first), (last_s, last) = window[0], window[-1]
    resets = sum(a for (_, a), (_, b) in itertools.pairwise(window) if b < a)
    increase = last - first + resets
    sampled_s = last_s - first_s
    step_s = sampled_s / (len(window) - 1)
    before_s, after_s = first_s - since_s, until_s - last_s
    if increase > 0 and first >= 0:  # a counter was not below zero
        before_s = min(before_s, sampled_s * (first / increase))
    covered_s = sampled_s
    for gap_s in (before_s, after_s):
        covered_s += gap_s if gap_s < step_s * 1.1 else step_s / 2
    return increase * covered_s / sampled_s


def _quantiles(share: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[Point]] = {}
    for labels, value in buckets.items():
        rest = frozenset(pair for pair in labels if pair[0] != "le")
        groups.setdefault(rest, []).append((float(dict(labels)["le"]), value))
    return {labels: _quantile(share, sorted(group)) for labels, group in groups.items()}


def _quantile(share: float, buckets: Sequence[Point]) -> float:
    total = buckets[-1][1]
    if not total:
        return math.nan
    rank = share * total
    at = next(index for index, (_, count) in enumerate(buckets) if count >= rank)
    if at == len(buckets) - 1:
        return buckets[-2][0]
    low, below = buckets[at - 1] if at else (0.0, 0.0)
    bound, count = buckets[at]
    return low + (bound - low) * (rank - below) / (count - below)


def _binary(kind: str, sign: str, left: Vector | float, right: Vector | float) -> Vector | float:
    if isinstance(left, dict) and isinstance(right, dict):
        pairs = {labels: (v, right[labels]) for labels, v in left.items() if labels in right}
    elif isinstance(left, dict):
        pairs = {labels: (v, float(right)) for labels, v in left.items()}  # type: ignore[arg-type]
    elif isinstance(right, dict):
        pairs = {labels: (left, v) for labels, v in right.items()}
    else:
        return _arithmetic(sign, left, right)
    if kind == "compare":
        return {labels: a for labels, (a, b) in pairs.items() if _COMPARE[sign](a, b)}
    return {labels: _arithmetic(sign, a, b) for labels, (a, b) in pairs.items()}


def _arithmetic(sign: str, left: float, right: float) -> float:
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    if right:
        return left / right
    return math.nan if not left or math.isnan(left) else math.copysign(math.inf, left)


@dataclass
class Alert:
    """A rule, and since when its expression has had which results."""

    name: str
    expression: Node
    for_s: float
    severity: str
    since_s: dict[Labels, float] = field(default_factory=dict)

    @classmethod
    def of(cls, rule: Mapping[str, Any]) -> "Alert":
        """As it stands in the file."""
        wait = str(rule.get("for", "0s"))
        for_s = float(wait[:-1]) * _UNITS[wait[-1]]
        expression = Parser(rule["expr"]).parse()
        return cls(rule["alert"], expression, for_s, rule["labels"]["severity"])

    def look(self, store: Store, now_s: float) -> list[Labels]:
        """Evaluate once more: the labels of what fires now."""
        results = _vector(store, self.expression, now_s)
        self.since_s = {labels: self.since_s.get(labels, now_s) for labels in results}
        return [labels for labels, since in self.since_s.items() if now_s - since >= self.for_s]
