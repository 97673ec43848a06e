"""Bytes at rest: the log, the snapshots and the epochs, over the `Disk` protocol."""

from zabd.storage.config import OnDamage, StorageConfig, StorageCounters
from zabd.storage.os_disk import OsDisk
from zabd.storage.procedures import DamagedFileError, DiskError
from zabd.storage.recovery import Recovered, RecoverySink
from zabd.storage.snapshot_files import SnapshotReader, SnapshotWriter
from zabd.storage.storage import Storage

__all__ = [
    "DamagedFileError",
    "DiskError",
    "OnDamage",
    "OsDisk",
    "Recovered",
    "RecoverySink",
    "SnapshotReader",
    "SnapshotWriter",
    "Storage",
    "StorageConfig",
    "StorageCounters",
]
