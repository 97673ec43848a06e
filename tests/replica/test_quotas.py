"""Quotas through a whole ensemble: refused at the leader, counted alike on every member."""

import pytest
from tests.replica.harness import Client, Ensemble

from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import ErrorCode
from zabd.model.ops import Create, Delete, GetData, Multi, SetData
from zabd.model.results import GetDataResult, MultiResult
from zabd.replica import leadership
from zabd.wire.connection import Reply
from zabd.znode_tree import quota_check

LIMITS = "/zookeeper/quota/q/zookeeper_limits"
STATS = "/zookeeper/quota/q/zookeeper_stats"


def create(client: Client, path: str, data: bytes = b"") -> int:
    """The error code of creating a znode."""
    return client.call(Create(path, data, OPEN_ACL_UNSAFE, 0)).error


def set_quota(client: Client, text: bytes) -> None:
    """A quota on /q, which is made."""
    for path, data in (
        ("/q", b""),
        ("/zookeeper/quota/q", b""),
        (LIMITS, text),
        (STATS, b"count=0,bytes=0"),
    ):
        assert create(client, path, data) == ErrorCode.OK


def shown(client: Client) -> bytes | None:
    """The usage of the quota on /q, as this client's member shows it."""
    result = client.call(GetData(STATS, watch=False)).result
    assert isinstance(result, GetDataResult)
    return result.data


def test_a_hard_quota_is_enforced_for_clients_of_every_member() -> None:
    """And all of them show the same usage, in trees with the same digest."""
    ensemble = Ensemble(enforce_quota=True)
    clients = [ensemble.connect(member) for member in (1, 2, 3)]
    set_quota(clients[0], b"count=-1,bytes=-1=;byteHardLimit=4;countHardLimit=3")

    assert [create(client, f"/q/{n}", b"1") for n, client in enumerate(clients)] == [
        ErrorCode.OK,
        ErrorCode.OK,
        ErrorCode.QUOTA_EXCEEDED,
    ]
    assert clients[2].call(SetData("/q/0", b"12345", -1)).error == ErrorCode.QUOTA_EXCEEDED
    assert clients[2].call(SetData("/q/0", b"", -1)).error == ErrorCode.OK

    assert [shown(client) for client in clients] == [b"count=3,bytes=1"] * 3
    assert len({replica.tree.digest for replica in ensemble.members.values()}) == 1


def test_unless_enforced_a_hard_quota_only_warns() -> None:
    """On the leader, once, where an operator can see it."""
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    set_quota(client, b"count=-1,bytes=-1=;countHardLimit=1")

    assert create(client, "/q/a") == create(client, "/q/b") == ErrorCode.OK

    [(member, fields)] = [
        (m, fields) for m, name, fields in ensemble.traces if name == "quota exceeded"
    ]
    assert member == ensemble.leader
    assert (fields["quota_on"], fields["used"], fields["limit"]) == ("/q", 2, 1)


COUNTED = 20


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> tuple[Ensemble, Client]:
    """A client of an ensemble in which more is below /q than a txn may count twice."""
    monkeypatch.setattr(quota_check, "WALK_MAX", COUNTED)
    monkeypatch.setattr(leadership, "WALK_MAX", COUNTED)
    ensemble = Ensemble()
    client = ensemble.connect(ensemble.followers[0])
    for path in ("/q", "/zookeeper/quota/q"):
        create(client, path)
    for number in range(COUNTED):
        create(client, f"/q/{number}")
    return ensemble, client


@pytest.mark.parametrize("path", [LIMITS, STATS])
def test_one_multi_counts_as_much_as_a_turn_has_room_for(
    crowd: tuple[Ensemble, Client], path: str
) -> None:
    """Its first quota may be on anything; nothing is left of one that is refused."""
    ensemble, client = crowd
    begin, end = Create(path, b"count=1", OPEN_ACL_UNSAFE, 0), Delete(path, -1)
    refused = client.call(Multi((begin, end, begin, end)))
    assert isinstance(refused.result, MultiResult)
    assert [getattr(part, "code", 0) for part in refused.result.results] == [0, 0, -8, -2]
    for members in ensemble.members.values():
        assert path not in members.tree.nodes

    assert client.call(Multi((begin, end))).error == ErrorCode.OK
    assert client.call(begin).error == ErrorCode.OK
    assert client.call(end).error == ErrorCode.OK
    assert len({replica.tree.digest for replica in ensemble.members.values()}) == 1


def test_after_a_long_count_the_next_batch_waits_until_all_have_counted(
    crowd: tuple[Ensemble, Client],
) -> None:
    """Between two of them everybody does what else there is to do, and nothing is lost."""
    ensemble, client = crowd
    before = len(ensemble.logs[ensemble.leader])
    begin, end = Create(LIMITS, b"count=1", OPEN_ACL_UNSAFE, 0), Delete(LIMITS, -1)
    client.heard.clear()
    client.send(*[begin, end] * 5)
    ensemble.settle()

    counts = [batch.count for batch in ensemble.logs[ensemble.leader][before:]]
    assert counts == [1, 2, 2, 2, 2, 1]
    assert [reply.error for reply in client.heard if isinstance(reply, Reply)] == [0] * 10
