"""What happens when jobs, appends and failures meet: order, limits, refusals at the front door."""

import errno
from hashlib import blake2b
from random import Random

import pytest
from tests.storage.crash_disk import CrashDisk
from tests.storage.members import (
    CLUSTER,
    SMALL,
    History,
    Member,
    encode_tree,
    last_of,
    zxids,
)
from tests.storage.test_faults import damage, killed, refuses, segments, snapshots

from zabd.model import DamagedError, LocalProtocolError, StorageError, Zxid
from zabd.storage import StorageConfig, segment, small_file, txn_log
from zabd.storage.disk import (
    Create,
    DiskFault,
    DiskOp,
    Rename,
    Size,
    Sync,
    SyncDir,
    Unlink,
)
from zabd.storage.epochs import Epochs, Identity, encode_epochs
from zabd.storage.log_changes import Note, _write_note
from zabd.storage.procedures import DiskError, Procedure, read_file, run
from zabd.storage.record import SEGMENT_HEADER_BYTES, SegmentHeader, encode_segment_header
from zabd.storage.snapshot_files import SYNC_BYTES
from zabd.storage.snapshots import SnapshotEncoder
from zabd.zab.log import GENESIS, LogPosition


def test_truncation_waits_for_what_was_appended_before() -> None:
    """M27: an append that was on its way may not land behind the cut."""
    history, member = History(), Member().founded()
    member.append(history.next())
    answers: list[bool] = []
    late = [history.next() for _ in range(3)]
    for batch in late:
        member.storage.append(batch.record, Zxid(0), lambda: None)
    member.storage.truncate(history.batches[0].position, answers.append)
    member.run()

    assert answers == [True]
    assert member.read_all(GENESIS) == history.batches[:1]


def test_truncation_to_the_end_of_the_log_changes_nothing() -> None:
    """The leader's position may be our own."""
    history, member = History(), Member().founded()
    assert member.truncate(GENESIS) is True
    member.append(history.next())
    before = member.disk.content()

    assert member.truncate(history.end) is True

    assert member.disk.content() == before


def test_truncation_to_before_the_log_is_refused() -> None:
    """What retention has deleted can only come back as a snapshot."""
    history, member = History(), Member().founded()
    elsewhere = History()
    for _ in range(5):
        elsewhere.next()
    member.install(elsewhere.batches)

    assert member.truncate(elsewhere.batches[2].position) is False
    assert member.truncate(history.end) is False


def test_reads_before_the_log_or_behind_its_end_find_nothing() -> None:
    """None, not [], so that a learner is not told that it has everything."""
    history, member = History(), Member().founded()
    member.append(history.next())
    answers: list[object] = []

    behind = LogPosition(Zxid.of(7, 7), b"whatever")
    member.storage.read_records(behind, 100, answers.append)
    member.install([history.next(), history.next()])
    member.storage.read_records(GENESIS, 100, answers.append)
    member.run()

    assert answers == [None, None]


def test_a_read_that_meets_a_truncation_finds_nothing() -> None:
    """What was read may be what was cut off."""
    history, member = History(), Member().founded()
    for _ in range(6):
        member.append(history.next())
    answers: list[object] = []
    found: list[object] = []

    member.storage.find_record(history.batches[3].last, found.append)
    member.storage.read_records(history.batches[0].position, 10_000, answers.append)
    member.storage._log.generation += 1  # as a truncation does when it is done
    member.run()

    assert answers == [None]
    assert found == [None]


