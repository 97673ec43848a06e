"""What members say to each other besides Zab, carried in order on the quorum channel.

A follower forwards its clients' intents; the leader answers those that do not end in a
transaction. Everything else comes back to the follower through the log. The frames are opaque to
`zabd.zab`, which only keeps them in order with its own.

Source: client protocol, sections 3, 14 and 15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple, TypeAlias

import msgpack

from zabd.model.acl import Identity
from zabd.model.errors import RemoteProtocolError
from zabd.model.ids import MemberId, SessionId
from zabd.model.ops import OpCode
from zabd.model.values import value
from zabd.replica.config import JUTE_MAXBUFFER_MAX

RequestId: TypeAlias = int
"""A member's own number for something it asked of the leader; unique for the member's process."""

NOBODY_WAITS = 0
"""Nobody waits for the answer of this request: the leader itself asked."""

NO_SESSION = 0
"""Who asks where a local session does: only the member that holds it can say that it is alive, and
says so by this. An id that the leader does not know is that of a session that is over, whatever it
once was: one that became global is fenced like any other."""

VALIDATE = -12
"""Internal opcode: is this session alive? If so, it speaks through the asking member now."""

FORWARD_BYTES_MAX = 4 * 1024 * 1024
"""Bytes in one `Forward`; one more request of at most jute.maxbuffer may exceed it."""

INTENT_BYTES = 40
"""What an intent takes in a `Forward` beside its frame and identities, at the most."""


_UNICODE_ERRORS = "surrogatepass"
"""Ids of clients may hold lone surrogates, as the tree's ACLs do."""

_LENGTHS = 8
"""What says of an identity how long its parts are."""


class Intent(NamedTuple):
    """Something a client wants that only the leader can decide.

    `frame` is the client's request as it came, header included; for a new session and for
    `VALIDATE` it is the wanted timeout in ms as four bytes. `session_id` is `NO_SESSION` for a new
    session and for what a local session asks.
    """

    origin: MemberId
    request_id: RequestId
    session_id: SessionId
    opcode: int
    frame: bytes
    identities: tuple[Identity, ...]


def size_of(identities: tuple[Identity, ...]) -> int:
    """How many bytes the identities take in a `Forward`, where each set of them stands once."""
    return sum(
        len(identity.scheme) + len(identity.id.encode(errors=_UNICODE_ERRORS)) + _LENGTHS
        for identity in identities
    )


class AnswerKind(IntEnum):
    """What the leader says of an intent outside the log."""

    REFUSED = 0  # the session speaks through another member now: cut the connection
    ALIVE = 1  # the validated session lives; value is its timeout in ms
    GONE = 2  # the validated session is closed, closing or unknown
    SYNCED = 3  # leadership was confirmed; value is the zxid that the sync has to wait for


class Answer(NamedTuple):
    """The leader's word on one intent."""

    kind: AnswerKind
    request_id: RequestId
    value: int


@value
class Forward:
    """Member to leader: intents in the order their clients had them."""

    intents: tuple[Intent, ...]


@value
class Touches:
    """Member to leader: sessions heard of lately, and how many ms ago."""

    ages_ms: tuple[tuple[SessionId, int], ...]


@value
class Answers:
    """Leader to member: what does not come through the log."""

    answers: tuple[Answer, ...]


@value
class DigestAt:
    """Member to leader: the digest my tree had at this zxid; all of ours must be the same."""

    zxid: int
    digest: int


@value
class Differs:
    """Leader to member: your tree is not as it should be, if it had another digest than this.

    `decided`: a quorum's trees had this one. Else it is mine, and no quorum agrees on any.
    """

    zxid: int
    digest: int
    decided: bool


Message: TypeAlias = Forward | Touches | Answers | DigestAt | Differs

_make_intent = partial(tuple.__new__, Intent)
"""An intent of its fields, in a third of the time of the constructor, which is a call in Python."""


TIMEOUT_BYTES = 4
SESSION_ID_LIMIT = 1 << 63

_TIMED = frozenset((int(OpCode.CREATE_SESSION), VALIDATE))
_LEADERS_OWN_OR_TIMED = _TIMED | {int(OpCode.DELETE_CONTAINER)}
"""What has no frame of a client, which would be looked at when it is prepared."""

_NOT_OURS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,  # of a float that no int is as large as
    msgpack.UnpackException,
)

_FORWARD, _TOUCHES, _ANSWERS, _DIGEST_AT, _DIFFERS = range(5)


def encode(message: Message) -> bytes:
    """The payload of a `Carried` frame."""
    packed: bytes = msgpack.packb(_as_list(message), unicode_errors=_UNICODE_ERRORS)
    return packed


