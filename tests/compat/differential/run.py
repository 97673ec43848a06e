"""One script on two servers, and what is left of it when they differ and it is shrunk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.compat.differential import script as s
from tests.compat.differential.answers import read_answers
from tests.compat.differential.comparison import Comparison, Difference
from tests.compat.differential.player import CONTROL, OPENING, Heard, Player, Stage, look_at

from zabd.model import Children2Result, OpCode

LOOKED_AT_MAX = 300
"""Znodes compared one by one at the end of a script."""


class Found(NamedTuple):
    """A difference, and the step that showed it (None: looking at the tree afterwards)."""

    difference: Difference
    step: int | None


class Statistics:
    """What was sent and what came back, over all scripts."""

    def __init__(self) -> None:
        self.scripts = 0
        self.requests = 0
        self.opcodes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.intended: Counter[str] = Counter()

    def note(self, step: s.Step, heard: Heard) -> None:
        """Count a step of a script and the reference's answers to it."""
        self.requests += s.count_requests((step,))
        self.opcodes.update(_word(s.opcode_of(request)) for request in s.requests_of(step))
        for name, frames in heard.frames.items():
            connected = isinstance(step, s.Connect) and name == step.name
            requests = s.requests_of(step) if name == step.name else ()
            answers = read_answers(frames[connected:], requests)
            self.errors.update(str(answer.error) for answer in answers.answers)
            behind = [answers.events, *[answer.events for answer in answers.answers]]
            self.events.update(
                each.event.type.name for events in behind for each in events if each.event
            )


def _word(opcode: int) -> str:
    try:
        return OpCode(opcode).name
    except ValueError:
        return "unknown"


class Duel:
    """Two targets and how to compare them; `left` is the reference."""

    def __init__(self, left: Stage, right: Stage, *, only_left_logs_checks: bool = False) -> None:
        self._only_left_logs_checks = only_left_logs_checks
        self._left = left
        self._right = right
        self.statistics = Statistics()

    def play(self, script: s.Script, *, count: bool = True) -> Found | None:
        """The first difference, if there is one."""
        statistics = self.statistics if count else Statistics()
        comparison = Comparison(
            statistics.intended, only_left_logs_checks=self._only_left_logs_checks
        )
        left, right = self._left.player(), self._right.player()
        try:
            for number, step in [(None, OPENING), *enumerate(script)]:
                difference = self._both(comparison, step, left, right, statistics)
                if difference:
                    return Found(difference, number)
            return self._look(comparison, left, right)
        finally:
            left.finish()
            right.finish()
            statistics.scripts += 1

    def _both(
        self,
        comparison: Comparison,
        step: s.Step,
        left: Player,
        right: Player,
        statistics: Statistics,
    ) -> Difference | None:
        mine, theirs = left.play(step), right.play(step)
        if step is not OPENING:
            statistics.note(step, mine)
        return comparison.step(step, mine, theirs)

    def _look(self, comparison: Comparison, left: Player, right: Player) -> Found | None:
        """Compare every znode that the script left behind."""
        level, seen = [s.ROOT], 0
        while level and seen < LOOKED_AT_MAX:
            step = look_at(level)
            mine, theirs = left.play(step), right.play(step)
            difference = comparison.step(step, mine, theirs)
            if difference:
                return Found(difference, None)
            seen += len(level)
            level = list(_children(level, step, mine))
        return None

    # ---- shrinking -------------------------------------------------------------------------

    def shrink(self, script: s.Script, found: Found, tries_max: int = 600) -> s.Script:
        """A script as small as can be that shows a difference of the same kind."""
        if found.step is not None:
            script = script[: found.step + 1]
        tries = 0

        def still(candidate: s.Script) -> bool:
            nonlocal tries
            tries += 1
            if tries > tries_max:
                return False
            again = self._play_if_possible(candidate)
            return again is not None and again.difference.kind == found.difference.kind

        smaller = True
        while smaller and tries <= tries_max:
            smaller = False
            for make in (_without_steps, _without_requests, _simpler):
                script, changed = _reduce(script, make, still)
                smaller = smaller or changed
        return script

    def _play_if_possible(self, script: s.Script) -> Found | None:
        try:
            return self.play(script, count=False)
        except KeyError:
            return None  # it uses a connection that it never opened


def _children(level: list[str], step: s.Step, heard: Heard) -> Iterator[str]:
    answers = read_answers(heard.frames[CONTROL], s.requests_of(step)).answers
    for path, answer in zip(level, answers[1::2], strict=False):
        if isinstance(answer.result, Children2Result):
            yield from (f"{path}/{name}" for name in sorted(answer.result.children))


Make = Callable[[s.Script], Iterator[s.Script]]


def _reduce(
    script: s.Script, make: Make, still: Callable[[s.Script], bool]
) -> tuple[s.Script, bool]:
    changed = False
    again = True
    while again:
        again = False
        for candidate in make(script):
            if still(candidate):
                script, changed, again = candidate, True, True
                break
    return script, changed


def _without_steps(script: s.Script) -> Iterator[s.Script]:
    size = len(script) // 2
    while size:
        for at in range(0, len(script), size):
            yield script[:at] + script[at + size :]
        size //= 2


def _without_requests(script: s.Script) -> Iterator[s.Script]:
    for number, step in enumerate(script):
        requests = s.requests_of(step)
        for at in range(len(requests)):
            fewer = requests[:at] + requests[at + 1 :]
            if fewer or isinstance(step, s.Connect):
                yield _put(script, number, step._replace(requests=fewer))  # type: ignore[union-attr]


def _simpler(script: s.Script) -> Iterator[s.Script]:
    for number, step in enumerate(script):
        if isinstance(step, s.Connect):
            for name, default in type(step)._field_defaults.items():
                if getattr(step, name) != default:
                    yield _put(script, number, step._replace(**{name: default}))
        for at, request in enumerate(s.requests_of(step)):
            for simple in _simpler_requests(request):
                requests = s.requests_of(step)
                changed = (*requests[:at], simple, *requests[at + 1 :])
                yield _put(script, number, step._replace(requests=changed))  # type: ignore[union-attr]


def _simpler_requests(request: s.Request) -> Iterator[s.Request]:
    if isinstance(request, s.Xid):
        yield request.request
        return
    if isinstance(request, s.Raw):
        return
    for name in request._fields:
        value = getattr(request, name)
        if name in _MANY and isinstance(value, tuple) and value:
            for at in range(len(value)):
                yield request._replace(**{name: value[:at] + value[at + 1 :]})
        elif name in _SIMPLEST and value != _SIMPLEST[name] and not isinstance(value, tuple):
            yield request._replace(**{name: _SIMPLEST[name]})


_MANY = frozenset(("ops", "data", "exist", "child", "persistent", "persistent_recursive"))
_SIMPLEST = {"data": b"", "version": -1, "watch": False}


def _put(script: s.Script, number: int, step: s.Step) -> s.Script:
    return (*script[:number], step, *script[number + 1 :])
