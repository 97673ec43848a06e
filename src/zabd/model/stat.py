"""The Stat of a znode, field by field in the order of the wire (client protocol, section 7)."""

from typing import NamedTuple


class Stat(NamedTuple):
    """What a znode tells about itself besides its data.

    Times are ms since 1970; versions are signed 32-bit numbers and wrap as such.
    """

    czxid: int
    """The zxid of the transaction that created it."""
    mzxid: int
    """The zxid that last changed its data."""
    ctime: int
    mtime: int
    version: int
    """How often its data was set."""
    cversion: int
    """How often a child was created or deleted."""
    aversion: int
    """How often its ACL was set."""
    ephemeral_owner: int
    """The session an ephemeral belongs to; 0 for every other kind."""
    data_length: int
    num_children: int
    pzxid: int
    """The zxid that last created or deleted a child, or its own creation."""
