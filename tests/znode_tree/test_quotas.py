"""Quotas: limits and usage under /zookeeper/quota, and what clients cannot break there."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.znode_tree.world import ALICE, BOB, World, check_invariants, contents, plain, refusal

from zabd.model.errors import ErrorCode
from zabd.model.ops import (
    Check,
    CloseSession,
    Create,
    CreateMode,
    CreateSession,
    Delete,
    Multi,
    Op,
    SetData,
)
from zabd.model.quotas import limits_path, parse_limits, stats_path
from zabd.model.results import ErrorResult, MultiResult
from zabd.znode_tree import PrepareOptions, Preparer, TreeLoader, ZnodeTree
from zabd.znode_tree.quotas import Quota, limited_path

ENFORCED = PrepareOptions(enforce_quota=True)


def set_quota(world: World, subject: str, text: bytes) -> None:
    """What zkCli's setquota does for a path that has none."""
    path = "/zookeeper/quota"
    for name in subject[1:].split("/"):
        path += f"/{name}"
        if path not in world.tree.nodes:
            world.create(path)
    world.create(limits_path(subject), text)
    world.create(stats_path(subject), b"count=0,bytes=0")


def shown(world: World, subject: str) -> bytes | None:
    """The text of the stats znode."""
    return world.node(stats_path(subject)).data


def codes(world: World, multi: Multi) -> list[int]:
    """What became of each op."""
    value = world.do(multi).value
    assert isinstance(value, MultiResult)
    return [part.code if isinstance(part, ErrorResult) else 0 for part in value.results]


def loaded(tree: ZnodeTree) -> ZnodeTree:
    """The tree once more, through a snapshot."""
    walk, loader = tree.begin_snapshot(), TreeLoader()
    while (chunk := walk.next_slice(7)) is not None:
        loader.feed(chunk)
    return loader.finish()


def usage_from_scratch(tree: ZnodeTree) -> dict[str, Quota]:
    """Every active quota as its definition says (Q1)."""
    found = {}
    for path, node in tree.nodes.items():
        subject = limited_path(path)
        if subject is not None:
            sizes = [
                len(other.data or b"")
                for below, other in tree.nodes.items()
                if below == subject or below.startswith(subject + "/")
            ]
            found[subject] = Quota(parse_limits(node.data), len(sizes), sum(sizes))
    return found


@pytest.mark.parametrize(
    "path",
    [
        "/zookeeper/quota/zookeeper_limits",
        "/zookeeper/quota/zookeeper/zookeeper_limits",
        "/zookeeper/quota/zookeeper/quota/zookeeper_limits",
        "/zookeeper/quota/a/zookeeper_stats",
        "/zookeeper/quota/a_zookeeper_limits",
        "/zookeeper/quota/" + "a" * 5000 + "/zookeeper_limits",
        "/a/zookeeper_limits",
    ],
)
def test_some_places_never_activate_a_quota(path: str) -> None:
    """The root and the system znodes have none: the stats text would count towards itself."""
    assert limited_path(path) is None


# Usage.


def test_stats_count_the_znode_itself_and_all_below() -> None:
    """Creating the stats znode counts what is there, whatever the client wrote into it."""
    world = World()
    world.create("/q", b"1")
    world.create("/q/a", b"22")
    world.create("/q/a/b", b"333")
    world.create("/qq", b"not below")

    set_quota(world, "/q", b"count=10,bytes=100")

    assert shown(world, "/q") == b"count=3,bytes=6"


def test_stats_follow_every_create_delete_and_set() -> None:
    """Also through a multi and the close of a session."""
    world = World()
    world.create("/q")
    set_quota(world, "/q", b"count=10,bytes=100")
    seen = [shown(world, "/q")]
    for op in (
        plain("/q/a", data=b"four"),
        SetData("/q/a", b"sixsix", -1),
        SetData("/q/a", None, -1),
        Multi((plain("/q/b", data=b"1"), plain("/q/c", data=b"2"), Delete("/q/a", -1))),
        plain("/q/e", CreateMode.EPHEMERAL, b"eee"),
        Delete("/q/b", -1),
    ):
        world.do(op, BOB)
        seen.append(shown(world, "/q"))
    world.expire(BOB)
    seen.append(shown(world, "/q"))

    assert seen == [
        b"count=1,bytes=0",
        b"count=2,bytes=4",
        b"count=2,bytes=6",
        b"count=2,bytes=0",
        b"count=3,bytes=2",
        b"count=4,bytes=5",
        b"count=3,bytes=4",
        b"count=2,bytes=1",
    ]
    check_invariants(world.tree)


