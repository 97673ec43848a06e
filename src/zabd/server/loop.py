"""The loop calls that the server uses: all of them, and no others.

asyncio's own loop, uvloop's and the simulator's VirtualLoop share these, so a member runs unchanged
on each. Every module of this room takes its loop as this protocol, and the type checker refuses a
call that is not listed. Transports are used for `write`, `writelines`, `close`, `abort`,
`is_closing`, `pause_reading`, `resume_reading`, `set_write_buffer_limits`,
`get_write_buffer_size`, `can_write_eof`, `write_eof` and `get_extra_info` ("peername",
"sockname", "socket").
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Handle(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """Take it back; harmless when it has been made."""
        ...


class Listener(Protocol):
    """A listening port, or several of one address."""

    @property
    def sockets(self) -> Sequence[Any]:
        """What listens; each knows its `getsockname()`."""
        ...

    def close(self) -> None:
        """Listen no more. Connections that were accepted stay."""
        ...


class Loop(Protocol):
    """What a member needs of an event loop."""

    def time(self) -> float:
        """Seconds on a clock that never goes back; the source of every `now_ms`."""
        ...

    def call_soon(self, callback: Callable[..., object], *args: object) -> Handle:
        """In the next turn, behind what is already due."""
        ...

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> Handle:
        """When the loop's clock says so; every timer of a member is one of these."""
        ...

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> Handle:
        """From the disk's threads."""
        ...

    def create_future(self) -> asyncio.Future[Any]:
        """For the edges: what `serve` waits for."""
        ...

    def create_task(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """For the edges: a dial that is under way."""
        ...

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int,
        *,
        backlog: int = 100,
    ) -> Listener:
        """Listen; OSError if the address is taken or is not one of this machine's."""
        ...

    async def create_connection(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect; OSError if nobody listens there."""
        ...

    async def getaddrinfo(
        self,
        host: str,
        port: int,
        *,
        type: int = 0,  # noqa: A002  (asyncio's name)
    ) -> Sequence[Any]:
        """The addresses of a name; OSError if there are none."""
        ...
