"""What a member of an ensemble does about damage: keep what it can vouch for, and say so (S20)."""

import errno
import re
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from tests.storage.crash_disk import CrashDisk, Inode
from tests.storage.members import CLUSTER, History, Member, last_of, zxids

from zabd.model import DamagedError, LocalProtocolError, StorageError
from zabd.storage import OnDamage, Recovered, StorageConfig
from zabd.storage.disk import DiskOp, Read, Size
from zabd.storage.distrust import DISTRUST
from zabd.storage.epochs import (
    EPOCHS,
    IDENTITY,
    Epochs,
    Identity,
    decode_identity,
    encode_epochs,
)
from zabd.storage.record import SEGMENT_HEADER_BYTES, segment_file
from zabd.storage.snapshots import DAMAGED
from zabd.zab.log import GENESIS, RECORD_MAGIC

REFUSE = StorageConfig(segment_bytes=1500, space_floor_bytes=0)
REPAIR = replace(REFUSE, on_damage=OnDamage.REPAIR)
GIVE_UP = replace(REFUSE, on_damage=OnDamage.GIVE_UP)


def busy_member(snapshots: tuple[int, ...] = ()) -> tuple[CrashDisk, History]:
    """The disk of a member that stopped in order, with a few segments, and its history."""
    history, member = History(), Member(config=REFUSE).founded()
    for number, count in enumerate((1, 1, 3, 1, 2, 5, 1, 1, 4, 1, 1, 1, 2, 1)):
        batches = [history.next(size_bytes=20 + 7 * count) for _ in range(count)]
        member.append(*batches, committed=int(history.end.zxid) - count)
        if number in snapshots:
            assert member.snapshot(history.batches[:]) is None
    member.close()
    return member.disk.copy(), history


DISK, HISTORY = busy_member()
SNAPPED, _ = busy_member(snapshots=(4, 8))
WHOLE = last_of(HISTORY.batches)
LOGS = sorted(name for name in DISK.files if name.startswith("log."))
SNAPSHOTS = sorted(name for name in SNAPPED.files if name.startswith("snapshot."))


def with_file(disk: CrashDisk, file: str, data: bytes) -> CrashDisk:
    """The same disk with another content of one file."""
    twin = disk.copy()
    twin.files[file] = twin.durable_names[file] = Inode(data)
    return twin


def without(disk: CrashDisk, *files: str) -> CrashDisk:
    """The same disk without some files."""
    twin = disk.copy()
    for file in files:
        del twin.files[file]
        twin.durable_names.pop(file, None)
    return twin


def content(disk: CrashDisk, file: str) -> bytes:
    """What a file holds."""
    return bytes(disk.files[file].data)


def flipped(disk: CrashDisk, file: str, at: int) -> CrashDisk:
    """The same disk with one bit of one file flipped."""
    data = bytearray(content(disk, file))
    data[at % len(data)] ^= 1 << (at % 8)
    return with_file(disk, file, bytes(data))


def damages(disk: CrashDisk, step: int) -> Iterator[CrashDisk]:
    """Flips, cuts, zeroed and stale sectors, all over the files; and each of them missing."""
    for file in sorted(disk.files):
        data = content(disk, file)
        for at in range(0, len(data), step):
            yield flipped(disk, file, at)
            yield with_file(disk, file, data[:at])
            yield with_file(disk, file, data[:at] + bytes(64) + data[at + 64 :])
            yield with_file(disk, file, data[:at] + data[256:320] + data[at + 64 :])
        yield without(disk, file)


def start(disk: CrashDisk, config: StorageConfig = REPAIR) -> tuple[Member, Recovered]:
    """A member on that disk, and what it found."""
    member = Member(disk, config)
    return member, member.recover()


@pytest.mark.parametrize("disk", [DISK, SNAPPED], ids=["log alone", "with snapshots"])
def test_what_is_kept_is_a_start_of_the_history_and_never_taken_for_the_whole(
    disk: CrashDisk,
) -> None:
    """W2, and D8: a member that knows less than it did says that it is damaged."""
    damaged = 0
    for hurt in damages(disk, step=89):
        member, found = start(hurt)
        kept = zxids(found, member.tree)

        assert kept == WHOLE[: len(kept)]
        if found.damaged is None:
            assert kept == WHOLE
        else:
            damaged += 1
            again, later = start(member.disk.copy())
            assert later.damaged == found.damaged
            assert zxids(later, again.tree) == kept
            assert later.cluster_id in {CLUSTER, None}

    assert damaged > 50