def test_bookkeeping_touches_nothing_that_clients_watch() -> None:
    """The stats text changes under the same version and mzxid, and nobody is told."""
    world = World()
    world.create("/q")
    set_quota(world, "/q", b"count=10,bytes=100")
    before = world.stat(stats_path("/q"))

    applied = world.do(plain("/q/a", data=b"1"))

    assert world.stat(stats_path("/q")) == before
    assert [change.path for change in applied.changes] == ["/q/a", "/q"]


def test_a_stats_text_that_a_client_wrote_heals_with_the_next_change() -> None:
    """Usage is counted, not read back from the text."""
    world = World()
    world.create("/q")
    set_quota(world, "/q", b"count=10,bytes=100")

    world.do(SetData(stats_path("/q"), b"count=-5,nonsense", -1))
    assert shown(world, "/q") == b"count=-5,nonsense"
    world.create("/q/a")

    assert shown(world, "/q") == b"count=2,bytes=0"


def test_without_the_limits_znode_nothing_is_counted() -> None:
    """It activates the quota; deleting it ends it, and creating it again counts anew."""
    world = World(ENFORCED)
    world.create("/q")
    set_quota(world, "/q", b"count=-1,bytes=-1=;countHardLimit=1")
    assert refusal(world.do(plain("/q/a"))) is ErrorCode.QUOTA_EXCEEDED

    world.do(Delete(limits_path("/q"), -1))
    world.create("/q/a")
    assert not world.tree.quotas
    assert shown(world, "/q") == b"count=1,bytes=0"

    world.create(limits_path("/q"), b"count=-1,bytes=-1=;countHardLimit=2")
    assert shown(world, "/q") == b"count=2,bytes=0"
    assert refusal(world.do(plain("/q/b"))) is ErrorCode.QUOTA_EXCEEDED


def test_a_quota_may_be_there_before_its_path() -> None:
    """Nothing is used of it until then."""
    world = World(ENFORCED)
    set_quota(world, "/later", b"count=-1,bytes=-1=;countHardLimit=1")
    assert shown(world, "/later") == b"count=0,bytes=0"

    world.create("/later")

    assert shown(world, "/later") == b"count=1,bytes=0"
    assert refusal(world.do(plain("/later/a"))) is ErrorCode.QUOTA_EXCEEDED


def test_all_quotas_above_count_and_the_deepest_decides() -> None:
    """Quotas inside each other: every stats text is true, one limit is asked."""
    world = World(ENFORCED)
    world.create("/q")
    world.create("/q/in")
    set_quota(world, "/q", b"countHardLimit=2")
    set_quota(world, "/q/in", b"countHardLimit=2")

    world.create("/q/in/a")

    assert (shown(world, "/q"), shown(world, "/q/in")) == (b"count=3,bytes=0", b"count=2,bytes=0")
    assert refusal(world.do(plain("/q/in/b"))) is ErrorCode.QUOTA_EXCEEDED
    assert refusal(world.do(plain("/q/b"))) is ErrorCode.QUOTA_EXCEEDED


# Limits.


def test_hard_limits_refuse_growth_alone() -> None:
    """A setData that shrinks is let through, however far the total is above the limit."""
    world = World(ENFORCED)
    world.create("/q")
    world.create("/q/a", b"x" * 30)
    set_quota(world, "/q", b"count=-1,bytes=-1=;byteHardLimit=20;countHardLimit=2")

    assert refusal(world.do(plain("/q/b"))) is ErrorCode.QUOTA_EXCEEDED
    assert refusal(world.do(SetData("/q/a", b"x" * 31, -1))) is ErrorCode.QUOTA_EXCEEDED
    assert world.do(SetData("/q/a", b"x" * 25, -1)).error == 0
    assert world.do(SetData("/q/a", b"y" * 25, -1)).error == 0
    assert refusal(world.do(SetData("/q", b"x", -1))) is ErrorCode.QUOTA_EXCEEDED
    assert world.do(SetData("/q/a", b"x" * 19, -1)).error == 0
    assert world.do(SetData("/q", b"x", -1)).error == 0


