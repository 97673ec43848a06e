"""Mistakes about damaged storage: M55-M57, M63, M68 and M72 of the gallery."""

from collections.abc import Sequence
from typing import Any, Final

from zabd.cluster_sim.mutants.mutant import Mutant, Patch
from zabd.storage import log_changes, recovery, small_file, txn_log
from zabd.storage.disk import DiskOp, DiskOutcome, Lane, Sync, SyncDir, Truncate, Unlink, WriteAt
from zabd.storage.epochs import EPOCHS, Identity
from zabd.storage.log_changes import Changed, Home, Note, rewrite_segment
from zabd.storage.procedures import Procedure, list_names, read_file
from zabd.storage.record import (
    SegmentHeader,
    SegmentScan,
    decode_segment_header,
    segment_file,
    segment_number,
)
from zabd.storage.segment import Segment, create_segment
from zabd.storage.txn_log import TxnLog
from zabd.zab import log, synchronisation
from zabd.zab.log import LogPosition, parse_header

_SHORT_SEGMENTS: Final = {"segment_bytes": 8 << 10}


# --- recovery ------------------------------------------------------------------------------------


def _middle_cut_like_a_tail() -> list[Patch]:
    def check_last(self: Any, _scan: SegmentScan, later: list[SegmentHeader]) -> Procedure[None]:
        self.blank.extend(segment_file(header.number) for header in later)
        yield self._home.log, []

    replay = recovery._Replay
    refuse = replay._miss

    def miss(self: Any, waypoint: LogPosition) -> None:
        # A snapshot that stands behind the cut is too much to explain.
        if waypoint != self._home.epochs.mark or self.delivered.zxid > self.end.zxid:
            refuse(self, waypoint)

    return [(replay, "_check_last", check_last), (replay, "_miss", miss)]


# --- writing -------------------------------------------------------------------------------------


def _fsync_tried_again() -> list[Patch]:
    written = TxnLog._written

    def once_more(self: TxnLog, outcome: DiskOutcome) -> None:
        fault = outcome.error
        if fault is None or not isinstance(fault.op, Sync):
            written(self, outcome)
        else:
            self._disk.submit([Sync(fault.op.file)], lambda again: written(self, again), Lane.LOG)

    return [(TxnLog, "_written", once_more)]


def _segment_without_a_name() -> list[Patch]:
    def create(made: Segment, owner: Identity) -> list[DiskOp]:
        return [op for op in create_segment(made, owner) if not isinstance(op, SyncDir)]

    return [(txn_log, "create_segment", create)]


def _rename_not_synced() -> list[Patch]:
    replace = small_file.replace

    def forgetful(kind: str, data: bytes, names: Sequence[str] = ()) -> list[DiskOp]:
        return [op for op in replace(kind, data, names) if not isinstance(op, SyncDir)]

    return [(small_file, "replace", forgetful)]


def _epochs_in_place() -> list[Patch]:
    replace = small_file.replace

    def over_it(kind: str, data: bytes, names: Sequence[str] = ()) -> list[DiskOp]:
        if kind != EPOCHS or isinstance(names, list):  # a directory that is being made has none yet
            return replace(kind, data, names)
        return [Truncate(kind, 0), WriteAt(kind, 0, data), Sync(kind)]

    return [(small_file, "replace", over_it)]


# --- changes of the log --------------------------------------------------------------------------


def _cut_before_the_rest_is_gone() -> list[Patch]:
    carry_out = log_changes.carry_out

    def cut(home: Home, note: Note) -> Procedure[Segment]:
        data = yield from read_file(home.log, segment_file(note.segment))
        header = decode_segment_header(data)
        assert header is not None
        batches, committed = log_changes._up_to(SegmentScan(data, header), note.position)
        made = Segment(header.number, header.base, len(data))
        return (yield from rewrite_segment(home, made, batches, committed))

    def carry_out_and_tidy_up(home: Home, note: Note) -> Procedure[Changed]:
        changed = yield from carry_out(home, note)
        names = yield from list_names(home.log)
        later = [name for name in names if (segment_number(name) or 0) > note.segment]
        yield home.log, [Unlink(name) for name in later]
        return changed

    return [
        (log_changes, "_cut", cut),
        (log_changes, "carry_out", carry_out_and_tidy_up),
        (recovery, "carry_out", carry_out_and_tidy_up),
    ]


