"""Requests that hurt or kill the reference server are refused, and the member goes on."""

from __future__ import annotations

import pytest
from tests.compat.differential.answers import read_answers
from tests.compat.differential.player import OPENING, Stage
from tests.compat.differential.script import ROOT, Connect, Raw, Request, Send
from tests.compat.differential.targets import ReplicaTarget

from zabd.model import (
    OPEN_ACL_UNSAFE,
    Create,
    CreateContainer,
    CreateTtl,
    ErrorCode,
    Exists,
    Multi,
    MultiResult,
    OpCode,
)

PATH = f"{ROOT}/a"
TEXT = len(PATH).to_bytes(4, "big") + PATH.encode()


def ttl(flags: int) -> CreateTtl:
    """CreateTTL with the flags of something else, and the ttl of a znode without one."""
    return CreateTtl(PATH, b"", OPEN_ACL_UNSAFE, flags, -1)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        *[(ttl(flags), ErrorCode.BAD_ARGUMENTS) for flags in range(5)],
        *[(CreateContainer(PATH, b"", OPEN_ACL_UNSAFE, n), -8) for n in (0, 1, 2, 3, 5, 6, 7)],
        *[(Create(PATH, b"", OPEN_ACL_UNSAFE, n), -8) for n in (5, 6, 7)],
        (Raw(OpCode.DELETE_CONTAINER, len(ROOT).to_bytes(4, "big") + ROOT.encode()), -6),
        (Raw(OpCode.CREATE_SESSION, (10_000).to_bytes(4, "big")), -6),
        (Raw(OpCode.CREATE_TTL, TEXT), ErrorCode.MARSHALLING_ERROR),
    ],
)
def test_it_is_refused_and_changes_nothing(request_: Request, code: int) -> None:
    """What is wrong with a request costs whoever sent it an error, nobody else anything."""
    player = Stage(ReplicaTarget(), b"super:secret").player()
    for step in (OPENING, Connect("a"), Connect("b")):
        player.play(step)

    heard = player.play(Send("a", (request_,)))

    [answer] = read_answers(heard.frames["a"], (request_,)).answers
    assert answer.error == code
    exists = (Exists(PATH, False), Exists(ROOT, False))
    heard = player.play(Send("b", exists))
    answers = read_answers(heard.frames["b"], exists).answers
    assert [each.error for each in answers] == [ErrorCode.NO_NODE, 0]


@pytest.mark.parametrize("flags", range(5))
def test_the_same_in_a_multi(flags: int) -> None:
    """Inside a multi the op fails, and with it the whole."""
    player = Stage(ReplicaTarget(), b"super:secret").player()
    for step in (OPENING, Connect("a")):
        player.play(step)
    multi = Multi((Create(f"{ROOT}/b", b"", OPEN_ACL_UNSAFE, 0), ttl(flags)))

    heard = player.play(Send("a", (multi,)))

    [answer] = read_answers(heard.frames["a"], (multi,)).answers
    assert isinstance(answer.result, MultiResult)
    assert [part.code for part in answer.result.results] == [0, ErrorCode.BAD_ARGUMENTS]
