"""The note that a member cannot vouch for its past: durable before anything is done about it.

While the note is there the member is *damaged* (S20): it neither votes nor counts, and it serves
nobody. The note goes when an established leader's history and epoch are durable here, or when an
operator gives up what was lost.

Invariants
    T1  What was damaged is renamed aside only once the note is durable, so no start ever takes
        what is left for the whole.
    T2  The note goes only after the epochs that make the member whole are durable.
"""

from enum import Enum
from typing import Final, NamedTuple

from zabd.model import DamagedError
from zabd.storage import small_file
from zabd.storage.disk import Disk, DiskOp, SyncDir, Unlink
from zabd.storage.procedures import Procedure, read_file

DISTRUST: Final = "distrust"
WHY_CHARACTERS_MAX: Final = 1000


class Extent(Enum):
    """How much of the directory may be believed."""

    PREFIX = "prefix"
    """What is left after the damaged files were set aside: it was checked, but it may be short."""
    NOTHING = "nothing"
    """The tree went another way than the others': its snapshots and its log are to be rebuilt."""


class Distrust(NamedTuple):
    """Why the member is damaged, in a sentence, and what may be believed."""

    extent: Extent
    why: str


def write_distrust(distrust: Distrust, names: list[str]) -> list[DiskOp]:
    """The operations that make the note durable; `names` are the ones in the data directory."""
    why = " ".join(distrust.why.split())[:WHY_CHARACTERS_MAX]
    values = {"extent": distrust.extent.value, "why": why}
    return small_file.replace(DISTRUST, small_file.encode(DISTRUST, values), names)


def remove_distrust() -> list[DiskOp]:
    """The operations after which the member is whole."""
    return [Unlink(DISTRUST), SyncDir()]


def read_distrust(disk: Disk, names: list[str]) -> Procedure[Distrust | None]:
    """The note, if there is one; one that cannot be read says that nothing may be believed."""
    if DISTRUST not in names:
        return None
    try:
        values = small_file.decode(DISTRUST, (yield from read_file(disk, DISTRUST)))
        return Distrust(Extent(values["extent"]), values["why"])
    except (DamagedError, ValueError, KeyError) as error:
        return Distrust(Extent.NOTHING, f"the note why cannot be read: {error}")
