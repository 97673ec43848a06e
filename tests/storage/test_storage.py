"""The front door on a disk in memory: append, read, truncate, epochs, snapshots, restart."""

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

from zabd.model import LocalProtocolError, StorageError, Zxid
from zabd.storage import StorageConfig
from zabd.storage.disk import Lane, Sync, WriteAt
from zabd.zab.log import GENESIS, LogPosition


def test_a_new_directory_is_empty_and_promises_nothing() -> None:
    """S21: an empty directory is told apart from one with a history, however short."""
    recovered = Member().recover()

    assert recovered.empty
    assert recovered.delivered == GENESIS
    assert (recovered.accepted_epoch, recovered.current_epoch, recovered.cluster_id) == (0, 0, None)


def test_what_was_appended_comes_back_after_a_restart() -> None:
    """The plainest promise: a record that was acknowledged is there."""
    history, member = History(), Member().founded()
    for _ in range(12):
        member.append(history.next())

    again = Member(member.disk.copy())
    recovered = again.recover()

    assert member.acked == last_of(history.batches)
    assert zxids(recovered, again.tree) == last_of(history.batches)
    assert recovered.cluster_id == CLUSTER
    assert (recovered.accepted_epoch, recovered.current_epoch) == (1, 1)


def test_only_what_is_known_to_be_committed_reaches_the_tree() -> None:
    """An election may still throw the tail away, so it never becomes part of the tree."""
    history, member = History(), Member().founded()
    first, second, third = history.next(), history.next(), history.next()
    member.append(first)
    member.append(second)
    member.append(third, committed=second.last)

    again = Member(member.disk.copy())
    recovered = again.recover()

    assert again.tree.zxids == [first.last, second.last]
    assert recovered.delivered == second.position
    assert recovered.tail == (third,)


def test_a_commit_is_not_believed_before_the_record_is_durable_here() -> None:
    """A quorum may commit a record before this member's own disk has it: the mark then waits."""
    history, member = History(), Member().founded()
    first = history.next()
    member.append(first, committed=first.last)

    again = Member(member.disk.copy())
    recovered = again.recover()

    assert again.tree.zxids == []
    assert recovered.tail == (first,)


def test_batches_that_gather_while_a_sync_runs_share_the_next_one() -> None:
    """Group commit: one write and one fdatasync, however many batches have come meanwhile."""
    history, member = History(), Member(config=StorageConfig()).founded()
    member.append(history.next())
    member.disk.log.clear()

    member.append(*(history.next() for _ in range(4)))

    writes = [op for op in member.disk.log if isinstance(op, WriteAt)]
    assert [len(op.data) for op in writes] == [2, 4]  # a mark and a record; a mark and three
    assert sum(isinstance(op, Sync) for op in member.disk.log) == 2
    assert member.acked == last_of(history.batches)


def test_what_a_turn_appends_is_one_write_at_its_end() -> None:
    """A host that works in turns costs one write and one sync a turn, and none before its end."""
    history, member = History(), Member(config=StorageConfig()).founded()
    member.append(history.next())
    member.disk.log.clear()
    member.storage.write_in_turns()

    batches = [history.next() for _ in range(3)]
    member.append(*batches)
    assert member.disk.log == []
    assert member.storage.unwritten_bytes == sum(len(batch.record) for batch in batches)
    member.storage.flush()
    member.run()
    assert member.storage.unwritten_bytes == 0

    [write] = [op for op in member.disk.log if isinstance(op, WriteAt)]
    assert len(write.data) == 4  # a mark and three records
    assert member.acked == last_of(history.batches)


def test_a_change_of_the_log_does_not_wait_for_the_end_of_a_turn() -> None:
    """What was appended before it is written first, whoever asks and when."""
    history, member = History(), Member(config=StorageConfig()).founded()
    member.storage.write_in_turns()
    first, second = history.next(), history.next()
    member.append(first, second)

    assert member.truncate(first.position) is True
    assert member.acked == [first.last, second.last]


