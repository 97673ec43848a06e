"""Outstanding: what the tree will look like once everything that was prepared has been applied.

The leader prepares ops much faster than a quorum makes them durable. A version, a sequence number
or a child count must therefore be read from what is decided, not from what is applied: this overlay
holds, for each path and session that a txn in flight touches, the state after the last such txn.

Invariants
    O1  `view(path)` is the znode as it will be when all that was prepared is applied.
    O2  A pending znode stands for the newest txn in flight that touches its path, so it is dropped
        exactly when that txn is applied; the tree then says the same.
    O3  What a multi has put in before its culprit is taken out again as if it had never been.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from zabd.model.acl import OPEN_ACL_UNSAFE, Acl
from zabd.znode_tree.tree import ZnodeTree
from zabd.znode_tree.znode import Znode, is_session


class PendingZnode:
    """A znode as the txns in flight leave it; it has of a Znode what the checks look at."""

    __slots__ = ("acl", "aversion", "child_count", "created", "data", "mtime", "owner", "version")

    def __init__(
        self,
        version: int,
        aversion: int,
        created: int,
        child_count: int,
        acl: tuple[Acl, ...],
        owner: int,
        mtime: int,
        data: bytes | None,
    ) -> None:
        self.version = version
        self.aversion = aversion
        self.created = created
        self.child_count = child_count
        self.acl = acl
        self.owner = owner
        self.mtime = mtime
        self.data = data


class PendingAbsence:
    """A path at which the txns in flight leave nothing. One object for each deletion, see O2."""

    __slots__ = ()
    owner = 0


ZnodeView: TypeAlias = Znode | PendingZnode

_Pending: TypeAlias = PendingZnode | PendingAbsence

_Step: TypeAlias = tuple[int, str, _Pending, _Pending | None]
# (zxid, path, what it is from then on, what was pending there before)


class Outstanding:
    """The overlay over one tree: put in what a txn changes, `drop` what the tree has by now."""

    __slots__ = ("_by_owner", "_by_path", "_closing", "_opening", "_steps", "_tree")

    def __init__(self, tree: ZnodeTree) -> None:
        self._tree = tree
        self._by_path: dict[str, _Pending] = {}
        self._by_owner: dict[int, dict[str, None]] = {}
        self._steps: deque[_Step] = deque()
        # Sessions that are being opened or closed, each with the zxid at which the tree will know.
        self._opening: dict[int, int] = {}
        self._closing: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._by_path)

    def view(self, path: str) -> ZnodeView | None:
        """The znode at `path` as it will be, None if there will be none. Not to be changed."""
        pending = self._by_path.get(path)
        if pending is None:
            return self._tree.nodes.get(path)
        return pending if isinstance(pending, PendingZnode) else None

    def amend(self, zxid: int, path: str, view: ZnodeView) -> PendingZnode:
        """`path` will be like `view` after `zxid`, but for what the caller changes in the answer.

        The owner must stay, because ephemerals are listed by it.
        """
        pending = PendingZnode(
            view.version,
            view.aversion,
            view.created,
            view.child_count,
            view.acl,
            view.owner,
            view.mtime,
            view.data,
        )
        self.put(zxid, path, pending)
        return pending

    def put(self, zxid: int, path: str, pending: _Pending) -> None:
        """`path` will be like this after `zxid`."""
        previous = self._by_path.get(path)
        self._steps.append((zxid, path, pending, previous))
        self._by_path[path] = pending
        if pending.owner or (previous is not None and previous.owner):
            self._index(path, pending, previous)

    def put_data(
        self, zxid: int, path: str, view: ZnodeView, version: int, mtime: int, data: bytes | None
    ) -> None:
        """`path`, which is like `view`, will hold `data` after `zxid`: `amend` for a setData."""
        pending = PendingZnode(
            version,
            view.aversion,
            view.created,
            view.child_count,
            view.acl,
            view.owner,
            mtime,
            data,
        )
        by_path = self._by_path
        previous = by_path.get(path)
        self._steps.append((zxid, path, pending, previous))
        by_path[path] = pending
        if pending.owner:
            self._index(path, pending, previous)

    def put_child(
        self,
        zxid: int,
        path: str,
        owner: int,
        time_ms: int,
        data: bytes | None,
        parent_path: str,
        parent: ZnodeView,
    ) -> int:
        """`path`, for everybody, will be one more child of `parent` after `zxid`.

        Returns how many children that will have created by then.
        """
        steps, by_path = self._steps, self._by_path
        created = parent.created + 1
        above = PendingZnode(
            parent.version,
            parent.aversion,
            created,
            parent.child_count + 1,
            parent.acl,
            parent.owner,
            parent.mtime,
            parent.data,
        )
        previous = by_path.get(parent_path)
        steps.append((zxid, parent_path, above, previous))
        by_path[parent_path] = above
        if above.owner:
            self._index(parent_path, above, previous)
        newborn = PendingZnode(0, 0, 0, 0, OPEN_ACL_UNSAFE, owner, time_ms, data)
        previous = by_path.get(path)  # at the most an absence
        steps.append((zxid, path, newborn, previous))
        by_path[path] = newborn
        if owner:
            self._index(path, newborn, previous)
        return created

    def drop(self, zxid: int) -> None:
        """The tree has applied everything up to `zxid`."""
        steps, by_path = self._steps, self._by_path
        while steps and steps[0][0] <= zxid:
            _, path, pending, _ = steps.popleft()
            if by_path.get(path) is pending:
                del by_path[path]
                if pending.owner:
                    self._index(path, None, pending)
        for sessions in (self._opening, self._closing):
            while sessions and next(iter(sessions.values())) <= zxid:
                del sessions[next(iter(sessions))]

    def session_is_live(self, session_id: int) -> bool:
        """Whether the session will be open."""
        if session_id in self._closing:
            return False
        return session_id in self._tree.sessions or session_id in self._opening

    def session_is_closing(self, session_id: int) -> bool:
        """Whether its close is in flight."""
        return session_id in self._closing

    def open_session(self, zxid: int, session_id: int) -> None:
        """The session will be open from `zxid` on."""
        # Out and in again: `drop` relies on the order of zxids.
        self._opening.pop(session_id, None)
        self._opening[session_id] = zxid

    def close_session(self, zxid: int, session_id: int) -> None:
        """The session, which is live, will be gone from `zxid` on."""
        self._closing[session_id] = zxid

    def mark(self) -> int:
        """A point to which `roll_back` can return, as long as nothing is dropped in between."""
        return len(self._steps)

    def roll_back(self, mark: int) -> None:
        """Undo every `put` since `mark`."""
        while len(self._steps) > mark:
            _, path, pending, previous = self._steps.pop()
            if previous is None:
                del self._by_path[path]
            else:
                self._by_path[path] = previous
            self._index(path, previous, pending)

    def ephemerals_of(self, session_id: int) -> list[str]:
        """The paths of the ephemerals that the session will own, sorted."""
        paths = dict(self._tree.ephemerals.get(session_id, {}))
        paths.update(self._by_owner.get(session_id, {}))
        return sorted(path for path in paths if self._owner(path) == session_id)

    def usage_below(self, path: str) -> tuple[int, int]:
        """How many znodes there will be at and below `path`, and how many bytes of data."""
        count, size_bytes = self._tree.usage_below(path)
        inside = path + "/"
        for changed, pending in self._by_path.items():
            if changed != path and not changed.startswith(inside):
                continue
            node = self._tree.nodes.get(changed)
            if node is not None:
                count -= 1
                size_bytes -= len(node.data or b"")
            if isinstance(pending, PendingZnode):
                count += 1
                size_bytes += len(pending.data or b"")
        return count, size_bytes

    def _owner(self, path: str) -> int:
        view = self.view(path)
        return view.owner if view is not None else 0

    def _index(self, path: str, now: _Pending | None, before: _Pending | None) -> None:
        if before is not None and is_session(before.owner):
            paths = self._by_owner.get(before.owner, {})
            paths.pop(path, None)
            if not paths:
                self._by_owner.pop(before.owner, None)
        if now is not None and is_session(now.owner):
            self._by_owner.setdefault(now.owner, {})[path] = None
