"""The checks of the replicated tree, of sessions, and of what clients are told.

Beside the ledger stands one tree of the checker's own, to which each batch is applied once, when
it is first delivered anywhere. With the history of every path that comes out of it, an answer that
names its zxid can be compared with what was true at that zxid, whoever gave it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.zab_checks import Incarnation, ZabChecker
from zabd.model.ids import MemberId, SessionId, format_session
from zabd.model.watch_events import EventType
from zabd.model.zxid import Zxid
from zabd.zab.log import Batch
from zabd.znode_tree import txns
from zabd.znode_tree.tree import Change, ZnodeTree

_REFUSALS = (txns.ERROR, txns.MULTI_FAILED)


class Version(NamedTuple):
    """What a path held from `zxid` on; `data` and `mzxid` mean nothing while it is not there."""

    zxid: int
    there: bool
    data: bytes | None
    mzxid: int


class ReplicaChecker(ZabChecker):
    """Watches an ensemble of replicas and its clients."""

    def __init__(self, voters: Sequence[MemberId]) -> None:
        super().__init__(voters)
        self.tree = ZnodeTree()
        self.digests: dict[int, int] = {0: self.tree.digest}
        self.closed: set[SessionId] = set()
        self.completed_write = 0  # the greatest zxid of a write that a client was told of
        self._paths: dict[str, list[Version]] = {}
        self._changes: dict[tuple[str, EventType], list[int]] = {}
        self._sequential: dict[str, int] = {}

    # --- the state -------------------------------------------------------------------------------

    def _extend(self, who: Incarnation, batch: Batch, chain: bytes) -> None:
        super()._extend(who, batch, chain)
        time_ms, entries = txns.unpack_batch(batch.payload)
        zxid = int(batch.first)
        for _, _, session_id, txn in entries:
            self._require_open(session_id, txn, zxid)
            if txn[0] == txns.CLOSE_SESSION:
                self._session_closes(session_id, txn[1], zxid)
            applied = self.tree.apply(zxid, time_ms, session_id, txn)
            for change in applied.changes:
                self._note_change(change, zxid)
            zxid += 1
        self.digests[int(batch.last)] = self.tree.digest

    def _require_open(self, session_id: SessionId, txn: txns.Txn, zxid: int) -> None:
        if session_id in self.closed and txn[0] not in _REFUSALS:
            raise InvariantError(
                "S3",
                f"{format_session(session_id)} was closed, and {Zxid(zxid)!r} is its {txn[0]} txn",
            )

    def _note_change(self, change: Change, zxid: int) -> None:
        self._changes.setdefault((change.path, change.type), []).append(zxid)
        if change.type is EventType.CHILDREN_CHANGED:
            return
        node = self.tree.get(change.path)
        version = (
            Version(zxid, there=False, data=None, mzxid=0)
            if node is None
            else Version(zxid, there=True, data=node.data, mzxid=node.mzxid)
        )
        self._paths.setdefault(change.path, []).append(version)

    def _session_closes(self, session_id: SessionId, paths: Sequence[str], zxid: int) -> None:
        """The close of a session must name all of its ephemerals and nothing else (S2)."""
        self.closed.add(session_id)
        owned = [path for path, node in self.tree.nodes.items() if node.owner == session_id]
        if sorted(paths) != sorted(owned):
            raise InvariantError(
                "S2",
                f"{format_session(session_id)} owns {owned}, {Zxid(zxid)!r} closes it with "
                f"{list(paths)}",
            )

    def require_owned(self) -> None:
        """Every ephemeral belongs to an open session (S1)."""
        for path, node in self.tree.nodes.items():
            if node.owner > 0 and node.owner not in self.tree.sessions:
                raise InvariantError("S1", f"{path} belongs to {format_session(node.owner)}")

    def stands_at(self, who: Incarnation, tree: ZnodeTree) -> None:
        """A member's tree stands at a batch end: it is what everybody's is there (R1)."""
        expected = self.digests.get(tree.zxid)
        if expected is None:
            raise InvariantError("R1", f"{who} stands at {Zxid(tree.zxid)!r}, no committed batch")
        if tree.digest != expected:
            raise InvariantError(
                "R1",
                f"{who} has digest {tree.digest:016x} at {Zxid(tree.zxid)!r}, "
                f"others have {expected:016x}",
            )

    # --- what clients are told -------------------------------------------------------------------

    @property
    def last_zxid(self) -> int:
        """The last committed transaction that anybody has applied."""
        return self.tree.zxid

    def at(self, path: str, zxid: int) -> Version:
        """What the path held at `zxid`."""
        versions = self._paths.get(path, [])
        index = bisect_right(versions, zxid, key=lambda version: version.zxid)
        return versions[index - 1] if index else Version(0, there=False, data=None, mzxid=0)

    def first_change(self, path: str, kinds: Sequence[EventType], after: int) -> int | None:
        """The first change of these kinds that a watch armed at `after` must report."""
        found: list[int] = []
        for kind in kinds:
            zxids = self._changes.get((path, kind), [])
            index = bisect_right(zxids, after)
            found += zxids[index : index + 1]
        return min(found, default=None)

    def changed_at(self, path: str, kind: EventType, zxid: int) -> bool:
        """Whether that transaction did this to the path."""
        return zxid in self._changes.get((path, kind), [])

    def sequential_created(self, path: str, zxid: int) -> None:
        """A client was told the path of its sequential znode (R7)."""
        if self._sequential.setdefault(path, zxid) != zxid:
            raise InvariantError("R7", f"{path} was created twice by sequence")
