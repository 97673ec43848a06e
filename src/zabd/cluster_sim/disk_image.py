"""The device of a simulated machine: what survives a crash is decided write by write, name by name.

`DiskImage` is the device with the page cache over it and its directories; it outlives processes.

Invariants
    D1  A power cut keeps every byte that a completed `Sync` covered and every name that a
        completed `SyncDir` covered. Each other write is kept, lost or torn by 512-byte sectors,
        each other change of a name is kept or lost, independently.
    D2  A killed process loses nothing it had written: the page cache belongs to the machine.
    D3  A failed `Sync` leaves its writes visible and will never make them durable; a later
        `Sync` of that file would lie, so writing or syncing it again is refused (K4 of
        storage.disk).

docs/reference/rules.md: S1, S2, F13 and F15 to F18; Rebello et al. (ATC 2020).
"""

import errno as errors
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from zabd.cluster_sim.invariants import InvariantError
from zabd.storage.disk import (
    Create,
    DiskOp,
    DiskResult,
    FreeSpace,
    List,
    MakeDir,
    Read,
    Release,
    Rename,
    Size,
    Sync,
    SyncDir,
    Truncate,
    Unlink,
    WriteAt,
)

SECTOR_BYTES: Final = 512


class Losses(NamedTuple):
    """What a power cut has taken: whole writes, parts of writes, renames, other changes of names.

    A write is torn when some of its sectors are there and some are not.
    """

    writes: int = 0
    torn: int = 0
    renames: int = 0
    entries: int = 0

    def __add__(self, other: object) -> "Losses":
        assert isinstance(other, Losses), "losses are added to losses"
        return Losses(*map(sum, zip(self, other, strict=True)))


class Survival(NamedTuple):
    """What a power cut does to what was not synced: chances between 0 and 1."""

    kept: float
    torn: float = 0.0
    names: float | None = None  # chance of a changed name to be kept, if it is not that of writes

    @classmethod
    def draw(cls, rng: Random) -> "Survival":
        """One power cut's character: nothing, everything or any mixture survives."""
        style = rng.random()
        if style < 0.4:  # noqa: PLR2004 - 40 %: the plain power cut
            return NOTHING_SURVIVES
        if style < 0.5:  # noqa: PLR2004 - 10 %: the disk was faster than its fsync
            return EVERYTHING_SURVIVES
        return cls(kept=rng.random(), torn=rng.random())


NOTHING_SURVIVES: Final = Survival(0.0)
EVERYTHING_SURVIVES: Final = Survival(1.0)
TORN: Final = Survival(0.0, torn=1.0)
NAMES_LOST: Final = Survival(1.0, names=0.0)


class _Write(NamedTuple):
    """A change of a file's bytes that is in the page cache only; `data` None sets the size."""

    offset: int
    data: bytes | None


class _Name(NamedTuple):
    """A change of names that is in the cache only: `target` now means `inode` (None: nothing)."""

    source: str | None
    target: str
    inode: "Inode | None"


