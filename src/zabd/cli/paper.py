"""`zabctl bench --paper`: the pictures of the ZooKeeper paper, drawn for the ensemble of today.

Hunt, Konar, Junqueira and Reed, "ZooKeeper: Wait-free coordination for Internet-scale systems"
(USENIX ATC 2010), figures 5 and 8: throughput by the share of reads for 3 to 13 servers, and over
time while servers fail. Theirs had a machine for each server; here all share one. So what is
measured is the CPU that each member takes, and the capacity is a model:

    capacity = operations / CPU seconds of the busiest member

what the ensemble would do if that member had one core of its own, fully used, and nothing else
(network, disk) were in its way. It is an upper bound.
"""

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from zabd.cli.figures import machine, machine_line, markdown_table, write_json, write_section
from zabd.cli.load import Load, cpu_seconds
from zabd.cli.members import LOOPBACK, Ensemble
from zabd.cli.output import print_table, say
from zabd.cli.plot import lines
from zabd.client import Client, connect
from zabd.model.errors import ZabdError

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

SLICE_S: Final = 0.25
CLIENTS: Final = 24
TIMELINE_READS: Final = 7  # of ten (theirs: three writes in ten)
FAILURES: Final = ("follower killed", "follower back", "leader killed", "leader back")
BURSTS: Final = 5


def run(seconds: float, out: Path | None, *, as_json: bool) -> None:
    """Measure all of it, print and write it."""
    known = machine()
    shares = [row for voters, observers in ENSEMBLES for row in _shares(voters, observers, seconds)]
    over_time, marks = asyncio.run(_timeline(seconds))
    bursts = _bursts(seconds)
    content = {
        "machine": known,
        "shares": shares,
        "timeline": over_time,
        "marks": marks,
        "bursts": bursts,
    }
    rows = [_cells(row) for row in shares]
    if out is not None:
        write_json(out, "paper", content)
        _pictures(out, shares, over_time, marks, bursts)
        write_section(out, "paper", f"{markdown_table(HEADER, rows)}\n\n{machine_line(known)}")
    if as_json:
        print(json.dumps(content))  # noqa: T201 - this is the command's output
    else:
        print_table(HEADER, rows)


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


async def _timeline(seconds: float) -> tuple[list[tuple[float, float]], dict[str, float]]:
    """Answers a second, slice by slice, while a follower and then the leader die and come back."""
    answered: list[float] = []
    marks: dict[str, float] = {}
    with _members(5) as ensemble:
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(connect(ensemble.hosts)) for _ in range(CLIENTS)
            ]
            await clients[0].create("/timeline", bytes(SIZE_BYTES))
            working = [asyncio.create_task(_work(client, answered)) for client in clients]
            began = time.monotonic()
            await asyncio.sleep(seconds)
            leader = await asyncio.to_thread(ensemble.wait_leader)
            follower = next(m for m in ensemble.members if m is not leader)
            doings = (follower.kill, follower.start, leader.kill, leader.start)
            for name, doing in zip(FAILURES, doings, strict=True):
                marks[name] = time.monotonic() - began
                say(f"timeline: {name}")
                doing()
                await asyncio.sleep(seconds)
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
    total = int((time.monotonic() - began) / SLICE_S)
    counts = [0] * (total + 1)
    for moment in answered:
        if moment >= began:
            counts[min(int((moment - began) / SLICE_S), total)] += 1
    return [(at * SLICE_S, count / SLICE_S) for at, count in enumerate(counts[:total])], marks


async def _work(client: Client, answered: list[float]) -> None:
    turn = 0
    while True:
        turn += 1
        try:
            if turn % 10 < TIMELINE_READS:
                await client.get("/timeline")
            else:
                await client.set("/timeline", bytes(SIZE_BYTES))
        except ZabdError:
            await asyncio.sleep(0.01)  # the connection is gone; the client looks for another member
        else:
            answered.append(time.monotonic())


def _bursts(seconds: float) -> list[tuple[float, float]]:
    """Answers a second at the begin of a burst after a pause: the moment, the rate."""
    found: list[tuple[float, float]] = []
    with _members(3) as ensemble:
        hosts = [(LOOPBACK, member.client_port) for member in ensemble.members]
        began = time.monotonic()
        for number in range(BURSTS):
            load = Load(
                hosts,
                "mixed:0.7",
                connections=24,
                window=16,
                size_bytes=SIZE_BYTES,
                root=f"/burst-{number}",
            )
            found.append((time.monotonic() - began, 0.0))
            until = time.monotonic() + seconds / 2
            while time.monotonic() < until:
                rate = load.measure(SLICE_S / 2).ops_per_s
                found.append((time.monotonic() - began, rate))
            load.close()
            found.append((time.monotonic() - began, 0.0))
            time.sleep(seconds / 4)
    return found


def _pictures(
    out: Path,
    shares: Sequence[dict[str, Any]],
    over_time: Sequence[tuple[float, float]],
    marks: dict[str, float],
    bursts: Sequence[tuple[float, float]],
) -> None:
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
    pictures = {
        "paper-capacity": lines(
            title, (reads, "op/s"), {**by_share("capacity"), **paper}, logarithmic=True
        ),
        "paper-cpu": lines(
            "CPU of all members", (reads, "us/op"), by_share("cpu_us_per_op"), logarithmic=True
        ),
        "paper-timeline": lines(
            "Five members while some fail", ("s", "op/s"), {"op/s": over_time}, marks=marks
        ),
        "paper-bursts": lines("Bursts after pauses", ("s", "op/s"), {"op/s": bursts}),
    }
    for name, picture in pictures.items():
        (out / f"{name}.svg").write_text(picture, encoding="utf-8")
