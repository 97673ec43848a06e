"""A crash after every primitive operation of a member's life, and what a start then finds (G8).

The life is short but has everything: founding, several segments, truncation across them, snapshots
until old ones go, an installed snapshot, a clean stop, a second life. Rows F17, F18, F21, F27, F28.
"""

from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest
from tests.storage.crash_disk import CrashDisk
from tests.storage.members import History, Member, Tree, encode_tree, last_of, zxids

from zabd.model import Zxid
from zabd.storage import Recovered
from zabd.storage.disk import Create, Rename, Sync, SyncDir, Unlink

FATES = [("survive",), ("vanish",), ("survive", "vanish", "tear")]
STATES_MAX = 64  # beyond, a sample of as many


@dataclass
class Ledger:
    """What was promised to the world, and so what a start may find."""

    sure: list[int] = field(default_factory=list)
    hoped: list[int] = field(default_factory=list)
    instead: list[int] | None = None
    epochs_sure: tuple[int, int] = (0, 0)
    epochs_hoped: tuple[int, int] = (0, 0)

    def check(self, recovered: Recovered, member: Member) -> None:
        found = zxids(recovered, member.tree)
        as_before = found[: len(self.sure)] == self.sure and found == self.hoped[: len(found)]
        assert as_before or found == self.instead, (self, found)
        epochs = (recovered.accepted_epoch, recovered.current_epoch)
        assert epochs in {self.epochs_sure, self.epochs_hoped}, (self, epochs)


class Life:
    """One member's life up to the moment at which its disk halts."""

    def __init__(self, disk: CrashDisk) -> None:
        self.ledger = Ledger()
        self.history = History()
        self.member = Member(disk)

    def live(self) -> None:
        steps = [
            self.member.try_recover,
            lambda: self.promise(1, 0),
            lambda: self.promise(1, 1),
            *[lambda: self.append(1)] * 4,
            lambda: self.append(3),
            lambda: self.snapshot(3),
            *[lambda: self.append(2)] * 3,
            lambda: self.truncate(6),
            lambda: self.promise(2, 1),
            lambda: self.promise(2, 2),
            *[lambda: self.append(1)] * 2,
            lambda: self.snapshot(7),
            *[lambda: self.append(2)] * 2,
            lambda: self.snapshot(9),
            *[lambda: self.append(2)] * 2,
            lambda: self.snapshot(14),
            lambda: self.append(2),
            lambda: self.rush(3),
            lambda: self.rush(2),
            lambda: self.promise(3, 2),
            lambda: self.install(4),
            lambda: self.promise(3, 3),
            *[lambda: self.append(2)] * 2,
            lambda: self.truncate(5),
            lambda: self.append(1),
            self.member.close,
            self.reopen,
            lambda: self.append(3),
        ]
        for step in steps:
            if self.member.disk.halted:
                return
            step()
            assert not self.member.failures

    def promise(self, accepted: int, current: int) -> None:
        self.ledger.epochs_hoped = (accepted, current)
        if self.member.persist_epochs(accepted, current):
            self.ledger.epochs_sure = (accepted, current)

    def append(self, count: int) -> None:
        epoch = self.ledger.epochs_sure[1]
        batches = [self.history.next(epoch, size_bytes=10 + 30 * count) for _ in range(count)]
        self.ledger.hoped = last_of(self.history.batches)
        self.member.acked = []
        # Commits lag behind what is durable by two records.
        committed = self.history.batches[max(0, len(self.history.batches) - count - 2)].last
        self.member.append(*batches, committed=committed if len(self.history.batches) > 4 else 0)
        self.ledger.sure = self.ledger.sure + [int(zxid) for zxid in self.member.acked]

    def truncate(self, index: int) -> None:
        keep = self.history.batches[index].position
        self.ledger.instead = last_of(self.history.batches[: index + 1])
        if self.member.truncate(keep):
            self.history.cut(keep)
            self._settle()

    def install(self, count: int) -> None:
        elsewhere = History()
        batches = [elsewhere.next(epoch=2, size_bytes=33) for _ in range(count)]
        self.ledger.instead = last_of(batches)
        if self.member.install(batches) is None:
            self.history = elsewhere
            self._settle()

    def rush(self, count: int) -> None:
        """Everything at once: appends, a snapshot, the epochs, more appends."""
        storage, epochs = self.member.storage, self.ledger.epochs_sure
        self.submit(count)
        writer = storage.snapshot_writer(self.history.end)
        writer.write(encode_tree(self.history.batches), lambda: None)
        writer.finish(lambda _error: None)
        storage.persist_epochs(*epochs, None, lambda: None)
        self.submit(count)
        self.member.run()

    def submit(self, count: int) -> None:
        for _ in range(count):
            batch = self.history.next(self.ledger.epochs_sure[1], size_bytes=120)
            self.ledger.hoped = last_of(self.history.batches)
            acked = partial(self._acked, int(batch.last))
            self.member.storage.append(batch.record, Zxid(0), acked)

    def _acked(self, zxid: int) -> None:
        self.ledger.sure = [*self.ledger.sure, zxid]

    def snapshot(self, index: int) -> None:
        batches = self.history.batches[: index + 1]
        result = self.member.snapshot(batches)
        assert self.member.disk.halted or result is None

    def reopen(self) -> None:
        halt_at = self.member.disk.halt_at
        disk = self.member.disk
        self.member = Member(disk)
        disk.halt_at = halt_at
        self.member.try_recover()

    def _settle(self) -> None:
        self.ledger.sure = self.ledger.hoped = last_of(self.history.batches)
        self.ledger.instead = None


