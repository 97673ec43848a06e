"""Two judges of a history: one that believes nobody, and one that examines what the zxids claim."""

import time
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zabd.cluster_sim import Expire, Operation, Refusal, check_linearizable
from zabd.cluster_sim.history import FOREVER
from zabd.cluster_sim.linearizability import check_by_zxid, split
from zabd.cluster_sim.tree_spec import TreeSpec, apply
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import ErrorCode
from zabd.model.ops import Check, Create, CreateMode, Delete, GetData, Multi, Op, SetData
from zabd.model.results import (
    CheckResult,
    CreateResult,
    EmptyResult,
    ErrorResult,
    GetDataResult,
    MultiResult,
    StatResult,
)
from zabd.model.stat import Stat

ALICE, BOB = 1, 2
NAMES = {ALICE: "alice", BOB: "bob"}


def stat(version: int, owner: int = 0) -> Stat:
    """What an answer reveals of a Stat."""
    return Stat(*[0] * 11)._replace(version=version, ephemeral_owner=owner)


def call(
    who: int, when: tuple[int, int], op: Op, result: object = None, zxid: int = 0
) -> Operation:
    """One call, and what it was answered."""
    return Operation(NAMES[who], op, *when, result, who, zxid)


def made(path: str, mode: CreateMode = CreateMode.PERSISTENT) -> Create:
    """A create without data."""
    return Create(path, b"", OPEN_ACL_UNSAFE, mode)


def read(data: bytes | None, version: int) -> GetDataResult:
    """The answer to a getData."""
    return GetDataResult(data, stat(version))


CREATED = call(ALICE, (0, 1), made("/x"), CreateResult("/x"), zxid=1)


def set_x(
    who: int, when: tuple[int, int], data: bytes, version: int | None = None, zxid: int = 0
) -> Operation:
    """A write of /x; without a version its outcome is unknown."""
    told = None if version is None else StatResult(stat(version))
    return call(who, when, SetData("/x", data), told, zxid)


def get_x(who: int, when: tuple[int, int], data: bytes, version: int, zxid: int = 0) -> Operation:
    """A read of /x, answered so."""
    return call(who, when, GetData("/x"), read(data, version), zxid)


def test_overlapping_calls_may_take_effect_in_either_order() -> None:
    """A legal near miss: the later call comes first."""
    history = [
        CREATED,
        set_x(ALICE, (2, 9), b"a", version=2, zxid=3),
        set_x(BOB, (3, 5), b"b", version=1, zxid=2),
        get_x(BOB, (10, 11), b"a", 2, zxid=3),
    ]
    verdict = check_linearizable(history)
    assert verdict
    assert [each.op for each in verdict.order[1:3]] == [SetData("/x", b"b"), SetData("/x", b"a")]
    assert check_by_zxid(history)


def test_a_stale_read_behind_a_sync_is_not_linearizable() -> None:
    """It shows the value before a write that was complete when it was called."""
    history = [
        CREATED,
        set_x(ALICE, (2, 3), b"a", version=1, zxid=2),
        get_x(BOB, (4, 5), b"", 0, zxid=1),
    ]
    verdict = check_linearizable(history)
    assert not verdict
    assert verdict.blocked == (history[2],)
    assert len(verdict.order) == 2
    assert str(verdict).startswith("not linearizable: the longest order that fits has 2 operations")
    assert check_by_zxid(history).blocked == (history[1], history[2])


def test_a_lost_write_is_not_linearizable() -> None:
    """An acknowledged write that a later write's version does not count."""
    history = [
        CREATED,
        set_x(ALICE, (2, 3), b"a", version=1, zxid=2),
        set_x(BOB, (4, 5), b"b", version=1, zxid=3),
    ]
    assert not check_linearizable(history)
    assert check_by_zxid(history).blocked == (history[2],)


def test_a_zxid_that_contradicts_real_time_is_found_though_the_answers_fit() -> None:
    """The two writes do not touch: only the witness is wrong."""
    history = [
        CREATED,
        call(ALICE, (2, 3), made("/y"), CreateResult("/y"), zxid=3),
        set_x(BOB, (4, 5), b"b", version=1, zxid=2),
    ]
    assert check_linearizable(history)
    assert check_by_zxid(history).blocked == (history[1], history[2])


