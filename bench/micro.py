"""What the parts of a request cost, each alone and all of them together.

    python bench/micro.py [--check] [--write] [NAME ...]

Two figures for each part: the CPU time of the fastest of many short runs, which depends on the
machine, and the bytecode instructions and calls that Python executes, which do not: they are the
same in every run of one Python version. `--check` compares those with the ones last committed
(`bench/figures.json`) and names what has grown by more than 2 percent; `--write` commits new ones.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.ensemble import Ensemble

from zabd.cli.daemon import GC_THRESHOLDS
from zabd.model.acl import OPEN_ACL_UNSAFE, Acl
from zabd.model.ops import Create, GetData, SetData
from zabd.model.watch_events import EventType
from zabd.model.zxid import Zxid
from zabd.wire import FrameReader, encode_request
from zabd.wire.requests import decode_op
from zabd.zab.codec import Decoder, encode_buffers
from zabd.zab.log import GENESIS_CHAIN, Batch, frame_record
from zabd.zab.messages import Propose
from zabd.znode_tree import Preparer, ZnodeTree, txns
from zabd.znode_tree.tree import Change
from zabd.znode_tree.watches import WatchKind, WatchTable

FIGURES: Final = Path(__file__).parent / "figures.json"
TOLERANCE: Final = 1.02
DATA: Final = bytes(1024)
OPS: Final = 100
"""What one run does; figures are for one of it."""

SESSION: Final = 7
EVERYBODY: tuple[Acl, ...] = OPEN_ACL_UNSAFE


def request_frames() -> Callable[[], object]:
    """wire: a chunk of getData requests cut into frames."""
    chunk = encode_request(1, GetData("/bench/0001", watch=False)) * OPS
    reader = FrameReader()
    return lambda: reader.feed(chunk)


def request_decode() -> Callable[[], object]:
    """wire: a setData of 1 KiB decoded."""
    frame = encode_request(1, SetData("/bench/0001", DATA, -1))[4:]
    return lambda: [decode_op(5, frame) for _ in range(OPS)]


def tree_with(count: int) -> ZnodeTree:
    """A tree with a session and that many znodes."""
    tree = ZnodeTree()
    tree.apply(1, 1, SESSION, txns.create_session(30_000))
    tree.apply(2, 1, SESSION, txns.create("/bench", b"", EVERYBODY, 0, 1))
    for number in range(count):
        path = f"/bench/{number:04d}"
        tree.apply(3 + number, 1, SESSION, txns.create(path, DATA, EVERYBODY, 0, number + 1))
    return tree


def prepare_set() -> Callable[[], object]:
    """znode_tree: a setData prepared, and dropped from what is outstanding."""
    preparer = Preparer(tree_with(OPS))
    ops = [SetData(f"/bench/{number:04d}", DATA, -1) for number in range(OPS)]
    zxid = [1 << 32]

    def run() -> None:
        for op in ops:
            zxid[0] += 1
            preparer.prepare_set_data(zxid[0], 1, SESSION, (), op)
        preparer.applied(zxid[0])

    return run


def prepare_create() -> Callable[[], object]:
    """znode_tree: a create prepared, and dropped from what is outstanding."""
    preparer = Preparer(tree_with(1))
    changes = [(f"/bench/new{number:04d}", DATA, 0) for number in range(OPS)]
    zxid = [1 << 32]

    def run() -> None:
        for change in changes:
            zxid[0] += 1
            preparer.prepare_create(zxid[0], 1, SESSION, (), change)
        preparer.applied(zxid[0])

    return run


def apply_set() -> Callable[[], object]:
    """znode_tree: a setData applied, its share of the digest included."""
    tree = tree_with(OPS)
    entries = [
        (1, 0, SESSION, txns.set_data(f"/bench/{number:04d}", DATA, 1)) for number in range(OPS)
    ]

    def run() -> None:
        assert tree.apply_run(tree.zxid + 1, 1, entries, 0, 2, print, {}) == OPS
        assert tree.digest

    return run


def apply_create() -> Callable[[], object]:
    """znode_tree: a create applied, its share of the digest included, in a tree that grows."""
    tree = tree_with(1)
    made = [0]

    def run() -> None:
        first = made[0] = made[0] + OPS
        entries = [
            (1, 0, SESSION, txns.create(f"/bench/{first + number}", DATA, EVERYBODY, 0, 5))
            for number in range(OPS)
        ]
        assert tree.apply_run(tree.zxid + 1, 1, entries, 0, 2, print, {}) == OPS
        assert tree.digest

    return run


def apply_create_and_delete() -> Callable[[], object]:
    """znode_tree: a znode created and deleted again, their share of the digest included."""
    tree = tree_with(1)
    paths = [f"/bench/new{number:04d}" for number in range(OPS)]

    def run() -> None:
        zxid = tree.zxid
        for path in paths:
            tree.apply(zxid + 1, 1, SESSION, txns.create(path, DATA, EVERYBODY, 0, 5))
            tree.apply(zxid + 2, 1, SESSION, txns.delete(path))
            zxid += 2
        assert tree.digest

    return run


def watch_fire() -> Callable[[], object]:
    """znode_tree: a data watch set and fired."""
    table = WatchTable()
    paths = [f"/bench/{number:04d}" for number in range(OPS)]
    changes = [Change(EventType.DATA_CHANGED, path, EVERYBODY) for path in paths]

    def run() -> None:
        for path, change in zip(paths, changes, strict=True):
            table.add(WatchKind.DATA, path, SESSION)
            table.trigger(change)

    return run


def batch_payload() -> bytes:
    """A batch of setData."""
    entries = [(1, number, SESSION, txns.set_data("/b", DATA, 1)) for number in range(OPS)]
    return txns.pack_batch(1, entries)


def record_frame() -> Callable[[], object]:
    """zab: a batch of 1 KiB setData framed as a record, digests included."""
    payload = batch_payload()
    return lambda: frame_record(Zxid.of(1, 1), OPS, payload, GENESIS_CHAIN)


def record_check() -> Callable[[], object]:
    """zab: the record of such a batch received: its frame decoded, its digests checked."""
    record = frame_record(Zxid.of(1, 1), OPS, batch_payload(), GENESIS_CHAIN)
    frame = b"".join(encode_buffers(Propose(Zxid.of(1, 1), OPS, record)))
    return lambda: [Batch.of(m.record) for m in Decoder().feed(frame) if isinstance(m, Propose)]


def batch_unpack() -> Callable[[], object]:
    """znode_tree: the payload of such a batch unpacked."""
    payload = batch_payload()
    return lambda: txns.unpack_batch(payload)


def whole(kind: str, connections: int = 10) -> Callable[[], object]:
    """Three members in one process, from a client's bytes to its bytes."""
    ensemble = Ensemble()
    clients = [ensemble.connect(number % 3 + 1) for number in range(connections)]
    first = clients[0]
    for path in ("/bench", *(f"/bench/{number:04d}" for number in range(OPS))):
        first.send(first.encode(Create(path, DATA, EVERYBODY, 0)))
    ensemble.settle()
    made = [0]

    def request(number: int) -> SetData | GetData | Create:
        path = f"/bench/{number:04d}"
        if kind == "set":
            return SetData(path, DATA, -1)
        if kind == "get":
            return GetData(path, watch=False)
        made[0] += 1
        return Create(f"/bench/new{made[0]}", DATA, EVERYBODY, 0)

    share = OPS // connections
    chunks = [
        b"".join(encode_request(1, request(at * share + n)) for n in range(share))
        for at in range(connections)
    ]

    def run() -> None:
        for at, client in enumerate(clients):
            chunk = chunks[at]
            if kind == "create":
                chunk = b"".join(encode_request(1, request(0)) for _ in range(share))
            client.send(chunk)
        ensemble.settle()

    return run


