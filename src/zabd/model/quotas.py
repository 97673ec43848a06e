"""Quotas as clients write and read them: where their znodes are, and what is in them.

A quota on the path P is a pair of ordinary znodes, /zookeeper/quota<P>/zookeeper_limits and
.../zookeeper_stats. Client protocol, section 17.
"""

import re
from typing import Final, NamedTuple

from zabd.model.paths import QUOTA_PATH

LIMITS_NAME: Final = "/zookeeper_limits"
STATS_NAME: Final = "/zookeeper_stats"

_TEXT_BYTES_MAX: Final = 1024  # the longest sensible text has 130

# `,` and `;` both separate; the odd `=` before a `;` is how old parsers were kept content.
_NUMBER: Final = re.compile(
    rb"(?:\A|[,;])(count|bytes|countHardLimit|byteHardLimit)=(-?[0-9]{1,18})(?=[=,;]|\Z)"
)


class Limits(NamedTuple):
    """What a limits znode says; -1 is no limit. A hard limit hides the soft one of its kind."""

    znodes: int = -1
    size_bytes: int = -1
    znodes_hard: int = -1
    size_bytes_hard: int = -1

    @property
    def text(self) -> bytes:
        """The text that says it, as ZooKeeper's own command line would write it."""
        soft = b"count=%d,bytes=%d" % (self.znodes, self.size_bytes)
        if self.znodes_hard < 0 and self.size_bytes_hard < 0:
            return soft
        hard = (self.size_bytes_hard, self.znodes_hard)
        return soft + b"=;byteHardLimit=%d;countHardLimit=%d" % hard


NO_LIMITS: Final = Limits()


class Usage(NamedTuple):
    """What a stats znode says: znodes at and below the path, and the bytes of their data."""

    znodes: int
    size_bytes: int

    @property
    def text(self) -> bytes:
        """The text that says it."""
        return b"count=%d,bytes=%d" % self


def parse_limits(data: bytes | None) -> Limits:
    """The limits in the data of a limits znode; what makes no sense in it sets none."""
    found = _numbers(data)
    return Limits(
        found.get(b"count", -1),
        found.get(b"bytes", -1),
        found.get(b"countHardLimit", -1),
        found.get(b"byteHardLimit", -1),
    )


def parse_usage(data: bytes | None) -> Usage:
    """The usage in the data of a stats znode; 0 for what it does not say."""
    found = _numbers(data)
    return Usage(found.get(b"count", 0), found.get(b"bytes", 0))


def _numbers(data: bytes | None) -> dict[bytes, int]:
    entries = _NUMBER.findall((data or b"")[:_TEXT_BYTES_MAX])
    return {name: max(-1, int(value)) for name, value in entries}


def limits_path(subject: str) -> str:
    """Where the limits of the quota on `subject` are."""
    return QUOTA_PATH + subject + LIMITS_NAME


def stats_path(subject: str) -> str:
    """Where the usage of the quota on `subject` is shown."""
    return QUOTA_PATH + subject + STATS_NAME
