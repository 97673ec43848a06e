"""What a lesson is, and the stage that it happens on.

A lesson is a module: its docstring says what happens, `experiment`s make it happen, and `LESSON`
names it. It asserts everything that it tells, so it cannot tell what is not so.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from zabd.client import Client
from zabd.client.metrics import OPERATION_LATENCY, WATCH_NOTIFICATIONS
from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.picture import drawing
from zabd.cluster_sim.scenario import MemberControl, Scenario, simulate
from zabd.cluster_sim.schedule import US_PER_S
from zabd.cluster_sim.zab_checks import Incarnation
from zabd.model.ids import LinkId
from zabd.model.metrics import MemoryMetrics, Metric, MetricKind
from zabd.model.watch_events import WatchEvent
from zabd.model.zxid import Zxid
from zabd.zab.messages import Message

T = TypeVar("T")

SEED: Final = 1

DEADLINE_S: Final = 120.0  # of virtual time: no lesson takes longer


@dataclass(frozen=True, slots=True)
class Lesson:
    """One thing to understand, and the run that shows it."""

    name: str
    title: str
    question: str
    """What to predict before it is run."""
    run: Callable[["Stage"], None]
    look: str = ""
    """What there is to see in the picture; empty if there is none."""


class Stage:
    """Runs the experiments of a lesson, keeps what they tell, draws them if `html` says where."""

    def __init__(self, html: Path | None = None) -> None:
        self.lines: list[str] = []
        self.pictures: list[Path] = []
        self._html = html
        self._level: CoreLevel | None = None

    def say(self, text: str) -> None:
        """Tell the reader something, with the virtual time while an experiment is going on."""
        if self._level is not None:
            self._level.trace.record("lesson", text)
            text = f"{self._level.schedule.now_us / US_PER_S:8.3f} s  {text}"
        self.lines.append(text)

    def simulate(
        self,
        experiment: Callable[[Scenario], Awaitable[T]],
        *,
        seed: int = SEED,
        **options: Any,  # noqa: ANN401 - as simulate has them
    ) -> T:
        """As `zabd.cluster_sim.simulate`; the second and later pictures have a number."""

        async def staged(scenario: Scenario) -> T:
            self._level = scenario.level
            return await experiment(scenario)

        options.setdefault("deadline", DEADLINE_S)
        try:
            return simulate(staged, seed=seed, html=self._next_picture(), **options)
        finally:
            self._level = None

    @contextmanager
    def level(self, level: CoreLevel) -> Iterator[None]:
        """An experiment without clients, on bare peers: draw it, and tell its time."""
        self._level, file = level, self._next_picture()
        try:
            with nullcontext() if file is None else drawing(level, file):
                yield
        finally:
            self._level = None
            level.end()

    def _next_picture(self) -> Path | None:
        if self._html is None:
            return None
        number = len(self.pictures) + 1
        name = self._html if number == 1 else self._html.with_stem(f"{self._html.stem}-{number}")
        self.pictures.append(name)
        return name


class Bell:
    """What a watch rings, for one who waits."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self, _event: WatchEvent) -> None:
        """The watch has fired."""
        self._rung.set()

    async def wait(self) -> None:
        """Until it has."""
        await self._rung.wait()


def where(member: MemberControl) -> str:
    """A member in a few words: what it is, in which epoch, how far its log and its commits go."""
    peer = member.peer
    if peer is None:
        return f"{member.host.name} is down"
    return (
        f"{member.host.name} {peer.state.name.lower()}, epoch {peer.current_epoch}: "
        f"log to {peer.durable_zxid!r}, committed {peer.committed_zxid!r}"
    )


def durable(member: MemberControl) -> Zxid:
    """How far the log on a member's disk goes; 0 while it is down."""
    return member.peer.durable_zxid if member.peer is not None else Zxid(0)


def committed(member: MemberControl) -> Zxid:
    """What a member knows to be committed; 0 while it is down."""
    return member.peer.committed_zxid if member.peer is not None else Zxid(0)


async def leader_and_followers(
    scenario: Scenario,
) -> tuple[MemberControl, list[MemberControl]]:
    """Who leads, and the other members, once all of them serve."""
    leader = await scenario.leader()
    others = [member for member in scenario.members.values() if member is not leader]
    await scenario.until(
        lambda: all(member.peer is not None and member.peer.serving for member in others)
    )
    return leader, others


def address(member: MemberControl) -> str:
    """The connect string of one member."""
    return f"{member.host.name}:2181"


def told(scenario: Scenario, word: str) -> list[str]:
    """What members have said of themselves that begins with this word, oldest first."""
    said = (line.partition("] ")[2] for line in scenario.level.trace.lines)
    return [line for line in said if line.partition(" ")[2].startswith(f"{word} ")]


async def all_serve(scenario: Scenario) -> None:
    """Wait until every member serves."""
    members = scenario.members.values()
    await scenario.until(lambda: all(m.peer is not None and m.peer.serving for m in members))


def count(zk: Client, metric: Metric) -> int:
    """How much a client has counted of this, under all labels."""
    metrics = zk.metrics
    assert isinstance(metrics, MemoryMetrics), "the one that a client has by default"
    if metric.kind is MetricKind.HISTOGRAM:
        return sum(each.count for each in metrics.histograms(metric).values())
    return int(sum(metrics.values(metric).values()))


def requests(zk: Client) -> int:
    """How many requests of a client were answered."""
    return count(zk, OPERATION_LATENCY)


def notifications(zk: Client) -> int:
    """How many watch events have come to a client."""
    return count(zk, WATCH_NOTIFICATIONS)


def listening(scenario: Scenario) -> Counter[str]:
    """Counts what members say to each other from now on, by the name of the message."""
    said: Counter[str] = Counter()
    checker = scenario.level.checker
    sent = checker.sent

    def noted(who: Incarnation, link: LinkId, message: Message) -> None:
        said[type(message).__name__] += 1
        sent(who, link, message)

    vars(checker)["sent"] = noted
    return said
