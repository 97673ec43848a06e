"""What the leader refuses, in which order, and what it decides against what is still in flight."""

import pytest
from tests.znode_tree.world import (
    ALICE,
    BOB,
    LOCAL,
    World,
    check_invariants,
    plain,
    refusal,
)

from zabd.model.acl import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Acl, Identity
from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    Check,
    CloseSession,
    Create,
    Create2,
    CreateContainer,
    CreateMode,
    CreateSession,
    CreateTtl,
    Delete,
    DeleteContainer,
    Multi,
    Op,
    Reconfig,
    SetAcl,
    SetData,
)
from zabd.model.watch_events import EventType
from zabd.znode_tree import PrepareOptions, prepare, txns

NOBODY = (Acl(0, "world", "anyone"),)
E = ErrorCode


@pytest.fixture
def world() -> World:
    """`/a` with a child, `/locked` for nobody, `/e` ephemeral."""
    world = World()
    world.create("/a")
    world.create("/a/b")
    world.create("/locked", acl=NOBODY)
    world.create("/e", mode=CreateMode.EPHEMERAL)
    return world


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("", E.BAD_ARGUMENTS),
        ("a", E.BAD_ARGUMENTS),
        ("/a\0", E.BAD_ARGUMENTS),
        ("/nothing/b", E.NO_NODE),
        ("a/b", E.NO_NODE),
        ("/a/../b", E.NO_NODE),
        ("/a//b", E.NO_NODE),
        ("/locked/b", E.NO_AUTH),
        ("/a/", E.BAD_ARGUMENTS),
        ("/a/..", E.BAD_ARGUMENTS),
        ("/a/\x01", E.BAD_ARGUMENTS),
        ("/a/\ue000", E.BAD_ARGUMENTS),
        ("/a/\U0001f600", E.BAD_ARGUMENTS),
        ("/", E.NODE_EXISTS),
        ("/a/b", E.NODE_EXISTS),
        ("/zookeeper", E.NODE_EXISTS),
        ("/e/b", E.NO_CHILDREN_FOR_EPHEMERALS),
    ],
)
def test_create_is_refused_for_the_path(world: World, path: str, code: ErrorCode) -> None:
    """The parent is looked for before the path is judged; kazoo and others rely on the codes."""
    assert refusal(world.do(plain(path))) == code


@pytest.mark.parametrize("path", ["/a\x7f", "/x" * 500_000])
def test_a_long_or_unprintable_path_costs_no_more_than_a_refusal(path: str) -> None:
    """P7: neither recursion nor backtracking; the answer comes at once."""
    assert World().do(plain(path)).error < 0


@pytest.mark.parametrize(
    ("op", "code"),
    [
        (Create("/x", b"", OPEN_ACL_UNSAFE, 4), E.OK),
        (Create("/x", b"", OPEN_ACL_UNSAFE, 5), E.BAD_ARGUMENTS),
        (Create2("/x", b"", OPEN_ACL_UNSAFE, 99), E.BAD_ARGUMENTS),
        (Create("/x", b"", OPEN_ACL_UNSAFE, -1), E.BAD_ARGUMENTS),
        (CreateContainer("/x", b"", OPEN_ACL_UNSAFE, 0), E.BAD_ARGUMENTS),
        (CreateTtl("/x", b"", OPEN_ACL_UNSAFE, 0, -1), E.BAD_ARGUMENTS),
        (CreateTtl("/x", b"", OPEN_ACL_UNSAFE, 5, 0), E.BAD_ARGUMENTS),
        (CreateTtl("/x", b"", OPEN_ACL_UNSAFE, 5, 1 << 40), E.BAD_ARGUMENTS),
        (CreateTtl("/x", b"", OPEN_ACL_UNSAFE, 6, (1 << 40) - 1), E.OK),
        (CreateContainer("/x", b"", OPEN_ACL_UNSAFE, 4), E.OK),
    ],
)
def test_opcode_and_flags_must_agree(world: World, op: Op, code: ErrorCode) -> None:
    """The kind is in both; where they contradict each other, other servers have been killed."""
    assert world.do(op).error == code
    check_invariants(world.tree)


