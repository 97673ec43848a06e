"""Requests survive the way over the wire, and nothing that arrives can do more than be refused."""

import contextlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.wire import strategies

from zabd.model import (
    OPEN_ACL_UNSAFE,
    Acl,
    Check,
    ConnectRequest,
    Create,
    CreateSession,
    Delete,
    DeleteContainer,
    Exists,
    GetChildren2,
    GetData,
    LocalProtocolError,
    MarshallingError,
    Multi,
    Op,
    OpCode,
    RemoteProtocolError,
    SetData,
    UnimplementedError,
)
from zabd.wire import (
    FrameReader,
    decode_connect,
    decode_header,
    decode_op,
    decode_path_watch,
    decode_request,
    encode_connect,
    encode_request,
    jute,
)
from zabd.wire.opcodes import REQUESTS
from zabd.wire.short_writes import split_create, split_set_data


def body_of(framed: bytes) -> bytes:
    """The frame without its length, which has to be right."""
    [body] = FrameReader().feed(framed)
    return body


@given(strategies.int32s, strategies.ops)
def test_a_request_survives_the_wire(xid: int, op: Op) -> None:
    """What a client asks is what the server reads, type and value."""
    frame = body_of(encode_request(xid, op))

    request = decode_request(frame)

    assert request == (xid, op.opcode, op)
    assert type(request.op) is type(op)
    assert decode_header(frame) == (xid, op.opcode)
    assert REQUESTS[op.opcode].read(frame, 8)[1] == len(frame)


@given(strategies.ops, st.binary(max_size=10))
def test_bytes_behind_the_record_are_ignored(op: Op, trailing: bytes) -> None:
    """As ZooKeeper does: clients of the future may have more to say."""
    assert decode_request(body_of(encode_request(1, op)) + trailing).op == op


@given(strategies.ops, st.data())
def test_a_cut_request_is_refused_or_complete(op: Op, data: st.DataObject) -> None:
    """No cut makes a reader fail in another way than by saying so."""
    frame = body_of(encode_request(1, op))
    cut = frame[: data.draw(st.integers(0, len(frame)))]
    try:
        got = decode_request(cut)
    except (MarshallingError, RemoteProtocolError):
        assert len(cut) < len(frame)
    else:
        assert got.op == op


@given(strategies.ops, st.data())
def test_a_changed_request_is_read_or_refused(op: Op, data: st.DataObject) -> None:
    """One wrong byte anywhere: sizes, counts, flags, types."""
    frame = bytearray(body_of(encode_request(1, op)))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MarshallingError, UnimplementedError):
        decode_request(bytes(frame))


@given(st.sampled_from(sorted(REQUESTS)), st.binary(max_size=60))
def test_any_body_is_read_or_refused(opcode: int, body: bytes) -> None:
    """Only MarshallingError comes out, whatever goes in."""
    with contextlib.suppress(MarshallingError):
        decode_op(opcode, body, 0)


@given(st.binary(max_size=20))
def test_any_frame_is_read_or_refused(frame: bytes) -> None:
    """The whole way in, header included."""
    with contextlib.suppress(MarshallingError, UnimplementedError, RemoteProtocolError):
        decode_request(frame)


@pytest.mark.parametrize("kind", [Exists, GetData, GetChildren2])
@given(path=strategies.paths, watch=st.booleans(), trailing=st.binary(max_size=3))
def test_the_short_way_reads_the_same(
    kind: type, *, path: str, watch: bool, trailing: bytes
) -> None:
    """A server that makes no op of a read still sees the same path and flag."""
    frame = body_of(encode_request(1, kind(path, watch))) + trailing

    assert decode_path_watch(frame) == (path, watch)


@given(st.binary(max_size=24))
@example(struct.pack(">i", 2) + b"/a")  # the flag is missing
@example(struct.pack(">i", -1) + b"/a")
@example(b"")
def test_the_short_way_refuses_the_same(body: bytes) -> None:
    """Whatever the long way refuses, the short one does, too."""
    frame = struct.pack(">ii", 1, OpCode.GET_DATA) + body
    try:
        expected = decode_op(OpCode.GET_DATA, frame)
    except MarshallingError:
        with pytest.raises(MarshallingError):
            decode_path_watch(frame)
    else:
        assert decode_path_watch(frame) == expected