def test_closing_writes_what_waits_for_the_end_of_a_turn() -> None:
    """A member that stops in order leaves nothing behind that it was asked to keep."""
    history, member = History(), Member(config=StorageConfig()).founded()
    member.storage.write_in_turns()
    member.append(history.next())

    member.close()

    again = Member(member.disk.copy())
    assert zxids(again.recover(), again.tree) == last_of(history.batches)


def test_a_record_that_does_not_follow_is_refused_at_once() -> None:
    """L2: a gap must never reach the disk."""
    history, member = History(), Member().founded()
    history.next()

    with pytest.raises(LocalProtocolError, match="does not follow"):
        member.append(history.next())


def test_records_can_be_read_from_any_point_across_segments() -> None:
    """A learner that is far behind is served from the log on disk."""
    history, member = History(), Member().founded()
    for _ in range(20):
        member.append(history.next())

    assert sum(name.startswith("log.") for name in member.disk.files) > 3
    for at, batch in enumerate(history.batches):
        assert member.read_all(batch.position) == history.batches[at + 1 :]
    assert member.read_all(GENESIS) == history.batches


def test_a_point_of_another_history_is_not_read_from() -> None:
    """The zxid alone does not say that two logs agree: the chain value does."""
    history, member = History(), Member().founded()
    for _ in range(4):
        member.append(history.next())
    answers: list[object] = []

    elsewhere = LogPosition(history.batches[1].last, b"elsewher")
    member.storage.read_records(elsewhere, 100, answers.append)
    member.run()

    assert answers == [None]


def test_a_record_is_found_by_any_zxid_at_or_after_its_end() -> None:
    """DIFF or TRUNC is decided by the greatest boundary at or before a learner's zxid."""
    history, member = History(), Member().founded()
    for epoch in (1, 1, 1, 1, 3, 3, 3, 3):
        if epoch == 3 and history.end.zxid.epoch == 1:
            member.persist_epochs(3, 3)
        member.append(history.next(epoch))

    for batch in history.batches:
        assert member.find(batch.last) == batch.position
    assert member.find(Zxid.of(2, 77)) == history.batches[3].position
    assert member.find(Zxid.of(9, 1)) == history.end
    assert member.find(0) == GENESIS


def test_truncation_removes_everything_after_the_position_across_segments() -> None:
    """M12, M13, M68: exactly the tail goes, and what comes next stands right behind the cut."""
    history, member = History(), Member().founded()
    for _ in range(12):
        member.append(history.next())
    keep = history.batches[2].position

    assert member.truncate(keep)
    history.cut(keep)
    member.persist_epochs(2, 2)
    member.append(history.next(epoch=2))

    again = Member(member.disk.copy())
    recovered = again.recover()
    assert zxids(recovered, again.tree) == last_of(history.batches)
    assert member.read_all(GENESIS) == history.batches


@pytest.mark.parametrize("at", range(12))
def test_truncation_works_at_every_record(at: int) -> None:
    """The first record of a segment, its last, and the log's very end are points like any other."""
    history, member = History(), Member().founded()
    for _ in range(12):
        member.append(history.next())
    keep = history.batches[at].position

    assert member.truncate(keep)
    history.cut(keep)
    member.append(history.next())

    again = Member(member.disk.copy())
    assert zxids(again.recover(), again.tree) == last_of(history.batches)


def test_truncation_to_a_point_of_another_history_is_refused() -> None:
    """The leader then sends a snapshot instead."""
    history, member = History(), Member().founded()
    for _ in range(3):
        member.append(history.next())

    assert member.truncate(LogPosition(history.batches[0].last, b"elsewher")) is False

    member.append(history.next())
    assert member.acked == last_of(history.batches)


def test_truncation_of_committed_records_is_refused() -> None:
    """M12: what is known to be committed is never cut off, whoever asks."""
    history, member = History(), Member().founded()
    member.append(history.next())
    member.append(history.next())
    member.append(history.next(), committed=history.batches[1].last)

    assert member.truncate(history.batches[0].position) is False
    assert member.truncate(history.batches[1].position) is True