def test_what_was_damaged_is_renamed_and_nothing_of_it_is_lost() -> None:
    """W1: an operator, or a better tool, may still find something in it."""
    for file in [*LOGS, EPOCHS, IDENTITY]:
        hurt = flipped(DISK, file, 700 if file in LOGS else 20)
        before = content(hurt, file)

        member, found = start(hurt)

        assert found.damaged is not None
        aside = [name for name in member.disk.files if name.startswith(file + DAMAGED)]
        assert before in [content(member.disk, name) for name in aside]


def test_the_records_before_the_damage_are_vouched_for() -> None:
    """The leader has to send only what is missing: F1 and F2 in the middle of the log."""
    for file in LOGS:
        hurt = flipped(DISK, file, 700)

        member, found = start(hurt)

        assert found.damaged is not None
        assert segment_file(LOGS.index(file) + 1) in found.damaged
        least = 0 if file == LOGS[0] else LOGS.index(file) * 3
        assert len(zxids(found, member.tree)) > least
        member.append(*HISTORY.batches[len(zxids(found, member.tree)) :])
        assert member.acked[-1] == HISTORY.end.zxid


def test_a_whole_snapshot_above_the_damage_is_more_than_the_log_below_it() -> None:
    """Of two beginnings of the history the longer one is kept."""
    member, found = start(flipped(SNAPPED, LOGS[0], 700))

    assert found.damaged is not None
    assert found.delivered.zxid == int(SNAPSHOTS[-1].split(".")[1], 16)
    assert found.delivered == member.storage.snapshot


def test_without_a_log_and_without_a_snapshot_nothing_is_left() -> None:
    """F11: the log begins late, and no snapshot reaches it."""
    disk = without(SNAPPED, LOGS[0])
    for snapshot in SNAPSHOTS:
        disk = flipped(disk, snapshot, 90)

    _, found = start(disk)

    assert found.damaged is not None
    assert found.empty
    assert found.delivered == GENESIS
    assert found.cluster_id == CLUSTER


@pytest.mark.parametrize("file", [EPOCHS, IDENTITY])
@pytest.mark.parametrize("how", ["missing", "empty", "flipped"])
def test_lost_promises_are_never_replaced_by_greater_ones(file: str, how: str) -> None:
    """F20, W3: the log's marks say what was promised at least; the history is whole."""
    hurt = {
        "missing": lambda: without(DISK, file),
        "empty": lambda: with_file(DISK, file, b""),
        "flipped": lambda: flipped(DISK, file, 20),
    }[how]()

    member, found = start(hurt)

    assert found.damaged is not None
    assert (found.accepted_epoch, found.current_epoch) == (1, 1)
    assert zxids(found, member.tree) == WHOLE
    assert found.cluster_id == CLUSTER


def test_an_epochs_file_that_is_older_than_the_log_costs_the_vote() -> None:
    """F20 and F35: one of the two was put back from a copy."""
    member = Member(config=REFUSE).founded()
    history = History()
    old = content(member.disk, EPOCHS)
    member.persist_epochs(4, 4)
    member.append(history.next(epoch=4), history.next(epoch=4))
    member.append(history.next(epoch=4))
    member.close()

    again, found = start(with_file(member.disk, EPOCHS, old))

    assert found.damaged is not None
    assert found.accepted_epoch == 4
    assert zxids(found, again.tree) == last_of(history.batches)


def test_f35_a_log_that_is_older_than_the_epochs_file_costs_the_vote() -> None:
    """A backup of the log was put back over a live directory."""
    history, member = History(), Member(config=REFUSE).founded()
    member.append(history.next(), history.next())
    member.close()
    backup = member.disk.copy()
    member = Member(member.disk.copy(), REFUSE)
    member.recover()
    member.append(history.next(), history.next())
    member.close()
    disk = member.disk.copy()
    for file in LOGS[:1]:
        disk = with_file(disk, file, content(backup, file))

    again, found = start(disk)

    assert found.damaged is not None
    assert zxids(found, again.tree) == last_of(history.batches[:2])


def test_f14_what_cannot_be_read_is_damage_and_what_can_be_is_kept() -> None:
    """A sector that the device cannot give: the records before it stay."""
    disk = DISK.copy()
    bad = LOGS[1]

    def fault(op: DiskOp) -> int:
        reads_bad = isinstance(op, Read) and op.file == bad
        return errno.EIO if reads_bad and op.offset <= 600 < op.offset + op.size_bytes else 0

    disk.fault = fault
    member, found = start(disk)

    assert found.damaged is not None
    assert "cannot be read" in found.damaged
    kept = zxids(found, member.tree)
    assert 0 < len(kept) < len(WHOLE)
    assert kept == WHOLE[: len(kept)]