def test_long_logs_are_searched_from_the_nearest_index_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look-up reads a window, not a whole segment; and streams go on where they were."""
    monkeypatch.setattr(segment, "INDEX_BYTES", 2000)
    monkeypatch.setattr(segment, "WINDOW_BYTES", 700)
    monkeypatch.setattr(txn_log, "CURSORS_MAX", 3)
    config = StorageConfig(segment_bytes=20_000, space_floor_bytes=0)
    history, member = History(), Member(config=config).founded()
    for _ in range(200):
        member.append(history.next(size_bytes=60))

    assert len(member.storage._log.segments[0].index) > 5
    for batch in history.batches[::13]:
        assert member.find(batch.last) == batch.position
        answers: list[object] = []
        member.storage.read_records(batch.position, 1, answers.append)
        member.run()
        assert answers[0] == history.batches[batch.last.counter :][:1]
    assert member.read_all(GENESIS, bytes_max=1000) == history.batches

    again = Member(member.disk.copy(), config)
    again.recover()
    assert again.find(history.batches[150].last) == history.batches[150].position
    assert again.read_all(history.batches[10].position) == history.batches[11:]


def test_groups_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much has gathered, one write stays of a size that a disk does in milliseconds."""
    monkeypatch.setattr(txn_log, "GROUP_BYTES_MAX", 300)
    history, member = History(), Member(config=StorageConfig()).founded()
    member.append(history.next())
    syncs = member.storage.counters.syncs
    member.append(*(history.next(size_bytes=60) for _ in range(9)))

    assert member.storage.counters.syncs - syncs == 5  # one alone, then 2 + 2 + 2 + 2
    assert member.acked == last_of(history.batches)


def test_a_record_larger_than_a_segment_gets_one_of_its_own() -> None:
    """The segment size is a habit, not a limit on what may be written."""
    history, member = History(), Member().founded()
    for size in (20, 5000, 20):
        member.append(history.next(size_bytes=size))

    again = Member(member.disk.copy())
    assert zxids(again.recover(), again.tree) == last_of(history.batches)


def test_a_segment_that_is_full_to_the_brim_can_still_be_closed_and_sealed() -> None:
    """Room for SEAL is kept free; CLEAN is left out where there is none."""
    for size in range(20, 320):
        history, member = History(), Member().founded()
        for _ in range(2):
            member.append(history.next(size_bytes=size))
        for _ in range(3):
            member.close()
            member = Member(member.disk.copy())
            member.recover()
        member.append(history.next(size_bytes=size))
        again = Member(member.disk.copy())
        assert zxids(again.recover(), again.tree) == last_of(history.batches)


def test_one_snapshot_is_written_at_a_time() -> None:
    """Two would only share the disk."""
    history, member = History(), Member().founded()
    member.append(history.next())
    writer = member.storage.snapshot_writer(history.end)
    with pytest.raises(LocalProtocolError, match="another snapshot"):
        member.storage.snapshot_writer(history.end)
    writer.abort()
    writer.abort()
    member.run()
    with pytest.raises(LocalProtocolError, match="finished or aborted"):
        writer.write(b"more", lambda: None)

    assert member.snapshot(history.batches) is None


def test_a_second_snapshot_of_the_same_tree_leaves_the_first_in_place() -> None:
    """It may be being read; the same bytes need not be written twice."""
    history, member = History(), Member().founded()
    member.append(history.next())
    member.snapshot(history.batches)
    inode = member.disk.files[snapshots(member.disk)[0]]

    assert member.snapshot(history.batches) is None

    assert member.disk.files[snapshots(member.disk)[0]] is inode
    assert not any(name.endswith(".tmp") for name in member.disk.files)


def test_a_new_transfer_takes_the_place_of_one_that_broke_off() -> None:
    """The leader may send the same snapshot again, from the beginning."""
    history, member = History(), Member().founded()
    batches = [history.next() for _ in range(3)]
    broken = member.storage.snapshot_installer(history.end)
    broken.write(b"the first ha", lambda: None)

    assert member.install(batches) is None
    again = Member(member.disk.copy())
    assert zxids(again.recover(), again.tree) == last_of(batches)


def test_without_a_snapshot_there_is_no_reader() -> None:
    """The host takes one first."""
    member = Member().founded()

    assert member.storage.snapshot_reader() is None
    assert member.storage.snapshot is None