def test_epochs_are_there_after_a_restart_and_never_go_back() -> None:
    """D10: what was promised once binds for ever."""
    member = Member().founded(epoch=4)
    member.persist_epochs(6, 4)

    with pytest.raises(LocalProtocolError, match="only grow"):
        member.storage.persist_epochs(5, 4, CLUSTER, lambda: None)
    with pytest.raises(LocalProtocolError, match="only grow"):
        member.storage.persist_epochs(6, 7, CLUSTER, lambda: None)

    recovered = Member(member.disk.copy()).recover()
    assert (recovered.accepted_epoch, recovered.current_epoch) == (6, 4)


def test_a_start_uses_the_newest_snapshot_and_the_records_after_it() -> None:
    """The tree is the snapshot's, and only what it lacks is replayed."""
    history, member = History(), Member().founded()
    for _ in range(6):
        member.append(history.next(), committed=history.base.zxid)
    assert member.snapshot(history.batches[:4]) is None
    member.append(history.next(), committed=history.batches[5].last)

    again = Member(member.disk.copy())
    recovered = again.recover()

    assert again.tree.zxids == last_of(history.batches[:6])
    assert recovered.tail == (history.batches[6],)
    assert again.storage.snapshot == history.batches[3].position


def test_a_snapshot_is_current_only_once_the_log_has_reached_it() -> None:
    """S7: a snapshot ahead of its own log would look like a log that lost its end."""
    history, member = History(), Member().founded()
    member.append(history.next())
    ahead = history.next()
    writer = member.storage.snapshot_writer(ahead.position)
    finished: list[StorageError | None] = []
    writer.write(encode_tree(history.batches), lambda: None)
    writer.finish(finished.append)
    member.run()
    assert finished == []

    member.append(ahead)

    assert finished == [None]


def test_a_snapshot_can_be_read_as_it_was_written() -> None:
    """A learner gets the tree's own bytes."""
    history, member = History(), Member().founded()
    member.append(history.next())
    content = bytes(range(256)) * 10_000
    writer = member.storage.snapshot_writer(history.end)
    writer.write(content, lambda: None)
    writer.finish(lambda _error: None)
    member.run()

    reader = member.storage.snapshot_reader()
    assert reader is not None
    pieces: list[object] = []
    while not pieces or pieces[-1] is not None:
        reader.read(pieces.append)
        member.run()

    assert b"".join(piece for piece in pieces if isinstance(piece, bytes)) == content
    assert reader.position == history.end
    assert reader.size_bytes == len(content)


def test_the_newest_snapshots_and_their_log_stay_and_the_rest_goes() -> None:
    """S14: three verified snapshots, and every segment since the oldest of them."""
    history, member = History(), Member().founded()
    for _ in range(6):
        for _ in range(5):
            member.append(history.next())
        assert member.snapshot(history.batches) is None

    snapshots = sorted(name for name in member.disk.files if name.startswith("snapshot."))
    kept = [history.batches[at].last for at in (19, 24, 29)]
    assert snapshots == [f"snapshot.{int(zxid):016x}" for zxid in kept]
    assert "log.00000001" not in member.disk.files
    assert member.find(kept[0]) == history.batches[19].position
    again = Member(member.disk.copy())
    assert zxids(again.recover(), again.tree) == last_of(history.batches)


def test_a_snapshot_that_is_being_read_is_not_deleted() -> None:
    """A learner's transfer may take longer than three snapshots."""
    history, member = History(), Member().founded()
    member.append(history.next())
    member.snapshot(history.batches)
    reader = member.storage.snapshot_reader()
    assert reader is not None
    for _ in range(5):
        member.append(history.next())
        member.snapshot(history.batches)

    file = f"snapshot.{int(reader.position.zxid):016x}"
    assert file in member.disk.files

    reader.close()
    member.append(history.next())
    member.snapshot(history.batches)
    assert file not in member.disk.files


def test_an_installed_snapshot_replaces_the_log() -> None:
    """M17: the log that a snapshot supersedes is gone, and the next record follows the snapshot."""
    history, elsewhere, member = History(), History(), Member().founded()
    for _ in range(9):
        member.append(history.next())
    for _ in range(4):
        elsewhere.next(epoch=2)
    member.persist_epochs(2, 1)

    assert member.install(elsewhere.batches) is None
    member.persist_epochs(2, 2)
    member.append(elsewhere.next(epoch=2))

    assert member.find(elsewhere.batches[1].last) is None
    again = Member(member.disk.copy())
    assert zxids(again.recover(), again.tree) == last_of(elsewhere.batches)


