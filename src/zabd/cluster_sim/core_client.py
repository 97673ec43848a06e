"""A client at the core level: the wire protocol on a simulated connection, and a sharp eye.

It opens a session, pipelines operations of all kinds, watches, loses its connection, comes back to
another member. All that it is told is compared with what was true (`replica_checks`).
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.connections import End
from zabd.cluster_sim.core_member import CoreMember
from zabd.cluster_sim.core_watches import WatchBook
from zabd.cluster_sim.core_wishes import SEQUENCE, Wishes
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.network import Dial
from zabd.cluster_sim.replica_checks import ReplicaChecker
from zabd.cluster_sim.replica_member import CLIENT_PORT
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import ErrorCode
from zabd.model.ids import SessionId, format_session
from zabd.model.ops import (
    CloseSession,
    Create,
    CreateMode,
    Exists,
    GetData,
    Op,
    OpCode,
    Ping,
    SetData,
    SetWatches2,
)
from zabd.model.results import CreateResult, GetDataResult
from zabd.model.session import PASSWORD_SIZE, ConnectRequest, ConnectResponse
from zabd.model.watch_events import WatchEvent
from zabd.model.zxid import Zxid
from zabd.wire.connection import ClientConnection, Event, Reply

if TYPE_CHECKING:
    from zabd.cluster_sim.replica_level import ReplicaLevel

IN_FLIGHT_MAX: Final = 30
MOVES_EVERY: Final = 25  # ticks of its own, on average, until a client goes to another member
INTRUDES_EVERY: Final = 40
CLOSES_EVERY: Final = 60  # turns of work

_OVER: Final = frozenset((ErrorCode.SESSION_EXPIRED, ErrorCode.SESSION_MOVED))
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
        self.connections = 0  # how many it has had with a session
        self.book = WatchBook(level.checker, self._fail)
        self._wishes = Wishes(self, self.rng, level.schedule.stream(f"client {name} more"))
        self._moves = level.schedule.stream(f"client {name} moves")
        self._closes = level.schedule.stream(f"client {name} closes")
        self._closing = False
        self.stays = False  # neither moves nor closes its session of its own accord
        self._seen_zxid = 0  # the greatest zxid of any reply: what lastZxidSeen says
        self._written_zxid = 0
        self._read_floor = 0  # a sync was confirmed: reads are at least this
        self._read_zxid = 0  # the greatest zxid of a read
        self._asked: deque[_Asked] = deque()
        self._wire = ClientConnection()
        self._end: End | None = None
        self._dial: Dial | None = None
        self._tried: list[CoreMember] = []  # since it last had a session, in calm
        self._heard_us = 0
        self._sent_us = 0

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
        member = self._next_member()
        self._heard_us = self.level.schedule.now_us
        self._dial = self._stack.dial(
            member.host.name, CLIENT_PORT, connected=self._dialled, failed=self._refused
        )

    def _next_member(self) -> CoreMember:
        """Any; of those that were tried in vain since faults stopped, none before all were."""
        members = list(self.level.members.values())
        member = self.rng.choice(members)
        if self.level.calm:
            if len(self._tried) == len(members):
                self._tried.clear()
            if member in self._tried:
                member = next(each for each in members if each not in self._tried)
            self._tried.append(member)
        return member

    def _connect_later(self) -> None:
        delay_us = int(self.rng.random() * self.level.shape.tick_ms * US_PER_MS / 4) + 1
        self.level.schedule.after(delay_us, self._connect)

    def _refused(self, _error: OSError) -> None:
        self._dial = None
        self._connect_later()

    def _dialled(self, end: End) -> "CoreClient":
        self._dial = None
        self._end = end
        self._closing = False
        self._wire = ClientConnection()
        self.level.greetings[end.connection.id] = self._seen_zxid
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
        if self._end is not None:
            self._hang_up()
            self._connect_later()

    def _hang_up(self) -> None:
        end, self._end = self._end, None
        assert end is not None, "hung up once"
        end.close()
        self.connected = False
        self.unknown += len(self._asked)
        self._forget_asked()

    def _move(self) -> None:
        """Go to another member at once, with requests still on their way to this one."""
        self._ask(*(self._wishes.a_write() for _ in range(3)))
        self._hang_up()
        self._connect()

    def _intrude(self) -> None:
        """Somebody who does not know the password wants the session."""
        member = self._moves.choice(list(self.level.members.values()))
        password = bytes(byte ^ 1 for byte in self._password)
        request = ConnectRequest(0, 0, self._timeout_ms, self.session_id, password, False)
        intruder = _Intruder(request, self._fail)
        self._stack.dial(
            member.host.name,
            CLIENT_PORT,
            connected=intruder.dialled,
            failed=lambda _error: None,
        )

    def _forget_asked(self) -> None:
        # What was asked for behind the close of a session is of no session any more.
        for asked in self._asked if self.session_id else ():
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
        if self.connected and not self.level.idle:
            if self.session_id and not self._moves.randrange(INTRUDES_EVERY):
                self._intrude()
            if not (self._closing or self.stays or self._moves.randrange(MOVES_EVERY)):
                self._move()
        self._tick_later()

    # --- the work --------------------------------------------------------------------------------

    def _work_later(self) -> None:
        wait_ms = self.rng.expovariate(1 / self.level.shape.submit_every_ms) * 4
        self.level.schedule.after(int(wait_ms * US_PER_MS) + 1, self._work)

    def _work(self) -> None:
        if not self.alive or self.level.idle:
            return
        if self.connected and not self._closing and len(self._asked) < IN_FLIGHT_MAX:
            self._ask(*self._wishes.draw())
            if not (self.stays or self._closes.randrange(CLOSES_EVERY)):
                self.close_session()
        self._work_later()

    def _ask(self, *ops: Op) -> None:
        if not ops:
            return
        frames = []
        for op in ops:
            xid, frame = self._wire.send(op)
            if not isinstance(op, Ping):
                now_us = self.level.schedule.now_us
                self._asked.append(_Asked(xid, op, now_us, self._checker.completed_write))
            frames.append(frame)
        self._send(b"".join(frames))

    def close_session(self) -> None:
        """Ask for the session to be closed, and for more behind that, which is too late."""
        if self.connected:
            self._closing = True
            self._ask(CloseSession(), self._wishes.an_ephemeral(), self._wishes.a_write())

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
            self._require_closed()
            self._history.expired(self.session_id, self.level.schedule.now_us)
            self._forget_session()
            self._leave()
            return
        if self.session_id and response.session_id != self.session_id:
            raise self._fail("S5", f"silently given {format_session(response.session_id)}")
        self.connected, resumed = True, bool(self.session_id)
        self.session_id, self._password = response.session_id, response.password
        self._history.connected(self.session_id, self.level.schedule.now_us)
        self.connections += 1
        self.book.reconnected(self._seen_zxid)
        first: list[Op] = [self.book.set_again(self._seen_zxid)] if self.book else []
        if resumed and self._moves.getrandbits(1):
            first += self._wishes.to_be_current()
        elif not resumed:
            first.append(Create(SEQUENCE, b"", OPEN_ACL_UNSAFE, CreateMode.PERSISTENT))
        self._ask(*first)

    def _forget_session(self) -> None:
        self.session_id, self._password = 0, bytes(PASSWORD_SIZE)
        self.session_ended += 1
        self.book.clear()
        self._seen_zxid = self._written_zxid = self._read_zxid = self._read_floor = 0

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
        if reply.opcode is OpCode.CLOSE_SESSION:
            self._closed(reply)
            return
        if reply.error in _OVER:
            if reply.error == ErrorCode.SESSION_EXPIRED:
                self._require_closed()
            return
        if reply.zxid > self._checker.last_zxid:
            raise self._fail("C5", f"{asked.op} answered at {Zxid(reply.zxid)!r}, not committed")
        if reply.opcode in _WRITES:
            self._wrote(asked, reply)
        elif reply.opcode is OpCode.SYNC:
            self._read_floor = max(self._read_floor, asked.floor)
        else:
            self._read(asked, reply)
        if isinstance(asked.op, SetWatches2):
            self.book.were_set_again(asked.op, reply.zxid)
            self.book.skip(reply.zxid)
        else:
            self.book.shown(reply.zxid)
            self.book.arm(asked.op, reply)
        self._seen_zxid = max(self._seen_zxid, reply.zxid)

    def _closed(self, reply: Reply) -> None:
        if reply.error:
            return  # refused, as everything is of a session that has moved or is over
        self._require_closed()
        self._forget_session()

    def _require_closed(self) -> None:
        if self.session_id and self.session_id not in self._checker.closed:
            raise self._fail("S5", "told that its session is over, which nobody closed")

    def _wrote(self, asked: _Asked, reply: Reply) -> None:
        if reply.zxid <= asked.floor:
            raise self._fail(
                "C1",
                f"{asked.op} took effect at {Zxid(reply.zxid)!r}, before one that was complete",
            )
        if reply.zxid <= max(self._written_zxid, self._read_zxid):
            error = self._fail("C2", f"its writes took effect out of order at {Zxid(reply.zxid)!r}")
            self._checker.fail(error.id, error.detail)
        self._written_zxid = reply.zxid
        self._checker.completed_write = max(self._checker.completed_write, reply.zxid)
        if reply.error == ErrorCode.NODE_EXISTS and self._is_sequential(asked.op):
            raise self._fail("R7", f"{asked.op} was refused: its number is given already")
        if isinstance(reply.result, CreateResult) and isinstance(asked.op, Create):
            path = reply.result.path
            if path != asked.op.path:
                self._checker.sequential_created(path, reply.zxid)
                self._wishes.has_made(path)
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
        self._read_zxid = reply.zxid
        match asked.op:
            case GetData(path):
                version = self._checker.at(path, reply.zxid)
                result = reply.result
                data = result.data if isinstance(result, GetDataResult) else None
                if version.there != (not reply.error) or version.data != data:
                    early = not reply.error and not self._checker.held_by(path, data, reply.zxid)
                    raise self._fail(
                        "C5" if early else "C3",
                        f"read {data!r} ({reply.error}) of {path} at {Zxid(reply.zxid)!r}, "
                        f"where it held {version}",
                    )
            case Exists(path):
                if self._checker.at(path, reply.zxid).there != (not reply.error):
                    raise self._fail("C3", f"exists {path} is wrong at {Zxid(reply.zxid)!r}")
            case _:
                pass

    def _notified(self, zxid: int, event: WatchEvent) -> None:
        self.book.told(zxid, event)


class _Intruder:
    """A connection that asks for somebody's session with a wrong password (S7)."""

    def __init__(self, request: ConnectRequest, fail: Callable[[str, str], InvariantError]) -> None:
        self._request = request
        self._fail = fail
        self._wire = ClientConnection()
        self._end: End | None = None

    def dialled(self, end: End) -> "_Intruder":
        """Say whose session it wants."""
        self._end = end
        data = self._wire.connect(self._request)
        end.send(data, len(data))
        return self

    def received(self, payload: object) -> None:
        """It must be turned away."""
        assert isinstance(payload, bytes), "members speak bytes"
        for item in self._wire.receive(payload):
            if isinstance(item, ConnectResponse) and not item.refused:
                raise self._fail("S7", "taken over by one who does not know its password")

    def finished(self) -> None:
        """The member closed the connection."""
        if self._end is not None:
            self._end.close()

    def lost(self, _error: OSError) -> None:
        """The connection broke."""

    def drained(self) -> None:
        """Nobody waits for that."""
