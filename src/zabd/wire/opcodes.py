"""The tables: which opcode has which request and which response, and who reads and writes them.

What is not in a table is not part of the protocol between client and server: `createSession` and
`deleteContainer` are internal to an ensemble, and a client that sends them is told that there is no
such operation (client protocol, sections 4 and 25).
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from zabd.model.ops import (
    AddWatch,
    Check,
    CheckWatches,
    CloseSession,
    Create,
    Create2,
    CreateContainer,
    Delete,
    Exists,
    GetAcl,
    GetAllChildrenNumber,
    GetChildren,
    GetChildren2,
    GetData,
    Op,
    OpCode,
    Ping,
    RemoveWatches,
    WhoAmI,
)
from zabd.model.results import (
    AclResult,
    AllChildrenNumberResult,
    Children2Result,
    ChildrenResult,
    Create2Result,
    CreateResult,
    EmptyResult,
    EphemeralsResult,
    ErrorResult,
    GetDataResult,
    MultiResult,
    Result,
    SaslResult,
    StatResult,
    SyncResult,
    WhoAmIResult,
)
from zabd.wire import multi, records, results
from zabd.wire.jute import Reader


class RequestCodec(NamedTuple):
    """How the body of a request is read and written."""

    read: Reader[Op]
    write: Callable[[Any], bytes]


class ResultCodec(NamedTuple):
    """How the body of a response is read and written, and the one type of result it holds."""

    kind: type
    read: Reader[Result]
    write: Callable[[Any], bytes]


REQUESTS: Final[dict[int, RequestCodec]] = {
    OpCode.CREATE: RequestCodec(records.create_reader(Create), records.create),
    OpCode.DELETE: RequestCodec(records.path_int_reader(Delete), records.path_int),
    OpCode.EXISTS: RequestCodec(records.path_watch_reader(Exists), records.path_watch),
    OpCode.GET_DATA: RequestCodec(records.path_watch_reader(GetData), records.path_watch),
    OpCode.SET_DATA: RequestCodec(records.read_set_data, records.set_data),
    OpCode.GET_ACL: RequestCodec(records.path_reader(GetAcl), records.path),
    OpCode.SET_ACL: RequestCodec(records.read_set_acl, records.set_acl),
    OpCode.GET_CHILDREN: RequestCodec(records.path_watch_reader(GetChildren), records.path_watch),
    OpCode.SYNC: RequestCodec(records.read_sync, records.path),
    OpCode.PING: RequestCodec(records.empty_reader(Ping), records.empty),
    OpCode.GET_CHILDREN2: RequestCodec(records.path_watch_reader(GetChildren2), records.path_watch),
    OpCode.CHECK: RequestCodec(records.path_int_reader(Check), records.path_int),
    OpCode.MULTI: RequestCodec(multi.read_multi, multi.multi),
    OpCode.CREATE2: RequestCodec(records.create_reader(Create2), records.create),
    OpCode.RECONFIG: RequestCodec(records.read_reconfig, records.reconfig),
    OpCode.CHECK_WATCHES: RequestCodec(records.path_int_reader(CheckWatches), records.path_int),
    OpCode.REMOVE_WATCHES: RequestCodec(records.path_int_reader(RemoveWatches), records.path_int),
    OpCode.CREATE_CONTAINER: RequestCodec(records.create_reader(CreateContainer), records.create),
    OpCode.CREATE_TTL: RequestCodec(records.read_create_ttl, records.create_ttl),
    OpCode.MULTI_READ: RequestCodec(multi.read_multi_read, multi.multi_read),
    OpCode.AUTH: RequestCodec(records.read_auth, records.auth),
    OpCode.SET_WATCHES: RequestCodec(records.read_set_watches, records.set_watches),
    OpCode.SASL: RequestCodec(records.read_sasl, records.sasl),
    OpCode.GET_EPHEMERALS: RequestCodec(records.read_get_ephemerals, records.get_ephemerals),
    OpCode.GET_ALL_CHILDREN_NUMBER: RequestCodec(
        records.path_reader(GetAllChildrenNumber), records.path
    ),
    OpCode.SET_WATCHES2: RequestCodec(records.read_set_watches2, records.set_watches2),
    OpCode.ADD_WATCH: RequestCodec(records.path_int_reader(AddWatch), records.path_int),
    OpCode.WHO_AM_I: RequestCodec(records.empty_reader(WhoAmI), records.empty),
    OpCode.CLOSE_SESSION: RequestCodec(records.empty_reader(CloseSession), records.empty),
}


_NOTHING: Final = ResultCodec(EmptyResult, records.empty_reader(EmptyResult), records.empty)
_PATH: Final = ResultCodec(CreateResult, results.read_create_result, results.create_result)
_PATH_STAT: Final = ResultCodec(Create2Result, results.read_create2_result, results.create2_result)
_STAT: Final = ResultCodec(StatResult, results.read_stat_result, results.stat_result)
_DATA_STAT: Final = ResultCodec(GetDataResult, results.read_data_result, results.data_result)
_CHILDREN: Final = ResultCodec(
    ChildrenResult, results.read_children_result, results.children_result
)
_SEVERAL: Final = ResultCodec(MultiResult, multi.read_multi_result, multi.multi_result)

RESULTS: Final[dict[int, ResultCodec]] = {
    OpCode.CREATE: _PATH,
    OpCode.DELETE: _NOTHING,
    OpCode.EXISTS: _STAT,
    OpCode.GET_DATA: _DATA_STAT,
    OpCode.SET_DATA: _STAT,
    OpCode.GET_ACL: ResultCodec(AclResult, results.read_acl_result, results.acl_result),
    OpCode.SET_ACL: _STAT,
    OpCode.GET_CHILDREN: _CHILDREN,
    OpCode.SYNC: ResultCodec(SyncResult, results.read_sync_result, results.sync_result),
    OpCode.PING: _NOTHING,
    OpCode.GET_CHILDREN2: ResultCodec(
        Children2Result, results.read_children2_result, results.children2_result
    ),
    OpCode.CHECK: _NOTHING,
    OpCode.MULTI: _SEVERAL,
    OpCode.CREATE2: _PATH_STAT,
    OpCode.RECONFIG: _DATA_STAT,
    OpCode.CHECK_WATCHES: _NOTHING,
    OpCode.REMOVE_WATCHES: _NOTHING,
    OpCode.CREATE_CONTAINER: _PATH_STAT,
    OpCode.CREATE_TTL: _PATH_STAT,
    OpCode.MULTI_READ: _SEVERAL,
    OpCode.AUTH: _NOTHING,
    OpCode.SET_WATCHES: _NOTHING,
    OpCode.SASL: ResultCodec(SaslResult, results.read_sasl_result, results.sasl_result),
    OpCode.GET_EPHEMERALS: ResultCodec(
        EphemeralsResult, results.read_ephemerals_result, results.ephemerals_result
    ),
    OpCode.GET_ALL_CHILDREN_NUMBER: ResultCodec(
        AllChildrenNumberResult, results.read_total_result, results.total_result
    ),
    OpCode.SET_WATCHES2: _NOTHING,
    OpCode.ADD_WATCH: ResultCodec(ErrorResult, results.read_error_result, results.error_result),
    OpCode.WHO_AM_I: ResultCodec(WhoAmIResult, results.read_infos_result, results.infos_result),
    OpCode.CLOSE_SESSION: _NOTHING,
}
