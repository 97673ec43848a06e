"""Loader: a tree out of the chunks of a snapshot, or the refusal of what is not one.

Nothing of the snapshot is believed before `finish` has compared the number of znodes and the digest
with what is there. The work is spread over the chunks; `finish` itself is short.

The format stands in `snapshot`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NoReturn

import msgpack

from zabd.model.acl import OPEN_ACL_UNSAFE, Acl
from zabd.model.errors import DamagedError
from zabd.model.paths import ROOT
from zabd.znode_tree.snapshot import END_FIELDS, SNAPSHOT_FORMAT, SNAPSHOT_NAME, Packed, seal_of
from zabd.znode_tree.tree import ZnodeTree
from zabd.znode_tree.txns import UNICODE_ERRORS, unpack_acl
from zabd.znode_tree.znode import Znode

OBJECT_BYTES_MAX: Final = (1 << 31) - 1
"""What msgpack may gather for one object: a slice, or all sessions (14 bytes for each)."""

_TIMES_KEPT_MAX: Final = 1 << 16

# What the unpacker, the unpacking of a record and the hash of a field of the wrong type raise.
_MALFORMED: Final = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    struct.error,
)


class TreeLoader:
    """Reads one snapshot: `feed` every chunk in order, then `finish`.

    Chunks may be cut anywhere. Both raise DamagedError for what no `SnapshotWalk` has written; the
    loader is of no use after that.
    """

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(
            use_list=False, unicode_errors=UNICODE_ERRORS, max_buffer_size=OBJECT_BYTES_MAX
        )
        self._tree = ZnodeTree(planted=False)
        self._digest: int | None = None
        self._seal = b""
        self._fed_bytes = 0
        self._end_bytes = 0
        self._acls: list[tuple[Acl, ...]] = []
        self._orphans: list[str] = []
        # Neighbours were often made in the same ms: one int object then serves them all.
        self._times: dict[int, int] = {}

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the snapshot."""
        self._fed_bytes += len(chunk)
        try:
            self._unpacker.feed(chunk)
            for item in self._unpacker:
                self._take(item)
        except _MALFORMED as error:
            self._refuse(f"cannot be read: {error}", error)

    def finish(self) -> ZnodeTree:
        """The tree of the snapshot, once all of it was fed and proved to be whole."""
        tree = self._tree
        if not self._end_bytes:
            self._refuse("ends too early")
        if self._end_bytes != self._fed_bytes:
            self._refuse("goes on after its end")
        for path in self._orphans:
            if not tree.link(path):
                self._refuse(f"has no parent for {path!r}")
        if any(owner not in tree.sessions for owner in tree.ephemerals):
            self._refuse("has an ephemeral of a session that is not open")
        if tree.digest != self._digest:
            self._refuse(f"has the digest {tree.digest} and names {self._digest}")
        tree.recount_quotas()
        return tree

    def _take(self, item: Packed) -> None:
        if self._digest is None:
            self._take_header(item)
        elif self._end_bytes:
            self._refuse("goes on after its end")
        elif len(item) == END_FIELDS and isinstance(item[0], int):
            self._take_end(*item)
        else:
            self._take_slice(item)

    def _take_header(self, item: Packed) -> None:
        name, form, zxid, time_ms, secret, digest, sessions = item
        if (name, form) != (SNAPSHOT_NAME, SNAPSHOT_FORMAT):
            self._refuse(
                f"is {name!r} of format {form!r}; this zabd reads {SNAPSHOT_NAME!r} of format "
                f"{SNAPSHOT_FORMAT}"
            )
        self._tree.restore_position(zxid, time_ms, secret)
        for session_id, timeout_ms in zip(sessions[::2], sessions[1::2], strict=True):
            self._tree.restore_session(session_id, timeout_ms)
        self._digest = digest
        self._seal = seal_of(item)

    def _take_end(self, count: int, seal: bytes) -> None:
        if seal != self._seal:
            self._refuse("has another header than its end vouches for")
        if len(self._tree.nodes) != count or ROOT not in self._tree.nodes:
            self._refuse(f"holds {len(self._tree.nodes)} znodes and names {count}")
        self._end_bytes = self._unpacker.tell()

    def _take_slice(self, records: Sequence[Sequence[Packed]]) -> None:
        tree = self._tree
        shared_time = self._times.setdefault
        for path, data, acl, czxid, mzxid, pzxid, ctime, mtime, *rest in records:
            node = Znode(
                data,
                OPEN_ACL_UNSAFE if acl is None else self._acl(acl),
                czxid,
                # One int object for equal numbers: most znodes are never set and have no children.
                czxid if mzxid == czxid else mzxid,
                czxid if pzxid == czxid else pzxid,
                shared_time(ctime, ctime),
                shared_time(mtime, mtime),
                *rest,
            )
            if not tree.restore(path, node):
                self._orphans.append(path)
        if len(self._times) > _TIMES_KEPT_MAX:
            self._times.clear()

    def _acl(self, packed: Packed) -> tuple[Acl, ...]:
        if isinstance(packed, int):
            return self._acls[packed]
        acl = unpack_acl(packed)
        self._acls.append(acl)
        return acl

    def _refuse(self, what: str, cause: Exception | None = None) -> NoReturn:
        raise DamagedError(f"the snapshot {what}; use an older one or another member's") from cause
