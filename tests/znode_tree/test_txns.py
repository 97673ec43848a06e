"""Txns as bytes: what the log holds comes back as it was."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from zabd.model.acl import OPEN_ACL_UNSAFE, Acl
from zabd.znode_tree import pack_batch, txns, unpack_batch

_INT64 = st.integers(-(2**63), 2**63 - 1)
_TEXT = st.text(st.characters(), max_size=20)  # lone surrogates included
_ACLS = st.lists(st.builds(Acl, st.integers(-(2**31), 2**31 - 1), _TEXT, _TEXT), max_size=3)
_DATA = st.none() | st.binary(max_size=20)
_PARTS = st.one_of(
    st.builds(txns.create, _TEXT, _DATA, _ACLS.map(tuple), _INT64, st.integers(0, 2**40)),
    st.builds(txns.delete, _TEXT),
    st.builds(txns.set_data, _TEXT, _DATA, _INT64),
    st.builds(txns.set_acl, _TEXT, _ACLS.map(tuple), _INT64),
    st.builds(txns.check, _TEXT),
    st.builds(txns.multi_failed, st.lists(_INT64)),
    st.builds(txns.error, _INT64),
    st.builds(txns.create_session, _INT64),
    st.builds(txns.close_session, st.none() | st.lists(_TEXT)),
    st.builds(txns.found, st.binary(), st.binary()),
    st.builds(txns.container_delete, _TEXT),
)
_TXNS = _PARTS | st.lists(_PARTS, max_size=3).map(lambda parts: txns.multi([1] * len(parts), parts))


@given(_INT64, st.lists(st.tuples(_INT64, _INT64, _INT64, _TXNS), max_size=5))
def test_a_batch_comes_back_equal(time_ms: int, entries: list[txns.Entry]) -> None:
    """T1, S24: whatever a client can put into an op; the same bytes must load after a restart."""
    assert unpack_batch(pack_batch(time_ms, entries)) == (time_ms, tuple(entries))


@given(_ACLS.map(tuple))
def test_an_acl_comes_back_equal(acl: tuple[Acl, ...]) -> None:
    """In its own type, so that comparing it with another is comparing ACLs."""
    unpacked = txns.unpack_acl(txns.pack_acl(acl))

    assert unpacked == acl
    assert all(isinstance(entry, Acl) for entry in unpacked)


def test_the_commonest_acl_costs_one_byte() -> None:
    """And is the constant again when it comes back, which the tree compares by identity."""
    assert txns.pack_acl((Acl(*OPEN_ACL_UNSAFE[0]),)) is None
    assert txns.unpack_acl(None) is OPEN_ACL_UNSAFE


@given(st.binary(max_size=50))
def test_other_bytes_raise_value_error_or_nothing_worse(payload: bytes) -> None:
    """The record's checksum comes first; this is for what was never a batch."""
    with contextlib.suppress(ValueError):
        unpack_batch(payload)


def test_kinds_are_a_format() -> None:
    """Logs hold these numbers: they may be added to, never changed."""
    kinds = [name for name in vars(txns) if name.isupper() and isinstance(vars(txns)[name], int)]

    assert {name: vars(txns)[name] for name in kinds} == {
        "CREATE": 1,
        "DELETE": 2,
        "SET_DATA": 3,
        "SET_ACL": 4,
        "CHECK": 5,
        "MULTI": 6,
        "MULTI_FAILED": 7,
        "ERROR": 8,
        "CREATE_SESSION": 9,
        "CLOSE_SESSION": 10,
        "FOUND": 11,
        "CONTAINER_DELETE": 12,
    }
