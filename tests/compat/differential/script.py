"""Scripts: what several clients do, one step after the other, the same for every server.

A script is a list of steps that prints as Python and reads as such again, so a difference that was
found is pasted into a test as it is printed. Everything is below one root, written `/r0000` in
scripts; the player puts a root that no script had before in its place, of the same length, so that
one server can serve any number of scripts.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from zabd.model import KeeperError, Op, OpCode, SetWatches, SetWatches2
from zabd.wire.opcodes import REQUESTS
from zabd.wire.requests import decode_op

ROOT: Final = "/r0000"

LAST_SEEN: Final = -(2**62)
"""In place of a zxid: the greatest that the session has seen; `LAST_SEEN - n`: n replies ago."""

SEEN_MAX: Final = 1000

FUTURE: Final = 2**62
"""In place of a zxid: one that no server has reached."""

PING_XID: Final = -2
AUTH_XID: Final = -4
SET_WATCHES_XID: Final = -8


class Raw(NamedTuple):
    """A request of any type with any bytes for a body."""

    opcode: int
    body: bytes


class Xid(NamedTuple):
    """A request that comes with this xid instead of the next one."""

    xid: int
    request: Op | Raw


Request: TypeAlias = Op | Raw | Xid


class Connect(NamedTuple):
    """Open the connection `name`, for a new session or one that an earlier connection had.

    `password` is that of the session, unless it is given. `requests` are sent behind the handshake
    without waiting for its answer.
    """

    name: str
    resume: str | None = None
    password: bytes | None = None
    timeout_ms: int = 10_000
    last_zxid: int = 0
    read_only: bool | None = False
    requests: tuple[Request, ...] = ()


class Send(NamedTuple):
    """Send the requests in one go, and wait for all answers."""

    name: str
    requests: tuple[Request, ...]


class Garbage(NamedTuple):
    """Send bytes that are no request at all."""

    name: str
    data: bytes


class Dial(NamedTuple):
    """Open the connection `name` with bytes that are no handshake a server can take."""

    name: str
    data: bytes


class HangUp(NamedTuple):
    """Cut the connection; the session goes on."""

    name: str


Step: TypeAlias = Connect | Send | Garbage | Dial | HangUp
Script: TypeAlias = tuple[Step, ...]


def op_of(request: Request) -> Op | Raw:
    """The request without the xid it is given."""
    return request.request if isinstance(request, Xid) else request


def meaning_of(request: Request) -> Op | Raw:
    """The op that a server will make of the request's bytes, if they are one."""
    op = op_of(request)
    if not isinstance(op, Raw):
        return op
    try:
        return decode_op(op.opcode, op.body, 0)
    except KeeperError:
        return op


def requests_of(step: Step) -> tuple[Request, ...]:
    """The requests that a step sends."""
    return step.requests if isinstance(step, Connect | Send) else ()


def count_requests(script: Script) -> int:
    """How many requests a script has, handshakes and garbage included."""
    return sum(
        len(requests_of(step)) + isinstance(step, Connect | Garbage | Dial) for step in script
    )


def xid_of(request: Request, next_xid: int) -> int:
    """The xid that a client would send it with."""
    if isinstance(request, Xid):
        return request.xid
    match request.opcode:
        case OpCode.PING:
            return PING_XID
        case OpCode.AUTH:
            return AUTH_XID
        case OpCode.SET_WATCHES | OpCode.SET_WATCHES2:
            return SET_WATCHES_XID
        case _:
            return next_xid


def body_of(request: Op | Raw, seen: list[int]) -> bytes:
    """The body on the wire; `seen` are the zxids that the session has seen, in order."""
    if isinstance(request, Raw):
        return request.body
    if isinstance(request, SetWatches | SetWatches2):
        request = request._replace(relative_zxid=zxid_of(request.relative_zxid, seen))
    return REQUESTS[request.opcode].write(request)


def zxid_of(written: int, seen: list[int]) -> int:
    """The zxid that a script means."""
    if not LAST_SEEN - SEEN_MAX <= written <= LAST_SEEN:
        return written
    back = LAST_SEEN - written
    return seen[-1 - back] if back < len(seen) else 0


def opcode_of(request: Request) -> int:
    """The type on the wire."""
    return op_of(request).opcode


def show(script: Script) -> str:
    """The script as Python that reads the same again."""
    lines = [f"    {_show_step(step)},\n" for step in script]
    return f"(\n{''.join(lines)})"


def _show_step(step: Step) -> str:
    """One line for a step, one more for each of several requests; what is default is left out."""
    parts = [repr(step.name)]
    defaults = type(step)._field_defaults
    for name, value in zip(step._fields[1:], step[1:], strict=True):
        if name == "requests" and value:
            inner = "".join(f"\n            {_show_request(request)}," for request in value)
            parts.append(f"requests=({inner}\n        )")
        elif name not in defaults or value != defaults[name]:
            parts.append(f"{name}={value!r}")
    return f"{type(step).__name__}({', '.join(parts)})"


def _show_request(request: Request) -> str:
    if isinstance(request, Raw):
        return f"Raw({int(request.opcode)}, {request.body!r})"
    if isinstance(request, Xid):
        return f"Xid({request.xid}, {_show_request(request.request)})"
    return repr(request)
