"""The value of an `Idempotency-Key` header.

The draft wants a string of RFC 8941, which has quotation marks around it. Most of the clients that
there are send the bare text, so that is taken as well, as long as it could not be anything else.
"""

import re
from collections.abc import Sequence
from typing import Final

from zabd.client.recipes.dedup.keys import KEY_BYTES_MAX

_QUOTED: Final = re.compile(rb'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BARE: Final = re.compile(rb"[!#-+\--:<-~]+")  # visible, without quotation mark, comma, semicolon


class KeyHeaderError(ValueError):
    """The header is not one key; the text says why."""


def parse_key(values: Sequence[bytes]) -> str | None:
    """The key in the header's values, of which there may be none.

    Raises:
        KeyHeaderError: there are several, or what there is cannot be a key.
    """
    if not values:
        return None
    if len(values) > 1:
        raise KeyHeaderError("There is more than one Idempotency-Key.")
    value = values[0].strip(b" \t")
    if quoted := _QUOTED.fullmatch(value):
        key = re.sub(rb"\\(.)", rb"\1", quoted[1])
    elif _BARE.fullmatch(value):
        key = value
    else:
        raise KeyHeaderError('An Idempotency-Key is one string, such as "8e03978e-40d5-43dd".')
    return require_length(key.decode("ascii"))


def require_length(key: str) -> str:
    """The key, if a znode can be named after it."""
    if not 1 <= len(key.encode()) <= KEY_BYTES_MAX:
        raise KeyHeaderError(f"An Idempotency-Key has from 1 to {KEY_BYTES_MAX} characters.")
    return key
