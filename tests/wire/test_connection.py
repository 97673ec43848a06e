"""Both ends of a connection understand each other, and survive an end that is not ours."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire import strategies

from zabd.model import (
    Auth,
    ChildrenResult,
    ConnectRequest,
    ConnectResponse,
    Create,
    EmptyResult,
    ErrorCode,
    EventType,
    Exists,
    GetChildren,
    KeeperState,
    LocalProtocolError,
    Op,
    OpCode,
    Ping,
    RemoteProtocolError,
    SetData,
    SetWatches,
    WatchEvent,
)
from zabd.wire import (
    FOUR_LETTER_WORDS,
    ClientConnection,
    Event,
    FourLetterWord,
    FrameError,
    Reply,
    ServerConnection,
    connection,
    decode_header,
    decode_request,
    encode_connect,
    encode_connect_response,
    encode_request,
    encode_result,
    frame,
    reply,
    watch_event,
)

CONNECT = ConnectRequest(0, 0, 10_000, 0, bytes(16), read_only=False)
CONNECTED = ConnectResponse(0, 10_000, 77, b"p" * 16, read_only=False)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    """The stream, cut at these offsets."""
    places = sorted(cut % (len(stream) + 1) for cut in cuts)
    return [
        stream[start:stop] for start, stop in zip([0, *places], [*places, len(stream)], strict=True)
    ]


# --- the server's end ---


@given(st.lists(strategies.ops, max_size=4), st.lists(st.integers(0, 10_000), max_size=6))
def test_a_server_reads_what_a_client_sends(ops: list[Op], cuts: list[int]) -> None:
    """A pair of ends: the handshake with requests right behind it, cut anywhere."""
    client = ClientConnection()
    sent = [client.send(op) for op in ops]
    stream = client.connect(CONNECT) + b"".join(framed for _xid, framed in sent)
    server = ServerConnection()

    [handshake, *frames] = [
        item for piece in pieces(stream, cuts) for item in server.receive(piece)
    ]

    assert handshake == CONNECT
    assert [decode_request(got)[::2] for got in frames] == [
        (xid, op) for (xid, _framed), op in zip(sent, ops, strict=True)
    ]
    assert server.pending_bytes == 0


@pytest.mark.parametrize("word", sorted(FOUR_LETTER_WORDS - {b"stmk"}))
def test_a_word_may_come_letter_by_letter(word: bytes) -> None:
    """Somebody types it into telnet; what follows, such as a newline, is nothing."""
    server = ServerConnection()

    for at in range(3):
        assert server.receive(word[at : at + 1]) == []
    assert server.receive(word[3:] + b"\r\n") == [FourLetterWord(word.decode())]
    assert server.receive(b"anything") == []
    assert server.pending_bytes == 0


def test_the_word_that_sets_a_mask_waits_for_it() -> None:
    """`stmk` is followed by eight bytes."""
    server = ServerConnection()

    assert server.receive(b"stmk" + bytes(7)) == []
    assert server.receive(b"\5...") == [FourLetterWord("stmk", bytes(7) + b"\5")]


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", b"\xff\xff\xff\xff", b"RUOK"]
)
def test_garbage_in_place_of_a_handshake_costs_the_link(garbage: bytes) -> None:
    """HTTP, a TLS hello, negative lengths: at once, without waiting for more."""
    with pytest.raises(RemoteProtocolError, match="neither a word nor"):
        ServerConnection().receive(garbage)


@pytest.mark.parametrize("body", [b"", bytes(20)])
def test_a_first_frame_that_is_no_handshake_costs_the_link(body: bytes) -> None:
    """Nothing can be asked before there is a session (P4)."""
    with pytest.raises(RemoteProtocolError, match="ConnectRequest"):
        ServerConnection().receive(frame(body))


def test_a_word_after_the_handshake_is_a_length() -> None:
    """And too long a one (section 20)."""
    server = ServerConnection()
    server.receive(encode_connect(CONNECT))

    with pytest.raises(FrameError):
        server.receive(b"ruok" + bytes(8))


def test_an_over_long_request_is_known_by_its_header() -> None:
    """The server can answer it, behind the requests that came whole before it."""
    server = ServerConnection(limit=1000)
    assert server.header is None
    server.receive(encode_connect(CONNECT))
    before = encode_request(1, Exists("/a"))

    with pytest.raises(FrameError) as refused:
        server.receive(before + encode_request(2, SetData("/a", bytes(2000))))

    assert server.header == (2, OpCode.SET_DATA)
    assert [decode_header(whole)[0] for whole in refused.value.frames] == [1]


def test_a_bad_length_right_behind_the_handshake_costs_the_link() -> None:
    """No session is made for it."""
    with pytest.raises(RemoteProtocolError, match="behind the handshake"):
        ServerConnection().receive(encode_connect(CONNECT) + b"\xff\xff\xff\xff")


@given(chunks=st.lists(st.binary(max_size=60), max_size=6), connected=st.booleans())
def test_a_server_survives_any_bytes(*, chunks: list[bytes], connected: bool) -> None:
    """Before and after the handshake."""
    server = ServerConnection(limit=100)
    try:
        if connected:
            server.receive(encode_connect(CONNECT))
        for chunk in chunks:
            server.receive(chunk)
    except RemoteProtocolError:
        pass
    assert server.pending_bytes <= sum(map(len, chunks))


# --- the client's end ---


def connected_client() -> ClientConnection:
    """A client whose handshake is over."""
    client = ClientConnection()
    assert client.receive(encode_connect_response(CONNECTED)) == [CONNECTED]
    return client


def test_replies_find_their_requests() -> None:
    """In order, each read as the answer to what was asked; errors have no result."""
    client = connected_client()
    first, _ = client.send(GetChildren("/"))
    second, _ = client.send(Create("/a", b"", None))
    children = ChildrenResult(("a", "b"))
    assert client.outstanding == 2

    got = client.receive(
        reply(first, 8, 0, encode_result(OpCode.GET_CHILDREN, children))
        + reply(second, 9, ErrorCode.INVALID_ACL)
    )

    assert got == [
        Reply(first, OpCode.GET_CHILDREN, 8, 0, children),
        Reply(second, OpCode.CREATE, 9, ErrorCode.INVALID_ACL, None),
    ]
    assert client.outstanding == 0


def test_an_event_comes_between_replies() -> None:
    """It answers nobody, and keeps its place."""
    client = connected_client()
    xid, _ = client.send(Exists("/a", watch=True))
    event = WatchEvent(EventType.CREATED, KeeperState.SYNC_CONNECTED, "/a")

    got = client.receive(watch_event(event, 5) + reply(xid, 6, ErrorCode.NO_NODE))

    assert got == [Event(5, event), Reply(xid, OpCode.EXISTS, 6, ErrorCode.NO_NODE, None)]


def test_pings_and_auth_packets_may_overtake() -> None:
    """ZooKeeper answers both at once, whatever else is in flight (section 3)."""
    client = connected_client()
    xid, _ = client.send(Exists("/a"))
    client.send(Auth(0, "digest", b"u:p"))
    client.send(Ping())

    got: list[Any] = client.receive(reply(-2, 0) + reply(-4, 0) + reply(xid, 1, ErrorCode.NO_NODE))

    assert [item.opcode for item in got] == [OpCode.PING, OpCode.AUTH, OpCode.EXISTS]
    assert client.outstanding == 0


def test_watches_are_set_under_their_own_xid() -> None:
    """-8, answered in order with the others."""
    client = connected_client()

    xid, framed = client.send(SetWatches(5, data=("/a",)))

    assert xid == -8
    assert decode_request(framed[4:]) == (-8, OpCode.SET_WATCHES, SetWatches(5, data=("/a",)))
    assert client.receive(reply(-8, 5)) == [Reply(-8, OpCode.SET_WATCHES, 5, 0, EmptyResult())]


@pytest.mark.parametrize("xid", [2, 99, -2, -4, -8])
def test_a_reply_to_nothing_ends_the_connection(xid: int) -> None:
    """A server that answers what was not asked cannot be believed about the rest."""
    client = connected_client()
    client.send(Exists("/a"))

    with pytest.raises(RemoteProtocolError, match="1 is the next"):
        client.receive(reply(xid, 1))


def test_xids_start_again_before_they_run_out_of_bits() -> None:
    """A client that stays for years must not send a negative one: those have meanings."""
    client = connected_client()
    client._xid = connection.XID_MAX - 1

    xids = [client.send(Exists("/a"))[0] for _ in range(2)]

    assert xids == [connection.XID_MAX, 1]


def test_requests_that_no_server_takes_are_not_sent() -> None:
    """Sent, they would cost the connection and tell nobody why."""
    client = connected_client()

    with pytest.raises(LocalProtocolError, match="1048575"):
        client.send(SetData("/a", bytes(1_048_576)))

    assert client.outstanding == 0
    assert client.send(Exists("/a"))[0] == 1


def test_outstanding_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never answers must not fill the client's memory."""
    monkeypatch.setattr(connection, "OUTSTANDING_MAX", 2)
    client = connected_client()
    client.send(Ping())
    client.send(Exists("/a"))

    with pytest.raises(LocalProtocolError, match="wait"):
        client.send(Exists("/b"))


def test_a_refused_read_only_handshake_is_no_connect_response() -> None:
    """ZooKeeper 3.8 may answer a read-only handshake with a bare error (section 16)."""
    with pytest.raises(RemoteProtocolError, match="ConnectResponse"):
        ClientConnection().receive(struct.pack(">iiqi", 16, 0, 0, -1)[:20])


@given(chunks=st.lists(st.binary(max_size=60), max_size=6), connected=st.booleans())
def test_a_client_survives_any_bytes(*, chunks: list[bytes], connected: bool) -> None:
    """A hostile server costs the link and nothing else (P33)."""
    client = connected_client() if connected else ClientConnection()
    client.send(GetChildren("/"))
    try:
        for chunk in chunks:
            client.receive(chunk)
    except RemoteProtocolError:
        pass
