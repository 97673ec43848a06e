"""Coordination recipes on the client: dedup, lock, election and their relatives."""

from zabd.client.recipes.dedup import Dedup
from zabd.client.recipes.lock import Lock, LockError, LockLostError, LockTimeoutError
from zabd.client.recipes.sync import SyncDedup, SyncLock

__all__ = [
    "Dedup",
    "Lock",
    "LockError",
    "LockLostError",
    "LockTimeoutError",
    "SyncDedup",
    "SyncLock",
]