def test_the_quota_is_asked_before_the_version() -> None:
    """The order of the checks is part of the protocol."""
    world = World(ENFORCED)
    world.create("/q")
    set_quota(world, "/q", b"byteHardLimit=1")

    assert refusal(world.do(SetData("/q", b"22", 7))) is ErrorCode.QUOTA_EXCEEDED
    assert refusal(world.do(SetData("/q", b"1", 7))) is ErrorCode.BAD_VERSION
    assert shown(world, "/q") == b"count=1,bytes=0"


def test_writes_in_flight_count() -> None:
    """Two creates that would each fit must not both get through before one is applied."""
    world = World(ENFORCED)
    world.create("/q")
    set_quota(world, "/q", b"countHardLimit=2")

    for name in "abc":
        world.prepare(plain(f"/q/{name}"))
    world.prepare(Delete("/q/a", -1))
    world.prepare(plain("/q/d"))

    refused = [applied.error for applied in world.apply_all()]
    assert refused == [0, ErrorCode.QUOTA_EXCEEDED, ErrorCode.QUOTA_EXCEEDED, 0, 0]
    assert not world.preparer._quotas.pending, "U2"


def test_a_multi_that_fails_leaves_no_room_taken() -> None:
    """Not even while it is in flight; and what it did to the limits is undone."""
    world = World(ENFORCED)
    world.create("/q")
    set_quota(world, "/q", b"countHardLimit=2")
    culprit = Check("/nope", -1)

    world.prepare(Multi((plain("/q/a"), culprit)))
    world.prepare(Multi((SetData(limits_path("/q"), b"", -1), culprit)))
    world.prepare(Multi((Delete(limits_path("/q"), -1), culprit)))
    world.prepare(plain("/q/b"))
    world.prepare(plain("/q/c"))

    refused = [applied.error for applied in world.apply_all()]
    assert refused == [0, 0, 0, 0, ErrorCode.QUOTA_EXCEEDED]


def test_the_ops_of_one_multi_count_together() -> None:
    """And one that fails leaves nothing behind that would count."""
    world = World(ENFORCED)
    world.create("/q")
    set_quota(world, "/q", b"countHardLimit=3")

    three = Multi((plain("/q/a"), plain("/q/b"), plain("/q/c")))
    assert codes(world, three) == [0, 0, ErrorCode.QUOTA_EXCEEDED]
    assert codes(world, Multi((plain("/q/a"), Check("/nope", -1)))) == [0, ErrorCode.NO_NODE]
    assert codes(world, Multi((plain("/q/a"), plain("/q/b")))) == [0, 0]
    swap = Multi((Delete("/q/a", -1), plain("/q/c")))
    assert codes(world, swap) == [0, 0]


def test_a_quota_holds_for_what_is_prepared_behind_it() -> None:
    """Who has set a limit and writes on at once is not let past it by the pipeline."""
    world = World(ENFORCED)
    world.create("/q")
    world.create("/zookeeper/quota/q")
    world.prepare(plain("/q/a", data=b"12"))
    world.prepare(plain(limits_path("/q"), data=b"countHardLimit=2;byteHardLimit=3"))
    world.prepare(plain("/q/b"))
    world.prepare(SetData("/q/a", b"1234", -1))
    world.prepare(SetData(limits_path("/q"), b"countHardLimit=3", -1))
    world.prepare(plain("/q/c"))
    world.prepare(Delete(limits_path("/q"), -1))
    world.prepare(plain("/q/d"))

    exceeded = ErrorCode.QUOTA_EXCEEDED
    assert [applied.error for applied in world.apply_all()] == [
        0,
        0,
        exceeded,
        exceeded,
        0,
        0,
        0,
        0,
    ]


def test_soft_limits_are_traced_when_they_are_passed() -> None:
    """Soft ones, and hard ones where they are not enforced; a hard limit hides the soft one."""
    told: list[tuple[object, object]] = []

    def trace(event: str, fields: Mapping[str, object]) -> None:
        assert event == "quota exceeded"
        told.append((fields["what"], fields["used"]))

    world = World()
    world.preparer = Preparer(world.tree, PrepareOptions(), trace)
    world.create("/q")
    set_quota(world, "/q", b"count=2,bytes=1=;byteHardLimit=3")
    for name in "abc":
        world.create(f"/q/{name}", b"12")

    assert told == [("znodes", 3), ("bytes", 4)]