def test_one_zxid_for_two_writes_is_found() -> None:
    """A zxid belongs to one transaction."""
    history = [
        CREATED,
        call(ALICE, (2, 5), made("/y"), CreateResult("/y"), zxid=2),
        set_x(BOB, (2, 5), b"b", version=1, zxid=2),
    ]
    assert not check_by_zxid(history)


def test_an_unknown_write_may_have_taken_effect_or_not() -> None:
    """Nobody has told its client; both continuations are legal, also one after the other's read."""
    lost = set_x(ALICE, (2, FOREVER), b"a")
    assert check_linearizable([CREATED, lost, get_x(BOB, (4, 5), b"", 0)])
    assert check_linearizable([CREATED, lost, get_x(BOB, (4, 5), b"a", 1)])
    late = [CREATED, lost, get_x(BOB, (4, 5), b"", 0), get_x(BOB, (6, 7), b"a", 1)]
    assert check_linearizable(late)


def test_an_unknown_write_does_not_take_effect_twice() -> None:
    """Or be undone."""
    lost = set_x(ALICE, (2, FOREVER), b"a")
    assert not check_linearizable([CREATED, lost, get_x(BOB, (4, 5), b"a", 2)])
    undone = [CREATED, lost, get_x(BOB, (4, 5), b"a", 1), get_x(BOB, (6, 7), b"", 0)]
    assert not check_linearizable(undone)


def test_an_unknown_write_does_not_take_effect_after_a_later_one_of_its_client() -> None:
    """A client's calls take effect in its order, or not at all."""
    history = [
        CREATED,
        set_x(ALICE, (2, FOREVER), b"first"),
        set_x(ALICE, (4, 5), b"second", version=1),
        get_x(BOB, (6, 7), b"first", 2),
    ]
    assert not check_linearizable(history)


def test_pipelined_calls_of_one_client_keep_their_order() -> None:
    """Both are under way at once, and still the first comes first (A-linearizability)."""
    right = [
        CREATED,
        set_x(ALICE, (2, 9), b"a", version=1),
        set_x(ALICE, (2, 9), b"b", version=2),
    ]
    wrong = [
        CREATED,
        set_x(ALICE, (2, 9), b"a", version=2),
        set_x(ALICE, (2, 9), b"b", version=1),
    ]
    assert check_linearizable(right)
    assert not check_linearizable(wrong)


def test_a_multi_is_all_or_nothing() -> None:
    """Its refusal names the culprit and changes nothing."""
    both = Multi((SetData("/x", b"m"), Check("/y")))
    codes = (0, ErrorCode.NO_NODE)
    refused = call(BOB, (2, 3), both, MultiResult(tuple(map(ErrorResult, codes))))
    assert check_linearizable([CREATED, refused, get_x(BOB, (4, 5), b"", 0)])
    assert not check_linearizable([CREATED, refused, get_x(BOB, (4, 5), b"m", 1)])
    done = MultiResult((StatResult(stat(1)), CheckResult()))
    assert not check_linearizable([CREATED, call(BOB, (2, 3), both, done)])


def test_sequence_numbers_count_what_was_ever_created() -> None:
    """Deleting the last one does not give its number back."""
    sequential = made("/x/n-", CreateMode.PERSISTENT_SEQUENTIAL)

    def history(second: str) -> list[Operation]:
        return [
            CREATED,
            call(ALICE, (2, 3), sequential, CreateResult("/x/n-0000000000")),
            call(ALICE, (4, 5), Delete("/x/n-0000000000"), EmptyResult()),
            call(ALICE, (6, 7), sequential, CreateResult(second)),
        ]

    assert check_linearizable(history("/x/n-0000000001"))
    assert not check_linearizable(history("/x/n-0000000000"))


def test_an_ephemeral_may_go_when_its_session_may_have_ended() -> None:
    """And does not come back, and not without its end."""
    mine = call(ALICE, (2, 3), made("/e", CreateMode.EPHEMERAL), CreateResult("/e"))
    gone = call(BOB, (6, 7), GetData("/e"), Refusal(ErrorCode.NO_NODE))
    end = Operation("the end of alice", Expire(ALICE), 1)
    assert check_linearizable([mine, end, gone])
    assert not check_linearizable([mine, gone])
    back = call(BOB, (8, 9), GetData("/e"), GetDataResult(b"", stat(0, owner=ALICE)))
    assert not check_linearizable([mine, end, gone, back])


