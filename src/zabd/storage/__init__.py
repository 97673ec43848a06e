"""Bytes at rest: the log, the snapshots and the epochs, over the `Disk` protocol."""
