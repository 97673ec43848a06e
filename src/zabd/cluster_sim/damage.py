"""Damage to what a member has on its disk: bits that rot, writes that go astray, files that vanish.

A member can only notice what something else on its disk tells of. What nothing vouches for is left
alone here: the group that was written last, after a kill (ADR 5), and a note of earlier damage.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from zabd.cluster_sim.disk_image import SECTOR_BYTES, DiskImage
from zabd.storage.epochs import EPOCHS, IDENTITY
from zabd.storage.record import (
    SEGMENT_HEADER_BYTES,
    Mark,
    SegmentScan,
    decode_segment_header,
    segment_number,
)
from zabd.storage.snapshots import snapshot_zxid

KINDS: Final = ("flip", "flip", "zeros", "stale", "cut", "gone")
ROT: Final = ("flip", "zeros", "stale")
"""What happens to a file that is in use: its descriptor keeps it there, in its size. Small files
are only ever read at a start."""


def damage(
    image: DiskImage, log_image: DiskImage, rng: Random, kinds: Sequence[str] = KINDS
) -> str:
    """Hurt one file of a machine that is down; what was done, or "" if there was nothing to hurt.

    The images may be one and the same.
    """
    logs = [name for name in sorted(log_image.names) if segment_number(name) is not None]
    others = [
        name
        for name in sorted(image.names)
        if snapshot_zxid(name) is not None or (kinds is not ROT and name in (EPOCHS, IDENTITY))
    ]
    file = rng.choice([*logs, *others]) if logs or others else ""
    if not file:
        return ""
    device = log_image if file in logs else image
    last = bool(logs) and file == logs[-1]
    size_bytes = _vouched_bytes(device.content(file)) if last else len(device.content(file))
    if size_bytes <= SEGMENT_HEADER_BYTES and last:
        return ""
    kind = rng.choice(ROT if last else kinds)
    return f"{file}: {_hurt(device, file, kind, size_bytes, rng)}"


def _hurt(device: DiskImage, file: str, kind: str, size_bytes: int, rng: Random) -> str:
    """Do it, somewhere in the first `size_bytes` bytes."""
    if kind == "gone":
        device.remove(file)
        return "it is gone"
    at = rng.randrange(size_bytes) if size_bytes else 0
    if kind == "cut":
        device.cut(file, at)
        return f"it is cut at {at}"
    sectors = size_bytes // SECTOR_BYTES
    if kind == "flip" or not sectors:
        byte = device.content(file)[at : at + 1] or b"\0"
        device.overwrite(file, at, bytes([byte[0] ^ 1 << rng.randrange(8)]))
        return f"a bit is flipped at {at}"
    at = rng.randrange(sectors) * SECTOR_BYTES
    source = rng.randrange(sectors) * SECTOR_BYTES
    content = device.content(file)[source : source + SECTOR_BYTES]
    device.overwrite(file, at, bytes(SECTOR_BYTES) if kind == "zeros" else content)
    return f"the sector at {at} holds {'zeros' if kind == 'zeros' else f'that at {source}'}"


def _vouched_bytes(data: bytes) -> int:
    """How far the last mark of a log's last segment vouches for what is before it."""
    header = decode_segment_header(data)
    if header is None:
        return 0
    marks = [item.offset for item in SegmentScan(data, header) if isinstance(item, Mark)]
    return marks[-1] if marks else 0