def test_the_end_of_a_session_may_come_later_than_it_could() -> None:
    """When it could come first the session owned nothing yet."""
    history = [
        Operation("the end of alice", Expire(ALICE), 0, 9),
        call(ALICE, (2, 3), made("/e", CreateMode.EPHEMERAL), CreateResult("/e")),
        call(BOB, (10, 11), GetData("/e"), Refusal(ErrorCode.NO_NODE)),
    ]
    assert check_linearizable(history)


def test_a_history_is_split_by_subtrees() -> None:
    """What a multi says about two of them is said to each, but for a refusal."""
    both = Multi((SetData("/x", b"m"), SetData("/y/z", b"m")))
    done = MultiResult((StatResult(stat(1)), StatResult(stat(4))))
    refused = MultiResult((ErrorResult(0), ErrorResult(ErrorCode.NO_NODE)))
    end = Operation("the end of alice", Expire(ALICE), 0)
    history = [
        CREATED,
        call(BOB, (2, 3), both, done),
        call(BOB, (4, 5), both, refused),
        call(BOB, (6, 7), GetData("/"), read(b"", 0)),
        end,
    ]
    parts = split(history)
    assert parts["x"] == [
        CREATED,
        call(BOB, (2, 3), Multi((SetData("/x", b"m"),)), MultiResult((StatResult(stat(1)),))),
        end,
    ]
    assert [each.op for each in parts["y"]] == [Multi((SetData("/y/z", b"m"),)), Expire(ALICE)]


def test_a_multi_that_was_lost_may_have_been_refused_for_another_subtree() -> None:
    """What came behind it over the same connection may have taken effect without it."""
    both = Multi((SetData("/x", b"1"), SetData("/y", b"1")))
    lost = [
        Operation("alice", op, 2, session_id=ALICE, link=1) for op in (both, SetData("/x", b"2"))
    ]
    history = [CREATED, *lost, get_x(BOB, (4, 5), b"2", 1)]

    assert check_linearizable(history)  # there is no /y
    assert check_linearizable(split(history)["x"])


def test_what_was_lost_with_one_connection_took_effect_as_a_prefix() -> None:
    """If the second call had an effect, the first one had it before; with two connections not."""

    def history(*links: int) -> list[Operation]:
        lost = [
            Operation("alice", op, 2, session_id=ALICE, link=link)
            for op, link in zip((SetData("/x", b"1"), SetData("/x", b"2")), links, strict=True)
        ]
        return [CREATED, *lost, get_x(BOB, (4, 5), b"2", 1)]

    assert not check_linearizable(history(1, 1))
    assert check_linearizable(history(1, 2))


def test_a_search_that_is_cut_short_says_so() -> None:
    """It does not claim to know."""
    lost = [set_x(ALICE, (2, FOREVER), bytes([n])) for n in range(12)]
    verdict = check_linearizable([CREATED, *lost, get_x(BOB, (4, 5), b"?", 3)], states_max=50)
    assert not verdict
    assert not verdict.decided
    assert "undecided" in str(verdict)


# --- random histories -----------------------------------------------------------------------------

