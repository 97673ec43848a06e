"""A tree with its preparer, driven op by op: what the tests of this room stand on."""

from collections.abc import Iterable, Sequence

from zabd.model.acl import OPEN_ACL_UNSAFE, Acl, Identity
from zabd.model.errors import ErrorCode
from zabd.model.ops import Create, Create2, CreateMode, CreateSession, Op
from zabd.model.stat import Stat
from zabd.znode_tree import (
    Applied,
    PrepareOptions,
    Preparer,
    Txn,
    Znode,
    ZnodeTree,
    pack_batch,
    stat_of,
    unpack_batch,
)
from zabd.znode_tree.digest import DIGEST_MASK, secret_hash, session_hash, znode_hash
from zabd.znode_tree.znode import is_session

ALICE = 0x0100_0000_0000_0001
BOB = -0x7E00_0000_0000_0002  # a member id above 127 makes session ids negative
FIRST_ZXID = 1 << 32
START_MS = 1_700_000_000_000
LOCAL = (Identity("ip", "127.0.0.1"),)


class World:
    """One leader's view: every op is prepared, packed as in the log, unpacked and applied."""

    def __init__(self, options: PrepareOptions | None = None) -> None:
        self.tree = ZnodeTree()
        self.preparer = Preparer(self.tree, options or PrepareOptions())
        self.zxid = FIRST_ZXID
        self.now_ms = START_MS
        self.waiting: list[tuple[int, int, int, Txn]] = []
        self.log: list[tuple[int, int, int, Txn]] = []
        for session_id in (ALICE, BOB):
            self.do(CreateSession(10_000), session_id)

    def prepare(
        self, op: Op, session_id: int = ALICE, identities: Iterable[Identity] = LOCAL
    ) -> Txn:
        """Prepare an op and leave its txn in flight."""
        self.zxid += 1
        self.now_ms += 1
        txn = self.preparer.prepare(self.zxid, self.now_ms, session_id, tuple(identities), op)
        self._wait(session_id, txn)
        return txn

    def expire(self, session_id: int) -> Applied:
        self.zxid += 1
        self.now_ms += 1
        self._wait(session_id, self.preparer.close_session(self.zxid, self.now_ms, session_id))
        return self.apply_all()[-1]

    def _wait(self, session_id: int, txn: Txn) -> None:
        assert unpack_batch(pack_batch(1, [(1, 2, 3, txn)])) == (1, ((1, 2, 3, txn),))
        [(_, _, _, logged)] = unpack_batch(pack_batch(1, [(1, 2, 3, txn)]))[1]
        self.waiting.append((self.zxid, self.now_ms, session_id, logged))
        self.log.append(self.waiting[-1])

    def apply_next(self) -> Applied:
        """Apply the oldest txn in flight."""
        entry = self.waiting.pop(0)
        applied = self.tree.apply(*entry)
        self.preparer.applied(entry[0])
        return applied

    def apply_all(self) -> list[Applied]:
        return [self.apply_next() for _ in range(len(self.waiting))]

    def do(
        self, op: Op, session_id: int = ALICE, identities: Iterable[Identity] = LOCAL
    ) -> Applied:
        """Prepare and apply one op."""
        self.prepare(op, session_id, identities)
        return self.apply_all()[-1]

    def create(
        self,
        path: str,
        data: bytes | None = b"",
        *,
        mode: int = CreateMode.PERSISTENT,
        acl: Sequence[Acl] = OPEN_ACL_UNSAFE,
        session_id: int = ALICE,
    ) -> str:
        """Create a znode that can be created; returns its path."""
        applied = self.do(Create2(path, data, tuple(acl), mode), session_id)
        assert applied.error == 0
        assert isinstance(applied.value, str)
        return applied.value

    def node(self, path: str) -> Znode:
        return self.tree.nodes[path]

    def stat(self, path: str) -> Stat:
        return stat_of(self.node(path))


def refusal(applied: Applied) -> ErrorCode:
    """The code of a refused op, which changed nothing."""
    assert applied.value is None
    assert applied.changes == ()
    return ErrorCode(applied.error)


def plain(path: str, mode: int = CreateMode.PERSISTENT, data: bytes | None = b"") -> Create:
    """The create of a znode that everybody may use."""
    return Create(path, data, OPEN_ACL_UNSAFE, mode)


def digest_from_scratch(tree: ZnodeTree) -> int:
    """The digest as its definition says, from the whole state."""
    total = sum(znode_hash(path, node) for path, node in tree.nodes.items())
    total += sum(session_hash(*session) for session in tree.sessions.items())
    return (total + secret_hash(tree.secret)) & DIGEST_MASK


def contents(tree: ZnodeTree) -> dict[str, object]:
    """Everything that two equal trees have in common."""
    return {
        "zxid": tree.zxid,
        "time_ms": tree.time_ms,
        "secret": tree.secret,
        "sessions": dict(tree.sessions),
        "ephemerals": {owner: set(paths) for owner, paths in tree.ephemerals.items()},
        "perishable": set(tree.perishable),
        "data_bytes": tree.data_bytes,
        "nodes": {
            path: (node.data, node.acl, node.created, node.owner, stat_of(node))
            for path, node in tree.nodes.items()
        },
        "children": {
            path: set(node.children) if node.children else None for path, node in tree.nodes.items()
        },
        "digest": tree.digest,
    }


def check_invariants(tree: ZnodeTree) -> None:
    """What must hold of every tree at every moment."""
    assert tree.digest == digest_from_scratch(tree), "G1"
    owned: dict[int, set[str]] = {}
    perishable = set()
    below: dict[str, set[str]] = {}
    for path, node in tree.nodes.items():
        if path != "/":
            parent = path.rpartition("/")[0] or "/"
            below.setdefault(parent, set()).add(path)
            assert tree.nodes[parent].pzxid >= node.czxid, "R6"
        if node.owner and is_session(node.owner):
            assert node.owner in tree.sessions, "S1"
            assert not node.children, "S1"
            owned.setdefault(node.owner, set()).add(path)
        elif node.owner:
            perishable.add(path)
    for path, node in tree.nodes.items():
        assert set(node.children or ()) == below.get(path, set())
        assert node.children is None or node.children
    assert owned == {owner: set(paths) for owner, paths in tree.ephemerals.items()}, "S1"
    assert perishable == set(tree.perishable)
    assert tree.data_bytes == sum(
        len(path) + len(node.data or b"") for path, node in tree.nodes.items()
    )
