"""Access control: permissions, who they are granted to, and who a connection is.

Client protocol, section 11. The decision itself is made in `znode_tree.permissions`.
"""

import base64
import hashlib
from enum import IntFlag
from typing import Final, NamedTuple


class Perms(IntFlag):
    """What an ACL entry grants; other bits than these are stored and given back unchanged."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


class Acl(NamedTuple):
    """One entry of a znode's ACL: these permissions for whoever matches the scheme's id.

    A null scheme or id on the wire is read as an empty one: neither names anybody.
    """

    perms: int
    scheme: str
    id: str


class Identity(NamedTuple):
    """One of the names under which a connection is known, such as `("ip", "127.0.0.1")`."""

    scheme: str
    id: str


OPEN_ACL_UNSAFE: Final = (Acl(31, "world", "anyone"),)
"""Everybody may do everything."""

CREATOR_ALL_ACL: Final = (Acl(31, "auth", ""),)
"""Whoever the creating connection is authenticated as may do everything."""

READ_ACL_UNSAFE: Final = (Acl(1, "world", "anyone"),)
"""Everybody may read."""


def make_digest_id(user: str, password: str) -> str:
    """The id of the `digest` scheme: `user:` and the base64 of SHA-1 over `user:password`."""
    secret = f"{user}:{password}".encode("utf-8", "surrogatepass")
    digest = hashlib.sha1(secret).digest()  # noqa: S324 - the scheme prescribes it (section 11)
    return f"{user}:{base64.b64encode(digest).decode()}"
