"""`zabctl bench --paper`: the pictures of the ZooKeeper paper, drawn for the ensemble of today.

Hunt, Konar, Junqueira and Reed, "ZooKeeper: Wait-free coordination for Internet-scale systems"
(USENIX ATC 2010), figures 5 and 8: throughput by the share of reads for 3 to 13 servers, and over
time (`paper_time`) while servers fail. Theirs had a machine for each server; here all share one. So
what is measured is the CPU that each member takes, and the capacity is a model:

    capacity = operations / CPU seconds of the busiest member

what the ensemble would do if that member had one core of its own, fully used, and nothing else
(network, disk) were in its way. It is an upper bound.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any, Final

from zabd.cli.figures import machine, machine_line, markdown_table, write_json, write_section
from zabd.cli.load import Load, cpu_seconds
from zabd.cli.members import Ensemble
from zabd.cli.output import print_table, say
from zabd.cli.paper_time import BURST_OPS_PER_S, BURSTS, PHASES, Burst, Timeline, bursts, timeline
from zabd.cli.plot import lines
from zabd.cli.ports import LOOPBACK

SHARES: Final = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
ENSEMBLES: Final = ((3, 0), (5, 0), (7, 0), (9, 0), (13, 0), (3, 4))
"""Voters and observers."""

PAPER: Final = {3: (87_000, 21_000), 13: (460_000, 8_000)}
"""By servers: requests a second of reads alone and of writes alone, the ends of its table 1."""

SIZE_BYTES: Final = 1024
WARMUP_S: Final = 1.0
START_TIMEOUT_S: Final = 120.0
CONNECTIONS_PER_MEMBER: Final = 4
WINDOW: Final = 32
HEADER: Final = ("MEMBERS", "READS", "OPS/S HERE", "CPU US/OP", "CAPACITY, MODEL", "PAPER")


def run(seconds: float, out: Path | None, *, as_json: bool) -> None:
    """Measure all of it, print and write it."""
    known = machine()
    shares = [row for voters, observers in ENSEMBLES for row in _shares(voters, observers, seconds)]
    with _members(5) as ensemble:
        over_time = asyncio.run(timeline(ensemble, seconds))
    with _members(3) as ensemble:
        found = asyncio.run(bursts(ensemble, seconds))
    content = {
        "machine": known,
        "shares": shares,
        "timeline": over_time.slices,
        "marks": over_time.marks,
        "bursts": [dict(zip(BURSTS, burst.cells(), strict=True)) for burst in found],
        "slowest_reads": {str(burst): burst.slowest_reads() for burst in found},
    }
    tables = (
        (HEADER, [_cells(row) for row in shares]),
        (PHASES, over_time.phases()),
        (BURSTS, [burst.cells() for burst in found]),
    )
    if out is not None:
        write_json(out, "paper", content)
        pictures = _pictures(shares, over_time, found)
        for name, picture in pictures.items():
            (out / f"{name}.svg").write_text(picture, encoding="utf-8")
        parts = [markdown_table(header, rows) for header, rows in tables]
        parts += [f"![{_title(picture)}]({name}.svg)" for name, picture in pictures.items()]
        write_section(out, "paper", "\n\n".join([*parts, machine_line(known)]))
    if as_json:
        print(json.dumps(content))  # noqa: T201 - this is the command's output
    else:
        for header, rows in tables:
            print_table(header, rows)


@contextmanager
def _members(voters: int, observers: int = 0) -> Iterator[Ensemble]:
    with (
        tempfile.TemporaryDirectory(prefix="zabd-bench-") as folder,
        Ensemble(Path(folder), voters=voters, observers=observers) as ensemble,
    ):
        ensemble.start(timeout_s=START_TIMEOUT_S)
        yield ensemble


def _shares(voters: int, observers: int, seconds: float) -> Iterator[dict[str, Any]]:
    name = f"{voters} + {observers} observers" if observers else f"{voters}"
    with _members(voters, observers) as ensemble:
        hosts = [(LOOPBACK, member.client_port) for member in ensemble.members]
        pids = [member.pid for member in ensemble.members]
        for share in SHARES:
            op = {0.0: "set", 1.0: "get"}.get(share, f"mixed:{share}")
            load = Load(
                hosts,
                op,
                connections=CONNECTIONS_PER_MEMBER * len(hosts),
                window=WINDOW,
                size_bytes=SIZE_BYTES,
                root=f"/paper-{share:g}",
            )
            load.measure(WARMUP_S)
            before = [cpu_seconds([pid]) for pid in pids]
            began = time.monotonic()
            measured = load.measure(seconds)
            took_s = time.monotonic() - began
            each = [cpu_seconds([pid]) - s for pid, s in zip(pids, before, strict=True)]
            load.close()
            answered = measured.ops_per_s * took_s
            say(f"{name} members, {share:.0%} reads: {measured.ops_per_s:,.0f} op/s")
            yield {
                "members": name,
                "reads": share,
                "ops_per_s": measured.ops_per_s,
                "errors": measured.errors,
                "cpu_us_per_op": sum(each) * 1e6 / answered,
                "capacity": answered / max(each) if max(each) else None,
                "paper": _paper(voters, observers, share),
            }


def _paper(voters: int, observers: int, share: float) -> int | None:
    if observers or voters not in PAPER or share not in {0.0, 1.0}:
        return None
    reads, writes = PAPER[voters]
    return reads if share else writes


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    paper, capacity = row["paper"], row["capacity"]
    return (
        row["members"],
        f"{row['reads']:.0%}",
        f"{row['ops_per_s']:,.0f}",
        f"{row['cpu_us_per_op']:.1f}",
        None if capacity is None else f"{capacity:,.0f}",
        None if paper is None else f"{paper:,}",
    )


def _pictures(
    shares: Sequence[dict[str, Any]], over_time: Timeline, found: Sequence[Burst]
) -> dict[str, str]:
    names = dict.fromkeys(row["members"] for row in shares)

    def by_share(field: str) -> dict[str, list[tuple[float, float]]]:
        return {
            name: [
                (row["reads"] * 100, row[field])
                for row in shares
                if row["members"] == name and row[field] is not None
            ]
            for name in names
        }

    paper = {f"{name}, paper": points for name, points in by_share("paper").items() if points}
    reads, title = "% reads", "Capacity by the share of reads (model) and the paper's ends"
    return {
        "paper-capacity": lines(
            title, (reads, "op/s"), {**by_share("capacity"), **paper}, logarithmic=True
        ),
        "paper-cpu": lines(
            "CPU of all members", (reads, "us/op"), by_share("cpu_us_per_op"), logarithmic=True
        ),
        "paper-timeline": lines(
            "Five members while some fail",
            ("s", "op/s"),
            {"op/s": over_time.slices},
            marks=over_time.marks,
        ),
        "paper-bursts": lines(
            f"Bursts of {BURST_OPS_PER_S:,} op/s: the slowest read of each tenth of a second",
            ("s", "ms"),
            {str(burst): burst.slowest_reads() for burst in found},
        ),
    }


def _title(picture: str) -> str:
    return unescape(picture.partition("<title>")[2].partition("</title>")[0])