BENCHES: Final[dict[str, Callable[[], Callable[[], object]]]] = {
    "wire.frames": request_frames,
    "wire.decode_set": request_decode,
    "tree.prepare_set": prepare_set,
    "tree.prepare_create": prepare_create,
    "tree.apply_set": apply_set,
    "tree.apply_create": apply_create,
    "tree.create_delete": apply_create_and_delete,
    "tree.watch_fire": watch_fire,
    "tree.unpack_batch": batch_unpack,
    "log.frame_record": record_frame,
    "log.check_record": record_check,
    "whole.get": lambda: whole("get"),
    "whole.set": lambda: whole("set"),
    "whole.create": lambda: whole("create"),
}


def fastest_us(run: Callable[[], object], budget_s: float = 1.0) -> float:
    """CPU time of one op in the fastest run."""
    run()
    gc.collect()
    best, end = float("inf"), time.process_time() + budget_s
    while time.process_time() < end:
        began = time.process_time_ns()
        run()
        best = min(best, time.process_time_ns() - began)
    return best / OPS / 1000


class Counter:
    """Counts the instructions and calls of Python code between `start` and `stop`."""

    def __init__(self) -> None:
        self.instructions = self.calls = 0

    def count(self, run: Callable[[], object]) -> None:
        """Once."""
        sys.settrace(self._trace)
        try:
            run()
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:  # noqa: ANN401
        if event == "call":
            self.calls += 1
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            self.instructions += 1
        return self._trace


def steps(run: Callable[[], object]) -> tuple[float, float]:
    """Instructions and calls of one op, the same in every run."""
    run()
    counter = Counter()
    counter.count(run)
    return counter.instructions / OPS, counter.calls / OPS


def version() -> str:
    """The Python version, on whose bytecode the figures depend."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def compare(name: str, now: list[float], before: dict[str, list[float]]) -> bool:
    """Whether this part is no worse than when it was last committed; says so if it is."""
    if name not in before:
        print(f"  {name}: not in {FIGURES.name}; run with --write")
        return False
    for what, new, old in zip(("instructions", "calls"), now, before[name], strict=True):
        if new > old * TOLERANCE + 0.05:
            print(f"  {name}: {new:.1f} {what} for each op, {old:.1f} when last committed")
            return False
    return True


def main() -> None:
    """Measure, print, and compare or write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--check", action="store_true", help="fail if instructions have grown")
    parser.add_argument("--write", action="store_true", help="write the figures to be committed")
    arguments = parser.parse_args()
    gc.set_threshold(*GC_THRESHOLDS)
    committed: dict[str, dict[str, list[float]]] = {}
    if FIGURES.exists():
        committed = json.loads(FIGURES.read_text())
    before, now, good = committed.get(version(), {}), {}, True
    print(f"{'':22}{'us/op':>9}{'instr/op':>10}{'calls/op':>10}")
    for name in arguments.names or BENCHES:
        instructions, calls = steps(BENCHES[name]())
        cost_us = 0.0 if arguments.check else fastest_us(BENCHES[name]())
        print(f"{name:22}{cost_us:9.3f}{instructions:10.1f}{calls:10.2f}")
        now[name] = [round(instructions, 2), round(calls, 2)]
        if arguments.check:
            good = compare(name, now[name], before) and good
    if arguments.write:
        committed[version()] = {**before, **now}
        FIGURES.write_text(json.dumps(committed, indent=1) + "\n")
    sys.exit(not good)


if __name__ == "__main__":
    main()
