"""Throttle: how much may be in progress, and who has to wait for it.

Nobody is refused for being many: a member stops reading from a connection and goes on later, so
that a client only sees that it takes longer. What an operator may switch on besides, large requests
and requests that have waited too long, is refused (client protocol, section 19).

Invariants
    H1  A connection is read as long as at most one request of it is in progress, and again as soon
        as that is so, however many there are of others: who waits for each answer never waits for
        somebody else's pipeline, and no session ends because nobody reads its pings.
    H2  What is counted in is counted out: an idle member counts nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from zabd.model.ops import OpCode
from zabd.replica.effects import PauseReading, ResumeReading

if TYPE_CHECKING:
    from zabd.replica.config import ReplicaConfig
    from zabd.replica.connection import Connection, Pending
    from zabd.replica.effects import Effect
    from zabd.replica.stats import ClientStats

OUTSTANDING_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of unanswered requests of all connections before pipelines are not read any more: four
connections' worth, and twice what a leader has outstanding. A follower's are on its link to the
leader, all of them while that stands still: the link's limit is far above this one."""

LOOKS_MAX = 100
"""Paused connections looked at in one turn while there is too much of all: some 30 us."""

_NEVER_OVERDUE = frozenset((OpCode.PING, OpCode.CREATE_SESSION, OpCode.CLOSE_SESSION))


class ConnectionTokens:
    """How many connections may ask for a session in a while: a token each, refilled in time."""

    def __init__(self, config: ReplicaConfig) -> None:
        self._max = self._left = config.connection_tokens_max
        self._fill_ms = config.connection_token_fill_ms
        self._fill_count = config.connection_token_fill_count
        self._filled_ms = 0

    def take(self, now_ms: int) -> bool:
        """Whether there is a token for one more; always where none are asked for."""
        if not self._max:
            return True
        fills = (now_ms - self._filled_ms) // self._fill_ms
        self._filled_ms += fills * self._fill_ms
        self._left = min(self._max, self._left + fills * self._fill_count)
        self._left -= 1
        if self._left >= 0:
            return True
        self._left = 0
        return False


class Throttle:
    """The requests in progress of all connections of one member; `stats.outstanding` is ours."""

    def __init__(self, config: ReplicaConfig, stats: ClientStats) -> None:
        self._config = config
        self._stats = stats
        self.paused: dict[Connection, None] = {}
        self._bytes = 0
        self._large_bytes = 0
        # Asked for with each request, and a configuration does not change.
        threshold = config.large_request_threshold
        self._large_from = threshold if threshold >= 0 else sys.maxsize
        self._waiting_max = config.outstanding_max
        self._waiting_bytes_max = config.outstanding_bytes_max
        self._all_max = config.outstanding_global_max

    def admits(self, size_bytes: int) -> bool:
        """Whether a request of this size may come to those in progress."""
        if size_bytes <= self._large_from:
            return True
        return self._large_bytes + size_bytes <= self._config.large_request_bytes_max

    def count_in(
        self, connection: Connection, size_bytes: int, waiting: int, count: int = 1
    ) -> Effect | None:
        """So many requests wait from now on, all of their connection's are `waiting`.

        Several come at once only where none is large. The effect says that no more is to be read
        from the connection for now.
        """
        queued_bytes = connection.queued_bytes = connection.queued_bytes + size_bytes
        all_bytes = self._bytes = self._bytes + size_bytes
        outstanding = self._stats.outstanding = self._stats.outstanding + count
        if size_bytes > self._large_from:
            self._large_bytes += size_bytes
        # `_is_too_much` in one expression, which is what nearly all requests come to.
        if (
            waiting < self._waiting_max
            and queued_bytes < self._waiting_bytes_max
            and outstanding <= self._all_max
            and all_bytes <= OUTSTANDING_BYTES_MAX
        ):
            return None
        if connection.paused or not self._is_too_much(connection, waiting):
            return None
        connection.paused = True
        self.paused[connection] = None
        return PauseReading(connection.connection_id)

    def count_out(self, connection: Connection, size_bytes: int) -> None:
        """A request is answered, or nobody waits for it any more."""
        connection.queued_bytes -= size_bytes
        self._bytes -= size_bytes
        self._stats.outstanding -= 1
        if size_bytes > self._large_from:
            self._large_bytes -= size_bytes

    def settle(self, connection: Connection, pending: Pending, now_ms: int) -> None:
        """A request that waited is answered: count it out, and note how long it took.

        `count_out` without its call, for every write's answer, and in most cases without one to
        count the answer either: 0.3 us less.
        """
        stats, size_bytes = self._stats, len(pending.frame)
        latency_ms = now_ms - pending.since_ms
        connection.queued_bytes -= size_bytes
        connection.latency_total_ms += latency_ms
        if latency_ms > connection.latency_max_ms:  # noqa: PLR1730  (a fifth of what `max` costs)
            connection.latency_max_ms = latency_ms
        self._bytes -= size_bytes
        stats.outstanding -= 1
        if size_bytes > self._large_from:
            self._large_bytes -= size_bytes
        if latency_ms == stats.run_ms and pending.opcode == stats.run_opcode:
            stats.run_count += 1
        else:
            stats.begin_run(pending.opcode, latency_ms)

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        self.paused.pop(connection, None)

    def resume(self) -> list[Effect]:
        """Read on where there is room again; once per turn."""
        paused = self.paused
        if not paused:
            return []
        waiting_max, looked_at = self._waiting_max // 2, [*paused]
        if self._all_are_too_much():  # H1
            waiting_max, looked_at = 1, looked_at[:LOOKS_MAX]
            for connection in looked_at:  # behind those that the next turn looks at
                del paused[connection]
                paused[connection] = None
        resumed = [
            connection
            for connection in looked_at
            if len(connection.queue) + len(connection.early) <= waiting_max
            and connection.queued_bytes * 2 <= self._waiting_bytes_max
        ]
        for connection in resumed:
            connection.paused = False
            del paused[connection]
        return [ResumeReading(connection.connection_id) for connection in resumed]

    def is_overdue(self, pending: Pending, now_ms: int) -> bool:
        """Whether the request has waited so long for earlier ones that it is not done any more."""
        wait_ms_max = self._config.throttled_op_wait_ms
        return (
            wait_ms_max > 0
            and now_ms - pending.since_ms > wait_ms_max
            and pending.opcode not in _NEVER_OVERDUE
        )

    def _is_too_much(self, connection: Connection, waiting: int) -> bool:
        return (
            waiting >= self._waiting_max
            or connection.queued_bytes >= self._waiting_bytes_max
            or (waiting > 1 and self._all_are_too_much())  # H1
        )

    def _all_are_too_much(self) -> bool:
        return self._stats.outstanding > self._all_max or self._bytes > OUTSTANDING_BYTES_MAX
