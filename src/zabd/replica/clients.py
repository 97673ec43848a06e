"""The member's clients: handshakes, request order, watches, replies.

Everything a client can see leaves through one ordered output per connection, so "event before
reply" is a matter of appending in the right order.

Invariants
    K1  At most one open connection of a session on this member; a newer one replaces the older.
    K2  The watch events of a txn are in a connection's output before any reply that could reveal
        that txn.
    K3  A connection is only ever answered while this member serves; when it stops serving, all
        connections are cut, since nobody can say any more what became of their requests.

Source: CLIENT_PROTOCOL sections 2, 3, 13, 15 and 20.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

from zabd.model.acl import Perms
from zabd.model.errors import (
    AuthFailedError,
    ErrorCode,
    KeeperError,
    MarshallingError,
    RemoteProtocolError,
    ZabdError,
)
from zabd.model.ids import format_session
from zabd.model.ops import Create, Create2, CreateMode, Multi, OpCode, Sync
from zabd.model.results import SyncResult
from zabd.model.session import ConnectRequest
from zabd.model.watch_events import KeeperState, WatchEvent
from zabd.replica import messages
from zabd.replica.authentication import may_ask, takes_credentials
from zabd.replica.connection import NO_REQUESTS, Connection, ConnectionState, Pending
from zabd.replica.effects import (
    AnswerWord,
    CloseConnection,
    ReportDrained,
    Write,
)
from zabd.replica.handshake import Handshake
from zabd.replica.messages import Answer, AnswerKind, Intent
from zabd.replica.reads import READS
from zabd.replica.stats import ClientStats
from zabd.replica.throttle import Throttle
from zabd.replica.watch_requests import WATCH_REQUESTS
from zabd.replica.writes import write_reply
from zabd.wire import replies
from zabd.wire.connection import FourLetterWord, ServerConnection
from zabd.wire.digest_md5 import ServerExchange
from zabd.wire.frames import HEADER_SIZE, FrameError
from zabd.wire.replies import NO_ZXID, path_reply, path_stat_reply, stat_reply
from zabd.wire.requests import PING_XID, decode_as, decode_header, decode_op
from zabd.znode_tree.permissions import allowed
from zabd.znode_tree.watches import WatchTable
from zabd.znode_tree.znode import stat_fields

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence

    from zabd.model.ids import ConnectionId, MemberId, SessionId
    from zabd.replica.config import ReplicaConfig
    from zabd.replica.effects import Effect
    from zabd.wire.connection import ServerItem
    from zabd.zab.member import Trace
    from zabd.znode_tree.tree import Applied, Change, ZnodeTree
    from zabd.znode_tree.znode import Znode

OUTPUT_BYTES_MAX = 1 << 20
"""Replies made for one connection before it has taken them; a few large reads, asked for in one
small packet, must not fill the memory. The reply that reaches this is the last one."""

GREETING_TIMEOUT_MS = 10_000
"""A connection without a session is cut after this (CLIENT_PROTOCOL section 15)."""

FORWARDED_OPCODES = frozenset(
    (
        OpCode.CREATE,
        OpCode.CREATE2,
        OpCode.CREATE_CONTAINER,
        OpCode.CREATE_TTL,
        OpCode.DELETE,
        OpCode.SET_DATA,
        OpCode.SET_ACL,
        OpCode.MULTI,
        OpCode.RECONFIG,
        OpCode.SYNC,
        OpCode.CLOSE_SESSION,
    )
)
"""What only the leader can decide; everything else is answered here."""

_WRITE_OPCODES = FORWARDED_OPCODES - {OpCode.SYNC, OpCode.CLOSE_SESSION}
"""Those behind which anything may follow at once."""

_READ = int(Perms.READ)

# A member of an enum is found through its class at each use; these take a tenth of that.
_OPENING, _OPEN = ConnectionState.OPENING, ConnectionState.OPEN
_CLOSED = ConnectionState.CLOSED
_CREATE_SESSION, _CLOSE_SESSION = int(OpCode.CREATE_SESSION), int(OpCode.CLOSE_SESSION)
_CREATE = int(OpCode.CREATE)
_PING, _AUTH, _SYNC = int(OpCode.PING), int(OpCode.AUTH), int(OpCode.SYNC)

# A NamedTuple's own constructor is a call in Python; this one takes a third of its time.
_make = tuple.__new__


class Clients:
    """All client connections of one member."""

    def __init__(
        self, config: ReplicaConfig, tree: ZnodeTree, rng: random.Random, trace: Trace
    ) -> None:
        self._config = config
        self._trace = trace
        self._rng = rng
        self._me: MemberId = config.ensemble.me
        self.tree = tree
        self.watches = WatchTable()
        self.connections: dict[ConnectionId, Connection] = {}
        self.by_session: dict[SessionId, Connection] = {}
        self.serving = False
        self.read_only = False
        self.handshake = Handshake(self, config, rng)
        self.intents: list[Intent] = []
        self.effects: list[Effect] = []
        self.stats = ClientStats(READS.keys() | WATCH_REQUESTS.keys(), config.prefix_components)
        self.throttle = Throttle(config, self.stats)
        self._overdue_ms = config.throttled_op_wait_ms
        self._guarded = bool(config.enforced_auth) or config.large_request_threshold >= 0
        self._dirty: list[Connection] = []
        self._overdone: list[Connection] = []
        self._in_flight: dict[messages.RequestId, tuple[Connection, Pending]] = {}
        # A process that starts again must not take answers meant for its previous life.
        self._last_request_id: messages.RequestId = rng.getrandbits(31) << 32
        self._touched: dict[SessionId, int] = {}
        self._ahead: deque[tuple[int, Connection, Pending]] = deque()  # syncs, see `_synced`
        self.now_ms = 0

    # ---- what the host reports -------------------------------------------------------------

    def accept(self, connection_id: ConnectionId, address: str, now_ms: int) -> None:
        """A client has connected; nothing was read from it yet."""
        wire = ServerConnection(self._config.request_bytes_max)
        connection = Connection(connection_id, address, wire, now_ms)
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
            connection.stuffed = False
            self._drain(connection)

    def close_idle(self, now_ms: int) -> None:
        """Cut connections that never asked for a session."""
        for connection in list(self.connections.values()):
            if (
                connection.state is ConnectionState.GREETING
                and now_ms - connection.accepted_ms >= GREETING_TIMEOUT_MS
            ):
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

    def _answer(self, connection: Connection, pending: Pending, reply: bytes) -> None:
        """Answer a write in its place.

        Nearly always it is the first in line, and what is behind it waits for the log as well: this
        way takes 1.1 us less than `_drain`.
        """
        queue = connection.queue
        if queue[0] is not pending or connection.stuffed or pending.opcode == _CLOSE_SESSION:
            pending.reply = reply
            self._drain(connection)
            return
        queue.popleft()
        connection.output.append(reply)  # `output` in place
        connection.output_bytes += len(reply)
        if connection.output_bytes >= OUTPUT_BYTES_MAX:
            connection.stuffed = True
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)
        self.throttle.settle(connection, pending, self.now_ms)
        if queue and ((head := queue[0]).request_id is None or head.reply):
            self._drain(connection)

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
                if allowed(change.acl, _READ, watcher.identities):
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

    # ---- what goes out ---------------------------------------------------------------------

    def release_syncs(self) -> None:
        """More is applied here: answer the syncs that waited for it."""
        while self._ahead and self._ahead[0][0] <= self.tree.zxid:
            _, connection, pending = self._ahead.popleft()
            if connection.state is not ConnectionState.CLOSED:
                self._synced(connection, pending)

    def take_touches(self, now_ms: int) -> tuple[tuple[SessionId, int], ...]:
        """Sessions heard of since the last call, and how many ms ago."""
        touched, self._touched = self._touched, {}
        local = self.handshake.local
        ages_ms = []
        for session_id, heard_ms in touched.items():
            if session_id in local:
                local.touch(session_id, heard_ms)
            else:
                ages_ms.append((session_id, now_ms - heard_ms))
        return tuple(ages_ms)

    def expire_local(self, now_ms: int) -> None:
        """End the local sessions whose time is over."""
        for session_id in self.handshake.local.expire(now_ms):
            self.stats.sessions_expired += 1
            self.session_closed(session_id)

    def take_intents(self) -> list[Intent]:
        """What the leader must decide, in order, since the last call."""
        intents, self.intents = self.intents, []
        return intents

    def take_effects(self) -> list[Effect]:
        """One write per connection with output, and what else the host must do."""
        while self._overdone:
            self.cut(self._overdone.pop())
        self.watches.sweep()
        effects: list[Effect] = []
        if self.effects:
            effects, self.effects = self.effects, effects
        if self.throttle.paused:
            effects += self.throttle.resume()
        if not self._dirty:
            return effects
        writes: list[Effect] = []
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
            connection.dirty = False
        self._dirty = []
        # A close takes effect after what was written before it.
        return writes + effects

    # ---- requests --------------------------------------------------------------------------

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

    def request(self, connection: Connection, frame: bytes) -> None:
        """Take one request, in its order."""
        if connection.state is _OPENING:
            connection.early.append(frame)
            self._count_in(connection, frame, len(connection.early))
            return
        try:
            xid, opcode = decode_header(frame)
        except RemoteProtocolError:
            self.cut(connection)
            return
        connection.last_opcode, connection.last_xid = opcode, xid
        if self._guarded and self._is_refused(connection, xid, opcode, frame):
            return
        read = READS.get(opcode)
        if read is not None and not connection.queue and not connection.stuffed:
            # What most requests come to: `_answer_here` without its call and second look-up.
            try:
                reply = read(self.tree, self.watches, connection, xid, frame)
                self.stats.answered_at_once += 1
            except ZabdError:
                reply = self._answer_here(connection, xid, opcode, frame)  # knows what to say
            connection.output.append(reply)  # `output` in place
            connection.output_bytes += len(reply)
            if connection.output_bytes >= OUTPUT_BYTES_MAX:
                connection.stuffed = True
            if not connection.dirty:
                connection.dirty = True
                self._dirty.append(connection)
        elif opcode in FORWARDED_OPCODES:
            # Both are rare, and asking costs less than a call.
            if (self.read_only or connection.local) and self._settled_here(
                connection, xid, opcode, frame
            ):
                return
            pending = Pending(xid, opcode, frame, self.now_ms)
            self._enqueue(connection, pending)
            if opcode == _SYNC or connection.syncs_pending or connection.held:
                self._ask_in_turn(connection, pending)
            else:
                self.ask(connection, pending)
        elif opcode == _PING:
            self.output(connection, replies.reply(PING_XID, self.tree.zxid))
        elif opcode == _AUTH:
            self._authenticate(connection, xid, frame)
        elif connection.queue or connection.stuffed:
            self._enqueue(connection, Pending(xid, opcode, frame, self.now_ms))
        else:
            self.output(connection, self._answer_here(connection, xid, opcode, frame))

    def _queue_run(
        self, connection: Connection, item: ServerItem, left: Iterator[ServerItem]
    ) -> ServerItem | None:
        """Put this and the requests behind it in line, as long as they are reads and writes.

        Gives the first that is something else. `request` for what a pipelining client sends most,
        without a call for each.
        """
        if connection.state is not _OPEN or self._has_rules(connection):
            return item
        queue, in_flight, intents = connection.queue, self._in_flight, self.intents
        me, session_id, identities = self._me, connection.session_id, connection.identities
        request_id, now_ms = self._last_request_id, self.now_ms
        size_bytes, waited = 0, len(queue)
        behind: ServerItem | None = None
        for frame in chain((item,), left):
            if type(frame) is not bytes or len(frame) < HEADER_SIZE:
                behind = frame
                break
            xid, opcode = decode_header(frame)
            pending = Pending(xid, opcode, frame, now_ms)
            if opcode in _WRITE_OPCODES:
                request_id += 1
                pending.request_id = request_id
                in_flight[request_id] = (connection, pending)
                fields = (me, request_id, session_id, opcode, frame, identities)
                intents.append(_make(Intent, fields))
            elif opcode not in READS:
                behind = frame
                break
            queue.append(pending)
            size_bytes += len(frame)
        if count := len(queue) - waited:
            self._last_request_id = request_id
            connection.last_opcode, connection.last_xid = queue[-1].opcode, queue[-1].xid
            pause = self.throttle.count_in(connection, size_bytes, len(queue), count)
            if pause is not None:
                self.effects.append(pause)
        return behind

    def _has_rules(self, connection: Connection) -> bool:
        """Whether each of its requests is looked at: by an operator's wish, or behind a sync."""
        return (
            self._guarded
            or self.read_only
            or connection.local
            or connection.syncs_pending > 0
            or connection.held > 0
        )

    def _is_refused(self, connection: Connection, xid: int, opcode: int, frame: bytes) -> bool:
        """Whether this ends the connection, by what an operator has switched on."""
        schemes = self._config.enforced_auth
        if schemes and not may_ask(connection, opcode, schemes):
            refusal = ErrorCode.SESSION_CLOSED_REQUIRE_SASL_AUTH
            self.output(connection, replies.reply(xid, 0, refusal))
        elif self.throttle.admits(len(frame)):
            return False
        self.cut(connection)
        return True

    def _settled_here(self, connection: Connection, xid: int, opcode: int, frame: bytes) -> bool:
        """Whether the request of a local session, or of any without a quorum, is answered here."""
        if opcode == OpCode.CLOSE_SESSION and connection.local:
            self.handshake.local.close(connection.session_id)
            self._answer_in_turn(connection, xid, opcode, ErrorCode.OK)
            return True
        if self.read_only:
            self._answer_in_turn(connection, xid, opcode, ErrorCode.NOT_READ_ONLY)
            return True
        if self._config.local_sessions_upgrade and _is_ephemeral(frame):
            self._upgrade(connection)
        return False

    def _upgrade(self, connection: Connection) -> None:
        """Make the session global, under its id, ahead of the create that needs it to be."""
        self.handshake.local.close(connection.session_id)
        connection.local = False
        pending = Pending(
            0, OpCode.CREATE_SESSION, connection.timeout_ms.to_bytes(4, "big"), self.now_ms
        )
        self.ask(connection, pending)

    def _answer_in_turn(
        self, connection: Connection, xid: int, opcode: int, code: ErrorCode
    ) -> None:
        pending = Pending(xid, opcode, b"", self.now_ms)
        pending.reply = replies.reply(xid, self.tree.zxid, code)
        self._enqueue(connection, pending)
        self._drain(connection)

    def _answer_here(self, connection: Connection, xid: int, opcode: int, frame: bytes) -> bytes:
        self.stats.answered_at_once += 1
        handler = READS.get(opcode) or WATCH_REQUESTS.get(opcode)
        if handler is None:
            # Kept open: probing for a feature should not cost the connection.
            return replies.reply(xid, NO_ZXID, ErrorCode.UNIMPLEMENTED)
        try:
            return handler(self.tree, self.watches, connection, xid, frame)
        except AuthFailedError:
            self.stats.auth_failed += 1
            self._overdone.append(connection)
            return replies.reply(xid, 0, ErrorCode.AUTH_FAILED)
        except KeeperError as error:
            return replies.reply(xid, self.tree.zxid, error.code)
        except RemoteProtocolError:
            self._overdone.append(connection)  # cut at the end of the turn, behind this reply
            return replies.reply(xid, self.tree.zxid, ErrorCode.BAD_ARGUMENTS)

    def _ask_in_turn(self, connection: Connection, pending: Pending) -> None:
        is_sync = pending.opcode == _SYNC
        # A write asked for now could commit before an earlier sync is answered, and be seen by
        # reads that stand between the two (C2).
        if connection.held or (connection.syncs_pending and not is_sync):
            connection.held += 1
            return
        if is_sync:
            connection.syncs_pending += 1
        self.ask(connection, pending)

    def ask(self, connection: Connection, pending: Pending) -> None:
        """Hand a request on to the leader; the answer comes through the log or as an `Answer`."""
        request_id = pending.request_id = self._last_request_id = self._last_request_id + 1
        self._in_flight[request_id] = (connection, pending)
        session_id, identities = connection.session_id, connection.identities
        fields = (self._me, request_id, session_id, pending.opcode, pending.frame, identities)
        self.intents.append(_make(Intent, fields))

    def _enqueue(self, connection: Connection, pending: Pending) -> None:
        queue = connection.queue
        if queue is NO_REQUESTS:
            queue = connection.queue = deque()
        queue.append(pending)
        pause = self.throttle.count_in(connection, len(pending.frame), len(queue))
        if pause is not None:
            self.effects.append(pause)

    def _count_in(self, connection: Connection, frame: bytes, waiting: int) -> None:
        pause = self.throttle.count_in(connection, len(frame), waiting)
        if pause is not None:
            self.effects.append(pause)

    def _confirmed(self, connection: Connection, pending: Pending, zxid: int) -> None:
        """The leader answered a sync; but with a slow disk its word may be ahead of our tree."""
        if zxid > self.tree.zxid:
            self._ahead.append((zxid, connection, pending))
        else:
            self._synced(connection, pending)

    def _synced(self, connection: Connection, pending: Pending) -> None:
        try:
            path = decode_as(Sync, pending.frame).path
            body = replies.encode_result(OpCode.SYNC, SyncResult(path))
            pending.reply = replies.reply(pending.xid, self.tree.zxid, 0, body)
        except MarshallingError as error:
            pending.reply = replies.reply(pending.xid, self.tree.zxid, error.code)
        connection.syncs_pending -= 1
        self._drain(connection)
        if connection.held:
            self._ask_held(connection)
            self._drain(connection)  # what has waited too long has its answer now

    def _drain(self, connection: Connection) -> None:
        """Answer from the head of the queue whatever can be answered (C1, C2)."""
        queue, settle = connection.queue, self.throttle.settle
        while queue and not connection.stuffed:
            pending = queue[0]
            reply = pending.reply
            if reply is None:
                if pending.opcode in FORWARDED_OPCODES:
                    break
                reply = self._answer_late(connection, pending)
            queue.popleft()
            self.output(connection, reply)
            settle(connection, pending, self.now_ms)
            if pending.opcode == OpCode.CLOSE_SESSION:
                self._close_own(connection)
                return

    def _answer_late(self, connection: Connection, pending: Pending) -> bytes:
        """Answer what had to wait, if it still wants an answer."""
        xid, opcode, frame = pending.xid, pending.opcode, pending.frame
        if self._overdue_ms and self.throttle.is_overdue(pending, self.now_ms):
            return replies.reply(xid, self.tree.zxid, ErrorCode.THROTTLED_OP)
        read = READS.get(opcode)
        if read is not None:
            try:
                reply = read(self.tree, self.watches, connection, xid, frame)
            except ZabdError:
                pass  # `_answer_here` knows what to say
            else:
                self.stats.answered_at_once += 1
                return reply
        return self._answer_here(connection, xid, opcode, frame)

    def _ask_held(self, connection: Connection) -> None:
        """Hand on what waited for a sync, up to the first write behind the next sync."""
        for pending in connection.queue:
            if pending.opcode not in FORWARDED_OPCODES or pending.request_id is not None:
                continue
            if self.throttle.is_overdue(pending, self.now_ms):
                pending.reply = replies.reply(pending.xid, self.tree.zxid, ErrorCode.THROTTLED_OP)
                connection.held -= 1
                continue
            is_sync = pending.opcode == OpCode.SYNC
            if connection.syncs_pending and not is_sync:
                return
            connection.held -= 1
            connection.syncs_pending += is_sync
            self.ask(connection, pending)

    def _authenticate(self, connection: Connection, xid: int, frame: bytes) -> None:
        if not takes_credentials(connection, frame, self._config):
            self.stats.auth_failed += 1
            self.output(connection, replies.reply(xid, 0, ErrorCode.AUTH_FAILED))
            self.cut(connection)
            return
        reply = replies.reply(xid, 0)
        if connection.queue:
            pending = Pending(xid, OpCode.AUTH, frame, self.now_ms)
            pending.reply = reply
            self._enqueue(connection, pending)
        else:
            self.output(connection, reply)

    # ---- endings ---------------------------------------------------------------------------

    def _close_own(self, connection: Connection) -> None:
        """The close was answered; requests pipelined behind it are told so, then it ends."""
        for pending in connection.queue:
            reply = replies.reply(pending.xid, self.tree.zxid, ErrorCode.SESSION_EXPIRED)
            self.output(connection, reply)
        self.cut(connection)

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

    def output(self, connection: Connection, data: bytes) -> None:
        """Put bytes behind everything that the connection was sent so far."""
        connection.output.append(data)
        connection.output_bytes += len(data)
        if connection.output_bytes >= OUTPUT_BYTES_MAX:
            connection.stuffed = True
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)


def _is_ephemeral(frame: bytes) -> bool:
    """Whether a write creates an ephemeral, so that its session has to be global."""
    opcode = decode_header(frame)[1]
    if opcode not in _CREATING_OPCODES:
        return False
    try:
        op = decode_op(opcode, frame)
    except KeeperError:
        return False  # the leader will say so
    parts = op.ops if isinstance(op, Multi) else (op,)
    return any(
        isinstance(part, Create | Create2) and part.flags in _EPHEMERAL_FLAGS for part in parts
    )


_CREATING_OPCODES = frozenset((OpCode.CREATE, OpCode.CREATE2, OpCode.MULTI))
_EPHEMERAL_FLAGS = frozenset((CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL))
