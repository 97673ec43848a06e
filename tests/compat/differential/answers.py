"""Answers: the frames of one connection in one step, taken apart.

A frame whose parts, put together again, are other bytes keeps its bytes in `odd`: so what is equal
here was equal on the wire, but for what a comparison leaves out on purpose.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.compat.differential import script as s
from tests.compat.differential.targets import EVENT

from zabd.model import OpCode, RemoteProtocolError, Result, WatchEvent
from zabd.model.errors import LocalProtocolError
from zabd.wire.replies import (
    REPLY_HEADER_SIZE,
    decode_reply_header,
    decode_result,
    decode_watch_event,
    encode_result,
    watch_event,
)

_LENGTH_SIZE = 4


class Answer(NamedTuple):
    """The reply to one request, with the events that came since the one before."""

    xid: int
    zxid: int
    error: int
    result: Result | None
    odd: bytes
    events: tuple[Happening, ...]


class Happening(NamedTuple):
    """One watch event."""

    zxid: int
    event: WatchEvent | None
    odd: bytes = b""


class Answers(NamedTuple):
    """All of a step on one connection."""

    answers: tuple[Answer, ...]
    pings: int
    events: tuple[Happening, ...]
    """What came behind the last reply."""


def read_answers(frames: tuple[bytes, ...], requests: tuple[s.Request, ...]) -> Answers:
    """Frames without a handshake; `requests` are those that these frames answer."""
    opcodes = [s.opcode_of(request) for request in requests]
    in_order = iter([opcode for opcode in opcodes if opcode != OpCode.PING])
    answers: list[Answer] = []
    events: list[Happening] = []
    pings = 0
    for data in frames:
        if data.startswith(EVENT):
            events.append(_read_event(data))
        elif decode_reply_header(data)[0] == s.PING_XID and len(data) == REPLY_HEADER_SIZE:
            pings += 1
        else:
            answers.append(_read_answer(data, next(in_order, None), tuple(events)))
            events = []
    return Answers(tuple(answers), pings, tuple(events))


def _read_event(data: bytes) -> Happening:
    try:
        zxid = decode_reply_header(data)[1]
        event = decode_watch_event(data)
    except RemoteProtocolError:
        return Happening(0, None, data)
    same = watch_event(event, zxid)[_LENGTH_SIZE:] == data
    return Happening(zxid, event, b"" if same else data)


def _read_answer(data: bytes, opcode: int | None, events: tuple[Happening, ...]) -> Answer:
    xid, zxid, error = decode_reply_header(data)
    body = data[REPLY_HEADER_SIZE:]
    if error or opcode is None:
        return Answer(xid, zxid, error, None, body, events)
    try:
        result = decode_result(opcode, data)
        odd = b"" if encode_result(opcode, result) == body else body
    except (RemoteProtocolError, LocalProtocolError):
        result, odd = None, body
    return Answer(xid, zxid, error, result, odd, events)
