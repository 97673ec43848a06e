"""Figures are drawn and put where they belong."""

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

from zabd.cli.figures import machine, machine_line, markdown_table, write_section
from zabd.cli.load import _due
from zabd.cli.paper_time import Burst, Timeline
from zabd.cli.plot import bars, lines


def test_a_later_run_replaces_what_an_earlier_one_wrote(tmp_path: Path) -> None:
    """What people wrote around it stays."""
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- begin a -->\n<!-- end a -->\nafter\n", encoding="utf-8")
    write_section(tmp_path, "a", "1st")
    write_section(tmp_path, "a", "2nd")
    assert page.read_text(encoding="utf-8") == (
        "before\n<!-- begin a -->\n2nd\n<!-- end a -->\nafter\n"
    )


def test_a_page_without_the_markers_gets_them_at_its_end(tmp_path: Path) -> None:
    """The next run finds them."""
    write_section(tmp_path, "a", "1st")
    write_section(tmp_path, "b", "2nd")
    write_section(tmp_path, "a", "3rd")
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert text.index("3rd") < text.index("2nd")
    assert "1st" not in text


def test_a_table_shows_what_is_not_known_as_a_dash() -> None:
    """Not as the word None."""
    assert markdown_table(("A", "B"), [(1, None)]) == "| A | B |\n| --- | --- |\n| 1 | - |"


def test_the_machine_is_told() -> None:
    """A figure without it cannot be compared."""
    assert f"Python {machine()['python']}" in machine_line(machine())


def test_a_longer_bar_is_a_larger_value() -> None:
    """Whatever the words are, the picture stays XML, and a value that is not known has no bar."""
    picture = bars("<&>", "us", {"get": {"a": 10.0, "b": 1000.0}, "set": {"a": None, "b": 100.0}})
    root = ET.fromstring(picture)  # noqa: S314 - it is our own
    drawn = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "12"]
    widths = [float(rect.get("width", "0")) for rect in drawn]
    assert len(widths) == 3
    assert widths[0] < widths[2] < widths[1]


def test_a_line_goes_through_its_points_from_left_to_right() -> None:
    """On both scales, with a single point as well."""
    for logarithmic in (False, True):
        line = [(0.0, 1.0), (1.0, 10.0), (2.0, 100.0)]
        picture = lines("t", ("s", "op/s"), {"a": line}, logarithmic=logarithmic, marks={"kill": 1})
        ET.fromstring(picture)  # noqa: S314 - it is our own
        path = picture.partition('class="l c0" d="M')[2].partition('"')[0]
        xs, ys = zip(*(map(float, point.split()) for point in path.split("L")), strict=True)
        assert list(xs) == sorted(xs)
        assert list(ys) == sorted(ys, reverse=True)
        ET.fromstring(lines("t", ("s", "op/s"), {"a": line[:1]}))  # noqa: S314 - as above


def test_no_two_labels_of_lines_cover_each_other() -> None:
    """Lines that end together are told apart by their names."""
    together = {name: [(0.0, 1.0), (1.0, 5.0)] for name in "abc"}
    root = ET.fromstring(lines("t", ("s", "op/s"), together))  # noqa: S314 - it is our own
    texts = root.iter("{http://www.w3.org/2000/svg}text")
    heights = sorted(
        float(text.get("y", "0"))
        for text in texts
        if text.text in together and not text.get("class")
    )[-3:]
    assert all(b - a >= 12 for a, b in pairwise(heights))


def test_a_timeline_tells_each_phase() -> None:
    """The slice in which a member dies belongs to what follows."""
    slices = [(0.0, 100.0), (0.25, 80.0), (0.5, 10.0), (0.75, 90.0)]
    assert Timeline(slices, {"leader killed": 0.5}).phases() == [
        ("all there", "90", "80"),
        ("leader killed", "50", "10"),
    ]


def test_a_burst_tells_its_rate_and_its_latencies() -> None:
    """The slowest answer of a slice stands for it."""
    reads = [(0.0, 1.0), (0.05, 3.0), (0.25, 2.0), (0.26, 9.0), (0.3, 2.5)]
    burst = Burst(None, reads, [], took_s=0.0025)
    assert burst.cells() == ("reads alone", "2,000", "2.50", "3.00", "9.00", None, None, None)
    assert burst.slowest_reads() == [(0.0, 3.0), (0.2, 9.0), (0.3, 2.5)]
    assert Burst(10, reads, reads[:1], took_s=1.0).cells()[-3:] == ("1.00", "1.00", "1.00")


def test_a_share_of_reads_is_met_and_spread() -> None:
    """Nine in ten are nine in each ten, and a quarter is one in each four."""
    assert all(sum(_due(i, 900) for i in range(at, at + 10)) == 9 for at in range(0, 1000, 10))
    assert all(sum(_due(i, 250) for i in range(at, at + 4)) == 1 for at in range(0, 1000, 4))
