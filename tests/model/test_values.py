"""ACLs, identities, session ids, Stats and the handshake's values."""

import importlib
import pkgutil
from dataclasses import fields

import pytest

import zabd.model
from zabd.model import (
    CREATOR_ALL_ACL,
    OPEN_ACL_UNSAFE,
    READ_ACL_UNSAFE,
    ConnectResponse,
    Perms,
    Stat,
    format_session,
    make_digest_id,
    refusal,
)
from zabd.model.values import value


@value
class _Said:
    what: str
    at: int = 0


@value
class _Heard:
    what: str
    at: int = 0


def test_a_value_is_what_its_fields_are() -> None:
    """It stands in sets and in matches, and another class with the same fields is another value."""
    assert _Said("a", 1) == _Said("a", 1) != _Said("a", 2)
    assert len({_Said("a"), _Said("a"), _Said("b"), _Heard("a")}) == 3
    assert _Said("a") != _Heard("a")
    assert [field.name for field in fields(_Said)] == ["what", "at"]
    match _Said("a", 2):
        case _Said(what, at):
            assert (what, at) == ("a", 2)
    with pytest.raises(AttributeError):
        _Said("a").more = 1  # type: ignore[attr-defined]


def test_a_digest_id_is_the_one_zookeeper_makes() -> None:
    """A published pair of credential and id: existing ACLs must keep matching."""
    assert make_digest_id("super", "admin") == "super:xQJmxLMiHGwaqBvst5y6rkB6HQs="


def test_a_digest_id_is_made_of_any_text() -> None:
    """A password is what the client sent, surrogates included; it must not raise."""
    assert make_digest_id("\ud83d", "\ude00").startswith("\ud83d:")


def test_the_usual_acls() -> None:
    """As in every other client."""
    assert OPEN_ACL_UNSAFE == ((Perms.ALL, "world", "anyone"),)
    assert READ_ACL_UNSAFE == ((Perms.READ, "world", "anyone"),)
    assert CREATOR_ALL_ACL == ((Perms.ALL, "auth", ""),)
    assert Perms.READ | Perms.WRITE | Perms.CREATE | Perms.DELETE | Perms.ADMIN == Perms.ALL


def test_a_session_id_shows_unsigned() -> None:
    """Half of all members make ids whose highest bit is set."""
    assert format_session(0x100012345678) == "0x100012345678"
    assert format_session(-1) == "0xffffffffffffffff"


def test_a_stat_has_the_order_of_the_wire() -> None:
    """It is packed and unpacked as it stands."""
    assert Stat._fields == (
        "czxid",
        "mzxid",
        "ctime",
        "mtime",
        "version",
        "cversion",
        "aversion",
        "ephemeral_owner",
        "data_length",
        "num_children",
        "pzxid",
    )


def test_a_refusal_is_recognised() -> None:
    """It is how a client learns that its session is over."""
    assert refusal(with_read_only=True) == ConnectResponse(0, 0, 0, bytes(16), read_only=False)
    assert refusal(with_read_only=False).read_only is None
    assert refusal(with_read_only=False).refused
    assert not ConnectResponse(0, 4000, 1, bytes(16), read_only=False).refused


def test_the_room_exports_all_its_words() -> None:
    """What a module of the room defines in public can be had from the room itself."""
    defined = {
        name
        for module in pkgutil.iter_modules(zabd.model.__path__)
        if module.name != "values"  # how words are made in every room, and no word itself
        for name, value in vars(importlib.import_module(f"zabd.model.{module.name}")).items()
        if getattr(value, "__module__", "").endswith(f"model.{module.name}")
        and not name.startswith("_")
    }

    assert defined <= set(zabd.model.__all__)
    assert sorted(set(zabd.model.__all__)) == sorted(zabd.model.__all__)
