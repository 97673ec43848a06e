"""Random histories of ops over few paths, so that they meet each other."""

from hypothesis import strategies as st
from tests.znode_tree.world import ALICE, BOB

from zabd.model.acl import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Acl
from zabd.model.ops import (
    Check,
    CloseSession,
    Create,
    Create2,
    CreateContainer,
    CreateSession,
    CreateTtl,
    Delete,
    DeleteContainer,
    Multi,
    Op,
    SetAcl,
    SetData,
)

CAROL = 0x0200_0000_0000_0003
STEP_MS = 7

# All of these let everybody do everything: rights have tests of their own.
_ACLS = st.sampled_from(
    [OPEN_ACL_UNSAFE, OPEN_ACL_UNSAFE + READ_ACL_UNSAFE, (*OPEN_ACL_UNSAFE, Acl(1, "ip", "::1"))]
)
_PATHS = st.sampled_from(
    ["/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/z", "/s0000000000", "/zookeeper"]
)
_DATA = st.sampled_from([None, b"", b"1", b"twelve bytes"])
_VERSIONS = st.sampled_from([-1, -1, 0, 1, 2])
_SEQUENTIAL_PATHS = st.sampled_from(["/s", "/a/", "/b/x"])

_creates = st.one_of(
    st.builds(Create, _PATHS, _DATA, _ACLS, st.sampled_from([0, 0, 1])),
    st.builds(Create2, _SEQUENTIAL_PATHS, _DATA, _ACLS, st.sampled_from([2, 3])),
    st.builds(CreateContainer, _PATHS, _DATA, _ACLS, st.just(4)),
    st.builds(CreateTtl, _PATHS, _DATA, _ACLS, st.just(5), st.sampled_from([1, 50])),
)
_parts = st.one_of(
    _creates,
    _creates,
    st.builds(Delete, _PATHS, _VERSIONS),
    st.builds(SetData, _PATHS, _DATA, _VERSIONS),
    st.builds(Check, _PATHS, _VERSIONS),
)
_ops = st.one_of(
    _parts,
    _parts,
    _parts,
    st.builds(SetAcl, _PATHS, _ACLS, _VERSIONS),
    st.builds(DeleteContainer, _PATHS),
    st.builds(Multi, st.lists(_parts, max_size=5).map(tuple)),
    st.builds(CloseSession),
    st.builds(CreateSession, st.sampled_from([1_000, 9_000])),
)
_sessions = st.sampled_from([ALICE, ALICE, BOB, CAROL])

histories: st.SearchStrategy[list[tuple[int, Op]]] = st.lists(
    st.tuples(_sessions, _ops), max_size=60
)
"""Lists of (session id, op). CAROL's session is not open at first; a closed one stays closed."""


def admissible(history: list[tuple[int, Op]]) -> list[tuple[int, Op]]:
    """The history without sessions that come back: the ids of real ones are never used again."""
    closed: set[int] = set()
    kept = []
    for session_id, op in history:
        if isinstance(op, CreateSession) and session_id in closed:
            continue
        if isinstance(op, CloseSession):
            closed.add(session_id)
        kept.append((session_id, op))
    return kept
