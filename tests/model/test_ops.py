"""Ops, opcodes and create modes are those of the protocol."""

import pytest

from zabd.model import (
    OPEN_ACL_UNSAFE,
    READ_OPCODES,
    WRITE_OPCODES,
    Create,
    Create2,
    CreateMode,
    Delete,
    GetData,
    Op,
    OpCode,
    SetData,
    ops,
)


def test_every_op_has_an_opcode_of_its_own() -> None:
    """On the class and on the value, so tables can be made of either."""
    kinds = Op.__args__

    assert {kind.opcode for kind in kinds} == set(OpCode)
    assert len(kinds) == len(OpCode)
    assert Delete("/a").opcode is Delete.opcode is OpCode.DELETE


def test_an_op_matches_and_shows_as_itself() -> None:
    """Ops of one shape are told apart by type."""
    match Create2("/a", b"x", OPEN_ACL_UNSAFE):
        case Create():
            pytest.fail("a Create2 is no Create")
        case Create2(path, data, _acl, flags):
            assert (path, data, flags) == ("/a", b"x", 0)
    assert repr(GetData("/a")) == "GetData(path='/a', watch=False)"
    assert SetData("/a", None).version == -1


def test_reads_and_writes_are_disjoint() -> None:
    """What goes through the leader is not answered from the local tree."""
    assert not READ_OPCODES & WRITE_OPCODES
    assert OpCode.SYNC not in READ_OPCODES | WRITE_OPCODES


@pytest.mark.parametrize(
    ("mode", "traits"),
    [
        (CreateMode.PERSISTENT, ""),
        (CreateMode.EPHEMERAL, "ephemeral"),
        (CreateMode.PERSISTENT_SEQUENTIAL, "sequential"),
        (CreateMode.EPHEMERAL_SEQUENTIAL, "ephemeral sequential"),
        (CreateMode.CONTAINER, "container"),
        (CreateMode.PERSISTENT_WITH_TTL, "ttl"),
        (CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL, "sequential ttl"),
    ],
)
def test_a_create_mode_has_its_traits(mode: CreateMode, traits: str) -> None:
    """The table of section 9."""
    names = ("ephemeral", "sequential", "container", "ttl")

    assert [name for name in names if getattr(mode, name)] == traits.split()


def test_every_op_says_what_it_is() -> None:
    """The docstrings are the reference that users read."""
    public = [kind for name, kind in vars(ops).items() if name[0].isupper()]

    assert all(kind.__doc__ for kind in public)
