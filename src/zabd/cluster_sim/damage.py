"""Damage to what a member has on its disk: bits that rot, writes that go astray, files that vanish.

A member can only notice what something else on its disk tells of. What nothing vouches for is left
alone here: the group that was written last, after a kill (ADR 5), and a note of earlier damage.
"""

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

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


class _Place(NamedTuple):
    """A file, and how much of it can be hurt so that something tells of it."""

    device: DiskImage
    file: str
    size_bytes: int
    is_whole: bool  # nothing of it is beyond that, so it may also be cut or vanish


_Hurt: TypeAlias = Callable[[_Place, Random], str]
"""Does it somewhere in a place; what was done, or "" if that changed nothing."""


def damage(image: DiskImage, log_image: DiskImage, kind: str, rng: Random) -> str:
    """Hurt one file of a machine that is down; what was done, or "" if there was nothing to hurt.

    `kind` is one of DAMAGES, or ROT, which is for one that is up. The images may be one.
    """
    hurt, is_meant, needs_whole = _ROTTING if kind == ROT else DAMAGES[kind]
    places = [
        place
        for place in _places(image, log_image)
        if is_meant(place) and (place.is_whole or not needs_whole)
    ]
    if kind == "damaged snapshot":
        places = places[-1:]
    if not places:
        return ""
    place = rng.choice(places)
    done = hurt(place, rng)
    return f"{place.file}: {done}" if done else ""


def _places(image: DiskImage, log_image: DiskImage) -> list[_Place]:
    logs = [name for name in sorted(log_image.names) if segment_number(name) is not None]
    found = [
        _Place(log_image, name, len(log_image.content(name)), is_whole=True) for name in logs[:-1]
    ]
    for name in logs[-1:]:
        size_bytes = _vouched_bytes(log_image.content(name))
        if size_bytes > SEGMENT_HEADER_BYTES:
            found.append(_Place(log_image, name, size_bytes, is_whole=False))
    others = [
        name
        for name in sorted(image.names)
        if snapshot_zxid(name) is not None or name in (EPOCHS, IDENTITY)
    ]
    found += [_Place(image, name, len(image.content(name)), is_whole=True) for name in others]
    return [place for place in found if place.size_bytes]


def _vouched_bytes(data: bytes) -> int:
    """How far the last mark of a log's last segment vouches for what is before it."""
    header = decode_segment_header(data)
    if header is None:
        return 0
    marks = [item.offset for item in SegmentScan(data, header) if isinstance(item, Mark)]
    return marks[-1] if marks else 0


# --- what is done to a file -----------------------------------------------------------------------


def _flip(place: _Place, rng: Random) -> str:
    at = rng.randrange(place.size_bytes)
    byte = place.device.content(place.file)[at]
    place.device.overwrite(place.file, at, bytes([byte ^ 1 << rng.randrange(8)]))
    return f"a bit is flipped at {at}"


def _zero(place: _Place, rng: Random) -> str:
    return _fill(place, bytes(SECTOR_BYTES), "zeros", rng)


def _misdirect(place: _Place, rng: Random) -> str:
    sectors = max(1, place.size_bytes // SECTOR_BYTES)
    source = rng.randrange(sectors) * SECTOR_BYTES
    stale = place.device.content(place.file)[source : source + SECTOR_BYTES]
    return _fill(place, stale, f"what belongs at {source}", rng)


def _fill(place: _Place, content: bytes, what: str, rng: Random) -> str:
    """Put `content` into one sector that holds something else."""
    data = place.device.content(place.file)[: place.size_bytes]
    others = [
        at
        for at in range(0, len(data), SECTOR_BYTES)
        if data[at : at + SECTOR_BYTES] != content[: len(data) - at]
    ]
    if not others:
        return ""
    at = rng.choice(others)
    place.device.overwrite(place.file, at, content[: len(data) - at])
    return f"the sector at {at} holds {what}"


def _shorten(place: _Place, rng: Random) -> str:
    at = rng.randrange(place.size_bytes)
    place.device.cut(place.file, at)
    return f"it is cut at {at}"


def _remove(place: _Place, _rng: Random) -> str:
    place.device.remove(place.file)
    return "it is gone"


def _spoil(place: _Place, rng: Random) -> str:
    return rng.choice((_flip, _zero, _shorten, _remove))(place, rng)


def _rot(place: _Place, rng: Random) -> str:
    return rng.choice((_flip, _zero, _misdirect))(place, rng)


def _is_anything(_place: _Place) -> bool:
    return True


def _is_snapshot(place: _Place) -> bool:
    return snapshot_zxid(place.file) is not None


def _is_epochs(place: _Place) -> bool:
    return place.file == EPOCHS


DAMAGES: Final[Mapping[str, tuple[_Hurt, Callable[[_Place], bool], bool]]] = MappingProxyType(
    {
        "bit flip": (_flip, _is_anything, False),
        "zeroed sector": (_zero, _is_anything, False),
        "misdirected write": (_misdirect, _is_anything, False),
        "shortened file": (_shorten, _is_anything, True),
        "lost file": (_remove, lambda place: not _is_epochs(place), True),
        "damaged snapshot": (_spoil, _is_snapshot, True),
        "missing epoch file": (_remove, _is_epochs, True),
    }
)
"""By kind: what is done, to which files, and whether it can only be done to a whole one."""

ROT: Final = "rot"
_ROTTING: Final = (_rot, lambda place: place.file not in (EPOCHS, IDENTITY), False)
"""What happens to a file that is in use: its descriptor keeps it there, in its size. Small files
are only ever read at a start."""
