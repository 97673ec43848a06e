"""Snapshot: the state of one moment, taken in slices while writes go on.

Invariants
    P1  A snapshot is exact: it holds the state at `label_zxid`, nothing earlier or later. A znode
        that changes before the walk has reached it is put in first, as it still is.
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
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import msgpack

from zabd.model.acl import OPEN_ACL_UNSAFE, Acl
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

    The chunks of `next_slice`, in order, are what `TreeLoader` reads. The walk holds a reference to
    every znode it has not reached: 40 bytes for each while it lasts.
    """

    __slots__ = (
        "_acl_indexes",
        "_early",
        "_end",
        "_header",
        "_on_end",
        "_order",
        "_waiting",
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
        self._waiting = nodes
        self._order: Iterator[str] | None = iter(list(nodes))
        # Znodes whose turn came early because they were about to change.
        self._early: deque[list[Any]] = deque()
        self._acl_indexes: dict[tuple[Acl, ...], int] = {}
        self._on_end = on_end

    def keep(self, path: str, node: Znode) -> None:
        """The tree is about to change `node`: take it now, unless it is taken or too young."""
        if self._waiting.pop(path, None) is not None:
            self._early.append(self._record(path, node))

    def next_slice(self, nodes_max: int) -> bytes | None:
        """The next chunk, of at most `nodes_max` znodes; None after the last one."""
        if self._order is None:
            return None
        if self._header is not None:
            header, self._header = self._header, None
            return header
        records = self._take(nodes_max)
        if records:
            return pack(records)
        self.abandon()
        return self._end

    def abandon(self) -> None:
        """Take no more; what was taken is worthless. Harmless at any time."""
        if self._order is not None:
            self._order = None
            self._waiting = {}
            self._early.clear()
            self._on_end()

    def _take(self, nodes_max: int) -> list[list[Any]]:
        records: list[list[Any]] = []
        size_bytes = 0
        while len(records) < nodes_max and size_bytes < SLICE_BYTES_MAX:
            record = self._early.popleft() if self._early else self._next_in_order()
            if record is None:
                break
            # Only now, so that an ACL is spelt out where the reader meets it first.
            record[2] = self._packed_acl(record[2])
            records.append(record)
            size_bytes += len(record[0]) + len(record[1] or b"")
        return records

    def _next_in_order(self) -> list[Any] | None:
        assert self._order is not None, "the walk has not ended"
        for path in self._order:
            node = self._waiting.pop(path, None)
            if node is not None:
                return self._record(path, node)
        return None

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