@pytest.mark.parametrize("frame", [b"", b"\0\0\0\1", b"\0\0\0\1\0\0\0"])
def test_a_frame_without_a_header_cannot_be_answered(frame: bytes) -> None:
    """There is no xid to answer to, so the link is the price (section 20)."""
    with pytest.raises(RemoteProtocolError, match="header"):
        decode_header(frame)
    with pytest.raises(RemoteProtocolError, match="header"):
        decode_request(frame)


@pytest.mark.parametrize("opcode", [0, -1, 10, 20, -10, 23, 108, 1000, 2**31 - 1, -(2**31)])
def test_unknown_and_internal_types_are_unimplemented(opcode: int) -> None:
    """A client cannot delete containers or open sessions behind the server's back (P4)."""
    with pytest.raises(UnimplementedError):
        decode_op(opcode, struct.pack(">iii", 1, opcode, 0))


# --- P6: counts and sizes ---

PATH = struct.pack(">i", 2) + b"/a"


@pytest.mark.parametrize("count", [-2, -(2**31), 2**31 - 1, 1000])
def test_a_count_beyond_the_frame_is_refused(count: int) -> None:
    """A vector is never begun that the frame cannot hold."""
    body = PATH + struct.pack(">i", -1) + struct.pack(">i", count)

    with pytest.raises(MarshallingError, match="items"):
        decode_op(OpCode.CREATE, body, 0)


@pytest.mark.parametrize("size", [-2, -(2**31), 2**31 - 1, 10])
def test_a_size_beyond_the_frame_is_refused(size: int) -> None:
    """Strings and buffers alike."""
    with pytest.raises(MarshallingError, match="bytes"):
        decode_op(OpCode.GET_ACL, struct.pack(">i", size), 0)
    with pytest.raises(MarshallingError, match=str(size)):
        decode_op(OpCode.SET_DATA, PATH + struct.pack(">i", size), 0)
    with pytest.raises(MarshallingError):
        decode_op(OpCode.GET_DATA, struct.pack(">i", size) + b"/a", 0)


def test_null_is_not_a_path() -> None:
    """Java answers MarshallingError to a null path; only sync and getEphemerals take one."""
    null = struct.pack(">i", -1)

    with pytest.raises(MarshallingError, match="null"):
        decode_op(OpCode.GET_DATA, null + b"\0", 0)
    assert decode_op(OpCode.SYNC, null, 0) == (None,)
    assert decode_op(OpCode.GET_EPHEMERALS, null, 0) == (None,)


def test_null_data_and_empty_data_differ() -> None:
    """Both come back as they were sent (section 1)."""
    null = encode_request(1, SetData("/a", None))
    empty = encode_request(1, SetData("/a", b""))

    assert decode_request(body_of(null)).op == SetData("/a", None)
    assert decode_request(body_of(empty)).op == SetData("/a", b"")


def test_null_and_empty_acls_differ() -> None:
    """Both are InvalidACL later; the wire keeps them apart."""
    for acl in (None, ()):
        op = Create("/a", b"", acl)
        assert decode_request(body_of(encode_request(1, op))).op == op


def test_the_usual_acl_is_not_made_anew() -> None:
    """Nearly every create has it; a million znodes share one."""
    acl = (Acl(31, "world", "anyone"),)

    request = decode_request(body_of(encode_request(1, Create("/a", b"", acl))))

    assert isinstance(request.op, Create)
    assert request.op.acl is OPEN_ACL_UNSAFE


