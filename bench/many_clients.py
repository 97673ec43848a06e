"""Members with many clients: sessions, watchers, waiters.

    python bench/many_clients.py [--sessions 10000] [--only STEP] [--quick] [--json] [--out DIR]

A single member on this machine, three of them where it says so. Stalls are what another process
sees that asks the member for one thing after the other.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Final

from crowd import NOTIFICATION_XID, REQUEST_XID, Crowd
from kit import Figure, Probe, hosts, members, options, run_steps

from zabd.cli.load import Connection, Load, cpu_seconds, resident_mib
from zabd.cli.members import Ensemble
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import ErrorCode
from zabd.model.ops import Create, CreateMode, Delete, Exists, GetData, Op, SetData
from zabd.wire.requests import encode_request

PATH: Final = "/watched"
IDLE_S: Final = 10.0
SETTLE_S: Final = 2.0
LOAD_S: Final = 3.0
EXPIRY_TIMEOUT_MS: Final = 10_000
ROUNDS: Final = 5
BYTES_PER_MIB: Final = 2**20
EXPIRED_WITHIN_S: Final = 120.0


def sessions(given: argparse.Namespace) -> Iterator[Figure]:
    """Opening, memory, pings and the expiry of all at once."""
    count = 500 if given.quick else given.sessions
    with members() as ensemble:
        [host], pid = hosts(ensemble), ensemble.members[0].pid
        before_mib, cpu_s = resident_mib(pid), cpu_seconds([pid])
        with Crowd([host], count, timeout_ms=30_000) as crowd:
            cpu_s = cpu_seconds([pid]) - cpu_s
            yield Figure("sessions opened", count / crowd.opened_s, "1/s", f"{count:,} of them")
            yield Figure("CPU to open a session", cpu_s * 1e6 / count, "us")
            used = (resident_mib(pid) - before_mib) * BYTES_PER_MIB
            yield Figure("memory of an idle session", used / count, "bytes", f"{count:,} of them")
            cpu_s = cpu_seconds([pid])
            crowd.ping_all(IDLE_S)
            cpu_s = cpu_seconds([pid]) - cpu_s
            detail = f"{count:,} pings over {IDLE_S:g} s, with what an idle member takes"
            yield Figure("CPU of a ping", cpu_s * 1e6 / count, "us", detail)
            with Probe(host) as probe:
                crowd.ping_all(IDLE_S)
            yield from probe.figures("longest stall while all of them ping")
        yield from _expiry(ensemble, host, count)
    yield from _sessions_of_three(count)


def _sessions_of_three(count: int) -> Iterator[Figure]:
    with members(3) as ensemble:
        pids = [member.pid for member in ensemble.members]
        with Crowd(hosts(ensemble), count // 10):
            pass  # warm
        cpu_s = cpu_seconds(pids)
        with Crowd(hosts(ensemble), count) as crowd:
            cpu_us = (cpu_seconds(pids) - cpu_s) * 1e6 / count
            detail = f"{count:,} of them, evenly; CPU {cpu_us:.0f} us each, of all members"
            yield Figure("sessions opened at three members", count / crowd.opened_s, "1/s", detail)


def _expiry(ensemble: Ensemble, host: tuple[str, int], count: int) -> Iterator[Figure]:
    _await_sessions(ensemble, 0)
    crowd = Crowd([host], count, timeout_ms=EXPIRY_TIMEOUT_MS)
    crowd.ask_each(lambda n: Create(f"/mortal-{n}", b"", OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL))
    with Probe(host) as probe:
        crowd.hang_up()
        _await_sessions(ensemble, 1)  # the probe's own
    detail = f"{count:,} sessions, each with an ephemeral znode"
    yield from probe.figures("longest stall while all of them expire", detail)


def _await_sessions(ensemble: Ensemble, most: int) -> None:
    member = ensemble.members[0]

    def few() -> bool:
        found = member.status(timeout_s=5).number("global_sessions")
        time.sleep(0.2)  # asking is work for the member, too
        return found is not None and found <= most

    ensemble.wait_for(few, f"at most {most} sessions", timeout_s=EXPIRED_WITHIN_S)


def watchers(given: argparse.Namespace) -> Iterator[Figure]:
    """One znode, many watchers, each a session of its own: until the last one knows."""
    for count in (200,) if given.quick else (1_000, 10_000):
        for size in (1, 3):
            yield from _watchers(count, size)


def _watchers(count: int, size: int) -> Iterator[Figure]:
    with members(size) as ensemble:
        pids = [member.pid for member in ensemble.members]
        setter = _with_znode(hosts(ensemble)[0], PATH)
        last_ms, cpu_us = [], []
        with Crowd(hosts(ensemble), count) as crowd:
            for _ in range(ROUNDS):
                crowd.ask_all(GetData(PATH, watch=True))
                cpu_s, began = cpu_seconds(pids), time.perf_counter()
                _ask(setter, SetData(PATH, b"new", -1))
                last_ms.append((crowd.wait(NOTIFICATION_XID, count)[-1] - began) * 1000)
                setter.expect(1)
                cpu_us.append((cpu_seconds(pids) - cpu_s) * 1e6 / count)
        setter.socket.close()
    what = f"{count:,} watchers of a znode at {'one member' if size == 1 else 'three members'}"
    detail = f"at most {max(last_ms):.1f} ms; CPU of the members {statistics.mean(cpu_us):.1f} us"
    yield Figure(f"{what}: until the last is told", statistics.median(last_ms), "ms", detail)


def _with_znode(host: tuple[str, int], path: str) -> Connection:
    connection = Connection(*host)
    connection.call(Create(path, b"old", OPEN_ACL_UNSAFE, CreateMode.PERSISTENT))
    return connection


def _ask(connection: Connection, op: Op) -> None:
    """Ask, and do not wait: the answer comes behind the events of all who watch."""
    connection.socket.sendall(encode_request(REQUEST_XID, op))


def herd(given: argparse.Namespace) -> Iterator[Figure]:
    """All wait for one znode to go, and all try to create it: what recipes avoid."""
    count = 100 if given.quick else 1_000
    path = "/herd"
    create = Create(path, b"", OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL)
    with members() as ensemble:
        [host], pid = hosts(ensemble), ensemble.members[0].pid
        holder = _with_znode(host, path)
        all_ms, cpu_ms = [], []
        with Crowd([host], count) as crowd:
            for _ in range(ROUNDS):
                crowd.ask_all(Exists(path, watch=True))
                cpu_s, began = cpu_seconds([pid]), time.perf_counter()
                _ask(holder, Delete(path, -1))
                crowd.wait(NOTIFICATION_XID, count)
                holder.expect(1)
                crowd.send_all(create)
                allowed = (0, ErrorCode.NODE_EXISTS)
                moments = crowd.wait(REQUEST_XID, count, allowed=allowed)
                all_ms.append((moments[-1] - began) * 1000)
                cpu_ms.append((cpu_seconds([pid]) - cpu_s) * 1000)
        holder.socket.close()
    detail = f"at most {max(all_ms):.1f} ms; CPU {statistics.mean(cpu_ms):.0f} ms a time"
    what = f"herd of {count:,}: from the release until all have an answer"
    yield Figure(what, statistics.median(all_ms), "ms", detail)


def million_watches(given: argparse.Namespace) -> Iterator[Figure]:
    """A thousand sessions that watch a thousand znodes each, the same ones."""
    count = 100 if given.quick else 1_000
    with members() as ensemble:
        [host], pid = hosts(ensemble), ensemble.members[0].pid
        setter = Connection(*host)
        for number in range(count):
            setter.call(Create(f"/z{number}", b"", OPEN_ACL_UNSAFE, CreateMode.PERSISTENT))
        ops = [GetData(f"/z{number}", watch=True) for number in range(count)]
        load = Load([host], "set", connections=8, window=16, size_bytes=100, root="/unwatched")
        cost_us = _cpu_of_a_set(load, pid)
        yield Figure("CPU of a set 8x16 while nobody watches", cost_us, "us", "on one member")
        with Crowd([host], count) as crowd:
            before_mib, cpu_s = resident_mib(pid), cpu_seconds([pid])
            for number in range(count):
                crowd.pipeline(number, ops)
            cpu_s, total = cpu_seconds([pid]) - cpu_s, count * count
            used = (resident_mib(pid) - before_mib) * BYTES_PER_MIB
            yield Figure("memory of a watch", used / total, "bytes", f"{total:,} of them")
            yield Figure("CPU to read and watch", cpu_s * 1e6 / total, "us")
            what = f"CPU of a set 8x16 of unwatched znodes, {total:,} watches of others"
            yield Figure(what, _cpu_of_a_set(load, pid), "us", "on one member")
            load.close()
            began = time.perf_counter()
            _ask(setter, SetData("/z0", b"new", -1))
            last_ms = (crowd.wait(NOTIFICATION_XID, count)[-1] - began) * 1000
            setter.expect(1)
            yield Figure(f"{total:,} watches: a change, until the last is told", last_ms, "ms")
            with Probe(host) as probe:
                crowd.hang_up()
                _await_watches(ensemble)
                time.sleep(SETTLE_S)  # nobody sees them any more, and they are still taken away
        yield from probe.figures(f"longest stall while {count:,} clients with them hang up")
        setter.socket.close()


def _cpu_of_a_set(load: Load, pid: int) -> float:
    load.measure(1.0)
    return load.measure(LOAD_S, [pid]).cpu_us_per_op or 0.0


def _await_watches(ensemble: Ensemble) -> None:
    member = ensemble.members[0]
    ensemble.wait_for(
        lambda: member.status(timeout_s=5).number("watch_count") == 0, "no watches", timeout_s=120
    )


STEPS: Final = {
    "sessions": sessions,
    "watchers": watchers,
    "herd": herd,
    "million-watches": million_watches,
}


def main() -> int:
    """See the top."""
    parser = options(__doc__)
    parser.add_argument("--sessions", type=int, default=10_000, help="idle sessions of one member")
    return run_steps("many-clients", STEPS, parser)


if __name__ == "__main__":
    sys.exit(main())
