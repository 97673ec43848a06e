"""Snapshot: the state of one moment, taken in slices while writes go on.

Invariants
    P1  A snapshot is exact: it holds the state at `label_zxid`, nothing earlier or later. A znode
        that changes before the walk has reached it is put in first, as it still is; one that was
        created later has a later `czxid`, by which the walk knows it.
    P2  Each znode of that moment is in the snapshot once.
    P3  The first object names the digest of all that follows, the last one the number of znodes and
        a hash of the first. A snapshot that lacks its end or differs in any of them is not used.

Because of P1 there is no fuzzy state that a replay would have to repair: sessions, ACLs, counters
and znodes are of one moment by construction.

Format: a stream of msgpack objects, the boundaries of chunks mean nothing.
    header     [name, format, zxid, time_ms, secret, digest, [session, timeout_ms, ...]]
    slices     [[path, data, acl, czxid, mzxid, pzxid, ctime, mtime, version, aversion, created,
               owner], ...], where acl is nil (world:anyone, all), a list of entries, or the index
               of a list that came before
    end        [the number of znodes, a hash of the header]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import msgpack

from zabd.model.acl import OPEN_ACL_UNSAFE, Acl
from zabd.model.paths import ROOT
from zabd.znode_tree.txns import UNICODE_ERRORS
from zabd.znode_tree.znode import Znode

Packed: TypeAlias = Any
"""What msgpack takes or gives."""

SNAPSHOT_NAME: Final = "zabd-snapshot"
SNAPSHOT_FORMAT: Final = 1
END_FIELDS: Final = 2

SLICE_BYTES_MAX: Final = 1 << 20
"""A slice ends early when its data comes to this: 1 MiB takes a few ms to encode."""


class SnapshotWalk:
    """One snapshot being taken; `ZnodeTree.begin_snapshot` makes it.

    The chunks of `next_slice`, in order, are what `TreeLoader` reads. The walk goes through the
    tree itself, parent by parent: a copy of a million znodes would stop the member for 60 ms. What
    it holds are the paths of one parent's children, of the parents that it has met, and of what
    changed before it got there.
    """

    __slots__ = (
        "_acl_indexes",
        "_done",
        "_early",
        "_early_paths",
        "_end",
        "_header",
        "_here",
        "_horizon",
        "_left",
        "_nodes",
        "_on_end",
        "_parents",
        "digest",
        "label_zxid",
    )

    def __init__(
        self,
        *,
        nodes: dict[str, Znode],
        sessions: tuple[tuple[int, int], ...],
        zxid: int,
        time_ms: int,
        secret: bytes,
        digest: int,
        on_end: Callable[[], None],
    ) -> None:
        self.label_zxid = zxid
        self.digest = digest
        flat_sessions = [number for session in sessions for number in session]
        header = [
            SNAPSHOT_NAME,
            SNAPSHOT_FORMAT,
            zxid,
            time_ms,
            secret,
            digest,
            flat_sessions,
        ]
        self._header: bytes | None = pack(header)
        self._end = pack([len(nodes), seal_of(header)])
        self._nodes = nodes  # the tree's own, which changes meanwhile
        self._horizon = zxid  # what was created after it is not of this moment
        # The parent that the walk is at, and which of its children it has not been to.
        self._here = ""
        self._left: dict[str, None] = {}
        self._parents: deque[str] = deque((ROOT,))  # the walk has been to these alone
        self._done: set[str] = set()  # and to these with all their children
        # Znodes whose turn came early because they were about to change; the root begins.
        self._early: deque[list[Any]] = deque((self._record(ROOT, nodes[ROOT]),))
        self._early_paths: set[str] = {ROOT}
        self._acl_indexes: dict[tuple[Acl, ...], int] = {}
        self._on_end: Callable[[], None] | None = on_end

    def keep(self, path: str, node: Znode) -> None:
        """The tree is about to change `node`: take it now, unless it is taken or too young."""
        if node.czxid <= self._horizon and path not in self._early_paths:
            parent = path[: path.rindex("/")] or ROOT
            if path in self._left if parent == self._here else parent not in self._done:
                self._early_paths.add(path)
                self._early.append(self._record(path, node))

    def next_slice(self, nodes_max: int) -> bytes | None:
        """The next chunk, of at most `nodes_max` znodes; None after the last one.

        It may be of fewer, or of none: those that the walk only looks at take time as well.
        """
        if self._on_end is None:
            return None
        if self._header is not None:
            header, self._header = self._header, None
            return header
        if self._early or self._left or self._parents:
            return pack(self._take(nodes_max))
        self.abandon()
        return self._end

    def abandon(self) -> None:
        """Take no more; what was taken is worthless. Harmless at any time."""
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            self._nodes, self._left = {}, {}
            self._parents.clear()
            self._done.clear()
            self._early.clear()
            self._early_paths.clear()
            on_end()

    def _take(self, nodes_max: int) -> list[list[Any]]:
        records: list[list[Any]] = []
        size_bytes = 0
        for _ in range(nodes_max):
            if size_bytes >= SLICE_BYTES_MAX:
                break
            record = self._early.popleft() if self._early else self._step()
            if record is not None:
                # Only now, so that an ACL is spelt out where the reader meets it first.
                record[2] = self._packed_acl(record[2])
                records.append(record)
                size_bytes += len(record[0]) + len(record[1] or b"")
        return records

    def _step(self) -> list[Any] | None:
        """Go on to the next child, or with the next parent; the znode if it is to be taken."""
        if not self._left:
            if self._parents:
                self._enter(self._parents.popleft())
            return None
        path, _ = self._left.popitem()
        node = self._nodes.get(path)
        if node is None or node.czxid > self._horizon:
            return None  # deleted, hence taken before, or created since
        if node.children:
            self._parents.append(path)
        return None if path in self._early_paths else self._record(path, node)

    def _enter(self, parent: str) -> None:
        """Go through the children of `parent` from now on.

        All that are of this moment are there, or were taken when they were deleted.
        """
        self._done.add(self._here)
        self._here = parent
        node = self._nodes.get(parent)
        if node is not None and node.children:
            self._left = node.children.copy()

    def _record(self, path: str, node: Znode) -> list[Any]:
        return [
            path,
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
        ]

    def _packed_acl(self, acl: tuple[Acl, ...]) -> Packed:
        if acl is OPEN_ACL_UNSAFE:
            return None
        index = self._acl_indexes.get(acl)
        if index is not None:
            return index
        self._acl_indexes[acl] = len(self._acl_indexes)
        return acl


def seal_of(header: Packed) -> bytes:
    """The hash by which the end of a snapshot vouches for its header."""
    return blake2b(pack(header), digest_size=8).digest()


def pack(value: Packed) -> bytes:
    """One msgpack object of the stream."""
    packed: bytes = msgpack.packb(value, unicode_errors=UNICODE_ERRORS)
    return packed
