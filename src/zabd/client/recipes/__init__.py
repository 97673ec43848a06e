"""Coordination recipes on the client: dedup, lock, election and their relatives."""

from zabd.client.recipes.barrier import (
    Barrier,
    DoubleBarrier,
)
from zabd.client.recipes.counter import (
    Change,
    Counter,
    CounterBusyError,
)
from zabd.client.recipes.dedup import (
    Dedup,
)
from zabd.client.recipes.election import (
    Election,
    LeaderLatch,
    LeadershipLostError,
    Term,
)
from zabd.client.recipes.lock import (
    Lock,
    LockError,
    LockLostError,
    LockTimeoutError,
)
from zabd.client.recipes.locking_queue import (
    Item,
    LockingQueue,
)
from zabd.client.recipes.node_watch import (
    ChildrenWatch,
    DataWatch,
    Value,
)
from zabd.client.recipes.partitioner import (
    Partitioner,
    Share,
)
from zabd.client.recipes.party import (
    Party,
)
from zabd.client.recipes.persistent_node import (
    PersistentNode,
)
from zabd.client.recipes.queue import (
    PriorityQueue,
    Queue,
)
from zabd.client.recipes.rwlock import (
    ReadLock,
    ReadWriteLock,
    WriteLock,
)
from zabd.client.recipes.semaphore import (
    Lease,
    Semaphore,
)
from zabd.client.recipes.sync import (
    SyncBarrier,
    SyncChildrenWatch,
    SyncCounter,
    SyncDataWatch,
    SyncDedup,
    SyncDoubleBarrier,
    SyncElection,
    SyncItem,
    SyncLeaderLatch,
    SyncLease,
    SyncLock,
    SyncLockingQueue,
    SyncPartitioner,
    SyncParty,
    SyncPersistentNode,
    SyncPriorityQueue,
    SyncQueue,
    SyncReadWriteLock,
    SyncSemaphore,
    SyncShare,
    SyncTreeCache,
    SyncTtlLease,
)
from zabd.client.recipes.tree_cache import (
    ChangeKind,
    TreeCache,
    TreeChange,
)
from zabd.client.recipes.ttl_lease import (
    TtlLease,
)

__all__ = [
    "Barrier",
    "Change",
    "ChangeKind",
    "ChildrenWatch",
    "Counter",
    "CounterBusyError",
    "DataWatch",
    "Dedup",
    "DoubleBarrier",
    "Election",
    "Item",
    "LeaderLatch",
    "LeadershipLostError",
    "Lease",
    "Lock",
    "LockError",
    "LockLostError",
    "LockTimeoutError",
    "LockingQueue",
    "Partitioner",
    "Party",
    "PersistentNode",
    "PriorityQueue",
    "Queue",
    "ReadLock",
    "ReadWriteLock",
    "Semaphore",
    "Share",
    "SyncBarrier",
    "SyncChildrenWatch",
    "SyncCounter",
    "SyncDataWatch",
    "SyncDedup",
    "SyncDoubleBarrier",
    "SyncElection",
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
    "Term",
    "TreeCache",
    "TreeChange",
    "TtlLease",
    "Value",
    "WriteLock",
]
