"""What the clients of a run saw, written down so that two strangers can judge it at the end.

Only what promises to be linearizable is in it: writes, and reads behind a `sync`, which count from
the moment when the sync was called.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from zabd.cluster_sim.history import FOREVER, Expire, Operation, Refusal
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.linearizability import (
    Verdict,
    check_by_zxid,
    check_linearizable,
    split,
)
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import ErrorCode
from zabd.model.ids import SessionId, format_session
from zabd.model.ops import (
    Check,
    CloseSession,
    Create,
    CreateMode,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Op,
    SetData,
    Sync,
)
from zabd.znode_tree import txns

# States beyond one for each call, at some 0.1 ms each. Of the histories of sixty runs a third was
# not decided at once, but only 6 of the 140 subtrees of those.
SOON: Final = 300
STATES_MAX: Final = 3_000

_WRITES: Final = (Create, Delete, SetData, Multi, CloseSession)
_IN_MULTI: Final = (Create, Delete, SetData, Check)
_READS: Final = (GetData, Exists, GetChildren)

# Answers that say that nothing was done: the op is not in the history.
_NOT_DONE: Final = frozenset((ErrorCode.SESSION_EXPIRED, ErrorCode.SESSION_MOVED))


class ClientHistory:
    """The history of one run, of all its clients."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.undecided = 0
        self._opened: dict[SessionId, int] = {}
        self._ended: dict[SessionId, int] = {}
        self._synced: dict[SessionId, int] = {}
        self._links = 0
        self._link: dict[SessionId, int] = {}

    # --- what clients tell ------------------------------------------------------------------------

    def connected(self, session_id: SessionId, now: int) -> None:
        """A client has a connection, and through it this session."""
        self._opened.setdefault(session_id, now)
        self._synced.pop(session_id, None)
        self._links += 1
        self._link[session_id] = self._links

    def answered(
        self,
        session_id: SessionId,
        op: Op,
        called: int,
        now: int,
        error: int,
        result: object,
        zxid: int,
    ) -> None:
        """An op was answered; answers come in the order of the calls."""
        if error in _NOT_DONE:
            return
        if isinstance(op, Sync):
            self._synced[session_id] = called
        elif isinstance(op, _READS):
            if session_id in self._synced:
                self._note(session_id, op, self._synced[session_id], now, error, result, zxid)
        elif isinstance(op, _WRITES):
            self._note(session_id, op, called, now, error, result, zxid)

    def _note(
        self,
        session_id: SessionId,
        op: Op,
        called: int,
        now: int,
        error: int,
        result: object,
        zxid: int,
    ) -> None:
        told = Refusal(ErrorCode(error)) if error else result
        name = format_session(session_id)
        link = self._link[session_id]
        self.operations.append(Operation(name, op, called, now, told, session_id, zxid, link))

    def lost(self, session_id: SessionId, op: Op, called: int) -> None:
        """The connection was lost before the answer."""
        if isinstance(op, _WRITES):
            name = format_session(session_id)
            link = self._link[session_id]
            self.operations.append(Operation(name, op, called, session_id=session_id, link=link))

    def expired(self, session_id: SessionId, now: int) -> None:
        """A client was told that its session is over."""
        self._ended[session_id] = now

    # --- judgement --------------------------------------------------------------------------------

    def judge(self, ledger: Iterable[tuple[int, SessionId, txns.Txn]]) -> None:
        """Both checkers, which know nothing of each other. Raises InvariantError (C1)."""
        unheard = self._unheard(ledger)
        _require(check_by_zxid([*self.operations, *unheard]), "by zxid")
        self._search([*self._traced(unheard), *self._expiries(unheard)])

    def _search(self, operations: list[Operation]) -> None:
        """All at once if there is an answer soon; otherwise a subtree at a time."""
        if self._found(operations, SOON):
            return
        for history in split(operations).values():
            self.undecided += not self._found(history, STATES_MAX)

    def _found(self, operations: list[Operation], states_max: int) -> bool:
        verdict = check_linearizable(operations, states_max=len(operations) + states_max)
        if verdict.decided:
            _require(verdict, "by search")
        return verdict.decided

    def _unheard(self, ledger: Iterable[tuple[int, SessionId, txns.Txn]]) -> list[Operation]:
        """What took effect without anybody having been told of it, as the ledger says."""
        heard = {each.zxid for each in self.operations if not isinstance(each.op, _READS)}
        return [
            Operation("unheard", op, 0, FOREVER, session_id=session_id, zxid=zxid)
            for zxid, session_id, txn in ledger
            if zxid not in heard and (op := _op_of(txn)) is not None
        ]

    def _traced(self, unheard: Iterable[Operation]) -> list[Operation]:
        """All calls, the lost ones with a zxid if the ledger seems to have them.

        The search believes none of it, but what it tries first is nearly always right then.
        """
        left: defaultdict[SessionId, deque[Operation]] = defaultdict(deque)
        for each in unheard:
            left[each.session_id].append(each)
        return [
            operation
            if operation.known
            or not (mine := left[operation.session_id])
            # Of one session the lost calls and the ledger have one order.
            or not _seems(operation.op, mine[0].op)
            else replace(operation, zxid=mine.popleft().zxid)
            for operation in self.operations
        ]

    def _expiries(self, unheard: Iterable[Operation]) -> list[Operation]:
        ends = {each.session_id: each.zxid for each in unheard if type(each.op) is CloseSession}
        return [
            Operation(
                f"the end of {format_session(session_id)}",
                Expire(session_id),
                opened,
                self._ended.get(session_id, FOREVER),
                zxid=ends.get(session_id, 0),
            )
            for session_id, opened in self._opened.items()
        ]


def _seems(asked: Op | Expire, done: Op | Expire) -> bool:
    """Whether the ledger has `done` because this was asked for; a guess."""
    match asked, done:
        case Create(path, data), Create(made, content):
            return made.startswith(path) and data == content
        case SetData(path, data), SetData(changed, content):
            return path == changed and data == content
        case Multi(ops), Multi(parts):
            return len(ops) == len(parts) and all(map(_seems, ops, parts))
        case (Delete(path), Delete(other)) | (Check(path), Check(other)):
            return path == other
        case _:
            return isinstance(asked, CloseSession) and isinstance(done, CloseSession)


def _require(verdict: Verdict, how: str) -> None:
    if not verdict:
        raise InvariantError("C1", f"judged {how}, what clients saw is {verdict}")


def _op_of(txn: txns.Txn) -> Op | None:
    """An op that does what `txn` did; None if it changed no znode."""
    match txn:
        case (txns.CREATE, path, data, _, owner, _):
            mode = CreateMode.EPHEMERAL if owner > 0 else CreateMode.PERSISTENT
            return Create(path, data, OPEN_ACL_UNSAFE, mode)
        case (txns.DELETE | txns.CONTAINER_DELETE, path):
            return Delete(path)
        case (txns.SET_DATA, path, data, _):
            return SetData(path, data)
        case (txns.CHECK, path):
            return Check(path)
        case (txns.MULTI, _, parts):
            return Multi(tuple(op for part in parts if isinstance(op := _op_of(part), _IN_MULTI)))
        case (txns.CLOSE_SESSION, _):
            return CloseSession()
        case _:
            return None
