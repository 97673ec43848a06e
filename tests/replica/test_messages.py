"""The replica's own talk survives the trip and refuses everything else."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zabd.model.acl import Identity
from zabd.model.errors import RemoteProtocolError
from zabd.replica.messages import (
    Answer,
    AnswerKind,
    Answers,
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
_intents = st.builds(
    Intent, st.just(ORIGIN), _u32, _i64, st.integers(-20, 120), st.binary(max_size=50), _identities
)
_messages: st.SearchStrategy[Message] = st.one_of(
    st.lists(_intents, max_size=5).map(lambda items: Forward(tuple(items))),
    st.lists(st.tuples(_i64, _u32), max_size=5).map(lambda items: Touches(tuple(items))),
    st.lists(st.builds(Answer, st.sampled_from(AnswerKind), _u32, _u32), max_size=5).map(
        lambda items: Answers(tuple(items))
    ),
    st.builds(DigestAt, _u32, st.integers(0, 2**64 - 1)),
)


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
        msgpack.packb(5),
        b"",
    ],
)
def test_malformed_talk_is_named_as_such(payload: bytes) -> None:
    """Unknown kinds, missing identity sets and short entries are refused with a sentence."""
    with pytest.raises(RemoteProtocolError, match="member 2 sent a frame"):
        decode(payload, ORIGIN)
