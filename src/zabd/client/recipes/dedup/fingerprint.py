"""What tells payloads apart: a digest over their canonical form (dedup recipe, section 9)."""

import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Final, NamedTuple

ALGORITHM: Final = "sha256"
HMAC_ALGORITHM: Final = "hmac-sha256"


class Fingerprint(NamedTuple):
    """A digest and how it was made; `hash` is None when the caller gave no payload."""

    hash: str | None
    alg: str = ALGORITHM

    @property
    def data(self) -> bytes:
        """What the lock znode holds."""
        return (self.hash or "").encode()


def fingerprint(
    payload: object,
    *,
    select: Callable[[object], object] | None = None,
    hmac_key: bytes | None = None,
) -> Fingerprint:
    """Digest a payload: bytes as they are, anything else as canonical JSON.

    `select` picks what counts. With `hmac_key` small payloads cannot be guessed from the znode. A
    `Fingerprint` is taken as it is: from a caller who has the digest and not the payload.

    Raises:
        TypeError, ValueError: the payload is not JSON-like, or has NaN or infinity in it.
    """
    alg = ALGORITHM if hmac_key is None else HMAC_ALGORITHM
    if isinstance(payload, Fingerprint):
        return payload
    if payload is None:
        return Fingerprint(None, alg)
    chosen = payload if select is None else select(payload)
    data = _canonical(chosen)
    if hmac_key is None:
        return Fingerprint(hashlib.sha256(data).hexdigest(), alg)
    return Fingerprint(hmac.new(hmac_key, data, hashlib.sha256).hexdigest(), alg)


def _canonical(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()
