"""Trees made again from what disks hold, to be compared with the one that has always been there.

`decode` reads a snapshot's file as a start does, `reborn` sends a tree through a snapshot, and
`difference` looks at every field of two trees, not only at those that the digest knows of.
"""

from typing import TypeVar

from zabd.replica.rebuild import TreeBuilder
from zabd.storage.snapshots import SnapshotDecoder
from zabd.znode_tree.loader import TreeLoader
from zabd.znode_tree.tree import ZnodeTree
from zabd.znode_tree.znode import Znode

K = TypeVar("K")
V = TypeVar("V")

_SLICE_NODES = 5


def decode(builder: TreeBuilder, file: str, content: bytes) -> None:
    """Bring the tree of a snapshot's file into the builder; DamagedError if it is not whole."""
    decoder = SnapshotDecoder(file)
    pieces = decoder.feed(content)
    info = decoder.finish()
    builder.begin_snapshot(info.position)
    for piece in pieces:
        builder.snapshot_chunk(piece)
    builder.end_snapshot()


def reborn(tree: ZnodeTree) -> ZnodeTree:
    """The same tree in other memory, its books in another order; DamagedError if it cannot be."""
    walk, loader = tree.begin_snapshot(), TreeLoader()
    while (chunk := walk.next_slice(_SLICE_NODES)) is not None:
        loader.feed(chunk)
    twin = loader.finish()
    _turn_round(twin.nodes)
    _turn_round(twin.sessions)
    for paths in twin.ephemerals.values():
        _turn_round(paths)
    for node in twin.nodes.values():
        if node.children:
            _turn_round(node.children)
    return twin


def _turn_round(book: dict[K, V]) -> None:
    """Nothing may depend on the order in which a dict was filled."""
    items = [*book.items()]
    book.clear()
    book.update(reversed(items))


def difference(one: ZnodeTree, other: ZnodeTree) -> str:
    """The first thing in which two trees differ, as words; "" if there is none."""
    for path in sorted({*one.nodes, *other.nodes}):
        node, twin = _facts(one.nodes.get(path)), _facts(other.nodes.get(path))
        if node != twin:
            return f"{path} is {node}, and {twin} there"
    books: tuple[tuple[str, object, object], ...] = (
        ("sessions", one.sessions, other.sessions),
        ("ephemerals", one.ephemerals, other.ephemerals),
        ("perishables", one.perishable, other.perishable),
        ("secret", one.secret, other.secret),
        ("position", (one.zxid, one.time_ms), (other.zxid, other.time_ms)),
        ("bytes of data", one.data_bytes, other.data_bytes),
        ("quotas", dict(one.quotas), dict(other.quotas)),
        ("digest", one.digest, other.digest),
    )
    for name, here, there in books:
        if here != there:
            return f"{name}: {here}, and {there} there"
    return ""


def _facts(node: Znode | None) -> tuple[object, ...]:
    """All that is kept of a znode; its children are paths of their own."""
    if node is None:
        return ()
    return (
        node.data,
        node.acl,
        node.czxid,
        node.mzxid,
        node.pzxid,
        node.ctime,
        node.mtime,
        node.version,
        node.aversion,
        node.created,
        node.owner,
        frozenset(node.children or ()),
    )
