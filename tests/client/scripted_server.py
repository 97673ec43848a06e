"""A few servers in memory that speak the client protocol and misbehave when told to.

They share one log, as an ensemble does, and each applies it to a tree of its own, so that one can
lag. `faults` decide about a request before it is handled: lose it, lose its reply, hold it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from tests.client.fast_loop import FastLoop, MemoryTransport
from tests.client.mini_tree import MiniTree, close_ops, collectable

from zabd.model.errors import ErrorCode, KeeperError, error_for
from zabd.model.ops import (
    WRITE_OPCODES,
    AddWatch,
    Auth,
    CloseSession,
    Exists,
    GetAcl,
    GetAllChildrenNumber,
    GetChildren,
    GetChildren2,
    GetData,
    GetEphemerals,
    Multi,
    MultiRead,
    Op,
    OpCode,
    Ping,
    RemoveWatches,
    SetWatches,
    SetWatches2,
    Sync,
    WhoAmI,
)
from zabd.model.results import (
    AclResult,
    AllChildrenNumberResult,
    Children2Result,
    ChildrenResult,
    ClientInfo,
    DeleteResult,
    EphemeralsResult,
    ErrorResult,
    GetDataResult,
    MultiPart,
    MultiResult,
    Result,
    StatResult,
    SyncResult,
    WhoAmIResult,
)
from zabd.model.session import ConnectRequest, ConnectResponse, refusal
from zabd.model.watch_events import EventType, KeeperState, WatcherType, WatchEvent
from zabd.wire.frames import LENGTH_SIZE, REQUEST_BYTES_MAX, FrameError, FrameReader
from zabd.wire.replies import (
    decode_reply_header,
    encode_connect_response,
    encode_result,
    reply,
    watch_event,
)
from zabd.wire.requests import decode_connect, decode_request

PASS, LOSE_REQUEST, LOSE_REPLY = "pass", "lose the request", "lose the reply"
SWALLOW = "swallow"

_GIVES_UP = {ErrorCode.UNIMPLEMENTED, ErrorCode.AUTH_FAILED}

Fault = Callable[["Connection", Op], str]


@dataclass
class SessionRecord:
    password: bytes
    timeout_ms: int
    touched: float
    connection: "Connection | None" = None
    timer: asyncio.TimerHandle | None = None


@dataclass
class Server:
    """One member; `up=False` closes and refuses connections, `lagging` applies only on demand."""

    name: str
    tree: MiniTree = field(default_factory=MiniTree)
    applied: int = 0
    lagging: bool = False
    silent: bool = False
    read_only: bool = False
    connections: list["Connection"] = field(default_factory=list)


class ScriptedEnsemble:
    """Servers on ports 2181, 2182, ... of host ``zk``."""

    def __init__(self, loop: FastLoop, size: int = 1, *, timeout_max_ms: int = 40_000) -> None:
        self.loop = loop
        self.timeout_max_ms = timeout_max_ms
        self.leader = MiniTree()
        self.log: list[tuple[int, int, int, list[Op]]] = []
        self.zxid = 0x1_0000_0000
        self.sessions: dict[int, SessionRecord] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[float, str, Op | ConnectRequest]] = []
        self.expired: list[int] = []
        self.unimplemented: set[OpCode] = set()
        self.unreadable: set[str] = set()
        self.refused: dict[type[Op], ErrorCode] = {}
        self.refuse_auth = False
        self.request_bytes_max = REQUEST_BYTES_MAX
        self.stock = False
        """Close the connection behind UNIMPLEMENTED and AUTH_FAILED, as every ZooKeeper does."""
        self.local_sessions: set[int] = set()
        self.on_fault: Callable[[], None] = lambda: None
        self._next_session = 0x100_0000_0000_0000
        self.servers = [Server(f"zk:{2181 + index}") for index in range(size)]
        for server in self.servers:
            self.open(server)

    @property
    def hosts(self) -> str:
        return ",".join(server.name for server in self.servers)

    def open(self, server: Server) -> None:
        host, port = server.name.split(":")
        self.loop.servers[host, int(port)] = lambda: Connection(self, server)

    def shut(self, server: Server) -> None:
        """Stop serving: existing connections are closed, new ones refused."""
        host, port = server.name.split(":")
        self.loop.servers.pop((host, int(port)), None)
        self.cut(server)

    def cut(self, server: Server | None = None) -> None:
        """Close the connections of one server, or of all."""
        for each in [server] if server else self.servers:
            for connection in list(each.connections):
                connection.transport.close()

    def once(self, kind: type | Callable[[Op], bool], action: str) -> None:
        """Do `action` to the first request that is of this kind."""

        def fault(connection: "Connection", op: Op) -> str:
            matches = isinstance(op, kind) if isinstance(kind, type) else kind(op)
            if matches:
                self.faults.remove(fault)
                return action
            return PASS

        self.faults.append(fault)

    def stall_after(self, kind: type, path: str, seconds: float) -> None:
        """Stop the machine once, when a request of this kind for this path has been answered."""

        def fault(_: "Connection", op: Op) -> str:
            if isinstance(op, kind) and getattr(op, "path", None) == path:
                self.faults.remove(fault)
                self.loop.call_soon(self.loop.sleep_machine, seconds)  # its answer is under way
            return PASS

        self.faults.append(fault)

    def seen(self, *kinds: type) -> list[Op | ConnectRequest]:
        """The requests of these kinds that arrived, in order."""
        return [op for _, _, op in self.requests if isinstance(op, kinds)]

    # The log.

    def commit(self, session: int, ops: list[Op]) -> list[MultiPart]:
        """Decide about a write at the leader, and let all who do not lag apply it."""
        self.zxid += 1
        time_ms = 1_700_000_000_000 + self.loop.boot_time_ms()
        try:
            results, _ = self.leader.apply(self.zxid, time_ms, session, ops)
        except KeeperError:
            self.log.append((self.zxid, time_ms, session, []))
            raise
        else:
            self.log.append((self.zxid, time_ms, session, ops))
        finally:
            for server in self.servers:
                if not server.lagging:
                    self.catch_up(server)
        return results

    def catch_up(self, server: Server) -> None:
        while server.applied < len(self.log):
            zxid, time_ms, session, ops = self.log[server.applied]
            server.applied += 1
            _, events = server.tree.apply(zxid, time_ms, session, ops)
            for kind, path in events:
                for connection in list(server.connections):
                    connection.notice(kind, path)

    def collect(self) -> None:
        """Do what the leader does now and then: end containers and TTL znodes."""
        now_ms = 1_700_000_000_000 + self.loop.boot_time_ms()
        for op in collectable(self.leader, now_ms):
            self.commit(0, [op])

    # Sessions.

    def new_session(self, timeout_ms: int) -> tuple[int, SessionRecord]:
        self._next_session += 1
        granted = max(1000, min(timeout_ms, self.timeout_max_ms))
        record = SessionRecord(self._next_session.to_bytes(16, "big"), granted, self.loop.time())
        self.sessions[self._next_session] = record
        self.touch(self._next_session)
        return self._next_session, record

    def touch(self, session: int) -> None:
        record = self.sessions.get(session)
        if record is None:
            return
        record.touched = self.loop.time()
        if record.timer:
            record.timer.cancel()
        record.timer = self.loop.call_later(record.timeout_ms / 1000, self.expire, session)

    def expire(self, session: int) -> None:
        self.expired.append(session)
        self.end_session(session)

    def end_session(self, session: int) -> None:
        record = self.sessions.pop(session, None)
        if record is None:
            return
        if record.timer:
            record.timer.cancel()
        self.commit(session, list(close_ops(self.leader, session)))
        if record.connection is not None and session in self.expired:
            record.connection.transport.close()


class Connection(asyncio.Protocol):
    """One client's connection to one server."""

    transport: MemoryTransport

    def __init__(self, ensemble: ScriptedEnsemble, server: Server) -> None:
        self.ensemble = ensemble
        self.server = server
        self.session = 0
        self.frames = FrameReader(ensemble.request_bytes_max)
        self.data: dict[str, None] = {}
        self.child: dict[str, None] = {}
        self.persistent: dict[str, int] = {}
        self.identities: list[Auth] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("MemoryTransport", transport)
        self.server.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.remove(self)
        record = self.ensemble.sessions.get(self.session)
        if record and record.connection is self:
            record.connection = None

    def data_received(self, data: bytes) -> None:
        if not self.session and data == b"isro":
            self.transport.write(b"ro" if self.server.read_only else b"rw")
            self.transport.close()
            return
        try:
            frames = self.frames.feed(data)
        except FrameError as error:  # as ZooKeeper: closed without an answer
            frames = error.frames
            self.ensemble.loop.call_soon(self.transport.close)
        for frame in frames:
            if self.transport.is_closing() or self.server.silent:
                return
            if not self.session:
                self.greet(decode_connect(frame))
            else:
                self.handle(frame)

    def greet(self, request: ConnectRequest) -> None:
        ensemble = self.ensemble
        ensemble.requests.append((ensemble.loop.time(), self.server.name, request))
        if request.last_zxid_seen > (self.server.tree.zxid or ensemble.zxid):
            self.transport.close()
            return
        if self.server.read_only and not request.read_only:
            self.transport.close()
            return
        if request.session_id == 0:
            self.session, record = ensemble.new_session(request.timeout_ms)
            if self.server.read_only:
                ensemble.local_sessions.add(self.session)
        else:
            found = ensemble.sessions.get(request.session_id)
            if request.session_id in ensemble.local_sessions:
                found = None
            if found is None or found.password != request.password:
                self.send(encode_connect_response(refusal(with_read_only=True)))
                self.transport.close()
                return
            self.session, record = request.session_id, found
            if record.connection is not None:
                record.connection.transport.close()
        record.connection = self
        ensemble.touch(self.session)
        response = ConnectResponse(
            0, record.timeout_ms, self.session, record.password, self.server.read_only
        )
        self.send(encode_connect_response(response))

    def handle(self, frame: bytes) -> None:
        xid, opcode, op = decode_request(frame)
        ensemble = self.ensemble
        ensemble.requests.append((ensemble.loop.time(), self.server.name, op))
        action = PASS
        for fault in list(ensemble.faults):
            action = fault(self, op)
            if action != PASS:
                break
        if action == LOSE_REQUEST:
            self.transport.close()
            ensemble.on_fault()
            return
        record = ensemble.sessions.get(self.session)
        if action == SWALLOW or record is None or record.connection is not self:
            return
        ensemble.touch(self.session)
        answer = self.answer(xid, opcode, op)
        if action == LOSE_REPLY:
            self.transport.close()
            ensemble.on_fault()
            return
        self.send(answer)
        _, _, code = decode_reply_header(answer[LENGTH_SIZE:])
        gives_up = ensemble.stock and code in _GIVES_UP
        if isinstance(op, CloseSession) or gives_up:
            self.transport.close()

    def answer(self, xid: int, opcode: int, op: Op) -> bytes:
        try:
            if (
                self.server.read_only
                and opcode in WRITE_OPCODES
                and not isinstance(op, CloseSession)
            ):
                return reply(xid, self.server.tree.zxid, ErrorCode.NOT_READ_ONLY)
            if code := self.ensemble.refused.get(type(op)):
                return reply(xid, self.server.tree.zxid, code)
            if opcode in self.ensemble.unimplemented:
                return reply(xid, self.server.tree.zxid, ErrorCode.UNIMPLEMENTED)
            result = self.write(op) if opcode in WRITE_OPCODES else self.read(op)
        except KeeperError as error:
            return reply(xid, self.server.tree.zxid, error.code)
        body = b"" if result is None else encode_result(opcode, result)
        if isinstance(op, Auth) and self.ensemble.refuse_auth:
            return reply(xid, 0, ErrorCode.AUTH_FAILED)
        return reply(xid, self.server.tree.zxid, 0, body)

    def write(self, op: Op) -> Result | None:
        if isinstance(op, CloseSession):
            self.ensemble.end_session(self.session)
            self.ensemble.catch_up(self.server)
            return None
        ops: list[Op] = list(op.ops) if isinstance(op, Multi) else [op]
        try:
            for index, part in enumerate(ops):
                if part.opcode in self.ensemble.unimplemented:
                    unknown = error_for(ErrorCode.UNIMPLEMENTED)
                    unknown.op_index = index
                    raise unknown
            results = self.ensemble.commit(self.session, ops)
        except KeeperError as error:
            if not isinstance(op, Multi):
                raise
            culprit = error.op_index or 0
            codes = [0] * culprit + [int(error.code)] + [-2] * (len(ops) - culprit - 1)
            return MultiResult(tuple(ErrorResult(code) for code in codes))
        finally:
            self.ensemble.catch_up(self.server)
        if isinstance(op, Multi):
            return MultiResult(tuple(results))
        [result] = results
        return None if isinstance(result, DeleteResult | ErrorResult) else cast("Result", result)

    def read(self, op: Op) -> Result | None:
        tree = self.server.tree
        match op:
            case Ping() | Auth():
                if isinstance(op, Auth):
                    self.identities.append(op)
                return None
            case Sync(path):
                self.ensemble.catch_up(self.server)
                return SyncResult(path)
            case GetData(path, watch):
                node = tree.get(path)
                if path in self.ensemble.unreadable:
                    raise error_for(ErrorCode.NO_AUTH, path=path)
                if watch:
                    self.data[path] = None
                return GetDataResult(node.data, node.stat)
            case Exists(path, watch):
                if watch:
                    self.data[path] = None
                return StatResult(tree.get(path).stat)
            case GetChildren(path, watch) | GetChildren2(path, watch):
                node = tree.get(path)
                if watch:
                    self.child[path] = None
                names = tuple(reversed(node.children))
                return (
                    ChildrenResult(names)
                    if isinstance(op, GetChildren)
                    else Children2Result(names, node.stat)
                )
            case GetAcl(path):
                node = tree.get(path)
                return AclResult(node.acl, node.stat)
            case GetEphemerals(prefix):
                paths = tree.ephemerals(self.session)
                return EphemeralsResult(tuple(p for p in paths if p.startswith(prefix or "/")))
            case GetAllChildrenNumber(path):
                below = path.rstrip("/") + "/"
                total = sum(each.startswith(below) and each != "/" for each in tree.nodes)
                return AllChildrenNumberResult(total)
            case MultiRead(ops):
                return MultiResult(tuple(self.part(each) for each in ops))
            case WhoAmI():
                infos = [ClientInfo(each.scheme, each.auth.decode()) for each in self.identities]
                return WhoAmIResult(tuple(infos))
            case RemoveWatches(path, kind):
                if kind in {WatcherType.DATA, WatcherType.ANY}:
                    self.data.pop(path, None)
                if kind in {WatcherType.CHILDREN, WatcherType.ANY}:
                    self.child.pop(path, None)
                if kind not in {WatcherType.DATA, WatcherType.CHILDREN}:
                    self.persistent.pop(path, None)
                return None
            case AddWatch(path, mode):
                self.persistent[path] = mode
                return ErrorResult(0)
            case SetWatches() | SetWatches2():
                self.rearm(op)
                return None
        raise AssertionError(f"a request the script does not know: {op!r}")

    def part(self, op: Op) -> MultiPart:
        try:
            return cast("MultiPart", self.read(op))
        except KeeperError as error:
            return ErrorResult(error.code)

    def rearm(self, op: SetWatches | SetWatches2) -> None:
        nodes = self.server.tree.nodes
        for path in op.data:
            if path not in nodes:
                self.fire(EventType.DELETED, path)
            elif nodes[path].mzxid > op.relative_zxid:
                self.fire(EventType.DATA_CHANGED, path)
            else:
                self.data[path] = None
        for path in op.exist:
            if path in nodes:
                self.fire(EventType.CREATED, path)
            else:
                self.data[path] = None
        for path in op.child:
            if path not in nodes:
                self.fire(EventType.DELETED, path)
            elif nodes[path].pzxid > op.relative_zxid:
                self.fire(EventType.CHILDREN_CHANGED, path)
            else:
                self.child[path] = None
        if isinstance(op, SetWatches2):
            self.persistent.update(dict.fromkeys(op.persistent, 0))
            self.persistent.update(dict.fromkeys(op.persistent_recursive, 1))

    def notice(self, kind: EventType, path: str) -> None:
        table = self.child if kind is EventType.CHILDREN_CHANGED else self.data
        hit = path in table
        table.pop(path, None)
        if kind is EventType.DELETED and path in self.child:
            del self.child[path]
            hit = True
        for watched, mode in self.persistent.items():
            below = watched == "/" or path.startswith(watched + "/")
            recursive = mode == 1 and below and kind is not EventType.CHILDREN_CHANGED
            hit = hit or watched == path or recursive
        if hit:
            self.fire(kind, path)

    def fire(self, kind: EventType, path: str) -> None:
        self.send(watch_event(WatchEvent(kind, KeeperState.SYNC_CONNECTED, path), -1))

    def send(self, data: bytes) -> None:
        if not self.server.silent:
            self.transport.write(data)
