"""Claims about records and snapshots on their way between two members' disks."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.server.helpers import Trail, config_of, members, run, until
from tests.storage.members import History
from tests.storage.members import Member as StorageMember

from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import StorageError
from zabd.model.ids import LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.replica import Replica
from zabd.replica.rebuild import TreeBuilder, apply_batch
from zabd.server.driver import Driver
from zabd.server.loop import Loop
from zabd.server.pace import Pace
from zabd.server.peer_link import PeerLink, QuorumChannel
from zabd.server.streams import (
    CHUNK_OVERHEAD_BYTES,
    INCOMING_BYTES_MAX,
    Installation,
    RecordStream,
    SnapshotStream,
    SnapshotTaking,
    digest_of,
)
from zabd.storage import OsDisk, Recovered, Storage, StorageConfig
from zabd.zab.codec import encode
from zabd.zab.events import (
    RecordsStreamed,
    SnapshotInstalled,
    SnapshotStreamed,
    StreamFailed,
    StreamProgressed,
)
from zabd.zab.log import GENESIS, Batch, LogPosition, frame_record
from zabd.zab.messages import (
    Commit,
    FollowerInfo,
    Message,
    Propose,
    Snap,
    SnapshotChunk,
    Standing,
)
from zabd.znode_tree import txns
from zabd.znode_tree.tree import ZnodeTree


class Member:
    """A disk with its storage, and one end of a link."""

    def __init__(self, number: int, directory: Path, ensemble: tuple[object, ...]) -> None:
        loop = asyncio.get_running_loop()
        self.disk = OsDisk(str(directory), loop.call_soon_threadsafe)  # type: ignore[arg-type]
        self.storage = Storage(
            self.disk, self.disk, StorageConfig(), lambda: int(loop.time() * 1000)
        )
        self.builder = TreeBuilder()
        self.number = number
        config = config_of(number, ensemble)  # type: ignore[arg-type]
        self.channel = QuorumChannel(loop, replace(config, tick_ms=2_000), self, Trail())
        self.links: list[LinkId] = []
        self.received: list[Message] = []
        self.reports: list[object] = []
        self.pieces = 0
        self.installation: Installation | None = None
        self.tree: ZnodeTree | None = None
        self.lost = False

    async def open(self) -> None:
        recovered = asyncio.get_running_loop().create_future()
        self.storage.recover(self.builder, self.number, None, recovered.set_result)
        assert isinstance(await recovered, Recovered)
        await self.channel.listen()

    async def close(self) -> None:
        self.channel.close()
        closed = asyncio.get_running_loop().create_future()
        self.storage.close(lambda: closed.set_result(None))
        await closed
        self.disk.close()

    async def append(self, count: int) -> list[Batch]:
        """Make a history of that many batches, one znode each."""
        batches, previous = [], GENESIS.chain
        done = 0

        def persisted() -> None:
            nonlocal done
            done += 1

        for number in range(1, count + 1):
            txn = txns.create(f"/{number:05d}", bytes(200), OPEN_ACL_UNSAFE, 0, number)
            payload = txns.pack_batch(1_000, [(1, number, 0, txn)])
            record = frame_record(Zxid.of(1, number), 1, payload, previous)
            batches.append(Batch.of(record))
            previous = batches[-1].position.chain
            self.storage.append(record, Zxid.of(1, number - 1), persisted)
            apply_batch(self.builder.tree, batches[-1])
        await until(lambda: done == count)
        return batches

    async def take_snapshot(self, position: LogPosition) -> None:
        walk = self.builder.tree.begin_snapshot()
        loop = asyncio.get_running_loop()
        pace = Pace(loop, lambda: 0)
        SnapshotTaking(self.storage, loop, position, walk, pace, self.report).start()
        await until(lambda: self.reports)
        self.reports.clear()

    @property
    def link(self) -> PeerLink:
        link = self.channel.link(self.links[0])
        assert link is not None
        return link

    # As the driver.

    def report(self, event: object) -> None:
        if isinstance(event, StreamProgressed):
            self.pieces += 1
        else:
            self.reports.append(event)

    def dialled(self, link: LinkId, member: MemberId) -> None:
        self.links.append(link)

    def dial_failed(self, member: MemberId) -> None:
        raise AssertionError(member)

    def link_received(self, link: PeerLink, messages: list[Message]) -> None:
        if link.id not in self.links:
            self.links.append(link.id)
        for message in messages:
            if isinstance(message, SnapshotChunk):
                assert self.installation is not None
                self.installation.take(message)
                continue
            self.received.append(message)
            if isinstance(message, Snap):
                self.installation = Installation(
                    self.storage, link, message.position, self.install, self.report
                )

    def link_lost(self, link: PeerLink) -> None:
        self.lost = True

    def install(self, tree: ZnodeTree) -> None:
        self.tree = tree


@asynccontextmanager
async def leader_and_learner(directory: Path) -> AsyncIterator[tuple[Member, Member]]:
    """Two members with a link between them."""
    ensemble = members(2)
    leader = Member(1, directory / "leader", ensemble)
    learner = Member(2, directory / "learner", ensemble)
    await leader.open()
    await learner.open()
    learner.channel.dial(1)
    await until(lambda: learner.links)
    learner.link.send(encode(FollowerInfo(1, None, 2, False, 0, GENESIS, Standing.BLANK)))
    learner.link.flush()
    await until(lambda: leader.links)
    try:
        yield leader, learner
    finally:
        await leader.close()
        await learner.close()
        await until(lambda: leader.lost and learner.lost)


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Path]:
    """Each loop that a test runs on gets a directory of its own."""
    count = iter(range(10))
    return lambda: tmp_path / str(next(count))


def test_a_learner_gets_the_records_it_missed(fresh: Callable[[], Path]) -> None:
    """The frames are those that the leader sent when they were new, from disk, in order."""

    async def scenario() -> None:
        async with leader_and_learner(fresh()) as (leader, learner):
            batches = await leader.append(300)
            stream = RecordStream(
                leader.storage,
                leader.link,
                batches[9].position,
                batches[249].last,
                leader.report,
            )
            stream.start()
            await until(lambda: leader.reports and len(learner.received) == 240)

            assert leader.reports == [RecordsStreamed(leader.links[0], batches[249].position)]
            assert learner.received == [
                Propose(batch.first, batch.count, batch.record) for batch in batches[10:250]
            ]

    run(scenario)


def test_a_learner_hears_that_what_it_gets_is_committed(fresh: Callable[[], Path]) -> None:
    """Behind each piece, so that it never has to keep more than one of them in memory."""

    async def scenario() -> None:
        async with leader_and_learner(fresh()) as (leader, learner):
            batches = await leader.append(300)
            stream = RecordStream(
                leader.storage,
                leader.link,
                GENESIS,
                batches[249].last,
                leader.report,
                told=True,
            )
            stream.start()
            await until(lambda: leader.reports and len(learner.received) == 251)

            assert learner.received[-1] == Commit(batches[249].last)

    run(scenario)


def test_records_that_are_not_there_end_the_stream(fresh: Callable[[], Path]) -> None:
    """The leader then hangs up, and the learner comes again for a snapshot."""

    async def scenario() -> None:
        async with leader_and_learner(fresh()) as (leader, _):
            await leader.append(3)
            elsewhere = LogPosition(Zxid.of(1, 1), b"elsewher")
            link = leader.link
            for after, upto in ((elsewhere, Zxid.of(1, 3)), (GENESIS, Zxid.of(1, 9))):
                leader.reports.clear()
                RecordStream(leader.storage, link, after, upto, leader.report).start()
                await until(lambda: leader.reports)
                assert leader.reports == [StreamFailed(link.id)]

    run(scenario)


def test_nothing_missed_is_the_end_at_once(fresh: Callable[[], Path]) -> None:
    """No frame is needed for a learner that is up to date."""

    async def scenario() -> None:
        async with leader_and_learner(fresh()) as (leader, _):
            position = LogPosition(Zxid.of(1, 3), bytes(8))
            RecordStream(
                leader.storage, leader.link, position, position.zxid, leader.report
            ).start()

            assert leader.reports == [RecordsStreamed(leader.links[0], position)]

    run(scenario)


def test_a_snapshot_travels_and_becomes_the_learners_state(fresh: Callable[[], Path]) -> None:
    """Tree, log position and digest are the leader's; the next start finds them there."""

    async def scenario() -> None:
        async with leader_and_learner(fresh()) as (leader, learner):
            batches = await leader.append(500)
            position = batches[-1].position
            await leader.take_snapshot(position)
            SnapshotStream(leader.storage, leader.link, leader.report).start()
            await until(lambda: leader.reports and learner.reports)

            assert leader.reports == [SnapshotStreamed(leader.links[0], position)]
            assert learner.received == [Snap(position)]
            assert learner.reports == [SnapshotInstalled(learner.links[0], position)]
            assert learner.tree is not None
            assert learner.tree.digest == leader.builder.tree.digest
            assert learner.storage.durable == position
            assert learner.storage.snapshot == position
            # Sent; written, read back, and loaded.
            assert leader.pieces >= 1
            assert learner.pieces >= 3

    run(scenario)