def test_a_plain_create_with_the_flags_of_a_container_is_persistent(world: World) -> None:
    """The client aiozk asks for every step of a path like this, and counts on the step to stay."""
    world.do(Create2("/x", b"", OPEN_ACL_UNSAFE, 4))

    assert world.tree.nodes["/x"].owner == 0


def test_ttl_can_be_switched_off() -> None:
    """Then the time is not even looked at."""
    world = World(PrepareOptions(ttl_enabled=False))

    assert refusal(world.do(CreateTtl("/x", b"", None, 5, 0))) == E.UNIMPLEMENTED


# One op that breaks every rule from some point on; taking them away one by one shows the order.
@pytest.mark.parametrize(
    ("op", "session_id", "code"),
    [
        (Create("zz", b"", None, 9), 42, E.BAD_ARGUMENTS),
        (Create("zz", b"", None, 0), 42, E.SESSION_EXPIRED),
        (Create("zz", b"", None, 0), ALICE, E.BAD_ARGUMENTS),
        (Create("/no/./b", b"", None, 0), ALICE, E.INVALID_ACL),
        (Create("/no/./b", b"", OPEN_ACL_UNSAFE, 0), ALICE, E.NO_NODE),
        (Create("/locked/.", b"", OPEN_ACL_UNSAFE, 0), ALICE, E.NO_AUTH),
        (Create("/e/.", b"", OPEN_ACL_UNSAFE, 0), ALICE, E.BAD_ARGUMENTS),
        (Delete("/", 7), 42, E.SESSION_EXPIRED),
        (Delete("zz", 7), ALICE, E.BAD_ARGUMENTS),
        (Delete("/zookeeper/quota", 7), ALICE, E.BAD_ARGUMENTS),
        (Delete("//", 7), ALICE, E.NO_NODE),
        (Delete("/no/b", 7), ALICE, E.NO_NODE),
        (Delete("/locked/b", 7), ALICE, E.NO_AUTH),
        (Delete("/b", 7), ALICE, E.NO_NODE),
        (Delete("/a", 7), ALICE, E.BAD_VERSION),
        (Delete("/a", 0), ALICE, E.NOT_EMPTY),
        (Delete("/locked", 0), ALICE, E.OK),
        (SetData("zz", b"", 7), 42, E.SESSION_EXPIRED),
        (SetData("zz", b"", 7), ALICE, E.BAD_ARGUMENTS),
        (SetData("/no", b"", 7), ALICE, E.NO_NODE),
        (SetData("/locked", b"", 7), ALICE, E.NO_AUTH),
        (SetData("/a", b"", 7), ALICE, E.BAD_VERSION),
        (SetData("/a", b"", -2), ALICE, E.BAD_VERSION),
        (SetAcl("zz", None, 7), 42, E.SESSION_EXPIRED),
        (SetAcl("zz", None, 7), ALICE, E.BAD_ARGUMENTS),
        (SetAcl("/no", None, 7), ALICE, E.INVALID_ACL),
        (SetAcl("/no", OPEN_ACL_UNSAFE, 7), ALICE, E.NO_NODE),
        (SetAcl("/locked", OPEN_ACL_UNSAFE, 7), ALICE, E.NO_AUTH),
        (SetAcl("/a", OPEN_ACL_UNSAFE, 7), ALICE, E.BAD_VERSION),
        (Check("zz", 7), 42, E.SESSION_EXPIRED),
        (Check("zz", 7), ALICE, E.BAD_ARGUMENTS),
        (Check("/no", 7), ALICE, E.NO_NODE),
        (Check("/locked", 7), ALICE, E.NO_AUTH),
        (Check("/a", 7), ALICE, E.BAD_VERSION),
        (Check("/a", 0), ALICE, E.OK),
        (CloseSession(), 42, E.SESSION_EXPIRED),
        (Reconfig(None, None, None), ALICE, E.RECONFIG_DISABLED),
    ],
)
def test_the_first_failing_check_gives_the_answer(
    world: World, op: Op, session_id: int, code: ErrorCode
) -> None:
    """The order is part of the protocol: clients see which of several mistakes is reported."""
    assert world.do(op, session_id).error == code


