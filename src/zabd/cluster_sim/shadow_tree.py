"""A plain model of the tree beside the ledger: what each committed txn may be, and must do.

It knows nothing of how the tree works: a dict of paths with the few numbers that the rules below
speak of, kept up from the txns alone. So a mistake that all members share, preparation and
application included, does not hide behind their agreement.

The checks: R5 MultiAtomic, R6 ParentCounters, R7 SequenceUnique, R8 PrepareOnce.
"""

import re
from collections.abc import Callable
from typing import Final

from zabd.model.paths import ROOT
from zabd.model.zxid import Zxid
from zabd.znode_tree import txns
from zabd.znode_tree.tree import Applied, ZnodeTree
from zabd.znode_tree.txns import Txn

_SEQUENTIAL: Final = re.compile(r"-(-?\d{10})$")
"""How sequential znodes end whose names were given with a dash, as the core level's clients do."""

_INT32: Final = 1 << 32


class _Shadow:
    """One znode."""

    __slots__ = ("aversion", "children", "created", "data", "ephemeral", "pzxid", "version")

    def __init__(self, data: bytes | None, zxid: int, *, ephemeral: bool) -> None:
        self.data = data
        self.ephemeral = ephemeral
        self.version = 0
        self.aversion = 0
        self.created = 0
        self.pzxid = zxid
        self.children: set[str] = set()


