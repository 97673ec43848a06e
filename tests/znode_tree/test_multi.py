"""Multi: each op sees the ones before it, and all happen or none."""

import pytest
from tests.znode_tree.world import ALICE, World, check_invariants, contents, plain, refusal

from zabd.model.acl import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Identity
from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    Check,
    CloseSession,
    Create,
    Create2,
    CreateContainer,
    CreateMode,
    CreateTtl,
    Delete,
    Multi,
    SetData,
)
from zabd.model.results import (
    CheckResult,
    Create2Result,
    CreateResult,
    DeleteResult,
    ErrorResult,
    MultiResult,
    StatResult,
)
from zabd.model.watch_events import EventType
from zabd.znode_tree import prepare, txns


def codes(*numbers: int) -> MultiResult:
    """The answer to a multi that failed."""
    return MultiResult(tuple(map(ErrorResult, numbers)))


def test_each_op_sees_the_ones_before_it() -> None:
    """A znode can be made, checked, set, checked and deleted in one request."""
    world = World()

    applied = world.do(
        Multi(
            (
                plain("/a"),
                Check("/a", 0),
                SetData("/a", b"xyz", 0),
                Check("/a", 1),
                Delete("/a", 1),
            )
        )
    )

    assert isinstance(applied.value, MultiResult)
    made, checked, changed, again, deleted = applied.value.results
    assert (made, checked, again, deleted) == (
        CreateResult("/a"),
        CheckResult(),
        CheckResult(),
        DeleteResult(),
    )
    assert type(deleted) is DeleteResult
    assert isinstance(changed, StatResult)
    assert changed.stat.version == 1
    assert changed.stat.mzxid == changed.stat.czxid == world.zxid
    assert world.tree.get("/a") is None
    check_invariants(world.tree)


def test_a_stat_shows_the_state_after_its_own_op() -> None:
    """Later ops of the same multi do not show in it."""
    world = World()

    applied = world.do(
        Multi((Create2("/a", b"", OPEN_ACL_UNSAFE, 0), SetData("/a", b"xyz"), plain("/a/b")))
    )

    assert isinstance(applied.value, MultiResult)
    made, changed, _ = applied.value.results
    assert isinstance(made, Create2Result)
    assert (made.stat.version, made.stat.data_length) == (0, 0)
    assert isinstance(changed, StatResult)
    assert (changed.stat.version, changed.stat.num_children) == (1, 0)
    assert world.stat("/a").num_children == 1


def test_containers_and_ttl_znodes_are_answered_with_a_stat() -> None:
    """Whatever the opcode, except for the oldest form of create."""
    world = World()

    applied = world.do(
        Multi(
            (
                CreateContainer("/c", b"", OPEN_ACL_UNSAFE, CreateMode.CONTAINER),
                CreateTtl("/t", b"", OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_WITH_TTL, 9),
            )
        )
    )

    assert isinstance(applied.value, MultiResult)
    assert all(isinstance(result, Create2Result) for result in applied.value.results)


def test_sequence_numbers_go_on_within_a_multi() -> None:
    """Two sequential creates under one parent are consecutive."""
    world = World()
    sequential = CreateMode.PERSISTENT_SEQUENTIAL

    applied = world.do(Multi((plain("/n", sequential), plain("/n", sequential))))

    assert applied.value == MultiResult(
        (CreateResult("/n0000000000"), CreateResult("/n0000000001"))
    )


def test_a_failed_multi_names_its_culprit_and_changes_nothing() -> None:
    """0 before it, its own code, RUNTIME_INCONSISTENCY after it; the header says 0."""
    world = World()
    world.create("/a")
    before = contents(world.tree)

    applied = world.do(Multi((plain("/b"), Delete("/a"), SetData("/no", b""), plain("/c"))))

    assert (applied.error, applied.changes) == (0, ())
    assert applied.value == codes(0, 0, ErrorCode.NO_NODE, ErrorCode.RUNTIME_INCONSISTENCY)
    after = contents(world.tree)
    assert before | {"zxid": 0, "time_ms": 0} == after | {"zxid": 0, "time_ms": 0}


