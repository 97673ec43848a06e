"""A member's storage as the tests drive it: histories of small records, and what comes back."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.storage.crash_disk import CrashDisk

from zabd.model import StorageError, Zxid
from zabd.storage import Recovered, Storage, StorageConfig
from zabd.zab.log import GENESIS, Batch, LogPosition, frame_record

CLUSTER = bytes(range(16))
SMALL = StorageConfig(segment_bytes=700, space_floor_bytes=0)


class History:
    """The records of an ensemble, each following the one before."""

    def __init__(self, start: LogPosition = GENESIS) -> None:
        self.base = start
        self.batches: list[Batch] = []

    @property
    def end(self) -> LogPosition:
        return self.batches[-1].position if self.batches else self.base

    def next(self, epoch: int = 1, count: int = 1, size_bytes: int = 20) -> Batch:
        end = self.end
        counter = end.zxid.counter + 1 if end.zxid.epoch == epoch else 1
        first = Zxid.of(epoch, counter)
        payload = f"{first!r} ".encode().ljust(size_bytes, b".")
        batch = Batch(first, count, frame_record(first, count, payload, end.chain))
        self.batches.append(batch)
        return batch

    def cut(self, position: LogPosition) -> None:
        while self.end != position:
            self.batches.pop()


@dataclass
class Tree:
    """A tree that is the list of the zxids it has applied, and a sink that rebuilds it."""

    zxids: list[int] = field(default_factory=list)
    position: LogPosition = GENESIS
    loading: bytes = b""
    loading_position: LogPosition = GENESIS

    def begin_anew(self) -> None:
        self.zxids, self.position = [], GENESIS

    def begin_snapshot(self, position: LogPosition) -> None:
        self.loading, self.loading_position = b"", position

    def snapshot_chunk(self, chunk: bytes) -> None:
        self.loading += chunk

    def end_snapshot(self) -> None:
        self.zxids = decode_tree(self.loading)
        self.position = self.loading_position

    def record(self, batch: Batch) -> None:
        assert batch.first > self.position.zxid, "a record comes once, after the snapshot"
        self.zxids.append(int(batch.last))
        self.position = batch.position


def encode_tree(batches: list[Batch]) -> bytes:
    """The content of the snapshot after these batches."""
    return ",".join(str(int(batch.last)) for batch in batches).encode()


def decode_tree(content: bytes) -> list[int]:
    """The zxids in a snapshot's content."""
    return [int(zxid) for zxid in content.split(b",") if zxid]


class Member:
    """Storage on a crash disk, with what it said."""

    def __init__(
        self,
        disk: CrashDisk | None = None,
        config: StorageConfig = SMALL,
        log_disk: CrashDisk | None = None,
    ) -> None:
        self.disk = disk or CrashDisk()
        self.log_disk = log_disk or self.disk
        self.now_ms = 0
        self.trace: list[tuple[str, Mapping[str, object]]] = []
        self.failures: list[StorageError] = []
        self.tree = Tree()
        self.storage = Storage(
            self.disk,
            self.log_disk,
            config,
            lambda: self.now_ms,
            lambda event, fields: self.trace.append((event, fields)),
        )
        self.storage.on_failure = self.failures.append
        self.acked: list[Zxid] = []

    def run(self) -> None:
        self.disk.run()
        if self.log_disk is not self.disk:
            self.log_disk.run()
            while self._any_left():
                self.disk.run()
                self.log_disk.run()

    def _any_left(self) -> bool:
        disks = (self.disk, self.log_disk)
        return not any(d.halted for d in disks) and any(any(d._queues.values()) for d in disks)

    def recover(self, member_id: int = 1, cluster_id: bytes | None = None) -> Recovered:
        """What recovery found; raises what it refused with. Needs a disk that does not halt."""
        result = self.try_recover(member_id, cluster_id)
        if isinstance(result, StorageError):
            raise result
        assert result is not None
        return result

    def try_recover(
        self, member_id: int = 1, cluster_id: bytes | None = None
    ) -> Recovered | StorageError | None:
        results: list[Recovered | StorageError] = []
        self.storage.recover(self.tree, member_id, cluster_id, results.append)
        self.run()
        return results[0] if results else None

    def founded(self, epoch: int = 1) -> "Member":
        """Recovered from an empty directory, with a cluster id and an epoch."""
        self.recover()
        self.persist_epochs(epoch, epoch)
        return self

    def persist_epochs(self, accepted: int, current: int, cluster_id: bytes = CLUSTER) -> bool:
        done: list[bool] = []
        self.storage.persist_epochs(accepted, current, cluster_id, lambda: done.append(True))
        self.run()
        return bool(done)

    def append(self, *batches: Batch, committed: int = 0) -> None:
        """Append the batches together and let the disk work."""
        for batch in batches:
            self.storage.append(
                batch.record, Zxid(committed), lambda batch=batch: self.acked.append(batch.last)
            )
        self.run()

    def truncate(self, position: LogPosition) -> bool | None:
        done: list[bool] = []
        self.storage.truncate(position, done.append)
        self.run()
        return done[0] if done else None

    def snapshot(self, batches: list[Batch]) -> StorageError | None:
        """Write a snapshot of the tree after these batches."""
        return self._write(self.storage.snapshot_writer(batches[-1].position), encode_tree(batches))

    def install(self, batches: list[Batch]) -> StorageError | None:
        """Take the snapshot of the tree after these batches from a leader."""
        writer = self.storage.snapshot_installer(batches[-1].position)
        return self._write(writer, encode_tree(batches))

    def _write(self, writer: object, content: bytes) -> StorageError | None:
        results: list[StorageError | None] = []
        writer.write(content[: len(content) // 2], lambda: None)  # type: ignore[attr-defined]
        writer.write(content[len(content) // 2 :], lambda: None)  # type: ignore[attr-defined]
        writer.finish(results.append)  # type: ignore[attr-defined]
        self.run()
        return results[0] if results else StorageError("it never ended")

    def close(self) -> None:
        self.storage.close(lambda: None)
        self.run()

    def read_all(self, after: LogPosition, bytes_max: int = 200) -> list[Batch]:
        found: list[Batch] = []
        while True:
            answers: list[list[Batch] | None] = []
            self.storage.read_records(after, bytes_max, answers.append)
            self.run()
            [batches] = answers
            assert batches is not None
            if not batches:
                return found
            found += batches
            after = batches[-1].position

    def find(self, zxid: int) -> LogPosition | None:
        answers: list[LogPosition | None] = []
        self.storage.find_record(zxid, answers.append)
        self.run()
        return answers[0]

    def events(self) -> list[str]:
        return [event for event, _ in self.trace]


def zxids(recovered: Recovered, tree: Tree) -> list[int]:
    """The whole history that a member starts from: its tree, then its tail."""
    return [*tree.zxids, *(int(batch.last) for batch in recovered.tail)]


def last_of(batches: list[Batch]) -> list[int]:
    """The history as `zxids` gives it."""
    return [int(batch.last) for batch in batches]
