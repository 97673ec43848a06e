"""The checks of locks and of `dedup`, judged by what the ensemble has committed.

What programs say of themselves is not asked where the transactions tell: who is at the front of a
queue, who begins, who records, whose watches a release wakes. A queue's order is that of the
numbers of its znodes; its owner is the session of the lowest.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from zabd.client.recipes.contenders import contenders_among
from zabd.model.ids import SessionId, format_session
from zabd.model.paths import join, name_of, parent_of
from zabd.model.zxid import Zxid
from zabd.znode_tree import txns
from zabd.znode_tree.tree import ZnodeTree
from zabd.znode_tree.znode import is_session

STARTED: Final = "started"
RESULT: Final = "result"
_NUMBER_DIGITS: Final = 10

Record = dict[str, Any]


class _Front(NamedTuple):
    path: str
    owner: SessionId
    czxid: int


class RecipeChecks:
    """P1 to P8 of one ensemble, and who has been at the front of which queue (for C9).

    `watchers` gives the sessions that any member would tell of a change of a path.
    """

    def __init__(
        self,
        tree: ZnodeTree,
        fail: Callable[[str, str], None],
        watchers: Callable[[str], Iterable[SessionId]],
    ) -> None:
        self.recorded: dict[str, list[Record]] = {}  # every outcome there was of each key's znode
        self._standing: set[str] = set()  # keys whose outcome the ensemble has not ended since
        self._tree = tree
        self._fail = fail
        self._watchers = watchers
        self._fronts: set[int] = set()  # the zxids that created them
        self._places: dict[tuple[SessionId, str], int] = {}  # how many it has ever had in a queue
        self._touched: list[str] = []

    def before(self, session_id: SessionId, txn: txns.Txn, zxid: int) -> None:
        """A transaction enters the ledger; the tree stands right before it."""
        parts = list(_parts(txn))
        for part in parts:
            kind = part[0]
            if kind == txns.CREATE:
                self._creates(session_id, part, parts, zxid)
            elif kind == txns.SET_DATA and name_of(part[1]) == STARTED:
                self._begins(session_id, part, parts, zxid)
            elif kind == txns.DELETE:
                self._deletes(session_id, part[1], parts, zxid)
            elif kind == txns.CONTAINER_DELETE and name_of(part[1]) == RESULT:
                self._standing.discard(parent_of(part[1]))  # its time was over

    def after(self) -> None:
        """The tree has it now: note who has come to the front."""
        for parent in self._touched:
            front = self._front(parent)
            if front is not None:
                self._fronts.add(front.czxid)
        self._touched.clear()

    def require_front(self, who: str, token: int) -> None:
        """Somebody acts as the holder of a lock: was the znode of this token ever at the front?"""
        if token not in self._fronts:
            self._fail(
                "C9", f"{who} holds a lock by token {Zxid(token)!r}, which was never at the front"
            )

    # --- queues ----------------------------------------------------------------------------------

    def _queue(self, parent: str) -> list[str]:
        """The paths that contend below `parent`, in their order."""
        node = self._tree.nodes.get(parent)
        names = [name_of(path) for path in node.children or ()] if node is not None else []
        return [join(parent, contender.name) for contender in contenders_among(names)]

    def _front(self, parent: str) -> _Front | None:
        for path in self._queue(parent):
            node = self._tree.nodes[path]
            return _Front(path, node.owner, node.czxid)
        return None

    def _creates(
        self, session_id: SessionId, part: txns.Txn, parts: list[txns.Txn], zxid: int
    ) -> None:
        path, owner = part[1], part[4]
        name, parent = name_of(path), parent_of(path)
        if contenders_among([name]):
            self._touched.append(parent)
            self._joins(path, owner, zxid)
        elif name == STARTED:
            self._begins(session_id, part, parts, zxid)
        elif name == RESULT:
            self._records(session_id, part, parts, zxid)

    def _joins(self, path: str, owner: int, zxid: int) -> None:
        parent = parent_of(path)
        if not is_session(owner):
            self._fail(
                "P5", f"{path} stands in a queue at {Zxid(zxid)!r}, and no session behind it"
            )
        prefix = path[:-_NUMBER_DIGITS]
        for other in self._queue(parent):
            if other[:-_NUMBER_DIGITS] == prefix and self._tree.nodes[other].owner == owner:
                self._fail("P8", f"{format_session(owner)} has {other}, and now {path} as well")
        key = (owner, parent)
        self._places[key] = self._places.get(key, 0) + 1

    def _deletes(self, session_id: SessionId, path: str, parts: list[txns.Txn], zxid: int) -> None:
        name, parent = name_of(path), parent_of(path)
        if contenders_among([name]):
            self._touched.append(parent)
            self._require_one_woken(path, parent)
        elif name == STARTED and not _creates(parts, join(parent, RESULT)):
            self._throws_away(session_id, path, zxid)

    def _require_one_woken(self, path: str, parent: str) -> None:
        """Of those who wait, only the next one watches this znode (P7).

        One who has waited here before may have a watch left from then: it is not looked at.
        """
        queue = self._queue(parent)
        if path not in queue:
            return
        for session_id in self._watchers(path):
            own = [each for each in queue if self._tree.nodes[each].owner == session_id]
            if len(own) != 1 or own[0] == path or self._places.get((session_id, parent)) != 1:
                continue
            place = queue.index(own[0])
            if place and queue[place - 1] != path:
                self._fail("P7", f"the end of {path} wakes {own[0]}, which is not next behind it")

    # --- records ---------------------------------------------------------------------------------

    def _owner(self, parent: str, parts: list[txns.Txn], zxid: int) -> _Front | None:
        """Who owns the key at this zxid: the lowest that is there, or comes in the same multi."""
        front = self._front(parent)
        if front is not None:
            return front
        for part in parts:
            made = part[0] == txns.CREATE and parent_of(part[1]) == parent
            if made and contenders_among([name_of(part[1])]):
                return _Front(part[1], part[4], zxid)
        return None

    def _begins(
        self, session_id: SessionId, part: txns.Txn, parts: list[txns.Txn], zxid: int
    ) -> None:
        parent = parent_of(part[1])
        record, where = _decode(part[2]), f"{part[1]} at {Zxid(zxid)!r}"
        if record is None:
            return
        owner = self._owner(parent, parts, zxid)
        if owner is None or owner.owner != session_id:
            self._fail(
                "P1", f"{format_session(session_id)} begins by {where}; the key is {_of(owner)}"
            )
        outcome = _decode(self._data(join(parent, RESULT)))
        if outcome is not None and outcome["status"] == "COMPLETED":
            self._fail("P3", f"{where} begins what has an outcome already")
        earlier = _decode(self._data(part[1]))
        if earlier is None or earlier["attempt_id"] == record["attempt_id"]:
            return
        if _differ(earlier, record):
            self._fail("P4", f"{where} goes on with another payload than the attempt in doubt had")
        gives_back = any(
            each[0] == txns.DELETE and contenders_among([name_of(each[1])]) for each in parts
        )
        if record["attempt"] <= earlier["attempt"] and not gives_back:
            self._fail(
                "P6",
                f"{where} begins attempt {record['attempt']} over attempt {earlier['attempt']}, "
                "which may have happened",
            )

    def _throws_away(self, session_id: SessionId, path: str, zxid: int) -> None:
        """A journal ends without an outcome: only that of an attempt that is still there may."""
        record = _decode(self._data(path))
        if record is None:
            return
        lock = self._tree.nodes.get(join(parent_of(path), record["lock"]))
        if lock is None or lock.owner != session_id:
            self._fail("P6", f"the journal of an attempt in doubt ends at {Zxid(zxid)!r}: {path}")

    def _records(
        self, session_id: SessionId, part: txns.Txn, parts: list[txns.Txn], zxid: int
    ) -> None:
        parent = parent_of(part[1])
        record, where = _decode(part[2]), f"{part[1]} at {Zxid(zxid)!r}"
        if record is None:
            return
        owner = self._owner(parent, parts, zxid)
        if owner is None or owner.owner != session_id or owner.czxid != record["fencing_token"]:
            self._fail(
                "P2",
                f"{format_session(session_id)} records {where} by token "
                f"{Zxid(record['fencing_token'])!r}; the key is {_of(owner)}",
            )
        if parent in self._standing:
            self._fail("P2", f"{where} is the second outcome of its key")
        journal = _decode(self._data(join(parent, STARTED)))
        if journal is not None and _differ(journal, record):
            self._fail("P4", f"{where} has another payload than the journal")
        self._standing.add(parent)
        self.recorded.setdefault(parent, []).append(record)

    def _data(self, path: str) -> bytes | None:
        node = self._tree.nodes.get(path)
        return None if node is None else node.data


def _parts(txn: txns.Txn) -> Iterator[txns.Txn]:
    if txn[0] == txns.MULTI:
        yield from txn[2]
    elif txn[0] == txns.CLOSE_SESSION:
        yield from (txns.delete(path) for path in txn[1])
    else:
        yield txn


def _creates(parts: list[txns.Txn], path: str) -> bool:
    return any(part[0] == txns.CREATE and part[1] == path for part in parts)


def _decode(data: bytes | None) -> Record | None:
    """A record of `dedup`; None for whatever else a znode of that name may hold."""
    try:
        record = json.loads(data) if data else None
    except ValueError:
        return None
    return record if isinstance(record, dict) and "attempt_id" in record else None


def _differ(one: Record, other: Record) -> bool:
    hashes = {one["payload_hash"], other["payload_hash"]} - {None}
    return len(hashes) > 1 and one["alg"] == other["alg"]


def _of(owner: _Front | None) -> str:
    return "nobody's" if owner is None else f"{format_session(owner.owner)}'s, by {owner.path}"