def reads(op: DiskOp, file: str) -> bool:
    """Whether the operation wants something of the file's."""
    return isinstance(op, Read | Size) and op.file == file


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES])
def test_f34_a_start_that_may_not_read_concludes_nothing_from_it(number: int) -> None:
    """For want of descriptors, memory or permission nothing is damaged: the next start has all."""
    for file in [*LOGS, SNAPSHOTS[-1], EPOCHS, IDENTITY]:
        disk = SNAPPED.copy()
        disk.fault = lambda op, file=file: number if reads(op, file) else 0
        before = disk.content()

        result = Member(disk, REPAIR).try_recover()

        assert isinstance(result, StorageError)
        assert not isinstance(result, DamagedError)
        assert re.search(rf"of {file} failed: .*; .* start", str(result))
        assert disk.content() == before
        disk.fault = lambda _op: 0
        again, found = start(disk)
        assert found.damaged is None
        assert zxids(found, again.tree) == WHOLE


def test_f34_a_repair_takes_nothing_for_lost_that_it_may_not_read() -> None:
    """One segment is damaged, and for a whole one before it there is no descriptor."""
    kept = zxids((repaired := start(flipped(DISK, LOGS[1], 400)))[1], repaired[0].tree)
    disk = flipped(DISK, LOGS[1], 400)
    disk.fault = lambda op: errno.EMFILE if reads(op, LOGS[0]) and DISTRUST in disk.files else 0

    result = Member(disk, REPAIR).try_recover()

    assert isinstance(result, StorageError)
    assert not isinstance(result, DamagedError)
    disk.fault = lambda _op: 0
    again, found = start(disk)
    assert found.damaged is not None
    assert zxids(found, again.tree) == kept != []


def test_another_members_directory_is_refused_and_not_repaired() -> None:
    """S22: that is a mistake of the operator's, and no damage."""
    before = DISK.content()
    result = Member(DISK.copy(), REPAIR).try_recover(member_id=2)

    assert isinstance(result, StorageError)
    assert not isinstance(result, DamagedError)
    assert DISK.content() == before


def test_a_new_directory_is_not_damaged() -> None:
    """S21: an empty one is blank, which is another matter."""
    _, found = start(CrashDisk())

    assert found.damaged is None
    assert found.empty


def test_a_member_is_whole_again_with_the_epochs_that_say_so() -> None:
    """T2: a promise alone does not mend it; the history of an established leader does."""
    member, found = start(flipped(DISK, LOGS[0], 700))
    assert found.damaged is not None
    member.append(*HISTORY.batches[len(zxids(found, member.tree)) :])
    member.persist_epochs(5, 1)
    assert start(member.disk.copy())[1].damaged is not None

    done: list[bool] = []
    member.storage.persist_epochs(5, 5, CLUSTER, lambda: done.append(True), repaired=True)
    member.run()

    assert done == [True]
    assert DISTRUST not in member.disk.files
    again, later = start(member.disk.copy())
    assert later.damaged is None
    assert zxids(later, again.tree) == WHOLE


def test_a_power_cut_at_any_point_of_a_repair_leaves_a_damaged_member() -> None:
    """W4, S23: it starts again, keeps a start of the history, and still knows that it is short."""
    for disk in (
        flipped(DISK, LOGS[1], 700),
        flipped(SNAPPED, LOGS[0], 700),
        without(DISK, EPOCHS),
        without(DISK, LOGS[1]),
    ):
        member = Member(disk.copy(), REPAIR)
        member.recover()
        steps = member.disk.count
        for halt_at in range(1, steps + 1):
            for seed in range(2):
                cut = Member(disk.copy(), REPAIR)
                cut.disk.halt_at = halt_at
                if cut.try_recover() is not None:
                    break  # it was over: what came then was a look at the free space
                again, found = start(cut.disk.crash(Random(seed)))
                kept = zxids(found, again.tree)
                assert found.damaged is not None
                assert kept == WHOLE[: len(kept)]


def test_damage_after_damage_is_found_too() -> None:
    """The bad luck of one disk does not come alone."""
    member, _ = start(flipped(DISK, LOGS[2], 700))
    again, found = start(flipped(member.disk, LOGS[0], 700))

    kept = zxids(found, again.tree)
    assert found.damaged is not None
    assert kept == WHOLE[: len(kept)]


