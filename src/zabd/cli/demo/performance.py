"""The demo from curtain to curtain: what happens when, and what is measured on the way.

D1  The leader is killed after a third of the deliveries, under load, and restarted.
D2  After two thirds a worker that holds a lock at that moment is stopped for longer than its
    session may be silent, then continued; it must not act any more.
D3  Whatever is judged is counted outside of the recipe: by the ledger, by the reader of the
    acknowledged writes, and by the members' own digests.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from zabd.cli.demo.crew import Worker
from zabd.cli.demo.deliveries import Deliveries, Outcome
from zabd.cli.demo.display import Display
from zabd.cli.demo.resource import Ledger, serve_ledger
from zabd.cli.members import Ensemble, Member
from zabd.cli.ports import LOOPBACK
from zabd.cli.reaper import Reaper
from zabd.model.errors import NoNodeError, ZabdError

if TYPE_CHECKING:
    from zabd.cli.writer import Writer
    from zabd.client import Client

TICK_MS = 500  # sessions may last 1 to 10 s then; with the default of 2000 the least is 4 s
SESSION_TIMEOUT_MS = 3000
# The frozen holder's work is over long before it is woken, so it is ready to act at once.
FROZEN_WORK_MS = 1000
WRITER_PAUSE_S = 0.01
WRITER_ROOT = "/demo-writes"
POLL_INTERVAL_S = 0.01
PATIENCE_S = 20.0  # for anything that takes a second on a quiet machine


class DemoError(ZabdError):
    """The demo could not go on; the message says what it waited for."""


@dataclass(slots=True)
class Measured:
    """What the acts found out."""

    elections: list[tuple[str, float]] = field(default_factory=list)  # what, milliseconds
    first_write_ms: float | None = None  # from the leader's death to the next acknowledgement
    restarted: int = 0
    holder_held: bool = False  # the frozen worker held the lock at that moment
    holder_released_ms: float | None = None  # from SIGSTOP to the end of its lock
    takeover_ms: float | None = None  # from SIGSTOP to the execution by somebody else
    holder_error: str = ""  # what the woken holder was told
    woken_effects: int = 0  # what it sent to the ledger after it was woken
    late_refused: bool = False  # the late packet with its token
    writes_acknowledged: int = 0
    writes_unknown: int = 0
    writes_lost: dict[int, list[str]] = field(default_factory=dict)  # member -> paths
    states: dict[int, tuple[int, str]] = field(default_factory=dict)  # member -> zxid, digest


class Performance:
    """Everything that is on the stage."""

    def __init__(
        self, folder: Path, display: Display, *, keys: int, copies: int, workers: int, seed: int
    ) -> None:
        self.ledger = Ledger()
        self.measured = Measured()
        self.deliveries = Deliveries(keys, copies, Random(seed))
        self._folder = folder
        self._display = display
        self._reaper = Reaper()
        self._workers = [Worker(number, folder, self._reaper) for number in range(1, workers + 1)]
        self._ensemble = Ensemble(
            folder,
            settings={"tickTime": str(TICK_MS), "initLimit": "10", "syncLimit": "5"},
        )

    @property
    def hosts(self) -> str:
        """The connect string of the three members."""
        return self._ensemble.hosts

    async def play(self) -> None:
        """All acts in order; every process is gone when this returns or raises."""
        from zabd.cli.writer import Writer

        try:
            await self._found()
            writer = Writer(self.hosts, WRITER_ROOT, pause_s=WRITER_PAUSE_S)
            async with self._work_under_way(writer):
                await self._kill_the_leader(writer)
                await self._freeze_a_holder()
            await self._read_back(writer)
            await self._compare_members()
        finally:
            await self._clear_the_stage()

    # Act one: founding.

    async def _found(self) -> None:
        self._display.event(
            f"starting three members below {self._folder}, tickTime {TICK_MS} ms, so that sessions"
            f" of {SESSION_TIMEOUT_MS / 1000:g} s may expire (by default 4 s is the least)"
        )
        began = time.monotonic()
        await asyncio.to_thread(self._ensemble.start)
        took_ms = (time.monotonic() - began) * 1000
        leader = await asyncio.to_thread(self._ensemble.wait_leader)
        epoch = leader.status().epoch
        self.measured.elections.append(
            (f"founding, member {leader.id} leads epoch {epoch}", took_ms)
        )
        self._display.event(
            f"all three serve after {took_ms:.0f} ms, member {leader.id} leads epoch {epoch}"
        )

    @contextlib.asynccontextmanager
    async def _work_under_way(self, writer: "Writer") -> AsyncIterator[None]:
        """Workers, writer and display; leaves when every delivery has ended well."""
        server, port = await serve_ledger(self.ledger, LOOPBACK)
        self.deliveries.limit = self._two_thirds  # the rest waits for the second act
        self._display.event(
            f"{len(self._workers)} workers take {self.deliveries.total} deliveries; a writer beside"
            " them notes every acknowledgement"
        )
        try:
            async with asyncio.TaskGroup() as group:
                background = [
                    group.create_task(writer.run()),
                    group.create_task(self._show_progress(writer)),
                ]
                for worker in self._workers:
                    await worker.start(self.hosts, port, SESSION_TIMEOUT_MS)
                    group.create_task(worker.work(self.deliveries))
                yield
                await self.deliveries.reached(self.deliveries.total)
                writer.stop()
                await asyncio.wait(background[:1])
                background[1].cancel()
        finally:
            server.close()
        self._display.event(f"every one of {self.deliveries.total} deliveries has its outcome")
        await asyncio.gather(*(worker.dismiss() for worker in self._workers))

    # Act two: the leader dies (D1).

    async def _kill_the_leader(self, writer: "Writer") -> None:
        await self.deliveries.reached(self.deliveries.total // 3)
        leader = await asyncio.to_thread(self._ensemble.wait_leader)
        self._display.event(f"SIGKILL to member {leader.id}, the leader, in the middle of the work")
        killed = time.monotonic()
        leader.kill()
        successor = await self._successor_of(leader)
        elected_ms = (time.monotonic() - killed) * 1000
        epoch = successor.status().epoch
        self.measured.elections.append(
            (f"leader {leader.id} killed, member {successor.id} leads epoch {epoch}", elected_ms)
        )
        async with _patience("an acknowledged write"):
            seconds = await writer.acknowledged_after(killed)
        self.measured.first_write_ms = seconds * 1000
        self._display.event(
            f"member {successor.id} leads epoch {epoch} after {elected_ms:.0f} ms; the next write"
            f" was acknowledged after {seconds * 1000:.0f} ms"
        )
        await self._restart(leader)
        await self.deliveries.reached(self._two_thirds - len(self._workers))
        await self.deliveries.raise_limit()

    async def _successor_of(self, leader: Member) -> Member:
        return await asyncio.to_thread(self._ensemble.wait_leader, other_than=leader)

    async def _restart(self, member: Member) -> None:
        began = time.monotonic()
        member.start()
        await asyncio.to_thread(self._ensemble.wait_serving, [member])
        self.measured.restarted += 1
        self._display.event(
            f"member {member.id} is back and serves {(time.monotonic() - began) * 1000:.0f} ms"
            " after its restart"
        )

    # Act three: a holder freezes (D2).

    async def _freeze_a_holder(self) -> None:
        from zabd.client import connect

        victim = await self.deliveries.bring_forward(FROZEN_WORK_MS)
        async with _patience(f"a holder of {victim.key}"):
            worker = await self.deliveries.until(lambda: self._holder_of(victim.key))
        worker.stop()
        stopped = time.monotonic()
        token = worker.held[victim.key]
        async with connect(self.hosts, connect_timeout=PATIENCE_S) as client:
            lock = await _lock_with_token(client, victim.key, token)
            self.measured.holder_held = lock is not None
            self._display.event(
                f"SIGSTOP to worker {worker.number} (session {worker.session_id:#x}), which holds"
                f" the lock of {victim.key} with token {token:#x}"
            )
            if lock is not None:
                async with _patience(f"{lock} to go with its session"):
                    await _gone(client, lock)
        self.measured.holder_released_ms = (time.monotonic() - stopped) * 1000
        async with _patience(f"somebody else to execute {victim.key}"):
            successor = await self.deliveries.until(lambda: self._execution_of(victim.key, worker))
        self.measured.takeover_ms = (time.monotonic() - stopped) * 1000
        self._display.event(
            f"its session expired after {self.measured.holder_released_ms:.0f} ms; another worker"
            f" executed {victim.key} with token {successor.token:#x}, attempt {successor.attempt}"
        )
        await self._wake(worker, victim.key, token)

    async def _wake(self, worker: Worker, key: str, token: int) -> None:
        seen = len(self.ledger.effects)
        failed = len(self.deliveries.failures)
        worker.resume()

        def told() -> str | None:
            later = self.deliveries.failures[failed:]
            return next((each.error for each in later if each.worker == worker.pid), None)

        async with _patience("the woken holder to be told that its session is gone"):
            self.measured.holder_error = await self.deliveries.until(told)
        self.measured.woken_effects = sum(
            effect.worker == worker.pid and effect.token == token and effect.key == key
            for effect in self.ledger.effects[seen:]
        )
        # What the holder might have had under way on a slow network arrives only now.
        late = self.ledger.apply(key, token, worker.pid)
        self.measured.late_refused = late.receipt is None
        acted = f"had {self.measured.woken_effects} effects" if self.measured.woken_effects else ""
        self._display.event(f"SIGCONT: the holder was told {self.measured.holder_error}")
        self._display.event(
            f"it {acted or 'did nothing'}; a late packet with its token was"
            f" {'refused' if late.receipt is None else 'ACCEPTED'}"
        )

    def _holder_of(self, key: str) -> Worker | None:
        return next((worker for worker in self._workers if key in worker.held), None)

    def _execution_of(self, key: str, other_than: Worker) -> Outcome | None:
        return next(
            (
                outcome
                for outcome in self.deliveries.outcomes
                if outcome.delivery.key == key
                and not outcome.replayed
                and outcome.worker != other_than.pid
            ),
            None,
        )

    # Act four: the reckoning (D3).

    async def _read_back(self, writer: "Writer") -> None:
        from zabd.cli.writer import missing

        self.measured.writes_acknowledged = len(writer.acknowledged)
        self.measured.writes_unknown = len(writer.unknown)
        for member in self._ensemble.members:
            self.measured.writes_lost[member.id] = await missing(
                member.address, writer.acknowledged
            )

    async def _compare_members(self) -> None:
        """Wait until no member has anything to catch up with, and note where each stands."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.measured.states = await asyncio.to_thread(self._states)
            if len(set(self.measured.states.values())) == 1 or time.monotonic() > deadline:
                return
            await asyncio.sleep(POLL_INTERVAL_S)

    def _states(self) -> dict[int, tuple[int, str]]:
        return {member.id: _state(member) for member in self._ensemble.members}

    # Behind the scenes.

    @property
    def _two_thirds(self) -> int:
        return self.deliveries.total * 2 // 3

    async def _show_progress(self, writer: "Writer") -> None:
        while True:
            outcomes = self.deliveries.outcomes
            executed = sum(not outcome.replayed for outcome in outcomes)
            self._display.progress(
                len(outcomes),
                self.deliveries.total,
                f"deliveries: {executed} executed, {len(outcomes) - executed} replayed,"
                f" {len(self.deliveries.failures)} to repeat;"
                f" {len(writer.acknowledged)} writes acknowledged",
            )
            await asyncio.sleep(0.05)

    async def _clear_the_stage(self) -> None:
        for worker in self._workers:
            await worker.kill()
        self._reaper.close()
        self._ensemble.close()


@contextlib.asynccontextmanager
async def _patience(what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield
    except TimeoutError:
        raise DemoError(f"waited {PATIENCE_S:g} s in vain for {what}") from None


async def _lock_with_token(client: "Client", key: str, token: int) -> str | None:
    """The path of the lock znode that gave out this token, if it is there; czxid is the token."""
    parent = f"/dedup/{key}"
    await client.sync(parent)
    try:
        names = await client.get_children(parent)
    except NoNodeError:
        return None
    for name in names:
        stat = await client.exists(f"{parent}/{name}")
        if stat is not None and stat.czxid == token and stat.ephemeral_owner:
            return f"{parent}/{name}"
    return None


async def _gone(client: "Client", path: str) -> None:
    """Wait until a znode is gone."""
    woken = asyncio.Event()
    while await client.exists(path, watch=lambda _: woken.set()) is not None:
        await woken.wait()
        woken.clear()


def _state(member: Member) -> tuple[int, str]:
    status = member.status(timeout_s=2.0)
    return status.zxid or 0, status.keys.get("zk_zabd_tree_digest", "unknown")
