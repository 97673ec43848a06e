"""What may be deleted: the oldest first, and never what a start could still need.

Invariants
    D1  The newest `kept` verified snapshots stay, and whatever lies between them (S14). A snapshot
        that this member has not verified itself does not count (M66).
    D2  Every segment with a record after the oldest snapshot that is left stays; with fewer than
        `kept` verified ones, every segment does.
    D3  Names go one at a time, each durably before the next, so that at every crash point the log
        is without gaps and begins at or before the oldest snapshot.
"""

from collections.abc import Collection, Sequence

from zabd.model import Zxid
from zabd.storage.disk import Disk, SyncDir, Unlink
from zabd.storage.procedures import Procedure
from zabd.storage.segment import Segment
from zabd.storage.snapshots import SnapshotInfo, snapshot_file, snapshot_zxid


def doomed_snapshots(
    names: Sequence[str],
    verified: Collection[SnapshotInfo],
    pinned: Collection[str],
    kept: int,
) -> list[Zxid]:
    """The snapshots in the directory that may go, oldest first (D1)."""
    newest = sorted((info.position.zxid for info in verified), reverse=True)[:kept]
    if len(newest) < kept:
        return []
    present = sorted(zxid for name in names if (zxid := snapshot_zxid(name)) is not None)
    return [zxid for zxid in present if zxid < newest[-1] and snapshot_file(zxid) not in pinned]


def doomed_segments(segments: Sequence[Segment], oldest: int) -> list[Segment]:
    """The segments without a record after `oldest`, oldest first; never the last one (D2)."""
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base.zxid <= oldest:
        count += 1
    return list(segments[:count])


def delete(disk: Disk, files: Sequence[str]) -> Procedure[None]:
    """Delete the files in this order, each durably before the next (D3)."""
    for file in files:
        yield disk, [Unlink(file), SyncDir()]
