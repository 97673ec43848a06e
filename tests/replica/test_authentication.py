"""What a connection shows of itself, and what it is asked to show."""

import hashlib
from base64 import b64encode
from random import Random

import pytest
from tests.replica.harness import Client, Ensemble

from zabd.model.acl import CREATOR_ALL_ACL, Acl
from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    AddWatch,
    Auth,
    Check,
    Create,
    Exists,
    GetAcl,
    GetAllChildrenNumber,
    GetChildren,
    GetChildren2,
    GetData,
    Multi,
    MultiRead,
    Op,
    Ping,
    Sasl,
    SetAcl,
    SetData,
    SetWatches,
    Sync,
    WhoAmI,
)
from zabd.model.results import AclResult, GetDataResult, MultiResult, SaslResult
from zabd.model.watch_events import AddWatchMode
from zabd.replica.authentication import IDENTITIES_MAX
from zabd.wire.connection import Reply
from zabd.wire.digest_md5 import ClientExchange, Users
from zabd.znode_tree.permissions import CREDENTIALS_BYTES_MAX


@pytest.mark.parametrize("op", [GetData("/"), Create("/n", b"", None, 0), Ping(), WhoAmI()])
def test_where_it_is_enforced_nobody_is_served_unknown(op: Op) -> None:
    """-124 and the end of the connection; an address alone is nobody."""
    ensemble = Ensemble(enforced_auth=("digest",))
    client = ensemble.connect(ensemble.followers[0])

    reply = client.call(op) if not isinstance(op, Ping) else None
    client.send(op) if reply is None else None

    assert reply is None or reply.error == ErrorCode.SESSION_CLOSED_REQUIRE_SASL_AUTH
    assert reply is None or reply.zxid == 0
    assert client.closed


def test_where_it_is_enforced_who_is_known_is_served() -> None:
    """The session is the client's; its connection has to show who it is each time."""
    ensemble = Ensemble(enforced_auth=("digest",))
    member = ensemble.followers[0]
    client = ensemble.connect(member)
    assert client.call(Auth(0, "digest", b"bob:pw")).error == 0
    assert client.call(Exists("/")).error == 0

    again = ensemble.connect(member, resume=client.session)
    assert again.call(Exists("/")).error == ErrorCode.SESSION_CLOSED_REQUIRE_SASL_AUTH


def test_passwords_are_hashed_as_configured() -> None:
    """The id that an ACL stores is that of the algorithm, the same on all members."""
    ensemble = Ensemble(digest_algorithm="sha256")
    client = ensemble.connect(ensemble.followers[0])
    client.call(Auth(0, "digest", b"bob:pw"))
    client.call(Create("/n", b"", CREATOR_ALL_ACL, 0))

    result = client.call(GetAcl("/n")).result

    assert isinstance(result, AclResult)
    expected = b64encode(hashlib.sha256(b"bob:pw").digest()).decode()
    assert [entry.id for entry in result.acl] == [f"bob:{expected}"]


def test_one_connection_is_not_everybody() -> None:
    """Its identities go with each of its writes, so they are bounded in number and in size."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    for number in range(IDENTITIES_MAX - 1):
        assert client.call(Auth(0, "digest", b"bob:%d" % number)).error == 0
    assert client.call(Auth(0, "digest", b"bob:0")).error == 0, "it has shown that already"
    client.heard.clear()
    assert client.call(Auth(0, "digest", b"one:more")).error == ErrorCode.AUTH_FAILED
    assert client.closed

    other = ensemble.connect(ensemble.followers[0])
    long = b"bob:" + b"x" * CREDENTIALS_BYTES_MAX
    assert other.call(Auth(0, "digest", long)).error == ErrorCode.AUTH_FAILED
    assert other.closed

    many = ensemble.connect(ensemble.followers[0])
    longest = [b"%d" % n + b"x" * (CREDENTIALS_BYTES_MAX - 4) + b":p" for n in range(4)]
    for credentials in longest:
        many.call(Auth(0, "digest", credentials))
    answers = [answer.error for answer in many.heard if isinstance(answer, Reply)]
    assert answers == [0, 0, 0, ErrorCode.AUTH_FAILED]
    assert many.closed


def prove(client: Client, user: str, password: str) -> Reply:
    """Both steps of SASL; the last reply."""
    exchange = ClientExchange(user, password, Random(1))
    challenge = client.call(Sasl(b""))
    assert isinstance(challenge.result, SaslResult)
    return client.call(Sasl(exchange.step(challenge.result.token or b"")))


def test_users_of_sasl_prove_who_they_are() -> None:
    """Section 11: the identity is the connection's, ACLs may name it, and it is asked for."""
    ensemble = Ensemble(sasl_users=Users({"bob": "pw"}), enforced_auth=("sasl",))
    client = ensemble.connect(ensemble.followers[0])

    reply = prove(client, "bob", "pw")

    assert (reply.error, reply.zxid) == (0, 0)
    assert client.call(WhoAmI()).result[0][-1] == ("sasl", "bob")
    assert client.call(Create("/mine", b"", CREATOR_ALL_ACL, 0)).error == 0
    assert client.call(GetAcl("/mine")).result.acl == (Acl(31, "sasl", "bob"),)
    other = ensemble.connect(ensemble.followers[0])
    assert other.call(Exists("/")).error == ErrorCode.SESSION_CLOSED_REQUIRE_SASL_AUTH


