"""Quotas: how much there is at and below a path, and how much there may be.

A quota on the path P is a pair of ordinary znodes: /zookeeper/quota<P>/zookeeper_limits, which
clients write, and .../zookeeper_stats, whose text every member keeps current. The quota is active
while the limits znode exists.

Invariants
    Q1  The usage of an active quota is the number of znodes, and the bytes of their data, at and
        below its path, at every moment. It follows from the znodes alone, so a tree that was loaded
        has the usage that one has which applied every txn.
    Q2  The stats text is rewritten by the txns that change the usage, at the zxid of each, and by
        nothing else: it is part of the state, in the digest and in snapshots, and loading leaves it
        alone. Neither the znode's version nor its mzxid nor its watches take notice.
    Q3  Whatever a client writes below /zookeeper/quota, no apply and no loading fails over it: text
        that cannot be read sets no limit.

Neither / nor anything at or below /zookeeper has a quota: the text of a stats znode would count
towards itself. Without any quota a write asks no more than whether there is one.

Client protocol, section 17.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from zabd.model.paths import QUOTA_PATH, SYSTEM_PATH
from zabd.model.quotas import LIMITS_NAME, STATS_NAME, Limits, Usage

QUOTA_PREFIX: Final = QUOTA_PATH + "/"

QUOTA_CHARS_MAX: Final = 4096
"""The longest path that can have a quota: looking up all its 2,048 ancestors takes 2 ms at most."""


class Quota(NamedTuple):
    """An active quota: its limits and what is used (Q1)."""

    limits: Limits
    znodes: int
    size_bytes: int

    def charged(self, znodes: int, size_bytes: int) -> Quota:
        """The quota after a change by that much."""
        return Quota(self.limits, self.znodes + znodes, self.size_bytes + size_bytes)

    @property
    def text(self) -> bytes:
        """What the stats znode shows."""
        return Usage(self.znodes, self.size_bytes).text


def limited_path(path: str) -> str | None:
    """The path whose quota a limits znode at `path` activates; None if `path` is no such place."""
    return _subject(path, LIMITS_NAME)


def counted_path(path: str) -> str | None:
    """The path whose usage a stats znode at `path` shows; None if `path` is no such place."""
    return _subject(path, STATS_NAME)


def _subject(path: str, name: str) -> str | None:
    if not (path.startswith(QUOTA_PREFIX) and path.endswith(name)):
        return None
    subject = path[len(QUOTA_PATH) : -len(name)]
    if not 1 < len(subject) <= QUOTA_CHARS_MAX:
        return None
    in_system = subject == SYSTEM_PATH or subject.startswith(SYSTEM_PATH + "/")
    return None if in_system else subject


def ancestors_and_self(path: str, chars_max: int) -> Iterator[str]:
    """`path` and the paths above it but the root, highest first, those of up to `chars_max`."""
    cut = path.find("/", 1)
    while 0 < cut <= chars_max:
        yield path[:cut]
        cut = path.find("/", cut + 1)
    if cut < 0 and 1 < len(path) <= chars_max:
        yield path


class QuotaTable(dict[str, Quota]):
    """The active quotas of a tree, by the path they are on.

    A dict, so that asking whether there is any costs a write next to nothing. `chars_max` is the
    length of the longest path that has had a quota since there was none.
    """

    __slots__ = ("chars_max",)

    def __init__(self) -> None:
        super().__init__()
        self.chars_max = 0

    def above(self, path: str) -> list[str]:
        """The paths with a quota that counts `path`, highest first."""
        return [above for above in ancestors_and_self(path, self.chars_max) if above in self]

    def activate(self, subject: str, quota: Quota) -> None:
        """There is a quota on `subject` from now on."""
        self[subject] = quota
        self.chars_max = max(self.chars_max, len(subject))

    def deactivate(self, subject: str) -> None:
        """There is no quota on `subject` any more."""
        self.pop(subject, None)
        if not self:
            self.chars_max = 0

    def recount(self, sizes_below: Iterable[tuple[str, int]]) -> None:
        """Add up the usage of all quotas from (path, size of its data) of every znode counted."""
        totals = {subject: [0, 0] for subject in self}
        for path, size_bytes in sizes_below:
            for subject in self.above(path):
                total = totals[subject]
                total[0] += 1
                total[1] += size_bytes
        for subject, (znodes, size_bytes) in totals.items():
            self[subject] = Quota(self[subject].limits, znodes, size_bytes)

    def topmost(self) -> list[str]:
        """The paths with a quota that no other quota counts, in order of activation."""
        return [subject for subject in self if self.above(subject)[0] == subject]
