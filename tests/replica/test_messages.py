"""The replica's own talk survives the trip and refuses everything else."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zabd.model.acl import Identity
from zabd.model.errors import RemoteProtocolError
from zabd.model.ops import OpCode
from zabd.replica.messages import (
    VALIDATE,
    Answer,
    AnswerKind,
    Answers,
    Differs,
    DigestAt,
    Forward,
    Intent,
    Message,
    Touches,
    decode,
    encode,
)

ORIGIN = 2
_u32 = st.integers(0, 2**32 - 1)
_i64 = st.integers(-(2**63), 2**63 - 1)
_text = st.text(st.characters(), max_size=8)  # lone surrogates included
_identities = st.lists(st.builds(Identity, _text, _text), max_size=3).map(tuple)
CREATE_SESSION = int(OpCode.CREATE_SESSION)
_OF_SESSIONS = (CREATE_SESSION, VALIDATE)
_opcodes = st.integers(-20, 120).filter(
    lambda opcode: opcode not in (*_OF_SESSIONS, OpCode.DELETE_CONTAINER)
)
_timeouts = st.integers(0, 2**31 - 1).map(lambda timeout_ms: timeout_ms.to_bytes(4, "big"))
_origin = st.just(ORIGIN)
_intents = st.one_of(
    st.builds(Intent, _origin, _u32, _i64, _opcodes, st.binary(max_size=50), _identities),
    st.builds(Intent, _origin, _u32, _i64, st.sampled_from(_OF_SESSIONS), _timeouts, _identities),
)
_messages: st.SearchStrategy[Message] = st.one_of(
    st.lists(_intents, max_size=5).map(lambda items: Forward(tuple(items))),
    st.lists(st.tuples(_i64, _u32), max_size=5).map(lambda items: Touches(tuple(items))),
    st.lists(st.builds(Answer, st.sampled_from(AnswerKind), _u32, _u32), max_size=5).map(
        lambda items: Answers(tuple(items))
    ),
    st.builds(DigestAt, _u32, st.integers(0, 2**64 - 1)),
    st.builds(Differs, _u32, st.integers(0, 2**64 - 1), st.booleans()),
)


def forwarded(opcode: int, frame: bytes, session_id: int = 1) -> bytes:
    """The payload of a forwarded intent."""
    return encode(Forward((Intent(ORIGIN, 1, session_id, opcode, frame, ()),)))


@given(_messages)
def test_every_message_comes_out_as_it_went_in(message: Message) -> None:
    """What a follower forwards is what the leader prepares."""
    assert decode(encode(message), ORIGIN) == message


@given(st.binary(max_size=60))
def test_any_other_bytes_cost_only_the_link(payload: bytes) -> None:
    """A peer that talks rubbish raises the error that drops its link, and no other."""
    try:
        decode(payload, ORIGIN)
    except RemoteProtocolError:
        return


@pytest.mark.parametrize(
    "payload",
    [
        msgpack.packb([9, 1]),
        msgpack.packb([0, [], [1], [2], [3], [b""], [0]]),
        msgpack.packb([0, [[]], [1], [2], [3], [b""]]),
        msgpack.packb([0, [[]], [1], [2], [3], ["text"], [0]]),
        msgpack.packb([0, [[]], [1, 2], [2], [3], [b""], [0]]),
        msgpack.packb([0, [[]], [1], [2], [3.5], [b""], [0]]),
        msgpack.packb([2, [[77, 1, 1]]]),
        msgpack.packb([1, [[1, float("inf")]]]),
        forwarded(CREATE_SESSION, bytes(100)),
        forwarded(CREATE_SESSION, b""),
        forwarded(CREATE_SESSION, b"\x80\0\0\0"),
        forwarded(CREATE_SESSION, bytes(4), session_id=1 << 63),
        forwarded(VALIDATE, bytes(5)),
        forwarded(OpCode.DELETE_CONTAINER, b"\xff"),
        msgpack.packb(5),
        b"",
    ],
)
def test_malformed_talk_is_named_as_such(payload: bytes) -> None:
    """Unknown kinds, missing identity sets and short entries are refused with a sentence."""
    with pytest.raises(RemoteProtocolError, match="member 2 sent a frame"):
        decode(payload, ORIGIN)
