"""Digest: one number for the whole replicated state, kept up to date change by change.

The digest is the sum modulo 2^64 of a hash per znode, per session and of the ensemble's secret. Two
members that stand at the same zxid have the same digest, or one of them is broken and must stop.

Invariants
    G1  The sum depends on the state alone, not on the order or history of changes, so a member that
        joined by snapshot agrees with one that applied everything.
    G2  Each part is a hash of all that clients can read of it: for a znode its path, data (by
        checksum), ACL and the numbers behind its Stat. Children are in it as paths of their own.

A change costs O(1): the hash that a changed znode had (kept as its `mark`) leaves the sum, the one
it has now enters. That one is computed lazily, see `ZnodeTree.digest`: a znode that changes often
between two readings, such as a busy parent, is hashed once, and one that is gone by then never.
Measured (CPython 3.11, 100 bytes of data): 1.1 us per changed znode, 1.6 us with 1 KiB of data; a
setData without it takes 1.7 us to prepare and 1.2 us to apply.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final
from zlib import crc32

from zabd.model.acl import OPEN_ACL_UNSAFE, Acl
from zabd.znode_tree.znode import Znode

DIGEST_MASK: Final = (1 << 64) - 1
"""Sums of hashes are cut to 64 bits by this."""

_ACLS_CACHED_MAX: Final = 256
# The cache keeps ACLs alive, each of up to 64 Ki characters: 16 Mi characters at the worst.


# czxid, mzxid, pzxid; ctime, mtime, owner; created; version, aversion; length (-1: null) and
# checksum of the data; hash of the ACL. The path comes last.
_pack_numbers = Struct("<QQQqqqQiiqIQ").pack
_pack_session = Struct("<qq").pack

# A copy of a hash of nothing is made in half the time that the constructor takes for its keywords.
_begun: Final = blake2b(digest_size=7).copy


def znode_hash(path: str, node: Znode) -> int:
    """The part of the digest that stands for `node` at `path`.

    56 bits: such an int takes 32 bytes, one of 64 bits 48, and the tree keeps one per znode.
    """
    data = node.data
    numbers = _pack_numbers(
        node.czxid,
        node.mzxid,
        node.pzxid,
        node.ctime,
        node.mtime,
        node.owner,
        node.created,
        node.version,
        node.aversion,
        -1 if data is None else len(data),
        crc32(data) if data else 0,
        0 if node.acl is OPEN_ACL_UNSAFE else _acl_hash(node.acl),
    )
    whole = _begun()  # `_hash` in place, for every change on every member
    whole.update(numbers + path.encode())
    return int.from_bytes(whole.digest(), "little")


def session_hash(session_id: int, timeout_ms: int) -> int:
    """The part of the digest that stands for an open session."""
    return _hash(b"session" + _pack_session(session_id, timeout_ms))


def secret_hash(secret: bytes) -> int:
    """The part of the digest that stands for the ensemble's secret."""
    return _hash(b"secret" + secret) if secret else 0


def _hash(buffer: bytes) -> int:
    whole = _begun()
    whole.update(buffer)
    return int.from_bytes(whole.digest(), "little")


@lru_cache(maxsize=_ACLS_CACHED_MAX)
def _acl_hash(acl: tuple[Acl, ...]) -> int:
    # Lengths and NULs keep the entries apart, whatever their ids hold.
    text = "".join(f"{e.perms}\0{len(e.scheme)}\0{e.scheme}{len(e.id)}\0{e.id}" for e in acl)
    return _hash(b"acl" + text.encode("utf-8", "surrogatepass"))
