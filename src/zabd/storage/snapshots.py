"""Snapshot files: the tree's own bytes in checked blocks, under the position they are exact at.

    file   = header, blocks, footer, and nothing after it
    header = magic, format, cluster id, zxid and chain of the position | digest
    block  = magic, index, length, payload digest | digest of these | payload
    footer = magic, number of blocks, content bytes, digest over header and block headers | digest

Invariants
    F1  A file has its final name only once it is complete, durable, and was read back and found to
        be what was written (S13, S18).
    F2  A file that fails its check is renamed aside, never deleted and never overwritten (S15).
    F3  The position stands in the file and in its name; where they differ, the file is damaged.
"""

from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from zabd.model import DamagedError, Zxid
from zabd.storage.disk import Disk
from zabd.storage.procedures import Procedure, read_at
from zabd.storage.record import CLUSTER_ID_BYTES_MAX, DIGEST_BYTES
from zabd.zab.log import LogPosition

FORMAT: Final = 1
BLOCK_BYTES_MAX: Final = 1 << 20
WINDOW_BYTES: Final = 1 << 20
INCOMING: Final = ".incoming"
"""Behind the name of a snapshot that a leader is sending."""
DAMAGED: Final = ".damaged"
"""Behind the name of a snapshot that failed its check."""

_PAYLOAD_DIGEST_BYTES: Final = 16
_HEADER_MAGIC: Final = b"ZABDSNAP"
_BLOCK_MAGIC: Final = b"ZSB1"
_FOOTER_MAGIC: Final = b"ZSE1"
_HEADER: Final = Struct(f">8sHB{CLUSTER_ID_BYTES_MAX}sQ8s")
_BLOCK: Final = Struct(f">4sQI{_PAYLOAD_DIGEST_BYTES}s")
_FOOTER: Final = Struct(f">4sQQ{_PAYLOAD_DIGEST_BYTES}s")


class SnapshotInfo(NamedTuple):
    """A verified snapshot: where in the history it stands and how large its content is."""

    position: LogPosition
    content_bytes: int

    @property
    def file(self) -> str:
        """Its name in the data directory."""
        return snapshot_file(self.position.zxid)


def snapshot_file(zxid: int) -> str:
    """The name of the snapshot that stands at `zxid`."""
    return f"snapshot.{zxid:016x}"


def snapshot_zxid(name: str) -> Zxid | None:
    """The inverse of `snapshot_file`; None for any other name."""
    prefix, _, digits = name.partition(".")
    try:
        zxid = int(digits, 16)
    except ValueError:
        return None
    return Zxid(zxid) if prefix == "snapshot" and snapshot_file(zxid) == name else None


class SnapshotEncoder:
    """Makes a file's bytes out of its content, piece by piece."""

    def __init__(self, position: LogPosition, cluster_id: bytes | None) -> None:
        self._blocks = 0
        self.content_bytes = 0
        cluster_id = cluster_id or b""
        body = _HEADER.pack(
            _HEADER_MAGIC, FORMAT, len(cluster_id), cluster_id, position.zxid, position.chain
        )
        self.header = _sealed(body)
        self._whole = blake2b(self.header, digest_size=_PAYLOAD_DIGEST_BYTES)

    def blocks(self, content: bytes) -> Iterator[bytes]:
        """The buffers that carry the next piece of content."""
        for start in range(0, len(content), BLOCK_BYTES_MAX):
            payload = content[start : start + BLOCK_BYTES_MAX]
            digest = blake2b(payload, digest_size=_PAYLOAD_DIGEST_BYTES).digest()
            header = _sealed(_BLOCK.pack(_BLOCK_MAGIC, self._blocks, len(payload), digest))
            self._whole.update(header)
            self._blocks += 1
            self.content_bytes += len(payload)
            yield header
            yield payload

    def footer(self) -> bytes:
        """The end of the file."""
        return _sealed(
            _FOOTER.pack(_FOOTER_MAGIC, self._blocks, self.content_bytes, self._whole.digest())
        )


