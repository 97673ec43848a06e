"""Playing with an ensemble: moves (kill this one now, cut that one off), and the run they make.

Nothing is kept between two looks: a game is a seed, moves and an end, and each look runs it from
the beginning. So going on, taking a move back and forking from any point are all the same thing.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from zabd.client import Client, connect
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.picture import playable
from zabd.cluster_sim.scenario import Scenario, simulate
from zabd.model.errors import NodeExistsError, NoNodeError, ZabdError
from zabd.model.watch_events import WatchEvent

PATH: Final = "/game"

VERBS: Final = ("kill", "power_off", "start", "pause", "resume", "cut_off", "heal")
"""What can be done to a member; `heal` opens all paths, whoever it is said of."""

MEMBERS_MAX: Final = 7
MOVES_MAX: Final = 100
UNTIL_MS_MAX: Final = 60_000  # about 100,000 events: a page that is still quick


class Move(NamedTuple):
    """Something done to one member at one instant."""

    at_us: int
    verb: str
    member: int

    @classmethod
    def of(cls, text: str) -> "Move":
        """From `at_us:verb:member`. Raises ValueError if it is not that."""
        at_us, verb, member = text.split(":")
        if verb not in VERBS:
            raise ValueError(f"{verb!r} is not one of {', '.join(VERBS)}")
        return cls(int(at_us), verb, int(member))

    def __str__(self) -> str:
        return f"{self.at_us}:{self.verb}:{self.member}"


@dataclass(frozen=True, slots=True)
class Game:
    """A seed, how many members, what was done to them, and until when to look."""

    seed: int = 1
    members: int = 3
    until_ms: int = 1_000
    moves: tuple[Move, ...] = ()

    def __post_init__(self) -> None:
        """Refuse, with a ValueError, what could not be looked at."""
        if not 1 <= self.members <= MEMBERS_MAX:
            raise ValueError(f"a game has 1 to {MEMBERS_MAX} members, not {self.members}")
        if not 1 <= self.until_ms <= UNTIL_MS_MAX:
            raise ValueError(f"a game is over after {UNTIL_MS_MAX} ms, not {self.until_ms}")
        if len(self.moves) > MOVES_MAX:
            raise ValueError(f"a game has at most {MOVES_MAX} moves")
        if any(not 1 <= move.member <= self.members for move in self.moves):
            raise ValueError("a move is about a member that there is")

    def page(self) -> str:
        """The picture of it, with the buttons for the next move."""
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "game.html")
            with suppress(InvariantError):  # the page says which
                simulate(self.experiment, seed=self.seed, members=self.members, html=file)
            return playable(file.read_text(encoding="utf-8"), self._as_object())

    def _as_object(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "members": self.members,
            "until_ms": self.until_ms,
            "until_ms_max": UNTIL_MS_MAX,
            "moves": [str(move) for move in self._in_order()],
            "verbs": VERBS,
            "python": self.as_python(),
        }

    def _in_order(self) -> list[Move]:
        return sorted(self.moves, key=lambda move: move.at_us)

    async def experiment(self, scenario: Scenario) -> None:
        """The game as an experiment: two clients at work, and the moves."""
        scenario.spawn("writer", lambda: writer(scenario.hosts))
        scenario.spawn("reader", lambda: reader(scenario.hosts))
        now_us = 0
        for move in self._in_order():
            if move.at_us > now_us:
                await asyncio.sleep((move.at_us - now_us) / 1e6)
                now_us = move.at_us
            do(scenario, move)
        await asyncio.sleep(max(0, self.until_ms * 1_000 - now_us) / 1e6)

    def as_python(self) -> str:
        """A program that is this game, to go on from."""
        return _program(self.seed, self.members, self.until_ms, self._in_order())


def do(scenario: Scenario, move: Move) -> None:
    """Make one move."""
    member = scenario.members[move.member]
    match move.verb:
        case "cut_off":
            others = [other for other in scenario.members.values() if other is not member]
            scenario.partition([member], others)
        case "heal":
            scenario.heal()
        case "kill":
            member.kill()
        case "power_off":
            member.power_off()
        case "start":
            member.start()
        case "pause":
            member.pause()
        case _:
            member.resume()


async def writer(hosts: str) -> None:
    """A program that writes to one znode, again and again."""
    count = 0
    while True:
        try:
            async with connect(hosts, timeout=2.0) as client:
                await _ensure(client)
                while True:
                    count += 1
                    await client.set(PATH, str(count).encode())
                    await asyncio.sleep(0.05)
        except ZabdError:
            await asyncio.sleep(0.1)


async def reader(hosts: str) -> None:
    """A program that reads that znode, and is told of each change by a watch."""
    while True:
        try:
            async with connect(hosts, timeout=2.0) as client:
                while True:
                    changed = asyncio.Event()

                    def tell(_: WatchEvent, changed: asyncio.Event = changed) -> None:
                        changed.set()

                    try:
                        await client.get(PATH, watch=tell)
                    except NoNodeError:
                        await asyncio.sleep(0.05)
                        continue
                    await changed.wait()
        except ZabdError:
            await asyncio.sleep(0.1)


async def _ensure(client: Client) -> None:
    try:
        await client.create(PATH, b"0")
    except NodeExistsError:
        return


def _program(seed: int, members: int, until_ms: int, moves: Sequence[Move]) -> str:
    lines = [
        "import asyncio",
        "",
        "from zabd.cluster_sim import Scenario, simulate",
        "from zabd.cluster_sim.play import reader, writer",
        "",
        "",
        "async def experiment(scenario: Scenario) -> None:",
        '    scenario.spawn("writer", lambda: writer(scenario.hosts))',
        '    scenario.spawn("reader", lambda: reader(scenario.hosts))',
    ]
    now_us = 0
    for move in moves:
        if move.at_us > now_us:
            lines.append(f"    await asyncio.sleep({(move.at_us - now_us) / 1e6})")
            now_us = move.at_us
        lines.append(f"    {_call(move)}")
    lines.append(f"    await asyncio.sleep({max(0, until_ms * 1_000 - now_us) / 1e6})")
    call = f'simulate(experiment, seed={seed}, members={members}, html="run.html")'
    return "\n".join([*lines, "", "", call, ""])


def _call(move: Move) -> str:
    member = f"scenario.members[{move.member}]"
    if move.verb == "heal":
        return "scenario.heal()"
    if move.verb == "cut_off":
        others = f"[m for m in scenario.members.values() if m.id != {move.member}]"
        return f"scenario.partition([{member}], {others})"
    return f"{member}.{move.verb}()"
