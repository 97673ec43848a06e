"""The leader's search for containers that are empty and znodes whose time to live is over.

What it finds is only proposed: the deletion is a txn like any other, and `prepare` asks every
question again, since a write may have used or renewed the znode meanwhile. Ages are told by the
leader's time, which a stepped clock does not move (client protocol, section 9).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from zabd.znode_tree.znode import CONTAINER_OWNER, Znode, ttl_of

if TYPE_CHECKING:
    from zabd.replica.config import ReplicaConfig
    from zabd.znode_tree.tree import ZnodeTree

LOOKED_AT_PER_TURN_MAX = 2000
"""Znodes looked at in one turn, at about 0.5 us each: a pause of 1 ms."""

_MINUTE_MS = 60_000


class Perishables:
    """Goes round all perishable znodes once per check interval, in bounded steps."""

    def __init__(self, config: ReplicaConfig, tree: ZnodeTree, now_ms: int) -> None:
        self._config = config
        self._tree = tree
        self._next_round_ms = now_ms + config.container_check_ms
        self._round: Iterator[str] | None = None
        self._budget = 0

    def due(self, now_ms: int, time_ms: int) -> list[str]:
        """Paths to propose for deletion now; `time_ms` is the leader's time."""
        if self._round is None:
            if now_ms < self._next_round_ms:
                return []
            self._begin_round(now_ms)
        found: list[str] = []
        assert self._round is not None, "a round was begun"
        for _ in range(LOOKED_AT_PER_TURN_MAX):
            path = next(self._round, None)
            if path is None or not self._budget:
                self._round = None
                break
            node = self._tree.get(path)
            if node is not None and self._is_over(node, time_ms):
                self._budget -= 1
                found.append(path)
        return found

    def _begin_round(self, now_ms: int) -> None:
        config = self._config
        self._next_round_ms = now_ms + config.container_check_ms
        self._round = iter(list(self._tree.perishable))
        per_round = config.containers_per_minute_max * config.container_check_ms // _MINUTE_MS
        self._budget = max(1, per_round)

    def _is_over(self, node: Znode, time_ms: int) -> bool:
        if node.children:
            return False
        age_ms = time_ms - node.mtime
        if node.owner == CONTAINER_OWNER:
            unused_max_ms = self._config.container_unused_ms_max
            return node.created > 0 or 0 < unused_max_ms < age_ms
        return 0 < ttl_of(node.owner) < age_ms
