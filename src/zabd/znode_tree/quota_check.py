"""Quota check: what the quotas say about a write, everything in flight counted.

Invariants
    U1  A quota is looked at as it will be once everything prepared is applied: usage, limits, and
        whether it is there at all. So neither the ops of one multi nor ops in flight together can
        exceed what each of them alone would not.
    U2  A pending quota stands for the newest txn in flight that touches it and is dropped exactly
        when that txn is applied; the tree then says the same (as O2 of `outstanding`).
    U3  One txn counts what is below quotas, which every member does in applying it, until that is
        more than `WALK_MAX`; no more is counted in a multi then.

Client protocol, sections 12 and 17.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from zabd.model.errors import BadArgumentsError, QuotaExceededError
from zabd.model.quotas import parse_limits
from zabd.znode_tree.outstanding import Outstanding
from zabd.znode_tree.quotas import Quota, ancestors_and_self, counted_path, limited_path
from zabd.znode_tree.tree import ZnodeTree

Trace: TypeAlias = Callable[[str, Mapping[str, object]], None]


WALK_MAX: Final = 20_000
"""Znodes counted in one txn, and in one batch of them, before the next one begins: 0.2 us each."""


class _Absence:
    """No quota on that path. One object for each deactivation, see U2."""

    __slots__ = ()


_Pending: TypeAlias = Quota | _Absence

_Step: TypeAlias = tuple[int, str, _Pending, _Pending | None]
# (zxid, path the quota is on, what it is from then on, what was pending before)


class QuotaCheck:
    """The quotas as they will be; `trace` hears of limits that are exceeded and only warn.

    `pending` has those in flight: where neither it nor the tree has any, no write asks any more.
    `walked` are the znodes that were counted because a quota began.
    """

    __slots__ = (
        "_chars_max",
        "_enforced",
        "_outstanding",
        "_steps",
        "_trace",
        "_tree",
        "_walked_at",
        "pending",
        "walked",
    )

    def __init__(
        self, tree: ZnodeTree, outstanding: Outstanding, trace: Trace, *, enforced: bool
    ) -> None:
        self._tree = tree
        self._outstanding = outstanding
        self._trace = trace
        self._enforced = enforced
        self.pending: dict[str, _Pending] = {}
        self._steps: deque[_Step] = deque()
        self._chars_max = 0
        self.walked = 0
        self._walked_at = (0, 0)  # the zxid of the last walk, and `walked` before its first one

    def require_room(self, path: str, znodes: int, size_bytes: int) -> None:
        """Whether `path` may come (znodes 1), or its data grow by that much.

        The deepest quota decides. Raises QuotaExceededError if a hard limit would be exceeded and
        limits are enforced. What does not grow is let through, whatever the usage is.
        """
        above = self._above(path)
        if above:
            subject, quota = above[-1]
            limits = quota.limits
            if znodes > 0:
                hard, soft = limits.znodes_hard, limits.znodes
                self._require(subject, "znodes", quota.znodes, znodes, hard, soft)
            if size_bytes > 0:
                hard, soft = limits.size_bytes_hard, limits.size_bytes
                self._require(subject, "bytes", quota.size_bytes, size_bytes, hard, soft)

    def _require(
        self, subject: str, what: str, used: int, growth: int, hard: int, soft: int
    ) -> None:
        limit = hard if hard >= 0 else soft
        if limit < 0 or used + growth <= limit:
            return
        if hard >= 0 and self._enforced:
            raise QuotaExceededError(
                f"the quota on {subject} allows {hard} ({what}), {used} are used"
            )
        if used <= limit:  # said once each time the limit is passed, not with every write beyond it
            fields = {"quota_on": subject, "what": what, "limit": limit, "used": used + growth}
            self._trace("quota exceeded", {"level": "warning", **fields})

    def charge(self, zxid: int, path: str, znodes: int, size_bytes: int) -> None:
        """From `zxid` on `path` will be there (1) or not (-1), or hold that much more data."""
        for subject, quota in self._above(path):
            self._put(zxid, subject, quota.charged(znodes, size_bytes))

    def limits_set(self, zxid: int, path: str, data: bytes | None) -> None:
        """From `zxid` on `path` will hold this: a quota begins or changes if that is its place."""
        subject = limited_path(path)
        if subject is not None:
            quota = self._view(subject)
            usage = self._walk(zxid, subject) if quota is None else quota[1:]
            self._put(zxid, subject, Quota(parse_limits(data), *usage))

    def created(self, zxid: int, path: str, data: bytes | None) -> None:
        """From `zxid` on `path` will be there, with this: as `limits_set`, or it shows a usage."""
        self.limits_set(zxid, path, data)
        subject = counted_path(path)
        if subject is not None and self._view(subject) is None:
            self._walk(zxid, subject)  # as every member will

    def _walk(self, zxid: int, subject: str) -> tuple[int, int]:
        if zxid != self._walked_at[0]:
            self._walked_at = (zxid, self.walked)
        elif self.walked - self._walked_at[1] > WALK_MAX:  # only where there are several: U3
            raise BadArgumentsError(f"a multi counts no more than {WALK_MAX} znodes for quotas")
        usage = self._outstanding.usage_below(subject)
        self.walked += usage[0]
        return usage

    def removed(self, zxid: int, path: str) -> None:
        """From `zxid` on nothing will be at `path`: a quota ends if that was its place."""
        subject = limited_path(path)
        if subject is not None:
            self._put(zxid, subject, _Absence())

    def mark(self) -> int:
        """A point to which `roll_back` can return, as long as nothing is dropped in between."""
        return len(self._steps)

    def roll_back(self, mark: int) -> None:
        """Undo everything since `mark`."""
        while len(self._steps) > mark:
            _, subject, _, previous = self._steps.pop()
            if previous is None:
                del self.pending[subject]
            else:
                self.pending[subject] = previous

    def drop(self, zxid: int) -> None:
        """The tree has applied everything up to `zxid`."""
        steps = self._steps
        while steps and steps[0][0] <= zxid:
            _, subject, pending, _ = steps.popleft()
            if self.pending.get(subject) is pending:
                del self.pending[subject]

    def _view(self, subject: str) -> Quota | None:
        pending = self.pending.get(subject)
        if pending is None:
            return self._tree.quotas.get(subject)
        return pending if isinstance(pending, Quota) else None

    def _above(self, path: str) -> list[tuple[str, Quota]]:
        found = []
        for subject in ancestors_and_self(path, max(self._chars_max, self._tree.quotas.chars_max)):
            quota = self._view(subject)
            if quota is not None:
                found.append((subject, quota))
        return found

    def _put(self, zxid: int, subject: str, pending: _Pending) -> None:
        self._steps.append((zxid, subject, pending, self.pending.get(subject)))
        self.pending[subject] = pending
        self._chars_max = max(self._chars_max, len(subject))