# --- P7: strings ---


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"/\xff\xfe", "/\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"),
        (b"/a\0b", "/a\0b"),
        (b"/\xef\xbf\xbf", "/\uffff"),
        (b"/\xf0\x9f\x98\x80", "/\U0001f600"),
        (b"/\xed\xa0\xbd\xed\xb8\x80", "/\ud83d\ude00"),
        (b"/" + b"a" * 1_000_000, "/" + "a" * 1_000_000),
        (b"/a" * 100_000, "/a" * 100_000),
    ],
    ids=["not UTF-8", "NUL", "U+FFFF", "beyond the BMP", "surrogates", "1 MB", "100,000 levels"],
)
def test_strings_are_read_leniently(raw: bytes, text: str) -> None:
    """Judging a path is not the wire's business, and none of these makes it stumble."""
    body = struct.pack(">i", len(raw)) + raw

    assert decode_op(OpCode.SYNC, body, 0) == (text,)
    assert decode_op(OpCode.GET_DATA, body + b"\1", 0) == (text, True)
    assert decode_path_watch(bytes(8) + body + b"\1") == (text, True)


@pytest.mark.parametrize("name", [b"\xed\xa0\xbd\xed\xb8\x80", b"\xf0\x9f\x98\x80", b"\xc3\xa9"])
def test_an_acl_id_gives_its_bytes_back(name: bytes) -> None:
    """Java writes what is beyond U+FFFF as surrogates, C and Python do not; both get theirs."""
    entry = struct.pack(">ii", 31, 6) + b"digest" + struct.pack(">i", len(name)) + name
    body = PATH + struct.pack(">i", -1) + struct.pack(">i", 1) + entry + struct.pack(">i", 0)

    op = decode_op(OpCode.CREATE, body, 0)

    assert body_of(encode_request(1, op))[8:] == body


# --- multi ---


def header(kind: int, *, done: bool = False) -> bytes:
    """A MultiHeader."""
    return struct.pack(">i?i", kind, done, -1)


@pytest.mark.parametrize(
    "body",
    [
        header(OpCode.DELETE) + PATH + struct.pack(">i", -1),
        header(OpCode.MULTI) + header(-1, done=True) + header(-1, done=True),
        header(-1) + header(-1, done=True),
        header(OpCode.SET_ACL) + header(-1, done=True),
        b"",
    ],
    ids=["no end", "nested", "an end that is not done", "an op that cannot be part", "nothing"],
)
def test_a_malformed_multi_is_refused_whole(body: bytes) -> None:
    """Nothing of it is done (P9)."""
    with pytest.raises(MarshallingError):
        decode_op(OpCode.MULTI, body, 0)


def test_a_multi_ends_at_any_done_header() -> None:
    """As in Java: `done` decides, whatever type stands beside it."""
    body = header(OpCode.DELETE) + PATH + struct.pack(">i", 3) + header(OpCode.CHECK, done=True)

    assert decode_op(OpCode.MULTI, body, 0) == Multi((Delete("/a", 3),))


def test_a_multi_of_reads_is_refused_on_both_sides() -> None:
    """Reads have a multi of their own."""
    mixed = Multi((Check("/a"), GetData("/a")))  # type: ignore[arg-type]

    with pytest.raises(LocalProtocolError, match="GetData"):
        encode_request(1, mixed)


# --- what has no form on the wire ---


@pytest.mark.parametrize("op", [DeleteContainer("/a"), CreateSession(1000)])
def test_internal_ops_are_not_sent(op: Op) -> None:
    """A client of zabd cannot even try."""
    with pytest.raises(LocalProtocolError, match="internal"):
        encode_request(1, op)


def test_a_number_that_does_not_fit_is_the_callers_mistake() -> None:
    """A version of 33 bits would otherwise reach the socket cut, or not at all."""
    with pytest.raises(LocalProtocolError, match="fit"):
        encode_request(1, Delete("/a", 2**31))
    with pytest.raises(LocalProtocolError, match="fit"):
        encode_connect(ConnectRequest(0, 0, 2**31, 0, b"", read_only=None))


# --- P3: the handshake ---


@given(strategies.connect_requests)
def test_a_connect_request_survives_the_wire(request_: ConnectRequest) -> None:
    """All forms, the one without readOnly included."""
    assert decode_connect(body_of(encode_connect(request_))) == request_


