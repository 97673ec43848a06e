"""State: what every member of an ensemble holds, and the books that are kept about it.

The znodes lie flat in one dict by path; indexes and sums over them are kept up with every change,
so that no question of a client, an operator or a peer needs a look at all of them.

Invariants
    S1  Every ephemeral's owner is an open session, which lists it in `ephemerals`.
    B1  Every change of a znode goes through `_before_change` first: it is what a snapshot that is
        being taken and the digest hear of it.
    B2  The digest's sum lacks the changes of at most `CHANGED_MAX` znodes and one txn.

How a txn changes the state stands in `tree`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from zabd.model.acl import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE
from zabd.model.errors import LocalProtocolError
from zabd.model.paths import CONFIG_PATH, QUOTA_PATH, ROOT, SYSTEM_PATH
from zabd.model.quotas import NO_LIMITS, parse_limits, stats_path
from zabd.znode_tree.acl_table import AclTable
from zabd.znode_tree.digest import DIGEST_MASK, secret_hash, session_hash, znode_hash
from zabd.znode_tree.quotas import Quota, QuotaTable, counted_path, limited_path
from zabd.znode_tree.snapshot import SnapshotWalk
from zabd.znode_tree.znode import Znode, is_session

CHANGED_MAX: Final = 1024
"""How many changed znodes may wait for the digest: 1,024 times 2 us is a pause of 2 ms."""


class TreeState:
    """The znodes, the sessions and the ensemble's secret, as of `zxid`.

    Attributes:
        nodes: every znode by its path.
        sessions: the timeout in ms of every open session.
        ephemerals: the paths of every session that owns any.
        perishable: the paths of containers and of znodes with a time to live, in order of creation.
        packed_stats: what readers have put in about a znode that did not change since, by path.
        zxid: the last txn applied; 0 in a fresh tree.
        time_ms: the leader's time in that txn.
        secret: the ensemble's, empty before it is founded.
        data_bytes: the lengths of all paths and data together.
        quotas: the active quotas and what is used of each, see `quotas`.
    """

    __slots__ = (
        "_acls",
        "_changed",
        "_sum",
        "_walk",
        "data_bytes",
        "ephemerals",
        "nodes",
        "packed_stats",
        "perishable",
        "quotas",
        "secret",
        "sessions",
        "time_ms",
        "zxid",
    )

    def __init__(self, *, planted: bool = True) -> None:
        """The state before the first txn; `planted=False` leaves out the system znodes."""
        self.nodes: dict[str, Znode] = {}
        self.sessions: dict[int, int] = {}
        self.ephemerals: dict[int, dict[str, None]] = {}
        self.perishable: dict[str, None] = {}
        self.zxid = 0
        self.time_ms = 0
        self.secret = b""
        self.data_bytes = 0
        self.quotas = QuotaTable()
        self.packed_stats: dict[str, bytes] = {}
        self._acls = AclTable()
        # The digest's sum does not have the latest changes of these yet. The znodes themselves, as
        # looking one up in a large tree misses every cache.
        self._changed: dict[str, Znode] = {}
        self._sum = 0
        self._walk: SnapshotWalk | None = None
        if planted:
            self._plant()

    def _plant(self) -> None:
        # As ZooKeeper's: the children made in advance are not counted by `created`, so the root's
        # cversion is -1 and the first sequential name under it ends in 0.
        for path in (ROOT, SYSTEM_PATH, QUOTA_PATH):
            self.restore(path, Znode(b"", OPEN_ACL_UNSAFE, 0, 0, 0, 0, 0, 0, 0, 0, 0))
        self.restore(CONFIG_PATH, Znode(b"", READ_ACL_UNSAFE, 0, 0, 0, 0, 0, -1, -1, 0, 0))

    # Reading.

    def get(self, path: str) -> Znode | None:
        """The znode at `path`, or None. Read it, and do not keep it over an `apply`."""
        return self.nodes.get(path)

    @property
    def digest(self) -> int:
        """One number for the whole state, see `digest`; reading it settles what has changed."""
        if self._changed:
            self._settle()
        return self._sum

    def descendant_count(self, path: str) -> int:
        """How many znodes there are below `path`, which exists."""
        if path == ROOT:
            return len(self.nodes) - 1
        count = 0
        waiting = [path]
        while waiting:
            children = self.nodes[waiting.pop()].children or ()
            count += len(children)
            waiting.extend(children)
        return count

    # Bookkeeping that goes with every change.

    def _before_change(self, path: str, node: Znode) -> None:
        """Every change of a znode that exists comes through here, before it happens."""
        self._changed[path] = node
        if self.packed_stats:
            self.packed_stats.pop(path, None)
        if self._walk is not None:
            self._walk.keep(path, node)

    def _settle(self) -> None:
        total = self._sum
        for path, node in self._changed.items():
            mark = znode_hash(path, node)
            total += mark - node.mark
            node.mark = mark
        self._sum = total & DIGEST_MASK
        self._changed.clear()

    def _add_to_sum(self, number: int) -> None:
        self._sum = (self._sum + number) & DIGEST_MASK

    def _list_owned(self, path: str, owner: int) -> None:
        if is_session(owner):
            self.ephemerals.setdefault(owner, {})[path] = None
        else:
            self.perishable[path] = None

    def _unlist_owned(self, path: str, owner: int) -> None:
        if not is_session(owner):
            del self.perishable[path]
            return
        paths = self.ephemerals[owner]
        del paths[path]
        if not paths:
            del self.ephemerals[owner]

    # Quotas.

    def usage_below(self, path: str) -> tuple[int, int]:
        """How many znodes there are at and below `path`, and how many bytes of data they hold."""
        count = size_bytes = 0
        for _, size in self._sizes_below(path):
            count += 1
            size_bytes += size
        return count, size_bytes

    def _sizes_below(self, path: str) -> Iterator[tuple[str, int]]:
        waiting = [path] if path in self.nodes else []
        while waiting:
            path = waiting.pop()
            node = self.nodes[path]
            yield path, len(node.data) if node.data else 0
            waiting.extend(node.children or ())

    def _charge(self, path: str, znodes: int, size_bytes: int) -> None:
        """`path` has come (znodes 1) or gone (-1), or its data has grown by that much."""
        quotas = self.quotas
        for subject in quotas.above(path):
            quota = quotas[subject] = quotas[subject].charged(znodes, size_bytes)
            self._show_usage(subject, quota)

    def _quota_node_set(self, path: str, data: bytes | None, *, created: bool) -> None:
        """A znode below /zookeeper/quota has this data now."""
        subject = limited_path(path)
        if subject is not None:
            quota = Quota(parse_limits(data), *self._usage(subject))
            self.quotas.activate(subject, quota)
            self._show_usage(subject, quota)
        elif created:
            subject = counted_path(path)
            if subject is not None:
                self._show_usage(subject, Quota(NO_LIMITS, *self._usage(subject)))

    def _usage(self, subject: str) -> tuple[int, int]:
        quota = self.quotas.get(subject)
        return self.usage_below(subject) if quota is None else (quota.znodes, quota.size_bytes)

    def _show_usage(self, subject: str, quota: Quota) -> None:
        path = stats_path(subject)
        node = self.nodes.get(path)
        if node is not None:
            self._before_change(path, node)
            text = quota.text
            self.data_bytes += len(text) - (len(node.data) if node.data else 0)
            node.data = text

    def recount_quotas(self) -> None:
        """Find the quotas of a tree that was made again, and what is used of each (Q1)."""
        for path, _ in self._sizes_below(QUOTA_PATH):
            subject = limited_path(path)
            if subject is not None:
                self.quotas.activate(subject, Quota(parse_limits(self.nodes[path].data), 0, 0))
        tops = self.quotas.topmost()
        self.quotas.recount(size for top in tops for size in self._sizes_below(top))

    # Snapshots.

    def begin_snapshot(self) -> SnapshotWalk:
        """Begin a snapshot of this very moment; it may be taken in slices while writes go on.

        One at a time: LocalProtocolError while another is neither at its end nor abandoned.
        """
        if self._walk is not None:
            raise LocalProtocolError("a snapshot is being taken already; finish or abandon it")
        self._walk = SnapshotWalk(
            nodes=self.nodes,
            sessions=tuple(self.sessions.items()),
            zxid=self.zxid,
            time_ms=self.time_ms,
            secret=self.secret,
            digest=self.digest,
            on_end=self._end_walk,
        )
        return self._walk

    def _end_walk(self) -> None:
        self._walk = None

    # Being made again.

    def restore(self, path: str, node: Znode) -> bool:
        """Put back a znode as it was, and under its parent; False if the parent is not there yet.

        For a tree that is being made, not for one in use: `TreeLoader` and the fresh tree use it.
        """
        node.acl = self._acls.share(node.acl)
        self.nodes[path] = node
        node.mark = mark = znode_hash(path, node)
        self._sum = (self._sum + mark) & DIGEST_MASK
        self.data_bytes += len(path) + (len(node.data) if node.data else 0)
        if node.owner:
            self._list_owned(path, node.owner)
        return self.link(path)

    def link(self, path: str) -> bool:
        """List a restored znode among its parent's children; False if there is no parent."""
        if path == ROOT:
            return True
        parent = self.nodes.get(path[: path.rindex("/")] or ROOT)
        if parent is None:
            return False
        if parent.children is None:
            parent.children = {}
        parent.children[path] = None
        return True

    def restore_session(self, session_id: int, timeout_ms: int) -> None:
        """Put back an open session, as `restore` does a znode."""
        self.sessions[session_id] = timeout_ms
        self._add_to_sum(session_hash(session_id, timeout_ms))

    def restore_position(self, zxid: int, time_ms: int, secret: bytes) -> None:
        """Put back where the tree stood and the ensemble's secret, as `restore` does a znode."""
        self.zxid = zxid
        self.time_ms = time_ms
        self._add_to_sum(secret_hash(secret) - secret_hash(self.secret))
        self.secret = secret
