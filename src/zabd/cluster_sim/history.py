"""A history: what clients asked for, when, and what they were told.

It is all that a check from outside needs: no zxid of a server has to be believed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from zabd.model.errors import ErrorCode
from zabd.model.ids import SessionId
from zabd.model.ops import Op

FOREVER: Final = 1 << 62
"""When a call returned whose outcome nobody has learnt."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The service said no: an answer like any other."""

    code: ErrorCode


@dataclass(frozen=True, slots=True)
class Expire:
    """The service ends a session on its own account, some time after its client was last heard."""

    session_id: SessionId


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of one client.

    `called` and `returned` are instants of one clock, in any unit. A call whose connection was lost
    returned at `FOREVER`, and its `result` means nothing. The calls of a client take effect in the
    order in which they were made, one of unknown outcome in its place or never; a client that lost
    its session and opened another one is another client.

    `zxid` is the witness that the service gave: `check_by_zxid` examines it, `check_linearizable`
    believes none of it and tries first what it suggests. 0 says that there is none. `link` numbers
    the connections of a client, where that is known: of the calls that were lost with one
    connection, those that took effect are the first ones, since it delivered a prefix.
    """

    client: str
    op: Op | Expire
    called: int
    returned: int = FOREVER
    result: object = None
    session_id: SessionId = 0
    zxid: int = 0
    link: int | None = None

    @property
    def known(self) -> bool:
        """Whether its outcome is known."""
        return self.returned != FOREVER

    def __str__(self) -> str:
        told = f"{self.result} at {self.returned}" if self.known else "nothing"
        return f"{self.client} at {self.called}: {self.op}; told {told}"


T = TypeVar("T")


def by_client(operations: Iterable[Operation]) -> list[list[Operation]]:
    """The calls of each client, in the order in which it made them."""
    found: dict[str, list[Operation]] = {}
    for operation in operations:
        found.setdefault(operation.client, []).append(operation)
    return list(found.values())
