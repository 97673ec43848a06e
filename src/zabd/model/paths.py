"""Paths of znodes: the rule they follow and how they are taken apart.

The rule and its exceptions (what a sequential create may ask for, what reads let pass) are in the
client protocol, sections 8 and 9. Paths are whole server paths: a chroot is the client's business.
"""

import re
from typing import Final

from zabd.model.errors import BadArgumentsError

ROOT: Final = "/"
SYSTEM_PATH: Final = "/zookeeper"
QUOTA_PATH: Final = "/zookeeper/quota"
CONFIG_PATH: Final = "/zookeeper/config"

# ZooKeeper counts in UTF-16, where a character beyond U+FFFF is two surrogates and so forbidden.
_FORBIDDEN: Final = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\uf8ff\\ufff0-\\uffff\\U00010000-\\U0010ffff]"
)
_DOTS: Final = re.compile(r"/(\.\.?)(?=/|\Z)")

_COUNTER_SPAN: Final = 2**32
_COUNTER_LIMIT: Final = 2**31
_SHOWN_MAX: Final = 200  # characters of a refused path that an error quotes


def check_path(path: str) -> None:
    """Accept a path that a znode may have, or raise BadArgumentsError naming the rule it breaks."""
    if is_plain_path(path):
        return
    if broken := _broken_rule(path):
        raise BadArgumentsError(f"the path {_shown(path)} {broken}", path=path)


def is_plain_path(path: str) -> bool:
    """Whether a path is so plain that no rule can be broken, as nearly all are.

    Printable ASCII with no component that starts with a dot: four quick scans in C. The rest, all
    that is refused included, takes the long way.
    """
    return (
        path.isascii()
        and path.isprintable()
        and path[:1] == "/"
        and "//" not in path
        and "/." not in path
        and (path[-1] != "/" or path == ROOT)
    )


def is_valid_path(path: str) -> bool:
    """Whether `check_path` accepts the path."""
    try:
        check_path(path)
    except BadArgumentsError:
        return False
    return True


def _broken_rule(path: str) -> str | None:
    if not path:
        return "is empty; the root is /"
    if path[0] != "/":
        return "does not start with /"
    if path != ROOT and path[-1] == "/":
        return "ends with /"
    if "//" in path:
        return "has an empty component"
    if dots := _DOTS.search(path):
        return f"has the component {dots[1]!r}; paths are absolute"
    if bad := _FORBIDDEN.search(path):
        return f"has the character U+{ord(bad[0]):04X}, which no path may have"
    return None


def _shown(path: str) -> str:
    return repr(path) if len(path) <= _SHOWN_MAX else f"{path[:_SHOWN_MAX]!r}... ({len(path)} long)"


def parent_of(path: str) -> str:
    """The path of the parent; the root is its own. ValueError if the path has no `/` at all."""
    return path[: path.rindex("/")] or ROOT


def name_of(path: str) -> str:
    """The last component, the name among the parent's children; the root's is empty."""
    return path[path.rfind("/") + 1 :]


def join(parent: str, name: str) -> str:
    """The path of the child of that name."""
    return f"/{name}" if parent == ROOT else f"{parent}/{name}"


def sequential_name(path: str, counter: int) -> str:
    """The path with its sequence number: ten digits, of the counter as a signed 32-bit number.

    After 2147483647 the number is negative, as in ZooKeeper (protocol section 9).
    """
    signed = (counter + _COUNTER_LIMIT) % _COUNTER_SPAN - _COUNTER_LIMIT
    return f"{path}{signed:010d}"
