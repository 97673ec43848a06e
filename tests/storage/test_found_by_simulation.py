"""What the simulator found in this room, each as a small case that shows it."""

import re
from random import Random

import pytest
from tests.storage.crash_disk import CrashDisk
from tests.storage.members import History, Member, zxids

from zabd.model import DamagedError, Zxid
from zabd.storage.disk import WriteAt
from zabd.storage.retention import doomed_segments
from zabd.zab.log import GENESIS


def test_recovering_twice_never_counts_the_start_of_the_last_segment_as_committed() -> None:
    """Core seed 64: a tail across segments became committed by the second of two restarts.

    The rewritten segment said that all before its base was committed; it is only durable.
    """
    history, member = History(), Member().founded()
    first = history.next(size_bytes=200)
    member.append(first)
    member.append(*(history.next(size_bytes=200) for _ in range(5)), committed=first.last)

    disk = member.disk
    for restart in range(3):
        disk = disk.crash(Random(restart))
        again = Member(disk)
        recovered = again.recover()

        assert recovered.delivered == first.position
        assert [batch.last for batch in recovered.tail] == [b.last for b in history.batches[1:]]


def test_a_segment_is_not_deleted_while_it_is_being_sealed() -> None:
    """Core seed 18: retention removed the segment whose seal was on its way to the disk.

    The sealing write then failed for want of its file, and the member stopped.
    """
    history, member = History(), Member().founded()
    for _ in range(4):
        member.append(history.next(size_bytes=200))
    everything = history.end.zxid
    needs_a_new_segment = history.next(size_bytes=500)
    member.storage.append(needs_a_new_segment.record, everything, lambda: None)

    log = member.storage._log

    assert len(log.segments) == 5
    assert [segment.number for segment in doomed_segments(log.settled, everything)] == [1, 2, 3]
    member.run()
    assert [segment.number for segment in doomed_segments(log.settled, everything)] == [1, 2, 3, 4]


def test_a_seal_that_only_the_page_cache_has_is_not_believed() -> None:
    """Core seed 116: killed between writing a seal and syncing it, and much later a power cut.

    The restart after the kill saw the seal and let it be. The power cut took it back, and the
    member could not start any more: a segment that was not sealed had two behind it.
    """
    history, member = History(), Member().founded()
    while len(member.storage._log.segments) < 2:
        member.append(history.next(size_bytes=200))
    needs_a_new_segment = history.next(size_bytes=600)
    member.storage.append(needs_a_new_segment.record, Zxid(0), lambda: None)
    while not (isinstance(last := member.disk.log[-1], WriteAt) and last.file == "log.00000002"):
        member.disk.halt_at = member.disk.count + 1
        member.disk.run()

    member = Member(member.disk.killed())  # the process died, its machine did not
    member.recover()
    history.cut(history.batches[-2].position)
    for _ in range(4):
        member.append(history.next(size_bytes=200))
    again = Member(member.disk.crash(Random(1), ("vanish",)))
    recovered = again.recover()

    assert [batch.last for batch in recovered.tail] == [b.last for b in history.batches]


def test_epochs_that_only_the_page_cache_has_are_made_durable_before_they_are_believed() -> None:
    """Core level, lost disks: killed between renaming the epochs file and syncing the directory.

    The next process found the new epoch and promised it a second time; a power cut would have
    taken it back, and the member could have promised it to somebody else.
    """
    disk, log_disk = CrashDisk(), CrashDisk()
    member = Member(disk, log_disk=log_disk).founded()
    disk.halt_at = disk.count + 4  # create, write, sync, rename; the directory is never synced
    member.persist_epochs(2, 1)

    member = Member(disk.killed(), log_disk=log_disk.killed())
    promised = member.recover().accepted_epoch
    after_power_cut = Member(
        member.disk.crash(Random(1), ("vanish",)), log_disk=member.log_disk.crash(Random(1))
    )

    assert promised == 2
    assert after_power_cut.recover().accepted_epoch == 2


def test_a_record_behind_a_mark_that_has_rotted_is_read_as_recovery_has_read_it() -> None:
    """Seed 201 of level zab: a bit of a mark was flipped, in a segment that is not the last one.

    Recovery passed it over, since a later mark vouches for all that it had vouched for. The first
    learner that needed what follows it ended the member, and so it did after each restart.
    """
    history, member = History(), Member().founded()
    while len(member.storage._log.segments) < 2:
        member.append(history.next(size_bytes=60))
    data = member.disk.files["log.00000001"].data
    second_mark = bytes(data).index(b"ZMK1", bytes(data).index(b"ZMK1") + 1)
    data[second_mark + 20] ^= 1

    again = Member(member.disk)
    again.recover()

    assert [batch.last for batch in again.read_all(GENESIS)] == [b.last for b in history.batches]
    assert again.find(history.batches[2].last) == history.batches[2].position
    assert not again.failures


@pytest.mark.parametrize("more", [1, 12])
def test_what_follows_a_mark_that_stood_alone_and_has_rotted_is_kept(more: int) -> None:
    """Seeds 70000331 and 70000374 of level core: acknowledged records were dropped without a word.

    A restart ends the log with a mark. When that had rotted, and the next group's mark followed in
    place of a record, recovery took both for a torn group. With a dozen groups more the mark is in
    a segment that is not the last, and what follows is read past it.
    """
    history, member = History(), Member().founded()
    member.append(history.next(size_bytes=60), history.next(size_bytes=60))
    again = Member(member.disk.crash(Random(1)))
    again.recover()
    file = again.disk.files[max(name for name in again.disk.files if name.startswith("log."))]
    alone = bytes(file.data).rindex(b"ZMK1")
    for _ in range(more):
        again.append(history.next(size_bytes=60))
    assert again.acked[-1] == history.batches[-1].last
    file.data[alone + 20] ^= 1

    last = Member(again.disk)
    recovered = last.recover()

    assert zxids(recovered, last.tree) == [batch.last for batch in history.batches]
    assert last.read_all(GENESIS)[-1].last == history.batches[-1].last
    assert not last.failures


def test_a_mark_behind_bytes_that_are_nothing_proves_that_they_were_durable() -> None:
    """It is written when all before it is on the disk: such bytes are damaged, not torn."""
    history, member = History(), Member().founded()
    member.append(history.next(size_bytes=60))
    for _ in range(2):  # each stop in order leaves a mark behind the one before
        member.close()
        member = Member(member.disk.copy())
        member.recover()
    member.append(history.next(size_bytes=60))
    [file] = [member.disk.files[name] for name in member.disk.files if name.startswith("log.")]
    marks = [found.start() for found in re.finditer(b"ZMK1", bytes(file.data))]
    for mark in marks[-3:-1]:
        file.data[mark + 20] ^= 1

    with pytest.raises(DamagedError, match="was durable"):
        Member(member.disk).recover()
