"""How long nobody is served: leaders that die or freeze, followers that die, restarts, starts.

    python bench/availability.py [--znodes N ...] [--only STEP] [--quick] [--json] [--out DIR]

Three members on this machine. After a kill the figure is the time from the signal to the first
acknowledged write that was begun after it, seen by a writer with one request in flight at a member
that survives (`bench/kill_leader.py`). Every acknowledged write is read back from every member; one
that is not there fails the step.
"""

import argparse
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from kill_leader import kill_once, lost_writes, writing
from kit import START_TIMEOUT_S, Figure, hosts, members, options, run_steps
from znodes import deep, fill, require

from zabd.cli.load import Connection, LoadError
from zabd.cli.members import Ensemble, Member
from zabd.cli.ports import LOOPBACK

KILLS: Final = 5
STARTS: Final = 5
SETTLE_S: Final = 2.0
ATTEMPT_S: Final = 0.01
RESTART_TIMEOUT_S: Final = 300.0


def spread(values: Sequence[float]) -> str:
    """What stands beside a median."""
    return f"median of {len(values)}, {min(values):,.0f} to {max(values):,.0f}"


def leader_killed(given: argparse.Namespace) -> Iterator[Figure]:
    """SIGKILL, with ever more znodes."""
    yield from _leader_lost(given, signal.SIGKILL)


def leader_frozen(given: argparse.Namespace) -> Iterator[Figure]:
    """SIGSTOP: its sockets stay open, nothing comes."""
    yield from _leader_lost(given, signal.SIGSTOP)


def _leader_lost(given: argparse.Namespace, number: signal.Signals) -> Iterator[Figure]:
    counts = [1_000] if given.quick else given.znodes
    kills = 2 if given.quick else KILLS
    if number is signal.SIGSTOP:
        counts = counts[:1]
    for count in counts:
        with members(3) as ensemble:
            fill(hosts(ensemble)[0], deep(count))
            written: dict[str, bytes] = {}
            seen = [kill_once(ensemble, number, f"/kill-{k}", written) for k in range(kills)]
            _require_nothing_lost(ensemble, written)
        gaps = [kill.gap_ms for kill in seen]
        what = f"leader {number.name}, {count:,} znodes: until the next acknowledged write"
        yield Figure(what, statistics.median(gaps), "ms", spread(gaps))


def _require_nothing_lost(ensemble: Ensemble, written: dict[str, bytes]) -> None:
    lost = lost_writes(ensemble, written)
    if any(lost.values()):
        raise LoadError(f"acknowledged writes are gone: {lost}")


def follower_killed(given: argparse.Namespace) -> Iterator[Figure]:
    """SIGKILL of a follower and its return: the longest time between two acknowledgements."""
    gaps, usual = [], []
    with members(3) as ensemble:
        for turn in range(2 if given.quick else KILLS):
            leader = ensemble.wait_leader()
            victim, other = (m for m in ensemble.members if m is not leader)
            with writing(other.address, f"/follower-{turn}") as writer:
                ensemble.wait_for(lambda w=writer: len(w.acknowledged) > 0, "the writer")
                time.sleep(SETTLE_S)
                killed = time.monotonic()
                victim.kill()
                time.sleep(SETTLE_S)
                victim.start()
                ensemble.wait_serving([victim])
                time.sleep(SETTLE_S)
            moments = writer.acknowledged_at
            usual.append(_longest([m for m in moments if m < killed]))
            gaps.append(_longest([m for m in moments if m >= killed]))
            _require_nothing_lost(ensemble, dict(writer.acknowledged))
    detail = f"{spread(gaps)}; {statistics.median(usual):.0f} ms in {SETTLE_S:g} s before"
    what = "follower SIGKILL and return: longest time between two acknowledged writes"
    yield Figure(what, statistics.median(gaps), "ms", detail)


def _longest(moments: Sequence[float]) -> float:
    return max(((after - before) * 1000 for before, after in pairwise(moments)), default=0.0)


def restart(given: argparse.Namespace) -> Iterator[Figure]:
    """All members are killed and started again on many znodes."""
    count = 2_000 if given.quick else max(given.znodes)
    for size in (1, 3):
        with members(size) as ensemble:
            fill(hosts(ensemble)[0], deep(count))
            for member in ensemble.members:
                member.kill()
            began = time.perf_counter()
            for member in ensemble.members:
                member.start()
            first, last = _first_sessions(ensemble.members, RESTART_TIMEOUT_S)
            *_, path = deep(count)
            for host in hosts(ensemble):
                require(host, path)
        what = f"restart of {size} on {count:,} znodes: first session"
        yield Figure(what, (first - began) * 1000, "ms")
        if size > 1:
            yield Figure("the same: a session at every member", (last - began) * 1000, "ms")


def starts(given: argparse.Namespace) -> Iterator[Figure]:
    """From the first process to the first session, with empty folders."""
    for size in (1, 3):
        firsts, lasts = [], []
        for _ in range(2 if given.quick else STARTS):
            with (
                TemporaryDirectory(prefix="zabd-bench-") as folder,
                Ensemble(Path(folder), voters=size) as ensemble,
            ):
                began = time.perf_counter()
                for member in ensemble.members:
                    member.start()
                first, last = _first_sessions(ensemble.members, START_TIMEOUT_S)
            firsts.append((first - began) * 1000)
            lasts.append((last - began) * 1000)
        what = f"start of {size}: first session"
        yield Figure(what, statistics.median(firsts), "ms", spread(firsts))
        if size > 1:
            what = f"start of {size}: a session at every member"
            yield Figure(what, statistics.median(lasts), "ms", spread(lasts))


def _first_sessions(found: Sequence[Member], timeout_s: float) -> tuple[float, float]:
    """When the first and the last of these members gave their first session."""
    moments: list[float] = []
    deadline = time.perf_counter() + timeout_s

    def attempt(member: Member) -> None:
        while time.perf_counter() < deadline:
            with suppress(OSError, LoadError):
                Connection(LOOPBACK, member.client_port).socket.close()
                moments.append(time.perf_counter())
                return
            time.sleep(ATTEMPT_S)

    threads = [threading.Thread(target=attempt, args=[member], daemon=True) for member in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    if len(moments) < len(found):
        raise LoadError(f"{len(moments)} of {len(found)} members gave a session in {timeout_s:g} s")
    return min(moments), max(moments)


STEPS: Final = {
    "starts": starts,
    "leader-killed": leader_killed,
    "leader-frozen": leader_frozen,
    "follower-killed": follower_killed,
    "restart": restart,
}


def main() -> int:
    """See the top."""
    parser = options(__doc__)
    parser.add_argument(
        "--znodes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="N"
    )
    return run_steps("availability", STEPS, parser)


if __name__ == "__main__":
    sys.exit(main())
