"""What an acknowledged write costs in system calls, counted from outside by strace.

The first claim is the one that all others of durability rest on: nothing is acknowledged that a
quorum has not synced. The second keeps the number of calls down, since they are what a small batch
consists of: each batch is one write and one sync of the log, and what goes over a connection in one
turn goes in one write.
"""

import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import pytest
from tests.ensemble.harness import lay_out

from zabd.cli.load import Connection, Load
from zabd.cli.members import Ensemble, Member
from zabd.cli.ports import LOOPBACK
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.ops import Create, SetData
from zabd.model.results import StatResult
from zabd.storage.record import MARK_BYTES

pytestmark = [
    pytest.mark.ensemble,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

SYNCS: Final = ("fdatasync", "fsync")
WRITES: Final = ("write", "writev", "sendto", "sendmsg")
LOG_WRITES: Final = ("pwrite64", "pwritev", "pwritev2")
TRACED: Final = ",".join((*SYNCS, *WRITES, *LOG_WRITES))

# PID TIME CALL(FD<WHAT>, ... or <... CALL resumed>, then = RESULT <DURATION>
_BEGUN: Final = re.compile(r"(\d+) +([\d.]+) (\w+)\(\d+<(.*?)>[,) ]")
_RESUMED: Final = re.compile(r"(\d+) +([\d.]+) <\.\.\. (\w+) resumed>")
_ENDED: Final = re.compile(r"= (-?\d+).*<([\d.]+)>$")
_LOCAL_AND_REMOTE: Final = re.compile(r":(\d+)->.*:(\d+)\]$")
CLOCK_GRAIN_S: Final = 2e-6
"""Times and durations are both cut to microseconds."""


@dataclass(frozen=True)
class Call:
    """One system call that has ended."""

    name: str
    on: str  # the path of its file, or the two ends of its connection
    began_s: float
    ended_s: float
    result: int
    durable: bool  # it is a sync, or a write that is one

    @property
    def ports(self) -> tuple[int, int] | None:
        """The connection's port here and at the other end; None for a file."""
        found = _LOCAL_AND_REMOTE.search(self.on)
        return (int(found[1]), int(found[2])) if found else None


@dataclass
class Strace:
    """strace at work on one member; `calls` once it has ended."""

    member: Member
    out: Path
    calls: list[Call] = field(default_factory=list)

    def __enter__(self) -> Self:
        command = ["strace", "-f", "-yy", "-ttt", "-T", "-s", "0", "-e", f"trace={TRACED}"]
        self._process = subprocess.Popen(
            [*command, "-o", str(self.out), "-p", str(self.member.pid)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        first = self._process.stderr.readline()
        if "attached" not in first:
            self._process.kill()
            self._process.wait()
            pytest.skip(f"strace may not attach here: {first.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=30)
        self.calls = list(read_calls(self.out.read_text().splitlines()))

    def syncs(self) -> list[Call]:
        """Those of the log, among them writes that end when they are durable."""
        return [call for call in self.calls if call.durable and "/log." in call.on]

    def log_writes(self) -> list[Call]:
        """Those of records; what a new segment is given is not among them."""
        return [call for call in self.calls if call.name in LOG_WRITES and "/log." in call.on]

    def durable_records(self, at_s: float, record_bytes: int) -> int:
        """How many records of this size lay in the log at that time, with a sync behind them."""
        writes, records = self.log_writes(), 0
        for sync in self.syncs():
            if sync.ended_s > at_s + CLOCK_GRAIN_S:
                break
            while writes and (
                writes[0] is sync or writes[0].ended_s <= sync.began_s + CLOCK_GRAIN_S
            ):
                records += (writes.pop(0).result - MARK_BYTES) // record_bytes
        return records

    def sent(self, port: int) -> dict[tuple[int, int], list[Call]]:
        """The writes to each connection that has this port at one of its ends."""
        sent: dict[tuple[int, int], list[Call]] = {}
        for call in self.calls:
            if call.name in WRITES and call.ports is not None and port in call.ports:
                sent.setdefault(call.ports, []).append(call)
        return sent


def read_calls(lines: list[str]) -> Iterator[Call]:
    """The calls of strace's output, in the order in which they ended."""
    unfinished: dict[tuple[str, str], tuple[float, str, bool]] = {}
    for line in lines:
        ended = _ENDED.search(line)
        if begun := _BEGUN.match(line):
            thread, at, name, on = begun.groups()
            durable = name in SYNCS or "RWF_DSYNC" in line
            if "<unfinished ...>" in line:
                unfinished[thread, name] = (float(at), on, durable)
            elif ended and int(ended[1]) >= 0:
                began_s = float(at)
                yield Call(name, on, began_s, began_s + float(ended[2]), int(ended[1]), durable)
        elif (resumed := _RESUMED.match(line)) and ended and int(ended[1]) >= 0:
            thread, _, name = resumed.groups()
            if (thread, name) in unfinished:
                began_s, on, durable = unfinished.pop((thread, name))
                yield Call(name, on, began_s, began_s + float(ended[2]), int(ended[1]), durable)


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[tuple[Ensemble, list[Strace]]]:
    """Three members that serve, and a strace for each that is not attached yet."""
    with (
        tempfile.TemporaryDirectory(prefix="zabd-strace-") as folder,
        lay_out(tmp_path) as ensemble,
    ):
        ensemble.start()
        yield (
            ensemble,
            [Strace(member, Path(folder) / str(member.id)) for member in ensemble.members],
        )


def test_nothing_is_acknowledged_that_a_quorum_has_not_synced(
    traced: tuple[Ensemble, list[Strace]],
) -> None:
    """When a client is answered its n-th write, two of three members have synced n records.

    One write at a time, all of one size, so that each is a record of its own. A member that the
    others do not wait for may write several at once. The client's member follows.
    """
    ensemble, straces = traced
    leader = ensemble.leader()
    served_by = next(member for member in ensemble.members if member is not leader)
    client = Connection(LOOPBACK, served_by.client_port)
    client.call(Create("/n", b"", OPEN_ACL_UNSAFE, 0))
    first, second, third = straces
    with first, second, third:
        for number in range(1, 101):
            result = client.call(SetData("/n", b"%03d" % number, -1))
            assert isinstance(result, StatResult)
            assert result.stat.version == number
    client.socket.close()

    at = next(strace for strace in straces if strace.member is served_by)
    [answers] = at.sent(served_by.client_port).values()
    assert len(answers) == 100
    record_bytes = min(call.result for call in at.log_writes()) - MARK_BYTES
    for number, answer in enumerate(answers, 1):
        durable = [strace.durable_records(answer.began_s, record_bytes) for strace in straces]
        assert sum(records >= number for records in durable) >= 2, (number, durable)


def test_a_batch_is_one_write_and_one_sync_and_each_link_one_write_a_turn(
    traced: tuple[Ensemble, list[Strace]],
) -> None:
    """Under load: what a member writes to its log, to its peers and to its clients, each by itself.

    A batch takes a follower two turns that send something, one that forwards and one that
    acknowledges; the leader sends a proposal and a commit, mostly together.
    """
    ensemble, straces = traced
    hosts = [(LOOPBACK, member.client_port) for member in ensemble.members]
    load = Load(hosts, "set", connections=9, window=16, size_bytes=1024, root="/load")
    load.measure(0.5)
    first, second, third = straces
    with first, second, third:
        load.measure(3)
    load.close()

    configured = ensemble.members[0].config.read_text()
    quorum_ports = [int(port) for port in re.findall(r"server\.\d+=[^:]+:(\d+):", configured)]
    assert len(quorum_ports) == 3
    for strace in straces:
        batches = len(strace.syncs())
        assert batches > 5
        # A segment that is full is sealed with a write and a sync of its own.
        assert abs(len(strace.log_writes()) - batches) <= 4
        for port in quorum_ports:
            for ends, sent in strace.sent(port).items():
                assert len(sent) <= 2.5 * batches + 10, (ends, len(sent), batches)
        to_clients = strace.sent(strace.member.client_port)
        assert len(to_clients) == 3
        for ends, sent in to_clients.items():
            assert len(sent) <= 2 * batches + 10, (ends, len(sent), batches)
