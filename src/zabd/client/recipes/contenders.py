"""The names of those who queue for something: sequential znodes, ours and other clients'.

kazoo names a contender ``<uuid>__lock__0000000003``, Curator ``_c_<uuid>-lock-0000000003``, the
dedup runbook ``lock-0000000003``. The order is that of the number, never that of the text.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

# Ten digits, or after 2147483647 a minus sign and ten digits: the counter is a signed 32-bit one.
_NUMBER = r"(-\d{10}|\d{10})$"
# kazoo's and ours; Curator's locks, leader latches and read-write locks.
_EXCLUSIVE = r"__lock__|lock-|latch-|__WRIT__"
_SHARED = r"__rlock__|__READ__"
_ANY_LOCK = re.compile(f"(?:{_EXCLUSIVE}){_NUMBER}")
_ANY_NAME = re.compile(f"(?:{_EXCLUSIVE}|{_SHARED}){_NUMBER}")


class Contender(NamedTuple):
    """A child that queues; tuples sort by number."""

    sequence: int
    name: str


class Rule(NamedTuple):
    """Who is in a queue, and whom of those before it a contender waits for."""

    contends: re.Pattern[str]
    blocks: re.Pattern[str]


EXCLUSIVE = Rule(_ANY_LOCK, _ANY_LOCK)
"""A lock: everybody waits for everybody before."""
READER = Rule(_ANY_NAME, _ANY_LOCK)
"""A read lock: readers wait for the writers before them."""
WRITER = Rule(_ANY_NAME, _ANY_NAME)
"""A write lock: writers wait for everybody before them, readers too."""


def contenders_among(names: Iterable[str], pattern: re.Pattern[str] = _ANY_LOCK) -> list[Contender]:
    """Those of the children that queue, in the order of their numbers; others are ignored."""
    matches = ((pattern.search(name), name) for name in names)
    return sorted(Contender(int(match[1]), name) for match, name in matches if match)


def sequence_of(name: str) -> int:
    """The number a server has put behind a name."""
    match = _ANY_NAME.search(name)
    if match is None:
        raise ValueError(f"{name!r} does not end like a contender's name")
    return int(match[1])