OPS = st.sampled_from(
    [
        made("/x"),
        Delete("/x"),
        SetData("/x", b"a"),
        SetData("/x", b"b", 1),
        GetData("/x"),
        Multi((Check("/x"), SetData("/x", b"m"))),
    ]
)
RESULTS = st.sampled_from(
    [
        CreateResult("/x"),
        EmptyResult(),
        *(StatResult(stat(version)) for version in (1, 2)),
        *(read(data, version) for data in (b"", b"a", b"b", b"m") for version in (0, 1, 2)),
        Refusal(ErrorCode.NO_NODE),
        Refusal(ErrorCode.NODE_EXISTS),
        Refusal(ErrorCode.BAD_VERSION),
    ]
)


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Up to five calls of two clients, some of unknown outcome, with any answers."""
    found = []
    for who in (ALICE, BOB):
        now = 0
        for _ in range(draw(st.integers(0, 3)) if who == ALICE else draw(st.integers(0, 2))):
            now += draw(st.integers(0, 3))
            took = draw(st.integers(0, 4))
            known = draw(st.integers(0, 4)) > 0
            when = (now, now + took if known else FOREVER)
            found.append(call(who, when, draw(OPS), draw(RESULTS) if known else None))
            now += took
    return found


def by_brute_force(history: list[Operation]) -> bool:
    """The definition, word by word: some subset with all that is known, in some order, fits."""
    known = [each for each in history if each.known]
    unknown = [each for each in history if not each.known]
    for chosen in range(1 << len(unknown)):
        some = [each for bit, each in enumerate(unknown) if chosen >> bit & 1]
        if any(fits(order) for order in permutations([*known, *some])):
            return True
    return False


def fits(order: tuple[Operation, ...]) -> bool:
    """Whether these calls in this order explain their answers and respect real time."""
    for index, later in enumerate(order):
        for earlier in order[:index]:
            if later.returned < earlier.called:
                return False
            if later.client == earlier.client and ISSUED[id(later)] < ISSUED[id(earlier)]:
                return False
    spec = TreeSpec()
    nodes = spec.initial()
    for operation in order:
        changes = spec.changes(nodes, operation)
        if changes is None:
            return False
        apply(nodes, changes)
    return True


ISSUED: dict[int, int] = {}


@settings(max_examples=300)
@given(histories())
def test_the_search_agrees_with_the_definition(history: list[Operation]) -> None:
    """Every permutation of every subset, against the search that tries as few as it can."""
    ISSUED.clear()
    ISSUED.update((id(each), place) for place, each in enumerate(history))
    assert bool(check_linearizable(history)) == by_brute_force(history)


@settings(max_examples=300)
@given(histories(), st.randoms(use_true_random=False))
def test_the_search_is_led_by_zxids_and_believes_none(
    history: list[Operation], rng: Random
) -> None:
    """Whatever the zxids say, the verdict is that of the definition."""
    history = [replace(each, zxid=rng.randrange(4)) for each in history]
    ISSUED.clear()
    ISSUED.update((id(each), place) for place, each in enumerate(history))
    assert bool(check_linearizable(history)) == by_brute_force(history)


def test_zxids_lead_the_search_past_what_was_lost() -> None:
    """Of each two calls that were lost one had an effect: without a hint that is much to try."""
    history: list[Operation] = []
    for number, call_ in enumerate(long_history(400, seed=7)):
        if number % 3 or isinstance(call_.op, GetData):
            history.append(call_)
        else:
            lost = replace(call_, returned=FOREVER, result=None, link=2 * number)
            ghost = replace(lost, op=SetData("/n0", b"ghost"), zxid=0, link=2 * number + 1)
            history += [lost, ghost]
    verdict = check_linearizable(history)
    assert verdict
    assert verdict.states <= len(history)
    unled = [replace(each, zxid=0) for each in history]
    assert not check_linearizable(unled, states_max=5 * len(history)).decided


def long_history(size: int, seed: int) -> list[Operation]:
    """Eight clients at 100 znodes, all overlapping a little, as a correct service answers them."""
    rng, spec, found = Random(seed), TreeSpec(), []
    nodes, zxid = spec.initial(), 0
    for now in range(size):
        client = rng.randrange(8)
        path = f"/n{rng.randrange(100)}"
        there = path in nodes
        writes = not there or rng.random() < 0.5
        zxid += writes
        op = (SetData(path, b"%d" % now) if there else made(path)) if writes else GetData(path)
        lost = Operation(f"c{client}", op, 3 * now, session_id=1, zxid=zxid)
        changes = spec.changes(nodes, lost)
        assert changes is not None
        apply(nodes, changes)
        told: object = read(nodes[path].data, nodes[path].version)
        if writes:
            told = StatResult(stat(nodes[path].version)) if there else CreateResult(path)
        found.append(Operation(f"c{client}", op, 3 * now - 9, 3 * now, told, 1, zxid))
    return found


def test_both_judges_accept_what_a_correct_service_answers() -> None:
    """And both see one answer that is wrong."""
    history = long_history(2_000, seed=5)
    assert check_linearizable(history)
    assert check_by_zxid(history)
    at = next(i for i in range(1_000, 2_000) if isinstance(history[i].op, GetData))
    wrong = Operation(
        history[at].client,
        history[at].op,
        history[at].called,
        history[at].returned,
        read(b"never written", 0),
        1,
        history[at].zxid,
    )
    history[at] = wrong
    assert not check_linearizable(history)
    assert check_by_zxid(history).blocked == (wrong,)


@pytest.mark.slow
def test_a_hundred_thousand_operations_a_second_are_examined_by_their_zxids() -> None:
    """CPU time of one core; the search manages some ten thousand."""
    history = long_history(200_000, seed=1)
    begun = time.process_time()
    assert check_by_zxid(history)
    assert len(history) / (time.process_time() - begun) > 100_000
