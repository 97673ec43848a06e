"""What the differential tester found: each was a difference between zabd and ZooKeeper once.

The answers expected here are those of ZooKeeper 3.8.0; nothing of it is needed to run this.
"""

from __future__ import annotations

import pytest
from tests.compat.differential.answers import Answer, read_answers
from tests.compat.differential.player import OPENING, Player, Stage
from tests.compat.differential.script import ROOT, Connect, Raw, Script, Send, Xid, requests_of
from tests.compat.differential.targets import ReplicaTarget

from zabd.model import (
    OPEN_ACL_UNSAFE,
    Auth,
    Create,
    EphemeralsResult,
    ErrorCode,
    GetEphemerals,
    OpCode,
    Reconfig,
    Sasl,
    SaslResult,
)

NO_ZXID_IN_IT = 0


def play(script: Script) -> tuple[list[Answer], bool]:
    """What the last step of a script is answered, and whether its connection is closed."""
    player: Player = Stage(ReplicaTarget(), b"super:secret").player()
    player.play(OPENING)
    heard = [player.play(step) for step in script][-1]
    step = script[-1]
    answers = read_answers(heard.frames.get(step.name, ()), requests_of(step)).answers
    return list(answers), step.name in heard.closed


def test_sasl_is_answered_with_no_error_and_no_token() -> None:
    """The Java client begins with it when a login is configured, whatever the server is (11)."""
    [answer], closed = play((Connect("a"), Send("a", (Sasl(b"token"),))))

    assert (answer.error, answer.zxid, answer.result) == (0, NO_ZXID_IN_IT, SaslResult(None))
    assert not closed


def test_reconfig_is_switched_off() -> None:
    """A client must be able to tell what is switched off from what does not exist (18)."""
    reconfig = Reconfig(None, None, "server.1=127.0.0.1:1:2:participant;3", -1)
    [answer], closed = play((Connect("a"), Send("a", (reconfig,))))

    assert answer.error == ErrorCode.RECONFIG_DISABLED
    assert answer.zxid > 0
    assert not closed


def test_an_auth_packet_is_answered_with_its_own_xid() -> None:
    """Clients always send -4, but the server has no opinion on that (3)."""
    script = (Connect("a"), Send("a", (Xid(-9, Auth(0, "digest", b"alice:a")),)))
    [answer], closed = play(script)

    assert (answer.xid, answer.error, answer.zxid) == (-9, 0, NO_ZXID_IN_IT)
    assert not closed


def test_a_refused_auth_packet_is_answered_with_its_own_xid_too() -> None:
    """As above; then the connection ends (11)."""
    [answer], closed = play((Connect("a"), Send("a", (Xid(5, Auth(0, "nobody", b"")),))))

    assert (answer.xid, answer.error, answer.zxid) == (5, ErrorCode.AUTH_FAILED, NO_ZXID_IN_IT)
    assert closed


def test_a_check_alone_that_holds_is_answered() -> None:
    """The reference never answers this one; here it costs nothing (4)."""
    body = len(ROOT).to_bytes(4, "big") + ROOT.encode() + b"\xff\xff\xff\xff"
    [answer], closed = play((Connect("a"), Send("a", (Raw(OpCode.CHECK, body),))))

    assert (answer.error, answer.odd) == (0, b"")
    assert not closed


@pytest.mark.parametrize("prefix", ["", " ", "\0", "\t\n \x1f", "/"])
def test_a_blank_prefix_means_all_ephemerals(prefix: str) -> None:
    """Control characters are blanks as well (14)."""
    path = f"{ROOT}/mine"
    create = Create(path, b"", OPEN_ACL_UNSAFE, 1)
    [_, answer], _ = play((Connect("a"), Send("a", (create, GetEphemerals(prefix)))))

    assert answer.result == EphemeralsResult((path,))