def test_a_given_up_installation_leaves_everything_as_it_was() -> None:
    """S18: a broken transfer changes nothing."""
    history, member = History(), Member().founded()
    member.append(history.next())
    installer = member.storage.snapshot_installer(LogPosition(Zxid.of(5, 5), b"elsewher"))
    installer.write(b"half of it", lambda: None)
    installer.abort()
    member.run()
    member.append(history.next())

    again = Member(member.disk.copy())
    assert zxids(again.recover(), again.tree) == last_of(history.batches)
    assert not any("incoming" in name for name in member.disk.files)


def test_a_clean_stop_leaves_a_log_that_is_not_rewritten() -> None:
    """S10 costs a copy of the last segment; a member that stopped in order does not pay it."""
    history, member = History(), Member().founded()
    member.append(history.next())
    member.close()
    again = Member(member.disk.copy())
    before = again.disk.content()

    again.recover()

    assert again.disk.content() == before
    again.append(history.next())
    third = Member(again.disk.copy())
    assert zxids(third.recover(), third.tree) == last_of(history.batches)
    with pytest.raises(LocalProtocolError, match="closed"):
        member.storage.append(history.next().record, Zxid(0), lambda: None)


def test_log_and_snapshots_may_have_disks_of_their_own() -> None:
    """dataLogDir: nothing but the log lies on the second disk."""
    history, member = History(), Member(CrashDisk(1), log_disk=CrashDisk(2)).founded()
    for _ in range(9):
        member.append(history.next())
    member.snapshot(history.batches[:4])
    member.truncate(history.batches[6].position)
    history.cut(history.batches[6].position)

    again = Member(member.disk.copy(), log_disk=member.log_disk.copy())
    assert zxids(again.recover(), again.tree) == last_of(history.batches)
    assert {name.split(".")[0] for name in member.log_disk.files} == {"log"}
    assert not any(name.startswith("log.") for name in member.disk.files)


def test_low_space_is_seen_and_seen_to_be_over() -> None:
    """S11: writes are refused before the disk is full, and only as long as they have to be."""
    config = StorageConfig(segment_bytes=700, space_floor_bytes=1000)
    history, member = History(), Member(config=config).founded()
    assert not member.storage.space_low

    member.disk.free_bytes = 999
    member.now_ms += 1000
    member.append(history.next())
    assert member.storage.space_low

    member.disk.free_bytes = 1000
    member.storage.check_space()
    member.run()
    assert not member.storage.space_low
    assert member.events() == ["space_low", "space_enough"]


def test_a_slow_sync_is_traced_with_its_milliseconds_and_counted() -> None:
    """S12: a disk that stalls is a fault that an operator must be able to see."""
    history, member = History(), Member().founded()

    def stall(op: object) -> int:
        member.now_ms += 1500 if isinstance(op, Sync) else 0
        return 0

    member.append(history.next())
    member.disk.fault = stall
    member.append(history.next())

    assert ("slow_sync", {"file": "log.00000001", "ms": 1500}) in member.trace
    assert member.storage.counters.slow_syncs == 1
    assert member.storage.counters.sync_ms_max == 1500


def test_fewer_than_three_snapshots_cannot_be_configured() -> None:
    """S14 is not a matter of taste."""
    with pytest.raises(Exception, match="at least 3"):
        StorageConfig(snapshots_kept=2)


def test_bulk_work_never_waits_in_the_log_lane() -> None:
    """A snapshot must not delay an acknowledgement."""
    history, member = History(), Member(config=SMALL).founded()
    member.append(history.next())
    lanes: list[Lane] = []
    submit = member.disk.submit

    def record(ops: object, done: object, lane: Lane = Lane.LOG) -> None:
        lanes.append(lane)
        submit(ops, done, lane)  # type: ignore[arg-type]

    member.disk.submit = record  # type: ignore[method-assign]
    member.snapshot(history.batches)

    assert set(lanes) == {Lane.BULK}
