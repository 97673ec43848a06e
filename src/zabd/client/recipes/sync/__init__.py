"""The recipes for threads: the same names and options, on a `SyncClient`; methods block."""

from zabd.client.recipes.sync.counter import SyncCounter
from zabd.client.recipes.sync.dedup import SyncAttempt, SyncDedup, SyncHold
from zabd.client.recipes.sync.election import SyncElection, SyncLeaderLatch
from zabd.client.recipes.sync.locks import SyncLease, SyncLock, SyncReadWriteLock, SyncSemaphore
from zabd.client.recipes.sync.meeting import (
    SyncBarrier,
    SyncDoubleBarrier,
    SyncPartitioner,
    SyncShare,
    SyncTtlLease,
)
from zabd.client.recipes.sync.nodes import (
    SyncChildrenWatch,
    SyncDataWatch,
    SyncParty,
    SyncPersistentNode,
    SyncTreeCache,
)
from zabd.client.recipes.sync.queues import SyncItem, SyncLockingQueue, SyncPriorityQueue, SyncQueue

__all__ = [
    "SyncAttempt",
    "SyncBarrier",
    "SyncChildrenWatch",
    "SyncCounter",
    "SyncDataWatch",
    "SyncDedup",
    "SyncDoubleBarrier",
    "SyncElection",
    "SyncHold",
    "SyncItem",
    "SyncLeaderLatch",
    "SyncLease",
    "SyncLock",
    "SyncLockingQueue",
    "SyncPartitioner",
    "SyncParty",
    "SyncPersistentNode",
    "SyncPriorityQueue",
    "SyncQueue",
    "SyncReadWriteLock",
    "SyncSemaphore",
    "SyncShare",
    "SyncTreeCache",
    "SyncTtlLease",
]
