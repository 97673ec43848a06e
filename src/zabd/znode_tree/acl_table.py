"""ACL table: equal ACLs of many znodes are one tuple in memory.

Invariants
    A1  An ACL is in the table exactly as long as a znode has it; its count is that of those znodes.
    A2  world:anyone with all rights is the constant of the model and is never counted.

Counting is what lets the table shrink: a client may give every znode an ACL of its own, and delete
them all again.
"""

from __future__ import annotations

from zabd.model.acl import OPEN_ACL_UNSAFE, Acl


class AclTable:
    """The ACLs in use, each with the number of znodes that have it."""

    __slots__ = ("_counts", "_shared")

    def __init__(self) -> None:
        self._shared: dict[tuple[Acl, ...], tuple[Acl, ...]] = {}
        self._counts: dict[tuple[Acl, ...], int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def share(self, acl: tuple[Acl, ...]) -> tuple[Acl, ...]:
        """Count one more user of `acl`; returns the tuple that all of its users hold."""
        if acl is OPEN_ACL_UNSAFE:
            return acl
        shared = self._shared.setdefault(acl, acl)
        self._counts[shared] = self._counts.get(shared, 0) + 1
        return shared

    def drop(self, acl: tuple[Acl, ...]) -> None:
        """Count one user of `acl` less."""
        if acl is OPEN_ACL_UNSAFE:
            return
        left = self._counts[acl] - 1
        if left:
            self._counts[acl] = left
        else:
            del self._counts[acl], self._shared[acl]
