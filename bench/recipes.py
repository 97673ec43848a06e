"""Recipes: locks and deduplicated requests a second, hand-over, and the death of a holder.

    python bench/recipes.py [--seconds 5] [--only STEP] [--quick] [--json] [--out DIR]

Three members each of zabd and, where it is installed, of Debian's ZooKeeper; kazoo's lock beside
ours on both. Every worker has a client of its own, all of one kind in one process, so the clients'
CPU is part of what is measured.
"""

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock as KazooLock
from kit import Figure, options, run_steps
from systems import PLAIN, ZABD, ZOOKEEPER, commands, started

from zabd.client import Client, connect
from zabd.client.recipes import Dedup, Lock
from zabd.client.recipes.dedup import Attempt

CELLS: Final = ((1, 1), (8, 100), (8, 1))
"""Workers, keys: nobody in the way; rarely somebody; always."""

HANDOVERS: Final = 100
DEATHS: Final = 3
SESSION_TIMEOUT_S: Final = 4.0
QUEUED_S: Final = 0.02  # until the next in line has surely queued
JVM_WARMUP_S: Final = 20.0
IN_FLIGHT: Final = 32
JOIN_S: Final = 120.0


def systems() -> Iterator[tuple[str, str]]:
    """The hosts of each system in turn, while it runs."""
    found = commands()
    for name in (ZOOKEEPER, ZABD if ZABD in found else PLAIN):
        if name in found:
            with started(name, found[name]) as ensemble:
                yield name, ensemble.hosts


def locks(given: argparse.Namespace) -> Iterator[Figure]:
    """Acquire and release, again and again."""
    seconds = 0.5 if given.quick else given.seconds
    for name, hosts in systems():
        if name == ZOOKEEPER:
            asyncio.run(_ours(hosts, 8, 100, 1.0 if given.quick else JVM_WARMUP_S))
        for workers, keys in CELLS:
            for client, run in (("our Lock", _ours), ("kazoo's Lock", _kazoos)):
                took = run(hosts, workers, keys, seconds)
                took_s = sorted(asyncio.run(took) if asyncio.iscoroutine(took) else took)
                at = [took_s[int(len(took_s) * share)] * 1000 for share in (0.5, 0.99)]
                what = f"{client} on {name}: {workers} workers, {keys} keys, acquire and release"
                detail = f"median {at[0]:.2f} ms, p99 {at[1]:.2f} ms"
                yield Figure(what, len(took_s) / seconds, "1/s", detail)


@asynccontextmanager
async def _clients(hosts: str, count: int) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(connect(hosts, timeout=SESSION_TIMEOUT_S))
            for _ in range(count)
        ]


async def _ours(hosts: str, workers: int, keys: int, seconds: float) -> list[float]:
    took_s: list[float] = []

    async def work(number: int, client: Client) -> None:
        turn = number
        while time.monotonic() < end:
            began = time.perf_counter()
            async with Lock(client, f"/ours/{turn % keys}"):
                pass
            took_s.append(time.perf_counter() - began)
            turn += workers + 1

    async with _clients(hosts, workers) as clients:
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(clients):
                group.create_task(work(number, client))
    return took_s