class Inode:
    """One file's bytes: as processes see them, and as the device holds them."""

    __slots__ = ("broken", "data", "durable", "durable_size", "pending", "size")

    def __init__(self) -> None:
        self.data = bytearray()  # what lies between its end and `size` reads as zeros
        self.size = 0
        self.durable = bytearray()
        self.durable_size = 0
        self.pending: list[_Write] = []
        self.broken = False

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes into the page cache."""
        self.size = _put(self.data, self.size, offset, data)
        self.pending.append(_Write(offset, data))

    def resize(self, size_bytes: int) -> None:
        """Set the size in the page cache."""
        del self.data[size_bytes:]
        self.size = size_bytes
        self.pending.append(_Write(size_bytes, None))

    def read(self, offset: int, size_bytes: int) -> bytes:
        """What a process reads."""
        end = min(self.size, offset + size_bytes)
        found = bytes(self.data[offset:end])
        return found + bytes(max(0, end - offset - len(found)))

    def persist(self, writes: Sequence[_Write]) -> None:
        """Make writes durable."""
        for write in writes:
            self._persist(write)

    def lose_power(self, rng: Random, survival: Survival) -> Losses:
        """Keep of each pending write what chance keeps, and forget the page cache (D1)."""
        lost = torn = 0
        for write in self.pending:
            chance = rng.random()
            if chance < survival.kept:
                self._persist(write)
            elif write.data is not None and rng.random() < survival.torn:
                torn += self._persist_some_sectors(rng, write.offset, write.data)
            else:
                lost += 1
        self.pending.clear()
        self.forget_cache()
        return Losses(lost, torn)

    def forget_cache(self) -> None:
        """Show again what the device holds, with what is still to be written over it."""
        self.data[:] = self.durable
        self.size = self.durable_size
        for offset, data in self.pending:
            if data is None:
                del self.data[offset:]
                self.size = offset
            else:
                self.size = _put(self.data, self.size, offset, data)

    def copy(self) -> "Inode":
        """An inode that shares nothing with this one."""
        twin = Inode()
        twin.data, twin.size = self.data[:], self.size
        twin.durable, twin.durable_size = self.durable[:], self.durable_size
        twin.pending = self.pending[:]
        return twin

    def spoil(self, offset: int, data: bytes) -> None:
        """Change the bytes on the device and in the cache behind everybody's back."""
        _put(self.data, self.size, offset, data)
        _put(self.durable, self.durable_size, offset, data)

    def shorten(self, size_bytes: int) -> None:
        """Lose the end, on the device and in the cache, behind everybody's back."""
        del self.data[size_bytes:]
        del self.durable[size_bytes:]
        self.size, self.durable_size = min(self.size, size_bytes), min(self.size, size_bytes)

    def _persist(self, write: _Write) -> None:
        if write.data is None:
            del self.durable[write.offset :]
            self.durable_size = write.offset
        else:
            self.durable_size = _put(self.durable, self.durable_size, write.offset, write.data)

    def _persist_some_sectors(self, rng: Random, offset: int, data: bytes) -> bool:
        """Keep each sector or not; whether the write is torn now."""
        start, kept = 0, set()
        while start < len(data):
            end = min(len(data), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
            survives = bool(rng.getrandbits(1))
            kept.add(survives)
            if survives:
                self._persist(_Write(offset + start, data[start:end]))
            start = end
        return len(kept) > 1


class DiskImage:
    """The device of one machine (or one of them), with its page cache and its directories.

    `on_durable(file name, offset, bytes)` hears of every write that a `Sync` made durable,
    `on_name_durable(file name)` of every name that a `SyncDir` made durable.
    """

    def __init__(self, *, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.names: dict[str, Inode] = {}
        self.on_durable: Callable[[str, int, bytes], None] | None = None
        self.on_name_durable: Callable[[str], None] | None = None
        self.small_files: frozenset[str] = frozenset()  # those that are replaced as a whole
        self._roomy_bytes: int | None = None  # its capacity when nothing is wrong with it
        self._on_full: Callable[[], object] | None = None
        self._directories: dict[str, None] = {"": None}
        self._durable_names: dict[str, Inode] = {}
        self._pending_names: list[_Name] = []

    # --- crashes and copies -------------------------------------------------------------------

    def lose_power(self, rng: Random, survival: Survival | None = None) -> Losses:
        """Become what a machine finds after a power cut (D1)."""
        survival = survival or Survival.draw(rng)
        names_kept = survival.kept if survival.names is None else survival.names
        losses = Losses()
        for change in self._pending_names:
            if rng.random() < names_kept:
                _rename(self._durable_names, change)
            else:
                is_rename = change.source is not None
                losses += Losses(renames=is_rename, entries=not is_rename)
        self._pending_names.clear()
        self.names = dict(self._durable_names)
        for inode in self._inodes():
            losses += inode.lose_power(rng, survival)
            inode.broken = False
        return losses

    def reopen(self) -> None:
        """A new process opens the files: what the page cache shows is what it finds (D2)."""
        for inode in self._inodes():
            inode.broken = False

    def copy(self) -> "DiskImage":
        """An image that shares nothing with this one, for looking at what a crash would leave."""
        twin = DiskImage(capacity_bytes=self._roomy_bytes or self.capacity_bytes)
        inodes = {id(inode): inode.copy() for inode in self._inodes()}
        twin.names = {name: inodes[id(inode)] for name, inode in self.names.items()}
        twin._durable_names = {n: inodes[id(inode)] for n, inode in self._durable_names.items()}
        twin._pending_names = [
            _Name(source, target, inodes[id(inode)] if inode else None)
            for source, target, inode in self._pending_names
        ]
        twin._directories = dict(self._directories)
        return twin

    def _inodes(self) -> list[Inode]:
        found = {id(inode): inode for inode in self.names.values()}
        found.update((id(inode), inode) for inode in self._durable_names.values())
        for _, _, inode in self._pending_names:
            if inode is not None:
                found[id(inode)] = inode
        return list(found.values())

    # --- room ---------------------------------------------------------------------------------

    @property
    def crowded(self) -> bool:
        """Whether its room has been taken away."""
        return self._roomy_bytes is not None

    def fill(self, left_bytes: int, on_full: Callable[[], object]) -> None:
        """Leave so little room until `make_room`; `on_full` hears of the first that finds none."""
        if self._roomy_bytes is None:
            self._roomy_bytes, self._on_full = self.capacity_bytes, on_full
            self.capacity_bytes -= max(0, self._free_bytes() - left_bytes)

    def make_room(self) -> None:
        """Give it back the room that it had."""
        if self._roomy_bytes is not None:
            self.capacity_bytes, self._roomy_bytes = self._roomy_bytes, None
            self._on_full = None

    # --- damage -------------------------------------------------------------------------------

    def flip_bit(self, file: str, rng: Random) -> int:
        """Flip one bit of what the file holds on the device; where it was."""
        inode = self.names[file]
        offset = rng.randrange(max(1, len(inode.durable)))
        byte = inode.durable[offset] if offset < len(inode.durable) else 0
        inode.spoil(offset, bytes([byte ^ 1 << rng.randrange(8)]))
        return offset

    def overwrite_sector(self, file: str, rng: Random, *, source: str | None = None) -> int:
        """Fill one sector with zeros, or with one of another file's (a misdirected write)."""
        inode = self.names[file]
        sectors = max(1, -(-len(inode.durable) // SECTOR_BYTES))
        offset = rng.randrange(sectors) * SECTOR_BYTES
        content = bytes(SECTOR_BYTES)
        if source is not None:
            content = self.names[source].read(0, SECTOR_BYTES).ljust(SECTOR_BYTES, b"\0")
        inode.spoil(offset, content[: max(0, inode.durable_size - offset)])
        return offset

    def content(self, file: str) -> bytes:
        """What a process would read of a file."""
        inode = self.names[file]
        return inode.read(0, inode.size)

    def overwrite(self, file: str, offset: int, data: bytes) -> None:
        """Put other bytes into a file, on the device and in the cache."""
        self.names[file].spoil(offset, data)

    def cut(self, file: str, size_bytes: int) -> None:
        """Make a file shorter."""
        self.names[file].shorten(size_bytes)

    def remove(self, file: str) -> None:
        """Let a file vanish for good."""
        del self.names[file]
        self._durable_names.pop(file, None)

    def wipe(self) -> None:
        """Lose the whole disk; an empty one is there instead."""
        self.names.clear()
        self._durable_names.clear()
        self._pending_names.clear()
        self._directories = {"": None}

    # --- operations -------------------------------------------------------------------------

    def perform(self, op: DiskOp) -> DiskResult:
        """Do one primitive operation at once. Raises OSError as the system call would."""
        match op:
            case WriteAt(file, offset, data):
                self._require_replacement(file)
                joined = data if isinstance(data, bytes) else b"".join(data)
                inode = self._writable(file)
                self._require_space(max(0, offset + len(joined) - inode.size))
                inode.write(offset, joined)
            case Sync(file):
                self._sync(file, self._writable(file))
            case Create(file, size_bytes):
                self._create(file, size_bytes)
            case Truncate(file, size_bytes):
                self._require_replacement(file)
                self._writable(file).resize(size_bytes)
            case Rename(source, target):
                self._require_whole(source, target)
                self._change_name(_Name(source, target, self._inode(source)))
            case Unlink(file):
                self._inode(file)
                self._change_name(_Name(None, file, None))
            case SyncDir(path):
                self._sync_names(path)
            case MakeDir(path):
                self._directories[path.strip("/")] = None
            case Read(file, offset, size_bytes):
                return self._inode(file).read(offset, size_bytes)
            case Size(file):
                return self._inode(file).size
            case List(path):
                return self._list(path)
            case FreeSpace():
                return self._free_bytes()
            case Release(file):
                if (released := self.names.get(file)) is not None:
                    released.forget_cache()
        return None

    def fail_sync(self, file: str) -> None:
        """What a failed fsync does: the writes stay visible and never become durable (D3)."""
        inode = self._inode(file)
        inode.pending.clear()
        inode.broken = True

    def fail_write(self, file: str) -> None:
        """What a failed write does: any part of it may be visible; none is hardest to notice."""
        self._inode(file).broken = True

    def _inode(self, file: str) -> Inode:
        inode = self.names.get(file)
        if inode is None:
            raise OSError(errors.ENOENT, f"no file {file}")
        return inode

    def _writable(self, file: str) -> Inode:
        inode = self._inode(file)
        if inode.broken:
            raise OSError(errors.EIO, "an earlier write or sync of this file failed")
        return inode

    def _require_replacement(self, file: str) -> None:
        if file in self.small_files and file in self._durable_names:
            raise InvariantError("D9", f"{file} is written in place: a crash could tear it")

    def _require_whole(self, source: str, target: str) -> None:
        if target in self.small_files and self._inode(source).pending:
            raise InvariantError("D9", f"{target} gets its name before its bytes are durable")

    def _create(self, file: str, size_bytes: int) -> None:
        if file in self.names:
            raise OSError(errors.EEXIST, f"{file} is there already")
        if _directory_of(file) not in self._directories:
            raise OSError(errors.ENOENT, f"no directory for {file}")
        self._require_space(size_bytes)
        inode = Inode()
        if size_bytes:
            inode.resize(size_bytes)
        self._change_name(_Name(None, file, inode))

    def _change_name(self, change: _Name) -> None:
        _rename(self.names, change)
        self._pending_names.append(change)

    def _sync_names(self, path: str) -> None:
        directory = path.strip("/")
        kept: list[_Name] = []
        synced: list[_Name] = []
        for change in self._pending_names:
            (synced if _directory_of(change.target) == directory else kept).append(change)
        self._pending_names = kept
        for change in synced:
            _rename(self._durable_names, change)
        if self.on_name_durable is not None:
            for change in synced:
                self.on_name_durable(change.target)

    def durable_content(self, file: str) -> bytes | None:
        """What the device holds of a file for certain, or None if it may be gone."""
        inode = self._durable_names.get(file)
        if inode is None:
            return None
        return bytes(inode.durable).ljust(inode.durable_size, b"\0")

    def is_reachable(self, inode: Inode) -> bool:
        """Whether a file has a name that no crash can take from it."""
        return any(each is inode for each in self._durable_names.values())

    def _sync(self, file: str, inode: Inode) -> None:
        pending, inode.pending = inode.pending, []
        inode.persist(pending)
        if self.on_durable is not None:
            for offset, data in pending:
                if data is not None:
                    self.on_durable(file, offset, data)

    def _list(self, path: str) -> list[str]:
        directory = path.strip("/")
        if directory not in self._directories:
            raise OSError(errors.ENOENT, f"no directory {path}")
        found = [name for name in self.names if _directory_of(name) == directory]
        found += [d for d in self._directories if d and _directory_of(d) == directory]
        return sorted(name.rpartition("/")[2] for name in found)

    def _free_bytes(self) -> int:
        return self.capacity_bytes - sum(inode.size for inode in self.names.values())

    def _require_space(self, size_bytes: int) -> None:
        if size_bytes and self._free_bytes() < size_bytes:
            told, self._on_full = self._on_full, None
            if told is not None:
                told()
            raise OSError(errors.ENOSPC, "no space left on the simulated device")


def _directory_of(name: str) -> str:
    return name.rpartition("/")[0]


def _rename(names: dict[str, Inode], change: _Name) -> None:
    if change.source is not None:
        names.pop(change.source, None)
    if change.inode is None:
        names.pop(change.target, None)
    else:
        names[change.target] = change.inode


def _put(content: bytearray, size: int, offset: int, data: bytes) -> int:
    """Write into sparse content; the size afterwards."""
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
    return max(size, offset + len(data))
