"""The differential tester itself: it must be able to find what it looks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.compat.differential import script
from tests.compat.differential.comparison import Order, Pairs
from tests.compat.differential.differences import INTENDED, WITHOUT_RULE
from tests.compat.differential.generator import generate
from tests.compat.differential.player import Stage
from tests.compat.differential.run import Duel, Statistics
from tests.compat.differential.targets import EVENT, ReplicaLink, ReplicaTarget

from zabd import model
from zabd.model import (
    Check,
    CreateContainer,
    CreateTtl,
    ErrorCode,
    Multi,
    OpCode,
    make_digest_id,
)

SCRIPTS = 25
SUPER = "super:secret"
SUPER_DIGEST = make_digest_id(*SUPER.split(":"))
Bend = Callable[[bytes], list[bytes]]


class BentLink(ReplicaLink):
    """Connections of a replica that has something wrong with it."""

    bend: Bend

    def receive(self, data: bytes) -> None:
        before = len(self.frames)
        super().receive(data)
        new, self.frames = self.frames[before:], self.frames[:before]
        self.frames += [bent for frame in new for bent in type(self).bend(frame)]


class BentTarget(ReplicaTarget):
    def __init__(self, bend: Bend) -> None:
        super().__init__(SUPER_DIGEST)
        self.link_type = type("Link", (BentLink,), {"bend": staticmethod(bend)})


def duel_with(bend: Bend | None = None) -> Duel:
    """A reference without a fault against a replica with one."""
    right = ReplicaTarget(SUPER_DIGEST) if bend is None else BentTarget(bend)
    return Duel(Stage(ReplicaTarget(SUPER_DIGEST), SUPER.encode()), Stage(right, SUPER.encode()))


def is_reply(frame: bytes) -> bool:
    """Neither an event, nor a ping, nor a handshake."""
    return len(frame) >= 16 and not frame.startswith((EVENT, b"\xff\xff\xff\xfe", bytes(4)))


def drop_events(frame: bytes) -> list[bytes]:
    """No watch ever fires."""
    return [] if frame.startswith(EVENT) else [frame]


def double_events(frame: bytes) -> list[bytes]:
    """Every watch fires twice."""
    return [frame, frame] if frame.startswith(EVENT) else [frame]


def other_error(frame: bytes) -> list[bytes]:
    """BAD_VERSION is reported as NO_NODE."""
    code = int.from_bytes(frame[12:16], "big", signed=True)
    if is_reply(frame) and code == ErrorCode.BAD_VERSION:
        frame = frame[:12] + int(ErrorCode.NO_NODE).to_bytes(4, "big", signed=True)
    return [frame]


def stuck_zxid(frame: bytes) -> list[bytes]:
    """Replies are stamped with a zxid that moves once in 256."""
    return [frame[:4] + frame[4:11] + b"\0" + frame[12:] if is_reply(frame) else frame]


def one_byte_more(frame: bytes) -> list[bytes]:
    """Long replies have a byte too many."""
    return [frame + b"\0" if is_reply(frame) and len(frame) > 100 else frame]


def one_bit_in_the_middle(frame: bytes) -> list[bytes]:
    """Stats show versions one off."""
    if not is_reply(frame) or len(frame) != 16 + 68:
        return [frame]
    at = 16 + 35  # the last byte of a Stat's version
    return [frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]]


def test_two_of_the_same_do_not_differ() -> None:
    """What the tester reports is the servers' doing, not its own."""
    duel = duel_with()

    assert [duel.play(generate(7, number)) for number in range(SCRIPTS)] == [None] * SCRIPTS


@pytest.mark.parametrize(
    "bend",
    [
        drop_events,
        double_events,
        other_error,
        stuck_zxid,
        one_byte_more,
        one_bit_in_the_middle,
    ],
)
def test_a_planted_difference_is_found_and_shrunk(bend: Bend) -> None:
    """A tester that never finds anything would look just like servers that never differ."""
    duel = duel_with(bend)
    numbered = ((generate(7, number), number) for number in range(SCRIPTS))
    whole, found = next((whole, f) for whole, _ in numbered if (f := duel.play(whole)) is not None)

    smallest = duel.shrink(whole, found)

    assert script.count_requests(smallest) <= 6
    again = duel.play(smallest)
    assert again is not None
    assert again.difference.kind == found.difference.kind


def test_a_seed_makes_one_script_everywhere() -> None:
    """A difference is reported by its seed."""
    assert generate(3, 14) == generate(3, 14)
    assert len({generate(3, number) for number in range(20)}) == 20


def test_a_script_reads_as_it_is_printed() -> None:
    """What is printed is pasted into a test."""
    names = vars(model) | vars(script)

    for number in range(20):
        whole = generate(5, number)
        printed = script.show(whole)
        assert eval(printed, names) == whole  # noqa: S307 - the point of it


def test_nothing_is_sent_that_harms_the_reference() -> None:
    """A reference that dies of a request tells no difference from there on."""
    for number in range(300):
        for step in generate(9, number):
            for request in script.requests_of(step):
                op = script.meaning_of(request)
                assert op.opcode not in (OpCode.DELETE_CONTAINER, OpCode.CREATE_SESSION)
                assert not isinstance(op, Check) or op.path.endswith("/never")
                for part in op.ops if isinstance(op, Multi) else (op,):
                    if isinstance(part, CreateTtl):
                        assert part.flags in (5, 6)
                    elif isinstance(part, CreateContainer):
                        assert part.flags == 4


def test_every_opcode_and_every_error_is_provoked() -> None:
    """What is never asked is never compared."""
    duel = duel_with()
    for number in range(60):
        duel.play(generate(11, number))
    statistics: Statistics = duel.statistics

    unsent = {"CREATE_SESSION", "DELETE_CONTAINER"}
    assert {code.name for code in OpCode} - statistics.opcodes.keys() == unsent
    provoked = {-5, -6, -8, -101, -102, -103, -108, -110, -111, -112, -114, -115, -121, -123}
    assert {str(code) for code in provoked} <= statistics.errors.keys()
    assert len(statistics.events) == 4


def test_zxids_correspond_one_to_one_and_in_order() -> None:
    """Two servers number differently; what is equal, before or after must be the same."""
    order = Order()

    assert order.same(10, 700)
    assert order.same(20, 900)
    assert order.same(15, 800)
    assert order.same(10, 700)
    assert not order.same(10, 800)
    assert not order.same(12, 700)
    assert not order.same(30, 850)
    assert not order.same(0, 5)


def test_sessions_correspond_one_to_one() -> None:
    """Whose ephemeral it is must be the same session on both sides."""
    pairs = Pairs(0)

    assert pairs.same(1, 100)
    assert pairs.same(1, 100)
    assert not pairs.same(2, 100)
    assert not pairs.same(1, 200)
    assert not pairs.same(0, 7)


def test_intended_differences_have_a_reason() -> None:
    """The list is short, and each entry says where it is decided."""
    reasons = {rule.name: rule.reason for rule in INTENDED} | WITHOUT_RULE

    assert all(len(reason) > 30 for reason in reasons.values())
    assert len(reasons) < 30


def test_the_reference_lists_the_intended_differences() -> None:
    """Who wonders whether a difference is meant looks there."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "differential.md"
    rows = [f"| {rule.name} | {rule.reason} |" for rule in INTENDED]
    rows += [f"| {name} | {reason} |" for name, reason in WITHOUT_RULE.items()]

    table = page.read_text(encoding="utf-8").partition("| name | why |\n| --- | --- |\n")[2]

    assert table.splitlines() == rows