class StillLoop:
    """A clock that a test sets; what is to be called waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        """Nothing is called: the events stay where they are."""


def driver_of(loop: StillLoop, storage: object) -> Driver:
    """A driver whose events stay where they are."""
    config = replace(config_of(1, members(2)), tick_ms=2_000)
    return Driver(
        cast("Loop", loop),
        config,
        cast("Storage", storage),
        random.Random(1),
        Trail(),
        lambda _error: None,
    )


def test_the_replica_hears_of_a_streams_progress_now_and_then() -> None:
    """Twice a tick is enough to know that it goes on; a turn for every piece would be waste."""
    loop, link = StillLoop(), LinkId(7)
    driver = driver_of(loop, SimpleNamespace())
    driver._start_stream(link, cast("RecordStream", SimpleNamespace(start=lambda: None)))
    for now_ms in range(0, 10_001, 10):
        loop.now_s = now_ms / 1_000
        driver._stream_reported(link, StreamProgressed(link))
    driver._stream_reported(link, StreamFailed(link))

    assert [*driver._events] == 10 * [StreamProgressed(link)] + [StreamFailed(link)]
    assert not driver._streams
    assert not driver._progress_ms


class Sending:
    """A leader that sends its newest snapshot over a link, and goes on taking others."""

    def __init__(self, *, writable: bool = True) -> None:
        self.history = History()
        self.member = StorageMember().founded()
        self.driver = driver_of(StillLoop(), self.member.storage)
        self.in_step: dict[LinkId, MemberId] = {}
        self.driver._replica = cast(
            "Replica", SimpleNamespace(peer=SimpleNamespace(learner_links=self.in_step))
        )
        link = SimpleNamespace(
            id=LinkId(7),
            send=lambda _frame: None,
            flush=lambda: None,
            when_writable=lambda call: call() if writable else None,
        )
        self.link = cast("PeerLink", link)
        self.take_snapshots(1)
        self.sent = self.history.end
        report = partial(self.driver._stream_reported, self.link.id)
        stream = SnapshotStream(self.member.storage, self.link, report)
        self.driver._start_stream(self.link.id, stream)
        self.member.run()

    def take_snapshots(self, count: int) -> None:
        for _ in range(count):
            for _ in range(20):
                self.member.append(self.history.next(), committed=self.history.end.zxid)
            assert self.member.snapshot(self.history.batches) is None

    def log_reaches_back(self) -> bool:
        answers: list[list[Batch] | None] = []
        self.member.storage.read_records(self.sent, 100, answers.append)
        self.member.run()
        return answers != [None]


@pytest.mark.parametrize("how", ["it is in step", "its link is gone"])
def test_the_log_behind_a_snapshot_stays_until_its_learner_needs_no_more_of_it(how: str) -> None:
    """The last chunk is sent long before the learner has installed it and asks for the rest."""
    sending = Sending()
    assert sending.driver._events[-1] == SnapshotStreamed(sending.link.id, sending.sent)

    sending.take_snapshots(5)
    sending.driver._elapsed()
    assert sending.log_reaches_back()

    if how == "it is in step":
        sending.in_step[sending.link.id] = MemberId(2)
        sending.driver._elapsed()
    else:
        sending.driver.link_lost(sending.link)
    sending.take_snapshots(1)
    assert not sending.log_reaches_back()


def test_a_learner_that_is_ahead_of_what_is_sent_to_it_loses_its_link() -> None:
    """It says Aligned while its snapshot is under way: neither reader is left open for ever."""
    sending = Sending(writable=False)
    driver, link = sending.driver, sending.link
    assert [*driver._streams] == [link.id]

    report = partial(driver._stream_reported, link.id)
    records = RecordStream(
        sending.member.storage, link, sending.sent, sending.history.end.zxid, report
    )
    driver._start_stream(link.id, records)

    assert [*driver._events] == 2 * [StreamFailed(link.id)]
    assert not driver._streams
    sending.take_snapshots(5)
    assert not sending.log_reaches_back()


def test_there_may_be_no_snapshot_yet(fresh: Callable[[], Path]) -> None:
    """Then the stream ends before it begins."""

    async def scenario() -> None:
        async with leader_and_learner(fresh()) as (leader, _):
            SnapshotStream(leader.storage, leader.link, leader.report).start()

            assert leader.reports == [StreamFailed(leader.links[0])]

    run(scenario)


def test_a_link_that_goes_ends_both_sides_and_changes_nothing(
    fresh: Callable[[], Path],
) -> None:
    """A broken transfer leaves the old state in place (S18), and each side says so once (T1)."""

    async def scenario() -> None:
        async with leader_and_learner(fresh()) as (leader, learner):
            batches = await leader.append(50)
            await leader.take_snapshot(batches[-1].position)
            leader.link.send(encode(Snap(batches[-1].position)))
            leader.link.send(encode(SnapshotChunk(0, b"half", False, digest_of(b"half"))))
            leader.link.flush()
            await until(lambda: learner.installation)
            assert learner.installation is not None
            stream = SnapshotStream(leader.storage, leader.link, leader.report)
            stream.start()
            stream.abandon()
            stream.abandon()
            learner.installation.abandon()
            learner.installation.abandon()

            assert leader.reports == [StreamFailed(leader.links[0])]
            assert learner.reports == [StreamFailed(learner.links[0])]
            assert learner.tree is None
            assert learner.storage.snapshot is None
            assert learner.storage.durable == GENESIS

    run(scenario)


@pytest.mark.parametrize(
    "chunk",
    [
        SnapshotChunk(0, b"data", False, bytes(16)),
        SnapshotChunk(4, b"data", False, digest_of(b"data")),
        SnapshotChunk(0, b"", False, digest_of(b"")),
    ],
    ids=["another digest", "another offset", "nothing in it"],
)
def test_a_chunk_that_does_not_fit_costs_the_link(
    fresh: Callable[[], Path], chunk: SnapshotChunk
) -> None:
    """What was damaged on its way must not reach the disk."""

    async def scenario() -> None:
        async with leader_and_learner(fresh()) as (leader, learner):
            leader.link.send(encode(Snap(LogPosition(Zxid.of(1, 1), bytes(8)))))
            leader.link.send(encode(chunk))
            leader.link.flush()
            await until(lambda: learner.lost)

            assert learner.installation is not None
            learner.installation.abandon()
            assert learner.reports == [StreamFailed(learner.links[0])]

    run(scenario)


def test_many_small_chunks_are_a_snapshot_like_another(fresh: Callable[[], Path]) -> None:
    """T3: they wait behind one write, and lie as thousands of blocks in what is read at once."""

    async def scenario() -> None:
        async with leader_and_learner(fresh()) as (leader, learner):
            batches = await leader.append(500)
            position = batches[-1].position
            await leader.take_snapshot(position)
            reader, content = leader.storage.snapshot_reader(), b""
            assert reader is not None

            def read(piece: bytes | StorageError | None) -> None:
                nonlocal content
                assert not isinstance(piece, StorageError)
                if piece is not None:
                    content += piece
                    reader.read(read)

            reader.read(read)
            await until(lambda: len(content) == reader.size_bytes)
            reader.close()

            learner.received.clear()
            leader.link.send(encode(Snap(position)))
            for at in range(0, len(content), 20):
                piece = content[at : at + 20]
                chunk = SnapshotChunk(at, piece, at + 20 >= len(content), digest_of(piece))
                leader.link.send(encode(chunk))
            leader.link.flush()
            await until(lambda: learner.reports)

            assert learner.pieces > 2_000
            assert learner.reports == [SnapshotInstalled(learner.links[0], position)]
            assert learner.tree is not None
            assert learner.tree.digest == leader.builder.tree.digest

            # And on to the next one.
            SnapshotStream(learner.storage, learner.link, learner.report).start()
            await until(lambda: len(learner.reports) == 2)
            assert learner.reports[1] == SnapshotStreamed(learner.links[0], position)

    run(scenario)


def test_chunks_that_wait_weigh_more_than_their_data(fresh: Callable[[], Path]) -> None:
    """Else the leader would be read on while millions of bytes come one by one."""

    async def scenario() -> None:
        async with leader_and_learner(fresh()) as (_, learner):
            paused: list[bool] = []
            link = SimpleNamespace(
                id=1, pause_reading=lambda: paused.append(True), resume_reading=lambda: None
            )
            installation = Installation(
                learner.storage,
                cast("PeerLink", link),
                LogPosition(Zxid.of(1, 1), bytes(8)),
                learner.install,
                learner.report,
            )
            for at in range(INCOMING_BYTES_MAX // CHUNK_OVERHEAD_BYTES + 2):
                installation.take(SnapshotChunk(at, b"x", False, digest_of(b"x")))
            installation.abandon()

            assert paused

    run(scenario)


def test_content_that_is_no_tree_is_not_installed_as_one(fresh: Callable[[], Path]) -> None:
    """The log has begun behind it by then: this incarnation ends, and the next start checks."""

    async def scenario() -> None:
        async with leader_and_learner(fresh()) as (leader, learner):
            failures: list[Exception] = []
            learner.storage.on_failure = failures.append
            leader.link.send(encode(Snap(LogPosition(Zxid.of(1, 1), bytes(8)))))
            leader.link.send(encode(SnapshotChunk(0, b"junk", False, digest_of(b"junk"))))
            leader.link.send(encode(SnapshotChunk(4, b"", True, digest_of(b""))))
            leader.link.flush()
            await until(lambda: failures)

            assert learner.tree is None
            assert learner.reports == []

    run(scenario)
