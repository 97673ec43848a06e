"""The member's connections: who speaks for which session, and the output of each.

Everything a client can see leaves through one ordered output per connection, so "event before
reply" is a matter of appending in the right order.

Invariants
    K1  At most one open connection of a session on this member; a newer one replaces the older.

Source: CLIENT_PROTOCOL section 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zabd.replica.connection import Connection, ConnectionState
from zabd.replica.effects import CloseConnection, ReportDrained, Write
from zabd.replica.local_sessions import LocalSessions
from zabd.replica.reads import READS
from zabd.replica.stats import ClientStats
from zabd.replica.throttle import Throttle
from zabd.replica.watch_requests import WATCH_REQUESTS
from zabd.replica.work import Work
from zabd.znode_tree.watches import WatchTable

if TYPE_CHECKING:
    import random

    from zabd.model.ids import ConnectionId, SessionId
    from zabd.replica.config import ReplicaConfig
    from zabd.replica.effects import Effect

OUTPUT_BYTES_MAX = 1 << 20
"""Replies made for one connection before it has taken them; a few large reads, asked for in one
small packet, must not fill the memory. The reply that reaches this is the last one."""


# A NamedTuple's own constructor is a call in Python; this one takes a third of its time.
_make = tuple.__new__


class Connections:
    """The connections of one member, from the handshake to the end of each."""

    def __init__(self, config: ReplicaConfig, rng: random.Random) -> None:
        self._config = config
        self.local = LocalSessions(config.ensemble.me, config.ensemble.tick_ms, rng)
        self.connections: dict[ConnectionId, Connection] = {}
        self.by_session: dict[SessionId, Connection] = {}
        self.watches = WatchTable()
        self.stats = ClientStats(READS.keys() | WATCH_REQUESTS.keys(), config.prefix_components)
        self.throttle = Throttle(config, self.stats)
        self.work = Work()
        self.effects: list[Effect] = []
        self._dirty: list[Connection] = []
        self._overdone: list[Connection] = []
        self._touched: dict[SessionId, int] = {}

    # ---- sessions --------------------------------------------------------------------------

    def attach(self, connection: Connection, session_id: SessionId, now_ms: int) -> None:
        """The connection speaks for the session from now on, and no other does (K1)."""
        self.leave(session_id)
        self.by_session[session_id] = connection
        connection.session_id = session_id
        self.heard(session_id, now_ms)

    def heard(self, session_id: SessionId, now_ms: int) -> None:
        """The session's client has said something: the leader will be told."""
        self._touched[session_id] = now_ms

    def leave(self, session_id: SessionId) -> None:
        """Cut the connection that has spoken for the session here, if there is one."""
        older = self.by_session.get(session_id)
        if older is not None:
            self.cut(older)

    def take_early(self, connection: Connection) -> list[bytes]:
        """The requests that came before the connection had its session."""
        early, connection.early = connection.early, []
        for frame in early:
            self.throttle.count_out(connection, len(frame))
        return early

    # ---- what goes out ---------------------------------------------------------------------

    def output(self, connection: Connection, data: bytes) -> None:
        """Put bytes behind everything that the connection was sent so far."""
        connection.output.append(data)
        connection.output_bytes += len(data)
        if connection.output_bytes >= OUTPUT_BYTES_MAX:
            connection.stuffed = True
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)

    def take_effects(self) -> list[Effect]:
        """One write per connection with output, and what else the host must do."""
        while self._overdone:
            self.cut(self._overdone.pop())
        self.watches.sweep()
        self.work.end_turn()
        effects: list[Effect] = []
        if self.effects:
            effects, self.effects = self.effects, effects
        if self.throttle.paused:
            effects += self.throttle.resume()
        if not self._dirty:
            return effects
        writes: list[Effect] = []
        unanswered: list[Effect] = []
        for connection in self._dirty:
            output = connection.output
            if output:
                connection.sent += len(output)
                self.stats.note_responses(output)
                data = output[0] if len(output) == 1 else b"".join(output)
                writes.append(_make(Write, (connection.connection_id, data)))
                connection.output = []
                connection.output_bytes = 0
                if connection.stuffed:
                    effects.append(ReportDrained(connection.connection_id))
            elif connection.stuffed:
                unanswered.append(ReportDrained(connection.connection_id))
            connection.dirty = False
        self._dirty = []
        # A close takes effect after what was written before it.
        effects = writes + effects
        # Who had to wait and got nothing in this turn comes first in the next one.
        return unanswered + effects if unanswered else effects

    # ---- endings ---------------------------------------------------------------------------

    def cut(self, connection: Connection) -> None:
        """Close the connection after what is in its output; the session is not touched."""
        if connection.state is not ConnectionState.CLOSED:
            self.effects.append(CloseConnection(connection.connection_id))
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        connection.state = ConnectionState.CLOSED
        for pending in connection.queue:
            self.throttle.count_out(connection, len(pending.frame))
        connection.queue.clear()
        self.take_early(connection)
        self.throttle.forget(connection)
        self.watches.remove_watcher(connection)
        self.connections.pop(connection.connection_id, None)
        if self.by_session.get(connection.session_id) is connection:
            del self.by_session[connection.session_id]
