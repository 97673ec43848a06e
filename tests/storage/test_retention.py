"""What may be deleted, as plain questions."""

from zabd.model import Zxid
from zabd.storage.retention import doomed_segments, doomed_snapshots
from zabd.storage.segment import Segment
from zabd.storage.snapshots import SnapshotInfo, snapshot_file
from zabd.zab.log import LogPosition


def position(counter: int) -> LogPosition:
    """A point of epoch 1."""
    return LogPosition(Zxid.of(1, counter), bytes(8))


def infos(*counters: int) -> list[SnapshotInfo]:
    """Verified snapshots at these counters."""
    return [SnapshotInfo(position(counter), 10) for counter in counters]


def names(*counters: int) -> list[str]:
    """A directory with snapshots at these counters, and other files."""
    files = [snapshot_file(Zxid.of(1, counter)) for counter in counters]
    return ["epochs", *files, f"{files[0]}.damaged", "myid"]


def test_nothing_goes_while_fewer_than_the_kept_number_are_verified() -> None:
    """M66: files that nobody has read back may all be bad."""
    assert doomed_snapshots(names(1, 2, 3, 4, 5), infos(4, 5), [], kept=3) == []


def test_everything_older_than_the_kept_ones_goes_oldest_first() -> None:
    """Verified or not; what is damaged and set aside stays for ever."""
    doomed = doomed_snapshots(names(1, 2, 3, 4, 5), infos(2, 3, 4, 5), [], kept=3)

    assert doomed == [Zxid.of(1, 1), Zxid.of(1, 2)]


def test_a_pinned_snapshot_stays() -> None:
    """Somebody is reading it."""
    pinned = [snapshot_file(Zxid.of(1, 1))]

    assert doomed_snapshots(names(1, 2, 3, 4, 5), infos(3, 4, 5), pinned, kept=3) == [Zxid.of(1, 2)]


def test_a_segment_goes_once_the_next_one_begins_before_the_oldest_snapshot() -> None:
    """D2: the record right after the snapshot must be there, whatever else goes."""
    segments = [Segment(at, position(10 * at), 700) for at in range(1, 5)]

    def doomed(oldest: int) -> list[int]:
        return [each.number for each in doomed_segments(segments, Zxid.of(1, oldest))]

    assert doomed(19) == []
    assert doomed(20) == [1]
    assert doomed(35) == [1, 2]
    assert doomed(1000) == [1, 2, 3]
    assert doomed_segments([], Zxid.of(1, 1)) == []
