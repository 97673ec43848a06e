"""What a client's requests come to: each is answered at once, put in line, or refused.

A read of a connection with nothing in line is answered here, from the tree as it stands; it makes
no object and waits for nobody. What an operator has switched on, and what local sessions and
read-only members do differently, is looked at here as well.

Source: CLIENT_PROTOCOL sections 3, 11 and 14.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from zabd.model.errors import ErrorCode, KeeperError, RemoteProtocolError, ZabdError
from zabd.model.ops import Create, Create2, CreateMode, Multi, OpCode
from zabd.replica.authentication import may_ask, takes_credentials
from zabd.replica.connection import Connection, ConnectionState, Pending
from zabd.replica.connections import OUTPUT_BYTES_MAX
from zabd.replica.handshake import Handshake
from zabd.replica.messages import Intent
from zabd.replica.pipeline import FORWARDED_OPCODES, HOLDING_OPCODES, Pipeline
from zabd.replica.reads import READS
from zabd.replica.work import TurnIsOverError
from zabd.wire import replies
from zabd.wire.frames import HEADER_SIZE
from zabd.wire.requests import PING_XID, decode_header, decode_op

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from zabd.replica.config import ReplicaConfig
    from zabd.wire.connection import ServerItem
    from zabd.znode_tree.tree import ZnodeTree

_WRITE_OPCODES = FORWARDED_OPCODES - {OpCode.SYNC, OpCode.CLOSE_SESSION}
"""Those behind which anything may follow at once."""

_QUICK_READS = READS.keys() - HOLDING_OPCODES

# A member of an enum is found through its class at each use; these take a tenth of that.
_OPENING, _OPEN = ConnectionState.OPENING, ConnectionState.OPEN
_PING, _AUTH, _SYNC = int(OpCode.PING), int(OpCode.AUTH), int(OpCode.SYNC)

# A NamedTuple's own constructor is a call in Python; this one takes a third of its time.
_make = tuple.__new__


class Intake(Pipeline):
    """Takes the requests of one member's clients."""

    def __init__(self, config: ReplicaConfig, tree: ZnodeTree, rng: random.Random) -> None:
        super().__init__(config, tree, rng)
        self.handshake = Handshake(self, config)
        self._guarded = bool(config.enforced_auth) or config.large_request_threshold >= 0

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
            except TurnIsOverError:
                self._line_up(connection, xid, opcode, frame)
                self._postpone(connection)
                return
            except ZabdError:
                reply = self._answer_here(connection, xid, opcode, frame)  # knows what to say
            self.stats.answered_at_once += 1
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
            self._line_up(connection, xid, opcode, frame)
        else:
            self.stats.answered_at_once += 1
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
            elif opcode not in _QUICK_READS:
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
            self.local.close(connection.session_id)
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
        self.local.close(connection.session_id)
        connection.local = False
        pending = Pending(
            0, OpCode.CREATE_SESSION, connection.timeout_ms.to_bytes(4, "big"), self.now_ms
        )
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
