"""A machine at the core level: its clock, its disk, and one life after the other on it."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.clocks import WallClock
from zabd.cluster_sim.core_process import CoreProcess
from zabd.cluster_sim.damage import ROT, damage
from zabd.cluster_sim.disk_image import DiskImage, Losses, Survival
from zabd.cluster_sim.network import Host
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.model.ids import MemberId
from zabd.storage.config import StorageConfig
from zabd.storage.distrust import DISTRUST
from zabd.storage.epochs import EPOCHS, IDENTITY, decode_identity
from zabd.storage.log_changes import NOTE
from zabd.storage.record import decode_segment_header, segment_file, segment_number
from zabd.storage.snapshots import snapshot_zxid

SMALL_FILES: Final = frozenset((EPOCHS, IDENTITY, NOTE, DISTRUST))

if TYPE_CHECKING:
    from zabd.cluster_sim.core_level import CoreLevel


class CoreMember:
    """A machine of the ensemble; `process` is its life, None while it is down."""

    def __init__(self, level: "CoreLevel", member: MemberId, host: Host) -> None:
        self.id = member
        self.host = host
        self.image = DiskImage()
        self.image.small_files = SMALL_FILES
        self.log_image = DiskImage() if level.shape.log_disk else self.image
        self.process: CoreProcess | None = None
        self.level = level
        self._schedule = level.schedule
        rng = level.schedule.stream(f"member {member}")
        self.own_rate = self.rate = 1.0 + rng.uniform(-1, 1) * level.shape.drift_ppm_max / 1e6
        self.boot_ms = rng.randrange(1_000_000)
        self.wall_clock = WallClock(level.schedule)
        self.on_snapshot: Callable[[], object] | None = None  # told of the next one, once
        self._rate_since_us = 0
        self._elapsed_before_us = 0.0  # on its own clock, until then
        self._earlier_rates: list[tuple[int, float, float]] = []  # since when, elapsed before, rate
        level.checker.watch_disks(member, self.log_image, self.image)
        for image in self.images:
            image.on_name_durable = self._name_durable

    def now_ms(self) -> int:
        """This machine's monotonic clock."""
        since_us = self._schedule.now_us - self._rate_since_us
        return self.boot_ms + int(self._elapsed_before_us + since_us * self.rate) // US_PER_MS

    def ms_since(self, at_us: int) -> float:
        """How much time has passed by its clock since then, however fast that ran meanwhile."""
        now = (self._rate_since_us, self._elapsed_before_us, self.rate)
        for since_us, before_us, rate in (now, *reversed(self._earlier_rates)):
            if at_us >= since_us:
                return (self._elapsed_us() - before_us - (at_us - since_us) * rate) / US_PER_MS
        raise AssertionError(f"{at_us} is before the run began")

    def _elapsed_us(self) -> float:
        since_us = self._schedule.now_us - self._rate_since_us
        return self._elapsed_before_us + since_us * self.rate

    def set_rate(self, rate: float) -> None:
        """Let its monotonic clock run so much faster than time from now on."""
        if rate != self.rate:
            self._earlier_rates.append((self._rate_since_us, self._elapsed_before_us, self.rate))
            self._elapsed_before_us = self._elapsed_us()
            self._rate_since_us = self._schedule.now_us
            self.rate = rate
            if self.process is not None:
                self.process.clock_changed()

    def is_blank(self) -> bool:
        """Whether its disk belongs to no cluster for certain."""
        content = self.image.durable_content(IDENTITY)
        return content is None or decode_identity(content).cluster_id is None

    def start(self) -> None:
        """Begin a life, unless there is one."""
        if self.process is None:
            self.host.up = True
            self.level.trace.record(self.host.name, "starts")
            self.process = self.level.process_class(self)

    def crash(self, *, power: bool, survival: Survival | None = None) -> Losses:
        """End the life that there is: the process alone, or the machine with its page cache."""
        losses = Losses()
        process, self.process = self.process, None
        if process is not None:
            self.level.trace.record(self.host.name, "power cut" if power else "killed")
            process.die(power=power)
        if power:
            self.host.up = False
            for image in self.images:
                losses += image.lose_power(self.level.crash_rng, survival)
        return losses

    def lose_disks(self) -> None:
        """Find empty devices in the place of the old ones. The member is down."""
        assert self.process is None, "a running process would notice"
        for image in self.images:
            image.wipe()
        self.level.checker.disks_lost(self.id, self.log_image, self.image)

    def damage_disks(self, kind: str, rng: Random) -> str:
        """Find something on them not as it was written; what, or "". The member is down."""
        assert self.process is None, "damage is found at the next start"
        done = damage(self.image, self.log_image, kind, rng)
        if done:
            self.level.checker.disks_damaged(self.id)
        return done

    def rot_disks(self, rng: Random) -> str:
        """Hurt what lies on them while the member runs; what was done, or ""."""
        done = damage(self.image, self.log_image, ROT, rng)
        if done:
            self.level.checker.disks_rot(self.id)
        return done

    @property
    def remembers(self) -> bool:
        """Whether it can vote once there is a cluster: it is neither blank nor, maybe, damaged."""
        return self.id not in self.level.checker.damaged and not self.is_blank()

    @property
    def images(self) -> list[DiskImage]:
        """Its devices."""
        return [self.image] if self.log_image is self.image else [self.image, self.log_image]

    def _name_durable(self, name: str) -> None:
        if name == EPOCHS:
            self.level.checker.epochs_durable(self.id)
        elif self.on_snapshot is not None and snapshot_zxid(name) is not None:
            told, self.on_snapshot = self.on_snapshot, None
            told()
        number = segment_number(name)
        if number is not None and name not in self.log_image.names:
            self._segment_gone(number)

    def _segment_gone(self, number: int) -> None:
        """If it was the oldest one, and no change that is noted takes its place, it was purged."""
        left = [n for name in self.log_image.names if (n := segment_number(name)) is not None]
        if not left or number > min(left) or NOTE in self.image.names:
            return
        first = decode_segment_header(self.log_image.content(segment_file(min(left))))
        if first is not None:
            snapshots = [z for name in self.image.names if (z := snapshot_zxid(name)) is not None]
            kept = StorageConfig().snapshots_kept
            self.level.checker.purged(self.id, first.base.zxid, snapshots, kept)
