"""Which keys have how many ephemerals: counted for a page, a slice of them in a turn of the loop.

A tree may have a hundred thousand ephemerals, and a member that counted them all at once would let
its clients wait for as long as that takes.
"""

from collections import Counter
from collections.abc import Iterator
from heapq import heappush, heappushpop
from typing import Final, TypeAlias

from zabd.model.metrics import prefix_of
from zabd.model.paths import ROOT, parent_of
from zabd.znode_tree.tree import ZnodeTree

SLICE: Final = 1_000
"""Ephemerals, or keys to be ranked, in a turn: a millisecond."""

_Ranking: TypeAlias = list[tuple[int, str]]  # a heap, whose first is the least


class EphemeralCensus:
    """One count; what comes and goes meanwhile may or may not be in it."""

    def __init__(self, tree: ZnodeTree, keys_max: int) -> None:
        self._tree = tree
        self._keys_max = keys_max
        self._total = 0
        self._keys: Counter[str] = Counter()
        self._prefixes: Counter[str] = Counter()
        self._largest: tuple[_Ranking, _Ranking] = ([], [])
        self._work = self._slices()

    def step(self) -> bool:
        """Do a slice; whether there may be more."""
        return next(self._work, False)

    def result(self) -> dict[str, int]:
        """Ephemerals by path: all, those below each first component, the children of each key.

        Of the components and of the keys the largest so many are named.
        """
        largest = [named for ranking in self._largest for named in sorted(ranking, reverse=True)]
        return {ROOT: self._total, **{path: count for count, path in largest}}

    def _slices(self) -> Iterator[bool]:
        keys, prefixes = self._keys, self._prefixes
        done = 0
        for path in self._paths():
            parent = parent_of(path)
            if parent != ROOT:
                prefix = prefix_of(parent)
                prefixes[prefix] += 1
                if prefix != parent:
                    keys[parent] += 1
            self._total += 1
            if (done := done + 1) % SLICE == 0:
                yield True
        for counts, ranking in zip((prefixes, keys), self._largest, strict=True):
            for path, count in counts.items():
                self._rank(ranking, count, path)
                if (done := done + 1) % SLICE == 0:
                    yield True

    def _paths(self) -> Iterator[str]:
        ephemerals = self._tree.ephemerals
        for owner in list(ephemerals):
            yield from tuple(ephemerals.get(owner, ()))

    def _rank(self, ranking: _Ranking, count: int, path: str) -> None:
        if len(ranking) < self._keys_max:
            heappush(ranking, (count, path))
        elif ranking and count > ranking[0][0]:
            heappushpop(ranking, (count, path))
