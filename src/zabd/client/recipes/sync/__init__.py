"""The recipes for threads: the same names and options, on a `SyncClient`; methods block."""

from zabd.client.recipes.sync.counter import SyncCounter
from zabd.client.recipes.sync.dedup import SyncAttempt, SyncDedup, SyncHold
from zabd.client.recipes.sync.election import SyncElection, SyncLeaderLatch
from zabd.client.recipes.sync.locks import (
    SyncLease,
    SyncLock,
    SyncReadWriteLock,
    SyncSemaphore,
)

__all__ = [
    "SyncAttempt",
    "SyncCounter",
    "SyncDedup",
    "SyncElection",
    "SyncHold",
    "SyncLeaderLatch",
    "SyncLease",
    "SyncLock",
    "SyncReadWriteLock",
    "SyncSemaphore",
]
