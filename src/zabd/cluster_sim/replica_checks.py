"""The checks of the replicated tree, of sessions, and of what clients are told.

Beside the ledger stands one tree of the checker's own, to which each batch is applied once, when
it is first delivered anywhere. With the history of every path that comes out of it, an answer that
names its zxid can be compared with what was true at that zxid, whoever gave it.

Beside that tree stand a plain model of it (`shadow_tree`) and a twin that has gone through a
snapshot: what members have in common is not taken for right because of that.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.recipe_checks import RecipeChecks
from zabd.cluster_sim.restored_trees import difference, reborn
from zabd.cluster_sim.session_checks import SessionChecks
from zabd.cluster_sim.shadow_tree import ShadowTree
from zabd.cluster_sim.zab_checks import Incarnation, ZabChecker
from zabd.model.errors import DamagedError
from zabd.model.ids import MemberId, SessionId, format_session
from zabd.model.watch_events import EventType
from zabd.model.zxid import Zxid
from zabd.replica.rebuild import apply_batch
from zabd.zab.log import Batch, LogPosition
from zabd.znode_tree import txns
from zabd.znode_tree.tree import Applied, Change, ZnodeTree

_REFUSALS = (txns.ERROR, txns.MULTI_FAILED)
_TWIN_BATCHES = 16  # after so many the twin is made anew


class Version(NamedTuple):
    """What a path held from `zxid` on; `data` and `mzxid` mean nothing while it is not there."""

    zxid: int
    there: bool
    data: bytes | None
    mzxid: int


class Changed(NamedTuple):
    """Something that watches are told of, and when it was."""

    zxid: int
    type: EventType
    path: str


class ReplicaChecker(ZabChecker):
    """Watches an ensemble of replicas and its clients."""

    def __init__(
        self,
        voters: Sequence[MemberId],
        now_us: Callable[[], int] = lambda: 0,
        *,
        tick_ms: int = 0,
        sync_limit: int = 0,
        names_tell: bool = True,
    ) -> None:
        """`names_tell`: only sequential znodes have names that end like theirs."""
        super().__init__(voters)
        self.now_us = now_us
        self.tree = ZnodeTree()
        self.sessions = SessionChecks(self.tree, self.fail, tick_ms, sync_limit)
        self.recipes: RecipeChecks | None = None  # where programs use recipes
        self.changes: list[Changed] = []
        self.digests: dict[int, int] = {0: self.tree.digest}
        self.batches: list[Batch] = []  # of the ledger
        self._shadow = ShadowTree(self.fail, names_tell=names_tell)
        self._twin = ZnodeTree()
        self._whole: dict[MemberId, set[LogPosition]] = {}
        self._hurt: set[MemberId] = set()  # whose disks were damaged at some time
        self.closed: set[SessionId] = set()
        self.txns: list[tuple[int, SessionId, txns.Txn]] = []  # all, with their zxids
        self.closed_us: dict[SessionId, int] = {}
        self.completed_write = 0  # the greatest zxid of a write that a client was told of
        self._paths: dict[str, list[Version]] = {}
        self._changes: dict[tuple[str, EventType], list[int]] = {}
        self._sequential: dict[str, int] = {}

    # --- the state -------------------------------------------------------------------------------

    def _extend(self, who: Incarnation, batch: Batch, chain: bytes) -> None:
        super()._extend(who, batch, chain)
        time_ms, entries = txns.unpack_batch(batch.payload)
        zxid = int(batch.first)
        self.sessions.committed_us.append(self.now_us())
        for _, _, session_id, txn in entries:
            self._require_open(session_id, txn, zxid)
            self.sessions.committed(session_id, txn, zxid)
            if self.recipes is not None:
                self.recipes.before(session_id, txn, zxid)
            if txn[0] == txns.CLOSE_SESSION:
                self._session_closes(session_id, txn[1], zxid)
            self._shadow.take(zxid, txn)
            before = self.tree.digest if txn[0] in _REFUSALS else 0
            self.txns.append((zxid, session_id, txn))
            applied = self.tree.apply(zxid, time_ms, session_id, txn)
            if txn[0] in _REFUSALS and self.tree.digest != before:
                self.fail("R5", f"{txn} at {Zxid(zxid)!r} was refused and changes something")
            self._shadow.compare(zxid, txn, self.tree, applied)
            self._require_pure(zxid, txn, applied, self._twin.apply(zxid, time_ms, session_id, txn))
            if self.recipes is not None:
                self.recipes.after()
            for change in applied.changes:
                self._note_change(change, zxid)
            zxid += 1
        self.digests[int(batch.last)] = self.tree.digest
        self.batches.append(batch)
        self._compare_twin()

    def _require_pure(self, zxid: int, txn: txns.Txn, done: Applied, elsewhere: Applied) -> None:
        """The twin tells watches of the same changes in the same order (R4)."""
        if (done.error, done.changes) != (elsewhere.error, elsewhere.changes):
            self.fail(
                "R4",
                f"{txn} at {Zxid(zxid)!r} changes {done.changes}, in the same tree made of a "
                f"snapshot {elsewhere.changes}",
            )

    def _compare_twin(self) -> None:
        """The twin is in the same state (R4); now and then it is made anew (R2)."""
        if self._twin.digest != self.tree.digest:
            self.fail(
                "R4",
                f"at {Zxid(self.tree.zxid)!r} the same tree made of a snapshot is another: "
                f"{difference(self.tree, self._twin)}",
            )
        if len(self.batches) % _TWIN_BATCHES == 0:
            try:
                self._twin = reborn(self.tree)
            except DamagedError as error:
                self.fail("R2", f"at {Zxid(self.tree.zxid)!r}: {error}")

    def _require_open(self, session_id: SessionId, txn: txns.Txn, zxid: int) -> None:
        if session_id in self.closed and txn[0] not in _REFUSALS:
            raise InvariantError(
                "S3",
                f"{format_session(session_id)} was closed, and {Zxid(zxid)!r} is its {txn[0]} txn",
            )

    def _note_change(self, change: Change, zxid: int) -> None:
        self.changes.append(Changed(zxid, change.type, change.path))
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
        self.closed_us[session_id] = self.now_us()
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

    # --- trees made again ------------------------------------------------------------------------

    def disks_damaged(self, member: MemberId) -> None:
        """What it does not read again it does not miss: an older snapshot, for instance."""
        super().disks_damaged(member)
        self._hurt.add(member)

    def unhurt(self, member: MemberId) -> bool:
        """Whether every file of this member is as it was written."""
        return member not in self._hurt

    def has_whole(self, member: MemberId, position: LogPosition) -> None:
        """This member has written a snapshot to its last byte."""
        self._whole.setdefault(member, set()).add(position)

    def uses_snapshot(self, member: MemberId, position: LogPosition) -> None:
        """A member builds its tree on this snapshot: it was written to the end (R3)."""
        if position not in self._whole.get(member, ()):
            self.fail(
                "R3",
                f"member {member} builds on a snapshot at {position.zxid!r} that it has never "
                "written to the end",
            )

    def goes_on(self, member: MemberId, position: LogPosition, batch: Batch) -> None:
        """A member replays a batch of its log over a tree that stands at `position` (R3)."""
        if batch.previous != position.chain:
            self.fail(
                "R3",
                f"member {member} replays {batch.first!r} over a tree at {position.zxid!r}, "
                "and something between the two is missing",
            )

    def batches_up_to(self, zxid: int) -> int:
        """How many batches of the ledger a tree at this zxid holds."""
        return bisect_right(self.batches, zxid, key=lambda batch: batch.last)

    def restored_to(self, who: object, tree: ZnodeTree) -> None:
        """Snapshot and log have given a member's tree again: it is what everybody's was (R2)."""
        expected = self.digests.get(tree.zxid)
        if tree.digest != expected:
            self.fail(
                "R2",
                f"{who} is restored with digest {tree.digest:016x} at {Zxid(tree.zxid)!r}, "
                f"where it was {expected or 0:016x}",
            )

    def restored(self, who: object, tree: ZnodeTree, start: int) -> None:
        """A tree was made again from a snapshot and a log: it is the one that was there (R2).

        `start` says from which batch on the log is replayed once more, over what holds it already.
        """
        self.restored_to(who, tree)
        for batch in self.batches[start:]:
            apply_batch(tree, batch)
        self._shadow.compare_all(who, tree)
        if what := difference(tree, self.tree):
            self.fail("R2", f"{who}: replayed from batch {start} on {what}")

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

    def pzxid_at(self, path: str, zxid: int) -> int:
        """When the last child of the path, as it was at `zxid`, came or went; or it came itself."""
        found = 0
        for kind in (EventType.CREATED, EventType.CHILDREN_CHANGED):
            zxids = self._changes.get((path, kind), [])
            index = bisect_right(zxids, zxid)
            found = max(found, zxids[index - 1] if index else 0)
        return found

    def held_by(self, path: str, data: bytes | None, zxid: int) -> bool:
        """Whether the path has held this data at `zxid` or at any time before."""
        versions = self._paths.get(path, [])
        return any(each.there and each.data == data and each.zxid <= zxid for each in versions)

    def changed_at(self, path: str, kind: EventType, zxid: int) -> bool:
        """Whether that transaction did this to the path."""
        return zxid in self._changes.get((path, kind), [])

    def sequential_created(self, path: str, zxid: int) -> None:
        """A client was told the path of its sequential znode (R7)."""
        if self._sequential.setdefault(path, zxid) != zxid:
            raise InvariantError("R7", f"{path} was created twice by sequence")
