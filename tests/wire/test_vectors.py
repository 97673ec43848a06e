"""Every frame that real clients and Java ZooKeeper exchanged reads and writes the same here."""

import pytest
from _pytest.mark import ParameterSet
from tests.wire.plain import VECTORS, WORDS_FILE, Plain, Vector, load, plain

from zabd.model import ErrorCode, MarshallingError, MultiResult, OpCode, UnimplementedError
from zabd.wire import (
    FOUR_LETTER_WORDS,
    FrameReader,
    decode_connect,
    decode_connect_response,
    decode_header,
    decode_reply_header,
    decode_request,
    decode_result,
    decode_watch_event,
    encode_connect,
    encode_connect_response,
    encode_request,
    encode_result,
    reply,
    watch_event,
)
from zabd.wire.frames import HEADER_SIZE
from zabd.wire.opcodes import REQUESTS, RESULTS
from zabd.wire.replies import REPLY_HEADER_SIZE

# Where zabd reads a frame in another way than Java does, and what it reads.
DIFFERENT: dict[str, Vector] = {
    # Null is not anybody's name, and neither is the empty text.
    "create.acl.null-id": {"acl": [{"perms": 31, "scheme": "", "id": ""}]},
    # Java fails on these; taking them as empty serves the client, and harms nobody.
    "setWatches.null-vectors": {"dataWatches": [], "existWatches": [], "childWatches": []},
}

MULTIS = {OpCode.MULTI, OpCode.MULTI_READ}


def frame_of(recorded: str) -> bytes:
    """The frame behind its length."""
    [frame] = FrameReader().feed(bytes.fromhex(recorded))
    return frame


def is_undecodable(vector: Vector) -> bool:
    """Whether Java itself could not read it, or answered that it could not."""
    response = vector["decoded"].get("response") or {"header": {"err": 0}}
    return (
        "undecodable" in vector["decoded"]["request"]
        or response["header"]["err"] == ErrorCode.MARSHALLING_ERROR
    ) and vector["name"] not in {*DIFFERENT, *JUDGED_LATER, "create.path.invalid-utf8"}


# Java says MarshallingError of these two, but of a number in a record that it has read.
JUDGED_LATER = {
    vector["name"]
    for vector in VECTORS
    if vector["opcode"] in {OpCode.ADD_WATCH, OpCode.CHECK_WATCHES, OpCode.REMOVE_WATCHES}
}


def cases(*kinds: str, side: str) -> list[ParameterSet]:
    """The vectors of these kinds whose request or response was recorded."""
    return [
        pytest.param(vector, id=vector["name"])
        for vector in VECTORS
        if vector["kind"] in kinds and vector[f"{side}_hex"]
    ]


EXCHANGES = cases("exchange", side="request")
READABLE = [
    case
    for case in EXCHANGES
    if case.values[0]["opcode"] in REQUESTS and not is_undecodable(case.values[0])
]
UNREADABLE = [
    case
    for case in EXCHANGES
    if case.values[0]["opcode"] in REQUESTS and is_undecodable(case.values[0])
]
UNKNOWN = [case for case in EXCHANGES if case.values[0]["opcode"] not in REQUESTS]


def test_no_vector_is_left_out() -> None:
    """A glob or a filter that matched nothing would make every test here pass."""
    assert len(VECTORS) == 577
    assert len(READABLE) + len(UNREADABLE) + len(UNKNOWN) == len(EXCHANGES) == 483
    assert (len(UNREADABLE), len(UNKNOWN)) == (16, 9)


def test_every_operation_has_a_vector() -> None:
    """What is in the tables was seen on the wire, and the other way round."""
    assert {case.values[0]["opcode"] for case in READABLE} == set(REQUESTS) == set(RESULTS)
    assert set(OpCode) - set(REQUESTS) == {OpCode.CREATE_SESSION, OpCode.DELETE_CONTAINER}


def expected_body(vector: Vector) -> Plain:
    """The recorded fields, but for where zabd reads something else."""
    body = vector["decoded"]["request"]["body"]
    if vector["opcode"] in MULTIS:
        return {"ops": [part["record"] for part in body["ops"]]}
    return body | DIFFERENT.get(vector["name"], {})


@pytest.mark.parametrize("vector", READABLE)
def test_a_request_reads_as_recorded(vector: Vector) -> None:
    """Every field has the recorded value, and the record ends where the recorded one did."""
    frame = frame_of(vector["request_hex"])
    recorded = vector["decoded"]["request"]

    xid, opcode, op = decode_request(frame)

    assert {"xid": xid, "type": opcode} == recorded["header"]
    assert decode_header(frame) == (xid, opcode)
    if vector["name"] == "create.path.invalid-utf8":
        assert op.path == "/h/\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
        return
    assert plain(op) == expected_body(vector)
    if opcode in MULTIS:
        assert [part.opcode for part in op.ops] == [
            part["header"]["type"] for part in recorded["body"]["ops"]
        ]
    _op, end = REQUESTS[opcode].read(frame, HEADER_SIZE)
    assert frame[end:].hex() == recorded.get("trailing_hex", "")


