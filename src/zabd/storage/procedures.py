"""Multi-step jobs on disks, written as straight lines: a generator yields operations, gets results.

A procedure yields `(disk, operations)` and is resumed with their results once they are done; its
return value is the job's. A fault is thrown into it as `DiskError`, so that a procedure which can
go on without the bytes may say so, and every other one ends there.

Invariants
    Q1  Only what the device or the file system says about the bytes themselves is damage. That this
        process may not read them now, for want of descriptors, memory or permission, says nothing
        about them: it ends the procedure as a DiskError, and nothing is concluded from it (F34).
"""

import errno
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

from zabd.model import DamagedError, StorageError, Zxid
from zabd.storage.disk import (
    Disk,
    DiskFault,
    DiskOp,
    DiskOutcome,
    DiskResult,
    Lane,
    List,
    Read,
    Size,
)

T = TypeVar("T")
Step: TypeAlias = tuple[Disk, Sequence[DiskOp]]
Procedure: TypeAlias = Generator[Step, list[DiskResult], T]
Pace: TypeAlias = Callable[[Callable[[], None]], None]
"""Runs a piece of work, once, now or later."""

_ADVICE: Final = {
    errno.ENOSPC: "make room on its file system and start the member again",
    errno.EDQUOT: "raise the user's disk quota and start the member again",
    errno.EROFS: "mount its file system read-write and start the member again",
    errno.EACCES: "give the directory and its files to this user and start the member again",
    errno.EPERM: "let this user read and write the directory and start the member again",
    errno.EMFILE: "raise the limit of open files and start the member again",
    errno.ENFILE: "raise the system's limit of open files and start the member again",
    errno.ENOMEM: "give the member more memory and start it again",
}

_DAMAGE: Final = frozenset(
    getattr(errno, name)
    for name in (
        "EIO",
        "ENOENT",  # a file that was there is missing
        "ENODATA",  # Linux: a sector that the device cannot read
        "EREMOTEIO",  # a fault in the device's own works
        "EILSEQ",  # block-level protection information that does not match
        "EBADMSG",  # the file system's checksum does not match
        "EUCLEAN",  # the file system's own structure is damaged
    )
    if hasattr(errno, name)  # the last four and ENODATA are not everywhere
)
"""What is said about the bytes of a file, not about the process that wants them (Q1)."""


class DiskError(StorageError):
    """An operation on a disk failed; `fault` says which one and why."""

    def __init__(self, fault: DiskFault) -> None:
        self.fault = fault
        advice = _ADVICE.get(fault.errno, "check the device and start the member again")
        super().__init__(f"{_describe(fault.op)} failed: {fault.reason}; {advice}")

    @property
    def means_damage(self) -> bool:
        """Whether it says that the bytes are lost, and not only that they cannot be had now."""
        return self.fault.errno in _DAMAGE


class DamagedFileError(DamagedError):
    """Damage in one file: what is at `offset` is not what was written there.

    Up to `zxid` the history is whole; None if that is not known.
    """

    def __init__(self, file: str, offset: int, zxid: Zxid | None, what: str) -> None:
        self.file = file
        self.offset = offset
        self.zxid = zxid
        after = "" if zxid is None else f", after zxid {zxid!r}"
        super().__init__(
            f"{file} at offset {offset}{after}: {what}; nothing was changed: restore the member's "
            "directory from a copy, or move it away and let the member start empty and be "
            "synchronised by the others"
        )


def at_once(piece: Callable[[], None]) -> None:
    """The pace of those for whom nobody has to make room."""
    piece()


def run(
    procedure: Procedure[T],
    done: Callable[[T | StorageError], None],
    lane: Lane = Lane.LOG,
    pace: Pace = at_once,
) -> None:
    """Carry the procedure through on `lane`; `done` gets its value, or the error that ended it.

    The first step runs at once; a procedure that yields nothing calls `done` before this returns.
    When the others may run is for `pace` to say.
    """

    def came(outcome: DiskOutcome) -> None:
        pace(partial(advance, outcome))

    def advance(outcome: DiskOutcome) -> None:
        try:
            if outcome.error is None:
                disk, ops = procedure.send(outcome.results)
            else:
                disk, ops = procedure.throw(DiskError(outcome.error))
        except StopIteration as stop:
            done(stop.value)
        except StorageError as error:
            done(error)
        else:
            disk.submit(ops, came, lane)

    try:
        disk, ops = next(procedure)
    except StopIteration as stop:
        done(stop.value)
    except StorageError as error:
        done(error)
    else:
        disk.submit(ops, came, lane)


def list_names(disk: Disk) -> Procedure[list[str]]:
    """The names in the disk's root, sorted."""
    [names] = yield disk, [List()]
    assert isinstance(names, list)
    return names


def read_at(disk: Disk, file: str, offset: int, size_bytes: int) -> Procedure[bytes]:
    """Up to `size_bytes` of the file; what the device has lost counts as damaged (F14, Q1)."""
    try:
        [data] = yield disk, [Read(file, offset, size_bytes)]
    except DiskError as error:
        tell_damage(error, file, offset)
        raise
    assert isinstance(data, bytes)
    return data


def read_file(disk: Disk, file: str) -> Procedure[bytes]:
    """All of the file; what the device has lost counts as damaged (F14, Q1)."""
    try:
        [size] = yield disk, [Size(file)]
    except DiskError as error:
        tell_damage(error, file, 0)
        raise
    assert isinstance(size, int)
    return (yield from read_at(disk, file, 0, size))


def tell_damage(error: DiskError, file: str, offset: int) -> None:
    """Raise DamagedFileError if a failed read of the file says that it is damaged (Q1)."""
    if error.means_damage:
        what = f"it cannot be read: {error.fault.reason}"
        raise DamagedFileError(file, offset, None, what) from error


def _describe(op: DiskOp) -> str:
    fields = [getattr(op, name) for name in ("file", "source", "path") if hasattr(op, name)]
    where = f" of {fields[0]}" if fields and fields[0] else ""
    return f"{type(op).__name__}{where}"