def test_rights_on_the_znode_itself_do_not_matter_for_its_deletion(world: World) -> None:
    """DELETE is a right on the parent."""
    world.create("/a/mine", acl=NOBODY)

    assert world.do(Delete("/a/mine")).error == 0


def test_super_and_skip_acl_may_do_everything() -> None:
    """An operator must have a way in."""
    locked = Create("/locked", b"", NOBODY, 0)
    world, open_world = World(), World(PrepareOptions(skip_acl=True))
    world.do(locked)
    open_world.do(locked)

    root = (*LOCAL, Identity("super", ""))
    assert world.do(SetData("/locked", b"x")).error == E.NO_AUTH
    assert world.do(SetData("/locked", b"x"), identities=root).error == 0
    assert open_world.do(SetData("/locked", b"x")).error == 0


def test_sequence_numbers_count_creations() -> None:
    """R7: deletions do not take a number back, other children use one up, failures do not."""
    world = World()
    world.create("/s")
    sequential = CreateMode.PERSISTENT_SEQUENTIAL

    assert world.create("/s/n-", mode=sequential) == "/s/n-0000000000"
    assert world.create("/s/n-", mode=sequential) == "/s/n-0000000001"
    world.do(Delete("/s/n-0000000000"))
    world.create("/s/plain")
    world.do(plain("/s/plain"))
    assert world.create("/s/n-", mode=sequential) == "/s/n-0000000003"
    assert world.create("/s/", mode=sequential) == "/s/0000000004"
    assert world.create("/", mode=sequential) == "/0000000001"


def test_the_first_sequential_name_under_the_root_ends_in_zero() -> None:
    """The system znodes were not created by anybody."""
    assert World().create("/n", mode=CreateMode.PERSISTENT_SEQUENTIAL) == "/n0000000000"


@pytest.mark.parametrize("wraps", [True, False])
def test_sequence_numbers_wrap_or_stop_as_configured(*, wraps: bool) -> None:
    """P24: negative as ZooKeeper's by default; a lock queue may prefer a refusal to a jump."""
    world = World(PrepareOptions(sequence_wraps=wraps))
    world.create("/s")
    world.node("/s").created = (1 << 31) - 1
    sequential = CreateMode.PERSISTENT_SEQUENTIAL

    assert world.create("/s/n", mode=sequential) == "/s/n2147483647"
    applied = world.do(plain("/s/n", sequential))

    if wraps:
        assert applied.value == "/s/n-2147483648"
    else:
        assert refusal(applied) == E.BAD_ARGUMENTS


# In flight.


def test_what_is_in_flight_counts(world: World) -> None:
    """R8: the second op of a pipeline is judged by what the first will have done."""
    for op in (plain("/p"), SetData("/p", b"1", 0), SetData("/p", b"2", 1), plain("/p/c")):
        world.prepare(op)
    world.prepare(Delete("/p"))
    world.prepare(SetData("/p", b"3", 1))
    world.prepare(Delete("/p/c", 0))
    world.prepare(Delete("/p", 2))
    world.prepare(SetData("/p", b"4"))
    world.prepare(plain("/p"))

    codes = [applied.error for applied in world.apply_all()]

    assert codes == [0, 0, 0, 0, E.NOT_EMPTY, E.BAD_VERSION, 0, 0, E.NO_NODE, 0]
    assert world.stat("/p").version == 0
    check_invariants(world.tree)


def test_pipelined_sequential_creates_get_different_names() -> None:
    """R7: both are prepared before either is applied."""
    world = World()
    for _ in range(3):
        world.prepare(plain("/n", CreateMode.EPHEMERAL_SEQUENTIAL))

    paths = [applied.value for applied in world.apply_all()]

    assert paths == ["/n0000000000", "/n0000000001", "/n0000000002"]