class ShadowTree:
    """The model. `take` every committed txn before the tree applies it, then `compare`."""

    def __init__(self, fail: Callable[[str, str], None], *, names_tell: bool = True) -> None:
        """`fail` is told the check that does not hold, and what was seen.

        A txn does not say whether its name was numbered by the leader. `names_tell`: here it shows,
        since only such names end like one.
        """
        self._fail = fail
        self._names_tell = names_tell
        self._nodes: dict[str, _Shadow] = {}
        self._suffixes: dict[str, int] = {}  # parent: the last number given below it
        self._touched: dict[str, None] = {}
        for path, node in ZnodeTree().nodes.items():
            shadow = self._nodes[path] = _Shadow(node.data, node.pzxid, ephemeral=False)
            shadow.version = node.version
            shadow.created = node.created
            shadow.children = set(node.children or ())

    def take(self, zxid: int, txn: Txn) -> None:
        """A txn is committed: does it follow from what was committed before it (R7, R8)?"""
        self._touched.clear()
        self._take(zxid, txn)

    def _take(self, zxid: int, txn: Txn) -> None:
        match txn:
            case (txns.CREATE, path, data, _, owner, parent_created):
                self._create(zxid, path, data, owner, parent_created)
            case (txns.DELETE | txns.CONTAINER_DELETE, path):
                self._remove(zxid, path)
            case (txns.SET_DATA, path, data, version):
                node = self._there(zxid, path)
                node.version = self._follows(zxid, path, "version", node.version, version)
                node.data = data
            case (txns.SET_ACL, path, _, aversion):
                node = self._there(zxid, path)
                node.aversion = self._follows(zxid, path, "aversion", node.aversion, aversion)
            case (txns.CHECK, path):
                self._there(zxid, path)
            case (txns.MULTI, _, parts):
                for part in parts:
                    self._take(zxid, part)
            case (txns.CLOSE_SESSION, paths):
                for path in paths:
                    self._remove(zxid, path)
            case _:
                pass  # sessions, the founding and refusals change no znode

    # --- R7 and R8: what the leader may have made of a request ------------------------------------

    def _create(self, zxid: int, path: str, data: bytes | None, owner: int, created: int) -> None:
        parent_path = _parent_of(path)
        self._require_fresh_suffix(zxid, parent_path, path, created)
        parent = self._there(zxid, parent_path)
        if path in self._nodes:
            self._wrong(zxid, f"creates {path}, which is there")
        if parent.ephemeral:
            self._wrong(zxid, f"creates {path} below an ephemeral")
        if created != parent.created + 1:
            self._wrong(
                zxid,
                f"creates {path} as child {created} of {parent_path}, "
                f"which has had {parent.created}",
            )
        parent.created = created
        parent.pzxid = zxid
        parent.children.add(path)
        self._nodes[path] = _Shadow(data, zxid, ephemeral=owner > 0)
        self._touched[path] = None

    def _require_fresh_suffix(self, zxid: int, parent: str, path: str, created: int) -> None:
        """The number in a sequential name is the parent's counter, and greater than all before."""
        found = _SEQUENTIAL.search(path) if self._names_tell else None
        if found is None:
            return
        number = int(found[1])
        last = self._suffixes.get(parent, -1)
        if number <= last or number != created - 1:
            self._fail(
                "R7",
                f"{Zxid(zxid)!r} creates {path} as child {created} of its parent, "
                f"the last such number was {last}",
            )
        self._suffixes[parent] = number

    def _remove(self, zxid: int, path: str) -> None:
        node = self._there(zxid, path)
        if node.children:
            self._wrong(zxid, f"deletes {path}, which has {len(node.children)} children")
        parent_path = _parent_of(path)
        parent = self._there(zxid, parent_path)
        parent.pzxid = zxid
        parent.children.discard(path)
        self._nodes.pop(path, None)
        self._suffixes.pop(path, None)  # whoever comes after it at this path counts anew
        self._touched[path] = None

    def _there(self, zxid: int, path: str) -> _Shadow:
        node = self._nodes.get(path)
        if node is None:
            self._wrong(zxid, f"needs {path}, which is not there")
            node = _Shadow(None, zxid, ephemeral=False)
        self._touched[path] = None
        return node

    def _wrong(self, zxid: int, what: str) -> None:
        self._fail("R8", f"{Zxid(zxid)!r} {what}")

    def _follows(self, zxid: int, path: str, name: str, before: int, after: int) -> int:
        # It wraps at 32 bits and leaves out -1, which means "any" to clients.
        step = 2 if before == -2 else 1  # noqa: PLR2004 - the number before -1
        if (after - before) % _INT32 != step:
            self._wrong(zxid, f"gives {path} the {name} {after} after {before}")
        return after

    # --- R5 and R6: what the tree must have made of it --------------------------------------------

    def compare(self, zxid: int, txn: Txn, tree: ZnodeTree, applied: Applied) -> None:
        """The tree has applied the txn: is it as the model says, wherever the txn has been?"""
        if txn[0] == txns.MULTI:
            self._compare_parts(zxid, txn, tree, applied)
        for path in self._touched:
            self._compare_counters(f"{Zxid(zxid)!r} leaves", path, tree)

    def compare_all(self, who: object, tree: ZnodeTree) -> None:
        """A tree that stands where the model does has the counters of the model (R6)."""
        for path in self._nodes:
            self._compare_counters(f"{who} has", path, tree)

    def _compare_parts(self, zxid: int, txn: Txn, tree: ZnodeTree, applied: Applied) -> None:
        for path in self._touched:
            shadow, node = self._nodes.get(path), tree.get(path)
            if (shadow is None) != (node is None):
                state = "not there" if node is None else "there"
                self._fail("R5", f"after the multi {Zxid(zxid)!r} {path} is {state}")
            if shadow is None or node is None:
                continue
            if (node.version, node.data) != (shadow.version, shadow.data):
                self._fail(
                    "R5",
                    f"after the multi {Zxid(zxid)!r} {path} holds {node.data!r} in version "
                    f"{node.version}, not {shadow.data!r} in version {shadow.version}",
                )
        told = {change.path for change in applied.changes}
        for part in txn[2]:
            if part[0] != txns.CHECK and part[1] not in told:
                self._fail("R5", f"{Zxid(zxid)!r} tells no watch of {part[1]}")

    def _compare_counters(self, who: str, path: str, tree: ZnodeTree) -> None:
        shadow, node = self._nodes.get(path), tree.get(path)
        if shadow is None or node is None:
            return  # whether it is there is for R1 and R8 to say
        if (node.created, node.pzxid) != (shadow.created, shadow.pzxid):
            self._fail(
                "R6",
                f"{who} {path} with {node.created} children created and pzxid "
                f"{Zxid(node.pzxid)!r}, not with {shadow.created} and {Zxid(shadow.pzxid)!r}",
            )


def _parent_of(path: str) -> str:
    return path[: path.rindex("/")] or ROOT