def test_a_large_snapshot_is_synced_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's sync must never wait for all of a snapshot's bytes."""
    history, member = History(), Member(config=StorageConfig()).founded()
    member.append(history.next())
    member.disk.log.clear()
    writer = member.storage.snapshot_writer(history.end)
    for _ in range(20):
        writer.write(bytes(1 << 20), lambda: None)
    writer.write(b"", lambda: None)
    writer.finish(lambda _error: None)
    member.run()

    assert sum(isinstance(op, Sync) for op in member.disk.log) == 20 * (1 << 20) // SYNC_BYTES + 1


@pytest.mark.parametrize(
    ("kind", "jobs"),
    [
        (Rename, ("snapshot", "truncate", "install", "epochs")),
        (SyncDir, ("snapshot", "truncate", "install", "epochs")),
        (Unlink, ("truncate", "install")),
        (Sync, ("truncate", "epochs")),
        (Create, ("truncate", "epochs")),
    ],
)
def test_s9_a_failure_in_any_job_ends_the_member_once(
    kind: type[DiskOp], jobs: tuple[str, ...]
) -> None:
    """M14, M63: a change that may be half done is never reported, neither as done nor as not."""
    for job in jobs:
        history, member = History(), Member().founded()
        for _ in range(6):
            member.append(history.next())
        member.disk.fault = lambda op: errno.EIO if isinstance(op, kind) else 0
        if job == "snapshot":
            assert member.snapshot(history.batches) is not None
        elif job == "truncate":
            assert member.truncate(history.batches[2].position) is None
        elif job == "install":
            assert member.install(history.batches[:3]) is not None
        else:
            assert not member.persist_epochs(3, 3)
        assert len(member.failures) == 1, (kind, job)
        count = member.disk.count
        member.append(history.next())
        member.persist_epochs(9, 9)
        assert member.disk.count == count
        member.disk.fault = lambda _op: 0
        again = Member(member.disk.crash(Random(1)))
        found = zxids(again.recover(), again.tree)
        assert found in (last_of(history.batches[:6]), last_of(history.batches[:3]))


def test_s9_a_failing_deletion_of_old_files_ends_the_member() -> None:
    """A directory that cannot be changed any more will not take the next segment either."""
    history, member = History(), Member().founded()
    member.disk.fault = lambda op: (
        errno.EROFS if isinstance(op, Unlink) and op.file.startswith("snapshot") else 0
    )
    for _ in range(5):
        member.append(history.next())
        member.snapshot(history.batches)

    assert len(member.failures) == 1
    assert "mount its file system read-write" in str(member.failures[0])


def test_closing_after_a_failure_is_done_at_once() -> None:
    """There is nothing left that may be written."""
    history, member = History(), Member().founded()
    member.disk.fault = lambda _op: errno.EIO
    member.append(history.next())
    closed: list[bool] = []

    member.storage.close(lambda: closed.append(True))

    assert closed == [True]


def test_a_failure_while_closing_loses_nothing() -> None:
    """The marks are a convenience: the next start rewrites the tail."""
    history, member = History(), Member().founded()
    member.append(history.next())
    member.disk.fault = lambda op: errno.EIO if isinstance(op, Sync) else 0
    member.close()

    assert "close_failed" in member.events()
    again = Member(member.disk.crash(Random(3)))
    assert zxids(again.recover(), again.tree) == last_of(history.batches)


def test_closing_before_the_first_record_is_nothing_special() -> None:
    """A member may be stopped before its ensemble is founded."""
    member = Member()
    member.recover()
    member.close()

    assert Member(member.disk.copy()).recover().empty


def test_a_write_in_flight_says_when_it_began() -> None:
    """S12, F16: a disk that stalls is seen while it does, not afterwards."""
    history, member = History(), Member().founded()
    member.now_ms = 77
    member.storage.append(history.next().record, Zxid(0), lambda: None)
    assert member.storage.write_began_ms == 77

    member.run()
    assert member.storage.write_began_ms is None


def test_a_directory_belongs_to_one_ensemble_for_ever() -> None:
    """E3: the cluster id is written once."""
    member = Member().founded()

    with pytest.raises(LocalProtocolError, match="belongs to the ensemble"):
        member.storage.persist_epochs(1, 1, b"another", lambda: None)
    member.storage.persist_epochs(1, 1, CLUSTER, lambda: None)
    member.storage.persist_epochs(1, 1, None, lambda: None)
    member.run()
    fresh = Member()
    fresh.recover()
    with pytest.raises(LocalProtocolError, match="at most 32 bytes"):
        fresh.storage.persist_epochs(1, 1, bytes(33), lambda: None)


def test_f12_a_start_on_a_full_disk_says_so() -> None:
    """One sentence with advice, and nothing lost."""
    history = History()
    disk = killed(history)
    disk.fault = lambda op: errno.ENOSPC if isinstance(op, Create) else 0

    with pytest.raises(StorageError, match="No space left on device; make room"):
        Member(disk).recover()
    disk.fault = lambda _op: 0
    again = Member(disk)
    assert zxids(again.recover(), again.tree) == last_of(history.batches)


def test_f12_a_new_directory_on_a_full_disk_says_so() -> None:
    """The very first start meets it too."""
    disk = CrashDisk()
    disk.fault = lambda op: errno.ENOSPC if isinstance(op, Create) else 0

    with pytest.raises(StorageError, match="No space left on device; make room"):
        Member(disk).recover()


def test_a_current_epoch_above_the_accepted_one_is_refused() -> None:
    """S19: no member writes that."""
    disk = killed(History())
    damage(disk, "epochs", encode_epochs(Epochs(1, 2)))

    refuses(disk, "a current epoch 2 above the accepted epoch 1")


def test_records_of_an_epoch_that_was_never_accepted_are_refused() -> None:
    """F20: the promise came before the record."""
    history, member = History(), Member().founded(epoch=4)
    member.append(history.next(epoch=4))
    disk = member.disk.copy()
    damage(disk, "epochs", encode_epochs(Epochs(3, 3)))

    refuses(disk, "older than the log")


def test_a_later_format_of_the_log_is_refused() -> None:
    """S22: an older zabd must not guess."""
    history = History()
    disk = killed(history, records=1)
    data = bytearray(disk.files["log.00000001"].data)
    body_bytes = SEGMENT_HEADER_BYTES - 8
    data[9] = 2
    data[body_bytes:SEGMENT_HEADER_BYTES] = blake2b(data[:body_bytes], digest_size=8).digest()
    damage(disk, "log.00000001", bytes(data))

    refuses(disk, "the log has format 2 and this zabd reads 1", StorageError)


def test_a_log_whose_segments_do_not_join_is_refused() -> None:
    """R2: the chain runs across segments."""
    history = History()
    disk = killed(history)
    file = segments(disk)[2]
    data = bytes(disk.files[file].data)
    header = SegmentHeader(3, Identity(1, CLUSTER), history.end, len(data))
    damage(disk, file, encode_segment_header(header) + data[SEGMENT_HEADER_BYTES:])

    refuses(disk, "does not go on where it ends")


@pytest.mark.parametrize(
    "note",
    [
        Note("truncate", LogPosition(Zxid.of(1, 2), b"elsewher"), 1),
        Note("truncate", LogPosition(Zxid.of(1, 2), b"elsewher"), 99),
    ],
)
def test_a_noted_change_that_does_not_fit_the_log_is_refused(note: Note) -> None:
    """Only damage can bring a note and a log together that do not belong together."""
    disk = killed(History())
    [_, write, *_] = _write_note(note)
    damage(disk, "intent", write.data)  # type: ignore[union-attr, arg-type]

    with pytest.raises(DamagedError, match="log"):
        Member(disk).recover()


def test_a_noted_cut_of_a_segment_without_a_header_is_refused() -> None:
    """There is nothing to be cut."""
    history = History()
    disk = killed(history)
    [_, write, *_] = _write_note(Note("truncate", history.batches[0].position, 1))
    damage(disk, "intent", write.data)  # type: ignore[union-attr, arg-type]
    damage(disk, "log.00000001", bytes(700))

    with pytest.raises(DamagedError, match="has no header"):
        Member(disk).recover()


def test_a_snapshot_of_a_later_format_or_with_blocks_left_out_counts_as_damaged() -> None:
    """Each part may be whole by itself and the file still not be what was written."""
    history, member = History(), Member(config=SMALL).founded()
    for _ in range(2):
        member.append(history.next())
    encoder = SnapshotEncoder(history.end, CLUSTER)
    blocks = [b"".join(encoder.blocks(piece)) for piece in (b"4294967297,", b"4294967298")]
    whole = [encoder.header, *blocks, encoder.footer()]
    member.disk = member.disk.copy()
    name = f"snapshot.{int(history.end.zxid):016x}"
    later = bytearray(encoder.header)
    later[9] = 2
    later[-8:] = blake2b(later[:-8], digest_size=8).digest()
    variants = [
        whole,
        [whole[0], whole[1], whole[3]],
        [whole[0], whole[2], whole[1], whole[3]],
        [whole[0], whole[3]],
        [whole[0]],
        [bytes(later), *whole[1:]],
    ]
    usable = []
    for parts in variants:
        disk = member.disk.copy()
        damage(disk, name, b"".join(parts))
        again = Member(disk)
        assert zxids(again.recover(), again.tree) == last_of(history.batches)
        usable.append(again.storage.snapshot is not None)

    assert usable == [True] + [False] * 5


def test_a_small_file_is_text_that_an_operator_can_read() -> None:
    """`cat epochs` answers the question on the telephone."""
    data = encode_epochs(Epochs(5, 4))

    assert data.decode().splitlines()[:3] == ["zabd epochs 1", "accepted 5", "current 4"]
    assert small_file.decode("epochs", data)["current"] == "4"


def test_a_procedure_that_needs_no_disk_is_done_at_once() -> None:
    """Its value or its error, as if it had needed one."""

    def value() -> Procedure[int]:
        return 7
        yield

    def error() -> Procedure[int]:
        raise StorageError("no")
        yield

    answers: list[object] = []
    run(value(), answers.append)
    run(error(), answers.append)

    assert answers[0] == 7
    assert isinstance(answers[1], StorageError)


def test_a_file_whose_size_cannot_be_read_is_damaged() -> None:
    """F14."""
    disk = CrashDisk()
    answers: list[object] = []

    run(read_file(disk, "missing"), answers.append)
    disk.run()

    assert isinstance(answers[0], DamagedError)


def test_a_disk_error_says_what_failed_and_what_to_do() -> None:
    """One sentence for each error an operator can do something about."""
    sentences = {
        number: str(DiskError(DiskFault(Size("log.00000001"), number, "reason")))
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.EIO)
    }

    assert all(
        text.startswith("Size of log.00000001 failed: reason; ") for text in sentences.values()
    )
    assert len(set(sentences.values())) == 5
    assert str(DiskError(DiskFault(SyncDir(), errno.EIO, "x"))).startswith("SyncDir failed")


def test_an_empty_tree_has_a_snapshot_too() -> None:
    """No content is content."""
    history, member = History(), Member().founded()
    member.append(history.next())
    writer = member.storage.snapshot_writer(history.end)
    writer.write(encode_tree([]), lambda: None)
    writer.finish(lambda _error: None)
    member.run()

    again = Member(member.disk.copy())
    again.recover()
    assert again.storage.snapshot == history.end
