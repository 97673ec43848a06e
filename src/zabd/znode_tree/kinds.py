"""Kinds of znodes: what a create may ask for, and what becomes of it.

The kind stands twice in a request, as the opcode and as flags. Where they contradict each other the
request is refused: guessing has killed servers. The one exception is a plain create with the flags
of a container, which makes a persistent znode: that is what clients get from ZooKeeper, and aiozk
asks for every step of a path in this way.

Client protocol, section 9.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from zabd.model.errors import BadArgumentsError, UnimplementedError
from zabd.model.ops import Create, Create2, CreateContainer, CreateMode, CreateTtl
from zabd.znode_tree.znode import CONTAINER_OWNER, TTL_MAX_MS, ttl_owner

CreateOp: TypeAlias = Create | Create2 | CreateContainer | CreateTtl


def owner_wanted(op: CreateOp, session_id: int, *, ttl_enabled: bool) -> int:
    """The `owner` that the new znode will have, see `znode`.

    Raises BadArgumentsError for flags that do not go with the op and for a time to live out of
    range, UnimplementedError where times to live are switched off.
    """
    if op.flags not in _FLAGS_ALLOWED[type(op)]:
        raise BadArgumentsError
    if isinstance(op, CreateTtl):
        return _ttl_owner_wanted(op.ttl, ttl_enabled=ttl_enabled)
    if isinstance(op, CreateContainer):
        return CONTAINER_OWNER
    return session_id if op.flags in _EPHEMERAL else 0


def _ttl_owner_wanted(ttl_ms: int, *, ttl_enabled: bool) -> int:
    if not ttl_enabled:
        raise UnimplementedError
    if not 0 < ttl_ms <= TTL_MAX_MS:
        raise BadArgumentsError
    return ttl_owner(ttl_ms)


def is_ephemeral(op: CreateOp) -> bool:
    """Whether the znode is to belong to the session."""
    return op.flags in _EPHEMERAL


def is_sequential(op: CreateOp) -> bool:
    """Whether the path is to be completed with a number."""
    return op.flags in _SEQUENTIAL


# Plain ints: a CreateMode compares equal to them, and a request has no more than that.
_SEQUENTIAL: Final = frozenset(int(mode) for mode in CreateMode if mode.sequential)
_EPHEMERAL: Final = frozenset(int(mode) for mode in CreateMode if mode.ephemeral)
_PLAIN: Final = frozenset({0, 1, 2, 3, 4})

_FLAGS_ALLOWED: Final[dict[type, frozenset[int]]] = {
    Create: _PLAIN,
    Create2: _PLAIN,
    CreateContainer: frozenset({4}),
    CreateTtl: frozenset({5, 6}),
}
