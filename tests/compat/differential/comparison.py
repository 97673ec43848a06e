"""The comparison: are two servers' answers to one script the same?

Invariants
    E1  Everything is compared but what two servers cannot have in common: zxids by their order,
        session ids and passwords by which is which, times not at all.
    E2  What differs all the same is a difference, unless a rule in `differences` explains it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from tests.compat.differential import script as s
from tests.compat.differential.answers import Answer, Answers, Happening, read_answers
from tests.compat.differential.differences import INTENDED, Case, Events, Knowledge
from tests.compat.differential.player import Heard

from zabd.model import (
    Acl,
    AclResult,
    Children2Result,
    ChildrenResult,
    ConnectResponse,
    EphemeralsResult,
    MultiResult,
    OpCode,
    RemoteProtocolError,
    Stat,
    WhoAmIResult,
)
from zabd.wire.replies import decode_connect_response

_ZXIDS = ("czxid", "mzxid", "pzxid")
_TIMES = ("ctime", "mtime")


class Difference(NamedTuple):
    """Where two servers disagree; `kind` is what stays the same while the script is shrunk."""

    kind: str
    text: str


class Order:
    """Which zxid of one server is which of the other: one to one, in the same order."""

    def __init__(self) -> None:
        self._pairs: dict[int, int] = {0: 0, -1: -1}
        self._lefts: list[int] = [-1, 0]
        self._rights: list[int] = [-1, 0]

    def same(self, left: int, right: int) -> bool:
        """Whether they may be the same moment; from then on they are."""
        if left in self._pairs:
            return self._pairs[left] == right
        at = bisect_left(self._lefts, left)
        if at != bisect_left(self._rights, right) or self._rights[at : at + 1] == [right]:
            return False
        self._lefts.insert(at, left)
        self._rights.insert(at, right)
        self._pairs[left] = right
        return True


class Pairs:
    """Which value of one server is which of the other, one to one."""

    def __init__(self, *same: object) -> None:
        self._left = {each: each for each in same}
        self._right = {each: each for each in same}

    def same(self, left: object, right: object) -> bool:
        """Whether they may stand for the same; from then on they do."""
        return (
            self._left.setdefault(left, right) == right
            and self._right.setdefault(right, left) == left
        )


class Comparison:
    """Of one script; steps come in their order."""

    def __init__(self, used: Counter[str], *, only_left_logs_checks: bool) -> None:
        self.knowledge = Knowledge(only_left_logs_checks=only_left_logs_checks)
        self._used = used
        self._zxids = Order()
        self._sessions = Pairs(0)
        self._passwords = Pairs(bytes(16))

    def step(self, step: s.Step, left: Heard, right: Heard) -> Difference | None:
        """The first difference in what the step made the clients hear."""
        self.knowledge.learn(step)
        for name in sorted(left.frames.keys() | right.frames.keys()):
            mine, theirs = left.frames.get(name, ()), right.frames.get(name, ())
            difference = self._connection(step, name, mine, theirs)
            if difference:
                return difference
        if left.closed != right.closed:
            names = sorted(left.closed ^ right.closed)
            opcodes = [s.opcode_of(request) for request in s.requests_of(step)]
            return Difference(
                f"closed after {type(step).__name__} {opcodes}",
                f"only one server closed {names}: {sorted(left.closed)} {sorted(right.closed)}",
            )
        return None

    # ---- one connection --------------------------------------------------------------------

    def _connection(
        self, step: s.Step, name: str, left: tuple[bytes, ...], right: tuple[bytes, ...]
    ) -> Difference | None:
        requests = s.requests_of(step) if name == step.name else ()
        if isinstance(step, s.Connect) and name == step.name:
            different = self._handshake(left[:1], right[:1])
            if different:
                return Difference("handshake", different)
            left, right = left[1:], right[1:]
        mine, theirs = read_answers(left, requests), read_answers(right, requests)
        return self._answers(step, name, mine, theirs)

    def _handshake(self, left: tuple[bytes, ...], right: tuple[bytes, ...]) -> str | None:
        if not left or not right:
            return None if left == right else f"a handshake: {left!r} and {right!r}"
        try:
            mine, theirs = decode_connect_response(left[0]), decode_connect_response(right[0])
        except RemoteProtocolError:
            return None if left == right else f"a handshake: {left!r} and {right!r}"
        same = (
            len(left[0]) == len(right[0])
            and self._sessions.same(mine.session_id, theirs.session_id)
            and self._passwords.same(mine.password, theirs.password)
            and _plain(mine) == _plain(theirs)
        )
        return None if same else f"a handshake: {mine} and {theirs}"

    def _answers(self, step: s.Step, name: str, left: Answers, right: Answers) -> Difference | None:
        requests = s.requests_of(step) if name == step.name else ()
        answered = [s.op_of(each) for each in requests if s.opcode_of(each) != OpCode.PING]
        ops = [s.meaning_of(each) for each in answered]
        closes = [n for n, op in enumerate(ops) if op.opcode == OpCode.CLOSE_SESSION]
        for n, op in enumerate(ops):
            if closes and n > closes[0]:
                break  # what comes behind a close may be lost with the connection
            mine, theirs = _nth(left, n), _nth(right, n)
            if mine is None or theirs is None:
                if mine is theirs:
                    continue
                text = f"one answer only to {op!r}: {mine} and {theirs}"
                return Difference(f"silence {op.opcode}", text)
            case = Case(name, op, mine, theirs, self.knowledge, answered[n])
            difference = self._events(case, mine.events, theirs.events, bool(closes))
            difference = difference or self._answer(case)
            if difference:
                return difference
        if not closes and len(left.answers) != len(right.answers):
            return Difference("answers too many", f"{left.answers} and {right.answers}")
        if left.pings != right.pings:
            return Difference("pings", f"{left.pings} and {right.pings} pings were answered")
        op = ops[0] if ops else None
        case = Case(name, op, None, None, self.knowledge)
        unordered = any(s.opcode_of(each) == OpCode.CLOSE_SESSION for each in s.requests_of(step))
        return self._events(case, left.events, right.events, unordered)

    # ---- events ----------------------------------------------------------------------------

    def _events(
        self,
        case: Case,
        left: tuple[Happening, ...],
        right: tuple[Happening, ...],
        unordered: bool,  # noqa: FBT001
    ) -> Difference | None:
        mine = [_comparable(each) for each in left]
        theirs = [_comparable(each) for each in right]
        if mine == theirs:
            return None
        events = Events(case.name, mine, theirs, unordered, self.knowledge)
        for rule in INTENDED:
            if rule.events is not None and rule.events(events):
                self._used[rule.name] += 1
                if events.left == events.right:
                    return None
        text = f"events on {case.name}: {mine} and {theirs}"
        what = case.op.opcode if case.op else ""
        missing = sorted({str(kind) for kind, _, _ in _surplus(mine, theirs)})
        extra = sorted({str(kind) for kind, _, _ in _surplus(theirs, mine)})
        return Difference(f"events {what} -{missing} +{extra}", text)

    # ---- one answer ------------------------------------------------------------------------

    def _answer(self, case: Case) -> Difference | None:
        unlike = list(self._unlike(case))
        if not unlike:
            return None
        case = replace(case, unlike=tuple(unlike))
        for rule in INTENDED:
            if rule.answers is not None and rule.answers(case):
                self._used[rule.name] += 1
                return None
        left, right = case.left, case.right
        assert left is not None
        assert right is not None
        kind = f"answer {case.opcode} {left.error} {right.error} {unlike[0].split(' ')[0]}"
        where = ", ".join(unlike)
        return Difference(kind, f"{where} in the answer to {case.op!r}:\n  {left}\n  {right}")

    def _unlike(self, case: Case) -> Iterator[str]:
        left, right = case.left, case.right
        assert left is not None
        assert right is not None
        for name in ("xid", "error"):
            if getattr(left, name) != getattr(right, name):
                yield name
        if left.odd != right.odd and not left.error:
            yield "bytes"
        moment = self.knowledge.moment_of(case)
        if not self._zxids.same(moment, right.zxid):
            yield f"zxid ({moment} and {right.zxid})"
        yield from self._unlike_values(case, left.result, right.result)

    def _unlike_values(self, case: Case, left: object, right: object) -> Iterator[str]:
        if isinstance(left, MultiResult) and isinstance(right, MultiResult):
            yield from self._unlike_parts(case, left, right)
        elif type(left) is not type(right):
            yield f"{type(left).__name__}/{type(right).__name__}"
        elif isinstance(left, Stat) and isinstance(right, Stat):
            yield from self._unlike_stats(left, right)
        elif isinstance(left, tuple) and hasattr(left, "_fields"):
            for name, mine, theirs in zip(left._fields, left, right, strict=True):  # type: ignore[call-overload]
                if isinstance(mine, Stat):
                    yield from self._unlike_stats(mine, theirs)
                elif _ordered(left, mine) != _ordered(right, theirs):
                    yield f"{type(left).__name__}.{name}"

    def _unlike_parts(self, case: Case, left: MultiResult, right: MultiResult) -> Iterator[str]:
        if len(left.results) != len(right.results):
            yield "parts"
            return
        for mine, theirs in zip(left.results, right.results, strict=True):
            for where in self._unlike_values(case, mine, theirs):
                yield f"part:{where}"

    def _unlike_stats(self, left: Stat, right: Stat) -> Iterator[str]:
        for name, mine, theirs in zip(Stat._fields, left, right, strict=True):
            if name in _ZXIDS:
                same = self._zxids.same(self.knowledge.alias(mine), theirs)
            elif name in _TIMES:
                same = bool(mine) == bool(theirs)
            elif name == "ephemeral_owner":
                same = self._sessions.same(mine, theirs)
            else:
                same = mine == theirs
            if not same:
                yield f"Stat.{name} ({mine} and {theirs})"


def _nth(answers: Answers, n: int) -> Answer | None:
    return answers.answers[n] if n < len(answers.answers) else None


def _plain(response: ConnectResponse) -> tuple[object, ...]:
    return response.protocol_version, response.timeout_ms, response.read_only


def _comparable(happening: Happening) -> tuple[object, object, object]:
    event = happening.event
    if event is None or happening.odd:
        return "odd", happening.odd, ""
    return event.type.name, event.state, event.path


def _surplus(left: list[Any], right: list[Any]) -> list[Any]:
    return list((Counter(left) - Counter(right)).elements())


def _ordered(result: object, value: object) -> object:
    """Lists whose order means nothing, in an order."""
    if isinstance(result, ChildrenResult | Children2Result | EphemeralsResult | WhoAmIResult):
        return sorted(value)  # type: ignore[call-overload]
    if isinstance(result, AclResult):
        return _ordered_acl(value)  # type: ignore[arg-type]
    return value


def _ordered_acl(acl: tuple[Acl, ...]) -> list[Acl]:
    """The ids that one entry `auth` stands for come in no order; all else does."""
    ordered: list[Acl] = []
    for _, run in groupby(acl, key=lambda entry: (entry.perms, entry.scheme == "digest")):
        ordered += sorted(run)
    return ordered
