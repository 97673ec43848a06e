"""Every opcode is answered and every code that a server may send is sent, by a real ensemble."""

from collections.abc import Callable

import pytest
from tests.replica.harness import TICK_MS, Client, Ensemble

from zabd.model.acl import OPEN_ACL_UNSAFE, Acl
from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    AddWatch,
    Auth,
    Check,
    CheckWatches,
    CloseSession,
    Create,
    Create2,
    CreateContainer,
    CreateTtl,
    Delete,
    Exists,
    GetAcl,
    GetAllChildrenNumber,
    GetChildren,
    GetChildren2,
    GetData,
    GetEphemerals,
    Multi,
    MultiRead,
    Op,
    OpCode,
    Ping,
    Reconfig,
    RemoveWatches,
    Sasl,
    SetAcl,
    SetData,
    SetWatches,
    SetWatches2,
    Sync,
    WhoAmI,
)
from zabd.model.results import ErrorResult, MultiResult
from zabd.model.session import PASSWORD_SIZE, ConnectRequest
from zabd.wire import FrameReader, decode_reply_header, encode_request
from zabd.wire.connection import Reply


def create(path: str, data: bytes = b"", flags: int = 0) -> Create:
    """A create that anybody may undo."""
    return Create(path, data, OPEN_ACL_UNSAFE, flags)


STORY: list[tuple[Op, ErrorCode]] = [
    (create("/a", b"1"), ErrorCode.OK),
    (Create2("/a/b", b"2", OPEN_ACL_UNSAFE, 1), ErrorCode.OK),
    (CreateContainer("/c", b"", OPEN_ACL_UNSAFE, 4), ErrorCode.OK),
    (CreateTtl("/t", b"", OPEN_ACL_UNSAFE, 5, 60_000), ErrorCode.OK),
    (Exists("/a", watch=True), ErrorCode.OK),
    (GetData("/a", watch=True), ErrorCode.OK),
    (SetData("/a", b"3", 0), ErrorCode.OK),
    (GetAcl("/a"), ErrorCode.OK),
    (SetAcl("/a", OPEN_ACL_UNSAFE, 0), ErrorCode.OK),
    (GetChildren("/a", watch=True), ErrorCode.OK),
    (GetChildren2("/a", watch=False), ErrorCode.OK),
    (Sync("/a"), ErrorCode.OK),
    (Ping(), ErrorCode.OK),
    (Check("/a", 1), ErrorCode.OK),
    (Multi((Check("/a", 1), create("/m"))), ErrorCode.OK),
    (MultiRead((GetData("/a"), GetChildren("/"))), ErrorCode.OK),
    (AddWatch("/a", 0), ErrorCode.OK),
    (CheckWatches("/a", 4), ErrorCode.OK),
    (RemoveWatches("/a", 3), ErrorCode.OK),
    (Auth(0, "digest", b"bob:pw"), ErrorCode.OK),
    (SetWatches(0, ("/a",), (), ()), ErrorCode.OK),
    (SetWatches2(0, ("/a",), (), (), ("/a",), ("/",)), ErrorCode.OK),
    (Sasl(b""), ErrorCode.OK),
    (GetEphemerals("/a"), ErrorCode.OK),
    (GetAllChildrenNumber("/"), ErrorCode.OK),
    (WhoAmI(), ErrorCode.OK),
    (Reconfig("", "1", None, -1), ErrorCode.RECONFIG_DISABLED),
    (Delete("/a/b", 0), ErrorCode.OK),
    (CloseSession(), ErrorCode.OK),
]
"""One of each, in an order in which they can be done, with what it is answered."""

FROM_SERVERS_ALONE = {OpCode.CREATE_SESSION, OpCode.DELETE_CONTAINER}


def test_the_story_has_every_opcode() -> None:
    """So that a new one is not forgotten."""
    told = {op.opcode for op, _ in STORY}
    assert told == set(OpCode) - FROM_SERVERS_ALONE