# --- reading -------------------------------------------------------------------------------------


def _damage_sent_on() -> list[Patch]:
    return [(log, "check_record", parse_header), (synchronisation, "check_record", parse_header)]


DISKS: Final = (
    Mutant(
        name="middle-cut-like-a-tail",
        bug="M55",
        what="damage in the middle of the log is cut off with all that follows, as a torn end is",
        history="a bit flips in 1.3 of 1.1 to 1.9 on B; B starts with 1.2 and votes; A is down and "
        "C at 1.2: B and C go on without what A and B had acknowledged",
        reference="Alagappan et al., FAST 2018",
        level="zab",
        found_by=frozenset({"D8"}),
        patches=_middle_cut_like_a_tail,
        shape={"kinds": ("bit flip", "zeroed sector"), "segment_bytes": 8 << 10},
    ),
    Mutant(
        name="fsync-tried-again",
        bug="M56",
        what="a failed fsync is tried once more, and believed",
        history="the kernel has dropped the pages and calls them clean; the second fsync succeeds, "
        "the write is acknowledged, and a crash shows that it was never there",
        reference='"fsyncgate"; Rebello et al., ATC 2020',
        level="zab",
        found_by=frozenset({"D7"}),
        patches=_fsync_tried_again,
        shape={"kinds": ("sync error",)},
    ),
    Mutant(
        name="segment-without-a-name",
        bug="M57",
        what="a new segment is used before the directory that names it is synced",
        history="the log goes on in a new file, its bytes are durable, power fails, it is gone",
        reference="Pillai et al., OSDI 2014",
        level="zab",
        found_by=frozenset({"D8", "D9"}),
        patches=_segment_without_a_name,
        shape=_SHORT_SEGMENTS,
    ),
    Mutant(
        name="rename-not-synced",
        bug="M57",
        what="a small file gets its name by a rename that is not made durable",
        history="an epoch is promised, power fails, the old promise is there again",
        reference="Pillai et al., OSDI 2014",
        level="zab",
        found_by=frozenset({"D3", "D4"}),
        patches=_rename_not_synced,
    ),
    Mutant(
        name="epochs-in-place",
        bug="M63",
        what="the epochs file is written over, not replaced",
        history="power fails in the middle; the next start reads nothing, or something else",
        reference="ZOOKEEPER-1653, ZOOKEEPER-2307, ZOOKEEPER-4269",
        level="zab",
        found_by=frozenset({"D9"}),
        patches=_epochs_in_place,
    ),
    Mutant(
        name="cut-before-the-rest-is-gone",
        bug="M68",
        what="a truncation is over before the segments behind the cut are gone for certain",
        history="a new record follows the cut and is acknowledged, power fails, the old segments "
        "are there again",
        reference="ClickHouse Keeper, issue 112101",
        level="zab",
        found_by=frozenset({"D8", "D11"}),
        patches=_cut_before_the_rest_is_gone,
        shape=_SHORT_SEGMENTS
        | {
            "kinds": ("isolate the leader", "power cut", "crash at the disk"),
            "log_disk": True,  # one on which nothing else makes names durable
            "payload_bytes_max": 3_000,
            "voters": 3,
        },
    ),
    Mutant(
        name="damage-sent-on",
        bug="M72",
        what="records are read from the disk and sent to a learner, and taken by it, without a "
        "look at their digests (two guards are off at once)",
        history="a record of B rots while B runs; C comes back and gets it by DIFF",
        reference="Ganesan et al., FAST 2017",
        level="zab",
        found_by=frozenset({"Z1"}),
        patches=_damage_sent_on,
        shape={
            "kinds": ("rot", "lost disk"),
            "voters": 5,
            "tail_batches": 8,
            "snapshot_every": 1_000,  # who is behind gets records, and from the disk
        },
    ),
)