def decode(payload: bytes, origin: MemberId) -> Message:
    """The message in a `Carried` frame that came from member `origin`.

    Raises `RemoteProtocolError` for anything that `encode` would not have written.
    """
    try:
        kind, *fields = msgpack.unpackb(payload, use_list=False, unicode_errors=_UNICODE_ERRORS)
        message = _READERS[kind](origin, *fields)
        if len(payload) > JUTE_MAXBUFFER_MAX:
            _require_fitting(message)
        return message
    except _NOT_OURS as error:
        raise RemoteProtocolError(
            f"member {origin} sent a frame that is not replica talk ({error}); "
            "all members must run versions that understand each other"
        ) from error


def _as_list(message: Message) -> list[object]:
    match message:
        case Forward(intents):
            return [_FORWARD, *_pack_intents(intents)]
        case Touches(ages_ms):
            return [_TOUCHES, ages_ms]
        case Answers(answers):
            return [_ANSWERS, answers]
        case DigestAt(zxid, digest):
            return [_DIGEST_AT, zxid, digest]
        case Differs(zxid, digest, decided):
            return [_DIFFERS, zxid, digest, decided]


def _pack_intents(intents: tuple[Intent, ...]) -> list[object]:
    """The intents column by column: neither end then touches each of them in Python.

    Measured, for both ends together: 0.6 us an intent, where rows took 1.7 us.
    """
    if not intents:
        return [(), (), (), (), (), ()]
    _, request_ids, session_ids, opcodes, frames, identities = zip(*intents, strict=True)
    # Most intents of a batch share one of few identity sets, so each set travels once.
    places = dict.fromkeys(identities)
    if len(places) > 1:
        places = dict(zip(places, range(len(places)), strict=True))
        return [
            list(places),
            request_ids,
            session_ids,
            opcodes,
            frames,
            [*map(places.get, identities)],
        ]
    return [list(places), request_ids, session_ids, opcodes, frames, (0,) * len(intents)]


def _read_forward(
    origin: MemberId,
    sets: Sequence[Sequence[tuple[str, str]]],
    request_ids: Sequence[int],
    session_ids: Sequence[int],
    opcodes: Sequence[int],
    frames: Sequence[bytes],
    places: Sequence[int],
) -> Forward:
    for column in (request_ids, session_ids, opcodes, places):
        _require_type(column, int)
    _require_type(frames, bytes)
    if not _LEADERS_OWN_OR_TIMED.isdisjoint(opcodes):
        _require_sessions(session_ids, opcodes, frames)
    identity_sets = [
        tuple(Identity(str(scheme), str(name)) for scheme, name in members) for members in sets
    ]
    identities = map(identity_sets.__getitem__, places)
    origins = (origin,) * len(request_ids)
    rows = zip(origins, request_ids, session_ids, opcodes, frames, identities, strict=True)
    return Forward(tuple(map(_make_intent, rows)))


def _require_sessions(
    session_ids: Sequence[int], opcodes: Sequence[int], frames: Sequence[bytes]
) -> None:
    """What opens or resumes a session says which and for how long; the leader alone removes."""
    for session_id, opcode, frame in zip(session_ids, opcodes, frames, strict=True):
        if opcode == OpCode.DELETE_CONTAINER:
            raise ValueError("containers are removed by the leader alone")
        if opcode in _TIMED and not (
            -SESSION_ID_LIMIT <= session_id < SESSION_ID_LIMIT
            and len(frame) == TIMEOUT_BYTES
            and int.from_bytes(frame, "big") < 1 << 31
        ):
            raise ValueError(f"no session has this id or timeout: {session_id}, {frame[:8]!r}")


def _require_type(column: Sequence[object], kind: type) -> None:
    if not {*map(type, column)} <= {kind}:
        raise TypeError(f"a column holds something else than {kind.__name__}")


def _require_fitting(message: Message) -> None:
    """No batch holds a larger request than any member may take."""
    frames = [intent.frame for intent in message.intents] if isinstance(message, Forward) else []
    if frames and max(map(len, frames)) > JUTE_MAXBUFFER_MAX:
        raise ValueError(f"a request has more than {JUTE_MAXBUFFER_MAX} bytes")


def _read_touches(_origin: MemberId, ages_ms: Sequence[tuple[int, int]]) -> Touches:
    return Touches(tuple((int(session_id), int(age_ms)) for session_id, age_ms in ages_ms))


def _read_answers(_origin: MemberId, answers: Sequence[tuple[int, int, int]]) -> Answers:
    return Answers(
        tuple(
            Answer(AnswerKind(kind), int(request_id), int(value))
            for kind, request_id, value in answers
        )
    )


def _read_digest_at(_origin: MemberId, zxid: int, digest: int) -> DigestAt:
    return DigestAt(int(zxid), int(digest))


def _read_differs(_origin: MemberId, zxid: int, digest: int, decided: object) -> Differs:
    return Differs(int(zxid), int(digest), bool(decided))


_READERS: dict[int, Callable[..., Message]] = {
    _FORWARD: _read_forward,
    _TOUCHES: _read_touches,
    _ANSWERS: _read_answers,
    _DIGEST_AT: _read_digest_at,
    _DIFFERS: _read_differs,
}
