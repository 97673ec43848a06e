"""Many znodes: what they take, and what goes on beside them.

    python bench/scale.py [--znodes 1000000] [--only STEP] [--quick] [--json] [--out DIR]

100 B of data in each znode. Stalls are what another process sees that asks the same member for one
thing after the other.
"""

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kit import Figure, Probe, hosts, members, options, run_steps
from znodes import DEEP, FLAT, Paths, deep, fill, flat, require

from zabd.cli.daemon import GC_THRESHOLDS
from zabd.cli.load import Connection, Load, LoadError, resident_mib
from zabd.cli.members import Ensemble, Member
from zabd.cli.ports import LOOPBACK
from zabd.model.ops import GetChildren
from zabd.model.results import ChildrenResult
from zabd.storage.record import segment_file
from zabd.storage.snapshots import WINDOW_BYTES, SnapshotDecoder, snapshot_zxid
from zabd.znode_tree import TreeLoader

CHILDREN: Final = 100_000
QUICK: Final = 20_000
LISTINGS: Final = 5
BYTES_PER_MIB: Final = 2**20
SLICE_S: Final = 0.25
SNAPSHOT_WITHIN_S: Final = 120.0
SNAPSHOT_TXNS: Final = 1_000  # a large tree waits for its log's bytes anyway
CALM_S: Final = 5.0
BESIDE_S: Final = 60.0  # a snapshot of a million znodes takes most of them
LARGE_BYTES: Final = 100_000  # sets of this size make the log's bytes come soon
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
    snapshots = [file for file in member.data.rglob("*") if snapshot_zxid(file.name) is not None]
    size_mib = max((file.stat().st_size for file in snapshots), default=0) / BYTES_PER_MIB
    if snapshots:
        yield _snapshot_load(max(snapshots, key=lambda file: file.stat().st_size), name)
    began = time.perf_counter()
    member.start()
    ensemble.wait_serving([member], timeout_s=JOIN_WITHIN_S)
    detail = f"{count:,} znodes; largest snapshot {size_mib:.0f} MiB, the log behind it as well"
    yield Figure(f"restart of a member, {name}", (time.perf_counter() - began) * 1000, "ms", detail)
    used = resident_mib(member.pid) * BYTES_PER_MIB
    require(host, FLAT if name == "flat" else DEEP)
    yield Figure(f"memory after the restart, {name}", used / count, "bytes", "for each znode, all")


def _snapshot_load(file: Path, name: str) -> Figure:
    """What a start takes for the snapshot alone, in this process, with a member's collector."""
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    decoder, loader = SnapshotDecoder(file.name), TreeLoader()
    began = time.perf_counter()
    with file.open("rb") as stream:
        while data := stream.read(WINDOW_BYTES):
            for content in decoder.feed(data):
                loader.feed(content)
    decoder.finish()
    count = len(loader.finish().nodes)
    took_ms = (time.perf_counter() - began) * 1000
    gc.set_threshold(*before)
    detail = (
        f"{count:,} znodes, {took_ms * 1000 / count:.1f} us for each, without the log behind it"
    )
    return Figure(f"loading of a snapshot, {name}", took_ms, "ms", detail)


def snapshots(given: argparse.Namespace) -> Iterator[Figure]:
    """A write load before, beside and after snapshots, on three members; the probe asks the leader.

    What else the machine does differs from minute to minute, hence the two calm times.
    """
    count = _count(given)
    calm_s, beside_s = (CALM_S / 2, CALM_S) if given.quick else (CALM_S, BESIDE_S)
    with members(3, settings={"snapCount": str(SNAPSHOT_TXNS)}) as ensemble:
        fill(hosts(ensemble)[0], deep(count))
        _await_no_snapshot(ensemble)
        leader = ensemble.wait_leader()
        load = _sets(ensemble, 100)
        load.measure(SETTLE_S)
        _await_no_snapshot(ensemble)
        first = _snapshots_taken(leader)
        slices: list[_Slice] = []
        before = _beside(ensemble, leader, load, slices, calm_s)
        _make_due(ensemble)
        during = _beside(ensemble, leader, load, slices, beside_s)
        _finish_snapshots(ensemble, load)
        after = _beside(ensemble, leader, load, slices, calm_s)
        taken = _snapshots_taken(leader) - first
        load.close()
    calm = [found for found in slices if not found.beside_snapshot]
    busy = [found for found in slices if found.beside_snapshot]
    if not calm or not busy or not taken:
        raise LoadError(f"{taken} snapshots beside the load: there is nothing to compare")
    yield from _cost_of_snapshots(calm, busy)
    detail = (
        f"{count:,} znodes, {taken} snapshots of the leader; without one, before and after: "
        f"{before.longest_ms:.1f} and {after.longest_ms:.1f} ms, p99.9 {before.p999_ms:.1f} and "
        f"{after.p999_ms:.1f} ms"
    )
    yield from during.figures("longest write at the leader beside snapshots", detail)


