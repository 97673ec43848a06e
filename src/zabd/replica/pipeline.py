"""The line of each connection: what waits, what the leader is asked, what can be answered now.

Whatever only the leader can decide becomes an intent, and is answered once its txn is in the tree
or the leader has said so; reads behind it are answered in their turn, from the tree as it then
stands. C1 and C2 of `connection` say which order clients may rely on.

Source: CLIENT_PROTOCOL sections 3 and 13.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from zabd.model.errors import (
    AuthFailedError,
    ErrorCode,
    KeeperError,
    MarshallingError,
    RemoteProtocolError,
    ZabdError,
)
from zabd.model.ops import OpCode, Sync
from zabd.model.results import SyncResult
from zabd.replica import messages
from zabd.replica.connection import NO_REQUESTS, Connection, ConnectionState, Pending
from zabd.replica.connections import OUTPUT_BYTES_MAX, Connections
from zabd.replica.messages import Intent
from zabd.replica.reads import READS
from zabd.replica.watch_requests import WATCH_REQUESTS
from zabd.replica.work import SLOW_READS, TurnIsOverError
from zabd.wire import replies
from zabd.wire.replies import NO_ZXID
from zabd.wire.requests import decode_as
from zabd.znode_tree.watches import WatchesFullError

if TYPE_CHECKING:
    import random

    from zabd.model.ids import MemberId
    from zabd.replica.config import ReplicaConfig
    from zabd.replica.reads import Read
    from zabd.znode_tree.tree import ZnodeTree

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

HOLDING_OPCODES = SLOW_READS | {OpCode.SASL}
"""What is answered here, and before a write behind it is handed on: it may have to wait for a turn,
or says whose the write is."""


# A member of an enum is found through its class at each use; these take a tenth of that.
_CLOSE_SESSION, _SYNC = int(OpCode.CLOSE_SESSION), int(OpCode.SYNC)

# A NamedTuple's own constructor is a call in Python; this one takes a third of its time.
_make = tuple.__new__


class Pipeline(Connections):
    """The requests of one member's connections, in their order."""

    def __init__(self, config: ReplicaConfig, tree: ZnodeTree, rng: random.Random) -> None:
        super().__init__(config, rng)
        self._me: MemberId = config.ensemble.me
        self.tree = tree
        self.serving = False
        self.read_only = False
        self.intents: list[Intent] = []
        self._overdue_ms = config.throttled_op_wait_ms
        self._in_flight: dict[messages.RequestId, tuple[Connection, Pending]] = {}
        # A process that starts again must not take answers meant for its previous life.
        self._last_request_id: messages.RequestId = rng.getrandbits(31) << 32
        self._ahead: deque[tuple[int, Connection, Pending]] = deque()  # syncs, see `_synced`
        self.now_ms = 0

    # ---- the line --------------------------------------------------------------------------

    def _enqueue(self, connection: Connection, pending: Pending) -> None:
        queue = connection.queue
        if queue is NO_REQUESTS:
            queue = connection.queue = deque()
        queue.append(pending)
        self._count_in(connection, pending.frame, len(queue))

    def _count_in(self, connection: Connection, frame: bytes, waiting: int) -> None:
        pause = self.throttle.count_in(connection, len(frame), waiting)
        if pause is not None:
            self.effects.append(pause)

    def _answer_in_turn(
        self, connection: Connection, xid: int, opcode: int, code: ErrorCode
    ) -> None:
        pending = Pending(xid, opcode, b"", self.now_ms)
        pending.reply = replies.reply(xid, self.tree.zxid, code)
        self._enqueue(connection, pending)
        self._drain(connection)

    def _drain(self, connection: Connection) -> None:
        """Answer from the head of the queue whatever can be answered (C1, C2)."""
        queue, settle = connection.queue, self.throttle.settle
        while queue and not connection.stuffed:
            pending = queue[0]
            reply = pending.reply
            if reply is None:
                if pending.opcode in FORWARDED_OPCODES:
                    break
                try:
                    reply = self._answer_late(connection, pending)
                except TurnIsOverError:
                    self._postpone(connection)
                    return
            queue.popleft()
            self.output(connection, reply)
            settle(connection, pending, self.now_ms)
            if connection.held and pending.opcode in HOLDING_OPCODES:
                connection.held -= 1
                self._ask_held(connection)
            if pending.opcode == OpCode.CLOSE_SESSION:
                self._close_own(connection)
                return

    def _line_up(self, connection: Connection, xid: int, opcode: int, frame: bytes) -> None:
        """Put what is no write in line."""
        self._enqueue(connection, Pending(xid, opcode, frame, self.now_ms))
        connection.held += opcode in HOLDING_OPCODES

    def _postpone(self, connection: Connection) -> None:
        """Go on in another turn, once the client has taken what there was for it."""
        connection.stuffed = True
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)

    def _answer_late(self, connection: Connection, pending: Pending) -> bytes:
        """Answer what had to wait, if it still wants an answer."""
        xid, opcode, frame = pending.xid, pending.opcode, pending.frame
        if self._overdue_ms and self.throttle.is_overdue(pending, self.now_ms):
            return replies.reply(xid, self.tree.zxid, ErrorCode.THROTTLED_OP)
        read = READS.get(opcode)
        if read is not None:
            try:
                return read(self.tree, self.watches, connection, xid, frame)
            except TurnIsOverError:
                raise
            except ZabdError:
                pass  # `_answer_here` knows what to say
        return self._answer_here(connection, xid, opcode, frame)

    def _answer_here(self, connection: Connection, xid: int, opcode: int, frame: bytes) -> bytes:
        handler = READS.get(opcode) or WATCH_REQUESTS.get(opcode)
        if handler is None:
            # Kept open: probing for a feature should not cost the connection.
            return replies.reply(xid, NO_ZXID, ErrorCode.UNIMPLEMENTED)
        try:
            return self._with_room(handler, connection, xid, frame)
        except AuthFailedError:
            self.stats.auth_failed += 1
            self._overdone.append(connection)
            return replies.reply(xid, 0, ErrorCode.AUTH_FAILED)
        except KeeperError as error:
            return replies.reply(xid, self.tree.zxid, error.code)
        except RemoteProtocolError:
            self._overdone.append(connection)  # cut at the end of the turn, behind this reply
            return replies.reply(xid, self.tree.zxid, ErrorCode.BAD_ARGUMENTS)

    def _with_room(self, handler: Read, connection: Connection, xid: int, frame: bytes) -> bytes:
        """Answer; as long as its watches find no room, cut the connection that has most of them."""
        while True:
            try:
                return handler(self.tree, self.watches, connection, xid, frame)
            except WatchesFullError as error:
                largest = error.largest
                assert isinstance(largest, Connection), "only connections are registered"
                if largest is connection or largest.state is ConnectionState.CLOSED:
                    raise
                self.cut(largest)

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
        connection.output.append(reply)  # `output` in place: a call less of 25 for each write
        connection.output_bytes += len(reply)
        if connection.output_bytes >= OUTPUT_BYTES_MAX:
            connection.stuffed = True
        if not connection.dirty:
            connection.dirty = True
            self._dirty.append(connection)
        self.throttle.settle(connection, pending, self.now_ms)
        if queue and ((head := queue[0]).request_id is None or head.reply):
            self._drain(connection)

    def _close_own(self, connection: Connection) -> None:
        """The close was answered; requests pipelined behind it are told so, then it ends."""
        for pending in connection.queue:
            reply = replies.reply(pending.xid, self.tree.zxid, ErrorCode.SESSION_EXPIRED)
            self.output(connection, reply)
        self.cut(connection)

    # ---- the leader ------------------------------------------------------------------------

    def ask(self, connection: Connection, pending: Pending) -> None:
        """Hand a request on to the leader; the answer comes through the log or as an `Answer`."""
        request_id = pending.request_id = self._last_request_id = self._last_request_id + 1
        self._in_flight[request_id] = (connection, pending)
        session_id, identities = connection.session_id, connection.identities
        if connection.local:
            session_id = messages.NO_SESSION
        fields = (self._me, request_id, session_id, pending.opcode, pending.frame, identities)
        self.intents.append(_make(Intent, fields))

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

    def _ask_held(self, connection: Connection) -> None:
        """Hand on what waited, up to the next sync or what else holds writes."""
        for pending in connection.queue:
            if pending.opcode in HOLDING_OPCODES:
                return
            if (
                pending.opcode not in FORWARDED_OPCODES
                or pending.request_id is not None
                or pending.reply is not None  # it has waited too long; the client takes its time
            ):
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

    def release_syncs(self) -> None:
        """More is applied here: answer the syncs that waited for it."""
        while self._ahead and self._ahead[0][0] <= self.tree.zxid:
            _, connection, pending = self._ahead.popleft()
            if connection.state is not ConnectionState.CLOSED:
                self._synced(connection, pending)

    def take_intents(self) -> list[Intent]:
        """What the leader must decide, in order, since the last call."""
        intents, self.intents = self.intents, []
        return intents
