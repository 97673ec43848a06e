"""Rebuilding the tree from what the disk holds: a snapshot, then the log behind it.

`TreeBuilder` is what recovery pours bytes into; it knows nothing of files. After an installation
of the leader's snapshot it does the same without a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zabd.model.errors import DamagedError
from zabd.znode_tree import txns
from zabd.znode_tree.loader import TreeLoader
from zabd.znode_tree.tree import ZnodeTree

if TYPE_CHECKING:
    from zabd.zab.log import Batch, LogPosition


class TreeBuilder:
    """A tree that grows from a snapshot's chunks and from committed batches; see `tree`.

    `replayed_txns` and `replayed_bytes` are those of the batches behind the snapshot.
    """

    def __init__(self) -> None:
        self.tree = ZnodeTree()
        self._loader: TreeLoader | None = None
        self._position: LogPosition | None = None
        self.replayed_txns = 0
        self.replayed_bytes = 0

    def begin_anew(self) -> None:
        """Forget everything: the tree is empty again."""
        self.tree = ZnodeTree()
        self._loader = self._position = None
        self.replayed_txns = self.replayed_bytes = 0

    def begin_snapshot(self, position: LogPosition) -> None:
        """A snapshot taken at `position` follows; what came before it is thrown away."""
        self._loader = TreeLoader()
        self._position = position
        self.replayed_txns = self.replayed_bytes = 0

    def snapshot_chunk(self, chunk: bytes) -> None:
        """The snapshot's next bytes. Raises `DamagedError` if they cannot be part of one."""
        assert self._loader is not None, "a snapshot begins before its chunks"
        self._loader.feed(chunk)

    def end_snapshot(self) -> None:
        """The snapshot is complete. Raises `DamagedError` if it is not what its label says."""
        assert self._loader is not None, "a snapshot begins before it ends"
        assert self._position is not None, "a snapshot has a position"
        tree = self._loader.finish()
        self._loader = None
        if tree.zxid != self._position.zxid:
            raise DamagedError(
                f"a snapshot labelled {self._position.zxid!r} holds the tree of zxid {tree.zxid:#x}"
            )
        self.tree = tree

    def record(self, batch: Batch) -> None:
        """Apply a committed batch."""
        if batch.last > self.tree.zxid:
            self.replayed_txns += batch.count
            self.replayed_bytes += len(batch.record)
        apply_batch(self.tree, batch)


def apply_batch(tree: ZnodeTree, batch: Batch) -> None:
    """Apply a committed batch where nobody waits for answers or events."""
    time_ms, entries = txns.unpack_batch(batch.payload)
    zxid = int(batch.first)
    for _origin, _request_id, session_id, txn in entries:
        tree.apply(zxid, time_ms, session_id, txn)
        zxid += 1
