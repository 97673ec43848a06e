"""Sessions that one member alone knows: they cost no transaction and own no ephemerals.

They serve clients of a member without a quorum (read-only mode), and everybody where local sessions
are switched on. Such a session ends with the process that knows it; another member, asked to resume
it, knows nothing of it and says that it is over.

Invariants
    L1  An id is never that of a global session, whose ids are zxids (no epoch reaches bit 62), nor
        of a local one of another member or of an earlier process of this one.

Source: client protocol, sections 15 and 16.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from zabd.model.session import PASSWORD_SIZE
from zabd.replica.session_tracker import SessionTracker

if TYPE_CHECKING:
    import random

    from zabd.model.ids import MemberId, SessionId

LOCAL_BIT = 1 << 62
_MEMBER_SHIFT = 53
_START_BITS = 40
_SECRET_BITS = 256

EXPIRED_PER_TURN_MAX = 1000


def is_local(session_id: SessionId) -> bool:
    """Whether this is the id of a local session."""
    return bool(session_id & LOCAL_BIT)


def session_password(secret: bytes, session_id: SessionId) -> bytes:
    """The password of a session: whoever has the secret can verify it, nobody else can make it."""
    digest = hmac.digest(secret, session_id.to_bytes(8, "big", signed=True), hashlib.sha256)
    return digest[:PASSWORD_SIZE]


class LocalSessions:
    """The local sessions of this member and their deadlines."""

    def __init__(self, me: MemberId, tick_ms: int, rng: random.Random) -> None:
        self._tracker = SessionTracker(tick_ms, now_ms=0)
        self._me = me
        self.secret = rng.getrandbits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "big")
        # A process that starts again does not give out the ids of the one before.
        self._next = rng.getrandbits(_START_BITS)

    def __contains__(self, session_id: SessionId) -> bool:
        return session_id in self._tracker

    def __len__(self) -> int:
        return len(self._tracker)

    def open(self, timeout_ms: int, now_ms: int) -> SessionId:
        """A new session; its id."""
        self._next += 1
        session_id = LOCAL_BIT | self._me << _MEMBER_SHIFT | self._next
        self._tracker.track(session_id, timeout_ms, self._me, now_ms)
        return session_id

    def renew(self, session_id: SessionId, timeout_ms: int, now_ms: int) -> None:
        """The session was resumed, perhaps with another timeout."""
        self._tracker.track(session_id, timeout_ms, self._me, now_ms)

    def touch(self, session_id: SessionId, now_ms: int) -> None:
        """The session's client was heard of."""
        self._tracker.touch(session_id, now_ms)

    def close(self, session_id: SessionId) -> None:
        """The session is over, or has become global."""
        self._tracker.forget(session_id)

    def expire(self, now_ms: int) -> list[SessionId]:
        """The sessions whose time is over; they are known no more."""
        return self._tracker.due(now_ms, EXPIRED_PER_TURN_MAX)