def test_what_is_pipelined_behind_sasl_is_its_users() -> None:
    """Also where the exchange has to wait for a write before it."""
    ensemble = Ensemble(sasl_users=Users({"bob": "pw"}))
    client = ensemble.connect(ensemble.followers[0])
    exchange = ClientExchange("bob", "pw", Random(1))
    challenge = client.call(Sasl(b""))
    assert isinstance(challenge.result, SaslResult)
    token = exchange.step(challenge.result.token or b"")

    client.heard.clear()
    mine = Create("/mine", b"", CREATOR_ALL_ACL, 0)
    client.send(Create("/n", b"", None, 0), Sasl(token), mine, Sync("/"), SetData("/mine", b"x"))
    ensemble.settle()

    answers = [answer.error for answer in client.heard if isinstance(answer, Reply)]
    assert answers == [ErrorCode.INVALID_ACL, 0, 0, 0, 0]
    assert client.call(GetAcl("/mine")).result.acl == (Acl(31, "sasl", "bob"),)
    connection = ensemble.members[client.member].clients.connections[client.connection_id]
    assert connection.held == 0


def test_who_proves_nothing_by_sasl_is_cut_off() -> None:
    """-115 without a zxid, then the end of the connection, as the vectors have it."""
    ensemble = Ensemble(sasl_users=Users({"bob": "pw"}))
    client = ensemble.connect(ensemble.followers[0])

    reply = prove(client, "bob", "guess")

    assert (reply.error, reply.zxid) == (ErrorCode.AUTH_FAILED, 0)
    assert client.closed


def test_acls_name_users_of_sasl_where_there_is_sasl() -> None:
    """Elsewhere the scheme is not known (section 11)."""
    acl = (Acl(31, "sasl", "bob"),)
    for users, expected in ((Users({"bob": "pw"}), ErrorCode.OK), (None, ErrorCode.INVALID_ACL)):
        ensemble = Ensemble(sasl_users=users)
        client = ensemble.connect(ensemble.followers[0])
        assert client.call(Create("/n", b"", acl, 0)).error == expected


SOMEBODY_ELSES = (Acl(31, "digest", "bob:secret"),)

HIDDEN = [
    SetData("/n", b"y"),
    SetAcl("/n", SOMEBODY_ELSES),
    Create("/n/below", b"", SOMEBODY_ELSES),
    Multi((Check("/n", -1), SetData("/n", b"z"))),
    GetData("/n"),
    Exists("/n"),
    GetChildren("/n"),
    GetChildren2("/n"),
    GetAcl("/n"),
    GetAllChildrenNumber("/n"),
    Check("/n", -1),
]


@pytest.mark.parametrize("op", HIDDEN)
def test_where_acls_are_skipped_they_are_by_every_request(op: Op) -> None:
    """Reads as well as writes, whoever asks."""
    ensemble = Ensemble(skip_acl=True)
    client = ensemble.connect(ensemble.followers[0])
    client.call(Create("/n", b"x", SOMEBODY_ELSES))

    assert client.call(op).error == 0


def test_where_acls_are_skipped_nothing_is_kept_from_anybody() -> None:
    """Not the secret in an ACL, a part of a multiRead, an event, nor one that was missed."""
    ensemble = Ensemble(skip_acl=True)
    client = ensemble.connect(ensemble.followers[0])
    client.call(Create("/n", b"x", SOMEBODY_ELSES))

    shown = client.call(GetAcl("/n")).result
    assert isinstance(shown, AclResult)
    assert shown.acl == SOMEBODY_ELSES
    parts = client.call(MultiRead((GetData("/n"),))).result
    assert isinstance(parts, MultiResult)
    assert isinstance(parts.results[0], GetDataResult)

    client.call(AddWatch("/n", AddWatchMode.PERSISTENT))
    client.call(SetData("/n", b"y"))
    client.call(SetWatches(0, ("/n",), ("/n",), ()))
    assert [event.event.path for event in client.events] == ["/n"] * 3
