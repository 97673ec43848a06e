"""What the server at hand does not know, found out once per server, and what serves instead.

An old server, or one whose operator has switched containers and TTLs off, says UNIMPLEMENTED, and
ZooKeeper then closes the connection; an older one still closes it without a word. Another server
may know better, and so may this one once it was upgraded.

Invariants
    F1  A kind of request that a server has refused is not sent to it again on this connection, nor
        on one made within `REMEMBERED_MS`: asking costs everybody the connection.
    F2  A kind that has worked once in this client's life is not given up because of a connection
        that was lost; one that has not is left out for the next connection.
"""

from collections.abc import Callable, Iterable, Sequence

from zabd.model.errors import KeeperError
from zabd.model.ops import (
    Create,
    Create2,
    CreateContainer,
    CreateMode,
    CreateTtl,
    MultiOp,
    OpCode,
)

# An upgrade or a changed setting is noticed within the hour; until then one that is asked in vain
# would cost its connection again at each reconnect.
REMEMBERED_MS = 3_600_000


class CreateTtlOr(CreateTtl):
    """A CreateTtl whose data says that the server ends it, and what serves where it cannot."""

    instead: Create

    @classmethod
    def of(cls, op: CreateTtl, instead: Create) -> "CreateTtlOr":
        """The op, with what serves instead."""
        made = cls(*op)
        made.instead = instead
        return made


class Fallbacks:
    """The kinds of requests that the server at hand knows, as far as is known."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._server = ""
        self._refused_ms: dict[tuple[str, OpCode], int] = {}
        self._unknown: set[OpCode] = set()
        self._suspects: set[OpCode] = set()
        self._proved: set[OpCode] = set()

    def knows(self, opcode: OpCode) -> bool:
        """Whether it is worth asking."""
        return opcode not in self._unknown

    def forget(self, opcode: OpCode) -> None:
        """The server has said that it does not know this."""
        self._unknown.add(opcode)
        self._refused_ms[self._server, opcode] = self._now_ms()

    def connected(self, server: str) -> None:
        """Another connection: ask for all but what may have cost the last one (F2), and for F1."""
        self._server = server
        self._unknown, self._suspects = self._suspects, set()
        now_ms = self._now_ms()
        for (refused_by, opcode), at_ms in list(self._refused_ms.items()):
            if now_ms - at_ms >= REMEMBERED_MS:
                del self._refused_ms[refused_by, opcode]
            elif refused_by == server:
                self._unknown.add(opcode)

    # Multis of newer kinds.

    def as_known(self, ops: Sequence[MultiOp]) -> list[MultiOp]:
        """The ops, with plain ones in the place of those that the server does not know."""
        return [op if op.opcode not in self._unknown else nearest(op) for op in ops]

    def learn(self, ops: Sequence[MultiOp], error: KeeperError) -> bool:
        """The server did not know one of these; return whether there is something to do instead."""
        guilty = ops if error.op_index is None else ops[error.op_index : error.op_index + 1]
        newer = _newer(guilty)
        for opcode in newer:
            self.forget(opcode)
        return bool(newer)

    def lost(self, ops: Sequence[MultiOp]) -> None:
        """The connection broke under these (F2)."""
        self._suspects |= _newer(ops) - self._proved

    def proved(self, ops: Sequence[MultiOp]) -> None:
        """These were done."""
        self._proved |= _newer(ops)


def nearest(op: MultiOp) -> MultiOp:
    """The nearest thing that every server knows."""
    match op:
        case CreateContainer():
            return Create(op.path, op.data, op.acl, CreateMode.PERSISTENT)
        case CreateTtlOr():
            return op.instead
        case CreateTtl():
            return Create(op.path, op.data, op.acl, _PLAIN_MODES[CreateMode(op.flags)])
        case Create2():
            return Create(*op)
        case _:
            return op


_PLAIN_MODES = {
    CreateMode.PERSISTENT_WITH_TTL: CreateMode.PERSISTENT,
    CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL: CreateMode.PERSISTENT_SEQUENTIAL,
}


def _newer(ops: Iterable[MultiOp]) -> set[OpCode]:
    return {op.opcode for op in ops if isinstance(op, Create2 | CreateContainer | CreateTtl)}