def test_the_overlay_is_empty_once_all_is_applied(world: World) -> None:
    """What the tree holds needs no second copy, and a long-lived leader no growing memory."""
    world.prepare(plain("/x", CreateMode.EPHEMERAL))
    world.prepare(SetData("/x", b"1"))
    world.prepare(CreateSession(1_000), 9)
    world.prepare(CloseSession())
    preparer = world.preparer
    assert len(preparer._outstanding) > 0

    world.apply_all()

    assert len(preparer._outstanding) == 0
    assert not preparer._outstanding._by_owner
    assert not preparer._outstanding._steps
    assert not preparer._outstanding._opening
    assert not preparer._outstanding._closing


def test_reset_forgets_what_was_in_flight(world: World) -> None:
    """A leader that steps down does not know what becomes of it; the tree does."""
    world.prepare(plain("/x"))
    world.prepare(CloseSession())

    world.preparer.reset()
    world.waiting.clear()

    assert world.do(plain("/x")).error == 0


def test_a_closing_session_can_do_nothing_more(world: World) -> None:
    """S3: what is pipelined behind a close is refused, before and after the close is applied."""
    world.prepare(CloseSession())
    world.prepare(plain("/x"))
    world.prepare(CloseSession())
    world.prepare(CreateSession(1_000))
    codes = [applied.error for applied in world.apply_all()]

    assert codes == [0, E.SESSION_EXPIRED, E.SESSION_EXPIRED, E.SESSION_EXPIRED]
    assert refusal(world.do(plain("/x"))) == E.SESSION_EXPIRED
    assert not world.preparer.session_is_live(ALICE)


def test_a_session_in_the_making_can_be_used() -> None:
    """The leader may prepare the first write before the session itself is applied."""
    world = World()
    world.prepare(CreateSession(1_000), 9)
    world.prepare(plain("/mine", CreateMode.EPHEMERAL), 9)

    assert [applied.error for applied in world.apply_all()] == [0, 0]


def test_a_renewed_session_is_not_alive_after_its_close() -> None:
    """Sessions that are renewed in between must not keep the closed one in the books."""
    world = World()
    for session_id in (9, 10, 9):
        world.prepare(CreateSession(1_000), session_id)
    world.prepare(CloseSession(), 10)
    world.prepare(CreateSession(2_000), 9)
    for _ in range(4):
        world.apply_next()

    assert not world.preparer.session_is_live(10)
    assert world.preparer.session_is_live(9)


def test_a_close_takes_the_ephemerals_in_flight_with_it(world: World) -> None:
    """S1: created but not applied, deleted but not applied, taken over by somebody else."""
    world.prepare(plain("/new", CreateMode.EPHEMERAL))
    world.prepare(Delete("/e"))
    world.prepare(plain("/gone", CreateMode.EPHEMERAL))
    world.prepare(Delete("/gone"))
    world.prepare(plain("/gone", CreateMode.EPHEMERAL), BOB)
    txn = world.prepare(CloseSession())
    world.prepare(plain("/e"), BOB)

    assert txn == txns.close_session(["/new"])
    assert [applied.error for applied in world.apply_all()] == [0] * 7
    assert world.node("/gone").owner == BOB
    check_invariants(world.tree)


