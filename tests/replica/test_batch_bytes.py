"""However much is asked at once, and however large it becomes: what is prepared fits a batch."""

from __future__ import annotations

import pytest
from tests.replica.harness import Client, Ensemble

from zabd.model.acl import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
from zabd.model.errors import ErrorCode
from zabd.model.ops import Auth, CloseSession, Create, CreateMode, Multi, Op, Sync
from zabd.model.results import ErrorResult, MultiResult
from zabd.replica.messages import FORWARD_BYTES_MAX
from zabd.wire.connection import Reply
from zabd.zab import effects as zab
from zabd.zab.broadcast import BATCH_BYTES_MAX
from zabd.zab.codec import FRAME_BYTES_MAX, encode

LONG = "x" * 900_000
SILENT_MS = 4000
MANY = BATCH_BYTES_MAX // len(LONG) + 1
"""Ephemerals whose paths, all together, are longer than a batch."""


def own(client: Client, *names: str) -> None:
    """Have the client create ephemerals with long paths."""
    for name in names:
        created = client.call(Create(f"/{name}{LONG}", b"", OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL))
        assert created.error == 0


def ephemerals(ensemble: Ensemble) -> set[int]:
    """How many ephemerals each member's tree has."""
    return {sum(map(len, member.tree.ephemerals.values())) for member in ensemble.members.values()}


@pytest.mark.parametrize("expires", [True, False])
def test_a_session_that_owns_more_than_a_batch_holds_is_closed(*, expires: bool) -> None:
    """It ended every leader that closed it, and was there again after every start."""
    ensemble = Ensemble(3)
    client = ensemble.connect(ensemble.followers[0], SILENT_MS)
    own(client, *map(str, range(MANY)))
    assert ephemerals(ensemble) == {MANY}

    if expires:
        ensemble.hang_up(client)
        ensemble.pass_time(3 * SILENT_MS)
    else:
        assert client.call(CloseSession()).error == 0

    assert ephemerals(ensemble) == {0}
    assert len({member.tree.digest for member in ensemble.members.values()}) == 1


def test_many_sessions_that_end_at_once_share_no_batch_that_is_too_large() -> None:
    """None of them is large, but a close has no request whose bytes could be counted."""
    ensemble = Ensemble(1)
    clients = [ensemble.connect(1, SILENT_MS) for _ in range(MANY)]
    for number, client in enumerate(clients):
        own(client, str(number))
    assert ephemerals(ensemble) == {MANY}

    for client in clients:
        ensemble.hang_up(client)
    ensemble.pass_time(3 * SILENT_MS)

    assert ephemerals(ensemble) == {0}
    assert not ensemble.members[1].tree.sessions


def test_creates_that_say_auth_grow_no_batch_beyond_its_limit() -> None:
    """A few bytes of each stand for all that the connection has shown."""
    ensemble = Ensemble(1)
    client = ensemble.connect(1)
    client.send(*(Auth(0, "digest", b"%03d" % n + b"u" * 200 + b":p") for n in range(60)))
    creates = [Create(f"/{n}", b"", CREATOR_ALL_ACL, 0) for n in range(3000)]

    client.send(*creates[:1300], Multi(tuple(creates[1300:])))
    ensemble.settle()

    records = [len(batch.record) for batch in ensemble.logs[1]]
    assert sum(records) > BATCH_BYTES_MAX
    assert max(records) < BATCH_BYTES_MAX / 2
    assert "/1299" in ensemble.members[1].tree.nodes
    refused = client.heard[-1]
    assert isinstance(refused, Reply)
    assert isinstance(refused.result, MultiResult)
    assert ErrorResult(ErrorCode.INVALID_ACL) in refused.result.results


def test_what_is_forwarded_fits_a_frame_whoever_asks() -> None:
    """Frames, who asks, and what stands beside each are counted; a link is not lost over them."""
    ensemble = Ensemble(3)
    member = ensemble.followers[0]
    clients = [ensemble.connect(member) for _ in range(60)]
    for number, client in enumerate(clients):
        ensemble.now_ms += 1
        ops: list[Op] = []
        for n in range(60):
            ops += [Auth(0, "digest", b"%02d%02d" % (number, n) + b"u" * 230 + b":p"), Sync("/")]
        chunk = b"".join(client.wire.send(op)[1] for op in ops)
        ensemble.members[member].receive(client.connection_id, chunk, ensemble.now_ms)
    effects = ensemble.members[member].flush(ensemble.now_ms)

    frames = [encode(effect.message) for effect in effects if isinstance(effect, zab.Send)]
    assert sum(map(len, frames)) > FRAME_BYTES_MAX
    assert max(map(len, frames)) < FORWARD_BYTES_MAX + 20_000
    sizes = [len(frame) for frame in frames]
    assert min(sizes[:-1]) > FORWARD_BYTES_MAX / 2
