"""Pictures of figures, as SVG: bars and lines, on a logarithmic scale or not.

A picture takes the reader's choice of light or dark (`prefers-color-scheme`), has no script and no
font of its own, and names every value, so that it can be read without colours.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

WIDTH: Final = 860
LEFT: Final = 150
RIGHT: Final = 110
TOP: Final = 72
BAR: Final = 15
GAP: Final = 14
LABEL: Final = 13  # from one label's line to the next
PLOT_HEIGHT: Final = 320
COLOURS: Final = 8
THREE_DIGITS: Final = 99.5  # from here on a number is shown whole
BARS_FROM: Final = 0.5  # a logarithmic bar begins at this share of the smallest value

_STYLE: Final = """<style>
text{font:12px system-ui,sans-serif;fill:#1f2328}.h{font-size:15px;font-weight:600}
.m{fill:#59636e}.bg{fill:#fff}.g{stroke:#d1d9e0}.l{fill:none;stroke-width:2}
.c0{fill:#0969da;stroke:#0969da}.c1{fill:#bc4c00;stroke:#bc4c00}.c2{fill:#1a7f37;stroke:#1a7f37}
.c3{fill:#8250df;stroke:#8250df}.c4{fill:#9a6700;stroke:#9a6700}.c5{fill:#cf222e;stroke:#cf222e}
.c6{fill:#1b7c83;stroke:#1b7c83}.c7{fill:#59636e;stroke:#59636e}path.l{fill:none}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.m{fill:#9198a1}.bg{fill:#0d1117}.g{stroke:#3d444d}
.c0{fill:#4493f8;stroke:#4493f8}.c1{fill:#f0883e;stroke:#f0883e}.c2{fill:#3fb950;stroke:#3fb950}
.c3{fill:#ab7df8;stroke:#ab7df8}.c4{fill:#d29922;stroke:#d29922}.c5{fill:#f85149;stroke:#f85149}
.c6{fill:#39c5cf;stroke:#39c5cf}.c7{fill:#9198a1;stroke:#9198a1}path.l{fill:none}}
</style>"""


def bars(title: str, unit: str, groups: Mapping[str, Mapping[str, float | None]]) -> str:
    """A group of horizontal bars for each label, one for each series; lengths are logarithms.

    A value that is None or not above 0 has no bar.
    """
    series = list(dict.fromkeys(name for values in groups.values() for name in values))
    found = [v for values in groups.values() for v in values.values() if v is not None and v > 0]
    low, high = (min(found) * BARS_FROM, max(found)) if found else (1.0, 10.0)
    height = TOP + sum(len(values) * BAR + GAP for values in groups.values())
    return _page(title, f"{unit}, logarithmic", series, height, _bars(groups, series, low, high))


def _bars(
    groups: Mapping[str, Mapping[str, float | None]], series: Sequence[str], low: float, high: float
) -> Iterator[str]:
    y = TOP
    for label, values in groups.items():
        middle = y + len(values) * BAR / 2 + 4
        yield f'<text x="{LEFT - 8}" y="{middle:g}" text-anchor="end">{escape(label)}</text>'
        for name, value in values.items():
            if value is not None and value > 0:
                length = (WIDTH - LEFT - RIGHT) * math.log(value / low) / math.log(high / low)
                colour = series.index(name) % COLOURS
                yield (
                    f'<rect class="c{colour}" x="{LEFT}" y="{y}" width="{length:.1f}" '
                    f'height="{BAR - 3}"/>'
                    f'<text x="{LEFT + length + 5:.1f}" y="{y + 10}">{_number(value)}</text>'
                )
            y += BAR
        y += GAP


def lines(
    title: str,
    axes: tuple[str, str],
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    logarithmic: bool = False,
    marks: Mapping[str, float] | None = None,
) -> str:
    """A line for each series over a common x; `marks` are named moments on it."""
    points = [point for line in series.values() for point in line]
    x_low, x_high = _range([x for x, _ in points])
    above = [y for _, y in points if y > 0] or [1.0]
    y_low, y_high = (min(above), max(above)) if logarithmic else (0.0, max(above))
    scale = _Scale(x_low, x_high, y_low, max(y_high, y_low * 1.01), logarithmic=logarithmic)
    unit = f"{axes[1]}{', logarithmic' if logarithmic else ''}, over {axes[0]}"
    body = _lines(series, scale, marks or {})
    return _page(title, unit, list(series), TOP + PLOT_HEIGHT + 30, body)


class _Scale:
    def __init__(
        self, x_low: float, x_high: float, y_low: float, y_high: float, *, logarithmic: bool
    ) -> None:
        self.x_low, self.x_high, self.y_low, self.y_high = x_low, x_high, y_low, y_high
        self.logarithmic = logarithmic

    def x(self, value: float) -> float:
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return LEFT / 2 + (WIDTH - LEFT / 2 - RIGHT) * share

    def y(self, value: float) -> float:
        if self.logarithmic:
            value = max(value, self.y_low)
            share = math.log(value / self.y_low) / math.log(self.y_high / self.y_low)
        else:
            share = (value - self.y_low) / (self.y_high - self.y_low)
        return TOP + PLOT_HEIGHT * (1 - share)

    def ticks(self) -> list[float]:
        if not self.logarithmic:
            return [self.y_high * part / 4 for part in range(5)]
        ratio = self.y_high / self.y_low
        return [float(self.y_low * ratio ** (part / 4)) for part in range(5)]


def _lines(
    series: Mapping[str, Sequence[tuple[float, float]]], scale: _Scale, marks: Mapping[str, float]
) -> Iterator[str]:
    for tick in scale.ticks():
        y = scale.y(tick)
        yield f'<path class="g" d="M{LEFT / 2:g} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="m" x="4" y="{y + 4:.1f}">{_number(tick)}</text>'
    for value in (scale.x_low, (scale.x_low + scale.x_high) / 2, scale.x_high):
        yield (
            f'<text class="m" x="{scale.x(value):.1f}" y="{TOP + PLOT_HEIGHT + 18}" '
            f'text-anchor="middle">{_number(value)}</text>'
        )
    for name, moment in marks.items():
        x = scale.x(moment)
        yield f'<path class="g" d="M{x:.1f} {TOP}V{TOP + PLOT_HEIGHT}"/>'
        yield f'<text class="m" x="{x + 3:.1f}" y="{TOP + PLOT_HEIGHT - 5}">{escape(name)}</text>'
    for number, line in enumerate(series.values()):
        path = "L".join(f"{scale.x(x):.1f} {scale.y(y):.1f}" for x, y in line)
        yield f'<path class="l c{number % COLOURS}" d="M{path}"/>'
    ends = {name: line[-1] for name, line in series.items() if line}
    heights = _apart([scale.y(y) for _, y in ends.values()])
    for (name, (x, _)), height in zip(ends.items(), heights, strict=True):
        yield f'<text x="{scale.x(x) + 5:.1f}" y="{height + 4:.1f}">{escape(name)}</text>'


def _apart(heights: Sequence[float]) -> list[float]:
    """The heights, moved down from the highest on until no two labels cover each other."""
    moved = list(heights)
    lowest = -math.inf
    for index in sorted(range(len(moved)), key=moved.__getitem__):
        moved[index] = lowest = max(moved[index], lowest + LABEL)
    return moved


def _page(title: str, unit: str, series: Sequence[str], height: int, body: Iterator[str]) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>{_STYLE}",
        f'<rect class="bg" width="{WIDTH}" height="{height}"/>',
        f'<text class="h" x="10" y="22">{escape(title)}</text>',
        f'<text class="m" x="{WIDTH - 10}" y="22" text-anchor="end">{escape(unit)}</text>',
        *_legend(series),
        *body,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _legend(series: Sequence[str]) -> Iterator[str]:
    x, y = 10.0, 32
    for number, name in enumerate(series):
        width = 32 + 6.6 * len(name)
        if x + width > WIDTH:
            x, y = 10.0, y + 16
        yield f'<rect class="c{number % COLOURS}" x="{x:g}" y="{y}" width="11" height="11"/>'
        yield f'<text x="{x + 16:g}" y="{y + 10}">{escape(name)}</text>'
        x += width


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    return low, high if high > low else low + 1


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value > THREE_DIGITS else f"{value:.3g}"
