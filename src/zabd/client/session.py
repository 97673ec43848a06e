"""A client's session as a state machine without I/O: bytes, time and wishes in, effects out.

One `Session` is one ZooKeeper session. It starts without an id, gets one from the first server that
takes it, moves with it from server to server, and ends LOST or CLOSED; it never becomes another
session. The host gives it connections and the time, and does what the effects say.

Invariants
    I1  Requests are sent in the order of `submit`, each at most once, and answered in that order.
        What was sent when a connection dies has an unknown outcome and is failed, never re-sent.
    I2  A request belongs to the session it was submitted to: what still waits when the session ends
        fails, so nothing crosses from one session to the next.
    I3  SUSPENDED is told before the requests of the dead connection fail, and before any reply of
        the next one.
    I4  On a new connection SASL goes first, to its end, then auth packets, then the watches, then
        what waited.
    I5  The lease ends `margin` before the moment at which the ensemble, counting from the last
        request that it is known to have received, may expire the session. From then on the session
        is LOST, network or not.
    I6  What a server without a quorum says renews no lease: nobody else hears of it.
    I7  A request that cannot be sent, because it has no form on the wire or is larger than a server
        takes, raises in `submit` and disturbs no other.
    I8  A session that does not exist yet is not taken by a server that is behind what its
        predecessor has seen. But when servers do nothing but close its handshakes for as long as a
        session lasts, the ensemble was founded anew or put back to an older state, and what was
        seen of it is over.

Client protocol, sections 2, 3, 13 and 15; the lease is that of the dedup recipe, section 7.2.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from enum import Enum

from zabd.client.chroot import Chroot
from zabd.client.effects import (
    Became,
    Credentials,
    Effect,
    Failed,
    Fired,
    Hangup,
    Replied,
    Send,
    SessionState,
)
from zabd.client.failures import Failures
from zabd.client.lease import Lease
from zabd.client.metrics import Meter
from zabd.client.requests import XID_SET_WATCHES, Request, Requests
from zabd.client.watches import WatchRegistry, table_of
from zabd.model.errors import (
    AuthFailedError,
    ErrorCode,
    KeeperError,
    RemoteProtocolError,
)
from zabd.model.ids import SessionId
from zabd.model.ops import (
    Auth,
    CloseSession,
    Multi,
    Op,
    OpCode,
    Ping,
    RemoveWatches,
    Sasl,
    SetWatches,
    SetWatches2,
)
from zabd.model.results import ErrorResult, MultiResult, SaslResult
from zabd.model.session import ConnectRequest
from zabd.model.watch_events import EventType, KeeperState, WatcherType, WatchEvent
from zabd.wire.digest_md5 import ClientExchange
from zabd.wire.frames import LENGTH_SIZE, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, FrameReader
from zabd.wire.replies import (
    decode_connect_response,
    decode_reply_header,
    decode_result,
    decode_watch_event,
)
from zabd.wire.requests import encode_connect, encode_request

XID_WATCH_EVENT = -1
XID_PING = -2
XID_AUTH = -4

# The least time a server gets to take a connection and answer the handshake.
ATTEMPT_MS_MIN = 500
_NO_PASSWORD = bytes(16)


class _Phase(Enum):
    OFFLINE = "offline"
    GREETING = "greeting"
    AUTHENTICATING = "authenticating"
    ESTABLISHED = "established"
    ENDED = "ended"


class _Identity:
    """Credentials for the connection; `token` waits for the first answer to them."""

    __slots__ = ("auth", "packet", "scheme", "token")

    def __init__(self, scheme: str, auth: bytes, token: object | None) -> None:
        self.scheme = scheme
        self.auth = auth
        self.packet = encode_request(XID_AUTH, Auth(0, scheme, auth))
        self.token = token


class Session:
    """One session; every method returns the effects to perform, in order.

    `now_ms` is boot time (`client.clock`). `deadline_ms` is when `elapsed` wants to be called.
    With `credentials` an existing session is resumed. `refused` says that the ensemble itself has
    called the session over, `auth_error` that SASL has failed, which ends it too. `sasl` makes an
    exchange for each connection; nothing else is sent before its end. With `read_only` a server
    without a quorum will do for the time being; a session that began there is not known to the
    ensemble, and has another id behind it (I6).
    """

    def __init__(
        self,
        timeout_ms: int,
        *,
        last_zxid: int = 0,
        identities: Sequence[tuple[str, bytes]] = (),
        credentials: Credentials | None = None,
        chroot: Chroot | None = None,
        lease_margin_ms: int | None = None,
        read_only: bool = False,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        meter: Meter | None = None,
        sasl: Callable[[], ClientExchange] | None = None,
    ) -> None:
        self.session_id: SessionId = credentials.session_id if credentials else 0
        self.timeout_ms = credentials.timeout_ms if credentials else timeout_ms
        self.last_zxid = last_zxid
        self.state = SessionState.SUSPENDED
        self.refused = False
        self.auth_error: AuthFailedError | None = None
        self.watches = WatchRegistry()
        self._chroot = chroot or Chroot()
        self._meter = meter
        self.failures = Failures(self._chroot)
        self.failures.session_id = self.session_id
        self._asked_ms = timeout_ms
        self._password = credentials.password if credentials else _NO_PASSWORD
        self._identities = [_Identity(scheme, auth, None) for scheme, auth in identities]
        self._sasl = sasl
        self._exchange: ClientExchange | None = None  # of this connection, while it goes on
        self._lease = Lease(lease_margin_ms)
        self._request_bytes_max = request_bytes_max
        self._read_only_will_do = read_only
        self._read_only = False
        self._known = credentials is not None
        self._phase = _Phase.OFFLINE
        self._closing = False
        self._frames = FrameReader(RESPONSE_BYTES_MAX)
        self._requests = Requests()
        self._auths_outstanding: deque[tuple[_Identity, int]] = deque()
        self._pings_outstanding: deque[int] = deque()
        self._greeting_deadline_ms = 0
        self._greeted_ms = 0
        self._turned_away_ms: int | None = None  # since when servers close our handshakes
        self._spoke_ms = 0
        self._heard_ms = 0

    # What the host asks about.

    @property
    def ended(self) -> bool:
        """Whether the session is over, LOST or CLOSED."""
        return self._phase is _Phase.ENDED

    @property
    def credentials(self) -> Credentials | None:
        """What resumes this session, once it has an id."""
        if not self.session_id or not self._known:
            return None
        return Credentials(self.session_id, self._password, self.timeout_ms)

    @property
    def identities(self) -> list[tuple[str, bytes]]:
        """The credentials given so far, for the session that follows this one."""
        return [(identity.scheme, identity.auth) for identity in self._identities]

    @property
    def lease_deadline_ms(self) -> int | None:
        """When the session has to be taken for lost if nothing more is heard (I5)."""
        return self._lease.deadline_ms

    @property
    def deadline_ms(self) -> int | None:
        """When `elapsed` has something to do; None if only bytes or wishes can move the session."""
        if self.ended:
            return None
        lease_ms = self._lease.deadline_ms
        if self._phase is _Phase.ESTABLISHED:
            third_ms = self._third_ms
            due_ms = min(self._spoke_ms + third_ms, self._heard_ms + 2 * third_ms)
        elif self._phase in _UNDER_WAY:
            due_ms = self._greeting_deadline_ms
        else:
            return lease_ms
        return due_ms if lease_ms is None else min(due_ms, lease_ms)

    @property
    def wants_flush(self) -> bool:
        """Whether `flush` has bytes to send."""
        return bool(self._requests.output)

    @property
    def _third_ms(self) -> int:
        return max(1, self.timeout_ms // 3)

    def attempt_ms(self, now_ms: int) -> int:
        """How long one server may take to accept a connection and answer the handshake.

        A third of the timeout, less when the lease is running out: a dead server must leave time
        to try the others.
        """
        limit = self._third_ms
        if self._lease.deadline_ms is not None:
            limit = min(limit, (self._lease.deadline_ms - now_ms) // 3)
        return max(ATTEMPT_MS_MIN, limit)

    # Wishes.

    def submit(
        self, op: Op, token: object, now_ms: int, *, watcher: Hashable | None = None
    ) -> None:
        """Take a request; its answer comes as `Replied` or `Failed` with this token.

        The watcher is registered when the answer shows that the server holds the watch.

        Raises:
            TooManyRequestsError: too many requests wait already.
            LocalProtocolError: it is larger than a server takes, which would close the connection
                without an answer.
            TypeError, ValueError: the op cannot be encoded.
            ClosingError: the session is being closed.
            SessionExpiredError: the session is over.
        """
        if self.ended:
            raise self.failures.expired(op, sent=False)
        if self._closing:
            raise self.failures.closing(op)
        request = Request(op, token, watcher)
        if request.size > self._request_bytes_max:
            raise self.failures.too_large(op, request.size, self._request_bytes_max)
        self._requests.add(request)
        if self._phase is _Phase.ESTABLISHED:
            self._requests.pump(now_ms)

    def withdraw(self, token: object) -> bool:
        """Take back a request; return whether it had not been sent, so that it never will be.

        Its watcher is not registered any more, whatever the answer says.
        """
        return self._requests.withdraw(token)

    def add_auth(self, scheme: str, auth: bytes, token: object, now_ms: int) -> None:
        """Authenticate this connection and all later ones; the token hears of the first answer.

        Raises as `submit` does: what a server does not take would cost each connection.
        """
        if self.ended:
            raise self.failures.expired(None, sent=False)
        identity = _Identity(scheme, auth, token)
        size = len(identity.packet) - LENGTH_SIZE
        if size > self._request_bytes_max:
            raise self.failures.too_large(None, size, self._request_bytes_max)
        self._identities.append(identity)
        if self._phase is _Phase.ESTABLISHED:
            self._send_auth(identity, now_ms)

    def close(self, token: object, now_ms: int) -> list[Effect]:
        """End the session behind what was submitted before; CLOSED follows.

        Without a connection a session that exists is closed at the next one, and one that does not
        exist is over at once.
        """
        if self.ended or self._closing:
            return []
        if not self.session_id:
            return [*self._hang_up("closed by the client", now_ms), *self._end_closed()]
        self._requests.add_last(Request(CloseSession(), token, None))
        if self._phase is _Phase.ESTABLISHED:
            self._requests.pump(now_ms)
        self._closing = True
        return self.flush(now_ms)

    def abandon(self, now_ms: int) -> list[Effect]:
        """End the session without a word to the ensemble, which will expire it."""
        if self.ended:
            return []
        return [*self._hang_up("abandoned by the client", now_ms), *self._end_closed()]

    def flush(self, now_ms: int) -> list[Effect]:
        """Return what was submitted since the last call as one piece to send."""
        if not self._requests.output:
            return []
        self._spoke_ms = now_ms
        return [Send(self._requests.take_output())]

    def check_lease(self, now_ms: int) -> list[Effect]:
        """Compare the lease with the time: to be called before anything that relies on it (I5)."""
        if self.ended or not self._lease.is_over(now_ms):
            return []
        return self._lose("the local lease ran out")

    def lagged(self, late_ms: float) -> None:
        """The loop was held up, which is bad for a session that lives on heartbeats: note it."""
        if self._meter is not None:
            self._meter.lagged(late_ms)

    def leave(self, reason: str, now_ms: int) -> list[Effect]:
        """Leave this server for a better one; the session stays."""
        return self._hang_up(reason, now_ms)

    # What happens.

    def opened(self, now_ms: int) -> list[Effect]:
        """A connection to some server is there: introduce ourselves."""
        assert self._phase is _Phase.OFFLINE, "one connection at a time"
        self._phase = _Phase.GREETING
        self._frames = FrameReader(RESPONSE_BYTES_MAX)
        self._greeted_ms = now_ms
        if not self._known and self._turned_away_for_long(now_ms):
            self.last_zxid = 0
        self._greeting_deadline_ms = now_ms + self.attempt_ms(now_ms)
        request = ConnectRequest(
            protocol_version=0,
            last_zxid_seen=self.last_zxid,
            timeout_ms=self._asked_ms,
            session_id=self.session_id if self._known else 0,
            password=self._password if self._known else _NO_PASSWORD,
            read_only=self._read_only_will_do,
        )
        return [Send(encode_connect(request))]

    def closed(self, now_ms: int, reason: str = "the server closed the connection") -> list[Effect]:
        """The connection is gone; what it had not answered has an unknown outcome (I1)."""
        if self._phase is _Phase.GREETING and self._turned_away_ms is None:
            self._turned_away_ms = now_ms
        return self._disconnected(now_ms, reason)

    def _disconnected(self, now_ms: int, reason: str) -> list[Effect]:
        if self._phase in {_Phase.OFFLINE, _Phase.ENDED}:
            return []
        self._phase = _Phase.OFFLINE
        if self._closing and self._requests.close_was_sent():
            return self._end_closed()
        effects = self._become(SessionState.SUSPENDED, reason)
        effects += [
            Failed(request.token, self.failures.lost_reply(request.op, reason))
            for request in self._forget_connection()
        ]
        return [*effects, *self.check_lease(now_ms)]

    def receive(self, chunk: bytes, now_ms: int) -> list[Effect]:
        """Bytes came on the current connection."""
        effects: list[Effect] = []
        if self._phase in {_Phase.OFFLINE, _Phase.ENDED}:
            return effects
        self._heard_ms = now_ms
        try:
            self._take_frames(self._frames.feed(chunk), now_ms, effects)
        except RemoteProtocolError as error:
            effects += self._hang_up(f"the server broke the protocol: {error}", now_ms)
        if self._phase is _Phase.ESTABLISHED:
            self._requests.pump(now_ms)
        effects += self.flush(now_ms)
        return [*effects, *self.check_lease(now_ms)]

    def elapsed(self, now_ms: int) -> list[Effect]:
        """Time has passed: ping, leave a silent server, or give the session up."""
        if lost := self.check_lease(now_ms):
            return lost
        if self._phase in _UNDER_WAY and now_ms >= self._greeting_deadline_ms:
            return self._hang_up("the server did not answer the handshake", now_ms)
        if self._phase is not _Phase.ESTABLISHED:
            return []
        silence_ms = now_ms - self._heard_ms
        if silence_ms >= 2 * self._third_ms:
            return self._hang_up(f"the server was silent for {silence_ms} ms", now_ms)
        if now_ms - self._spoke_ms >= self._third_ms:
            self._pings_outstanding.append(now_ms)
            self._requests.output.append(encode_request(XID_PING, Ping()))
        return self.flush(now_ms)

    def _turned_away_for_long(self, now_ms: int) -> bool:
        return self._turned_away_ms is not None and now_ms - self._turned_away_ms >= self._asked_ms

    def _take_frames(self, frames: list[bytes], now_ms: int, effects: list[Effect]) -> None:
        for frame in frames:
            if self._phase is _Phase.GREETING:
                self._greeted(frame, now_ms, effects)
            elif self._phase is _Phase.ESTABLISHED:
                self._answered(frame, effects)
            elif self._phase is _Phase.AUTHENTICATING:
                self._authenticate(frame, now_ms, effects)

    # The handshake.

    def _greeted(self, frame: bytes, now_ms: int, effects: list[Effect]) -> None:
        response = decode_connect_response(frame)
        if response.refused:
            if not self._known:
                raise RemoteProtocolError("a new session was refused as if it had expired")
            self.refused = True
            effects += self._lose("the ensemble has expired the session")
            return
        self.session_id = self.failures.session_id = response.session_id
        self.timeout_ms = response.timeout_ms
        self._password = response.password
        self._spoke_ms = self._greeted_ms
        self._turned_away_ms = None
        self._read_only = bool(response.read_only)
        self._known = self._known or not self._read_only
        if not self._read_only:
            self._lease.forget()  # this server may have granted less than the last one
        self._renew_lease(self._greeted_ms)
        if self._sasl is None:
            self._establish(now_ms, effects)
        else:
            self._phase = _Phase.AUTHENTICATING
            self._exchange = self._sasl()
            self._send_token(b"")

    def _send_token(self, token: bytes) -> None:
        self._requests.output.append(encode_request(self._requests.next_xid(), Sasl(token)))

    def _authenticate(self, frame: bytes, now_ms: int, effects: list[Effect]) -> None:
        """The server's step of SASL has come."""
        assert self._exchange is not None, "one is under way"
        xid, _, code = decode_reply_header(frame)
        expected = self._requests.xid
        if xid != expected:
            raise RemoteProtocolError(f"a reply to xid {xid}, expected {expected} of SASL")
        try:
            if code != ErrorCode.OK:
                raise AuthFailedError("the server does not accept the user and password of SASL")
            result = decode_result(OpCode.SASL, frame)
            assert isinstance(result, SaslResult)
            if result.token is None:
                raise AuthFailedError("the server has no SASL")
            token = self._exchange.step(result.token)
        except AuthFailedError as error:
            self.auth_error = self.failures.auth_error = error
            effects += self._lose(str(error))
            return
        if token is not None:
            self._send_token(token)
        else:
            self._establish(now_ms, effects)

    def _establish(self, now_ms: int, effects: list[Effect]) -> None:
        self._phase = _Phase.ESTABLISHED
        self._exchange = None
        if self._read_only:
            effects += self._become(SessionState.READ_ONLY, "a server without a quorum answers")
        else:
            effects += self._become(SessionState.CONNECTED, "a server has the session")
        self._introduce(now_ms)

    def _introduce(self, now_ms: int) -> None:
        """Send what a new connection has to know before requests: I4."""
        for identity in self._identities:
            self._send_auth(identity, now_ms)
        if self._closing:
            return
        for op in self.watches.rearm(self.last_zxid):
            self._requests.send(Request(op, None, None, XID_SET_WATCHES), now_ms)

    def _send_auth(self, identity: _Identity, now_ms: int) -> None:
        self._auths_outstanding.append((identity, now_ms))
        self._requests.output.append(identity.packet)

    # Requests and their answers.

    def _answered(self, frame: bytes, effects: list[Effect]) -> None:
        xid, zxid, code = decode_reply_header(frame)
        if xid == XID_WATCH_EVENT:
            event = decode_watch_event(frame)
            if self._meter is not None:
                path = self._chroot.to_user(event.path)
                self._meter.notified(path, EventType(event.type).name.lower())
            effects += [Fired(watcher, event) for watcher in self.watches.take(event)]
            return
        self.last_zxid = max(self.last_zxid, zxid)
        if xid == XID_PING:
            if self._pings_outstanding:
                self._renew_lease(self._pings_outstanding.popleft())
        elif xid == XID_AUTH:
            self._auth_answered(code, effects)
        else:
            self._request_answered(xid, code, frame, effects)

    def _auth_answered(self, code: int, effects: list[Effect]) -> None:
        if not self._auths_outstanding:
            raise RemoteProtocolError("an answer to an auth packet that was not sent")
        identity, sent_ms = self._auths_outstanding.popleft()
        self._renew_lease(sent_ms)
        token, identity.token = identity.token, None
        if code == ErrorCode.OK:
            if token is not None:
                effects.append(Replied(token, ErrorResult(0)))
            return
        # Offering it again at every reconnect would cost each connection: the server closes it.
        self._identities.remove(identity)
        effects.append(Failed(token, self.failures.refused_credentials(identity.scheme)))

    def _request_answered(self, xid: int, code: int, frame: bytes, effects: list[Effect]) -> None:
        request = self._requests.answered(xid)
        if xid == XID_SET_WATCHES:
            outcome = None
            if code == ErrorCode.UNIMPLEMENTED and isinstance(request.op, SetWatches2):
                self._rearm_without_persistent(request, effects)
            elif code != ErrorCode.OK:
                raise RemoteProtocolError(f"the server refused our watches with {code}")
        else:
            # A reply that cannot be read leaves the request where it is, to fail with the rest.
            outcome = self._outcome(request, code, frame)
        self._requests.done(request)
        self._renew_lease(request.sent_ms)
        if self._meter is not None:
            self._meter.answered(request.op.opcode, self._heard_ms - request.sent_ms)
        if outcome is not None:
            self._settle(request, code, outcome, effects)

    def _rearm_without_persistent(self, request: Request, effects: list[Effect]) -> None:
        """This server knows no watches that stay: their watchers are told, the others set again."""
        assert isinstance(request.op, SetWatches2), "it has both kinds"
        op = request.op
        effects += [
            Fired(watcher, WatchEvent(EventType.PERSISTENT_WATCH_REMOVED, _SYNCED, path))
            for watcher, path in self.watches.drain_persistent()
        ]
        if op.data or op.exist or op.child:
            rest = SetWatches(op.relative_zxid, op.data, op.exist, op.child)
            self._requests.send(Request(rest, None, None, XID_SET_WATCHES), self._heard_ms)

    def _outcome(self, request: Request, code: int, frame: bytes) -> Replied | Failed:
        if code != ErrorCode.OK:
            return Failed(request.token, self.failures.answer(code, request.op))
        result = decode_result(request.op.opcode, frame)
        if isinstance(result, MultiResult) and (failure := self._culprit(request.op, result)):
            return Failed(request.token, failure)
        return Replied(request.token, result)

    def _settle(
        self, request: Request, code: int, outcome: Replied | Failed, effects: list[Effect]
    ) -> None:
        if request.watcher is not None:
            self._register(request, code)
        if isinstance(outcome, Failed) and outcome.error.code == ErrorCode.SESSION_EXPIRED:
            self.refused = True
            effects += self._lose("the ensemble has expired the session")
        if isinstance(request.op, RemoveWatches) and isinstance(outcome, Replied):
            effects += [
                Fired(watcher, WatchEvent(type_, _SYNCED, request.op.path))
                for watcher, type_ in self.watches.remove(
                    WatcherType(request.op.type), request.op.path
                )
            ]
        effects.append(outcome)
        if isinstance(request.op, CloseSession) and isinstance(outcome, Replied):
            self._phase = _Phase.OFFLINE
            effects += [Hangup("the session is closed"), *self._end_closed()]

    def _register(self, request: Request, code: int) -> None:
        assert request.watcher is not None
        table = table_of(request.op, code)
        if table is not None:
            path: str = getattr(request.op, "path", "")
            self.watches.add(table, path, request.watcher)

    def _culprit(self, op: Op, result: MultiResult) -> KeeperError | None:
        if not isinstance(op, Multi):
            return None
        for index, part in enumerate(result.results):
            if isinstance(part, ErrorResult) and part.code not in _NOT_THE_CULPRIT:
                error = self.failures.answer(part.code, op.ops[index])
                error.op_index = index
                return error
        return None

    # Endings.

    def _hang_up(self, reason: str, now_ms: int) -> list[Effect]:
        if self._phase in {_Phase.OFFLINE, _Phase.ENDED}:
            return []
        return [Hangup(reason), *self._disconnected(now_ms, reason)]

    def _lose(self, reason: str) -> list[Effect]:
        effects: list[Effect] = []
        if self._phase is not _Phase.OFFLINE:
            effects.append(Hangup(reason))
        self._phase = _Phase.ENDED
        effects += self._become(SessionState.LOST, reason)
        sent = self._forget_connection()
        effects += [Failed(r.token, self.failures.expired(r.op, sent=True)) for r in sent]
        return [*effects, *self._fail_waiting(), *self._end_watches(KeeperState.EXPIRED)]

    def _end_closed(self) -> list[Effect]:
        self._phase = _Phase.ENDED
        effects = self._become(SessionState.CLOSED, "closed by the client")
        sent = [r for r in self._forget_connection() if not isinstance(r.op, CloseSession)]
        effects += [
            Failed(r.token, self.failures.lost_reply(r.op, "the client was closed")) for r in sent
        ]
        return [*effects, *self._fail_waiting(), *self._end_watches(KeeperState.CLOSED)]

    def _fail_waiting(self) -> list[Effect]:
        unsent = self._requests.take_waiting()
        waiting = [Failed(r.token, self.failures.expired(r.op, sent=False)) for r in unsent]
        identities = [i for i in self._identities if i.token is not None]
        failed = [Failed(i.token, self.failures.expired(None, sent=False)) for i in identities]
        for identity in identities:
            identity.token = None
        return [*waiting, *failed]

    def _end_watches(self, state: KeeperState) -> list[Effect]:
        return [
            Fired(watcher, WatchEvent(EventType.NONE, state, path))
            for watcher, path in self.watches.drain()
        ]

    def _forget_connection(self) -> list[Request]:
        """Return the requests whose reply is not coming."""
        self._auths_outstanding.clear()
        self._pings_outstanding.clear()
        self._exchange = None
        return self._requests.forget_connection()

    def _become(self, state: SessionState, reason: str) -> list[Effect]:
        if state is self.state:
            return []
        self.state = state
        return [Became(state, reason)]

    def _renew_lease(self, sent_ms: int) -> None:
        if not self._read_only:
            self._lease.renew(sent_ms, self.timeout_ms)


_UNDER_WAY = frozenset({_Phase.GREETING, _Phase.AUTHENTICATING})
_SYNCED = KeeperState.SYNC_CONNECTED
_NOT_THE_CULPRIT = frozenset({ErrorCode.OK, ErrorCode.RUNTIME_INCONSISTENCY})
