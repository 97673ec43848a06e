"""Many znodes: what they take, and what goes on beside them.

    python bench/scale.py [--znodes 1000000] [--only STEP] [--quick] [--json] [--out DIR]

100 B of data in each znode. Stalls are what another process sees that asks the same member for one
thing after the other.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Final

from kit import Figure, Probe, hosts, members, options, run_steps
from znodes import DEEP, FLAT, Paths, deep, fill, flat, require

from zabd.cli.load import Connection, Load, LoadError, resident_mib
from zabd.cli.members import LOOPBACK, Ensemble, Member
from zabd.model.ops import GetChildren
from zabd.model.results import ChildrenResult

CHILDREN: Final = 100_000
QUICK: Final = 20_000
LISTINGS: Final = 5
BYTES_PER_MIB: Final = 2**20
SLICE_S: Final = 0.25
SNAPSHOT_WITHIN_S: Final = 120.0
SNAPSHOT_TXNS: Final = 60_000  # of the load, between two snapshots
JOIN_WITHIN_S: Final = 300.0
SETTLE_S: Final = 2.0


def _count(given: argparse.Namespace) -> int:
    return min(given.znodes, QUICK) if given.quick else int(given.znodes)


def memory(given: argparse.Namespace) -> Iterator[Figure]:
    """Resident memory of one member, before and after; then its restart on them."""
    count = _count(given)
    shapes: tuple[tuple[str, str, Paths], ...] = (
        ("flat", FLAT, flat),
        ("four levels", DEEP, deep),
    )
    for name, root, paths in shapes:
        with members() as ensemble:
            [host], member = hosts(ensemble), ensemble.members[0]
            before = resident_mib(member.pid)
            began = time.perf_counter()
            fill(host, paths(count))
            took_s = time.perf_counter() - began
            require(host, root)
            used = (resident_mib(member.pid) - before) * BYTES_PER_MIB
            detail = f"{count:,} of them with 100 B, resident, right after they were made"
            yield Figure(f"memory of a znode, {name}", used / count, "bytes", detail)
            yield Figure(f"created, {name}", count / took_s, "1/s", "one session, pipelined")
            yield from _loaded(ensemble, member, host, count, name)


def _loaded(
    ensemble: Ensemble, member: Member, host: tuple[str, int], count: int, name: str
) -> Iterator[Figure]:
    # An orderly end, so what is loaded is the last snapshot and the log behind it.
    member.terminate(timeout_s=SNAPSHOT_WITHIN_S)
    snapshots = [file for file in member.data.rglob("snapshot.*") if file.is_file()]
    size_mib = max((file.stat().st_size for file in snapshots), default=0) / BYTES_PER_MIB
    began = time.perf_counter()
    member.start()
    ensemble.wait_serving([member], timeout_s=JOIN_WITHIN_S)
    detail = f"{count:,} znodes; largest snapshot {size_mib:.0f} MiB, the log behind it as well"
    yield Figure(f"restart of a member, {name}", (time.perf_counter() - began) * 1000, "ms", detail)
    used = resident_mib(member.pid) * BYTES_PER_MIB
    require(host, FLAT if name == "flat" else DEEP)
    yield Figure(f"memory after the restart, {name}", used / count, "bytes", "for each znode, all")


def snapshots(given: argparse.Namespace) -> Iterator[Figure]:
    """A write load beside snapshots, on three members; the probe asks the leader."""
    count = _count(given)
    between = SNAPSHOT_TXNS // 10 if given.quick else SNAPSHOT_TXNS
    with members(3, settings={"snapCount": str(between)}) as ensemble:
        fill(hosts(ensemble)[0], deep(count))
        leader = ensemble.wait_leader()
        load = Load(
            hosts(ensemble), "set", connections=8, window=16, size_bytes=100, root="/snapshots"
        )
        load.measure(SETTLE_S)
        rates: dict[bool, list[float]] = {False: [], True: []}
        first = _snapshots_taken(leader)
        deadline = time.monotonic() + (10.0 if given.quick else SNAPSHOT_WITHIN_S / 2)
        with Probe((LOOPBACK, leader.client_port)) as probe:
            while time.monotonic() < deadline:
                under_way = _snapshot_under_way(ensemble)
                measured = load.measure(SLICE_S)
                rates[under_way or _snapshot_under_way(ensemble)].append(measured.ops_per_s)
        taken = _snapshots_taken(leader) - first
        load.close()
    if not taken:
        raise LoadError("no snapshot was taken under load: nothing was measured")
    calm, busy = (statistics.mean(rates[key]) if rates[key] else 0.0 for key in (False, True))
    yield Figure("set 8x16 without a snapshot", calm, "op/s", f"{len(rates[False])} slices")
    if rates[True]:
        yield Figure("set 8x16 during a snapshot", busy, "op/s", f"{len(rates[True])} slices")
        cost = 100 * (1 - busy / calm) if calm else 0.0
        yield Figure("throughput that a snapshot costs", cost, "%", "while a member writes one")
    detail = f"{count:,} znodes, {taken} snapshots of the leader"
    yield from probe.figures("longest stall of the leader beside snapshots", detail)


def _snapshots_taken(member: Member) -> int:
    return member.status(timeout_s=10).number("zabd_snapshots") or 0


def _snapshot_under_way(ensemble: Ensemble) -> bool:
    # What is being written bears another name until it is whole.
    return any(list(member.data.rglob("*.tmp")) for member in ensemble.members)


def children(given: argparse.Namespace) -> Iterator[Figure]:
    """All names of a large znode, while somebody else wants something small."""
    count = QUICK if given.quick else CHILDREN
    with members() as ensemble:
        [host] = hosts(ensemble)
        fill(host, flat(count + 1), b"")
        asking = Connection(*host)
        took_ms = []
        with Probe(host) as probe:
            for _ in range(LISTINGS):
                began = time.perf_counter()
                found = asking.call(GetChildren(FLAT, watch=False))
                took_ms.append((time.perf_counter() - began) * 1000)
                if not isinstance(found, ChildrenResult) or len(found.children) != count:
                    raise LoadError(f"{FLAT} has {count} children, and they did not come")
                time.sleep(SLICE_S)
        asking.socket.close()
    what = f"getChildren of {count:,} names"
    yield Figure(what, statistics.median(took_ms), "ms", "with what the client takes to decode it")
    yield from probe.figures("longest stall of others beside it")


def joins(given: argparse.Namespace) -> Iterator[Figure]:
    """An observer with an empty folder joins three members that have it all, and serve."""
    count = _count(given)
    settings = {"snapCount": str(max(count // 4, 1_000))}
    with members(3, observers=1, started=3, settings=settings) as ensemble:
        fill(hosts(ensemble)[0], deep(count))
        leader = ensemble.wait_leader()
        joining = ensemble.members[3]
        calm = Probe((LOOPBACK, leader.client_port), "set")
        with calm:
            time.sleep(SETTLE_S)
        with Probe((LOOPBACK, leader.client_port), "set") as probe:
            began = time.perf_counter()
            joining.start()
            ensemble.wait_serving([joining], timeout_s=JOIN_WITHIN_S)
            took_ms = (time.perf_counter() - began) * 1000
        *_, path = deep(count)
        require((LOOPBACK, joining.client_port), path)
    yield Figure(f"an empty observer joins, {count:,} znodes", took_ms, "ms", "until it serves")
    detail = f"without it {calm.longest_ms:.1f} ms in {SETTLE_S:g} s"
    yield from probe.figures("longest write at the leader meanwhile", detail)


def idle(_: argparse.Namespace) -> Iterator[Figure]:
    """Members that have nothing to do."""
    with members(3) as ensemble:
        time.sleep(SETTLE_S)
        found = [resident_mib(member.pid) for member in ensemble.members]
    yield Figure("memory of an idle member", max(found), "MiB", "resident, the largest of three")


STEPS: Final = {
    "idle": idle,
    "memory": memory,
    "children": children,
    "snapshots": snapshots,
    "joining": joins,
}


def main() -> int:
    """See the top."""
    parser = options(__doc__)
    parser.add_argument("--znodes", type=int, default=1_000_000)
    return run_steps("scale", STEPS, parser)


if __name__ == "__main__":
    sys.exit(main())
