"""The player: one script on one target, step by step, everything heard put in order.

Invariants
    P1  A step is over when every effect of it has been heard: each connection that may have been
        told something has answered a ping behind it, or was hung up on.
    P2  Two players of one script send the same bytes, but for zxids, session ids and passwords.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.compat.differential import script as s
from tests.compat.differential.targets import EVENT, Link, Target

from zabd.model import (
    OPEN_ACL_UNSAFE,
    Auth,
    ConnectRequest,
    Create,
    GetAcl,
    GetChildren2,
    GetData,
    OpCode,
    RemoteProtocolError,
)
from zabd.model.ops import READ_OPCODES
from zabd.wire.frames import frame
from zabd.wire.jute import INT
from zabd.wire.replies import decode_connect_response, decode_reply_header
from zabd.wire.requests import encode_connect

CONTROL: Final = "control"
"""The connection that makes the root and looks at everything; it may, for it is super."""

UNKNOWN_SESSION: Final = 0x5EED
SESSION_TIMEOUT_MS: Final = 40_000
ROOT_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"

_PING: Final = frame(INT.pack(s.PING_XID) + INT.pack(OpCode.PING))
_PING_REPLY: Final = INT.pack(s.PING_XID)
_CLOSE: Final = frame(INT.pack(1) + INT.pack(OpCode.CLOSE_SESSION))
_EVERYTHING: Final = 1 << 30
_KNOWN: Final = frozenset(OpCode)
_QUIET: Final = READ_OPCODES | {OpCode.PING, OpCode.SYNC, OpCode.CHECK}


class Heard(NamedTuple):
    """What one step made the clients hear."""

    frames: dict[str, tuple[bytes, ...]]
    closed: frozenset[str]
    """Connections that are gone by now."""


@dataclass
class Session:
    """A session as its client knows it."""

    session_id: int = UNKNOWN_SESSION
    password: bytes = bytes(16)
    seen: list[int] = field(default_factory=list)
    closed: bool = False


class Stage:
    """One target for any number of scripts, each below a root of its own.

    With `hangs_up_first` a session is resumed only after its connection was cut: on a member that
    the old connection does not belong to, nobody else would cut it at once.
    """

    def __init__(
        self, target: Target, super_credentials: bytes, *, hangs_up_first: bool = False
    ) -> None:
        self.target = target
        self.hangs_up_first = hangs_up_first
        self.scripts_played = 0
        self.control = target.dial()
        request = ConnectRequest(0, 0, SESSION_TIMEOUT_MS, 0, bytes(16), read_only=False)
        self.control.send(encode_connect(request))
        self.control.wait(1)
        auth = s.body_of(Auth(0, "digest", super_credentials), [])
        self.control.send(frame(INT.pack(s.AUTH_XID) + INT.pack(OpCode.AUTH) + auth))
        self.control.wait(2)
        assert len(self.control.frames) == 2, "the server lets nobody in"

    def close(self) -> None:
        """Nothing more is going to be played."""
        self.control.hang_up()

    def player(self) -> Player:
        """A player with a root that no script has used before."""
        self.scripts_played += 1
        root = _root(self.scripts_played)
        return Player(self.target, self.control, root, hangs_up_first=self.hangs_up_first)


def _root(number: int) -> bytes:
    digits = ""
    for _ in range(len(s.ROOT) - 2):
        number, digit = divmod(number, len(ROOT_DIGITS))
        digits = ROOT_DIGITS[digit] + digits
    return s.ROOT[:2].encode() + digits.encode()


class Player:
    """Plays one script's steps; `finish` leaves the target without a trace of its sessions."""

    def __init__(self, target: Target, control: Link, root: bytes, *, hangs_up_first: bool) -> None:
        self._target = target
        self._hangs_up_first = hangs_up_first
        self._root = root
        self._links: dict[str, Link] = {CONTROL: control}
        self._sessions: dict[str, Session] = {CONTROL: Session()}
        self._next_xid: dict[str, int] = {CONTROL: 1}
        control.frames = []

    def play(self, step: s.Step) -> Heard:
        """Do what the step says and listen until nothing more can come of it."""
        match step:
            case s.Connect():
                self._connect(step)
            case s.Send(name, requests):
                self._send(name, requests)
            case s.Garbage(name, data):
                self._links[name].send(data)
                self._barrier([name])
            case s.Dial(name, data):
                link = self._links[name] = self._target.dial()
                self._sessions[name] = Session()
                self._next_xid[name] = 1
                link.send(data)
                link.wait(1)
            case s.HangUp(name):
                self._links[name].hang_up()
        self._settle(step)
        return self._take()

    def finish(self) -> None:
        """End the sessions that are still open."""
        control = self._links.pop(CONTROL)
        control.frames = []
        for session in {id(each): each for each in self._sessions.values()}.values():
            if not session.closed and session.session_id != UNKNOWN_SESSION:
                self._end(session)
        for link in self._links.values():
            link.hang_up()

    def _end(self, session: Session) -> None:
        link = self._target.dial()
        request = ConnectRequest(0, 0, 4_000, session.session_id, session.password, False)
        link.send(encode_connect(request) + _CLOSE)
        link.wait(_EVERYTHING)
        link.hang_up()

    # ---- steps -----------------------------------------------------------------------------

    def _connect(self, step: s.Connect) -> None:
        old = self._sessions.get(step.resume or "") or Session()
        if step.resume and (self._hangs_up_first or step.password is not None):
            # The intended difference `password-first`: nobody may go on with that connection.
            self._hang_up_all_of(old)
        link = self._links[step.name] = self._target.dial()
        session = self._sessions[step.name] = old if step.resume else Session()
        self._next_xid[step.name] = 1
        password = session.password if step.password is None else step.password
        request = ConnectRequest(
            protocol_version=0,
            last_zxid_seen=s.zxid_of(step.last_zxid, session.seen),
            timeout_ms=step.timeout_ms,
            session_id=session.session_id if step.resume else 0,
            password=password,
            read_only=step.read_only,
        )
        link.send(encode_connect(request) + self._encode(step.name, step.requests))
        link.wait(1)
        if self._is_open(link, session):
            link.wait(1 + len(step.requests))
        else:
            link.wait(_EVERYTHING)

    def _hang_up_all_of(self, session: Session) -> None:
        for name, other in self._sessions.items():
            if other is session:
                self._links[name].hang_up()

    def _is_open(self, link: Link, session: Session) -> bool:
        if not link.frames:
            return False
        try:
            answer = decode_connect_response(link.frames[0])
        except RemoteProtocolError:
            return False
        if answer.refused:
            return False
        session.session_id, session.password = answer.session_id, answer.password
        return True

    def _send(self, name: str, requests: tuple[s.Request, ...]) -> None:
        link = self._links[name]
        link.send(self._encode(name, requests))
        link.wait(len(requests))

    def _encode(self, name: str, requests: tuple[s.Request, ...]) -> bytes:
        return b"".join([self._encode_one(name, request) for request in requests])

    def _encode_one(self, name: str, request: s.Request) -> bytes:
        xid = s.xid_of(request, self._next_xid[name])
        self._next_xid[name] += 1
        op = s.op_of(request)
        body = s.body_of(op, self._sessions[name].seen)
        body = body.replace(s.ROOT.encode(), self._root)
        return frame(INT.pack(xid) + INT.pack(op.opcode) + body)

    # ---- listening -------------------------------------------------------------------------

    def _settle(self, step: s.Step) -> None:
        """P1."""
        opcodes = [s.opcode_of(request) for request in s.requests_of(step)]
        if any(opcode not in _KNOWN for opcode in opcodes):
            # The intended difference `unknown-op`: the reference is about to hang up.
            self._links[step.name].hang_up()
        resumes = isinstance(step, s.Connect) and step.resume
        if resumes or any(opcode not in _QUIET for opcode in opcodes):
            self._barrier([name for name in self._links if name != step.name])
        if any(opcode in (OpCode.CLOSE_SESSION, OpCode.AUTH) for opcode in opcodes):
            self._barrier([step.name])
        if OpCode.CLOSE_SESSION in opcodes:
            self._sessions[step.name].closed = self._links[step.name].closed

    def _barrier(self, names: list[str]) -> None:
        links = [self._links[name] for name in names if not self._links[name].closed]
        before = [_pings(link) for link in links]
        for link in links:
            link.send(_PING)
        for link, pings in zip(links, before, strict=True):
            heard = -1
            while _pings(link) == pings and not link.closed and len(link.frames) > heard:
                heard = len(link.frames)
                link.wait(_replies(link) + 1)
            if _pings(link) > pings:
                # The last answer to a ping is the one to ours; those to the script's stay.
                last = max(n for n, f in enumerate(link.frames) if f.startswith(_PING_REPLY))
                del link.frames[last]

    def _take(self) -> Heard:
        frames = {}
        for name, link in self._links.items():
            if link.frames:
                frames[name] = tuple(f.replace(self._root, s.ROOT.encode()) for f in link.frames)
                self._note_zxids(self._sessions[name], link.frames)
                link.frames = []
        return Heard(frames, frozenset(name for name, link in self._links.items() if link.closed))

    def _note_zxids(self, session: Session, frames: list[bytes]) -> None:
        for data in frames:
            if len(data) >= 16 and not data.startswith((EVENT, _PING_REPLY, bytes(4))):
                zxid = decode_reply_header(data)[1]
                if zxid > 0:
                    session.seen.append(max(zxid, session.seen[-1] if session.seen else 0))


def _replies(link: Link) -> int:
    return sum(not data.startswith(EVENT) for data in link.frames)


def _pings(link: Link) -> int:
    return sum(data.startswith(_PING_REPLY) for data in link.frames)


# What the control connection does before and after each script.

OPENING: Final = s.Send(CONTROL, (Create(s.ROOT, b"", OPEN_ACL_UNSAFE, 0),))


def look_at(paths: list[str]) -> s.Send:
    """The step that reads all there is to know of these znodes."""
    kinds = (GetData, GetChildren2)
    reads: list[s.Request] = [kind(path, False) for path in paths for kind in kinds]
    return s.Send(CONTROL, (*reads, *[GetAcl(path) for path in paths]))
