"""Session deadlines, kept by the leader alone.

Invariants
    T1  A session is due no earlier than its timeout after it was last heard of, and no later than
        one tick after that.
    T2  A tracker that was not asked for more than a pause's worth of time (its process stood
        still) first gives every session that pause back: silence nobody could hear does not count.

Deadlines are rounded up to whole ticks, so that sessions fall due in buckets and a touch that
stays within its bucket moves nothing (client protocol, section 15).
"""

from __future__ import annotations

from sortedcontainers import SortedDict

from zabd.model.ids import MemberId, SessionId

PAUSE_TICKS = 2
"""Ticks without a look at the clock that count as a pause of the whole process."""


class _Tracked:
    __slots__ = ("deadline_ms", "timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self.deadline_ms = 0


class SessionTracker:
    """Who is alive, until when, and through which member each session speaks."""

    def __init__(self, tick_ms: int, now_ms: int) -> None:
        self._tick_ms = tick_ms
        self._sessions: dict[SessionId, _Tracked] = {}
        self.owners: dict[SessionId, MemberId | None] = {}
        """Of every tracked session what `find` says, for who asks with every write."""
        self._buckets: SortedDict[int, dict[SessionId, None]] = SortedDict()
        self._looked_ms = now_ms

    def __contains__(self, session_id: SessionId) -> bool:
        return session_id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def track(
        self, session_id: SessionId, timeout_ms: int, owner: MemberId | None, now_ms: int
    ) -> None:
        """Start the timer of a session, or start it anew with another timeout and owner."""
        self.forget(session_id)
        tracked = self._sessions[session_id] = _Tracked(timeout_ms)
        self.owners[session_id] = owner
        self._schedule(session_id, tracked, now_ms)

    def touch(self, session_id: SessionId, heard_ms: int) -> None:
        """The session was heard of at `heard_ms`; an unknown one is past saving and ignored."""
        tracked = self._sessions.get(session_id)
        if tracked is not None and self._deadline(tracked, heard_ms) > tracked.deadline_ms:
            self._unschedule(session_id, tracked)
            self._schedule(session_id, tracked, heard_ms)

    def find(self, session_id: SessionId) -> tuple[bool, MemberId | None]:
        """Whether the session is tracked, and the member through which it was last opened.

        The member is None if it was not opened since this leader took over.
        """
        return session_id in self._sessions, self.owners.get(session_id)

    def forget(self, session_id: SessionId) -> None:
        """The session is closed or closing: it can neither expire nor be touched any more."""
        tracked = self._sessions.pop(session_id, None)
        if tracked is not None:
            del self.owners[session_id]
            self._unschedule(session_id, tracked)

    def due(self, now_ms: int, limit: int) -> list[SessionId]:
        """Take out at most `limit` sessions whose deadline has passed (T1, T2)."""
        pause_ms = now_ms - self._looked_ms
        self._looked_ms = now_ms
        if pause_ms > PAUSE_TICKS * self._tick_ms:
            self._postpone(pause_ms)
        expired: list[SessionId] = []
        while self._buckets and self._buckets.peekitem(0)[0] <= now_ms and len(expired) < limit:
            bucket = self._buckets.peekitem(0)[1]
            for session_id in list(bucket)[: limit - len(expired)]:
                self.forget(session_id)
                expired.append(session_id)
        return expired

    def buckets(self) -> list[tuple[int, list[SessionId]]]:
        """Deadline (ms) and sessions of every bucket in order, for the `dump` word."""
        return [(deadline_ms, list(bucket)) for deadline_ms, bucket in self._buckets.items()]

    def _postpone(self, pause_ms: int) -> None:
        later = [(deadline_ms + pause_ms, bucket) for deadline_ms, bucket in self._buckets.items()]
        self._buckets.clear()
        for deadline_ms, bucket in later:
            self._buckets[deadline_ms] = bucket
            for session_id in bucket:
                self._sessions[session_id].deadline_ms = deadline_ms

    def _deadline(self, tracked: _Tracked, heard_ms: int) -> int:
        tick_ms = self._tick_ms
        return ((heard_ms + tracked.timeout_ms) // tick_ms + 1) * tick_ms

    def _schedule(self, session_id: SessionId, tracked: _Tracked, heard_ms: int) -> None:
        tracked.deadline_ms = self._deadline(tracked, heard_ms)
        self._buckets.setdefault(tracked.deadline_ms, {})[session_id] = None

    def _unschedule(self, session_id: SessionId, tracked: _Tracked) -> None:
        bucket = self._buckets[tracked.deadline_ms]
        del bucket[session_id]
        if not bucket:
            del self._buckets[tracked.deadline_ms]