def operations_of_a_life() -> int:
    """How many primitive operations there are to crash after."""
    life = Life(CrashDisk())
    life.live()
    assert zxids(*recovered_from(life.member.disk.copy())) == life.ledger.sure
    return life.member.disk.count


def recovered_from(disk: CrashDisk) -> tuple[Recovered, Tree]:
    """What a start on the disk finds."""
    member = Member(disk)
    return member.recover(), member.tree


TOTAL = operations_of_a_life()


def life_until(halt_at: int) -> Life:
    """The same life, stopped after so many operations."""
    disk = CrashDisk()
    disk.halt_at = halt_at
    life = Life(disk)
    life.live()
    assert disk.halted
    return life


@pytest.mark.parametrize("part", range(10))
def test_a_start_after_a_crash_anywhere_finds_everything_acknowledged(part: int) -> None:
    """F17, F18, F27: lost, kept and torn writes and names, in any mixture, after any operation."""
    for halt_at in range(part, TOTAL, 10):
        life = life_until(halt_at)
        for at, fates in enumerate(FATES):
            disk = life.member.disk.crash(Random(1000 * halt_at + at), fates)
            member = Member(disk)
            recovered = member.recover()
            life.ledger.check(recovered, member)
            goes_on_after(member, recovered)


@pytest.mark.parametrize("part", range(4))
def test_every_subset_of_unsynced_names_is_a_state_to_start_from(part: int) -> None:
    """F18, exhaustive for names: no two changes of a directory are ordered but by its sync."""
    for halt_at in range(1 + part, TOTAL, 4):
        life = life_until(halt_at)
        if not isinstance(life.member.disk.log[-1], Create | Rename | Unlink):
            continue
        states = 1 << len(life.member.disk.pending_names)
        every = (
            range(states)
            if states <= STATES_MAX
            else Random(halt_at).sample(range(states), STATES_MAX)
        )
        for kept in every:
            member = Member(life.member.disk.crash(Random(kept), ("survive", "vanish"), kept))
            life.ledger.check(member.recover(), member)


def goes_on_after(member: Member, recovered: Recovered) -> None:
    """The recovered member works: it promises, appends, and finds that again."""
    before = zxids(recovered, member.tree)
    epoch = recovered.accepted_epoch + 1
    member.persist_epochs(epoch, epoch)
    history = History(member.storage.durable)
    for _ in range(3):  # into a new segment
        member.append(history.next(epoch, size_bytes=250))
    assert member.acked == last_of(history.batches)
    again = Member(member.disk.crash(Random(0), ("vanish",)))
    assert zxids(again.recover(), again.tree) == [*before, *last_of(history.batches)]


@pytest.mark.parametrize("part", range(10))
def test_recovery_may_crash_as_often_as_it_likes(part: int) -> None:
    """F28, S23: five crashes in a row during recovery, and the sixth start finds the same."""
    for halt_at in range(part, TOTAL, 10):
        rng = Random(halt_at)
        life = life_until(halt_at)
        disk = life.member.disk.crash(rng)
        for _ in range(5):
            disk.halt_at = rng.randrange(1, 40)
            Member(disk).try_recover()
            disk = disk.crash(rng)
        member = Member(disk)
        life.ledger.check(member.recover(), member)


def test_without_its_syncs_the_same_life_loses_what_it_acknowledged() -> None:
    """The test above can fail: a disk that skips every sync is found out at once."""
    life = Life(CrashDisk())
    life.live()
    liar = CrashDisk()
    do = liar._do
    liar._do = lambda op: None if isinstance(op, Sync) else do(op)  # type: ignore[method-assign]
    cheated = Life(liar)
    cheated.live()

    member = Member(liar.crash(Random(1), ("vanish",)))

    result = member.try_recover()
    assert not isinstance(result, Recovered) or zxids(result, member.tree) != cheated.ledger.sure


def test_without_directory_syncs_files_go_missing() -> None:
    """M57: a name is no more durable than the directory it stands in."""
    liar = CrashDisk()
    do = liar._do
    liar._do = lambda op: None if isinstance(op, SyncDir) else do(op)  # type: ignore[method-assign]
    life = Life(liar)
    life.live()

    member = Member(liar.crash(Random(1), ("vanish",)))

    result = member.try_recover()
    assert not isinstance(result, Recovered) or zxids(result, member.tree) != life.ledger.sure