# What a client can do to it.


def test_a_loaded_tree_counts_as_the_one_that_applied_everything() -> None:
    """Usage is counted again at the load; the digest, with the stats text in it, stays equal."""
    world = World()
    world.create("/q")
    world.create("/q/in", b"123")
    set_quota(world, "/q/in", b"count=5")
    set_quota(world, "/q", b"count=5")
    world.do(SetData(stats_path("/q"), b"by a client", -1))

    other = loaded(world.tree)
    assert other.digest == world.tree.digest
    assert other.quotas == world.tree.quotas == usage_from_scratch(world.tree)

    world.create("/q/in/a", b"45")
    other.apply(*world.log[-1])
    assert contents(other) == contents(world.tree)


_SUBJECTS = st.sampled_from(["", "/a", "/a/b", "/zookeeper", "/zookeeper/quota", "/x"])
_NAMES = st.sampled_from(["", "/zookeeper_limits", "/zookeeper_stats", "/zookeeper_limits/deep"])
_quota_paths = st.builds(
    lambda subject, name: f"/zookeeper/quota{subject}{name}", _SUBJECTS, _NAMES
)
_paths = _quota_paths | st.sampled_from(["/a", "/a/b", "/a/b/c", "/x", "/zookeeper/mine"])
_garbage = (
    st.none() | st.binary(max_size=40) | st.text("=;,cbountyesHardLimit-0123 ").map(str.encode)
)
_texts = _garbage | st.sampled_from([b"count=2,bytes=9", b"countHardLimit=2;byteHardLimit=5"])
_modes = st.sampled_from([CreateMode.PERSISTENT, CreateMode.PERSISTENT, CreateMode.EPHEMERAL])
_parts = (
    st.builds(plain, _paths, _modes, _texts)
    | st.builds(Create, _paths, _texts, st.just(None), st.just(0))
    | st.builds(Delete, _paths, st.just(-1))
    | st.builds(SetData, _paths, _texts, st.just(-1))
)
_ops = _parts | st.builds(Multi, st.lists(_parts, max_size=4).map(tuple))
_turns = st.lists(st.lists(_ops, min_size=1, max_size=5), max_size=12)


@given(_turns, st.integers(0, 60), st.builds(PrepareOptions, enforce_quota=st.booleans()))
def test_garbage_below_quota_breaks_nothing(
    turns: list[list[Op]], kept: int, options: PrepareOptions
) -> None:
    """No apply fails, usage stays true, and a member made again from snapshot and log is equal.

    In ZooKeeper such znodes killed the processor and then every start from that directory.
    """
    world = World(options)
    for path in ("/a", "/zookeeper/quota/a"):
        world.create(path)
    other: ZnodeTree | None = None
    for turn in turns:
        for number, op in enumerate(turn):
            world.prepare(op, BOB if number == 3 else ALICE)
        world.apply_all()
        check_invariants(world.tree)
        assert world.tree.quotas == usage_from_scratch(world.tree)
        assert not world.preparer._quotas.pending, "U2"
        if other is None and len(world.log) > kept:
            other = loaded(world.tree)
    world.do(CloseSession(), BOB)

    for made_again in (other or ZnodeTree(), ZnodeTree()):
        for entry in world.log:
            made_again.apply(*entry)
        assert contents(made_again) == contents(world.tree)
        assert made_again.quotas == world.tree.quotas


@given(st.lists(_ops, max_size=12))
def test_what_was_prepared_is_what_comes_true(ops: list[Op]) -> None:
    """With everything in flight a quota looks as it will once all is applied (U1)."""
    world = World()
    world.create("/a")
    world.create("/zookeeper/quota/a")
    for op in ops:
        world.prepare(op)
    check = world.preparer._quotas
    expected = {subject: check._view(subject) for subject in ("/a", "/a/b", "/x")}
    world.apply_all()

    assert expected == {subject: world.tree.quotas.get(subject) for subject in expected}


def test_sessions_and_failed_ops_leave_quotas_alone() -> None:
    """Only what has changed something is counted."""
    world = World()
    world.create("/q")
    set_quota(world, "/q", b"count=1")
    world.do(CreateSession(9000), BOB)
    world.do(plain("/q"))
    world.do(Delete("/q/none", -1))

    assert world.tree.quotas == usage_from_scratch(world.tree)
