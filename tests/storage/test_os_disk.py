"""The machine's own file system behind the Disk protocol, on real files."""

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue

import pytest
from tests.storage.members import CLUSTER, History, Tree, last_of, zxids

from zabd.model import StorageError, Zxid
from zabd.storage import OsDisk, Recovered, Storage, StorageConfig, os_disk
from zabd.storage.disk import (
    Create,
    DiskOp,
    DiskOutcome,
    DiskResult,
    FreeSpace,
    Lane,
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

PATIENCE_S = 30


class Owner:
    """The loop's stand-in: runs on the test's thread what the disk's threads post."""

    def __init__(self) -> None:
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.put(callback)

    def run_until(self, met: Callable[[], bool]) -> None:
        while not met():
            self._posted.get(timeout=PATIENCE_S)()

    def perform(self, disk: OsDisk, *ops: DiskOp, lane: Lane = Lane.LOG) -> DiskOutcome:
        outcomes: list[DiskOutcome] = []
        disk.submit(ops, outcomes.append, lane)
        assert not outcomes, "K3: never from within submit"
        self.run_until(lambda: bool(outcomes))
        return outcomes[0]


@pytest.fixture
def owner() -> Owner:
    """Who submits, and is called back."""
    return Owner()


@pytest.fixture
def disk(tmp_path: Path, owner: Owner) -> Iterator[OsDisk]:
    """An open disk in a directory that it made itself."""
    disk = OsDisk(str(tmp_path / "deep" / "data"), owner.post)
    yield disk
    disk.close()


def results(outcome: DiskOutcome) -> Sequence[DiskResult]:
    """The results of a list that was done as a whole."""
    assert outcome.error is None
    return outcome.results


def test_what_is_written_can_be_read(disk: OsDisk, owner: Owner) -> None:
    """Every operation does what its name says."""
    assert results(
        owner.perform(
            disk,
            Create("a", 100),
            WriteAt("a", 10, b"hello"),
            WriteAt("a", 15, [b" ", b"wor", b"ld"]),
            Sync("a"),
            SyncDir(),
            Read("a", 10, 11),
            Read("a", 95, 50),
            Size("a"),
            List(),
            Rename("a", "b"),
            Truncate("b", 12),
            Read("b", 0, 1000),
            MakeDir("c"),
            MakeDir("c"),
            List("c"),
            SyncDir("c"),
            Release("b"),
            Release("nothing"),
            Unlink("b"),
            List(),
        )
    ) == [
        *[None] * 5,
        b"hello world",
        bytes(5),
        100,
        ["a"],
        None,
        None,
        bytes(10) + b"he",
        None,
        None,
        [],
        *[None] * 4,
        ["c"],
    ]


def test_free_space_is_what_the_file_system_says(disk: OsDisk, owner: Owner) -> None:
    """S11 compares it with a floor in bytes."""
    [free] = results(owner.perform(disk, FreeSpace()))

    assert isinstance(free, int)
    assert free > 0


def test_a_list_stops_at_its_first_failure(disk: OsDisk, owner: Owner) -> None:
    """K1: what comes after may depend on what failed."""
    outcome = owner.perform(disk, Create("a"), Size("missing"), Create("b"))

    assert outcome.results == [None]
    assert outcome.error is not None
    assert (outcome.error.op, outcome.error.errno) == (Size("missing"), errno.ENOENT)
    assert results(owner.perform(disk, List())) == [["a"]]


def test_an_existing_file_is_never_created_again(disk: OsDisk, owner: Owner) -> None:
    """What is there may be all that is left of something."""
    owner.perform(disk, Create("a"), WriteAt("a", 0, b"precious"))

    outcome = owner.perform(disk, Create("a", 10))

    assert outcome.error is not None
    assert outcome.error.errno == errno.EEXIST
    assert results(owner.perform(disk, Read("a", 0, 10))) == [b"precious"]


def test_lists_of_one_lane_are_done_in_order(disk: OsDisk, owner: Owner) -> None:
    """K2: the log's writes must not overtake each other."""
    done: list[int] = []
    disk.submit([Create("a")], lambda _outcome: done.append(-1))
    for at in range(200):
        write = WriteAt("a", 0, str(at).encode())
        disk.submit([write], lambda _outcome, at=at: done.append(at))

    owner.run_until(lambda: len(done) == 201)

    assert done == [-1, *range(200)]
    assert results(owner.perform(disk, Read("a", 0, 10))) == [b"199"]


def test_a_write_of_more_buffers_than_one_call_takes_is_whole(disk: OsDisk, owner: Owner) -> None:
    """A group may have thousands of batches."""
    buffers = [bytes([at % 251]) * (at % 7) for at in range(5000)]

    owner.perform(disk, Create("a"), WriteAt("a", 3, buffers))

    assert results(owner.perform(disk, Read("a", 3, 1 << 20))) == [b"".join(buffers)]


def test_f15_a_short_write_is_finished(
    disk: OsDisk, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may write fewer bytes than it was given: never a hole."""
    pwrite, pwritev = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, bufs, at: pwritev(fd, [bufs[0][:2]], at))
    text = b"a sentence that takes several calls to be written down"

    owner.perform(disk, Create("a"), WriteAt("a", 0, [text[:20], text[20:]]))

    assert results(owner.perform(disk, Read("a", 0, 100))) == [text]


def test_f15_a_short_write_that_cannot_be_finished_is_a_failure(
    disk: OsDisk, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9, not a hole."""
    monkeypatch.setattr(os, "pwrite", lambda *_args: 0)
    monkeypatch.setattr(os, "pwritev", lambda *_args: 2)

    outcome = owner.perform(disk, Create("a"), WriteAt("a", 0, b"abc"))

    assert outcome.error is not None
    assert outcome.error.errno == errno.EIO


class Calls:
    """What is asked of the kernel, in its order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        pwritev, fdatasync = os.pwritev, os.fdatasync

        def write(fd: int, buffers: list[bytes], at: int, flags: int = 0) -> int:
            self.made.append("durable write" if flags & os.RWF_DSYNC else "write")
            return pwritev(fd, buffers, at, flags)

        def sync(fd: int) -> None:
            self.made.append("sync")
            fdatasync(fd)

        monkeypatch.setattr(os, "pwritev", write)
        monkeypatch.setattr(os, "fdatasync", sync)

    def take(self) -> list[str]:
        """Those since the last time."""
        made, self.made = self.made, []
        return made


@pytest.mark.skipif(not hasattr(os, "RWF_DSYNC"), reason="Linux has it, others may not")
def test_a_write_and_its_sync_are_one_call_only_where_nothing_else_is_unsynced(
    disk: OsDisk, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K6: a durable write covers itself alone; a sync covers all that came before it."""
    calls = Calls(monkeypatch)
    pair = (WriteAt("a", 0, [b"ab", b"c"]), Sync("a"))

    owner.perform(disk, Create("a", 4096), *pair)
    assert calls.take() == ["write", "sync"]  # the new file's size has to become durable as well
    owner.perform(disk, *pair, WriteAt("a", 9, b"d"), *pair, *pair)
    assert calls.take() == ["durable write", "write", "write", "sync", "durable write"]
    owner.perform(disk, WriteAt("a", 0, b"x"))
    owner.perform(disk, *pair, lane=Lane.BULK)
    assert calls.take() == ["write", "write", "sync"]
    owner.perform(disk, Truncate("a", 2), *pair, WriteAt("a", 5, b"y"), Rename("a", "b"))
    assert calls.take() == ["write", "sync", "write"]
    owner.perform(disk, WriteAt("b", 0, b"x"), Sync("b"), WriteAt("b", 1, b"x"), Sync("b"))
    assert calls.take() == ["write", "sync", "durable write"]
    owner.perform(disk, Create("c"), Sync("c"), WriteAt("c", 0, [b"."] * 1025), Sync("c"))
    assert calls.take() == ["sync", "write", "write", "sync"]  # more than one call takes


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_a_durable_write_is_unknown_it_is_a_write_and_a_sync(
    disk: OsDisk, owner: Owner, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Asked once; other errors of it are the disk's."""
    owner.perform(disk, Create("a"), Sync("a"))
    calls = Calls(monkeypatch)
    pwritev = os.pwritev

    def refuse(fd: int, buffers: list[bytes], at: int, flags: int = 0) -> int:
        if flags:
            raise OSError(number, "not here")
        return pwritev(fd, buffers, at, flags)

    monkeypatch.setattr(os, "pwritev", refuse)
    pair = (WriteAt("a", 0, b"abc"), Sync("a"))

    assert results(owner.perform(disk, *pair, *pair)) == [None] * 4
    assert calls.take() == ["write", "sync"] * 2


def test_f13_a_durable_write_that_fails_spoils_its_file(
    disk: OsDisk, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4: nothing is tried again, in one call or in two."""
    owner.perform(disk, Create("a"), Sync("a"))

    def fail(*_args: object) -> None:
        raise OSError(errno.EIO, "the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", fail)
        first = owner.perform(disk, WriteAt("a", 0, b"abc"), Sync("a"))
    assert first.error is not None

    for again in ((WriteAt("a", 0, b"x"), Sync("a")), (Sync("a"),)):
        outcome = owner.perform(disk, *again)
        assert outcome.error is not None
        assert outcome.error.errno == errno.EIO


def test_f15_a_short_durable_write_is_done_again(
    disk: OsDisk, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and then synced."""
    owner.perform(disk, Create("a"), Sync("a"))
    calls = Calls(monkeypatch)
    pwritev = os.pwritev

    def shorten(fd: int, buffers: list[bytes], at: int, flags: int = 0) -> int:
        return pwritev(fd, [buffers[0][:1]] if flags else buffers, at, flags)

    monkeypatch.setattr(os, "pwritev", shorten)
    outcome = owner.perform(disk, WriteAt("a", 0, [b"ab", b"c"]), Sync("a"), Read("a", 0, 9))

    assert results(outcome) == [None, None, b"abc"]
    assert calls.take() == ["durable write", "write", "sync"]


def test_a_short_read_goes_on_to_the_end(
    disk: OsDisk, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer bytes than asked for may only mean that the file ends."""
    pread = os.pread
    owner.perform(disk, Create("a"), WriteAt("a", 0, bytes(range(100))))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 7), at))

    assert results(owner.perform(disk, Read("a", 0, 1000))) == [bytes(range(100))]


@pytest.mark.parametrize("op", [WriteAt("a", 0, b"x"), Sync("a"), Truncate("a", 1)])
def test_f13_a_file_that_failed_once_is_not_written_or_synced_again(
    disk: OsDisk, owner: Owner, monkeypatch: pytest.MonkeyPatch, op: DiskOp
) -> None:
    """M56, K4: after a failed fsync the next one reports success for pages that are lost."""

    def fail(*_args: object) -> None:
        raise OSError(errno.EIO, "the device is gone")

    owner.perform(disk, Create("a"), WriteAt("a", 0, b"abc"))
    with monkeypatch.context() as patch:
        for name in ("pwritev", "fdatasync", "ftruncate"):
            patch.setattr(os, name, fail)
        first = owner.perform(disk, op)
    assert first.error is not None

    for again in (WriteAt("a", 0, b"x"), Sync("a"), Truncate("a", 1), Rename("a", "b")):
        for lane in Lane:
            outcome = owner.perform(disk, again, lane=lane)
            assert outcome.error is not None
            assert outcome.error.errno == errno.EIO


def test_f12_reserving_more_than_there_is_fails_at_once(disk: OsDisk, owner: Owner) -> None:
    """S11: space is reserved before anything is promised on it."""
    outcome = owner.perform(disk, Create("a", 1 << 60))

    assert outcome.error is not None
    assert outcome.error.errno in {errno.ENOSPC, errno.EFBIG}


def test_f24_a_second_process_cannot_have_the_directory(
    disk: OsDisk, tmp_path: Path, owner: Owner
) -> None:
    """S22: two processes on one log would each destroy what the other acknowledged."""
    with pytest.raises(StorageError, match="in use by another process"):
        OsDisk(str(tmp_path / "deep" / "data"), owner.post)


def test_f24_the_lock_goes_with_the_process(tmp_path: Path, owner: Owner) -> None:
    """A killed member can be started again at once: nothing is left to be cleaned up by hand."""
    program = (
        "import sys, os, signal\n"
        "from zabd.storage import OsDisk\n"
        "OsDisk(sys.argv[1], lambda _callback: None)\n"
        "print('open', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = str(tmp_path / "data")
    killed = subprocess.run(
        [sys.executable, "-c", program, root], capture_output=True, text=True, check=False
    )
    assert killed.stdout == "open\n"

    OsDisk(root, owner.post).close()


def test_the_directory_and_its_files_are_closed_to_other_users(
    disk: OsDisk, tmp_path: Path, owner: Owner
) -> None:
    """The log holds everybody's data and the ensemble's secret."""
    owner.perform(disk, Create("a"))

    root = tmp_path / "deep" / "data"
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o600


def test_a_directory_that_others_can_read_is_closed_to_them(tmp_path: Path, owner: Owner) -> None:
    """It is ours, so it is put right, and said."""
    events: list[tuple[str, object]] = []
    tmp_path.chmod(0o755)

    OsDisk(str(tmp_path), owner.post, lambda event, fields: events.append((event, fields))).close()

    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert events == [
        ("data_directory_closed_to_others", {"directory": str(tmp_path), "mode": "0755"})
    ]


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose permissions these are is not ours to decide."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    with pytest.raises(StorageError, match="runs as 12345"):
        OsDisk(str(tmp_path), owner.post)


def test_f19_a_directory_that_cannot_be_written_is_refused(
    tmp_path: Path, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only file system is seen at the start, with advice, not at the first write."""
    monkeypatch.setattr(os, "access", lambda *_args: False)

    with pytest.raises(StorageError, match="mount its file system read-write"):
        OsDisk(str(tmp_path), owner.post)


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path, owner: Owner) -> None:
    """One sentence, no traceback of an OSError."""
    (tmp_path / "data").write_text("a file")

    with pytest.raises(StorageError, match="cannot be opened as a data directory"):
        OsDisk(str(tmp_path / "data"), owner.post)


def test_systems_without_the_linux_calls_are_served_by_the_portable_ones(
    disk: OsDisk, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MacOS has no fdatasync, posix_fallocate or posix_fadvise."""
    for name in ("fdatasync", "posix_fallocate", "posix_fadvise"):
        monkeypatch.delattr(os_disk.os, name)

    ops = (Create("a", 50), WriteAt("a", 0, b"abc"), Sync("a"), Size("a"), Release("a"))
    assert results(owner.perform(disk, *ops)) == [None, None, None, 50, None]


def test_no_memory_for_a_read_is_a_failure_of_the_read(
    disk: OsDisk, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F34: a thread that dies of it would leave the member waiting for ever."""

    def exhausted(*_args: object) -> None:
        raise MemoryError

    owner.perform(disk, Create("a"), WriteAt("a", 0, b"abc"))
    monkeypatch.setattr(os, "pread", exhausted)

    outcome = owner.perform(disk, Read("a", 0, 10))

    assert outcome.error is not None
    assert outcome.error.errno == errno.ENOMEM


def test_f34_too_many_open_files_is_a_failure_like_any_other(
    disk: OsDisk, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9 names EMFILE: the member stops, and a restart loses nothing."""

    def exhausted(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "open", exhausted)

    outcome = owner.perform(disk, Create("a"))

    assert outcome.error is not None
    assert outcome.error.errno == errno.EMFILE


def test_a_loop_that_is_closed_ends_the_threads(tmp_path: Path) -> None:
    """Nobody is left to be told; the process must still be able to end."""

    def closed(_callback: Callable[[], None]) -> None:
        raise RuntimeError("Event loop is closed")

    disk = OsDisk(str(tmp_path), closed)
    disk.submit([Create("a")], lambda _outcome: None)
    disk.close()

    assert (tmp_path / "a").exists()


def test_a_device_that_does_not_answer_keeps_nobody_waiting(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process must be able to end; nobody else has the directory while a write may follow."""
    answer = threading.Event()

    def hang(_descriptor: int) -> None:
        answer.wait()

    monkeypatch.setattr(os_disk, "_fdatasync", hang)
    root = str(tmp_path / "data")
    disk = OsDisk(root, owner.post)
    disk.submit([Create("a"), Sync("a"), WriteAt("a", 0, b"late")], lambda _outcome: None)

    disk.close_soon()
    with pytest.raises(StorageError, match="in use"):
        OsDisk(root, owner.post)
    answer.set()
    disk.wait_closed()

    assert (tmp_path / "data" / "a").read_bytes() == b"late"
    OsDisk(root, owner.post).close()


class RealMember:
    """Storage on an OsDisk."""

    def __init__(self, root: Path, owner: Owner) -> None:
        self.owner = owner
        self.disk = OsDisk(str(root), owner.post)
        self.tree = Tree()
        config = StorageConfig(segment_bytes=4096, space_floor_bytes=0)
        self.storage = Storage(self.disk, self.disk, config, lambda: 0)
        self.recovered = self._recover()

    def _recover(self) -> Recovered:
        answers: list[Recovered | StorageError] = []
        self.storage.recover(self.tree, 1, None, answers.append)
        self.owner.run_until(lambda: bool(answers))
        [recovered] = answers
        assert isinstance(recovered, Recovered)
        return recovered

    def wait_for(self, ask: Callable[[Callable[..., None]], None]) -> None:
        done: list[object] = []
        ask(lambda *answer: done.append(answer))
        self.owner.run_until(lambda: bool(done))

    def append(self, history: History, count: int) -> None:
        acked: list[int] = []
        for _ in range(count):
            record = history.next().record
            self.storage.append(record, Zxid(0), lambda: acked.append(1))
        self.owner.run_until(lambda: len(acked) == count)


def test_a_member_lives_on_real_files(tmp_path: Path, owner: Owner) -> None:
    """The same code as on the disk in memory: several segments, a snapshot, a cut, a restart."""
    history = History()
    member = RealMember(tmp_path, owner)
    member.wait_for(lambda done: member.storage.persist_epochs(1, 1, CLUSTER, done))
    member.append(history, 100)
    writer = member.storage.snapshot_writer(history.batches[49].position)
    content = ",".join(str(int(batch.last)) for batch in history.batches[:50]).encode()
    member.wait_for(lambda done: writer.write(content, done))
    member.wait_for(writer.finish)
    keep = history.batches[79].position
    member.wait_for(lambda done: member.storage.truncate(keep, done))
    history.cut(keep)
    member.append(history, 5)
    member.wait_for(member.storage.close)
    member.disk.close()

    again = RealMember(tmp_path, owner)

    assert zxids(again.recovered, again.tree) == last_of(history.batches)
    assert again.storage.snapshot == history.batches[49].position
    assert again.tree.position == history.batches[49].position
    again.disk.close()
