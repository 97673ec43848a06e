"""Trees made again from what disks hold, to be compared with the one that has always been there.

`restore` runs the recovery that is shipped on a copy of a member's devices, as a start after a
power cut at this moment would; `reborn` sends a tree through a snapshot; `difference` looks at
every field of two trees, not only at those that the digest knows of.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from zabd.cluster_sim.disk_image import NOTHING_SURVIVES, DiskImage
from zabd.model.ids import MemberId
from zabd.replica.rebuild import TreeBuilder
from zabd.storage.config import StorageConfig
from zabd.storage.disk import Disk, DiskFault, DiskOp, DiskResult
from zabd.storage.procedures import DiskError, Procedure
from zabd.storage.recovery import Recovered, recover
from zabd.storage.snapshots import SnapshotDecoder
from zabd.znode_tree.loader import TreeLoader
from zabd.znode_tree.tree import ZnodeTree
from zabd.znode_tree.znode import Znode

T = TypeVar("T")

_SLICE_NODES = 5


class _CopyOfADisk:
    """A `Disk` that does at once what it is asked for: nobody else is there."""

    def __init__(self, image: DiskImage) -> None:
        self.image = image

    def perform(self, ops: Sequence[DiskOp]) -> list[DiskResult]:
        """The results; DiskError for the first operation that fails."""
        results: list[DiskResult] = []
        for op in ops:
            try:
                results.append(self.image.perform(op))
            except OSError as error:
                reason = error.strerror or str(error)
                raise DiskError(DiskFault(op, error.errno or 0, reason)) from error
        return results


def restore(
    builder: TreeBuilder,
    member: MemberId,
    images: Sequence[DiskImage],
    config: StorageConfig,
) -> Recovered:
    """What a start finds if power fails now and nothing survives that was not synced.

    The tree is in the builder afterwards. Raises what recovery raises.
    """
    copies = [image.copy() for image in images]
    for copy in copies:
        copy.lose_power(Random(0), NOTHING_SURVIVES)  # with that, chance decides nothing
    disks: list[Any] = [_CopyOfADisk(copy) for copy in copies]
    procedure = recover(
        disks[0], disks[-1], config, builder, member, None, lambda _event, _fields: None
    )
    return _carry_through(procedure).recovered


def _carry_through(procedure: Procedure[T]) -> T:
    try:
        disk, ops = next(procedure)
        while True:
            disk, ops = _advance(procedure, disk, ops)
    except StopIteration as stop:
        value: T = stop.value
        return value


def _advance(
    procedure: Procedure[T], disk: Disk, ops: Sequence[DiskOp]
) -> tuple[Disk, Sequence[DiskOp]]:
    assert isinstance(disk, _CopyOfADisk), "the procedure has no other disks"
    try:
        results = disk.perform(ops)
    except DiskError as error:
        return procedure.throw(error)
    return procedure.send(results)


def decode(builder: TreeBuilder, file: str, content: bytes) -> None:
    """Bring the tree of a snapshot's file into the builder; DamagedError if it is not whole."""
    decoder = SnapshotDecoder(file)
    pieces = decoder.feed(content)
    info = decoder.finish()
    builder.begin_snapshot(info.position)
    for piece in pieces:
        builder.snapshot_chunk(piece)
    builder.end_snapshot()


def reborn(tree: ZnodeTree) -> ZnodeTree:
    """The same tree in other memory, its books in another order; DamagedError if it cannot be."""
    walk, loader = tree.begin_snapshot(), TreeLoader()
    while (chunk := walk.next_slice(_SLICE_NODES)) is not None:
        loader.feed(chunk)
    return loader.finish()


def difference(one: ZnodeTree, other: ZnodeTree) -> str:
    """The first thing in which two trees differ, as words; "" if there is none."""
    for path in sorted({*one.nodes, *other.nodes}):
        node, twin = _facts(one.nodes.get(path)), _facts(other.nodes.get(path))
        if node != twin:
            return f"{path} is {node}, and {twin} there"
    books: tuple[tuple[str, object, object], ...] = (
        ("sessions", one.sessions, other.sessions),
        ("ephemerals", one.ephemerals, other.ephemerals),
        ("perishables", one.perishable, other.perishable),
        ("secret", one.secret, other.secret),
        ("position", (one.zxid, one.time_ms), (other.zxid, other.time_ms)),
        ("bytes of data", one.data_bytes, other.data_bytes),
        ("quotas", dict(one.quotas), dict(other.quotas)),
        ("digest", one.digest, other.digest),
    )
    for name, here, there in books:
        if here != there:
            return f"{name}: {here}, and {there} there"
    return ""


def _facts(node: Znode | None) -> tuple[object, ...]:
    """All that is kept of a znode; its children are paths of their own."""
    if node is None:
        return ()
    return (
        node.data,
        node.acl,
        node.czxid,
        node.mzxid,
        node.pzxid,
        node.ctime,
        node.mtime,
        node.version,
        node.aversion,
        node.created,
        node.owner,
        frozenset(node.children or ()),
    )
