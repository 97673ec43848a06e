"""The pictures of the ZooKeeper paper that have time on their axis: failures, and bursts.

Failures: `CLIENTS` clients of five members, each with one request outstanding, three writes in ten
as in figure 8, while a follower and then the leader are killed and come back.

Bursts: what the paper's fetching service asks (section 2.3): up to `BURST_OPS_PER_S` operations a
second, ten to a hundred reads for each write. The load is open: each request has a moment at which
it is due, however late the answers before it are, and its latency counts from that moment.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

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
BURST_READS: Final = (10, 100)
BURST_SLICE_S: Final = 0.1
BURSTS: Final = ("READS TO WRITES", "ASKED, OP/S", "ANSWERED, OP/S", "P50 MS", "P99 MS", "MAX MS")


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


@dataclass(frozen=True)
class Burst:
    """One burst, with so many reads for each write."""

    reads: int
    answers: list[tuple[float, float]]  # when it was due, in s from the begin; latency in ms
    took_s: float

    def __str__(self) -> str:
        return f"{self.reads}:1"

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        latencies = sorted(ms for _, ms in self.answers)
        median, p99 = (latencies[int(len(latencies) * share)] for share in (0.5, 0.99))
        rate = len(latencies) / self.took_s
        figures = (f"{median:.2f}", f"{p99:.2f}", f"{latencies[-1]:.2f}")
        return (str(self), f"{BURST_OPS_PER_S:,}", f"{rate:,.0f}", *figures)

    def slowest(self) -> list[tuple[float, float]]:
        """The slowest answer of each slice."""
        slices: dict[int, float] = {}
        for due_s, ms in self.answers:
            at = int(due_s / BURST_SLICE_S)
            slices[at] = max(ms, slices.get(at, 0.0))
        return [(at * BURST_SLICE_S, ms) for at, ms in sorted(slices.items())]


async def bursts(ensemble: Ensemble, seconds: float) -> list[Burst]:
    """A burst of so long for each share of reads, behind a pause as long."""
    found = []
    async with _clients(ensemble) as clients:
        await clients[0].create("/burst", bytes(SIZE_BYTES))
        for reads in BURST_READS:
            await asyncio.sleep(seconds)
            found.append(await _burst(clients, reads, seconds))
            say(f"burst of {BURST_OPS_PER_S:,} op/s, {found[-1]} reads to writes: answered")
    return found


async def _burst(clients: Sequence[Client], reads: int, seconds: float) -> Burst:
    answers: list[tuple[float, float]] = []
    began = time.monotonic()

    async def ask(number: int, due_s: float) -> None:
        client = clients[number % len(clients)]
        if number % (reads + 1):
            await client.get("/burst")
        else:
            await client.set("/burst", bytes(SIZE_BYTES))
        answers.append((due_s, (time.monotonic() - began - due_s) * 1000))

    async with asyncio.TaskGroup() as group:
        for number in range(max(1, int(seconds * BURST_OPS_PER_S))):
            due_s = number / BURST_OPS_PER_S
            await asyncio.sleep(max(0.0, began + due_s - time.monotonic()))
            group.create_task(ask(number, due_s))
    return Burst(reads, answers, time.monotonic() - began)


@asynccontextmanager
async def _clients(ensemble: Ensemble) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connect(ensemble.hosts)) for _ in range(CLIENTS)]
