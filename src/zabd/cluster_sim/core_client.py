"""A client at the core level: the wire protocol on a simulated connection, and a sharp eye.

It opens a session, pipelines operations of all kinds, watches, loses its connection, comes back to
another member. All that it is told is compared with what was true (`replica_checks`).
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.connections import End
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.network import Dial
from zabd.cluster_sim.replica_checks import ReplicaChecker
from zabd.cluster_sim.replica_member import CLIENT_PORT
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.model.acl import OPEN_ACL_UNSAFE, Acl, Perms
from zabd.model.errors import ErrorCode
from zabd.model.ids import SessionId, format_session
from zabd.model.ops import (
    Check,
    CloseSession,
    Create,
    CreateMode,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Op,
    OpCode,
    Ping,
    SetAcl,
    SetData,
    SetWatches,
    Sync,
)
from zabd.model.results import CreateResult, GetDataResult
from zabd.model.session import PASSWORD_SIZE, ConnectRequest, ConnectResponse
from zabd.model.watch_events import EventType, WatchEvent
from zabd.model.zxid import Zxid
from zabd.wire.connection import ClientConnection, Event, Reply

if TYPE_CHECKING:
    from zabd.cluster_sim.replica_level import ReplicaLevel

PATHS: Final = tuple(f"/{letter}" for letter in "abcdef")
SEQUENCE: Final = "/sequence"
IN_FLIGHT_MAX: Final = 30

# Everybody may do everything in all of them: they are there to be kept apart.
ACLS: Final = (
    OPEN_ACL_UNSAFE,
    OPEN_ACL_UNSAFE,
    (*OPEN_ACL_UNSAFE, Acl(Perms.READ, "ip", "10.0.0.1")),
    (*OPEN_ACL_UNSAFE, Acl(Perms.READ, "ip", "10.0.0.2"), Acl(Perms.ADMIN, "ip", "10.0.0.3")),
)

DATA, EXIST, CHILD = "data", "exist", "child"
_KINDS: Final[dict[str, tuple[EventType, ...]]] = {
    DATA: (EventType.DATA_CHANGED, EventType.DELETED),
    EXIST: (EventType.CREATED, EventType.DATA_CHANGED, EventType.DELETED),
    CHILD: (EventType.CHILDREN_CHANGED, EventType.DELETED),
}
_WRITES: Final = frozenset(
    (OpCode.CREATE, OpCode.DELETE, OpCode.SET_DATA, OpCode.SET_ACL, OpCode.MULTI)
)


class _Asked:
    """One request without an answer."""

    __slots__ = ("called_us", "floor", "op", "xid")

    def __init__(self, xid: int, op: Op, called_us: int, floor: int) -> None:
        self.xid = xid
        self.op = op
        self.called_us = called_us
        self.floor = floor  # the greatest zxid of a write that was complete when this was asked


class CoreClient:
    """One client, with one session at a time, until it is stopped or killed."""

    def __init__(self, level: "ReplicaLevel", name: str) -> None:
        self.level = level
        self.name = name
        self.rng = level.schedule.stream(f"client {name}")
        self.alive = True
        self.done = 0
        self.unknown = 0
        self.session_id: SessionId = 0
        self.session_ended = 0
        self.connected = False
        self._checker: ReplicaChecker = level.checker
        self._history = level.history
        self.host = level.network.add_host(name)
        self._stack = level.network.open_stack(self.host)
        self._timeout_ms = level.shape.tick_ms * self.rng.choice((2, 4, 10))
        self._password = bytes(PASSWORD_SIZE)
        self._seen_zxid = 0  # the greatest zxid of any reply: what lastZxidSeen says
        self._written_zxid = 0
        self._read_floor = 0  # a sync was confirmed: reads are at least this
        self._event_zxid = 0
        self._watches: dict[tuple[str, str], int] = {}  # (kind, path): armed at
        self._asked: deque[_Asked] = deque()
        self._wire = ClientConnection()
        self._end: End | None = None
        self._dial: Dial | None = None
        self._heard_us = 0
        self._sent_us = 0
        self._count = 0
        self._made: list[str] = []  # sequential znodes, to be deleted again

    @property
    def waiting(self) -> int:
        """How many requests have no answer yet."""
        return len(self._asked)

    # --- the connection --------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and begin to work."""
        self._connect()
        self._work_later()
        self._tick_later()

    def kill(self) -> None:
        """Be gone without a word: the session has to expire."""
        self.alive = False
        self.connected = False
        self._forget_asked()
        self._stack.kill()

    def _connect(self) -> None:
        if not self.alive:
            return
        member = self.rng.choice(list(self.level.members.values()))
        self._heard_us = self.level.schedule.now_us
        self._dial = self._stack.dial(
            member.host.name, CLIENT_PORT, connected=self._dialled, failed=self._refused
        )

    def _connect_later(self) -> None:
        delay_us = int(self.rng.random() * self.level.shape.tick_ms * US_PER_MS / 4) + 1
        self.level.schedule.after(delay_us, self._connect)

    def _refused(self, _error: OSError) -> None:
        self._dial = None
        self._connect_later()

    def _dialled(self, end: End) -> "CoreClient":
        self._dial = None
        self._end = end
        self._wire = ClientConnection()
        self._heard_us = self.level.schedule.now_us
        request = ConnectRequest(
            0, self._seen_zxid, self._timeout_ms, self.session_id, self._password, False
        )
        self._send(self._wire.connect(request))
        return self

    def _send(self, data: bytes) -> None:
        assert self._end is not None, "sent over a connection that is open"
        self._sent_us = self.level.schedule.now_us
        self._end.send(data, len(data))

    def finished(self) -> None:
        """The member closed the connection."""
        self._leave()

    def lost(self, _error: OSError) -> None:
        """The connection broke."""
        self._leave()

    def drained(self) -> None:
        """What was sent has arrived; nobody waits for that."""

    def _leave(self) -> None:
        end, self._end = self._end, None
        if end is None:
            return
        end.close()
        self.connected = False
        self.unknown += len(self._asked)
        self._forget_asked()
        self._connect_later()

    def _forget_asked(self) -> None:
        for asked in self._asked:
            self._history.lost(self.session_id, asked.op, asked.called_us)
        self._asked.clear()

    # --- time ------------------------------------------------------------------------------------

    def _tick_later(self) -> None:
        self.level.schedule.after(self._timeout_ms * US_PER_MS // 6, self._tick)

    def _tick(self) -> None:
        if not self.alive:
            return
        now_us, timeout_us = self.level.schedule.now_us, self._timeout_ms * US_PER_MS
        if now_us - self._heard_us > timeout_us * 2 // 3:
            if self._dial is not None:
                self._dial.cancel()
                self._dial = None
                self._connect_later()
            elif self._end is not None:
                self._end.abort()
                self._leave()
        elif self.connected and now_us - self._sent_us > timeout_us // 3:
            self._ask(Ping())
        self._tick_later()

    # --- the work --------------------------------------------------------------------------------

    def _work_later(self) -> None:
        wait_ms = self.rng.expovariate(1 / self.level.shape.submit_every_ms) * 4
        self.level.schedule.after(int(wait_ms * US_PER_MS) + 1, self._work)

    def _work(self) -> None:
        if not self.alive or self.level.idle:
            return
        if self.connected and len(self._asked) < IN_FLIGHT_MAX:
            self._ask(*(self._draw() for _ in range(self.rng.choice((1, 1, 2, 5)))))
        self._work_later()

    def _draw(self) -> Op:
        rng = self.rng
        path = rng.choice(PATHS)
        self._count += 1
        data = f"{self.name} {self._count}".encode()
        match rng.randrange(14):
            case 0 | 1:
                return Create(path, data, self._acl(), CreateMode.PERSISTENT)
            case 2:
                return Create(path, data, self._acl(), CreateMode.EPHEMERAL)
            case 3:
                mode = rng.choice(
                    (CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)
                )
                return Create(f"{SEQUENCE}/n-", data, self._acl(), mode)
            case 4 | 5:
                return SetData(path, data, -1)
            case 6:
                version = rng.randrange(4)
                return self._set_acl(path) if self._count % 3 == 0 else SetData(path, data, version)
            case 7:
                old = self._made.pop() if self._made and self._count % 2 else path
                return Delete(old, -1)
            case 8:
                return self._draw_multi(path, rng.choice(PATHS), data)
            case 9 | 10:
                return GetData(path, bool(rng.getrandbits(1)))
            case 11:
                return Exists(path, bool(rng.getrandbits(1)))
            case 12:
                return GetChildren(rng.choice((SEQUENCE, "/")), bool(rng.getrandbits(1)))
            case _:
                return Sync(path)

    def _acl(self) -> tuple[Acl, ...]:
        return ACLS[self._count % len(ACLS)]

    def _set_acl(self, path: str) -> Op:
        return SetAcl(path, self._acl(), -1)

    def _draw_multi(self, path: str, other: str, data: bytes) -> Op:
        """Half of them fail in the middle as a rule, and must leave nothing behind."""
        if self._count % 2:
            return Multi((Check(path, -1), SetData(path, data, -1), SetData(other, data, -1)))
        mode = CreateMode.PERSISTENT_SEQUENTIAL
        child = Create(f"{SEQUENCE}/n-", data, self._acl(), mode)
        return Multi((SetData(path, data, -1), child, Delete(other, -1)))

    def _ask(self, *ops: Op) -> None:
        frames = []
        for op in ops:
            xid, frame = self._wire.send(op)
            if not isinstance(op, Ping):
                now_us = self.level.schedule.now_us
                self._asked.append(_Asked(xid, op, now_us, self._checker.completed_write))
            frames.append(frame)
        self._send(b"".join(frames))

    def close_session(self) -> None:
        """Ask for the session to be closed."""
        if self.connected:
            self._ask(CloseSession())

    # --- what it is told -------------------------------------------------------------------------

    def received(self, payload: object) -> None:
        """Bytes of the member."""
        assert isinstance(payload, bytes), "members speak bytes"
        self.level.events += 1
        self._heard_us = self.level.schedule.now_us
        for item in self._wire.receive(payload):
            if self._end is None:
                return
            match item:
                case ConnectResponse():
                    self._greeted(item)
                case Reply():
                    self._answered(item)
                case Event(zxid, event):
                    self._notified(zxid, event)

    def _fail(self, check: str, what: str) -> InvariantError:
        return InvariantError(
            check, f"client {self.name} {format_session(self.session_id)}: {what}"
        )

    def _greeted(self, response: ConnectResponse) -> None:
        if response.refused:
            if self.session_id not in self._checker.closed:
                raise self._fail("S5", "told that its session is over, which nobody closed")
            self._history.expired(self.session_id, self.level.schedule.now_us)
            self._forget_session()
            self._leave()
            return
        if self.session_id and response.session_id != self.session_id:
            raise self._fail("S5", f"silently given {format_session(response.session_id)}")
        self.connected = True
        self.session_id, self._password = response.session_id, response.password
        self._history.connected(self.session_id, self.level.schedule.now_us)
        if self._watches:
            paths = {kind: tuple(p for k, p in self._watches if k == kind) for kind in _KINDS}
            self._ask(SetWatches(self._seen_zxid, paths[DATA], paths[EXIST], paths[CHILD]))
        else:
            self._ask(Create(SEQUENCE, b"", OPEN_ACL_UNSAFE, CreateMode.PERSISTENT))

    def _forget_session(self) -> None:
        self.session_id, self._password = 0, bytes(PASSWORD_SIZE)
        self.session_ended += 1
        self._watches.clear()
        self._seen_zxid = self._written_zxid = self._event_zxid = self._read_floor = 0

    def _answered(self, reply: Reply) -> None:
        if reply.opcode is OpCode.PING:
            return
        asked = self._asked.popleft()
        assert asked.xid == reply.xid, "C2: the wire has checked the order of the replies"
        self.done += 1
        self._history.answered(
            self.session_id,
            asked.op,
            asked.called_us,
            self.level.schedule.now_us,
            reply.error,
            reply.result,
            reply.zxid,
        )
        if reply.error in {ErrorCode.SESSION_EXPIRED, ErrorCode.SESSION_MOVED}:
            return
        if reply.zxid > self._checker.last_zxid:
            raise self._fail("C5", f"{asked.op} answered at {Zxid(reply.zxid)!r}, not committed")
        if reply.opcode in _WRITES:
            self._wrote(asked, reply)
        elif reply.opcode is OpCode.SYNC:
            self._read_floor = max(self._read_floor, asked.floor)
        else:
            self._read(asked, reply)
        self._require_told(reply)
        self._seen_zxid = max(self._seen_zxid, reply.zxid)
        if reply.opcode is OpCode.SET_WATCHES:
            self._rearm(reply.zxid)
        self._arm(asked, reply)

    def _wrote(self, asked: _Asked, reply: Reply) -> None:
        if reply.zxid <= self._written_zxid:
            raise self._fail("C2", f"its writes took effect out of order at {Zxid(reply.zxid)!r}")
        if reply.zxid <= asked.floor:
            raise self._fail(
                "C1",
                f"{asked.op} took effect at {Zxid(reply.zxid)!r}, before one that was complete",
            )
        self._written_zxid = reply.zxid
        self._checker.completed_write = max(self._checker.completed_write, reply.zxid)
        if reply.error == ErrorCode.NODE_EXISTS and self._is_sequential(asked.op):
            raise self._fail("R7", f"{asked.op} was refused: its number is given already")
        if isinstance(reply.result, CreateResult) and isinstance(asked.op, Create):
            path = reply.result.path
            if path != asked.op.path:
                self._checker.sequential_created(path, reply.zxid)
                self._made.append(path)
            self._require_state(path, reply.zxid, asked.op.data)
        elif isinstance(asked.op, SetData) and not reply.error:
            self._require_state(asked.op.path, reply.zxid, asked.op.data)

    @staticmethod
    def _is_sequential(op: Op) -> bool:
        return isinstance(op, Create) and op.path.endswith("-")

    def _require_state(self, path: str, zxid: int, data: bytes | None) -> None:
        version = self._checker.at(path, zxid)
        if not version.there or version.data != data or version.mzxid != zxid:
            raise self._fail("D12", f"its write of {path} at {Zxid(zxid)!r} is not there")

    def _read(self, asked: _Asked, reply: Reply) -> None:
        # A write is answered with its own zxid, even behind a sync answered at a later one.
        if reply.zxid < self._seen_zxid:
            raise self._fail("C3", f"read at {Zxid(reply.zxid)!r} after {Zxid(self._seen_zxid)!r}")
        if reply.zxid < self._read_floor:
            raise self._fail(
                "C6", f"read at {Zxid(reply.zxid)!r} after a sync up to {Zxid(self._read_floor)!r}"
            )
        match asked.op:
            case GetData(path):
                version = self._checker.at(path, reply.zxid)
                result = reply.result
                data = result.data if isinstance(result, GetDataResult) else None
                if version.there != (not reply.error) or version.data != data:
                    raise self._fail(
                        "C3",
                        f"read {data!r} ({reply.error}) of {path} at {Zxid(reply.zxid)!r}, "
                        f"where it held {version}",
                    )
            case Exists(path):
                if self._checker.at(path, reply.zxid).there != (not reply.error):
                    raise self._fail("C3", f"exists {path} is wrong at {Zxid(reply.zxid)!r}")
            case _:
                pass

    # --- watches ---------------------------------------------------------------------------------

    def _arm(self, asked: _Asked, reply: Reply) -> None:
        match asked.op:
            case GetData(path, True) if not reply.error:
                self._watches.setdefault((DATA, path), reply.zxid)
            case Exists(path, True):
                kind = EXIST if reply.error else DATA
                self._watches.setdefault((kind, path), reply.zxid)
            case GetChildren(path, True) if not reply.error:
                self._watches.setdefault((CHILD, path), reply.zxid)
            case _:
                pass

    def _require_told(self, reply: Reply) -> None:
        """No reply may show a change that an armed watch has not reported (W1)."""
        for (kind, path), armed in self._watches.items():
            changed = self._checker.first_change(path, _KINDS[kind], armed)
            if changed is not None and changed <= reply.zxid:
                if kind == EXIST and reply.opcode is OpCode.SET_WATCHES:
                    continue  # created and deleted while away: invisible to it (a legal exception)
                raise self._fail(
                    "W1",
                    f"answered at {Zxid(reply.zxid)!r} before the {kind} event of {path} "
                    f"at {Zxid(changed)!r}",
                )

    def _rearm(self, zxid: int) -> None:
        for key in self._watches:
            self._watches[key] = zxid

    def _notified(self, zxid: int, event: WatchEvent) -> None:
        kinds = [
            kind
            for kind, types in _KINDS.items()
            if event.type in types and (kind, event.path) in self._watches
        ]
        if not kinds:
            raise self._fail("W3", f"told of {event}, which it does not watch")
        if zxid > 0:
            if zxid < self._event_zxid:
                raise self._fail("W2", f"told of {event} at {Zxid(zxid)!r}, after a later one")
            if not self._checker.changed_at(event.path, event.type, zxid):
                raise self._fail("W4", f"told of {event} at {Zxid(zxid)!r}, where nothing happened")
            self._event_zxid = zxid
        for kind in kinds:
            del self._watches[kind, event.path]
