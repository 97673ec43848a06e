"""Many znodes, made quickly: flat under one parent, or four levels deep."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from zabd.cli.load import Connection, LoadError
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.ops import Create, CreateMode, Exists, Op
from zabd.model.results import StatResult
from zabd.wire.requests import encode_request

PAYLOAD: Final = b"x" * 100
CHUNK: Final = 500
FANOUT: Final = 100  # children of each of the three upper levels, at the most
FLAT: Final = "/flat"
DEEP: Final = "/deep"

Paths = Callable[[int], Iterator[str]]


def flat(count: int) -> Iterator[str]:
    """All of them children of one znode."""
    yield FLAT
    for number in range(count - 1):
        yield f"{FLAT}/n{number:08d}"


def deep(count: int) -> Iterator[str]:
    """Parents are counted as well: /deep, a hundred below it, a hundred below each, then leaves."""

    def names() -> Iterator[str]:
        yield DEEP
        leaves = max(count // FANOUT**2, 1)
        for a in range(FANOUT):
            yield f"{DEEP}/{a:02d}"
            for b in range(FANOUT):
                yield f"{DEEP}/{a:02d}/{b:02d}"
                for leaf in range(leaves):
                    yield f"{DEEP}/{a:02d}/{b:02d}/n{leaf:06d}"

    return itertools.islice(names(), count)


def fill(host: tuple[str, int], paths: Iterator[str], payload: bytes = PAYLOAD) -> None:
    """Create them in this order; raises `LoadError` if one was refused."""
    connection = Connection(*host)
    chunks = iter(lambda: list(itertools.islice(paths, CHUNK)), [])
    waiting = 0
    # Two chunks are under way, so that neither side waits for the other.
    for chunk in chunks:
        connection.socket.sendall(b"".join(_requests(chunk, payload)))
        connection.expect(waiting)
        waiting = len(chunk)
    connection.expect(waiting)
    connection.socket.close()


def _requests(paths: Sequence[str], payload: bytes) -> Iterator[bytes]:
    for path in paths:
        op: Op = Create(path, payload, OPEN_ACL_UNSAFE, CreateMode.PERSISTENT)
        yield encode_request(1, op)


def require(host: tuple[str, int], path: str) -> None:
    """Raises `LoadError` if the znode is not there."""
    connection = Connection(*host)
    found = connection.call(Exists(path, watch=False))
    connection.socket.close()
    if not isinstance(found, StatResult):
        raise LoadError(f"{path} was written and is not there")