def test_a_failed_multi_leaves_no_trace_among_what_is_in_flight() -> None:
    """O3: neither its znodes nor its sequence numbers, versions or deletions are there after it."""
    world = World()
    world.create("/e", mode=CreateMode.EPHEMERAL)
    world.prepare(SetData("/e", b"1"))
    world.prepare(
        Multi(
            (
                plain("/n", CreateMode.PERSISTENT_SEQUENTIAL),
                Delete("/e"),
                plain("/e"),
                SetData("/e", b""),
                Check("/no"),
            )
        )
    )
    world.prepare(plain("/n", CreateMode.PERSISTENT_SEQUENTIAL))
    world.prepare(SetData("/e", b"2", 1))
    world.prepare(CloseSession())

    applied = world.apply_all()

    assert applied[1].value == codes(0, 0, 0, 0, ErrorCode.NO_NODE)
    assert applied[2].value == "/n0000000001"
    assert [a.error for a in applied] == [0] * 5
    assert world.tree.get("/e") is None
    check_invariants(world.tree)


def test_a_multi_of_a_closing_session_fails_at_its_first_op() -> None:
    """The session is asked for op by op, so the answer has the shape of a failed multi."""
    world = World()
    world.prepare(CloseSession())
    world.prepare(Multi((plain("/a"), plain("/b"))))

    assert world.apply_all()[-1].value == codes(
        ErrorCode.SESSION_EXPIRED, ErrorCode.RUNTIME_INCONSISTENCY
    )


def test_an_empty_multi_succeeds() -> None:
    """It takes a zxid like any other."""
    world = World()

    assert world.do(Multi(())) == (0, MultiResult(()), ())
    assert world.tree.zxid == world.zxid


def test_flags_are_judged_op_by_op() -> None:
    """An unknown flag in a multi is the failure of that op."""
    assert World().do(Multi((plain("/a"), plain("/b", 77)))).value == codes(
        0, ErrorCode.BAD_ARGUMENTS
    )


def test_changes_come_op_by_op() -> None:
    """Watches fire in the order of the ops."""
    applied = World().do(Multi((plain("/a"), SetData("/a", b"x"), plain("/a/b"), Delete("/a/b"))))

    assert [(change.type, change.path) for change in applied.changes] == [
        (EventType.CREATED, "/a"),
        (EventType.CHILDREN_CHANGED, "/"),
        (EventType.DATA_CHANGED, "/a"),
        (EventType.CREATED, "/a/b"),
        (EventType.CHILDREN_CHANGED, "/a"),
        (EventType.DELETED, "/a/b"),
        (EventType.CHILDREN_CHANGED, "/a"),
    ]


def test_a_multi_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: refused as a whole, before anything of it is looked at."""
    monkeypatch.setattr(prepare, "MULTI_OPS_MAX", 2)
    world = World()

    assert refusal(world.do(Multi((plain("/a"), plain("/b"), plain("/c"))))) == (
        ErrorCode.MARSHALLING_ERROR
    )
    assert world.tree.get("/a") is None


def test_the_acls_of_a_multi_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: each op may say `auth`, which stands for much more than it takes in a request."""
    world = World()
    mine = (Identity("digest", "alice:" + "x" * 1000),)
    creates = tuple(Create(f"/{n}", b"", CREATOR_ALL_ACL, 0) for n in range(7))
    one = world.preparer.prepare(world.zxid + 1, world.now_ms, ALICE, mine, Multi(creates[:1]))
    world.preparer.reset()
    [create] = one[2]
    monkeypatch.setattr(prepare, "MULTI_ACL_BYTES_MAX", 3 * txns.packed_size(create[3]))

    assert world.do(Multi(creates[:3]), identities=mine).value == MultiResult(
        tuple(CreateResult(f"/{n}") for n in range(3))
    )
    assert world.do(Multi(creates[3:]), identities=mine).value == codes(
        0, 0, 0, ErrorCode.INVALID_ACL
    )
    assert world.tree.get("/3") is None
    assert world.create("/3") == "/3"
