"""The member's clients: what the host, the log and the leader say about them.

Below it are the classes that it extends: `connections` with the output of each, `pipeline` with the
line of requests, `intake` with what a request comes to.

Invariants
    K2  The watch events of a txn are in a connection's output before any reply that could reveal
        that txn.
    K3  A connection is only ever answered while this member serves; when it stops serving, all
        connections are cut, since nobody can say any more what became of their requests.

Source: CLIENT_PROTOCOL sections 2, 3, 13, 15 and 20.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zabd.model.acl import Perms
from zabd.model.errors import RemoteProtocolError
from zabd.model.ids import format_session
from zabd.model.ops import OpCode
from zabd.model.session import ConnectRequest
from zabd.model.watch_events import KeeperState, WatchEvent
from zabd.replica import messages
from zabd.replica.authentication import may
from zabd.replica.connection import Connection, ConnectionState
from zabd.replica.effects import AnswerWord
from zabd.replica.intake import Intake
from zabd.replica.messages import Answer, AnswerKind
from zabd.replica.writes import write_reply
from zabd.wire import replies
from zabd.wire.connection import FourLetterWord, ServerConnection
from zabd.wire.digest_md5 import ServerExchange
from zabd.wire.frames import FrameError
from zabd.wire.replies import path_reply, path_stat_reply, stat_reply
from zabd.znode_tree.znode import stat_fields

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from zabd.model.ids import ConnectionId, SessionId
    from zabd.replica.config import ReplicaConfig
    from zabd.wire.connection import ServerItem
    from zabd.zab.member import Trace
    from zabd.znode_tree.tree import Applied, Change, ZnodeTree
    from zabd.znode_tree.znode import Znode

GREETING_TIMEOUT_MS = 10_000
"""A connection without a session is cut after this (CLIENT_PROTOCOL section 15)."""

_READ = int(Perms.READ)

# A member of an enum is found through its class at each use; these take a tenth of that.
_CLOSED = ConnectionState.CLOSED
_CREATE_SESSION, _CREATE = int(OpCode.CREATE_SESSION), int(OpCode.CREATE)


class Clients(Intake):
    """All client connections of one member."""

    def __init__(
        self, config: ReplicaConfig, tree: ZnodeTree, rng: random.Random, trace: Trace
    ) -> None:
        super().__init__(config, tree, rng)
        self._trace = trace
        self._rng = rng
        self._tick_ms = config.ensemble.tick_ms
        self._looked_ms = 0

    # ---- what the host reports -------------------------------------------------------------

    def accept(self, connection_id: ConnectionId, address: str, now_ms: int) -> None:
        """A client has connected; nothing was read from it yet."""
        wire = ServerConnection(self._config.request_bytes_max)
        connection = Connection(connection_id, address, wire, self.work, now_ms)
        connection.skips_acl = self._config.skip_acl
        if self._config.sasl_users is not None:
            connection.sasl = ServerExchange(self._config.sasl_users, self._rng)
        self.connections[connection_id] = connection

    def receive(self, connection_id: ConnectionId, chunk: bytes, now_ms: int) -> None:
        """Bytes came in: answer what can be answered now, queue or hand on the rest."""
        connection = self.connections.get(connection_id)
        if connection is None:
            return
        self.now_ms = connection.heard_ms = now_ms
        try:
            items = connection.wire.receive(chunk)
        except FrameError as error:
            self._take(connection, error.frames)
            self._refuse_frame(connection, str(error))
            return
        except RemoteProtocolError:
            self.cut(connection)
            return
        self._take(connection, items)

    def _take(self, connection: Connection, items: Sequence[ServerItem]) -> None:
        stats = self.stats
        stats.received += len(items)
        connection.received += len(items)
        if connection.session_id:
            self._touched[connection.session_id] = self.now_ms
        request = self.request
        answered = stats.answered_at_once
        left = iter(items)
        for item in left:
            if connection.state is _CLOSED:
                break
            if connection.queue:
                behind = self._queue_run(connection, item, left)
                if behind is None:
                    break
                item = behind  # noqa: PLW2901  (the first that is not for the line)
            if type(item) is bytes:
                request(connection, item)
            elif isinstance(item, ConnectRequest):
                self.handshake.greet(connection, item, self.now_ms)
            elif isinstance(item, FourLetterWord):
                self.effects.append(AnswerWord(connection.connection_id, *item))
        if count := stats.answered_at_once - answered:
            # By the chunk, since by the request it would cost a read one hundredth of its time.
            at_once, opcode = stats.at_once, connection.last_opcode
            at_once[opcode] = at_once.get(opcode, 0) + count

    def closed(self, connection_id: ConnectionId) -> None:
        """The connection is gone; the session lives on until its time is over."""
        connection = self.connections.get(connection_id)
        if connection is not None:
            self._forget(connection)

    def drained(self, connection_id: ConnectionId, now_ms: int) -> None:
        """The client has taken what was written: go on with its replies."""
        connection = self.connections.get(connection_id)
        if connection is not None:
            self.now_ms = now_ms
            self.work.serve_the_waiting()
            connection.stuffed = False
            self._drain(connection)

    def close_idle(self, now_ms: int) -> None:
        """Cut connections that never asked for a session, and those that fell silent.

        Clients ping, so one that said nothing for its session's timeout and a tick is gone, though
        nobody may ever tell us. Its session may live on elsewhere; its watches would stay here.
        """
        stood_still_ms = self._stood_still_ms(now_ms)
        greeting, opened = ConnectionState.GREETING, ConnectionState.OPEN
        for connection in list(self.connections.values()):
            if connection.state is opened:
                if connection.paused or connection.stuffed:
                    connection.heard_ms = now_ms  # it is not read, so it is not silent
                elif stood_still_ms:
                    connection.heard_ms = min(now_ms, connection.heard_ms + stood_still_ms)
                elif now_ms - connection.heard_ms > connection.timeout_ms + self._tick_ms:
                    self.cut(connection)
            elif (
                connection.state is greeting
                and now_ms - connection.accepted_ms >= GREETING_TIMEOUT_MS
            ):
                self.cut(connection)

    def _stood_still_ms(self, now_ms: int) -> int:
        """How long this process was paused: what was said meanwhile is read behind this look."""
        since_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        return since_ms if since_ms > self._tick_ms else 0

    def _refuse_frame(self, connection: Connection, why: str) -> None:
        """An impossible frame came: hang up without an answer, and tell the log.

        An answer would be kinder to people, but clients know this refusal as a lost connection,
        and kazoo's own tests insist on it.
        """
        xid, opcode = connection.wire.header or (None, None)
        self._trace(
            "request_refused",
            {
                "level": "warning",
                "client": connection.address,
                "session": format_session(connection.session_id),
                "xid": xid,
                "opcode": opcode,
                "why": why,
            },
        )
        self.cut(connection)

    # ---- what the log and the leader say ---------------------------------------------------

    def applied(self, request_id: messages.RequestId, zxid: int, applied: Applied) -> None:
        """A txn that this member asked for is in the tree, at `now_ms`: answer it."""
        waiting = self._in_flight.pop(request_id, None)
        if waiting is None:
            return
        connection, pending = waiting
        if connection.state is _CLOSED:
            return
        opcode = pending.opcode
        if opcode == _CREATE_SESSION:
            timeout_ms = int.from_bytes(pending.frame, "big")
            if connection.state is ConnectionState.OPENING:
                self.handshake.open(connection, zxid, timeout_ms, self.now_ms)
            return
        self._answer(
            connection, pending, write_reply(opcode, pending.xid, zxid, applied, self.tree)
        )

    def changed(self, request_id: messages.RequestId, zxid: int, node: Znode, path: str) -> None:
        """A setData or, where there is a path, a create that this member asked for is in the tree.

        What `applied` does for all that has no such simple outcome.
        """
        waiting = self._in_flight.pop(request_id, None)
        if waiting is None:
            return
        connection, pending = waiting
        if connection.state is _CLOSED:
            return
        if not path:
            reply = stat_reply(pending.xid, zxid, stat_fields(node))
        elif pending.opcode == _CREATE:
            reply = path_reply(pending.xid, zxid, path)
        else:
            reply = path_stat_reply(pending.xid, zxid, path, stat_fields(node))
        self._answer(connection, pending, reply)

    def answered(self, answer: Answer, now_ms: int) -> None:
        """The leader decided an intent outside the log."""
        self.now_ms = now_ms
        waiting = self._in_flight.pop(answer.request_id, None)
        if waiting is None:
            return
        connection, pending = waiting
        if connection.state is ConnectionState.CLOSED:
            return
        match answer.kind:
            case AnswerKind.REFUSED:
                self.cut(connection)
            case AnswerKind.GONE:
                self.handshake.refuse(connection)
            case AnswerKind.ALIVE:
                # The leader's word came behind the commit of everything it vouches for.
                self.handshake.open(connection, connection.session_id, answer.value, now_ms)
            case AnswerKind.SYNCED:
                self._confirmed(connection, pending, answer.value)

    def fire(self, changes: Iterable[Change], zxid: int) -> None:
        """Put the events of a txn into the outputs of those who watch (K2)."""
        trigger = self.watches.trigger
        for change in changes:
            told = 0
            event = b""  # the same bytes for all of them
            for watcher, event_type, path in trigger(change):
                assert isinstance(watcher, Connection), "only connections are registered"
                if may(watcher, change.acl, _READ):
                    if not event:
                        said = WatchEvent(event_type, KeeperState.SYNC_CONNECTED, path)
                        event = replies.watch_event(said, zxid)
                    self.output(watcher, event)
                    told += 1
            if told:
                self.stats.note_event(change.path, change.type, told)

    def session_closed(self, session_id: SessionId) -> None:
        """The session's close is in the tree; a connection that still speaks for it is cut.

        A client that closed its own session was answered before and is closed already.
        """
        self._touched.pop(session_id, None)
        connection = self.by_session.get(session_id)
        if connection is not None:
            self.cut(connection)

    def cut_all(self) -> None:
        """This member serves no longer (K3)."""
        for connection in list(self.connections.values()):
            if connection.state is not ConnectionState.GREETING:
                self.cut(connection)
        self._in_flight.clear()
        self._ahead.clear()
        self.intents.clear()
        self._touched.clear()

    # ---- what the leader is told -----------------------------------------------------------

    def take_touches(self, now_ms: int) -> tuple[tuple[SessionId, int], ...]:
        """Sessions heard of since the last call, and how many ms ago."""
        touched, self._touched = self._touched, {}
        local = self.local
        ages_ms = []
        for session_id, heard_ms in touched.items():
            if session_id in local:
                local.touch(session_id, heard_ms)
            else:
                ages_ms.append((session_id, now_ms - heard_ms))
        return tuple(ages_ms)

    def expire_local(self, now_ms: int) -> None:
        """End the local sessions whose time is over."""
        for session_id in self.local.expire(now_ms):
            self.stats.sessions_expired += 1
            self.session_closed(session_id)