def test_every_opcode_is_answered() -> None:
    """Through a follower; and all members have the same tree afterwards."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    for op, error in STORY:
        client.heard.clear()
        client.send(op)
        ensemble.settle()
        [reply] = [item for item in client.heard if isinstance(item, Reply)]
        assert reply.error == error, op
    assert client.closed
    assert len({member.tree.digest for member in ensemble.members.values()}) == 1


@pytest.mark.parametrize("opcode", [*sorted(FROM_SERVERS_ALONE), 0, -1, 10, 23, 99, 108, 1 << 16])
def test_what_no_client_may_send_is_unknown(opcode: int) -> None:
    """-6 with zxid -1, nothing done, and the connection goes on."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    client.call(CreateContainer("/c", b"", OPEN_ACL_UNSAFE, 4))
    zxid = ensemble.members[1].tree.zxid
    whole = encode_request(1_000, Delete("/c", -1))
    xid, _ = client.wire.send(Delete("/c", -1))
    frame = whole[:4] + xid.to_bytes(4, "big") + opcode.to_bytes(4, "big", signed=True) + whole[12:]
    client.send_raw(frame)
    ensemble.settle()

    reply = client.heard[-1]
    assert isinstance(reply, Reply)
    assert (reply.error, reply.zxid) == (ErrorCode.UNIMPLEMENTED, -1)
    assert client.call(Exists("/c")).error == ErrorCode.OK
    assert ensemble.members[1].tree.zxid == zxid


def test_no_other_opcode_does_anything() -> None:
    """Of all small numbers, positive and negative, those of the protocol alone mean something."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    client.call(CreateContainer("/c", b"", OPEN_ACL_UNSAFE, 4))
    digest = ensemble.members[1].tree.digest
    meaningful = {op.opcode for op, _ in STORY}
    unknown = [number for number in range(-1000, 1 << 16) if number not in meaningful]
    body = encode_request(1, Delete("/c", -1))[12:]
    size = (8 + len(body)).to_bytes(4, "big")
    came: list[tuple[int, int]] = []

    def read(data: bytes) -> None:
        for frame in FrameReader().feed(data):
            xid, _, error = decode_reply_header(frame)
            came.append((xid, error))

    client.receive = read  # type: ignore[method-assign]
    for number in unknown:
        opcode = number.to_bytes(4, "big", signed=True)
        client.send_raw(size + (7).to_bytes(4, "big") + opcode + body)
    ensemble.settle()

    assert came == [(7, ErrorCode.UNIMPLEMENTED)] * len(unknown)
    assert {member.tree.digest for member in ensemble.members.values()} == {digest}


@pytest.mark.parametrize("op", [op for op, _ in STORY], ids=lambda op: type(op).__name__)
def test_nothing_is_done_before_a_session(op: Op) -> None:
    """A request in place of a ConnectRequest costs the connection, and is not done."""
    ensemble = Ensemble()
    zxid = ensemble.members[1].tree.zxid
    client = ensemble.dial(ensemble.followers[0])
    client.send_raw(encode_request(1, op))
    ensemble.pass_time(11_000)

    assert client.closed
    assert client.heard == []
    assert ensemble.members[1].tree.zxid == zxid


# Codes.


def asked(op: Op, **settings: object) -> Callable[[], int]:
    """The code that this op alone is answered with."""

    def ask() -> int:
        ensemble = Ensemble(**settings)
        return ensemble.connect(ensemble.followers[0]).call(op).error

    return ask


def asked_after(*ops: Op) -> Callable[[], int]:
    """The code that the last of these ops is answered with; the others are not refused."""

    def ask() -> int:
        ensemble = Ensemble()
        client = ensemble.connect(ensemble.followers[0])
        for op in ops[:-1]:
            assert client.call(op).error == ErrorCode.OK
        return client.call(ops[-1]).error

    return ask


def behind_a_close() -> int:
    """A request that was pipelined behind the end of its session."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    _, xid = client.send(CloseSession(), create("/late"))
    ensemble.settle()
    return next(item.error for item in client.heard if isinstance(item, Reply) and item.xid == xid)


def behind_the_culprit() -> int:
    """An op of a multi that another op made fail."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    result = client.call(Multi((Delete("/nope", -1), create("/a")))).result
    assert isinstance(result, MultiResult)
    last = result.results[-1]
    assert isinstance(last, ErrorResult)
    return last.code


def cut_short() -> int:
    """A request whose body is not all there."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    xid, frame = client.wire.send(GetData("/a"))
    client.send_raw((8).to_bytes(4, "big") + frame[4:12])
    ensemble.settle()
    return next(item.error for item in client.heard if isinstance(item, Reply) and item.xid == xid)


def without_a_quorum() -> int:
    """A write on a member that serves reads alone."""
    ensemble = Ensemble(read_only_enabled=True)
    member = ensemble.followers[0]
    for other in list(ensemble.members):
        if other != member:
            ensemble.kill(other)
    ensemble.pass_time(60 * TICK_MS)
    client = ensemble.dial(member)
    asks = ConnectRequest(0, 0, 10_000, 0, bytes(PASSWORD_SIZE), read_only=True)
    client.send_raw(client.wire.connect(asks))
    ensemble.settle()
    return client.call(create("/a")).error