def test_s17_a_tree_that_differed_is_not_believed_again() -> None:
    """Its snapshots and its log go out of the way; who it is and what it promised stays."""
    member = Member(SNAPPED.copy(), REPAIR)
    member.recover()
    done: list[bool] = []
    member.storage.distrust("the tree differs\nfrom the leader's", lambda: done.append(True))
    member.run()
    assert done == [True]

    again, found = start(member.disk.copy())

    assert found.damaged == "the tree differs from the leader's"
    assert found.empty
    assert (found.accepted_epoch, found.cluster_id) == (1, CLUSTER)
    assert {f"{file}{DAMAGED}" for file in (*LOGS, *SNAPSHOTS)} <= set(again.disk.files)
    assert start(again.disk.copy())[1].damaged == found.damaged


def test_a_member_alone_does_not_start_on_what_it_knows_to_be_short() -> None:
    """An ensemble of three that was made one of one must not serve half of a history."""
    member, _ = start(flipped(DISK, LOGS[1], 700))
    before = member.disk.content()

    result = Member(member.disk, REFUSE).try_recover()

    assert isinstance(result, DamagedError)
    assert "--give-up-damaged" in str(result)
    assert member.disk.content() == before


@pytest.mark.parametrize("noted", [False, True])
def test_only_an_operator_gives_up_what_is_lost(noted: bool) -> None:  # noqa: FBT001
    """Then, and loudly, the start of the history that is left counts as all of it."""
    disk = flipped(DISK, LOGS[1], 700)
    if noted:
        disk = start(disk)[0].disk.copy()

    member, found = start(disk, GIVE_UP)

    assert found.damaged is None
    assert "given_up" in member.events()
    assert 0 < len(zxids(found, member.tree)) < len(WHOLE)
    assert start(member.disk.copy(), REFUSE)[1].damaged is None


def test_a_segment_that_was_begun_proves_what_the_one_before_it_held() -> None:
    """S7: the last group before a crash is gone with the seal, but the next file names its end."""
    before, last = LOGS[-2:]
    data = content(DISK, before)
    records = [at for at in range(len(data)) if data.startswith(RECORD_MAGIC, at)]
    begun = content(DISK, last)[:SEGMENT_HEADER_BYTES].ljust(len(content(DISK, last)), b"\0")
    disk = with_file(DISK, before, data[: records[-1]].ljust(len(data), b"\0"))
    disk = with_file(without(disk, EPOCHS), last, begun)
    disk = with_file(disk, EPOCHS, encode_epochs(Epochs(1, 1)))

    result = Member(disk.copy(), REFUSE).try_recover()

    assert isinstance(result, DamagedError)
    assert last in str(result)
    assert start(disk)[1].damaged is not None


# --- founded anew ---------------------------------------------------------------------------------


def test_a_directory_leaves_its_cluster_only_for_a_new_one_and_only_if_told_to() -> None:
    """E3, and its log, which goes on to name the former one, is still its own."""
    disk, _ = busy_member()
    with pytest.raises(LocalProtocolError, match="belongs to the ensemble"):
        recovering(disk.copy(), REFUSE).persist_epochs(7, 7, b"new")

    member = recovering(disk, replace(REFUSE, found_anew=CLUSTER))
    member.persist_epochs(7, 7, b"new")

    owner = decode_identity(bytes(member.disk.files[IDENTITY].data))
    assert owner == Identity(owner.member, b"new", (CLUSTER,))
    again = Member(member.disk.copy(), config=REFUSE)
    found = again.recover()
    assert found.cluster_id == b"new"
    assert zxids(found, again.tree) == WHOLE


def test_of_an_ensemble_founded_anew_a_lost_identity_is_not_guessed() -> None:
    """The log names the former cluster, the snapshots maybe the new one: it asks the others."""
    disk, history = busy_member()
    member = recovering(disk, replace(REFUSE, found_anew=CLUSTER))
    member.persist_epochs(7, 7, b"new")
    assert member.snapshot(history.batches[:]) is None
    hurt = with_file(member.disk.copy(), IDENTITY, b"no identity")

    again = Member(hurt, config=REPAIR)
    found = again.recover()

    assert found.damaged is not None
    assert found.cluster_id is None


def recovering(disk: CrashDisk, config: StorageConfig) -> Member:
    """A member that has started on this disk."""
    member = Member(disk, config=config)
    member.recover()
    return member
