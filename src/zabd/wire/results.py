"""The records of responses, one reader and one writer for each (client protocol, section 6)."""

from zabd.model.results import (
    AclResult,
    AllChildrenNumberResult,
    Children2Result,
    ChildrenResult,
    Create2Result,
    CreateResult,
    EphemeralsResult,
    ErrorResult,
    GetDataResult,
    SaslResult,
    StatResult,
    SyncResult,
    WhoAmIResult,
)
from zabd.wire import jute, records
from zabd.wire.jute import INT


def read_data_result(frame: bytes, at: int) -> tuple[GetDataResult, int]:
    """Data and Stat."""
    data, at = jute.read_nullable_buffer(frame, at)
    stat, at = records.read_stat(frame, at)
    return GetDataResult(data, stat), at


def data_result(result: GetDataResult) -> bytes:
    """Data and Stat."""
    return jute.buffer(result.data) + records.STAT.pack(*result.stat)


def read_create_result(frame: bytes, at: int) -> tuple[CreateResult, int]:
    """The path of a new znode."""
    path, at = jute.read_string(frame, at)
    return CreateResult(path), at


def create_result(result: CreateResult) -> bytes:
    """The path of a new znode."""
    return jute.string(result.path)


def read_create2_result(frame: bytes, at: int) -> tuple[Create2Result, int]:
    """The path and Stat of a new znode."""
    path, at = jute.read_string(frame, at)
    stat, at = records.read_stat(frame, at)
    return Create2Result(path, stat), at


def create2_result(result: Create2Result) -> bytes:
    """The path and Stat of a new znode."""
    return jute.string(result.path) + records.STAT.pack(*result.stat)


def read_stat_result(frame: bytes, at: int) -> tuple[StatResult, int]:
    """A Stat alone."""
    stat, at = records.read_stat(frame, at)
    return StatResult(stat), at


def stat_result(result: StatResult) -> bytes:
    """A Stat alone."""
    return records.STAT.pack(*result.stat)


def read_children_result(frame: bytes, at: int) -> tuple[ChildrenResult, int]:
    """The names of children."""
    names, at = jute.read_strings(frame, at)
    return ChildrenResult(names), at


def children_result(result: ChildrenResult) -> bytes:
    """The names of children."""
    return jute.strings(result.children)


def read_error_result(frame: bytes, at: int) -> tuple[ErrorResult, int]:
    """A code."""
    code, at = jute.read_int(frame, at)
    return ErrorResult(code), at


def error_result(result: ErrorResult) -> bytes:
    """A code."""
    return INT.pack(result.code)


def read_children2_result(frame: bytes, at: int) -> tuple[Children2Result, int]:
    """Names of children, and their parent's Stat."""
    names, at = jute.read_strings(frame, at)
    stat, at = records.read_stat(frame, at)
    return Children2Result(names, stat), at


def children2_result(result: Children2Result) -> bytes:
    """Names of children, and their parent's Stat."""
    return jute.strings(result.children) + records.STAT.pack(*result.stat)


def read_acl_result(frame: bytes, at: int) -> tuple[AclResult, int]:
    """An ACL and a Stat."""
    acl, at = records.read_acls(frame, at)
    stat, at = records.read_stat(frame, at)
    return AclResult(acl or (), stat), at


def acl_result(result: AclResult) -> bytes:
    """An ACL and a Stat."""
    return records.acls(result.acl) + records.STAT.pack(*result.stat)


def read_sync_result(frame: bytes, at: int) -> tuple[SyncResult, int]:
    """The path of a sync."""
    path, at = jute.read_nullable_string(frame, at)
    return SyncResult(path), at


def sync_result(result: SyncResult) -> bytes:
    """The path of a sync."""
    return jute.string(result.path)


def read_sasl_result(frame: bytes, at: int) -> tuple[SaslResult, int]:
    """A SASL token."""
    token, at = jute.read_nullable_buffer(frame, at)
    return SaslResult(token), at


def sasl_result(result: SaslResult) -> bytes:
    """A SASL token."""
    return jute.buffer(result.token)


def read_ephemerals_result(frame: bytes, at: int) -> tuple[EphemeralsResult, int]:
    """Paths of ephemerals."""
    paths, at = jute.read_strings(frame, at)
    return EphemeralsResult(paths), at


def ephemerals_result(result: EphemeralsResult) -> bytes:
    """Paths of ephemerals."""
    return jute.strings(result.paths)


def read_total_result(frame: bytes, at: int) -> tuple[AllChildrenNumberResult, int]:
    """A number of znodes."""
    total, at = jute.read_int(frame, at)
    return AllChildrenNumberResult(total), at


def total_result(result: AllChildrenNumberResult) -> bytes:
    """A number of znodes."""
    return INT.pack(result.total)


def read_infos_result(frame: bytes, at: int) -> tuple[WhoAmIResult, int]:
    """The identities of a connection."""
    infos, at = records.read_client_infos(frame, at)
    return WhoAmIResult(infos), at


def infos_result(result: WhoAmIResult) -> bytes:
    """The identities of a connection."""
    return records.client_infos(result.infos)