def test_a_password_may_have_any_length() -> None:
    """A new session's password means nothing, so its length does not either."""
    for password in (None, b"", b"short", bytes(1000)):
        request_ = ConnectRequest(3, -1, 2**31 - 1, -7, password, read_only=True)
        assert decode_connect(body_of(encode_connect(request_))) == request_


@pytest.mark.parametrize(
    "frame",
    [b"", bytes(27), bytes(24) + struct.pack(">i", 2**31 - 1), bytes(24) + struct.pack(">i", -2)],
    ids=["empty", "short", "huge password", "negative password"],
)
def test_what_is_no_handshake_costs_the_link(frame: bytes) -> None:
    """There is nobody to answer yet."""
    with pytest.raises(RemoteProtocolError, match="ConnectRequest"):
        decode_connect(frame)


@given(st.binary(max_size=50))
def test_any_first_frame_is_a_handshake_or_refused(frame: bytes) -> None:
    """Garbage in place of a ConnectRequest."""
    with contextlib.suppress(RemoteProtocolError):
        decode_connect(frame)


_open_creates = st.builds(
    Create, strategies.paths, strategies.buffers, st.just(OPEN_ACL_UNSAFE), st.integers(0, 9)
)
_sets = st.builds(SetData, strategies.paths, strategies.buffers, st.integers(-1, 9))


@given(st.one_of(_open_creates, _sets))
def test_the_leaders_short_way_reads_what_the_long_one_reads(op: Create | SetData) -> None:
    """Path, data and the number behind them; a null and a lone surrogate are for the long one."""
    split = split_create if isinstance(op, Create) else split_set_data
    unusual = op.data is None or any("\ud800" <= char <= "\udfff" for char in op.path)

    assert split(encode_request(7, op)[4:]) == (None if unusual else (op[0], op[1], op[-1]))


def test_a_create_for_some_is_left_to_the_long_way() -> None:
    """Whose it is, is for `prepare` to find out."""
    op = Create("/a", b"", (Acl(31, "auth", ""),), 0)
    assert split_create(encode_request(7, op)[4:]) is None


@given(st.sampled_from([split_set_data, split_create]), st.binary(max_size=200))
def test_the_short_ways_leave_rubbish_to_the_long_one(
    split: Callable[[bytes], tuple[str, bytes, int] | None], body: bytes
) -> None:
    """What they take, `decode_op` reads as the same; nothing makes them fail."""
    frame = bytes(8) + body
    opcode = OpCode.SET_DATA if split is split_set_data else OpCode.CREATE
    taken = split(frame)
    if taken is not None:
        op = decode_op(opcode, frame)
        assert (op[0], op[1], op[-1]) == taken


@given(st.integers(0, 60))
def test_a_short_way_takes_nothing_that_is_cut(size: int) -> None:
    """Every prefix of a whole request is left to the long way, which refuses it."""
    for op, split in (
        (SetData("/a/path", b"data", 7), split_set_data),
        (Create("/a", b"data", OPEN_ACL_UNSAFE, 0), split_create),
    ):
        frame = encode_request(7, op)[4:]
        assert (split(frame[:size]) is None) is (size < len(frame))


@pytest.mark.parametrize(
    "texts",
    [
        (),
        ("",),
        ("/a", "/b/c", "x" * 127),
        ("/a", "x" * 128),
        ("/a", "x" * 200, ""),
        ("/a", "/\u00e4", "/b"),
        ("\x7f", "\x80"),
        ("/a", "/\ud83d", "/\U0001f600"),
    ],
)
def test_many_strings_are_each_their_size_and_their_bytes(texts: tuple[str, ...]) -> None:
    """Whether all are short and ASCII, which goes faster, or one of them is not."""
    each = [jute.string(text) for text in texts]

    assert jute.strings(texts) == jute.INT.pack(len(texts)) + b"".join(each)
    assert jute.read_strings(jute.strings(texts), 0)[0] == texts
