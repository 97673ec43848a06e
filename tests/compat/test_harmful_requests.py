"""Requests that hurt or kill the reference server are refused, and the member goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.compat.differential.answers import read_answers
from tests.compat.differential.player import OPENING, Player, Stage
from tests.compat.differential.script import ROOT, Connect, Raw, Request, Send
from tests.compat.differential.servers import zabd_server
from tests.compat.differential.targets import ReplicaTarget, TcpTarget

from zabd.model import (
    OPEN_ACL_UNSAFE,
    Check,
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


@contextmanager
def playing(directory: Path) -> Iterator[Player]:
    """A player on a member of its own, which is killed at the end."""
    with (
        zabd_server("super:none", directory / "data") as address,
        closing(Stage(TcpTarget(*address), b"super:secret")) as stage,
    ):
        player = stage.player()
        yield player
        player.finish()


@pytest.mark.ensemble
def test_a_member_restarts_on_its_data_afterwards(tmp_path: Path) -> None:
    """What was refused has left nothing in the log that a recovery could stumble over."""
    check = Check(ROOT, -1)
    harmful = [
        *[ttl(flags) for flags in range(5)],
        Multi((Create(PATH, b"", OPEN_ACL_UNSAFE, 0), ttl(0))),
        Raw(OpCode.DELETE_CONTAINER, len(ROOT).to_bytes(4, "big") + ROOT.encode()),
        Raw(OpCode.CREATE_SESSION, (10_000).to_bytes(4, "big")),
        check,
    ]
    with playing(tmp_path) as player:
        player.play(OPENING)
        for number, request_ in enumerate(harmful):
            player.play(Connect(f"c{number}"))
            heard = player.play(Send(f"c{number}", (request_,)))
            [answer] = read_answers(heard.frames[f"c{number}"], (request_,)).answers
            assert bool(answer.error) != (request_ is check or isinstance(request_, Multi))

    with playing(tmp_path) as player:
        player.play(Connect("a"))
        exists = (Exists(PATH, False), Exists(ROOT, False))
        heard = player.play(Send("a", exists))
        answers = read_answers(heard.frames["a"], exists).answers
        assert [each.error for each in answers] == [ErrorCode.NO_NODE, 0]
