"""What a leader sends faster than this member's disk writes it waits at the leader, not here.

A leader has a bounded amount outstanding. Two things are beyond that: records that it streams to a
learner which has missed many, and batches that it commits with others while this disk is slow.
"""

from typing import Final, Protocol

BACKLOG_BYTES_MAX: Final = 32 * 2**20
"""Records that came and are not written; above this the leader is not read, and from half of it on
it is again. Twice what a leader has outstanding, so a follower that keeps up never gets here."""


class _Log(Protocol):
    @property
    def unwritten_bytes(self) -> int: ...


class _Link(Protocol):
    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Backlog:
    """Stops reading the leader while too much of what it sent is not on the disk yet."""

    __slots__ = ("_held", "_log")

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._held: _Link | None = None

    def is_full(self) -> bool:
        """Whether the leader is not to be read now."""
        return self._log.unwritten_bytes > BACKLOG_BYTES_MAX

    def hold(self, leader: _Link | None) -> None:
        """Read no more from this link; harmless when repeated."""
        if leader is not None and leader is not self._held:
            leader.pause_reading()
            self._held = leader

    def written(self) -> None:
        """The disk has written something."""
        if self._held is not None and self._log.unwritten_bytes <= BACKLOG_BYTES_MAX // 2:
            held, self._held = self._held, None
            held.resume_reading()
