"""Txns: the facts that the log holds and every member applies.

A txn is a plain tuple `(kind, *fields)`, ready for msgpack. `prepare` makes it, once, at the
leader; it says what *is* afterwards (the resulting version, the parent's resulting creation
counter, the whole final path), never what should be tried, so that applying it can neither fail nor
differ.

Invariants
    T1  A txn holds only None, int, str, bytes and tuples of them: msgpack gives it back equal.
    T2  Time and zxid are not in it: one pair serves the whole batch or the whole multi.

Kinds and fields are a format: numbers are never used again, fields are only added at the end.

The order of fields in `create` puts the optional ones last; an ACL of None is world:anyone with all
rights, by far the commonest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgpack

from zabd.model.acl import OPEN_ACL_UNSAFE, Acl

__all__ = [
    "CHECK",
    "CLOSE_SESSION",
    "CONTAINER_DELETE",
    "CREATE",
    "CREATE_SESSION",
    "DELETE",
    "ERROR",
    "FOUND",
    "MULTI",
    "MULTI_FAILED",
    "SET_ACL",
    "SET_DATA",
    "Entry",
    "Txn",
    "check",
    "close_session",
    "container_delete",
    "create",
    "create_session",
    "delete",
    "error",
    "found",
    "multi",
    "multi_failed",
    "pack_acl",
    "pack_batch",
    "packed_size",
    "set_acl",
    "set_data",
    "unpack_acl",
    "unpack_batch",
]

Txn: TypeAlias = tuple[Any, ...]
"""`(kind, *fields)`; the constructors of this module name the fields."""

Entry: TypeAlias = tuple[int, int, int, Txn]
"""One txn in a batch: (origin member, request id there, session id, txn)."""

UNICODE_ERRORS: Final = "surrogatepass"
"""Ids in ACLs may hold lone surrogates: Java clients send characters beyond the BMP as two."""

CREATE: Final = 1
DELETE: Final = 2
SET_DATA: Final = 3
SET_ACL: Final = 4
CHECK: Final = 5
MULTI: Final = 6
MULTI_FAILED: Final = 7
ERROR: Final = 8
CREATE_SESSION: Final = 9
CLOSE_SESSION: Final = 10
FOUND: Final = 11
CONTAINER_DELETE: Final = 12


def create(
    path: str, data: bytes | None, acl: tuple[Acl, ...], owner: int, parent_created: int
) -> Txn:
    """`path` exists, with this owner (see `znode`); its parent has created that many children."""
    return (CREATE, path, data, pack_acl(acl), owner, parent_created)


def delete(path: str) -> Txn:
    """`path`, which has no children, is gone."""
    return (DELETE, path)


def set_data(path: str, data: bytes | None, version: int) -> Txn:
    """`path` holds `data`, and that is its `version`."""
    return (SET_DATA, path, data, version)


def set_acl(path: str, acl: tuple[Acl, ...], aversion: int) -> Txn:
    """`path` has this ACL, and that is its `aversion`."""
    return (SET_ACL, path, pack_acl(acl), aversion)


def check(path: str) -> Txn:
    """`path` had the version asked for: nothing changes."""
    return (CHECK, path)


def multi(opcodes: Sequence[int], txns: Sequence[Txn]) -> Txn:
    """All of `txns`, at one zxid and time; the opcodes say what each is answered with."""
    return (MULTI, tuple(opcodes), tuple(txns))


def multi_failed(codes: Sequence[int]) -> Txn:
    """A multi of which one op was refused: nothing changes; an error code per op."""
    return (MULTI_FAILED, tuple(codes))


def error(code: int) -> Txn:
    """An op that was refused: nothing changes."""
    return (ERROR, int(code))


def create_session(timeout_ms: int) -> Txn:
    """The session of the entry is open, or has this timeout from now on."""
    return (CREATE_SESSION, timeout_ms)


def close_session(paths: Sequence[str] | None) -> Txn:
    """The session of the entry is gone, and so are its ephemerals `paths`, in this order.

    None stands for all that it owns at that moment, sorted: for a list that is too long to be told.
    """
    return (CLOSE_SESSION, None if paths is None else tuple(paths))


def found(secret: bytes, config: bytes = b"") -> Txn:
    """The ensemble exists: its secret, and what /zookeeper/config holds. The first txn of all."""
    return (FOUND, secret, config)


def container_delete(path: str) -> Txn:
    """`path`, a container or a znode whose time to live is over, is gone."""
    return (CONTAINER_DELETE, path)


def pack_acl(acl: tuple[Acl, ...]) -> tuple[tuple[int, str, str], ...] | None:
    """An ACL as a txn and a snapshot hold it."""
    return None if acl is OPEN_ACL_UNSAFE or acl == OPEN_ACL_UNSAFE else tuple(map(tuple, acl))  # type: ignore[arg-type]


def unpack_acl(packed: Sequence[Sequence[Any]] | None) -> tuple[Acl, ...]:
    """The inverse of `pack_acl`."""
    return OPEN_ACL_UNSAFE if packed is None else tuple(Acl(*entry) for entry in packed)


def pack_batch(time_ms: int, entries: Sequence[Entry]) -> bytes:
    """One payload for the log and the wire. Every batch that `prepare` made can be packed."""
    packed: bytes = msgpack.packb((time_ms, entries), unicode_errors=UNICODE_ERRORS)
    return packed


def packed_size(txn: Txn) -> int:
    """How many bytes of a batch the txn takes."""
    return len(msgpack.packb(txn, unicode_errors=UNICODE_ERRORS))


def unpack_batch(payload: bytes | memoryview) -> tuple[int, tuple[Entry, ...]]:
    """The inverse of `pack_batch`: (time_ms, entries). Raises ValueError for other bytes."""
    batch: tuple[int, tuple[Entry, ...]] = msgpack.unpackb(
        payload, use_list=False, unicode_errors=UNICODE_ERRORS
    )
    return batch
