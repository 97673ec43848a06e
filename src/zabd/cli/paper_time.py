"""The pictures of the ZooKeeper paper that have time on their axis: failures, and bursts.

Failures: `CLIENTS` clients of five members, each with one request outstanding, three writes in ten
as in figure 8, while a follower and then the leader are killed and come back.

Bursts: what the paper's fetching service asks (section 2.3): up to `BURST_OPS_PER_S` operations a
second, ten to a hundred reads for each write; and reads alone, as other sessions' writes should not
slow them. Readers and writers are sessions of their own. The load is open: each request has a
moment at which it is due, however late the answers before it are, and its latency counts from then.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from zabd.cli.members import Ensemble
from zabd.cli.output import say
from zabd.client import Client, connect
from zabd.model.errors import ZabdError

SIZE_BYTES: Final = 1024
SLICE_S: Final = 0.25
CLIENTS: Final = 24
WRITES_OF_TEN: Final = 3
FAILURES: Final = ("follower killed", "follower back", "leader killed", "leader back")
PHASES: Final = ("FIVE MEMBERS", "OP/S", "SLOWEST QUARTER SECOND, OP/S")
RETRY_S: Final = 0.01

BURST_OPS_PER_S: Final = 2_000
BURST_READS: Final = (None, 100, 10)
"""Reads for each write; None where there are no writes."""

BURST_SLICES_PER_S: Final = 10
WRITERS: Final = 4  # of the clients
BURSTS: Final = (
    "READS TO WRITES",
    "OP/S",
    *("READS: P50 MS", "P99 MS", "MAX MS"),
    *("WRITES: P50 MS", "P99 MS", "MAX MS"),
)


@dataclass(frozen=True)
class Timeline:
    """Answers a second, slice by slice, and when what was done."""

    slices: list[tuple[float, float]]  # the begin in s, the rate
    marks: dict[str, float]  # in s

    def phases(self) -> list[tuple[str, str, str]]:
        """For each phase the mean of its slices and the lowest."""
        names, starts = ["all there", *self.marks], [0.0, *self.marks.values()]
        rows = []
        for name, start, end in zip(names, starts, [*starts[1:], float("inf")], strict=True):
            rates = [rate for at, rate in self.slices if start <= at < end]
            if rates:
                rows.append((name, f"{sum(rates) / len(rates):,.0f}", f"{min(rates):,.0f}"))
        return rows


async def timeline(ensemble: Ensemble, seconds: float) -> Timeline:
    """Work for so long in each phase, while a follower and then the leader die and come back."""
    answered: list[float] = []
    marks: dict[str, float] = {}
    async with _clients(ensemble) as clients:
        await clients[0].create("/timeline", bytes(SIZE_BYTES))
        began = time.monotonic()
        working = [asyncio.create_task(_work(client, answered)) for client in clients]
        await asyncio.sleep(seconds)
        leader = await asyncio.to_thread(ensemble.wait_leader)
        follower = next(m for m in ensemble.members if m is not leader)
        doings = (follower.kill, follower.start, leader.kill, leader.start)
        for name, doing in zip(FAILURES, doings, strict=True):
            marks[name] = time.monotonic() - began
            say(f"timeline: {name}")
            doing()
            await asyncio.sleep(seconds)
        whole = int((time.monotonic() - began) / SLICE_S)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    counts = [0] * whole
    for moment in answered:
        at = int((moment - began) / SLICE_S)
        if at < whole:
            counts[at] += 1
    return Timeline([(at * SLICE_S, count / SLICE_S) for at, count in enumerate(counts)], marks)


async def _work(client: Client, answered: list[float]) -> None:
    turn = 0
    while True:
        turn += 1
        try:
            if turn % 10 < WRITES_OF_TEN:
                await client.set("/timeline", bytes(SIZE_BYTES))
            else:
                await client.get("/timeline")
        except ZabdError:
            await asyncio.sleep(RETRY_S)  # the connection is gone; the client looks for a member
        else:
            answered.append(time.monotonic())


Answer: TypeAlias = tuple[float, float]
"""When it was due, in s from the begin, and its latency in ms."""


@dataclass(frozen=True)
class Burst:
    """One burst, with so many reads for each write."""

    ratio: int | None
    reads: list[Answer]
    writes: list[Answer]
    took_s: float

    def __str__(self) -> str:
        return "reads alone" if self.ratio is None else f"{self.ratio}:1"

    def cells(self) -> tuple[str | None, ...]:
        """The row of the table."""
        rate = (len(self.reads) + len(self.writes)) / self.took_s
        return (str(self), f"{rate:,.0f}", *_latencies(self.reads), *_latencies(self.writes))

    def slowest_reads(self) -> list[tuple[float, float]]:
        """The slowest read of each slice."""
        slices: dict[int, float] = {}
        for due_s, ms in self.reads:
            at = int(due_s * BURST_SLICES_PER_S)
            slices[at] = max(ms, slices.get(at, 0.0))
        return [(at / BURST_SLICES_PER_S, ms) for at, ms in sorted(slices.items())]


def _latencies(answers: Sequence[Answer]) -> tuple[str | None, ...]:
    if not answers:
        return None, None, None
    ms = sorted(ms for _, ms in answers)
    return tuple(f"{ms[int((len(ms) - 1) * share)]:.2f}" for share in (0.5, 0.99, 1.0))


async def bursts(ensemble: Ensemble, seconds: float) -> list[Burst]:
    """A burst of so long for each share of reads, behind a pause as long."""
    found = []
    async with _clients(ensemble) as clients:
        await clients[0].create("/burst", bytes(SIZE_BYTES))
        for ratio in BURST_READS:
            await asyncio.sleep(seconds)
            found.append(await _burst(clients, ratio, seconds))
            say(f"burst of {BURST_OPS_PER_S:,} op/s, {found[-1]}: answered")
    return found


async def _burst(clients: Sequence[Client], ratio: int | None, seconds: float) -> Burst:
    reads: list[Answer] = []
    writes: list[Answer] = []
    writers, readers = clients[:WRITERS], clients[WRITERS:]
    began = time.monotonic()

    async def ask(number: int, due_s: float) -> None:
        if ratio is None or number % (ratio + 1):
            await readers[number % len(readers)].get("/burst")
            answers = reads
        else:
            await writers[len(writes) % len(writers)].set("/burst", bytes(SIZE_BYTES))
            answers = writes
        answers.append((due_s, (time.monotonic() - began - due_s) * 1000))

    async with asyncio.TaskGroup() as group:
        for number in range(max(1, int(seconds * BURST_OPS_PER_S))):
            due_s = number / BURST_OPS_PER_S
            await asyncio.sleep(max(0.0, began + due_s - time.monotonic()))
            group.create_task(ask(number, due_s))
    return Burst(ratio, reads, writes, time.monotonic() - began)


@asynccontextmanager
async def _clients(ensemble: Ensemble) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connect(ensemble.hosts)) for _ in range(CLIENTS)]