class _Slice(NamedTuple):
    """What the load had of a short time, all of it beside a snapshot or none of it."""

    beside_snapshot: bool
    ops_per_s: float
    cpu_us_per_op: float


def _cost_of_snapshots(calm: list[_Slice], busy: list[_Slice]) -> Iterator[Figure]:
    for what, slices in (("without", calm), ("during", busy)):
        rate = statistics.mean(one.ops_per_s for one in slices)
        cpu_us = sum(one.ops_per_s * one.cpu_us_per_op for one in slices) / rate / len(slices)
        detail = f"{len(slices)} slices; CPU of the members {cpu_us:.1f} us for each"
        yield Figure(f"set 8x16 {what} a snapshot", rate, "op/s", detail)
    calm_rate, busy_rate = (statistics.mean(one.ops_per_s for one in s) for s in (calm, busy))
    cost = 100 * (1 - busy_rate / calm_rate)
    yield Figure("throughput that a snapshot costs", cost, "%", "while a member writes one")


def _beside(
    ensemble: Ensemble, leader: Member, load: Load, slices: list[_Slice], seconds: float
) -> Probe:
    with Probe((LOOPBACK, leader.client_port), "set") as probe:
        _measure(ensemble, load, slices, seconds)
    return probe


def _finish_snapshots(ensemble: Ensemble, load: Load) -> None:
    """Until none is under way, and none is due for what was written beside the last one."""
    deadline = time.monotonic() + SNAPSHOT_WITHIN_S
    while _snapshot_under_way(ensemble):
        if time.monotonic() > deadline:
            raise LoadError(f"snapshots follow each other for {SNAPSHOT_WITHIN_S:g} s")
        _await_no_snapshot(ensemble)
        load.measure(SLICE_S)


def _sets(ensemble: Ensemble, size_bytes: int) -> Load:
    root = f"/sets-of-{size_bytes}"
    return Load(hosts(ensemble), "set", connections=8, window=16, size_bytes=size_bytes, root=root)


def _measure(ensemble: Ensemble, load: Load, slices: list[_Slice], seconds: float) -> None:
    """The load, slice by slice, with or without a snapshot under way in all of it."""
    pids = [member.pid for member in ensemble.members]
    deadline = time.monotonic() + seconds
    before = _snapshot_under_way(ensemble)
    while time.monotonic() < deadline:
        found = load.measure(SLICE_S, pids)
        after = _snapshot_under_way(ensemble)
        if before == after:
            slices.append(_Slice(after, found.ops_per_s, found.cpu_us_per_op or 0.0))
        before = after


def _make_due(ensemble: Ensemble) -> None:
    """Let the log grow until a snapshot begins."""
    large = _sets(ensemble, LARGE_BYTES)
    deadline = time.monotonic() + SNAPSHOT_WITHIN_S
    while not _snapshot_under_way(ensemble):
        if time.monotonic() > deadline:
            raise LoadError(f"no snapshot began within {SNAPSHOT_WITHIN_S:g} s of a heavy load")
        large.measure(SLICE_S)
    large.close()


def _shorten_log(ensemble: Ensemble, leader: Member) -> None:
    """Snapshots until the log's beginning is gone, so that it is not all that a learner needs."""
    _await_no_snapshot(ensemble)
    while list(leader.data.rglob(segment_file(1))):
        _make_due(ensemble)
        _await_no_snapshot(ensemble)


def _await_no_snapshot(ensemble: Ensemble) -> None:
    what = "no snapshot under way"
    ensemble.wait_for(lambda: not _snapshot_under_way(ensemble), what, timeout_s=SNAPSHOT_WITHIN_S)


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
        _shorten_log(ensemble, leader)
        joining = ensemble.members[3]
        calm = Probe((LOOPBACK, leader.client_port), "set")
        with calm:
            time.sleep(SETTLE_S)
        with Probe((LOOPBACK, leader.client_port), "set") as probe:
            began = time.perf_counter()
            joining.start()
            ensemble.wait_serving([joining], timeout_s=JOIN_WITHIN_S)
            took_ms = (time.perf_counter() - began) * 1000
        if "snapshot_comes" not in joining.log.read_text("utf-8"):
            raise LoadError("the observer got no snapshot: its log was all that it lacked")
        *_, path = deep(count)
        require((LOOPBACK, joining.client_port), path)
    yield Figure(
        f"an empty observer joins, {count:,} znodes", took_ms, "ms", "by SNAP, until it serves"
    )
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
