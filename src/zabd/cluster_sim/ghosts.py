"""What the checkers keep that no member can see: histories, and what disks hold for certain.

Histories are compared by chain value, which names everything before it, so each check of an order
or a prefix is one comparison.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from zabd.cluster_sim.disk_image import DiskImage, Inode
from zabd.model.ids import MemberId
from zabd.model.zxid import Zxid
from zabd.storage.epochs import EPOCHS, Epochs, decode_epochs
from zabd.zab.config import RecoveredState
from zabd.zab.log import (
    CHAIN_OFFSET,
    GENESIS,
    GENESIS_CHAIN,
    HEADER_SIZE,
    RECORD_MAGIC,
    Batch,
    LogPosition,
    RecordError,
    last_zxid,
    parse_header,
)


class Entry(NamedTuple):
    """One batch of the ledger."""

    first: Zxid
    last: Zxid
    chain: bytes


class Majority:
    """More than half of the voters, counted here and not by the code that is watched."""

    __slots__ = ("size", "voters")

    def __init__(self, voters: Collection[MemberId]) -> None:
        self.voters = frozenset(voters)
        self.size = len(self.voters) // 2 + 1

    def contains(self, members: Iterable[MemberId]) -> bool:
        """Whether these are a quorum: each counts once, and only if it is a voter."""
        return len(self.voters.intersection(members)) >= self.size

    def acked(self, values: Mapping[MemberId, int]) -> int:
        """The greatest value that a quorum has reached."""
        reached = sorted(values.get(voter, 0) for voter in self.voters)
        return reached[-self.size]


class History:
    """What a member has in memory: a committed base, and the ends of the batches after it."""

    __slots__ = ("_ends", "base")

    def __init__(self, base: LogPosition, batches: Sequence[Batch] = ()) -> None:
        self.base = base
        self._ends: dict[Zxid, bytes] = {batch.last: batch.position.chain for batch in batches}

    @property
    def last(self) -> LogPosition:
        """Where it ends."""
        if not self._ends:
            return self.base
        zxid = next(reversed(self._ends))
        return LogPosition(zxid, self._ends[zxid])

    @property
    def ends(self) -> dict[Zxid, bytes]:
        """Where each batch after the base ends, and its chain value, oldest first."""
        return self._ends

    def append(self, zxid: Zxid, chain: bytes) -> None:
        """Take one batch more."""
        self._ends[zxid] = chain

    def truncate(self, zxid: Zxid) -> None:
        """Drop what comes after `zxid`."""
        while self._ends and next(reversed(self._ends)) > zxid:
            self._ends.popitem()

    def chain_at(self, zxid: Zxid) -> bytes | None:
        """The chain value at a batch end after the base, or None."""
        return self._ends.get(zxid)

    def __contains__(self, position: object) -> bool:
        assert isinstance(position, LogPosition)
        if position.zxid <= self.base.zxid:
            return True  # the base is committed, and what is committed is compared elsewhere
        return self._ends.get(position.zxid) == position.chain


class Durable(Protocol):
    """What a checker asks of a member's disk."""

    @property
    def member(self) -> MemberId:
        """Whose it is."""

    def fresh(self) -> "Durable":
        """One for the same devices that knows nothing yet."""

    def holds(self, position: LogPosition) -> bool:
        """Whether the record that ends there, and every one before it, is durable."""

    def unreachable(self, position: LogPosition) -> str | None:
        """A file with records up to there whose name a crash could lose, if there is one."""

    def truncate(self, zxid: Zxid) -> None:
        """The member cut its log: what comes after is not there any more."""

    def restart_at(self, position: LogPosition) -> None:
        """The member's state is now a snapshot that ends there."""

    def adopt(self, found: RecoveredState) -> None:
        """A restart found this; recovery hands out nothing that is not durable."""

    def epochs(self) -> Epochs:
        """The promises on the device."""


class DurableLog:
    """What a member's disk holds for certain, kept up from the completions of its syncs."""

    __slots__ = ("_data", "_inodes", "_log", "_sound", "base", "member", "records")

    def __init__(self, member: MemberId, log: DiskImage, data: DiskImage) -> None:
        self.member = member
        self._log = log
        self._data = data
        self.base = GENESIS
        self.records: dict[bytes, tuple[Zxid, bytes]] = {}  # chain: its last zxid, the one before
        self._sound: set[bytes] = {GENESIS_CHAIN}  # chains whose whole past is durable
        self._inodes: dict[bytes, Inode] = {}  # chain: where it is, until its name is durable too
        log.on_durable = self._synced

    def fresh(self) -> "DurableLog":
        """One for the same devices that knows nothing yet."""
        return DurableLog(self.member, self._log, self._data)

    def _synced(self, file: str, _offset: int, data: bytes) -> None:
        inode = self._log.names[file]
        start = data.find(RECORD_MAGIC)
        while start >= 0:
            try:
                header = parse_header(data, start)
            except RecordError:  # the magic within something else
                start = data.find(RECORD_MAGIC, start + 1)
                continue
            end = start + HEADER_SIZE + header.length
            if end <= len(data):
                chain = data[start + CHAIN_OFFSET : start + HEADER_SIZE]
                self.records[chain] = (last_zxid(header), header.previous)
                self._inodes[chain] = inode
            start = data.find(RECORD_MAGIC, end)

    def holds(self, position: LogPosition) -> bool:
        """Whether the record that ends there, and every one before it, is durable."""
        chain, walked = position.chain, []
        if position.zxid <= self.base.zxid:
            return True
        while chain not in self._sound and chain != self.base.chain:
            found = self.records.get(chain)
            if found is None:
                return False
            walked.append(chain)
            chain = found[1]
        self._sound.update(walked)
        return True

    def unreachable(self, position: LogPosition) -> str | None:
        """A file with records up to there whose name a crash could lose, if there is one."""
        if position.chain not in self._inodes:
            return None  # found out before, or found by a restart
        for chain in list(self._inodes):
            inode = self._inodes.pop(chain)
            names = [name for name, of in self._log.names.items() if of is inode]
            if names and not self._log.is_reachable(inode):  # without a name it was deleted
                return names[0]
            if chain == position.chain:
                break
        return None

    def truncate(self, zxid: Zxid) -> None:
        """The member cut its log: what comes after is not there any more."""
        for chain in [chain for chain, (last, _) in self.records.items() if last > zxid]:
            del self.records[chain]
            self._sound.discard(chain)

    def restart_at(self, position: LogPosition) -> None:
        """The member's state is now a snapshot that ends there."""
        self.records.clear()
        self._inodes.clear()
        self._sound = {position.chain}
        self.base = position

    def adopt(self, found: RecoveredState) -> None:
        """A restart found this; recovery hands out nothing that is not durable."""
        self.restart_at(found.delivered)
        before = found.delivered.chain
        for batch in found.tail:
            chain = batch.position.chain
            self.records[chain] = (batch.last, before)
            before = chain

    def epochs(self) -> Epochs:
        """The promises on the device."""
        content = self._data.durable_content(EPOCHS)
        return Epochs(0, 0) if content is None else decode_epochs(content)
