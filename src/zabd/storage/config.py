"""What may be chosen about storage, and the figures that come out of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from zabd.model import ConfigError

Trace: TypeAlias = Callable[[str, Mapping[str, object]], None]
"""The name of what happened, and its fields."""

SNAPSHOTS_KEPT_MIN: Final = 3
GROUP_BYTES_MAX: Final = 4 << 20
"""One write to the log: a few batches of the largest requests, some milliseconds of a disk."""

SPACE_CHECK_MS: Final = 1000


class OnDamage(Enum):
    """What a start does about damage that it finds."""

    REFUSE = "refuse"
    """Change nothing and say where it is: nobody else has what is lost."""
    REPAIR = "repair"
    """Keep what can be vouched for; the others have the rest (S20)."""
    GIVE_UP = "give up"
    """The operator says that what is lost is lost: go on with what can be vouched for."""


SEGMENT_BYTES: Final = 32 << 20
"""What a segment of the log reserves at once: at 20 MB/s of writes one every second and a half."""


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """Sizes and limits; the defaults suit a member with a disk of its own."""

    segment_bytes: int = SEGMENT_BYTES

    snapshots_kept: int = SNAPSHOTS_KEPT_MIN
    """Verified snapshots that stay, with every segment since the oldest of them (S14)."""

    slow_sync_ms: int = 200
    """A sync that takes longer is traced with its milliseconds and counted."""

    space_floor_bytes: int = 96 << 20
    """Below this much free space `space_low` asks the member to refuse writes (S11): two segments
    and a snapshot of a small tree, so that deletes and session closes still find room."""

    on_damage: OnDamage = OnDamage.REFUSE
    """A member of an ensemble repairs; one that is alone refuses."""

    found_anew: bytes | None = None
    """The operator lets a directory of this ensemble become the beginning of another one."""

    def __post_init__(self) -> None:
        if self.snapshots_kept < SNAPSHOTS_KEPT_MIN:
            raise ConfigError(
                f"snapshots_kept is {self.snapshots_kept}; at least {SNAPSHOTS_KEPT_MIN} have to "
                "stay, so that two damaged ones still leave one to start from"
            )


@dataclass(slots=True)
class StorageCounters:
    """What the disk has done since this member started, for metrics."""

    records: int = 0
    bytes_written: int = 0
    syncs: int = 0
    sync_ms: int = 0
    sync_ms_max: int = 0
    slow_syncs: int = 0
    segments: int = 0
    snapshots: int = 0
    snapshot_failures: int = 0
