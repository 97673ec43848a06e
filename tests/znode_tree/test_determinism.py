"""One history, one trace: nothing depends on how Python hashes strings today."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import hashlib
from tests.znode_tree.world import ALICE, BOB, World, plain
from zabd.model.ops import CloseSession, CreateMode
from zabd.znode_tree import WatchKind, WatchTable, pack_batch

world, table, trace = World(), WatchTable(), []
for path in ("/x", "/x/y", "/z"):
    for watcher in ("c", "a", "b"):
        table.add(WatchKind.DATA | WatchKind.RECURSIVE, path, watcher)
for number in range(50):
    op = plain(f"/x{number % 7}", CreateMode.EPHEMERAL_SEQUENTIAL)
    world.prepare(op, (ALICE, BOB)[number % 2])
world.prepare(CloseSession())
for applied in world.apply_all():
    trace += [told for change in applied.changes for told in table.trigger(change)]
    trace.append(applied.changes)
walk = world.tree.begin_snapshot()
while (chunk := walk.next_slice(9)) is not None:
    trace.append(chunk)
trace.append(pack_batch(0, [(0, 0, 0, txn) for _, _, _, txn in world.log]))
print(world.tree.digest, hashlib.sha256(repr(trace).encode()).hexdigest())
"""


def test_hash_seeds_change_nothing() -> None:
    """Digest, events, snapshot and log are equal to the byte under any PYTHONHASHSEED."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    ]

    assert outputs[0]
    assert len(set(outputs)) == 1
