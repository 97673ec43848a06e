"""Linearizability: is there one order of all calls that explains every answer?

Two checkers that share nothing but the history. `check_linearizable` believes nobody: it searches
for an order, after Wing and Gong, "Testing and Verifying Concurrent Objects" (JPDC 1993), with the
memory of states that Lowe added ("Testing for linearizability", 2017). Where calls have zxids it
tries their order first: a wrong one costs it time, and nothing else. `check_by_zxid` takes the
order that the zxids claim and examines it, in time that grows with the history only.

Clients pipeline, so what is asked is what Hunt et al. (USENIX ATC 2010, section 2.3) call
A-linearizability: the calls of one client take effect in the order in which it made them, even when
several of them were under way at once.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, NamedTuple

from zabd.cluster_sim.history import FOREVER, Expire, Operation, Refusal, by_client
from zabd.cluster_sim.tree_spec import Changes, TreeSpec, apply
from zabd.model.ops import (
    CloseSession,
    Create,
    Create2,
    CreateContainer,
    CreateTtl,
    Delete,
    Multi,
    Op,
    SetAcl,
    SetData,
)
from zabd.model.results import ErrorResult, MultiResult

_WRITES: Final = frozenset(
    (
        CloseSession,
        Create,
        Create2,
        CreateContainer,
        CreateTtl,
        Delete,
        Expire,
        Multi,
        SetAcl,
        SetData,
    )
)

_NEVER: Final = FOREVER + 1
"""When a client calls that has nothing left to call."""

STATES_MAX: Final = 1_000_000
"""Where a search gives up: some 100 bytes a state in the memory of those that were seen."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a check; true if the history is linearizable.

    `order` is the order that was found. In a history that has none it is the longest that fits, and
    `blocked` are the calls of which none can come next. `decided` is False where the search ended
    at its limit: then nothing is known.
    """

    linearizable: bool
    order: tuple[Operation, ...]
    blocked: tuple[Operation, ...] = ()
    decided: bool = True
    states: int = 0

    def __bool__(self) -> bool:
        return self.linearizable

    def __str__(self) -> str:
        if self.linearizable:
            return f"linearizable: {len(self.order)} operations have an order"
        if not self.decided:
            return f"undecided after {self.states} states"
        told = "\n".join(f"  {operation}" for operation in self.order[-5:])
        none_of = "\n".join(f"  {operation}" for operation in self.blocked)
        return (
            f"not linearizable: the longest order that fits has {len(self.order)} operations, "
            f"it ends\n{told}\nand none of these can come next\n{none_of}"
        )


# --- without believing anybody --------------------------------------------------------------------


class _Step(NamedTuple):
    """The next calls of one client put behind the others, or found never to have had an effect."""

    client: int
    calls: int
    changes: Changes | None  # None: they had no effect


def check_linearizable(
    operations: Sequence[Operation],
    *,
    spec: TreeSpec | None = None,
    states_max: int = STATES_MAX,
) -> Verdict:
    """Whether some order of `operations` explains all answers and respects real time.

    The operations of a client have to be in the order in which it made them. A call that returned
    before another one was made comes before it; calls of unknown outcome come at their place or
    not at all. Zxids are not believed: they say only which order is tried first. Raises ValueError
    for an op that `spec` does not know.
    """
    return _Search(operations, spec or TreeSpec(), states_max).run()


class _Search:
    """Depth first, one path at a time; no place that was a dead end is searched twice.

    There is one place: of each client, which call is next, and what the tree holds. A step changes
    it, and leaving what it led to changes it back.
    """

    def __init__(self, operations: Sequence[Operation], spec: TreeSpec, states_max: int) -> None:
        self._calls = by_client(operations)
        # Of each client and position: when the first call from there on returned that did return.
        self._returned = [_next_returns(calls) for calls in self._calls]
        self._quiet = [[_is_quiet(call) for call in calls] for calls in self._calls]
        self._turns = [_turns(calls) for calls in self._calls]
        self._guided = any(operation.zxid for operation in operations)
        self._spec = spec
        self._states_max = states_max
        self._nodes = spec.initial()
        self._positions = [0] * len(self._calls)
        self._horizons = [returned[0] for returned in self._returned]
        self._called = [calls[0].called for calls in self._calls]
        self._dead_ends: set[Hashable] = set()
        self._states = 0
        self._path: list[Operation | None] = []
        self._undo: list[tuple[_Step, Changes]] = []
        self._longest = -1
        self._best: tuple[Operation, ...] = ()
        self._blocked: tuple[Operation, ...] = ()

    def run(self) -> Verdict:
        """Look for an order."""
        branches: list[Iterator[_Step]] = []
        while not self._complete():
            if self._states > self._states_max:
                self._keep_the_longest()
                return self._verdict(decided=False)
            self._states += 1
            branches.append(self._steps())
            while (step := next(branches[-1], None)) is None:
                self._keep_the_longest()
                branches.pop()
                if not branches:
                    return self._verdict(decided=True)
                self._take_back()
            self._take(step)
        order = tuple(each for each in self._path if each is not None)
        return Verdict(True, order, states=self._states)

    def _verdict(self, *, decided: bool) -> Verdict:
        return Verdict(False, self._best, self._blocked, decided, self._states)

    def _complete(self) -> bool:
        return min(self._horizons, default=FOREVER) == FOREVER

    # --- from place to place ----------------------------------------------------------------------

    def _take(self, step: _Step) -> None:
        client, _, changes = step
        self._path.append(None if changes is None else self._next(client))
        before = {path: self._nodes.get(path) for path in changes or ()}
        self._undo.append((step, before))
        if changes:
            apply(self._nodes, changes)
        self._move(client, step.calls)

    def _take_back(self) -> None:
        step, before = self._undo.pop()
        self._path.pop()
        apply(self._nodes, before)
        self._move(step.client, -step.calls)

    def _move(self, client: int, calls: int) -> None:
        self._positions[client] = position = self._positions[client] + calls
        self._horizons[client] = self._returned[client][position]
        mine = self._calls[client]
        self._called[client] = mine[position].called if position < len(mine) else _NEVER

    def _key(self) -> Hashable:
        return tuple(self._positions), frozenset(self._nodes.items())

    # --- the steps that lead on -------------------------------------------------------------------

    def _steps(self) -> Iterator[_Step]:
        """Those that lead on from here, each looked for when those before it have led nowhere."""
        if self._dead_ends and self._key() in self._dead_ends:
            return
        candidates = self._candidates()
        certain = self._certain(candidates)
        if certain is not None:
            yield certain
            return
        found = 0
        for client in candidates:
            if not self._quiet[client][self._positions[client]]:
                for step in self._ways(client):
                    found += 1
                    yield step
        if found > 1:
            # Only where there is a choice: a place with one way on leads to another that is known.
            self._dead_ends.add(self._key())

    def _candidates(self) -> list[int]:
        """The clients whose next call may come next: nothing left out has returned before it.

        In the order of the zxids if there are any. Then known outcomes first: most calls of unknown
        outcome had no effect that anybody saw.
        """
        horizon = min(self._horizons)
        found = [client for client, called in enumerate(self._called) if called <= horizon]
        turns, positions = self._turns, self._positions
        return sorted(found, key=lambda client: turns[client][positions[client]])

    def _next(self, client: int) -> Operation:
        return self._calls[client][self._positions[client]]

    def _certain(self, candidates: list[int]) -> _Step | None:
        """A read or a refusal that fits here need not be tried later as well.

        Wherever it came later, it would change nothing there. (The end of a session may.) One that
        does not fit here does not come next.
        """
        for client in candidates:
            if (
                self._quiet[client][self._positions[client]]
                and self._spec.changes(self._nodes, self._next(client)) == {}
            ):
                return _Step(client, 1, {})
        return None

    def _ways(self, client: int) -> Iterator[_Step]:
        """With the next call of this client, and without it if its outcome is unknown."""
        operation = self._next(client)
        left = len(self._calls[client]) - self._positions[client]
        lost = 0 if operation.known else self._lost_with(client)
        without = _Step(client, lost, None) if 0 < lost < left else None
        if without is not None and self._left_no_trace(client, lost):
            yield without
            without = None
        changes = self._spec.changes(self._nodes, operation)
        # One of unknown outcome that would change nothing matters only to the calls behind it.
        if changes or (changes is not None and (operation.known or left > 1)):
            yield _Step(client, 1, changes)
        if without is not None:
            yield without

    def _lost_with(self, client: int) -> int:
        """How many calls had no effect if the next one had none: the rest of its connection."""
        calls, position = self._calls[client], self._positions[client]
        link = calls[position].link
        end = position + 1
        while link is not None and end < len(calls) and calls[end].link == link:
            assert not calls[end].known, "answers come in order, so what is lost comes last"
            end += 1
        return end - position

    def _left_no_trace(self, client: int, lost: int) -> bool:
        """Whether others have a zxid and the next calls of this client have none."""
        position = self._positions[client]
        calls = self._calls[client][position : position + lost]
        return self._guided and not any(call.zxid for call in calls)

    def _keep_the_longest(self) -> None:
        """Asked when a place is left: of those with the longest path, the first one counts."""
        if len(self._path) > self._longest:
            self._longest = len(self._path)
            self._best = tuple(each for each in self._path if each is not None)
            self._blocked = tuple(self._next(client) for client in self._candidates())


def _is_quiet(operation: Operation) -> bool:
    """Whether it changes nothing wherever it fits: a read or a refusal."""
    return operation.known and not _took_effect(operation)


def _turns(calls: Sequence[Operation]) -> list[tuple[int, int]]:
    """When the next call of a client should be tried: by the next zxid, then by its return."""
    found: list[tuple[int, int]] = []
    zxid = FOREVER
    for operation in reversed(calls):
        zxid = operation.zxid or zxid
        found.append((zxid, operation.returned))
    found.reverse()
    return found


def _next_returns(calls: Sequence[Operation]) -> list[int]:
    returns = [FOREVER]
    for operation in reversed(calls):
        returns.append(operation.returned if operation.known else returns[-1])
    returns.reverse()
    return returns


def split(operations: Sequence[Operation]) -> dict[str, list[Operation]]:
    """One history for each subtree below the root, which only a multi ties to the others.

    Each of them is linearizable if the whole is, and has far fewer orders to try. What they do not
    tell is the order between subtrees. Ops on the root itself are in none of them.
    """
    subtrees = {_subtree(path) for each in operations for path in _paths(each.op)} - {""}
    found: dict[str, list[Operation]] = {}
    for subtree in sorted(subtrees):
        shown = (_shown(operation, subtree) for operation in operations)
        found[subtree] = [operation for operation in shown if operation is not None]
    return found


def _subtree(path: str) -> str:
    return path.split("/", 2)[1]


def _paths(op: Op | Expire) -> list[str]:
    if isinstance(op, Multi):
        return [path for part in op.ops for path in _paths(part)]
    path = getattr(op, "path", None)
    return [] if path is None else [path]


def _shown(operation: Operation, subtree: str) -> Operation | None:
    """What of an operation concerns this subtree."""
    op = operation.op
    if isinstance(op, Expire | CloseSession):
        return operation
    if not isinstance(op, Multi):
        return operation if {_subtree(path) for path in _paths(op)} == {subtree} else None
    mine = [index for index, part in enumerate(op.ops) if _subtree(_paths(part)[0]) == subtree]
    told = operation.result
    if not mine or (operation.known and not isinstance(told, MultiResult)):
        return None
    if isinstance(told, MultiResult):
        if any(isinstance(part, ErrorResult) for part in told.results):
            return None  # nothing was done, and the reason may lie elsewhere
        told = MultiResult(tuple(told.results[index] for index in mine))
    # One of unknown outcome may have been refused for what lies elsewhere, and what was sent behind
    # it over the same connection may have taken effect all the same.
    elsewhere = not operation.known and len(mine) < len(op.ops)
    return replace(
        operation,
        op=Multi(tuple(op.ops[index] for index in mine)),
        result=told,
        link=None if elsewhere else operation.link,
    )


# --- with the zxid as witness ---------------------------------------------------------------------


def check_by_zxid(operations: Sequence[Operation], *, spec: TreeSpec | None = None) -> Verdict:
    """Whether the order of the zxids explains all answers and respects real time.

    Every operation that had an effect needs its zxid, also one whose outcome its client has not
    learnt (the servers' log knows it); one of unknown outcome without a zxid had none. A read has
    the zxid at which it was answered, and comes after the write of that zxid.
    """
    claimed = [operation for operation in operations if operation.known or operation.zxid]
    for check in (_client_order, _real_time):
        blocked = check(claimed)
        if blocked:
            return Verdict(False, (), blocked, states=len(claimed))
    return _replay(claimed, spec or TreeSpec())


def _client_order(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    last: dict[str, Operation] = {}
    for operation in operations:
        before = last.get(operation.client)
        if before is not None and operation.zxid < before.zxid:
            return before, operation
        last[operation.client] = operation
    return ()


def _real_time(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Nothing that was called after a return may have a lower zxid."""
    returns = sorted((each for each in operations if each.known), key=attrgetter("returned"))
    highest: Operation | None = None
    done = 0
    for operation in sorted(operations, key=attrgetter("called")):
        while done < len(returns) and returns[done].returned < operation.called:
            if highest is None or returns[done].zxid > highest.zxid:
                highest = returns[done]
            done += 1
        if highest is not None and operation.zxid < highest.zxid:
            return highest, operation
    return ()


def _replay(operations: Sequence[Operation], spec: TreeSpec) -> Verdict:
    nodes = spec.initial()
    # A write comes before the reads at its zxid; sorting keeps the order of a client's own reads.
    order = sorted(operations, key=lambda each: (each.zxid, not _took_effect(each)))
    last = 0
    for index, operation in enumerate(order):
        changes = spec.changes(nodes, operation)
        wrote = _took_effect(operation)
        if changes is None or (wrote and operation.zxid == last):
            return Verdict(False, tuple(order[:index]), (operation,), states=index)
        if wrote:
            last = operation.zxid
            apply(nodes, changes)
    return Verdict(True, tuple(order), states=len(order))


def _took_effect(operation: Operation) -> bool:
    return type(operation.op) in _WRITES and not isinstance(operation.result, Refusal)
