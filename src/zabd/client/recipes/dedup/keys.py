"""From an idempotency key to the name of its znode (dedup recipe, section 3)."""

import hashlib
from typing import Final
from urllib.parse import quote

KEY_BYTES_MAX: Final = 255
"""The longest key, before it is encoded; ``key_hash=True`` takes longer ones."""

_DOTS: Final = {".": "%2E", "..": "%2E%2E"}


def znode_name(key: str, *, hashed: bool = False) -> str:
    """The name below the base path: percent-encoded but for ``A-Z a-z 0-9 - _ . ~``.

    Raises:
        ValueError: the key is empty, or too long.
    """
    if not key:
        raise ValueError("an idempotency key must not be empty")
    if hashed:
        return "~" + hashlib.sha256(key.encode()).hexdigest()
    size = len(key.encode())
    if size > KEY_BYTES_MAX:
        raise ValueError(f"a key of {size} bytes; {KEY_BYTES_MAX} are allowed, or key_hash=True")
    return _DOTS.get(key) or quote(key, safe="-_.~")
