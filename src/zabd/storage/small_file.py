"""Small files of a few named values: readable text, checked as a whole, replaced atomically.

    zabd epochs 1
    accepted 4
    current 4
    digest 8f0a...

The first line names the kind and the format's version, the last one is a digest over all before
it. A file is replaced by a new one under its name, never written in place (M63).
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final

from zabd.model import DamagedError, StorageError
from zabd.storage.disk import Create, DiskOp, Rename, Sync, SyncDir, Unlink, WriteAt

TEMPORARY: Final = ".tmp"
_VERSION: Final = 1
_DIGEST_BYTES: Final = 16


def encode(kind: str, values: Mapping[str, str]) -> bytes:
    """The file's bytes."""
    lines = [f"zabd {kind} {_VERSION}", *(f"{name} {value}" for name, value in values.items())]
    body = "\n".join(lines).encode() + b"\n"
    return body + f"digest {_digest(body)}\n".encode()


def decode(kind: str, data: bytes) -> dict[str, str]:
    """The values of a file that `encode` made; DamagedError if it is any other."""
    body, _, digest = data.rpartition(b"digest ")
    if digest != f"{_digest(body)}\n".encode():
        raise DamagedError(
            f"the file {kind} is not as it was written (its digest is wrong); restore the member's "
            "directory from a copy, or move it away and let the others synchronise the member"
        )
    first, *lines = body.decode().splitlines()
    if first != f"zabd {kind} {_VERSION}":
        raise StorageError(
            f"the file {kind} says {first!r} and this zabd reads 'zabd {kind} {_VERSION}'; "
            "start the member with the version of zabd that wrote its directory"
        )
    return dict(line.split(" ", 1) for line in lines)


def replace(kind: str, data: bytes, names: Sequence[str] = ()) -> list[DiskOp]:
    """The operations that put `data` in the place of the file, old or new at every crash point.

    `names` are the ones in the directory, where a crash may have left a temporary file.
    """
    temporary = kind + TEMPORARY
    return [
        *(Unlink(name) for name in names if name == temporary),
        Create(temporary),
        WriteAt(temporary, 0, data),
        Sync(temporary),
        Rename(temporary, kind),
        SyncDir(),
    ]


def _digest(body: bytes) -> str:
    return blake2b(body, digest_size=_DIGEST_BYTES).hexdigest()
