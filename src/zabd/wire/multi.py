"""Several ops in one request, and their results (client protocol, section 12).

Both are a sequence of MultiHeader and record, ended by a header that says `done`.

Invariants
    I1  Only writes and checks are legal in a multi, only getData and getChildren in a multiRead.
        So neither nests, and nothing here recurses.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from zabd.model.errors import LocalProtocolError, MarshallingError
from zabd.model.ops import (
    Check,
    Create,
    Create2,
    CreateContainer,
    Delete,
    GetChildren,
    GetData,
    Multi,
    MultiOp,
    MultiRead,
    MultiReadOp,
    OpCode,
)
from zabd.model.results import (
    CheckResult,
    ChildrenResult,
    Create2Result,
    CreateResult,
    DeleteResult,
    ErrorResult,
    GetDataResult,
    MultiPart,
    MultiResult,
    StatResult,
)
from zabd.wire import records, results
from zabd.wire.jute import INT, Reader

T = TypeVar("T")

_ERROR: Final = -1  # the type of an ErrorResult, and of the end
_HEADER: Final = struct.Struct(">i?i")  # type, done, err
_END: Final = _HEADER.pack(_ERROR, True, -1)

# --- requests ---

_OP_READERS: Final[dict[int, Reader[MultiOp]]] = {
    OpCode.CREATE: records.create_reader(Create),
    OpCode.CREATE2: records.create_reader(Create2),
    OpCode.CREATE_CONTAINER: records.create_reader(CreateContainer),
    OpCode.CREATE_TTL: records.read_create_ttl,
    OpCode.DELETE: records.path_int_reader(Delete),
    OpCode.SET_DATA: records.read_set_data,
    OpCode.CHECK: records.path_int_reader(Check),
}
_OP_WRITERS: Final[dict[int, Callable[[Any], bytes]]] = {
    OpCode.CREATE: records.create,
    OpCode.CREATE2: records.create,
    OpCode.CREATE_CONTAINER: records.create,
    OpCode.CREATE_TTL: records.create_ttl,
    OpCode.DELETE: records.path_int,
    OpCode.SET_DATA: records.set_data,
    OpCode.CHECK: records.path_int,
}
_READ_OP_READERS: Final[dict[int, Reader[MultiReadOp]]] = {
    OpCode.GET_DATA: records.path_watch_reader(GetData),
    OpCode.GET_CHILDREN: records.path_watch_reader(GetChildren),
}
_READ_OP_WRITERS: Final[dict[int, Callable[[Any], bytes]]] = {
    OpCode.GET_DATA: records.path_watch,
    OpCode.GET_CHILDREN: records.path_watch,
}


def read_multi(frame: bytes, at: int) -> tuple[Multi, int]:
    """A multi."""
    ops, at = _read_parts(frame, at, _OP_READERS)
    return Multi(ops), at


def read_multi_read(frame: bytes, at: int) -> tuple[MultiRead, int]:
    """A multiRead."""
    ops, at = _read_parts(frame, at, _READ_OP_READERS)
    return MultiRead(ops), at


def multi(op: Multi) -> bytes:
    """A multi."""
    return _ops(op.ops, _OP_WRITERS)


def multi_read(op: MultiRead) -> bytes:
    """A multiRead."""
    return _ops(op.ops, _READ_OP_WRITERS)


def _read_parts(frame: bytes, at: int, readers: dict[int, Reader[T]]) -> tuple[tuple[T, ...], int]:
    parts: list[T] = []
    while True:
        kind, done, _err = _HEADER.unpack_from(frame, at)
        at += _HEADER.size
        if done:
            return tuple(parts), at
        reader = readers.get(kind)
        if reader is None:
            raise MarshallingError(f"the type {kind} is none of {sorted(map(int, readers))}")
        part, at = reader(frame, at)
        parts.append(part)


def _ops(ops: Iterable[MultiOp | MultiReadOp], writers: dict[int, Callable[[Any], bytes]]) -> bytes:
    parts: list[bytes] = []
    for op in ops:
        writer = writers.get(op.opcode)
        if writer is None:
            raise LocalProtocolError(f"{type(op).__name__} cannot be one of several ops")
        parts += (_HEADER.pack(op.opcode, False, -1), writer(op))
    return b"".join((*parts, _END))


# --- results of several ---

_DELETED: Final = DeleteResult()
_HELD: Final = CheckResult()


def _read_deleted(frame: bytes, at: int) -> tuple[DeleteResult, int]:  # noqa: ARG001 - a Reader
    return _DELETED, at


def _read_held(frame: bytes, at: int) -> tuple[CheckResult, int]:  # noqa: ARG001 - a Reader
    return _HELD, at


_PART_READERS: Final[dict[int, Reader[MultiPart]]] = {
    OpCode.CREATE: results.read_create_result,
    OpCode.CREATE2: results.read_create2_result,
    OpCode.DELETE: _read_deleted,
    OpCode.SET_DATA: results.read_stat_result,
    OpCode.CHECK: _read_held,
    OpCode.GET_DATA: results.read_data_result,
    OpCode.GET_CHILDREN: results.read_children_result,
    _ERROR: results.read_error_result,
}
_PART_WRITERS: Final[dict[type, tuple[bytes, Callable[[Any], bytes]]]] = {
    kind: (_HEADER.pack(opcode, False, 0), writer)
    for kind, opcode, writer in (
        (CreateResult, OpCode.CREATE, results.create_result),
        (Create2Result, OpCode.CREATE2, results.create2_result),
        (DeleteResult, OpCode.DELETE, records.empty),
        (StatResult, OpCode.SET_DATA, results.stat_result),
        (CheckResult, OpCode.CHECK, records.empty),
        (GetDataResult, OpCode.GET_DATA, results.data_result),
        (ChildrenResult, OpCode.GET_CHILDREN, results.children_result),
    )
}


def read_multi_result(frame: bytes, at: int) -> tuple[MultiResult, int]:
    """The results of a multi or multiRead."""
    parts, at = _read_parts(frame, at, _PART_READERS)
    return MultiResult(parts), at


def multi_result(result: MultiResult) -> bytes:
    """The results of a multi or multiRead; an error's code stands in its header, too."""
    parts: list[bytes] = []
    for part in result.results:
        if isinstance(part, ErrorResult):
            parts += (_HEADER.pack(_ERROR, False, part.code), INT.pack(part.code))
        else:
            header, writer = _PART_WRITERS[type(part)]
            parts += (header, writer(part))
    return b"".join((*parts, _END))
