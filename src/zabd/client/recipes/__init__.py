"""Coordination recipes on the client: dedup, lock, election and their relatives."""

from zabd.client.recipes.counter import Change, Counter, CounterBusyError
from zabd.client.recipes.dedup import Dedup
from zabd.client.recipes.election import Election, LeaderLatch, LeadershipLostError, Term
from zabd.client.recipes.lock import Lock, LockError, LockLostError, LockTimeoutError
from zabd.client.recipes.rwlock import ReadLock, ReadWriteLock, WriteLock
from zabd.client.recipes.semaphore import Lease, Semaphore
from zabd.client.recipes.sync import (
    SyncCounter,
    SyncDedup,
    SyncElection,
    SyncLeaderLatch,
    SyncLease,
    SyncLock,
    SyncReadWriteLock,
    SyncSemaphore,
)

__all__ = [
    "Change",
    "Counter",
    "CounterBusyError",
    "Dedup",
    "Election",
    "LeaderLatch",
    "LeadershipLostError",
    "Lease",
    "Lock",
    "LockError",
    "LockLostError",
    "LockTimeoutError",
    "ReadLock",
    "ReadWriteLock",
    "Semaphore",
    "SyncCounter",
    "SyncDedup",
    "SyncElection",
    "SyncLeaderLatch",
    "SyncLease",
    "SyncLock",
    "SyncReadWriteLock",
    "SyncSemaphore",
    "Term",
    "WriteLock",
]