def over_quota() -> int:
    """One znode more than a hard quota allows."""
    ensemble = Ensemble(enforce_quota=True)
    client = ensemble.connect(ensemble.followers[0])
    limits = create("/zookeeper/quota/q/zookeeper_limits", b"countHardLimit=1")
    for op in (create("/q"), create("/zookeeper/quota/q"), limits):
        assert client.call(op).error == ErrorCode.OK
    return client.call(create("/q/a")).error


def overdue() -> int:
    """A read that waited longer for a write than requests may."""
    ensemble = Ensemble(throttled_op_wait_ms=1)
    client: Client = ensemble.connect(ensemble.followers[0])
    _, xid = client.send(create("/a"), GetData("/a"))
    ensemble.now_ms += 2
    ensemble.settle()
    return next(item.error for item in client.heard if isinstance(item, Reply) and item.xid == xid)


NOBODY = (Acl(31, "digest", "nobody:x"),)

SENT: dict[ErrorCode, Callable[[], int]] = {
    ErrorCode.OK: asked(create("/a")),
    ErrorCode.RUNTIME_INCONSISTENCY: behind_the_culprit,
    ErrorCode.MARSHALLING_ERROR: cut_short,
    ErrorCode.UNIMPLEMENTED: asked(CreateTtl("/t", b"", OPEN_ACL_UNSAFE, 5, 1), ttl_enabled=False),
    ErrorCode.BAD_ARGUMENTS: asked(create("/a//b", flags=9)),
    ErrorCode.NO_NODE: asked(GetData("/nope")),
    ErrorCode.NO_AUTH: asked_after(Create("/a", b"", NOBODY, 0), GetData("/a")),
    ErrorCode.BAD_VERSION: asked_after(create("/a"), SetData("/a", b"", 7)),
    ErrorCode.NO_CHILDREN_FOR_EPHEMERALS: asked_after(create("/e", flags=1), create("/e/c")),
    ErrorCode.NODE_EXISTS: asked(create("/")),
    ErrorCode.NOT_EMPTY: asked_after(create("/a"), create("/a/b"), Delete("/a", -1)),
    ErrorCode.SESSION_EXPIRED: behind_a_close,
    ErrorCode.INVALID_ACL: asked(Create("/a", b"", (), 0)),
    ErrorCode.AUTH_FAILED: asked(Auth(0, "world", b"anyone")),
    ErrorCode.NOT_READ_ONLY: without_a_quorum,
    ErrorCode.EPHEMERAL_ON_LOCAL_SESSION: asked(create("/e", flags=1), local_sessions=True),
    ErrorCode.NO_WATCHER: asked(RemoveWatches("/", 3)),
    ErrorCode.RECONFIG_DISABLED: asked(Reconfig("", "1", None, -1)),
    ErrorCode.SESSION_CLOSED_REQUIRE_SASL_AUTH: asked(GetData("/"), enforced_auth=("digest",)),
    ErrorCode.QUOTA_EXCEEDED: over_quota,
    ErrorCode.THROTTLED_OP: overdue,
}

NEVER_SENT: dict[ErrorCode, str] = {
    ErrorCode.SYSTEM_ERROR: "by no server",
    ErrorCode.DATA_INCONSISTENCY: "by no server",
    ErrorCode.CONNECTION_LOSS: "made up in clients",
    ErrorCode.OPERATION_TIMEOUT: "made up in clients",
    ErrorCode.UNKNOWN_SESSION: "among servers",
    ErrorCode.NEW_CONFIG_NO_QUORUM: "by reconfig, which comes later",
    ErrorCode.RECONFIG_IN_PROGRESS: "by reconfig, which comes later",
    ErrorCode.API_ERROR: "marks a range",
    ErrorCode.INVALID_CALLBACK: "by no server",
    ErrorCode.CLOSING: "made up in the C client",
    ErrorCode.SESSION_MOVED: "the connection is closed instead",
    ErrorCode.REQUEST_TIMEOUT: "made up in clients",
}


def test_every_code_is_sent_or_not_for_a_reason() -> None:
    """So that a new one is not forgotten."""
    assert set(SENT) | set(NEVER_SENT) == set(ErrorCode)
    assert not set(SENT) & set(NEVER_SENT)


@pytest.mark.parametrize("code", SENT, ids=lambda code: code.name.lower())
def test_the_code_is_sent(code: ErrorCode) -> None:
    """Somebody provokes it, through a follower."""
    assert SENT[code]() == code
