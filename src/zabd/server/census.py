"""Which keys have how many ephemerals: counted for a page, a slice of them in a turn of the loop.

A tree may have a hundred thousand ephemerals, and a member that counted them all at once would let
its clients wait for as long as that takes.
"""

from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import Final

from zabd.model.metrics import prefix_of
from zabd.model.paths import ROOT, parent_of
from zabd.znode_tree.tree import ZnodeTree

SLICE: Final = 2_000
"""Ephemerals in a turn: some two milliseconds."""


class EphemeralCensus:
    """One count; what comes and goes meanwhile may or may not be in it."""

    def __init__(self, tree: ZnodeTree, keys_max: int) -> None:
        self._keys_max = keys_max
        self._parents: Counter[str] = Counter()
        self._prefixes: Counter[str] = Counter()
        self._paths = self._walk(tree)

    def step(self) -> bool:
        """Count a slice; whether there may be more."""
        paths = list(islice(self._paths, SLICE))
        for path in paths:
            parent = parent_of(path)
            self._parents[parent] += 1
            self._prefixes[prefix_of(parent)] += 1
        return len(paths) == SLICE

    def result(self) -> dict[str, int]:
        """Ephemerals by path: all, those below each first component, the children of each key.

        Of the components and of the keys the largest so many are named.
        """
        total = self._prefixes.total()
        del self._prefixes[ROOT]  # a Counter does not mind
        parents = {path: n for path, n in self._parents.items() if path.count("/") > 1}
        return {
            ROOT: total,
            **dict(nlargest(self._keys_max, self._prefixes.items(), key=_count)),
            **dict(nlargest(self._keys_max, parents.items(), key=_count)),
        }

    def _walk(self, tree: ZnodeTree) -> Iterator[str]:
        for owner in list(tree.ephemerals):
            yield from tuple(tree.ephemerals.get(owner, ()))


def _count(item: tuple[str, int]) -> int:
    return item[1]