def test_a_close_whose_list_would_be_too_long_takes_the_same_ephemerals(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the session owns once everything before is applied, in the order of a list."""
    monkeypatch.setattr(prepare, "CLOSE_CHARS_MAX", 5)
    world.prepare(plain("/new", CreateMode.EPHEMERAL))
    world.prepare(plain("/before", CreateMode.EPHEMERAL))
    world.prepare(plain("/gone", CreateMode.EPHEMERAL))
    world.prepare(Delete("/gone"))
    world.prepare(plain("/gone", CreateMode.EPHEMERAL), BOB)
    txn = world.prepare(CloseSession())
    world.prepare(plain("/e"), BOB)
    *_, closed, _ = world.apply_all()

    assert txn == txns.close_session(None)
    deleted = [change.path for change in closed.changes if change.type is EventType.DELETED]
    assert deleted == ["/before", "/e", "/new"]
    assert world.node("/gone").owner == BOB
    assert world.node("/e").owner == 0
    check_invariants(world.tree)


def test_expiry_is_a_close() -> None:
    """The leader closes the session with the very txn that the client would have caused."""
    world = World()
    world.create("/e", mode=CreateMode.EPHEMERAL)

    applied = world.expire(ALICE)

    assert applied.error == 0
    assert world.tree.get("/e") is None
    assert refusal(world.expire(ALICE)) == E.SESSION_EXPIRED


def test_rights_in_flight_count() -> None:
    """A client that gives away its rights has given them away for its next op."""
    world = World()
    world.create("/a")
    world.prepare(SetAcl("/a", READ_ACL_UNSAFE))
    world.prepare(SetData("/a", b"x"))

    assert [applied.error for applied in world.apply_all()] == [0, E.NO_AUTH]


def test_a_local_session_writes_but_owns_nothing() -> None:
    """It is in no member's table but one, so nobody would ever delete its ephemerals."""
    world = World()

    def prepare(op: Op) -> txns.Txn:
        world.zxid += 1
        return world.preparer.prepare(world.zxid, 1, 42, LOCAL, op, local_session=True)

    assert prepare(plain("/e", CreateMode.EPHEMERAL)) == txns.error(E.EPHEMERAL_ON_LOCAL_SESSION)
    assert prepare(plain("/p"))[0] == txns.CREATE


# Containers and TTL.


def test_a_container_goes_when_it_is_empty() -> None:
    """Emptiness is asked for again, against what is in flight: the finder saw an older state."""
    world = World()
    world.do(CreateContainer("/c", b"", OPEN_ACL_UNSAFE, CreateMode.CONTAINER))
    world.prepare(plain("/c/child"))
    world.prepare(DeleteContainer("/c"), 0)
    world.prepare(Delete("/c/child"))
    world.prepare(DeleteContainer("/c"), 0)

    assert [a.error for a in world.apply_all()] == [0, E.NOT_EMPTY, 0, 0]
    assert world.tree.get("/c") is None
    check_invariants(world.tree)


def test_a_ttl_znode_goes_when_its_time_is_over_and_not_before() -> None:
    """A set in flight renews it, so the deletion that was decided before comes to nothing."""
    world = World()
    world.do(CreateTtl("/t", b"", OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, 1000))
    assert refusal(world.do(DeleteContainer("/t"), 0)) == E.BAD_VERSION

    world.now_ms += 2000
    world.prepare(SetData("/t", b"x"))
    world.prepare(DeleteContainer("/t"), 0)
    assert [applied.error for applied in world.apply_all()] == [0, E.BAD_VERSION]

    world.now_ms += 1000
    assert world.do(DeleteContainer("/t"), 0).error == 0
    assert world.tree.get("/t") is None


@pytest.mark.parametrize("path", ["/a/b", "/e", "/zookeeper/config", "/no", "zz"])
def test_nothing_else_is_cleaned_up(world: World, path: str) -> None:
    """Plain znodes, ephemerals and system znodes are nobody's to clean up."""
    assert world.do(DeleteContainer(path), 0).error < 0


# Multi.


def test_a_multi_with_a_kind_that_it_cannot_have_is_refused_as_a_whole(world: World) -> None:
    """Only creates, deletes, sets and checks may be in it; no answers per op then."""
    inner: object = Multi(())
    for part in (SetAcl("/a", OPEN_ACL_UNSAFE), inner):
        multi = Multi((plain("/x"), part))  # type: ignore[arg-type]
        assert refusal(world.do(multi)) == E.MARSHALLING_ERROR
    assert world.tree.get("/x") is None