# No client writes these, and zabd does not give them back as they were.
NOT_WRITTEN = {*DIFFERENT, "create.path.invalid-utf8"}


@pytest.mark.parametrize("vector", [v for v in READABLE if v.values[0]["name"] not in NOT_WRITTEN])
def test_a_request_is_written_as_recorded(vector: Vector) -> None:
    """A client of zabd sends the very bytes that other clients send."""
    recorded = vector["request_hex"]
    trailing = vector["decoded"]["request"].get("trailing_hex", "")

    xid, _opcode, op = decode_request(frame_of(recorded))
    written = encode_request(xid, op).hex()

    assert written[8:] + trailing == recorded[8:]
    if not trailing:
        assert written == recorded


@pytest.mark.parametrize("vector", UNREADABLE)
def test_an_unreadable_request_is_refused_as_java_refuses_it(vector: Vector) -> None:
    """MarshallingError: the body is cut, of an illegal size, null, or a multi of other ops."""
    with pytest.raises(MarshallingError):
        decode_request(frame_of(vector["request_hex"]))

    assert vector["decoded"]["response"]["header"]["err"] == ErrorCode.MARSHALLING_ERROR


@pytest.mark.parametrize("vector", UNKNOWN)
def test_an_unknown_type_is_told_from_a_bad_record(vector: Vector) -> None:
    """Internal types are unknown to clients, although Java's server lets them in."""
    frame = frame_of(vector["request_hex"])

    with pytest.raises(UnimplementedError):
        decode_request(frame)

    assert decode_header(frame)[1] == vector["opcode"]


@pytest.mark.parametrize("vector", cases("exchange", side="response"))
def test_a_reply_reads_and_is_written_as_recorded(vector: Vector) -> None:
    """Header and result have the recorded values and give the recorded bytes."""
    frame = frame_of(vector["response_hex"])
    recorded = vector["decoded"]["response"]

    xid, zxid, err = decode_reply_header(frame)
    assert {"xid": xid, "zxid": zxid, "err": err} == recorded["header"]
    body = b""
    if "body" in recorded:
        result = decode_result(vector["opcode"], frame)
        assert plain_result(result) == recorded["body"]
        _result, end = RESULTS[vector["opcode"]].read(frame, REPLY_HEADER_SIZE)
        assert end == len(frame)
        body = encode_result(vector["opcode"], result)

    assert reply(xid, zxid, err, body).hex() == vector["response_hex"]


def plain_result(result: object) -> Plain:
    """The result as recorded, headers of a multi included."""
    if not isinstance(result, MultiResult):
        return plain(result)
    types = {
        "CreateResult": 1,
        "DeleteResult": 2,
        "GetDataResult": 4,
        "StatResult": 5,
        "ChildrenResult": 8,
        "CheckResult": 13,
        "Create2Result": 15,
        "ErrorResult": -1,
    }
    results = [
        {
            "header": {
                "type": types[type(part).__name__],
                "done": False,
                "err": getattr(part, "code", 0),
            },
            "result": plain(part),
        }
        for part in result.results
    ]
    return {"results": results, "end": {"type": -1, "done": True, "err": -1}}


@pytest.mark.parametrize("vector", cases("event", side="response"))
def test_an_event_reads_and_is_written_as_recorded(vector: Vector) -> None:
    """What a watch says, byte for byte."""
    frame = frame_of(vector["response_hex"])

    xid, zxid, err = decode_reply_header(frame)
    event = decode_watch_event(frame)

    assert {
        "header": {"xid": xid, "zxid": zxid, "err": err},
        "event": plain(event),
    } == vector["decoded"]["response"]
    assert watch_event(event, zxid).hex() == vector["response_hex"]


def without_absent(fields: Vector) -> Vector:
    """The handshake as recorded: a readOnly that is not there is not a null."""
    return {name: value for name, value in fields.items() if (name, value) != ("readOnly", None)}


@pytest.mark.parametrize("vector", cases("connect", side="request"))
def test_a_connect_request_reads_and_is_written_as_recorded(vector: Vector) -> None:
    """With the readOnly field and, from old clients, without."""
    request = decode_connect(frame_of(vector["request_hex"]))

    assert without_absent(plain(request)) == vector["decoded"]["request"]
    assert encode_connect(request).hex() == vector["request_hex"]


@pytest.mark.parametrize("vector", cases("connect", "unpaired", side="response"))
def test_a_connect_response_reads_and_is_written_as_recorded(vector: Vector) -> None:
    """Refusals included: they have a password of 16 zero bytes."""
    response = decode_connect_response(frame_of(vector["response_hex"]))

    assert without_absent(plain(response)) == vector["decoded"]["response"]
    assert encode_connect_response(response).hex() == vector["response_hex"]


def test_the_recorded_words_are_known() -> None:
    """A word that is not known is taken for the length of a frame, and is not answered."""
    answered = {line["command"][:4].encode() for line in load(WORDS_FILE) if line["response_text"]}

    # `hash` had nothing to tell yet on servers that young.
    assert answered == FOUR_LETTER_WORDS - {b"hash"}
