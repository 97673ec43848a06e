"""How much of a turn the reads of clients may take, and who comes first in the next one."""

import pytest
from tests.replica.harness import Client, Ensemble

from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    Create,
    CreateMode,
    GetAllChildrenNumber,
    GetChildren,
    GetData,
    GetEphemerals,
    Multi,
    MultiRead,
    Op,
    SetData,
    Sync,
)
from zabd.model.results import AllChildrenNumberResult, GetDataResult
from zabd.replica import reads, work
from zabd.replica.events import Drained
from zabd.wire.connection import Reply

SLOW = GetAllChildrenNumber("/big")
SIZE = 30


def create(path: str, data: bytes = b"", flags: int = CreateMode.PERSISTENT) -> Create:
    """A create that anybody may undo."""
    return Create(path, data, OPEN_ACL_UNSAFE, flags)


class InTurns(Ensemble):
    """A member alone; what clients send together, and have taken together, is of one turn."""

    def __init__(self) -> None:
        self.drained: list[object] = []
        super().__init__(1)

    def _later(self, member: int, event: object) -> None:
        if isinstance(event, Drained):
            self.drained.append(event)
        else:
            super()._later(member, event)

    def turn(self, *sent: tuple[Client, Op]) -> None:
        """Clients send, those who had to wait go on, and the turn ends."""
        replica = self.members[1]
        for client, op in sent:
            replica.receive(client.connection_id, client.wire.send(op)[1], self.now_ms)
        drained, self.drained = self.drained, []
        for event in drained:
            self._perform_all(1, replica.step(event, self.now_ms))
        self._flush(1)

    def settle(self) -> None:
        """As many turns as it takes."""
        super().settle()
        while self.drained:
            self.turn()
            super().settle()


@pytest.fixture
def ensemble(monkeypatch: pytest.MonkeyPatch) -> InTurns:
    """A member with a part of a tree that takes all of a turn."""
    monkeypatch.setattr(work, "WORK_MAX", SIZE)
    ensemble = InTurns()
    client = ensemble.connect(1)
    client.call(create("/big"))
    client.call(Multi(tuple(create(f"/big/{n:03}") for n in range(SIZE))))
    ensemble.hang_up(client)
    ensemble.pass_time(100)
    return ensemble


def replies(client: Client) -> list[Reply]:
    """All but those to pings."""
    return [item for item in client.heard if isinstance(item, Reply) and item.xid > 0]


def counts(client: Client) -> list[int]:
    """What the slow reads came to."""
    results = [reply.result for reply in replies(client)]
    return [r.total for r in results if isinstance(r, AllChildrenNumberResult)]


@pytest.mark.parametrize("op", [SLOW, GetEphemerals(""), MultiRead((GetChildren("/big"),))])
def test_a_pipeline_of_slow_reads_takes_a_turn_for_each(ensemble: InTurns, op: Op) -> None:
    """And between two of them everybody else is served (A1)."""
    client, other = ensemble.connect(1), ensemble.connect(1)
    paths = [f"/e{n:03}" for n in range(SIZE)]
    client.call(Multi(tuple(create(path, flags=CreateMode.EPHEMERAL) for path in paths)))
    before = len(replies(client))
    client.send(*[op] * 5)
    answered = []
    for _ in range(5):
        answered.append(len(replies(client)) - before)
        ensemble.turn((other, GetData("/big")))

    assert answered == [1, 2, 3, 4, 5]
    assert [reply.error for reply in replies(client)] == [0] * (before + 5)
    assert len(replies(other)) == 5
    assert not ensemble.drained
    assert ensemble.members[1].clients.stats.outstanding == 0


def test_slow_reads_of_many_connections_share_the_turn(ensemble: InTurns) -> None:
    """One of them in each, whoever asked, and nobody twice before all had their turn (A2)."""
    clients = [ensemble.connect(1) for _ in range(4)]
    ensemble.turn(*[(client, SLOW) for client in clients for _ in range(3)])
    rounds = []
    for _ in range(3 * len(clients)):
        rounds.append([len(counts(client)) for client in clients])
        ensemble.turn()

    assert [sum(now) for now in rounds] == [*range(1, 3 * len(clients) + 1)]
    assert max(max(now) - min(now) for now in rounds) == 1
    assert [counts(client) for client in clients] == [[SIZE] * 3] * 4


def test_who_waits_comes_before_who_asks_next(ensemble: InTurns) -> None:
    """Or a connection that asks anew each time would keep the others waiting (A2)."""
    greedy, patient = ensemble.connect(1), ensemble.connect(1)
    ensemble.turn((greedy, SLOW), (patient, SLOW))
    assert (len(counts(greedy)), len(counts(patient))) == (1, 0)
    ensemble.turn((greedy, SLOW))
    assert (len(counts(greedy)), len(counts(patient))) == (1, 1)
    ensemble.settle()
    assert len(counts(greedy)) == 2


@pytest.mark.parametrize("first", [(), (create("/first"),), (Sync("/"),)])
def test_a_slow_read_that_waits_does_not_see_the_writes_behind_it(
    ensemble: InTurns, first: tuple[Op, ...]
) -> None:
    """A pipeline takes effect in its order, however many turns it takes (C2)."""
    client = ensemble.connect(1)
    client.send(
        *first,
        SLOW,
        SLOW,
        create("/big/new"),
        SLOW,
        SetData("/big", b"new"),
        Sync("/"),
        create("/big/newer"),
        GetData("/big"),
        SLOW,
    )
    ensemble.settle()

    assert counts(client) == [SIZE, SIZE, SIZE + 1, SIZE + 2]
    assert [reply.error for reply in replies(client)] == [0] * (9 + len(first))
    [shown] = [r.result for r in replies(client) if isinstance(r.result, GetDataResult)]
    assert shown.data == b"new"
    connection = ensemble.members[1].clients.connections[client.connection_id]
    assert (connection.held, connection.syncs_pending, connection.stuffed) == (0, 0, False)
    assert client.call(create("/after")).error == 0


def test_a_connection_that_ends_while_it_waits_leaves_nothing(ensemble: InTurns) -> None:
    """Neither in the line nor in the turn."""
    client, other = ensemble.connect(1), ensemble.connect(1)
    client.send(SLOW, SLOW, create("/big/new"))
    ensemble.hang_up(client)
    ensemble.settle()
    assert ensemble.members[1].clients.stats.outstanding == 0
    assert "/big/new" not in ensemble.members[1].tree.nodes
    assert other.call(SLOW).error == 0


def test_a_multiread_that_is_too_much_is_refused_before_anything_is_made(
    ensemble: InTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sizes are known without the answer."""
    monkeypatch.setattr(reads, "MULTI_READ_BYTES_MAX", 3 * SIZE)
    client = ensemble.connect(1)
    assert client.call(MultiRead((GetChildren("/big"),))).error == 0
    monkeypatch.setattr(reads, "children_of", None)
    refused = client.call(MultiRead((GetChildren("/big"), GetChildren("/"))))
    assert refused.error == ErrorCode.BAD_ARGUMENTS
