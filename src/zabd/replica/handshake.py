"""The handshake: who gets a session, which one, and who is turned away.

Invariants
    H1  A password is checked before anything of the session's rightful connection is touched.
    H2  A client that has seen more than this member is turned away without a word: elsewhere it is
        served, here it would see the past.
    H3  Without a quorum only clients are served that asked for it, in sessions that only this
        member knows, and never one that the ensemble knows.
    H4  Such a session ends with the want of a quorum, unless sessions are local by choice: with a
        quorum it would write without ever being one that the ensemble knows.

Source: client protocol, sections 2, 15 and 16.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from zabd.model.ops import OpCode
from zabd.model.session import ConnectRequest, ConnectResponse, refusal
from zabd.replica import messages
from zabd.replica.connection import Connection, ConnectionState, Pending
from zabd.replica.local_sessions import session_password
from zabd.replica.throttle import ConnectionTokens
from zabd.wire import replies

if TYPE_CHECKING:
    from zabd.model.ids import SessionId
    from zabd.replica.config import ReplicaConfig
    from zabd.replica.intake import Intake


class Handshake:
    """Opens, resumes and refuses sessions for `Clients`."""

    def __init__(self, clients: Intake, config: ReplicaConfig) -> None:
        self._clients = clients
        self._config = config
        self._tokens = ConnectionTokens(config)
        self.local = clients.local

    def greet(self, connection: Connection, request: ConnectRequest, now_ms: int) -> None:
        """A ConnectRequest came."""
        clients = self._clients
        served = clients.serving or (clients.read_only and request.read_only)  # H3
        if not served or not self._tokens.take(now_ms):
            clients.cut(connection)
            return
        if request.last_zxid_seen > clients.tree.zxid:  # H2
            clients.cut(connection)
            return
        connection.state = ConnectionState.OPENING
        connection.answers_with_read_only = request.read_only is not None
        timeout_ms = self._config.clamp_timeout(request.timeout_ms)
        if request.session_id:
            self._resume(connection, request, timeout_ms, now_ms)
        elif self._keeps_local:
            self.open(connection, self.local.open(timeout_ms, now_ms), timeout_ms, now_ms)
        else:
            self._ask(connection, OpCode.CREATE_SESSION, timeout_ms, now_ms)

    def _resume(
        self, connection: Connection, request: ConnectRequest, timeout_ms: int, now_ms: int
    ) -> None:
        session_id = request.session_id
        expected = session_password(self._secret, session_id)
        known_here = session_id in self.local
        if not hmac.compare_digest(expected, request.password or b""):  # H1
            self.refuse(connection)
        elif known_here and not self._keeps_local:  # H4
            self.local.close(session_id)
            self.refuse(connection)
        elif known_here:
            self.local.renew(session_id, timeout_ms, now_ms)
            self.open(connection, session_id, timeout_ms, now_ms)
        elif self._clients.read_only:
            self._clients.cut(connection)  # H3: the ensemble may still know it, we cannot ask
        else:
            # The leader will take this member for the session's again: what an older connection
            # here still had to say, from before the session went elsewhere, must not get through.
            self._clients.leave(session_id)
            # It was heard, and must not expire while the leader is busy with what came before.
            self._clients.heard(session_id, now_ms)
            connection.session_id = session_id
            self._ask(connection, messages.VALIDATE, timeout_ms, now_ms)

    @property
    def _keeps_local(self) -> bool:
        return self._clients.read_only or self._config.local_sessions

    @property
    def _secret(self) -> bytes:
        # Before an ensemble is founded there can only be local sessions, in read-only mode.
        return self._clients.tree.secret or self.local.secret

    def _ask(self, connection: Connection, opcode: int, timeout_ms: int, now_ms: int) -> None:
        pending = Pending(0, opcode, timeout_ms.to_bytes(4, "big"), now_ms)
        self._clients.ask(connection, pending)

    def open(
        self, connection: Connection, session_id: SessionId, timeout_ms: int, now_ms: int
    ) -> None:
        """The session is the connection's: say so, and take the requests that waited for it."""
        clients = self._clients
        clients.attach(connection, session_id, now_ms)
        connection.state = ConnectionState.OPEN
        connection.timeout_ms = timeout_ms
        connection.local = session_id in self.local
        response = ConnectResponse(
            protocol_version=0,
            timeout_ms=timeout_ms,
            session_id=session_id,
            password=session_password(self._secret, session_id),
            read_only=clients.read_only if connection.answers_with_read_only else None,
        )
        clients.output(connection, replies.encode_connect_response(response))
        for frame in clients.take_early(connection):
            if connection.state is ConnectionState.OPEN:
                clients.request(connection, frame)

    def refuse(self, connection: Connection) -> None:
        """Tell the client that its session is over, then close."""
        response = refusal(with_read_only=connection.answers_with_read_only)
        self._clients.output(connection, replies.encode_connect_response(response))
        self._clients.cut(connection)
