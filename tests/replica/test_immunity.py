"""Weaknesses that other servers of this protocol have had, each tried on ours."""

import struct

import pytest
from tests.replica.harness import Client, Ensemble

from zabd.model.acl import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Acl, make_digest_id
from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    AddWatch,
    Auth,
    Check,
    CloseSession,
    Create,
    CreateContainer,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    MultiRead,
    Op,
    SetAcl,
    SetData,
    SetWatches,
    SetWatches2,
)
from zabd.model.results import ErrorResult, MultiResult
from zabd.wire import encode_request
from zabd.wire.connection import Reply

OWNER = Acl(31, "digest", make_digest_id("owner", "pw"))
PRIVATE = (OWNER,)


def create(path: str, acl: tuple[Acl, ...] = OPEN_ACL_UNSAFE, flags: int = 0) -> Create:
    """A create with that ACL."""
    return Create(path, b"secret", acl, flags)


def owner_of(ensemble: Ensemble) -> Client:
    """Who may do everything with what is private."""
    client = ensemble.connect(ensemble.leader)
    assert client.call(Auth(0, "digest", b"owner:pw")).error == ErrorCode.OK
    return client


def test_watches_tell_nobody_what_they_may_not_read() -> None:
    """CVE-2024-23944: not by any kind of watch, whatever happens to the znode."""
    ensemble = Ensemble(container_check_ms=1000)
    owner = owner_of(ensemble)
    assert owner.call(create("/top")).error == ErrorCode.OK
    spy = ensemble.connect(ensemble.followers[0])
    for op in (AddWatch("/top", 1), AddWatch("/top/x", 0), AddWatch("/top/e", 0), AddWatch("/", 1)):
        assert spy.call(op).error == ErrorCode.OK
    spy.call(Exists("/top/m", watch=True))

    ephemeral_owner = owner_of(ensemble)
    for client, op in (
        (owner, create("/top/x", PRIVATE)),
        (owner, SetData("/top/x", b"more", -1)),
        (owner, create("/top/x/y", PRIVATE)),
        (owner, Delete("/top/x/y", -1)),
        (owner, Multi((create("/top/m", PRIVATE), SetData("/top/m", b"", -1)))),
        (ephemeral_owner, create("/top/e", PRIVATE, 1)),
        (ephemeral_owner, CloseSession()),
        (owner, CreateContainer("/top/c", b"", PRIVATE, 4)),
        (owner, create("/top/c/d", PRIVATE)),
        (owner, Delete("/top/c/d", -1)),
    ):
        assert client.call(op).error == ErrorCode.OK
    ensemble.pass_time(10_000)
    assert ensemble.members[ensemble.leader].tree.get("/top/c") is None, "it was removed"
    assert owner.call(Delete("/top/x", -1)).error == ErrorCode.OK
    assert spy.events == []

    owner.call(create("/top/x", READ_ACL_UNSAFE + PRIVATE))
    assert {heard.event.path for heard in spy.events} == {"/top/x"}
    spy.heard.clear()
    owner.call(SetAcl("/top/x", PRIVATE, -1))
    owner.call(SetData("/top/x", b"again", -1))
    assert spy.events == []


@pytest.mark.parametrize(
    "op",
    [
        SetWatches(0, ("/x",), ("/x",), ("/x",)),
        SetWatches2(0, ("/x",), ("/x",), ("/x",), ("/x",), ("/",)),
    ],
)
def test_coming_back_with_watches_tells_no_more(op: Op) -> None:
    """Nor do the events that make up for what was missed."""
    ensemble = Ensemble()
    owner_of(ensemble).call(create("/x", PRIVATE))
    spy = ensemble.connect(ensemble.followers[0])

    assert spy.call(op).error == ErrorCode.OK
    assert spy.events == []


WRITES = (SetData("/p", b"mine", -1), create("/p/new"), Delete("/p/old", -1))


@pytest.mark.parametrize(
    "op",
    [
        *WRITES,
        SetAcl("/p", OPEN_ACL_UNSAFE, -1),
        *[Multi((op,)) for op in WRITES],
        Multi((Check("/p", -1),)),
    ],
    ids=repr,
)
def test_rights_that_are_taken_away_are_gone_at_once(op: Op) -> None:
    """CVE-2026-100235: also for what was sent before the revocation was applied anywhere."""
    ensemble = Ensemble()
    owner = owner_of(ensemble)
    for path in ("/p", "/p/old"):
        assert owner.call(create(path)).error == ErrorCode.OK
    revoked = ensemble.connect(ensemble.leader)

    owner.send(SetAcl("/p", PRIVATE, -1))
    revoked.send(op)
    ensemble.settle()

    [reply] = [item for item in revoked.heard if isinstance(item, Reply)]
    if isinstance(reply.result, MultiResult):
        assert reply.result.results == (ErrorResult(ErrorCode.NO_AUTH),)
    else:
        assert reply.error == ErrorCode.NO_AUTH


def test_a_small_question_gets_no_huge_answer() -> None:
    """CVE-2026-100302: ten thousand reads of a large znode are one error."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    assert client.call(Create("/big", bytes(1_000_000), OPEN_ACL_UNSAFE, 0)).error == 0
    before = ensemble.members[ensemble.followers[0]].clients.stats.sent

    reply = client.call(MultiRead((GetData("/big"),) * 10_000))

    assert reply.error == ErrorCode.BAD_ARGUMENTS
    assert ensemble.members[ensemble.followers[0]].clients.stats.sent - before < 100


def test_a_multi_holds_no_multi() -> None:
    """Rights are checked op by op; what cannot be looked through is no op."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    inner = encode_request(0, Multi((create("/in"),)))[12:]
    end = struct.pack(">ibi", -1, 1, -1)
    for outer in (14, 22):
        xid, _ = client.wire.send(Multi(()) if outer == 14 else MultiRead(()))
        body = struct.pack(">iiibi", xid, outer, 14, 0, -1) + inner + end
        client.send_raw(len(body).to_bytes(4, "big") + body)
        ensemble.settle()
        reply = client.heard[-1]
        assert isinstance(reply, Reply)
        assert reply.error == ErrorCode.MARSHALLING_ERROR
    assert client.call(GetChildren("/in")).error == ErrorCode.NO_NODE
