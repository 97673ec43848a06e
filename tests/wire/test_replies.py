"""Replies survive the way over the wire; a hostile server can only be refused."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire import strategies

from zabd.model import (
    ConnectResponse,
    EmptyResult,
    ErrorCode,
    GetDataResult,
    LocalProtocolError,
    OpCode,
    RemoteProtocolError,
    Result,
    Stat,
    StatResult,
    SyncResult,
    WatchEvent,
    refusal,
)
from zabd.wire import (
    EVENT_XID,
    FrameReader,
    decode_connect_response,
    decode_reply_header,
    decode_result,
    decode_watch_event,
    encode_connect_response,
    encode_result,
    exists_reply,
    get_data_reply,
    pack_stat,
    path_reply,
    reply,
    stat_reply,
    watch_event,
)
from zabd.wire.opcodes import RESULTS

STAT = Stat(*range(1, 12))


def body_of(framed: bytes) -> bytes:
    """The frame without its length, which has to be right."""
    [body] = FrameReader().feed(framed)
    return body


@given(strategies.answers)
def test_a_result_survives_the_wire(answer: tuple[OpCode, Result]) -> None:
    """What the server answers is what the client reads, type and value."""
    opcode, result = answer

    frame = body_of(reply(7, 2**40, 0, encode_result(opcode, result)))

    got = decode_result(opcode, frame)
    assert got == result
    assert type(got) is type(result)
    assert decode_reply_header(frame) == (7, 2**40, 0)
    assert RESULTS[opcode].read(frame, 16)[1] == len(frame)


@given(strategies.int32s, strategies.int64s, strategies.int32s)
def test_a_header_survives_the_wire(xid: int, zxid: int, err: int) -> None:
    """An error is the header alone."""
    frame = body_of(reply(xid, zxid, err))

    assert decode_reply_header(frame) == (xid, zxid, err)
    assert len(frame) == 16


# --- the builders of the hot path give what the general way gives ---


@given(strategies.buffers, strategies.stats)
def test_get_data_reply_is_the_general_reply(data: bytes | None, stat: Stat) -> None:
    """Null data included."""
    body = encode_result(OpCode.GET_DATA, GetDataResult(data, stat))

    assert get_data_reply(3, 9, data, pack_stat(stat)) == reply(3, 9, 0, body)


@given(strategies.stats)
def test_stat_reply_is_the_general_reply(stat: Stat) -> None:
    """For exists, setData and setACL, the Stat packed before or not."""
    body = encode_result(OpCode.EXISTS, StatResult(stat))

    assert stat_reply(3, 9, stat) == reply(3, 9, 0, body)
    assert exists_reply(3, 9, pack_stat(stat)) == reply(3, 9, 0, body)


@given(strategies.paths)
def test_path_reply_is_the_general_reply(path: str) -> None:
    """For create and sync."""
    body = encode_result(OpCode.SYNC, SyncResult(path))

    assert path_reply(3, 9, path) == reply(3, 9, 0, body)


def test_a_result_of_another_request_is_a_mistake() -> None:
    """The client would read it as something else."""
    with pytest.raises(LocalProtocolError, match="no answer"):
        encode_result(OpCode.GET_DATA, StatResult(STAT))
    with pytest.raises(LocalProtocolError, match="no answer"):
        encode_result(OpCode.DELETE_CONTAINER, EmptyResult())
    with pytest.raises(LocalProtocolError, match="no operation"):
        decode_result(OpCode.DELETE_CONTAINER, bytes(16))


# --- events ---


@given(strategies.events, strategies.int64s)
def test_an_event_survives_the_wire(event: WatchEvent, zxid: int) -> None:
    """Its frame is a reply to nobody: xid -1, no error."""
    frame = body_of(watch_event(event, zxid))

    assert decode_reply_header(frame) == (EVENT_XID, zxid, ErrorCode.OK)
    assert decode_watch_event(frame) == event


@pytest.mark.parametrize(("kind", "state"), [(9, 3), (1, 99)])
def test_an_event_of_no_known_kind_is_refused(kind: int, state: int) -> None:
    """A client cannot tell its user what it does not understand."""
    frame = bytes(16) + struct.pack(">iii", kind, state, 1) + b"/"

    with pytest.raises(RemoteProtocolError, match="event"):
        decode_watch_event(frame)


# --- the handshake's answer ---


@given(strategies.connect_responses)
def test_a_connect_response_survives_the_wire(response: ConnectResponse) -> None:
    """With and without readOnly."""
    assert decode_connect_response(body_of(encode_connect_response(response))) == response


@pytest.mark.parametrize(("with_read_only", "size"), [(True, 41), (False, 40)])
def test_a_refusal_has_the_size_that_c_clients_read(*, with_read_only: bool, size: int) -> None:
    """They read 41 bytes at once, 40 from an old server, and nothing else (section 2)."""
    framed = encode_connect_response(refusal(with_read_only=with_read_only))

    assert len(framed) == size
    response = decode_connect_response(body_of(framed))
    assert response.refused
    assert response.password == bytes(16)


def test_a_password_of_another_size_is_not_sent() -> None:
    """It would shift everything that a C client reads after it."""
    with pytest.raises(LocalProtocolError, match="16"):
        encode_connect_response(ConnectResponse(0, 1000, 1, b"short", read_only=False))


# --- P33: a hostile server ---


@given(st.sampled_from(sorted(RESULTS)), st.binary(max_size=80))
def test_any_result_is_read_or_refused(opcode: int, body: bytes) -> None:
    """Whatever comes, only the link is lost."""
    with contextlib.suppress(RemoteProtocolError):
        decode_result(opcode, body, 0)


@given(st.binary(max_size=60))
def test_any_frame_is_read_or_refused(frame: bytes) -> None:
    """Headers, events and handshakes."""
    for decode in (decode_reply_header, decode_watch_event, decode_connect_response):
        with contextlib.suppress(RemoteProtocolError):
            decode(frame)


@given(strategies.answers, st.data())
def test_a_changed_result_is_read_or_refused(
    answer: tuple[OpCode, Result], data: st.DataObject
) -> None:
    """One wrong byte anywhere."""
    opcode, result = answer
    frame = bytearray(body_of(reply(1, 1, 0, encode_result(opcode, result))))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RemoteProtocolError):
        decode_result(opcode, bytes(frame))


@pytest.mark.parametrize("count", [-2, 2**31 - 1, 1000])
def test_a_list_of_children_beyond_the_frame_is_refused(count: int) -> None:
    """A promised two billion names cost nothing."""
    with pytest.raises(RemoteProtocolError, match="items"):
        decode_result(OpCode.GET_CHILDREN, struct.pack(">i", count) + bytes(20), 0)
