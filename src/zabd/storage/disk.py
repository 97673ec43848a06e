"""The seam under storage: a disk as a list of primitive operations and one outcome.

Everything above this module decides *what* is done to files and in which order; a `Disk` does it.
`os_disk.OsDisk` does it on the machine's file system, `cluster_sim.disks` in memory with every
fault a disk has. Durability is never implied: bytes are durable after a `Sync` of their file, names
after a `SyncDir` of their directory, and nothing else.

Invariants
    K1  A list of operations is done in order and stops at its first failure.
    K2  Lists of one lane are done in the order in which they were submitted, one after the other.
    K3  `done` is called exactly once per list, on the owner's loop, never from within `submit`.
    K4  A file whose write, sync or truncation failed is not written or synced again: after a
        failed fsync the kernel may call lost pages clean, and the next fsync would lie.

Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014); Rebello et al., "Can
Applications Recover from fsync Failures?" (ATC 2020).
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from zabd.model.values import value

Buffers: TypeAlias = bytes | list[bytes]


class Lane(Enum):
    """Two queues into one disk, so that a snapshot never stands in the way of the log."""

    LOG = "log"
    BULK = "bulk"


@value
class WriteAt:
    """Write all of `data` at `offset`; the file exists. A list is written as if it were joined."""

    file: str
    offset: int
    data: Buffers


@value
class Sync:
    """Make the file's bytes and its size durable (`fdatasync`), but not its name."""

    file: str


@value
class Create:
    """Make a new file of `size_bytes` zeros with their space reserved; EEXIST if it is there."""

    file: str
    size_bytes: int = 0


@value
class Truncate:
    """Set the file's size; what lies beyond is gone, what is added reads as zeros."""

    file: str
    size_bytes: int


@value
class Rename:
    """Give the file another name, atomically in the place of a file that has it."""

    source: str
    target: str


@value
class Unlink:
    """Remove the name; ENOENT if it is not there."""

    file: str


@value
class SyncDir:
    """Make every creation, renaming and removal in the directory durable; "" is the root."""

    path: str = ""


@value
class MakeDir:
    """Make a directory below the root, unless it is there."""

    path: str


@value
class Read:
    """Result: the file's `bytes` from `offset`, fewer than `size_bytes` only where it ends."""

    file: str
    offset: int
    size_bytes: int


@value
class Size:
    """Result: the file's size in bytes, as an `int`."""

    file: str


@value
class List:
    """Result: the names in the directory, sorted, as a `list[str]`."""

    path: str = ""


@value
class FreeSpace:
    """Result: how many bytes may still be written, as an `int`."""


@value
class Release:
    """The file is not used for now: let go of its descriptor and of its clean pages in memory.

    What is read afterwards comes from the device where the system can do that; nothing becomes
    durable by it, and a file that nobody has open, or that is not there, is no error.
    """

    file: str


DiskOp: TypeAlias = (
    WriteAt
    | Sync
    | Create
    | Truncate
    | Rename
    | Unlink
    | SyncDir
    | MakeDir
    | Read
    | Size
    | List
    | FreeSpace
    | Release
)

DiskResult: TypeAlias = bytes | int | list[str] | None


class DiskFault(NamedTuple):
    """The operation that failed, and why; the ones before it in its list were done."""

    op: DiskOp
    errno: int
    reason: str


@value
class DiskOutcome:
    """One result per operation that was done, and the fault that stopped the list, if one did."""

    results: list[DiskResult] = field(default_factory=list)
    error: DiskFault | None = None


class Disk(Protocol):
    """One directory of one member. Names are relative to it."""

    def submit(
        self,
        ops: Sequence[DiskOp],
        done: Callable[[DiskOutcome], None],
        lane: Lane = Lane.LOG,
    ) -> None:
        """Do `ops` in order behind everything submitted to `lane` before, then call `done`.

        Returns at once. Lists of different lanes may overlap; their owner keeps them off each
        other's files.
        """