def _kazoos(hosts: str, workers: int, keys: int, seconds: float) -> list[float]:
    took_s: list[float] = []
    clients = [KazooClient(hosts, timeout=SESSION_TIMEOUT_S) for _ in range(workers)]
    for client in clients:
        client.start()
    end = time.monotonic() + seconds

    def work(number: int, client: KazooClient) -> None:
        turn = number
        while time.monotonic() < end:
            began = time.perf_counter()
            with KazooLock(client, f"/kazoos/{turn % keys}"):
                pass
            took_s.append(time.perf_counter() - began)
            turn += workers + 1

    threads = [threading.Thread(target=work, args=each) for each in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    for client in clients:
        client.stop()
        client.close()
    return took_s


def dedup(given: argparse.Namespace) -> Iterator[Figure]:
    """New keys, then the same keys once more."""
    count = 100 if given.quick else 3_000
    for name, hosts in systems():
        for what, per_s in asyncio.run(_dedup(hosts, count)):
            detail = f"{count:,} keys, {IN_FLIGHT} at a time, one client"
            yield Figure(f"Dedup on {name}: {what}", per_s, "1/s", detail)


async def _dedup(hosts: str, count: int) -> list[tuple[str, float]]:
    executed: list[int] = []

    async def handle(attempt: Attempt) -> int:
        executed.append(attempt.fencing_token)
        return 1

    async with _clients(hosts, 1) as [client]:
        recipe = Dedup(client)
        found = []
        for what in ("executions", "replays"):

            async def one(key: int, expected: bool = what == "replays") -> None:  # noqa: FBT001
                outcome = await recipe.run(f"key-{key}", handle, payload=b"x")
                if outcome.replayed is not expected:
                    raise RuntimeError(f"key-{key} is replayed: {outcome.replayed}")

            began = time.perf_counter()
            await _at_a_time(one, count)
            found.append((what, count / (time.perf_counter() - began)))
    if len(executed) != count:
        raise RuntimeError(f"{len(executed)} executions of {count} keys")
    return found


async def _at_a_time(one: Callable[[int], Awaitable[None]], count: int) -> None:
    keys = iter(range(count))

    async def work() -> None:
        for key in keys:
            await one(key)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work())


def handover(given: argparse.Namespace) -> Iterator[Figure]:
    """From the call that releases to the next holder's having it."""
    count = 5 if given.quick else HANDOVERS
    for name, hosts in systems():
        took_ms = asyncio.run(_handovers(hosts, count))
        detail = f"median of {count}, at most {max(took_ms):.1f} ms"
        yield Figure(f"our Lock on {name}: hand-over", statistics.median(took_ms), "ms", detail)


async def _handovers(hosts: str, count: int) -> list[float]:
    took_ms = []
    async with _clients(hosts, 2) as [first, second]:
        for _ in range(count):
            holder, waiter = Lock(first, "/handover"), Lock(second, "/handover")
            await holder.acquire()
            waiting = asyncio.create_task(waiter.acquire())
            await asyncio.sleep(QUEUED_S)
            began = time.perf_counter()
            released = asyncio.create_task(holder.release())
            await waiting
            took_ms.append((time.perf_counter() - began) * 1000)
            await released
            await waiter.release()
    return took_ms


def death(given: argparse.Namespace) -> Iterator[Figure]:
    """From the SIGKILL of the holder's process to the next holder's having it."""
    count = 1 if given.quick else DEATHS
    for name, hosts in systems():
        took_ms = asyncio.run(_deaths(hosts, count))
        detail = f"median of {count}; the session timeout is {SESSION_TIMEOUT_S:g} s"
        what = f"our Lock on {name}: holder SIGKILL until the next one has it"
        yield Figure(what, statistics.median(took_ms), "ms", detail)


async def _deaths(hosts: str, count: int) -> list[float]:
    took_ms = []
    async with _clients(hosts, 1) as [client]:
        for _ in range(count):
            holder = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, "--hold", hosts),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert holder.stdout is not None, "a pipe was asked for"
            if await holder.stdout.readline() != b"held\n":
                raise RuntimeError("the holder's process did not get the lock")
            lock = Lock(client, "/death")
            waiting = asyncio.create_task(lock.acquire())
            await asyncio.sleep(QUEUED_S)
            began = time.perf_counter()
            holder.send_signal(signal.SIGKILL)
            await waiting
            took_ms.append((time.perf_counter() - began) * 1000)
            await holder.wait()
            await lock.release()
    return took_ms


async def hold(hosts: str) -> None:
    """What dies: hold the lock until standard input ends."""
    async with connect(hosts, timeout=SESSION_TIMEOUT_S) as client, Lock(client, "/death"):
        print("held", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


STEPS: Final = {"locks": locks, "dedup": dedup, "handover": handover, "death": death}


def main(arguments: Sequence[str]) -> int:
    """See the top."""
    match arguments:
        case ["--hold", hosts]:
            asyncio.run(hold(hosts))
            return 0
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each cell of locks")
    return run_steps("recipes", STEPS, parser)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
