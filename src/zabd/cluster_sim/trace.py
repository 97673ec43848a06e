"""The trace: what happened at the seams, as lines, and one digest that stands for all of them.

Two runs are the same run when their digests are equal. Lines hold integers, names and checksums
only, never anything that depends on addresses, hashes or the machine, so the digest is the same
under any hash seed (at the core level also under any Python).
"""

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final
from zlib import crc32

# A failure is explained by its last steps. 20,000 lines of about 60 bytes are 1.2 MB a run.
LINES_MAX: Final = 20_000

# Lines are hashed in groups: one call of blake2b per 256 lines costs next to nothing per line.
_GROUP: Final = 256


class Trace:
    """Collects one run's lines: the last `lines_max` of them to read, all of them in the digest."""

    __slots__ = ("_group", "_hash", "_now_us", "lines", "recorded")

    def __init__(self, now_us: Callable[[], int], *, lines_max: int = LINES_MAX) -> None:
        self.lines: deque[str] = deque(maxlen=lines_max)
        self.recorded = 0
        self._now_us = now_us
        self._group: list[str] = []
        self._hash = blake2b(digest_size=16)

    def record(self, who: str, what: str) -> None:
        """Note that `what` happened to `who`, now."""
        line = f"[{self._now_us():>9}] {who} {what}"
        self.recorded += 1
        self.lines.append(line)
        group = self._group
        group.append(line)
        if len(group) >= _GROUP:
            self._fold()

    def digest(self) -> str:
        """The digest of every line so far, as 32 hexadecimal digits."""
        self._fold()
        return self._hash.hexdigest()

    def tail(self, count: int) -> list[str]:
        """The last `count` lines, oldest first."""
        return list(self.lines)[-count:]

    def forget(self) -> None:
        """Let go of the lines; the digest goes on."""
        self._fold()
        self.lines.clear()

    def _fold(self) -> None:
        if self._group:
            self._hash.update("\n".join(self._group).encode())
            self._hash.update(b"\n")
            self._group.clear()


def describe_bytes(data: bytes) -> str:
    """Bytes as a trace names them: how many, and their checksum."""
    return f"{len(data)}B#{crc32(data):08x}"
