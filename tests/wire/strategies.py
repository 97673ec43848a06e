"""Hypothesis strategies for everything that travels between client and server."""

from hypothesis import strategies as st

from zabd.model import (
    Acl,
    AclResult,
    AddWatch,
    AllChildrenNumberResult,
    Auth,
    Check,
    CheckResult,
    CheckWatches,
    Children2Result,
    ChildrenResult,
    ClientInfo,
    CloseSession,
    ConnectRequest,
    ConnectResponse,
    Create,
    Create2,
    Create2Result,
    CreateContainer,
    CreateResult,
    CreateTtl,
    Delete,
    DeleteResult,
    EmptyResult,
    EphemeralsResult,
    ErrorResult,
    EventType,
    Exists,
    GetAcl,
    GetAllChildrenNumber,
    GetChildren,
    GetChildren2,
    GetData,
    GetDataResult,
    GetEphemerals,
    KeeperState,
    Multi,
    MultiRead,
    MultiResult,
    Op,
    OpCode,
    Ping,
    Reconfig,
    RemoveWatches,
    Result,
    Sasl,
    SaslResult,
    SetAcl,
    SetData,
    SetWatches,
    SetWatches2,
    Stat,
    StatResult,
    Sync,
    SyncResult,
    WatchEvent,
    WhoAmI,
    WhoAmIResult,
)
from zabd.wire.opcodes import RESULTS

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates included
buffers = st.none() | st.binary(max_size=40)
nullable_texts = st.none() | texts
paths = st.one_of(st.just("/"), st.just(""), texts)

acls = st.none() | st.lists(st.builds(Acl, int32s, texts, texts), max_size=3).map(tuple)
stats = st.builds(Stat, *[int64s] * 4, *[int32s] * 3, int64s, int32s, int32s, int64s)
path_lists = st.lists(paths, max_size=4).map(tuple)

_creates = [st.builds(kind, paths, buffers, acls, int32s) for kind in (Create, Create2)]
_multi_ops = st.one_of(
    *_creates,
    st.builds(CreateContainer, paths, buffers, acls, int32s),
    st.builds(CreateTtl, paths, buffers, acls, int32s, int64s),
    st.builds(Delete, paths, int32s),
    st.builds(SetData, paths, buffers, int32s),
    st.builds(Check, paths, int32s),
)
_multi_reads = st.one_of(
    *[st.builds(kind, paths, st.booleans()) for kind in (GetData, GetChildren)]
)

ops: st.SearchStrategy[Op] = st.one_of(
    _multi_ops,
    _multi_reads,
    st.builds(Multi, st.lists(_multi_ops, max_size=4).map(tuple)),
    st.builds(MultiRead, st.lists(_multi_reads, max_size=4).map(tuple)),
    *[st.builds(kind, paths, st.booleans()) for kind in (Exists, GetChildren2)],
    *[st.builds(kind, paths) for kind in (GetAcl, GetAllChildrenNumber)],
    *[st.builds(kind, paths, int32s) for kind in (AddWatch, CheckWatches, RemoveWatches)],
    st.builds(SetAcl, paths, acls, int32s),
    st.builds(Sync, nullable_texts),
    st.builds(GetEphemerals, nullable_texts),
    st.builds(Auth, int32s, texts, st.binary(max_size=20)),
    st.builds(Sasl, buffers),
    st.builds(SetWatches, int64s, *[path_lists] * 3),
    st.builds(SetWatches2, int64s, *[path_lists] * 5),
    st.builds(Reconfig, *[nullable_texts] * 3, int64s),
    *[st.builds(kind) for kind in (Ping, CloseSession, WhoAmI)],
)

_parts = st.one_of(
    st.builds(CreateResult, paths),
    st.builds(Create2Result, paths, stats),
    st.builds(DeleteResult),
    st.builds(StatResult, stats),
    st.builds(CheckResult),
    st.builds(GetDataResult, buffers, stats),
    st.builds(ChildrenResult, path_lists),
    st.builds(ErrorResult, int32s),
)

_results: dict[type, st.SearchStrategy[Result]] = {
    EmptyResult: st.builds(EmptyResult),
    CreateResult: st.builds(CreateResult, paths),
    Create2Result: st.builds(Create2Result, paths, stats),
    StatResult: st.builds(StatResult, stats),
    GetDataResult: st.builds(GetDataResult, buffers, stats),
    ChildrenResult: st.builds(ChildrenResult, path_lists),
    Children2Result: st.builds(Children2Result, path_lists, stats),
    AclResult: st.builds(AclResult, acls.map(lambda acl: acl or ()), stats),
    SyncResult: st.builds(SyncResult, nullable_texts),
    SaslResult: st.builds(SaslResult, buffers),
    EphemeralsResult: st.builds(EphemeralsResult, path_lists),
    AllChildrenNumberResult: st.builds(AllChildrenNumberResult, int32s),
    WhoAmIResult: st.builds(
        WhoAmIResult, st.lists(st.builds(ClientInfo, texts, texts), max_size=3).map(tuple)
    ),
    ErrorResult: st.builds(ErrorResult, int32s),
    MultiResult: st.builds(MultiResult, st.lists(_parts, max_size=4).map(tuple)),
}


def results_for(opcode: int) -> st.SearchStrategy[Result]:
    """What may answer a request of that type."""
    return _results[RESULTS[opcode].kind]


answers: st.SearchStrategy[tuple[OpCode, Result]] = st.sampled_from(
    [OpCode(opcode) for opcode in sorted(RESULTS)]
).flatmap(lambda opcode: st.tuples(st.just(opcode), results_for(opcode)))

events = st.builds(WatchEvent, st.sampled_from(EventType), st.sampled_from(KeeperState), paths)

connect_requests = st.builds(
    ConnectRequest, int32s, int64s, int32s, int64s, buffers, st.none() | st.booleans()
)
connect_responses = st.builds(
    ConnectResponse,
    int32s,
    int32s,
    int64s,
    st.binary(min_size=16, max_size=16),
    st.none() | st.booleans(),
)