class SnapshotDecoder:
    """Takes a file's bytes in pieces of any size and gives the content, each block checked.

    Raises DamagedError at the first byte that is not as it was written.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._buffer = bytearray()
        self._offset = 0  # in the file, of the buffer's first byte
        self._blocks = 0
        self._whole = blake2b(digest_size=_PAYLOAD_DIGEST_BYTES)
        self._finished = False
        self.cluster_id: bytes | None = None
        self.position: LogPosition | None = None  # known after the first few bytes
        self.content_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The content that the next piece of the file completes."""
        self._buffer += data
        contents: list[bytes] = []
        while (content := self._next()) is not None:
            if content:
                contents.append(content)
        return contents

    def finish(self) -> SnapshotInfo:
        """What the file is, once all of it has been fed."""
        if not self._finished or self._buffer or self.position is None:
            raise self._damaged("the file does not end where its content does")
        return SnapshotInfo(self.position, self.content_bytes)

    def _next(self) -> bytes | None:
        """The next content; b"" for a header or footer, None if more bytes are needed."""
        if self.position is None:
            return self._header()
        if self._finished or len(self._buffer) < len(_BLOCK_MAGIC):
            return None
        if self._buffer.startswith(_FOOTER_MAGIC):
            return self._footer()
        return self._block()

    def _header(self) -> bytes | None:
        sealed = self._take_sealed(_HEADER, "header")
        if sealed is None:
            return None
        magic, version, size, cluster_id, zxid, chain = _HEADER.unpack_from(sealed)
        if magic != _HEADER_MAGIC or version != FORMAT:
            raise self._damaged(f"it has format {version} and this zabd reads {FORMAT}")
        self._whole.update(sealed)
        self.cluster_id = cluster_id[:size] if size else None
        self.position = LogPosition(Zxid(zxid), chain)
        if self._file.split(".")[:2] != snapshot_file(zxid).split("."):
            raise self._damaged(f"its name belongs to another snapshot than the one at {zxid:#x}")
        return b""

    def _block(self) -> bytes | None:
        if len(self._buffer) < _BLOCK.size + DIGEST_BYTES:
            return None
        magic, index, length, digest = _BLOCK.unpack_from(self._buffer)
        sealed = bytes(self._buffer[: _BLOCK.size + DIGEST_BYTES])
        if magic != _BLOCK_MAGIC or not _is_sealed(sealed) or index != self._blocks:
            raise self._damaged("no block begins here")
        if len(self._buffer) < len(sealed) + length:
            return None
        payload = bytes(self._buffer[len(sealed) : len(sealed) + length])
        if blake2b(payload, digest_size=_PAYLOAD_DIGEST_BYTES).digest() != digest:
            raise self._damaged("the block's content does not match its digest")
        self._whole.update(sealed)
        self._blocks += 1
        self.content_bytes += length
        self._drop(len(sealed) + length)
        return payload

    def _footer(self) -> bytes | None:
        sealed = self._take_sealed(_FOOTER, "footer")
        if sealed is None:
            return None
        _, blocks, content_bytes, whole = _FOOTER.unpack_from(sealed)
        if (blocks, content_bytes, whole) != (
            self._blocks,
            self.content_bytes,
            self._whole.digest(),
        ):
            raise self._damaged("the blocks are not the ones that were written")
        self._finished = True
        return b""

    def _take_sealed(self, fields: Struct, name: str) -> bytes | None:
        if len(self._buffer) < fields.size + DIGEST_BYTES:
            return None
        sealed = bytes(self._buffer[: fields.size + DIGEST_BYTES])
        if not _is_sealed(sealed):
            raise self._damaged(f"the {name} does not match its digest")
        self._drop(len(sealed))
        return sealed

    def _drop(self, size_bytes: int) -> None:
        del self._buffer[:size_bytes]
        self._offset += size_bytes

    def _damaged(self, what: str) -> DamagedError:
        return DamagedError(
            f"the snapshot {self._file} is damaged at offset {self._offset}: {what}"
        )


def verify(disk: Disk, file: str) -> Procedure[SnapshotInfo]:
    """Read all of the file and check it; DamagedError if it is not as it was written."""
    decoder = SnapshotDecoder(file)
    offset = 0
    while data := (yield from read_at(disk, file, offset, WINDOW_BYTES)):
        decoder.feed(data)
        offset += len(data)
    return decoder.finish()


def _sealed(body: bytes) -> bytes:
    return body + blake2b(body, digest_size=DIGEST_BYTES).digest()


def _is_sealed(sealed: bytes) -> bool:
    body = sealed[:-DIGEST_BYTES]
    return blake2b(body, digest_size=DIGEST_BYTES).digest() == sealed[-DIGEST_BYTES:]
